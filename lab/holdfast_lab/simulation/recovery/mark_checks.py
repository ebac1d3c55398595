"""What must hold of marks in every simulated recovery: seen as desired states are handed out. Runs anywhere.

A mark that comes late, or that another driver would not find, does no harm to outputs, and checkpoints come all the
same: the end of a run would not show it.
"""

from __future__ import annotations

from holdfast.ids import BatchId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.segments import ALL_PARTITIONS
from holdfast.runtime.messages import DesiredState
from holdfast_lab.simulation.recovery.storage import LogWatch
from holdfast_lab.simulation.recovery.stores import Complain


class MarkChecks:
    """Looks at the marks of one driver."""

    def __init__(self, state: ClusterState, generation: int, watch: LogWatch, complain: Complain) -> None:
        self._state, self._generation, self._watch, self._complain = state, generation, watch, complain
        self._checkpoint = self._handed_out = state.checkpoints.global_batch
        """The last checkpoint, and up to where workers were given the log."""
        self._line = dict(state.checkpoints.line)
        self._marks: set[BatchId] = set()

    def look(self, desired: DesiredState) -> None:
        """See that a desired state has the marks of the batches that it is the first to give to workers."""
        checkpoints = self._state.checkpoints
        went_back = any(checkpoints.line[p] < at for p, at in self._line.items())
        self._line = dict(checkpoints.line)
        if checkpoints.global_batch < self._checkpoint or went_back:
            self._handed_out, self._marks = checkpoints.global_batch, set()  # everything starts anew
        self._checkpoint = checkpoints.global_batch
        if not desired.assignments:
            return
        through = max(one.through for one in desired.assignments.values())
        marks = set(checkpoints.marks)
        for mark in sorted(marks - self._marks):
            if mark == through and checkpoints.is_durable(mark):
                continue  # a run that ends orders a checkpoint at its last batch
            if mark == self._handed_out and self._state.held.edges:
                continue  # nothing comes, and blocks wait for a checkpoint: it is taken at the last batch
            if not self._watch.was_marked(mark, self._generation):
                self._complain(f"batch {mark} is a mark, and no record says so")
            self._names(mark)
            if mark <= self._handed_out:
                self._complain(f"batch {mark} is marked, and workers were given batch {self._handed_out} before")
        first = BatchId(max(self._handed_out, checkpoints.global_batch) + 1)
        fresh = {BatchId(n) for n in range(first, through + 1) if self._is_wanted(BatchId(n))}
        if fresh and not fresh & marks:
            self._complain(f"batch {min(fresh)} is marked in the log, and handed out without a mark")
        self._handed_out, self._marks = max(self._handed_out, through), marks

    def _is_wanted(self, batch: BatchId) -> bool:
        """Whether a batch is logged as a mark of partitions whose checkpoint is behind it."""
        names, checkpoints = self._watch.is_marked(batch, self._generation), self._state.checkpoints
        of = self._state.segments.of
        return any(at < batch and (ALL_PARTITIONS in names or of(p) in names) for p, at in checkpoints.line.items())

    def _names(self, mark: BatchId) -> None:
        """See that only segments that a mark's record names take a snapshot at it."""
        names, state = self._watch.was_marked(mark, self._generation), self._state
        if not names or ALL_PARTITIONS in names:
            return
        for p in state.graph.order:
            if state.checkpoints.concerns(p, mark) and state.segments.of(p) not in names:
                self._complain(f"{p} saves at batch {mark}, which is a mark of {', '.join(sorted(names))} only")
