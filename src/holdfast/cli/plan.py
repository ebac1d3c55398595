"""`holdfast plan`: one command per kind of plan, each a module of its own."""

from __future__ import annotations

from holdfast.cli.lazy import lazy_group

plan = lazy_group(
    "plan",
    "Decide what to keep before a failure, and what to bring back after one.",
    {
        "auto": ("holdfast.cli.plan_auto:auto", "One joint plan from targets: recovery, overhead, losses, replicas."),
        "explain": ("holdfast.cli.plan_explain:explain", "What a plan or a run promises; what a loss would take down."),
        "recovery": ("holdfast.cli.plan_recovery:recovery", "What to bring back first, where, and as nodes arrive."),
        "backups": (
            "holdfast.cli.plan_backups:backups",
            "Which partitions keep their output, for a guaranteed latency.",
        ),
        "fragments": ("holdfast.cli.plan_fragments:fragments", "How many data and parity fragments a state gets."),
        "replicas": ("holdfast.cli.plan_replicas:replicas", "Which partitions to run twice within a budget."),
        "segments": ("holdfast.cli.plan_segments:segments", "Which operators store inputs, how often all checkpoint."),
    },
)
