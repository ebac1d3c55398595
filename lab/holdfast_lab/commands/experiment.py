"""`holdfast experiment`: the papers' figures beside ours, each a module of its own."""

from __future__ import annotations

from holdfast.cli.lazy import lazy_group

experiment = lazy_group(
    "experiment",
    "Run the papers' experiments: their figures beside ours, as tables, CSV and plots.",
    {
        "backups": ("holdfast_lab.commands.experiment_backups:experiment_backups_command", "Minimum backups (FTC)."),
        "promises": (
            "holdfast_lab.commands.experiment_promises:promises",
            "Every operator killed under several plans: predicted beside measured.",
        ),
        "recovery": (
            "holdfast_lab.commands.experiment_recovery:recovery",
            "Recovery on a real cluster (incremental recovery, Fig. 9-14).",
        ),
        "ring": ("holdfast_lab.commands.experiment_ring:experiment_ring_command", "The fragment store (A-FP4S)."),
        "segments": ("holdfast_lab.commands.experiment_segments:segments", "Recovery segments (FastRecover)."),
        "replication": (
            "holdfast_lab.commands.experiment_replication:replication",
            "Replica plans: PPA, Fig. 13 and 14.",
        ),
        "tentative": (
            "holdfast_lab.commands.experiment_tentative:tentative",
            "Tentative outputs, recovery and checkpoints: PPA, Fig. 7-10, 12, 13.",
        ),
        "scheduling": (
            "holdfast_lab.commands.experiment_scheduling:scheduling",
            "Recovery plans (incremental recovery, Fig. 15, 2, 6).",
        ),
        "fragments": ("holdfast_lab.commands.experiment_fragments:fragments", "Fragments (A-FP4S, Fig. 7, 8, 10, 11)."),
    },
)
