"""`holdfast simulate`: clusters in one process, on a clock of their own, each kind a module of its own."""

from __future__ import annotations

from holdfast.cli.lazy import lazy_group

simulate = lazy_group(
    "simulate",
    "Simulate clusters of thousands in one process: the same code as in real runs, one seed, one result.",
    {
        "recovery": (
            "holdfast.cli.simulate_recovery:simulate_recovery_command",
            "Recoveries under every fault, seed by seed; times of large clusters.",
        ),
        "store": (
            "holdfast.cli.simulate_store:simulate_store_command",
            "The fragment store itself under every fault, seed by seed.",
        ),
        "ring": (
            "holdfast_lab.commands.simulate_ring:simulate_ring_command",
            "The fragment store's ring: 500 to 5,000 peers.",
        ),
    },
)
