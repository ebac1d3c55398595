"""Cuts of the network in a simulated run: who does not reach whom, for a while. Runs anywhere.

One cut at a time: one node cannot reach the driver, or the driver it; the driver is cut off from some nodes; agents
do not reach each other; the nodes fall into two halves that do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.ids import NodeId
from holdfast_lab.simulation.recovery.faults import Fault, Mischief

DRIVER = NodeId("the driver")
_KINDS = (Fault.CUT_ONE_WAY, Fault.CUT_DRIVER, Fault.CUT_AGENTS, Fault.CUT_HALVES)


@dataclass(frozen=True, slots=True)
class _Cut:
    kind: Fault
    side: frozenset[NodeId]
    to_driver: bool
    """Of a cut one way: whether it is what the node says that is lost."""
    until: float


class Network:
    """Who reaches whom."""

    def __init__(self, mischief: Mischief, clock: Callable[[], float], note: Callable[[str], None]) -> None:
        self._mischief, self._clock, self._note = mischief, clock, note
        self._cut: _Cut | None = None

    def turn(self, nodes: Sequence[NodeId]) -> None:
        """Perhaps cut something now."""
        for kind in _KINDS:
            if self._cut is None and len(nodes) > 1 and self._mischief.would(kind):
                draw = self._mischief.draw
                many = 1 if kind is Fault.CUT_ONE_WAY else draw.randint(1, max(1, len(nodes) // 2))
                side = frozenset(draw.sample(list(nodes), many))
                self._cut = _Cut(kind, side, draw.random() < 0.5, self._clock() + draw.uniform(10, 150))
                self._mischief.injected[kind] += 1
                self._note(f"{kind}: {', '.join(sorted(side))}")

    def heal(self) -> None:
        """Let everybody reach everybody."""
        self._cut = None

    @property
    def is_cut(self) -> bool:
        """Whether there is a cut now."""
        return self._now() is not None

    @property
    def until(self) -> float:
        """When the cut that there is ends."""
        return self._clock() if self._now() is None else self._now().until  # type: ignore[union-attr]

    def passes(self, sender: NodeId, receiver: NodeId) -> bool:
        """Whether what one says reaches the other: the driver and nodes, or the tasks of two nodes."""
        cut = self._now()
        if cut is None or cut.kind is Fault.CUT_AGENTS:
            return True
        if DRIVER not in (sender, receiver):
            return cut.kind is not Fault.CUT_HALVES or (sender in cut.side) == (receiver in cut.side)
        node, upward = (sender, True) if receiver == DRIVER else (receiver, False)
        if node not in cut.side or cut.kind is Fault.CUT_HALVES:
            return True
        return cut.kind is Fault.CUT_ONE_WAY and cut.to_driver != upward

    def agents_reach(self, one: NodeId, other: NodeId) -> bool:
        """Whether the agents of two nodes reach each other."""
        cut = self._now()
        if cut is None or one == other or cut.kind not in (Fault.CUT_AGENTS, Fault.CUT_HALVES):
            return True
        return (one in cut.side) == (other in cut.side)

    def _now(self) -> _Cut | None:
        if self._cut is not None and (self._clock() >= self._cut.until or not self._mischief.active):
            self._cut = None
        return self._cut
