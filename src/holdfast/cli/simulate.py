"""`holdfast simulate`: clusters in one process, on a clock of their own, each kind a module of its own."""

from __future__ import annotations

from holdfast.cli.lazy import lazy_group

simulate = lazy_group(
    "simulate",
    "Simulate clusters of thousands in one process: the same code as in real runs, one seed, one result.",
    {
        "recovery": (
            "holdfast.cli.simulate_recovery:simulate_recovery_command",
            "Times of a failure on a large cluster; recoveries under every fault, seed by seed (in a checkout).",
        ),
        "store": (
            "holdfast_lab.commands.simulate_store:simulate_store_command",
            "The fragment store itself under every fault, seed by seed (in a checkout).",
        ),
        "ring": (
            "holdfast_lab.commands.simulate_ring:simulate_ring_command",
            "The fragment store's ring: 500 to 5,000 peers (in a checkout).",
        ),
    },
)
