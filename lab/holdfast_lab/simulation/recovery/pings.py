"""Keep-alives in a simulated cluster whose workers stay: the real detector and real leases. Runs anywhere.

Pings every half second for all of a run would be most of what happens in it. While nothing keeps anybody from
answering, everybody does: pings are sent one by one only from when something goes wrong (a node freezes, dies or is cut
off, the driver sleeps or is cut off, a connection is half-open) until all is well again.

What it looks for: a node that is declared silent and would have answered; a driver that declares nodes while it is cut
off itself; a node that answers nothing for long and is not declared; a process that works after the driver has declared
its node silent.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from holdfast.ids import NodeId
from holdfast.runtime.detection import SelfCheck, SilenceDetector
from holdfast_lab.simulation.recovery.connections import Events
from holdfast_lab.simulation.recovery.network import DRIVER, Network

if TYPE_CHECKING:
    from holdfast_lab.simulation.recovery.resident_process import Process

SECONDS = 2.5
MISSED_SECONDS = 7.5
"""After the time of the detector, for so long it may take to find that a node is silent: the driver checks itself, and
after it was cut off or slept every node gets its time anew."""
CALM_SECONDS = 5.0
"""Pings are sent for so long after all is well again."""
LATE = 0.1
"""The share of pings whose answers come only with the next: nodes do not fall silent in one moment."""


class SimulatedPings:
    """The pings of one driver."""

    def __init__(
        self,
        events: Events,
        network: Network,
        seed: object,
        *,
        held: Callable[[], Mapping[NodeId, list[Process]]],
        answers: Callable[[NodeId], bool],
        troubled: Callable[[], bool],
        declare: Callable[[tuple[NodeId, ...]], None],
        complain: Callable[[str], None],
    ) -> None:
        """`held`: the nodes of the driver, with the processes that it has whole connections to.

        `answers`: whether a node runs; `troubled`: whether something is wrong; `declare` is called with nodes that
        are declared silent.
        """
        self._events, self._network, self._draw = events, network, random.Random(f"pings {seed}")
        self._held, self._answers, self._troubled = held, answers, troubled
        self._declare, self._complain = declare, complain
        self.detector = SilenceDetector(SECONDS)
        self.running = self.asleep = self.cut_off = False
        self._number = self._asked = 0
        self._open = False
        """Whether the driver asks itself whether it is cut off."""
        self._received: dict[int, int] = {}
        self._calm_at = self._ticked_at = 0.0
        self._unreachable: dict[NodeId, float] = {}
        self._answered: set[NodeId] = set()
        self._late: set[NodeId] = set()

    def begin(self) -> None:
        """Something is about to go wrong: until now everybody has answered."""
        now = self._events.now
        self._calm_at = now + CALM_SECONDS
        if self.running:
            return
        self.running = True
        self._unreachable.clear()
        self.detector.passed(now)
        self.detector.watch(self._held())
        for node, processes in self._held().items():
            self.detector.answered(node)
            self._answered.add(node)
            for process in processes:
                process.lease.connected(now)
        self._events.after(self.detector.every, self._tick)

    def connected(self, node: NodeId) -> None:
        """A process of a node has made a connection: it has answered."""
        if self.running:
            self.detector.answered(node)

    def may_work(self, process: Process, *, current: bool) -> bool:
        """Whether a process may work; one that belongs to the driver has a lease while all is well."""
        return (current and not self.running) or process.lease.holds(self._events.now)

    def is_answering(self, node: NodeId) -> bool:
        """Whether a node answers."""
        return not self.running or self.detector.is_answering(node)

    def woke(self) -> None:
        """The driver goes on, or is not cut off any more: what it did not receive before is nobody's fault."""
        self.asleep = self.cut_off = False
        self._unreachable.clear()

    def _tick(self) -> None:
        now = self._events.now
        if now - self._ticked_at > 2 * self.detector.every:
            self._unreachable.clear()  # other drivers have worked, and this one was frozen
        self._ticked_at = now
        if self.asleep or self.cut_off or self._troubled():
            self._calm_at = now + CALM_SECONDS
        if not self.asleep:
            self._ping(now)
        if now >= self._calm_at:
            self.running = False
            return
        self._events.after(self.detector.every, self._tick)

    def _ping(self, now: float) -> None:
        held, detector = self._held(), self.detector
        detector.passed(now)
        detector.watch(held)
        detector.pinged()
        self._answered &= held.keys()
        self._number += 1
        for node, processes in held.items():
            there = self._answers(node)
            to = not self.cut_off and there and self._network.passes(DRIVER, node)
            back = not self.cut_off and there and self._network.passes(node, DRIVER)
            late = node not in self._late and self._draw.random() < LATE
            (self._late.add if late else self._late.discard)(node)
            if to and back:
                if not late:  # else the answer comes with the next ping, and may come too late
                    self._unreachable.pop(node, None)
                    self._answered.add(node)
                    detector.answered(node)
            elif not self.cut_off:
                self._unreachable.setdefault(node, now)
            for process in processes:
                if to and not late:
                    process.lease.pinged(self._number, self._received.get(process.number, -1), now)
                    if back:
                        self._received[process.number] = self._number
                        self._answered.add(node)
                        detector.answered(node)
        self._look(now)
        if not self.cut_off:
            self._look_for_missed(now)

    def _look(self, now: float) -> None:
        found = self.detector.look()
        if self._open and found.question is None and not found.silent:
            self._unreachable = dict.fromkeys(self._unreachable, now)  # they get their time anew
        self._open = found.question is not None
        if found.question is not None and found.question != self._asked:
            self._asked = number = found.question
            cut_off = self.cut_off

            def answer() -> None:
                reached = not (cut_off or self.cut_off)
                self.detector.checked(number, SelfCheck(storage=reached, master=reached))

            self._events.after(self._draw.uniform(0.0, 1.0), answer)
        for node in found.silent:
            if node not in self._unreachable:
                what = "the driver is cut off" if self.cut_off else "it would have answered"
                self._complain(f"{node} is declared silent, and {what}")
        if found.silent:
            for node in found.silent:
                self._unreachable.pop(node, None)
                self._answered.discard(node)
            self._declare(found.silent)

    def _look_for_missed(self, now: float) -> None:
        for node, since in self._unreachable.items():
            if node in self._answered and node in self._held() and now - since > SECONDS + MISSED_SECONDS:
                self._complain(f"{node} has answered nothing for {now - since:.1f} s, and is not declared silent")
