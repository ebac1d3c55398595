"""Deliberate bugs of quarantined rows and dead letters. The simulator must find each; see bugs.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.ids import BatchId, Epoch
from holdfast.recovery import checkpointing
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import LeaveOut
from holdfast.recovery.quarantine import Quarantined
from holdfast.recovery.states import PartitionState
from holdfast.runtime.blocks import DEAD_LETTERS, Block
from holdfast.runtime.coordinator import decisions
from holdfast.runtime.coordinator import resumed_state as resumed
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.worker import host as hosts
from holdfast.runtime.worker import step as steps
from holdfast.runtime.worker.step_guard import Death, SharedGuard
from simulation.bugs import Bug, Patch


def decision_not_logged_before_the_retry(patch: Patch) -> None:
    """The rows are left out at once, and the decision is written with whatever is written next."""
    others = tuple(one for one in decisions.WRITTEN_FIRST if one is not LeaveOut)
    patch.setattr(decisions, "WRITTEN_FIRST", others)


def decision_forgotten_over_a_restart(patch: Patch) -> None:
    """A driver that starts leaves nothing out."""
    patch.setattr(resumed, "read_decisions", lambda fields: {})


def other_rows_left_out_in_a_replay(patch: Patch) -> None:
    """A partition that catches up leaves out the rows before the poison."""
    right = ClusterState.skips_for

    def skips(self: ClusterState, partition: Any) -> dict[BatchId, Quarantined]:
        found = right(self, partition)
        if self.partitions[partition].state is not PartitionState.CATCHING_UP:
            return found
        return {
            batch: replace(one, rows=tuple(replace(row, position=max(0, row.position - 1)) for row in one.rows))
            for batch, one in found.items()
        }

    patch.setattr(ClusterState, "skips_for", skips)


def quarantined_row_applied_to_state(patch: Patch) -> None:
    """An operator that can take a row by now gets it, whatever was decided."""
    right = steps.process

    def process(operator: Any, given: Any, *rest: Any) -> Any:
        if given.skipped is not None:
            try:
                return right(operator, replace(given, skipped=None), *rest)
            except Exception:
                return right(operator, given, *rest)
        return right(operator, given, *rest)

    patch.setattr(hosts, "process", process)


def row_left_out_of_the_output_only(patch: Patch) -> None:
    """State is that of the batch with all rows where the operator takes them; the output is without."""
    right = steps.process

    def process(operator: Any, given: Any, *rest: Any) -> Any:
        commit, added = right(operator, given, *rest)
        if given.skipped is not None:
            try:
                all_rows, more = right(operator, replace(given, skipped=None), *rest)
            except Exception:
                return commit, added
            return all_rows, replace(more, blocks=added.blocks)
        return commit, added

    patch.setattr(hosts, "process", process)


def dead_letters_lost(patch: Patch) -> None:
    """Where a driver takes over, dead letters that come to it first count as written by the one before."""
    right = Outputs._set_aside
    seen: set[int] = set()

    def set_aside(self: Outputs, block: Block, epoch: Epoch) -> None:
        if block.header.edge.source == DEAD_LETTERS and epoch.claim > 1 and id(self) not in seen:
            seen.add(id(self))
            return
        right(self, block, epoch)

    patch.setattr(Outputs, "_set_aside", set_aside)


def dead_letters_written_twice(patch: Patch) -> None:
    """Dead letters of another epoch are taken for others."""
    right = Outputs._key

    def key(self: Outputs, block: Block) -> Any:
        found = right(self, block)
        dead = block.header.edge.source == DEAD_LETTERS
        return replace(found, revision=block.header.epoch.number) if dead else found

    patch.setattr(Outputs, "_key", key)


def decision_dropped_too_early(patch: Patch) -> None:
    """A decision goes with the next global checkpoint, and not with its batch."""
    right = checkpointing.without_old
    patch.setattr(checkpointing, "without_old", lambda decisions, safe: right(decisions, BatchId(2**40)))


def deaths_in_the_search_forgotten(patch: Patch) -> None:
    """A piece of a step in which the process has died is tried again and again."""
    right = SharedGuard.begin

    def begin(self: SharedGuard, partition: Any, batch: Any, attempt: int, piece: str = "") -> Death | None:
        if piece:
            self._deaths.pop((partition, batch, piece), None)
        return right(self, partition, batch, attempt, piece)

    patch.setattr(SharedGuard, "begin", begin)


QUARANTINE_BUGS = [
    Bug(put_in.__name__, put_in.__doc__ or "", put_in)
    for put_in in (
        decision_not_logged_before_the_retry,
        decision_forgotten_over_a_restart,
        other_rows_left_out_in_a_replay,
        quarantined_row_applied_to_state,
        row_left_out_of_the_output_only,
        dead_letters_lost,
        dead_letters_written_twice,
        decision_dropped_too_early,
        deaths_in_the_search_forgotten,
    )
]
