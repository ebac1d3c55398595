"""Calls of functions on nodes, as the driver sees them: sent to the node that has the rows, and answered.

Runs on the driver. What is called when, in which order and how often is decided by publishers (`publishing`), as for
every sink; only the call itself is made elsewhere. A node whose connection ends in a call has perhaps made it: its
query gets the batch again, from the node that has it then. So does one whose rows the node has no more. A function that
takes its process with it would be called for ever: a batch whose calls have ended so a few times fails, as if the
function had raised.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from holdfast.errors import CheckFailed
from holdfast.runtime.coordinator.sink_calls import Call, Returned
from holdfast.runtime.coordinator.sink_threads import SinkThreads
from holdfast.runtime.io.sinks import Output, OutputKey

LOSSES = 3
"""Processes that may end in the call of one output, one after the other, before it counts as failed."""


@dataclass(slots=True)
class _Sent:
    """A call that is out on a node."""

    call: Call
    place: Hashable
    left: list[Output]


class NodeSinks(SinkThreads):
    """See CallRunner: sinks that are called on nodes there, all others in threads of the driver."""

    def __init__(
        self, send: Callable[[Call], Hashable | None], woken: Callable[[], object] = lambda: None, losses: int = LOSSES
    ) -> None:
        """`send` sends a call to the node of its query, and returns by which connection; None: there is none now.

        It does not wait, and does not send by a connection of which `ended` was told.
        """
        super().__init__(woken)
        self._send, self._losses = send, losses
        self._lock = threading.Lock()
        self._sent: dict[int, _Sent] = {}
        self._lost: Counter[OutputKey] = Counter()
        """Of outputs that are not out: how many processes have ended in their calls."""

    def start(self, call: Call) -> None:
        """See CallRunner."""
        if not call.sink.on_nodes:
            super().start(call)
            return
        with self._lock:  # a connection that ends meanwhile ends this call too
            place = self._send(call)
            sent = self._sent[call.number] = _Sent(call, place, list(call.outputs))
            if place is None:
                self._end(sent, begun=False)

    def answered(self, place: Hashable, found: Sequence[Returned]) -> None:
        """Take what a node says of its calls; from any thread."""
        with self._lock:
            for one in found:
                sent = self._sent.get(one.call)
                if sent is None or sent.place != place:
                    continue
                if one.key is None:
                    del self._sent[one.call]
                else:
                    sent.left = [out for out in sent.left if not _is_over(out, one)]
                    if one.out or one.error is not None:
                        self._lost.pop(one.key, None)
                self._report(one)

    def ended(self, place: Hashable) -> None:
        """A connection has ended: whatever is out there may have been made; from any thread."""
        with self._lock:
            for sent in [one for one in self._sent.values() if one.place == place]:
                self._end(sent, begun=True)

    def _end(self, sent: _Sent, *, begun: bool) -> None:
        """Report that of what is left nothing is known, or that it fails: too many processes have ended in it."""
        number = sent.call.number
        self._sent.pop(number, None)
        if sent.left:
            first, error = sent.left[0], None
            if begun:
                self._lost[first.key] += 1
                if self._lost[first.key] >= self._losses:
                    del self._lost[first.key]
                    error = CheckFailed(
                        f"{self._losses} operator processes have ended, one after the other, in calls of its function",
                        remedy="see the executors' logs",
                    )
            self._report(Returned(number, first.key, error=error, tentative=first.tentative))
        self._report(Returned(number))


def _is_over(output: Output, one: Returned) -> bool:
    """Whether nothing more comes of an output: it is this one, or one of its kind behind it, and it is not out."""
    return output.tentative == one.tentative and (not one.out or output.key == one.key)
