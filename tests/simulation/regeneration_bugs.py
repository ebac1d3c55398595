"""Deliberate bugs of what is dropped for waiting partitions, and regenerated. The simulator must find each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.ids import BatchId
from holdfast.recovery import regeneration
from holdfast.recovery.cluster_state import ClusterState
from holdfast.runtime.coordinator import regeneration as assigned
from holdfast.runtime.worker.regenerating import Regenerating
from simulation.bugs import Bug, Patch


def dropped_forgotten_over_a_restart(patch: Patch) -> None:
    """The progress does not say for whom senders keep nothing: a driver that starts again expects it in outboxes."""
    right = ClusterState.written
    patch.setattr(ClusterState, "written", lambda self: {**right(self), "dropped": []})


def dropped_though_rows_may_differ(patch: Patch) -> None:
    """What comes from operators that are not deterministic is dropped, and made again with other rows."""
    patch.setattr(
        regeneration,
        "can_be_regenerated",
        lambda state, partition: regeneration._base(state, [partition]) is not None,
    )


def regenerated_from_the_checkpoint(patch: Patch) -> None:
    """Regenerators start from the last checkpoint of their partition, and not from one before the wait."""

    def latest(state: ClusterState) -> Any:
        found = regeneration.regenerators(state)
        return {p: state.checkpoints.at(p, state.checkpoints.line[p]) for p in found}

    patch.setattr(assigned, "regenerators", latest)


def last_dropped_batch_left_out(patch: Patch) -> None:
    """Regeneration ends one batch before the first that the sender still has."""
    right = regeneration.regenerated

    def one_less(state: ClusterState) -> Any:
        found = right(state)
        return {p: {s: BatchId(at - 1) for s, at in senders.items()} for p, senders in found.items()}

    patch.setattr(assigned, "regenerated", one_less)


def delivered_in_another_epoch(patch: Patch) -> None:
    """Blocks that a returning partition got in an earlier epoch, or in another place, count as delivered."""
    right = Regenerating._deliver

    def deliver(self: Regenerating, host: Any, desired: Any, gaps: Any) -> None:
        self._handed = {
            pair: (desired.epoch, self._clean.place(pair[0]), batch)
            for pair, (_, _, batch) in self._handed.items()
            if pair[0] in self._clean
        }
        right(self, host, desired, gaps)

    patch.setattr(Regenerating, "_deliver", deliver)


def rows_left_out_come_back(patch: Patch) -> None:
    """Regenerators take rows in that were decided to be left out."""
    right = assigned.Regenerations.assign

    def assign(self: Any, assignments: Any) -> Any:
        return {p: replace(one, skips={}) for p, one in right(self, assignments).items()}

    patch.setattr(assigned.Regenerations, "assign", assign)


REGENERATION_BUGS = [
    Bug(put_in.__name__, put_in.__doc__ or "", put_in)
    for put_in in (
        dropped_forgotten_over_a_restart,
        dropped_though_rows_may_differ,
        regenerated_from_the_checkpoint,
        last_dropped_batch_left_out,
        delivered_in_another_epoch,
    )
]
DROPPED_ROW_BUGS = [Bug(put_in.__name__, put_in.__doc__ or "", put_in) for put_in in (rows_left_out_come_back,)]
