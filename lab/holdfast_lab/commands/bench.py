"""`holdfast bench`: measurements of this machine, each a module of its own."""

from __future__ import annotations

from holdfast.cli.lazy import lazy_group

bench = lazy_group(
    "bench",
    "Measure this machine: time, memory, ratios. Figures are printed with their spread.",
    {
        "isolation": (
            "holdfast_lab.commands.bench_isolation:bench_isolation_command",
            "The highest query while an operator of the lowest one misbehaves.",
        ),
        "latency": (
            "holdfast_lab.commands.bench_latency:bench_latency_command",
            "From a row's creation to visible at the sink, by phase.",
        ),
        "limits": (
            "holdfast_lab.commands.bench_limits:bench_limits_command",
            "Operators, exchange and state against plain Arrow, copies and writes.",
        ),
        "memory": (
            "holdfast_lab.commands.bench_memory:bench_memory_command",
            "Memory and disk under a slow sink and a burst.",
        ),
        "overhead": (
            "holdfast_lab.commands.bench_overhead:bench_overhead_command",
            "The price of checkpoints and outboxes.",
        ),
        "planners": (
            "holdfast_lab.commands.bench_planners:bench_planners_command",
            "Time, memory and growth of plans.",
        ),
        "rates": ("holdfast_lab.commands.bench_rates:rates", "Rates on a Spark cluster beside the model's."),
        "recovery": (
            "holdfast_lab.commands.bench_recovery:bench_recovery_command",
            "From a kill to the first output, on both exchanges.",
        ),
        "replicas": (
            "holdfast_lab.commands.bench_replicas:bench_replicas_command",
            "What replicas cost, and the gap when a node is killed.",
        ),
        "scaling": (
            "holdfast_lab.commands.bench_scaling:bench_scaling_command",
            "Cost per batch, and where the time goes.",
        ),
        "start": (
            "holdfast_lab.commands.bench_start:bench_start_command",
            "From the command to the first output row, by phase.",
        ),
        "storage": (
            "holdfast_lab.commands.bench_storage:bench_storage_command",
            "A batch and a checkpoint on object storage, against files.",
        ),
        "store": (
            "holdfast_lab.commands.bench_store:bench_store_command",
            "The code, and fragments against a remote file.",
        ),
        "throughput": (
            "holdfast_lab.commands.bench_throughput:bench_throughput_command",
            "Rows per second against Structured Streaming.",
        ),
        "topology": ("holdfast_lab.commands.bench_topology:bench_topology_command", "Load, check and rates by size."),
    },
)
