"""`holdfast experiment`: the papers' figures beside ours, each a module of its own."""

from __future__ import annotations

from holdfast.cli.lazy import lazy_group

experiment = lazy_group(
    "experiment",
    "Run the papers' experiments: their figures beside ours, as tables, CSV and plots.",
    {
        "backups": ("holdfast.cli.experiment_backups:experiment_backups_command", "Minimum backups (paper 003)."),
        "recovery": ("holdfast.cli.experiment_recovery:recovery", "Recovery on a real cluster (paper 000, Fig. 9-14)."),
        "ring": ("holdfast.cli.experiment_ring:experiment_ring_command", "The fragment store (paper 002)."),
        "segments": ("holdfast.cli.experiment_segments:segments", "Recovery segments (paper 004)."),
        "replication": ("holdfast.cli.experiment_replication:replication", "Replica plans: paper 001, Fig. 13 and 14."),
        "scheduling": ("holdfast.cli.experiment_scheduling:scheduling", "Recovery plans (paper 000, Fig. 15, 2, 6)."),
        "fragments": ("holdfast.cli.experiment_fragments:fragments", "Fragments (paper 002, Fig. 7, 8, 10, 11)."),
    },
)
