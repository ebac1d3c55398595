"""Threads of a node for functions of outputs: one for each output, so that one that hangs holds up no other.

Runs on a node. The threads are daemons: a call that never returns does not keep a process from ending.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from holdfast.ids import OperatorId

_Work: TypeAlias = tuple[Callable[[], object], Callable[[BaseException | None], None]]


class FunctionThreads:
    """See the module."""

    def __init__(self, later: Callable[[Callable[[], None]], object]) -> None:
        """`later` lets the loop call something, from any thread."""
        self._later = later
        self._queues: dict[OperatorId, queue.SimpleQueue[_Work]] = {}

    def begin(
        self, operator: OperatorId, work: Callable[[], object], ended: Callable[[BaseException | None], None]
    ) -> None:
        """Begin work in the thread of an output; when it has ended, the loop is told, with what was raised."""
        mine = self._queues.get(operator)
        if mine is None:
            mine = self._queues[operator] = queue.SimpleQueue()
            name = f"holdfast function {operator}"
            threading.Thread(target=self._run, args=(mine,), name=name, daemon=True).start()
        mine.put((work, ended))

    def _run(self, mine: queue.SimpleQueue[_Work]) -> None:
        while True:
            work, ended = mine.get()
            raised: BaseException | None = None
            try:
                work()
            except BaseException as error:  # one that would end its thread has failed, as one that raises anything else
                raised = error
            self._later(partial(ended, raised))
