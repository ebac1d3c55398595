"""Calls of sinks in threads: one for each sink, so that one that does not return holds up no other. Runs on the driver.

The threads are daemons: a call that never returns does not keep a process from ending.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence

from holdfast.runtime.coordinator.sink_calls import Call, Returned, run_call


class SinkThreads:
    """See CallRunner. All calls of a sink come from one thread."""

    at_once = False

    def __init__(self, woken: Callable[[], object] = lambda: None) -> None:
        """`woken` is called, from any thread, when something has returned."""
        self._woken = woken
        self._queues: dict[int, queue.SimpleQueue[Call | None]] = {}
        self._found: deque[Returned] = deque()
        self._some = threading.Event()
        self._closed = threading.Event()

    def start(self, call: Call) -> None:
        """See CallRunner."""
        if self._closed.is_set():
            return
        mine = self._queues.get(id(call.sink))
        if mine is None:
            mine = self._queues[id(call.sink)] = queue.SimpleQueue()
            named = [one.key.query for one in call.outputs] or (
                [] if call.flush is None else list(call.flush.published)
            )
            name = f"holdfast sink {named[0].operator}"
            threading.Thread(target=self._work, args=(mine,), name=name, daemon=True).start()
        mine.put(call)

    def _work(self, calls: queue.SimpleQueue[Call | None]) -> None:
        while (call := calls.get()) is not None:
            # A function that would end its thread has failed, as one that raises anything else.
            run_call(call, self._report, self._closed.is_set, BaseException)

    def _report(self, one: Returned) -> None:
        self._found.append(one)
        self._some.set()
        self._woken()

    @property
    def has_returned(self) -> bool:
        """See CallRunner."""
        return bool(self._found)

    def returned(self) -> Sequence[Returned]:
        """See CallRunner."""
        self._some.clear()
        found = []
        while self._found:
            found.append(self._found.popleft())
        return found

    def wait(self, seconds: float) -> None:
        """See CallRunner."""
        self._some.wait(seconds)

    def close(self) -> None:
        """See CallRunner: threads end after the output that they are at."""
        self._closed.set()
        for one in self._queues.values():
            one.put(None)
