"""Deliberate bugs of marks: how they are decided, written and read. The simulator must find each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.ids import BatchId
from holdfast.runtime.coordinator.marking import BatchMarks
from holdfast.runtime.coordinator.pacing import Mark
from holdfast.runtime.io.batch_log import BatchLog
from simulation.bugs import Bug, Patch


def mark_decided_and_not_logged(patch: Patch) -> None:
    """A mark is decided when its batch is logged, and its record does not have it."""
    right = BatchMarks.decide

    def decide(self: BatchMarks, batch: BatchId) -> Any:
        for mark in right(self, batch).values():
            self._found.append(Mark(batch, mark.durable))
        return {}

    patch.setattr(BatchMarks, "decide", decide)


def own_mark_believed(patch: Patch) -> None:
    """Where the driver before has logged a batch, what this driver has decided about it counts."""
    right = BatchLog._commit

    def commit(self: BatchLog, batch: BatchId, sources: Any, marks: Any = None, *given: Any) -> Any:
        record = right(self, batch, sources, marks, *given)
        return record if self.is_own(record) else self._keep(replace(record, marks=marks or {}))

    patch.setattr(BatchLog, "_commit", commit)


def marks_before_a_start_not_read(patch: Patch) -> None:
    """A new driver does not read the marks that are in the log beyond its checkpoint."""
    right = BatchMarks.__init__

    def init(self: BatchMarks, log: BatchLog, *given: Any) -> None:
        right(self, log, *given)
        self._through = log.frontier

    patch.setattr(BatchMarks, "__init__", init)


def mark_handed_out_late(patch: Patch) -> None:
    """Workers get a mark with the desired state after the one that lets them read its batch."""
    right, late = BatchMarks.take, dict[int, list[Mark]]()

    def take(self: BatchMarks) -> list[Mark]:
        before, late[id(self)] = late.get(id(self), []), right(self)
        return before

    patch.setattr(BatchMarks, "take", take)


def marks_behind_frontiers_taken_again(patch: Patch) -> None:
    """With every epoch, marks are read anew from the checkpoint on: also those that were given up and passed."""
    right, epochs = BatchMarks._read, dict[int, int]()

    def read(self: BatchMarks) -> None:
        epoch = self._state.epoch
        if epochs.setdefault(id(self), epoch) != epoch:
            self._through, self._found = self._state.checkpoints.global_batch, []
        epochs[id(self)] = epoch
        right(self)

    patch.setattr(BatchMarks, "_read", read)


def marks_not_read_after_a_lost_checkpoint(patch: Patch) -> None:
    """Where a checkpoint is lost and everything starts anew from an earlier one, marks in between are not read."""
    right = BatchMarks._read

    def read(self: BatchMarks) -> None:
        self._line = dict(self._state.checkpoints.line)
        right(self)

    patch.setattr(BatchMarks, "_read", read)


MARK_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        mark_decided_and_not_logged,
        own_mark_believed,
        marks_before_a_start_not_read,
        mark_handed_out_late,
        marks_behind_frontiers_taken_again,
        marks_not_read_after_a_lost_checkpoint,
    )
)
