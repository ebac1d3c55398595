"""Planning again when a topology has scaled: of all fewest sets, one that changes fewest backups. Runs anywhere.

A backup that is kept costs a little less than a new one, so little that a larger set is never cheaper: with p backups
in the previous plan, p for one that is kept and p + 1 for a new one. A cheapest set is then a fewest set that keeps as
many as possible, and since all fewest sets are of one size it also starts and stops as few as possible.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.planning.backups.exact import ExactBackups
from holdfast.planning.backups.model import BackupProblem, Mask
from holdfast.topology import Ints, Topology


class Fewest(Protocol):
    """A solver of backup problems with costs."""

    def __call__(
        self,
        problem: BackupProblem,
        clock: Callable[[], float],
        seconds: float,
        *,
        cost: Ints | None = None,
        workers: int = 1,
    ) -> ExactBackups:
        """Return a cheapest set, or the best in so many seconds with a bound."""


@dataclass(frozen=True, slots=True)
class Replanned:
    """What a new plan changes in the previous one; partitions that are no more are not counted."""

    kept: Ints
    added: Ints
    removed: Ints
    fewest_changes: bool
    """Whether it is proven that no fewest set changes less."""


def replanned(
    problem: BackupProblem,
    previous: Mask,
    fewest: Fewest,
    clock: Callable[[], float],
    seconds: float,
    workers: int = 1,
) -> tuple[ExactBackups, Replanned]:
    """Return a fewest set that keeps as much of the previous one as possible, and what changes."""
    until = clock() + seconds
    plain = fewest(problem, clock, seconds / 2, workers=workers)
    dear = int(previous.sum()) + 1
    near = fewest(problem, clock, until - clock(), cost=np.where(previous, dear - 1, dear), workers=workers)
    # Whatever costs at least `near.bound` has at least this many backups; and fewer are not needed than `plain` proves.
    bound = max(plain.bound, -(-near.bound // dear))
    chosen = near.backups if near.backups.sum() <= plain.backups.sum() else plain.backups
    count = int(chosen.sum())
    found = ExactBackups(chosen, count, min(bound, count))
    return found, Replanned(
        kept=np.flatnonzero(chosen & previous),
        added=np.flatnonzero(chosen & ~previous),
        removed=np.flatnonzero(previous & ~chosen),
        fewest_changes=near.optimal and found.optimal,
    )


def carried_over(topology: Topology, backups: Iterable[str]) -> tuple[Mask, list[str]]:
    """Return the backups of a previous plan that are still partitions of a topology, and the names of those gone."""
    mask = np.zeros(len(topology), bool)
    gone = []
    for name in backups:
        PartitionId.parse(name)  # what is no partition's name is refused
        try:
            mask[topology.index(name)] = True
        except BadInput:
            gone.append(name)
    return mask, gone
