"""Which of a worker's blocks go where, and which have gone already. Runs on a node; the same under every backend.

A consumer is sent what it has not acknowledged; only the coordinator's frontiers acknowledge. Within one desired state
a worker looks several times at what it has to send (once at every level): a block goes out at the level at which it was
made, once. Where a level is run again, its blocks go out again, for what it sent before may be lost; copies are dropped
by the consumer's inbox.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.ids import NodeId
from holdfast.runtime.blocks import LATE, SINK, Block, SequenceNumber
from holdfast.runtime.messages import DesiredState


class Exchange:
    """What one worker has sent under the present desired state."""

    def __init__(self) -> None:
        self._number = -1
        self._sent: dict[SequenceNumber, int] = {}
        """At which level each block went out."""

    def address(
        self, desired: DesiredState, level: int, blocks: Iterable[Block]
    ) -> tuple[dict[NodeId, list[Block]], list[Block]]:
        """Return the blocks for other nodes, and those for sinks, that go out at this level."""
        if desired.number != self._number:
            self._number = desired.number
            self._sent.clear()
        to_nodes: dict[NodeId, list[Block]] = {}
        outputs: list[Block] = []
        for block in blocks:
            receiver, number = block.header.receiver, block.header.sequence
            # Late rows are acknowledged by the frontier that is reported with them: they go with every report.
            if self._sent.setdefault(number, level) < level and receiver.operator != LATE:
                continue
            if receiver.operator in (SINK, LATE):
                outputs.append(block)
            elif (assignment := desired.assignments.get(receiver)) is not None:
                to_nodes.setdefault(assignment.node, []).append(block)
        return to_nodes, outputs
