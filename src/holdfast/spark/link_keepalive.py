"""Pings over the connections of tasks that stay: who answers, and leases for their processes. Runs on the driver.

A thread of its own pings every node a few times within `spark.holdfast.keepalive.seconds`, so that a run whose thread
waits for a sink still notices, and still is noticed. No secret of the user's is needed: the connections have the run's
own. Every answer of a node counts, of its task or of an operator process; the task runs no user code, so a node whose
operators hold the interpreter still answers. Which nodes are silent is decided by `SilenceDetector`.

    pings = LinkKeepAlive(2.5, check=lambda: self_check(storage, masters))
    pings.add(node, link)          # pinged from now on, until it ends
    pings.watch(nodes)             # whose silence counts
    pings.pong(node, link, 17)     # called where an answer comes
    pings.take()                   # who was declared silent, and what else people should know
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from holdfast.ids import NodeId
from holdfast.runtime.detection import SelfCheck, SilenceDetector
from holdfast.runtime.messages import DriverSuspected
from holdfast.store.wire.link import Link

log = logging.getLogger("holdfast.spark.pings")

AGAIN_SECONDS = 1.0
"""How often a driver that may be cut off checks itself."""


@dataclass(slots=True)
class KeepAliveNews:
    """What has happened since somebody asked last."""

    silent: list[NodeId] = field(default_factory=list)
    answered: list[NodeId] = field(default_factory=list)
    """Nodes that had been declared silent."""
    suspicions: list[DriverSuspected] = field(default_factory=list)


class LinkKeepAlive:
    """Pings nodes; one daemon thread, and one more while the driver checks itself. Safe to use from any thread."""

    def __init__(
        self,
        seconds: float,
        *,
        check: Callable[[], SelfCheck],
        woken: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`check` looks whether the driver is cut off itself; `woken` is called where there is news."""
        self._detector = SilenceDetector(seconds)
        self._check, self._woken, self._clock = check, woken, clock
        self._lock = threading.Lock()
        self._received: dict[Link, tuple[NodeId, int]] = {}
        """Connections, their nodes, and the last ping that was answered over each."""
        self._watched: set[NodeId] = set()
        self._number = 0
        self._news = KeepAliveNews()
        self._asked, self._asked_at = 0, -math.inf
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="holdfast-pings", daemon=True)
        self._thread.start()

    @property
    def false_alarms(self) -> int:
        """How often a node that was declared silent has answered afterwards."""
        return self._detector.false_alarms

    def add(self, node: NodeId, link: Link) -> None:
        """Ping over a connection until it ends; who makes one has answered."""
        with self._lock:
            self._received[link] = (node, -1)
        self.contacted(node)

    def contacted(self, node: NodeId) -> None:
        """A node has made contact."""
        with self._lock:
            if not self._detector.answered(node):
                return
            self._news.answered.append(node)
        self._woken()

    def pong(self, node: NodeId, link: Link, number: int) -> None:
        """A node has answered a ping."""
        with self._lock:
            if link in self._received:
                self._received[link] = (node, max(number, self._received[link][1]))
        self.contacted(node)

    def watch(self, nodes: Iterable[NodeId]) -> None:
        """Let the silence of exactly these nodes count."""
        with self._lock:
            self._watched = set(nodes)
            self._detector.watch(self._watched)

    def is_answering(self, node: NodeId) -> bool:
        """Whether a node answers."""
        with self._lock:
            return self._detector.is_answering(node)

    def take(self) -> KeepAliveNews:
        """Return what has happened since the last call."""
        with self._lock:
            news, self._news = self._news, KeepAliveNews()
        return news

    def stop(self) -> None:
        """Ping no more."""
        self._stop.set()
        self._thread.join(5.0)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _main(self) -> None:
        every = self._detector.every
        ping_at = self._clock()
        while not self._stop.wait(min(0.25, every / 4)):
            now = self._clock()
            try:
                if now >= ping_at:
                    ping_at = now + every
                    self._ping()
                self._look(now)
            except Exception:  # without this thread every node would fall silent
                log.exception("pings")

    def _ping(self) -> None:
        with self._lock:
            self._received = {link: known for link, known in self._received.items() if not link.ended}
            self._number += 1
            number, received = self._number, dict(self._received)
            self._detector.pinged()
        for link, (_, last) in received.items():
            link.send({"do": "ping", "number": number, "received": last})

    def _look(self, now: float) -> None:
        with self._lock:
            self._detector.left(self._watched - {node for link, (node, _) in self._received.items() if not link.ended})
            self._detector.passed(now)
            found = self._detector.look()
            self._watched.difference_update(found.silent)
            self._news.silent += found.silent
            asks = found.question not in (None, self._asked) and now - self._asked_at >= AGAIN_SECONDS
            if asks and found.question is not None:
                self._asked, self._asked_at = found.question, now
        if asks and found.question is not None:
            try:
                threading.Thread(target=self._ask, args=(found.question, found.suspected), daemon=True).start()
            except RuntimeError as error:  # no thread is left
                self._ask_again(error)
        if found.silent:
            self._woken()

    def _ask_again(self, error: Exception) -> None:
        """Let the question that was asked last be asked again, once `AGAIN_SECONDS` have passed."""
        log.warning("the driver could not check itself, and tries again: %s: %s", type(error).__name__, error)
        with self._lock:
            self._asked = 0

    def _ask(self, question: int, suspected: tuple[NodeId, ...]) -> None:
        try:
            check = self._check()
        except Exception as error:
            self._ask_again(error)
            return
        with self._lock:
            self._detector.checked(question, check)
            self._news.suspicions.append(DriverSuspected(suspected, check))
        self._woken()
