"""Deliberate bugs of second copies of partitions, which the simulator must find in runs that have them."""

from __future__ import annotations

from typing import Any

from holdfast.ids import BatchId, PartitionId
from holdfast.planning.replicas import placement
from holdfast.recovery import copies, copying
from holdfast.recovery.copying import CopyLifecycle
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.states import PartitionState
from holdfast.runtime.blocks import SINK
from holdfast.runtime.worker import resident as residents
from holdfast.runtime.worker.host import PartitionHost
from holdfast.runtime.worker.resident import ResidentWorker
from holdfast.runtime.worker.subscriptions import Request
from simulation.bugs import Bug, Patch


def copy_ahead_of_its_primary(patch: Patch) -> None:
    """A copy takes whatever comes, whether or not its primary is known to have completed it."""
    patch.setattr(residents, "limits_of", lambda assigned, here: {})


def copy_publishes(patch: Patch) -> None:
    """A copy reports its last output, as its primary does."""
    right = ResidentWorker._outputs

    def outputs(self: ResidentWorker, *given: Any) -> Any:
        found = right(self, *given)
        for p in [p for p, one in self._mine.items() if one.replica and p in self._host]:
            last = BatchId(self._host.frontier(p) - 1)
            for sink in [one for one in self._program.consumers(p) if one.operator == SINK]:
                found += self._host.replay(p, sink, last) or []
        return found

    patch.setattr(ResidentWorker, "_outputs", outputs)


def two_primaries(patch: Patch) -> None:
    """Copies take over without a new epoch: what the primary still does is not fenced off."""
    right_lose, right_move = RecoveryMachine._lose, CopyLifecycle._finish_moves

    def without_epoch(one: Any, work: Any) -> None:
        begin, one._changes.new_epoch = one._changes.new_epoch, lambda why: None
        try:
            work()
        finally:
            one._changes.new_epoch = begin

    def lose(self: RecoveryMachine, partitions: Any, *given: Any) -> None:
        if all(p in self.state.copies.at for p in partitions):
            without_epoch(self, lambda: right_lose(self, partitions, *given))
        else:
            right_lose(self, partitions, *given)

    patch.setattr(RecoveryMachine, "_lose", lose)
    patch.setattr(CopyLifecycle, "_finish_moves", lambda self: without_epoch(self, lambda: right_move(self)))


def promoted_at_its_primarys_batch(patch: Patch) -> None:
    """A copy that takes over is taken to be where its primary was."""
    right = CopyLifecycle.promote

    def promote(self: CopyLifecycle, partition: PartitionId, first_mark: BatchId, why: str) -> None:
        copy = self._state.copies.at[partition]
        copy.frontier = max(copy.frontier, self._state.logged)
        right(self, partition, first_mark, why)

    patch.setattr(CopyLifecycle, "promote", promote)


def copys_outbox_trimmed_to_where_it_stands(patch: Patch) -> None:
    """A copy keeps no more output than what comes next."""
    right = PartitionHost.keep

    def keep(self: PartitionHost, partition: PartitionId, first: BatchId, states: Any = ()) -> None:
        held = self.is_held_back(partition)
        right(self, partition, self.frontier(partition) if held else first, states)

    patch.setattr(PartitionHost, "keep", keep)


def copy_beside_its_primary(patch: Patch) -> None:
    """A copy may be on the node of its primary."""
    patch.setattr(placement, "allowed", lambda replica, node, domains: True)
    patch.setattr(copying, "to_yield", lambda state: [])


def copies_do_not_yield(patch: Patch) -> None:
    """Copies stay where a lost partition needs the room."""
    patch.setattr(copying, "to_yield", lambda state: [])


def copy_of_what_is_not_deterministic(patch: Patch) -> None:
    """Partitions whose rows may differ have copies, too."""

    def wanted(state: Any) -> list[PartitionId]:
        return list(state.graph.order) if state.settings.promotes and state.copies.replicas else []

    patch.setattr(copies, "wanted", wanted)


def copy_takes_its_primarys_subscription(patch: Patch) -> None:
    """A copy subscribes under the name of its primary."""
    patch.setattr(Request, "subscriber", property(lambda self: (self.consumer, self.sender, None)))


def copy_goes_on_behind_its_senders(patch: Patch) -> None:
    """A copy is kept whose senders have dropped what comes next."""
    patch.setattr(copying, "useless", lambda state: {})


def evacuation_waits_for_the_lost(patch: Patch) -> None:
    """No copies are built for a node that will go while a partition is lost: what is on it is lost next."""
    right = copies.to_build

    def to_build(state: Any, start_of: Any) -> Any:
        missing = state.in_state((PartitionState.LOST, PartitionState.RESTORING))
        return ({}, {}) if missing else right(state, start_of)

    patch.setattr(copying, "to_build", to_build)


def moved_without_an_epoch(patch: Patch) -> None:
    """Partitions that move for load take over without a new epoch: what the primary still does is not fenced off."""
    right = CopyLifecycle._move_for_load

    def move(self: CopyLifecycle) -> None:
        begin, self._new_epoch = self._new_epoch, lambda why: None
        try:
            right(self)
        finally:
            self._new_epoch = begin

    patch.setattr(CopyLifecycle, "_move_for_load", move)


def replica_stays_that_the_plan_no_longer_has(patch: Patch) -> None:
    """Copies that a new plan no longer has stay, though all of the plan are level."""
    patch.setattr(copying, "retired", lambda state, without: [])
    patch.setattr(copies, "RETIRE_BATCHES", 10**6)


def replica_stays_beyond_the_budget(patch: Patch) -> None:
    """Copies that must go at once, because the budget is exceeded, stay until the others are level."""
    right = CopyLifecycle.replan

    def replan(self: CopyLifecycle, replicas: Any, why: str, *, at_once: bool) -> bool:
        return right(self, replicas, why, at_once=False)

    patch.setattr(CopyLifecycle, "replan", replan)


def plan_of_what_is_not_deterministic(patch: Patch) -> None:
    """A new plan gives copies to partitions whose rows may differ."""
    right = CopyLifecycle.replan

    def wanted(state: Any) -> list[PartitionId]:
        of = state.copies
        stays = [p for p in of.retiring if p in of.at]
        return list(dict.fromkeys([*copies.to_move(state), *of.moving, *of.replicas, *stays]))

    def replan(self: CopyLifecycle, replicas: Any, why: str, *, at_once: bool) -> bool:
        changed = right(self, replicas, why, at_once=at_once)
        self._state.copies.replicas = tuple(replicas)
        return changed

    patch.setattr(copies, "wanted", wanted)
    patch.setattr(CopyLifecycle, "replan", replan)


REPLAN_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        replica_stays_that_the_plan_no_longer_has,
        replica_stays_beyond_the_budget,
        plan_of_what_is_not_deterministic,
    )
)
"""Of plans that change while a run goes on."""
COPY_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        copy_ahead_of_its_primary,
        copy_publishes,
        two_primaries,
        promoted_at_its_primarys_batch,
        copys_outbox_trimmed_to_where_it_stands,
        copy_beside_its_primary,
        copies_do_not_yield,
        copy_of_what_is_not_deterministic,
        copy_takes_its_primarys_subscription,
        copy_goes_on_behind_its_senders,
    )
)
LEAVING_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one) for one in (evacuation_waits_for_the_lost,)
)
"""Of nodes that leave."""
MOVE_BUGS = (Bug("moved without an epoch", (moved_without_an_epoch.__doc__ or "").strip(), moved_without_an_epoch),)
"""Of moves for load."""
