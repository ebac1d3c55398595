"""All parts of the ring experiment, in groups that are run together."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.errors import BadInput
from holdfast_lab.experiments.ring import coding_costs, measured, simulated
from holdfast_lab.experiments.ring.part import Group, Part, Progress, RingExperiment

GROUPS: tuple[Group, ...] = (
    Group("simulated", ("routing", "retrieval", "balance", "upkeep", "churn", "correlated"), simulated.run),
    Group("coding", ("recompute", "encoding", "lost-blocks"), coding_costs.run),
    Group("measured", ("applications", "model", "overhead"), measured.run),
)


def chosen_groups(names: Collection[str]) -> list[Group]:
    """Return the groups that these groups or parts need; all for none named."""
    known = {group.name for group in GROUPS} | {part for group in GROUPS for part in group.parts}
    unknown = sorted(set(names) - known)
    if unknown:
        raise BadInput(f"there is no part {unknown[0]!r}", field="--only", remedy=f"use {', '.join(sorted(known))}")
    return [group for group in GROUPS if not names or group.name in names or set(group.parts) & set(names)]


def run_experiment(experiment: RingExperiment, names: Collection[str], progress: Progress) -> list[Part]:
    """Run what was asked for."""
    found = []
    for group in chosen_groups(names):
        for part in group.run(experiment, progress):
            if not names or group.name in names or part.name in names:
                found.append(part)
    return found
