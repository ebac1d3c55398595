"""Spare capacity goes to the next query by density, upstream first (incremental recovery, Fig. 2). Pure.

Nothing is restored by it now; the next plan, when another node has come, starts from it and costs what is left.
A partition is only brought back when all it reads from is back: without inputs it could not catch up.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from holdfast.planning.recovery.problem import Mask, RecoveryProblem


class Room(Protocol):
    """What is left to use: one sum, or a place on some node."""

    @property
    def largest(self) -> int:
        """The largest cost that still fits."""
        ...

    def take(self, number: int, cost: int) -> bool:
        """Give room to a failed partition, if there is enough; return whether there was."""
        ...


class OneRoom:
    """Capacity as one sum."""

    def __init__(self, left: int) -> None:
        self.largest = left

    def take(self, number: int, cost: int) -> bool:
        """Take it off the sum, if it fits."""
        if cost > self.largest:
            return False
        self.largest -= cost
        return True


def use_leftover(problem: RecoveryProblem, taken: Mask, room: Room | None = None) -> Mask:
    """Return `taken` (a mask over the failed partitions) with what else fits, query by query, densest first."""
    taken = taken.copy()
    asked = problem.restored_by(taken)
    if asked.all():
        return taken
    room = room or OneRoom(problem.capacity - problem.cost_of(taken))
    ready = UpstreamReady(problem)
    needed = problem.group_of >= 0
    share = np.zeros(len(problem.partitions))
    share[needed] = problem.cost[needed] / problem.sharing[problem.group_of[needed]]
    open_share = np.bincount(problem.group_of[needed], np.where(taken, 0.0, share)[needed], problem.member.shape[1])
    missing = problem.per_query(np.asarray(open_share, float))
    while not asked.all():
        open_ = ~taken
        if not (open_ & needed & (problem.cost <= room.largest)).any():
            break
        density = np.where(asked, -1.0, problem.priority / np.maximum(missing, 1e-300))
        query = int(density.argmax())
        asked[query] = True
        wanted = np.flatnonzero(problem.partitions_of(problem.member[query]) & open_)
        level = problem.topology.level[problem.partitions[wanted]]
        for number in wanted[np.lexsort((wanted, level))].tolist():
            if ready.of(number, taken) and room.take(number, int(problem.cost[number])):
                taken[number] = True
                missing[problem.member[:, problem.group_of[number]]] -= share[number]
    return taken


class UpstreamReady:
    """Whether everything a failed partition reads from is back, given what is taken."""

    def __init__(self, problem: RecoveryProblem) -> None:
        self._problem = problem
        self._place = np.full(len(problem.topology), -1)
        self._place[problem.partitions] = np.arange(len(problem.partitions))

    def of(self, number: int, taken: Mask) -> bool:
        """Return whether one failed partition is ready (by its place among the failed)."""
        topology = self._problem.topology
        partition = int(self._problem.partitions[number])
        above = topology.edge_from[topology.up_start[partition] : topology.up_start[partition + 1]]
        place = self._place[above]
        return bool(taken[place[place >= 0]].all())
