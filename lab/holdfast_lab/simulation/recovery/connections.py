"""Simulated connections: what one end sends the other gets in order, after a while, until the connection is cut.

Runs anywhere. A connection that is cut loses what is on its way from some point on; what is before that point may come
late. Each end notices in its own time: until then it sends into nothing (half-open), and a later connection between the
same two may be there long since.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.ids import NodeId
from holdfast_lab.simulation.recovery.cluster import FakeClock
from holdfast_lab.simulation.recovery.faults import Fault, Mischief
from holdfast_lab.simulation.recovery.network import Network

Message = tuple[Any, ...]
"""What it is, then its contents."""
GIVEN_UP_SECONDS = 900.0
"""After so long a kernel gives a connection up that carries nothing."""
HEALED_SECONDS = 120.0
"""A connection that is dead for longer is not needed by anybody, or should have been replaced."""
TRAVELS = (0.0005, 0.02)
"""Seconds that a message takes."""


class Events:
    """What happens, in the order of its time."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Let something happen so many seconds from now."""
        self.at(self._clock.now + seconds, action)

    def at(self, when: float, action: Callable[[], None]) -> None:
        """Let something happen at a time; of what happens at one time, in the order in which it is said."""
        self._count += 1
        heapq.heappush(self._heap, (when, self._count, action))

    @property
    def now(self) -> float:
        """The time."""
        return self._clock.now

    @property
    def next_at(self) -> float:
        """When the next thing happens."""
        return self._heap[0][0] if self._heap else math.inf

    def run_next(self) -> None:
        """Let the next thing happen."""
        when, _, action = heapq.heappop(self._heap)
        self._clock.now = max(self._clock.now, when)
        action()


@dataclass(frozen=True, slots=True)
class End:
    """One end of a connection: who gets its messages, and learns of its end."""

    node: NodeId
    receive: Callable[[Connection, Message], None]
    ended: Callable[[Connection], None]


class Connection:
    """Between two ends: 0 has dialled, 1 has listened."""

    def __init__(
        self, events: Events, clock: FakeClock, mischief: Mischief, network: Network, dialler: End, listener: End
    ) -> None:
        self._events, self._clock, self._mischief, self._draw = events, clock, mischief, mischief.draw
        self._network = network
        self._ends = (dialler, listener)
        self.is_open = [True, True]
        """As each end sees it."""
        self.whole = True
        self.repeated = False
        """Whether a frame came twice: what it asks for is then asked for again, too."""
        self.made_at = clock.now
        self.on_the_way = 0
        self.dead_at: float | None = None
        """Since when it carries nothing, and neither end is told; None: it does not do so."""
        self.arrived = [0, 0]
        """Messages that each end has got."""
        self._last_at = [0.0, 0.0]
        """When the last message reaches each end."""
        self._comes_at = [0.0, 0.0]
        """The same as the clock will say it: reckoned from two moments, one time may differ in its last bits."""
        self._cut_at = [math.inf, math.inf]
        """What would reach an end after this is lost."""
        self._late = [0.0, 0.0]

    def send(self, end: int, message: Message, extra: float = 0.0, *, repeatable: bool = False) -> None:
        """Send from one end; where the connection is cut and this end does not know, into nothing."""
        if not self.is_open[end] or not self.whole:
            return
        other, now = 1 - end, self._clock.now
        if repeatable and self._mischief.strikes(Fault.FRAME_SLOW):
            extra += self._draw.uniform(0.05, 6)
        at = max(self._last_at[other], now + self._draw.uniform(*TRAVELS) + extra)
        self._last_at[other] = at
        self._comes_at[other] = max(self._comes_at[other], now + (at - now))
        self._schedule(other, message, at, self._comes_at[other])
        if repeatable and self._mischief.strikes(Fault.FRAME_REPEATED):
            self.repeated = True
            again = at + self._draw.choice((0.0, 0.1, 3.0, 20.0))
            self._schedule(other, message, again, now + (again - now))
        if self._mischief.strikes(Fault.CUT_IN_FRAME):
            self.cut()

    def _schedule(self, end: int, message: Message, at: float, comes_at: float) -> None:
        self.on_the_way += 1
        self._events.at(comes_at, lambda: self._arrive(end, message, at))

    def _arrive(self, end: int, message: Message, at: float) -> None:
        if self._late[end] and self.is_open[end] and at <= self._cut_at[end]:
            # All of them are late by the same: they stay in order.
            self._events.after(self._late[end], lambda: self._receive(end, message))
            return
        if at <= self._cut_at[end] and not self._network.passes(self._ends[1 - end].node, self._ends[end].node):
            self.cut()
            self._cut_at[end] = -math.inf  # neither this message nor a later one comes through
        if at > self._cut_at[end]:
            self.on_the_way -= 1
            return
        self._receive(end, message)

    def _receive(self, end: int, message: Message) -> None:
        self.on_the_way -= 1
        if self.is_open[end]:
            self.arrived[end] += 1
            self._ends[end].receive(self, message)

    def cut(self) -> None:
        """Let the connection be cut in between: each end notices later."""
        if not self.whole:
            return
        self._break()
        first = self._draw.randrange(2)
        self._notice(first, self._draw.uniform(0, 0.5))
        half_open = self._mischief.strikes(Fault.HALF_OPEN)
        self._notice(1 - first, self._draw.uniform(3, 60) if half_open else self._draw.uniform(0, 3))

    def forget(self) -> None:
        """Let what is in between forget it, as a firewall does: nothing comes through, and neither end notices."""
        if self.whole:
            self.whole, self.dead_at = False, self._clock.now
            self._cut_at = [self._clock.now, self._clock.now]

    @property
    def listener(self) -> NodeId:
        """Whom the dialling end has reached."""
        return self._ends[1].node

    def close(self, end: int) -> None:
        """Let one end close it, or die; the other notices later."""
        if not self.is_open[end]:
            return
        self.is_open[end] = False
        if self.dead_at is not None:
            self._notice(1 - end, GIVEN_UP_SECONDS)
        if self.whole:
            self._break()
            half_open = self._mischief.strikes(Fault.HALF_OPEN)
            self._notice(1 - end, self._draw.uniform(3, 60) if half_open else self._draw.uniform(0, 0.5))

    def _break(self) -> None:
        self.whole = False
        for end in (0, 1):
            if self._mischief.strikes(Fault.FRAMES_CUT):
                self._cut_at[end] = self._clock.now + self._draw.choice((0.0, self._draw.uniform(0, TRAVELS[1])))
            if self._mischief.strikes(Fault.FRAMES_LATE):
                self._late[end] = self._draw.uniform(0.1, 8)

    def _notice(self, end: int, seconds: float) -> None:
        """Let an end notice, after what still reaches it."""
        last = 0.0 if self._cut_at[end] < math.inf else max(0.0, self._last_at[end] - self._clock.now)

        def notice() -> None:
            if self.is_open[end]:
                self.is_open[end] = False
                self._ends[end].ended(self)

        self._events.after(max(seconds, last + self._late[end]), notice)

    @property
    def is_late(self) -> bool:
        """Whether a message takes longer than messages do, and holds up those behind it."""
        return self.whole and max(self._comes_at) > self._clock.now + TRAVELS[1]

    @property
    def settled(self) -> bool:
        """Whether nothing is on its way, and both ends agree."""
        if self.dead_at is not None and (not self.is_open[0] or self._clock.now - self.dead_at > HEALED_SECONDS):
            return not self.on_the_way
        return not self.on_the_way and (self.whole or self.is_open == [False, False])
