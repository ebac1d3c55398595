"""When a desired state that workers who stay were handed counts as worked on: a cycle. Pure; runs on the driver.

Workers who stay have no cycles of their own. The coordinator counts them all the same: it notices by them that nothing
moves. A cycle ends when every worker that has something to do in a desired state has reconciled with it and has
nothing more to do before something comes. Where a node has several operator processes, each has a worker, and the
desired state names processes (see processes.py): the cycle waits for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.ids import NodeId
from holdfast.runtime.messages import CycleEnded, DesiredState


@dataclass(slots=True)
class ResidentCycle:
    """The last desired state that was handed out."""

    desired: DesiredState
    waits_for: set[NodeId] = field(init=False)
    ended: bool = False

    def __post_init__(self) -> None:
        self.waits_for = {one.node for one in self.desired.assignments.values()}

    def reported(self, node: NodeId, applied: int, *, idle: bool) -> None:
        """Take what a worker says of itself: the desired state it has reconciled with, and whether it is idle."""
        if applied >= self.desired.number:
            if idle:
                self.waits_for.discard(node)
            else:
                self.waits_for.add(node)

    def left(self, node: NodeId) -> None:
        """The connection to a worker has ended: the next one says anew what there is to do, also after a crash."""
        if any(one.node == node for one in self.desired.assignments.values()):
            self.waits_for.add(node)

    def lost(self, node: NodeId) -> None:
        """A worker is gone: nobody waits for it."""
        self.waits_for.discard(node)

    def end(self) -> CycleEnded | None:
        """Return the end of the cycle, once, when it has come."""
        if self.ended or self.waits_for:
            return None
        self.ended = True
        return CycleEnded(self.desired.number, self.desired.epoch)
