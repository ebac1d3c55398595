"""Sinks of simulated runs that take their time: calls that return late, never while their driver lives, or in another
order than they were begun. Runs anywhere.

A call is made at once or later, and what became of it is known at once or later still. What a driver has begun when it
ends may be made long after another one has the run: threads of a driver that does not know yet that it is over.
Random numbers are its own, so that runs without late sinks are what they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.runtime.coordinator.publishing import PublishSettings
from holdfast.runtime.coordinator.sink_calls import Call, CallRunner, Returned, run_call
from holdfast_lab.simulation.recovery.cluster import FakeClock
from holdfast_lab.simulation.recovery.faults import Fault, Mischief

LATE, KNOWN_LATE = 0.35, 0.25
"""Of all calls, those that are made later; of the others, those of which it is known later."""
AFTER_THE_END = 0.3
"""The chance, whenever a driver looks, that a call of one before it is made."""


def has_late_sinks(seed: int) -> bool:
    """Whether sinks take their time in a run: some with workers that stay, and some without."""
    return seed // 36 % 12 in (9, 10)


def called_on_nodes(seed: int) -> bool:
    """Whether sinks are called for each query on its own, as functions on nodes are; where they take their time."""
    return has_late_sinks(seed) and seed % 2 == 0


@dataclass(slots=True)
class _Begun:
    """A call that was begun."""

    call: Call
    made_at: float
    known_at: float
    made: bool = False
    found: list[Returned] = field(default_factory=list)


class LateSinks:
    """When the calls of all drivers of a seed are made, and when that is known."""

    def __init__(self, seed: int, mischief: Mischief, clock: FakeClock, complain: Callable[[str], None]) -> None:
        self.draw = random.Random(f"late sinks {seed}")
        self.wanted = has_late_sinks(seed)
        self.mischief, self.clock, self.complain = mischief, clock, complain
        self.settings = PublishSettings(
            seconds=self.draw.choice((10.0, 60.0, 300.0)), most_outputs=self.draw.choice((2, 5, 1000))
        )
        self.left: list[_Begun] = []
        """Calls of drivers that have ended, and that nobody has made."""
        self._present: LateRunner | None = None

    def runner(self) -> CallRunner | None:
        """Return what makes the calls of the next driver; None: they are made at once."""
        if not self.wanted:
            return None
        if self._present is not None:
            self.left += self._present.leave()
        self._present = LateRunner(self)
        return self._present


class LateRunner:
    """See CallRunner."""

    at_once = False

    def __init__(self, late: LateSinks) -> None:
        self._late = late
        self._out: list[_Begun] = []
        self._found: list[Returned] = []

    def start(self, call: Call) -> None:
        """See CallRunner."""
        late = self._late
        query = call.outputs[0].key.query if call.outputs else None
        if call.sink.on_nodes and any(one.key.query != query for one in call.outputs):
            late.complain(f"the call of {query} on its node has outputs of other queries")
        same = (one.call for one in self._out if one.call.sink is call.sink)
        if any(not call.sink.on_nodes or one.outputs[0].key.query == query for one in same):
            late.complain(f"the sink of {query} is called again before it has returned")
        if len(call.outputs) > late.settings.most_outputs:
            late.complain(f"a publisher held {len(call.outputs)} outputs: more than {late.settings.most_outputs}")
        now, draw = late.clock(), late.draw
        made = now + (draw.uniform(1, 120) if late.mischief.active and draw.random() < LATE else 0.0)
        known = made + (draw.uniform(1, 60) if late.mischief.active and draw.random() < KNOWN_LATE else 0.0)
        late.mischief.injected[Fault.SINK_LATE] += known > now
        self._out.append(_Begun(call, made, known))

    @property
    def has_returned(self) -> bool:
        """See CallRunner."""
        self._work()
        return bool(self._found)

    def _work(self) -> None:
        """Make what is due, and let it become known, in any order."""
        late = self._late
        due = [one for one in self._out if self._is_due(one.made_at)]
        late.draw.shuffle(due)
        for one in due:
            if not one.made:
                one.made = True  # a driver that dies in it has made it
                run_call(one.call, one.found.append)
            if self._is_due(one.known_at):
                self._out.remove(one)
                self._found += one.found
        if late.left and late.draw.random() < AFTER_THE_END:
            old = late.left.pop(late.draw.randrange(len(late.left)))
            late.mischief.injected[Fault.SINK_CALLED_AFTER_THE_END] += 1
            run_call(old.call, _nothing)

    def _is_due(self, at: float) -> bool:
        return at <= self._late.clock() or not self._late.mischief.active

    def returned(self) -> Sequence[Returned]:
        """See CallRunner: what has become known since somebody looked is among it."""
        self._work()
        found, self._found = self._found, []
        return found

    def wait(self, seconds: float) -> None:
        """See CallRunner: the cluster lets time pass."""

    def close(self) -> None:
        """See CallRunner."""

    def leave(self) -> list[_Begun]:
        """Return what was begun and is not made: the driver has ended."""
        return [one for one in self._out if not one.made]


def _nothing(one: Returned) -> None:
    pass
