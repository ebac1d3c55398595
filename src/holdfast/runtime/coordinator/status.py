"""How far a run is, and whether there is anything to do. Read off the machine, the logs and the sinks; pure."""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.ids import BatchId, OperatorId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.machine import Machine
from holdfast.recovery.states import LIVE_STATES, PartitionState
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.io.sources import SourceLog
from holdfast.runtime.program import Program

_AT_WORK = LIVE_STATES - {PartitionState.PAUSED}


class RunStatus:
    """Changes nothing, and remembers nothing."""

    def __init__(
        self, program: Program, machine: Machine, logs: Mapping[OperatorId, SourceLog], outputs: Outputs
    ) -> None:
        self._program, self._machine, self._logs, self._outputs = program, machine, logs, outputs

    @property
    def logged(self) -> BatchId:
        """The last batch that every source has logged."""
        return min(log.frontier for log in self._logs.values())

    @property
    def frontier(self) -> BatchId:
        """The last batch that every partition has completed."""
        return self._machine.frontier

    @property
    def live_frontier(self) -> BatchId:
        """The last batch that every live partition has completed; where none is live, every partition."""
        live = self._machine.in_state(LIVE_STATES)
        return min((self._machine.partitions[p].frontier for p in live), default=self.frontier)

    @property
    def caught_up(self) -> bool:
        """Whether everything logged is processed, and out where it can be."""
        machine, logged = self._machine, self.logged
        if any(one.state not in LIVE_STATES for one in machine.partitions.values()) or machine.frontier < logged:
            return False
        durable = machine.checkpoints.durable_batch
        return all(
            machine.published[p]
            >= (logged if self._outputs.sure(p) else min(durable, self._outputs.held.get(p, NOTHING)))
            for p in self._program.outputs
        )

    @property
    def can_work(self) -> bool:
        """Whether a cycle would bring anything: a partition can go on, is on its way, or has something to save."""
        machine = self._machine
        return self.can_go_on or any(
            one.state is PartitionState.RESTORING
            or (one.state in _AT_WORK and any(mark <= one.frontier for mark in machine.marks_for(partition)))
            for partition, one in machine.partitions.items()
        )

    @property
    def can_go_on(self) -> bool:
        """Whether a live partition has something to process, or to publish."""
        machine, logged = self._machine, self.logged
        for partition, one in machine.partitions.items():
            senders = [machine.partitions[p].frontier for p in machine.graph.senders(partition)]
            if one.state in _AT_WORK and one.frontier < min(senders, default=logged):
                return True
        return not self.caught_up and any(
            machine.published[p] < machine.partitions[p].frontier
            for p in self._program.outputs
            if machine.partitions[p].state in LIVE_STATES
        )

    @property
    def standing(self) -> object:
        """Something that differs once anything has moved."""
        machine = self._machine
        return (
            machine.epoch,
            machine.checkpoints.global_batch,
            sum(one.frontier for one in machine.partitions.values()),
            sum(machine.published.values()),
            [one.state for one in machine.partitions.values()],
        )
