"""A call of a sink: what it gives, who makes it, and what becomes of each output. Runs on the driver and on nodes.

`Publishing` decides which outputs are in a call and when it begins; a `CallRunner` makes it, in threads on a driver
(`sink_threads`), by nodes (`node_sinks`), at once in one process, and whenever a seed says under the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.ids import Epoch, PartitionId
from holdfast.runtime.io.sinks import Gathered, Output, OutputKey, Sink


@dataclass(frozen=True, slots=True)
class Call:
    """Outputs for a sink, in the order in which it gets them."""

    number: int
    sink: Sink
    outputs: tuple[Output, ...]
    epoch: Epoch
    flush: Gathered | None = None
    """What the sink may publish of what it has gathered, after the outputs; None: nothing is due."""


@dataclass(frozen=True, slots=True)
class Returned:
    """What became of one output of a call, or that the call has ended: then `key` is None."""

    call: int
    key: OutputKey | None = None
    out: bool = False
    """Whether it is out. Neither out nor an error: the rows that a node staged are gone, and come again."""
    error: BaseException | None = None
    tentative: bool = False
    """Which of the two it is, where a call has tentative and final rows of one batch."""
    flushed: bool = False
    """Whether it is what became of gathered outputs: without an error they are published."""


class CallRunner(Protocol):
    """Makes calls, each sink's one after the other."""

    at_once: bool
    """Whether a call has returned when `start` has."""

    def start(self, call: Call) -> None:
        """Begin a call; the sink has none before."""
        ...

    def returned(self) -> Sequence[Returned]:
        """Return what became of calls since this was asked last, of each call in order."""
        ...

    @property
    def has_returned(self) -> bool:
        """Whether something has."""
        ...

    def wait(self, seconds: float) -> None:
        """Wait until something has returned, at most so long."""
        ...

    def close(self) -> None:
        """Begin nothing more; what is out is left to itself."""
        ...


class InlineRunner:
    """Makes calls at once, where the coordinator runs: in one process, and in most simulated runs."""

    at_once = True

    def __init__(self) -> None:
        self._returned: list[Returned] = []

    def start(self, call: Call) -> None:
        """See CallRunner."""
        run_call(call, self._returned.append)

    @property
    def has_returned(self) -> bool:
        """See CallRunner."""
        return bool(self._returned)

    def returned(self) -> Sequence[Returned]:
        """See CallRunner."""
        found, self._returned = self._returned, []
        return found

    def wait(self, seconds: float) -> None:
        """See CallRunner: nothing is out."""

    def close(self) -> None:
        """See CallRunner."""


def run_call(
    call: Call,
    returned: Callable[[Returned], object],
    stopped: Callable[[], bool] = lambda: False,
    caught: type[BaseException] = Exception,
) -> None:
    """Give a call's outputs to its sink; what becomes of each goes to `returned`, as soon as it is known.

    An output that fails holds back those of its query after it. `stopped`: nothing more is to be given. `caught`: what
    a sink may raise without ending its caller.
    """
    try:
        if call.sink.grouped:
            _give_together(call, returned, caught)
            return
        _give_each(call, returned, stopped, caught)
        if call.flush is not None and not stopped():
            error = None
            try:
                call.sink.flush(call.flush, call.epoch)
            except caught as raised:
                error = raised
            returned(Returned(call.number, error=error, flushed=True))
    finally:
        returned(Returned(call.number))


def _give_each(
    call: Call,
    returned: Callable[[Returned], object],
    stopped: Callable[[], bool],
    caught: type[BaseException],
) -> None:
    held: set[tuple[PartitionId, bool]] = set()
    for one in call.outputs:
        if (one.key.query, one.tentative) in held:
            continue
        if stopped():
            return
        out, error = False, None
        try:
            out = give(call.sink, one, call.epoch)
        except caught as raised:
            error = raised
        if not out:
            held.add((one.key.query, one.tentative))
        returned(Returned(call.number, one.key, out, error, one.tentative))


def give(sink: Sink, output: Output, epoch: Epoch) -> bool:
    """Give one output to its sink; say whether it is out."""
    try:
        if output.fidelity is not None and output.rows is not None:
            sink.publish_tentative(output.key, output.rows, output.fidelity, epoch)
        elif output.staged is not None:
            sink.adopt(output.key, output.staged, epoch)
        elif output.retracts and output.rows is not None:
            sink.retract(output.key, output.rows, epoch)
        elif output.rows is not None:
            sink.publish(output.key, output.rows, epoch)
    except FileNotFoundError:
        if output.staged is None:
            raise
        return False  # another driver swept it away: the rows come again, by the driver, and meet its epoch
    return True


def _give_together(call: Call, returned: Callable[[Returned], object], caught: type[BaseException]) -> None:
    """Give outputs to a sink that takes many in one step; batches without rows are out with those before them.

    Final ones together, then tentative ones each by itself: these are few, and have a key that final ones have too.
    """
    final = [one for one in call.outputs if not one.tentative]
    given = [one for one in final if one.rows is not None or one.staged is not None]
    try:
        out = set(call.sink.publish_all(given, call.epoch)) if final else set()
    except caught as error:
        failed: set[PartitionId] = set()
        for one in final:
            if one.key.query not in failed:
                failed.add(one.key.query)
                returned(Returned(call.number, one.key, error=error))
    else:
        _return_final(call, final, out, returned)
    stopped: set[PartitionId] = set()
    for one in call.outputs:
        if not one.tentative or one.key.query in stopped:
            continue
        problem: BaseException | None = None
        try:
            give(call.sink, one, call.epoch)
        except caught as error:
            stopped.add(one.key.query)
            problem = error
        returned(Returned(call.number, one.key, problem is None, problem, tentative=True))


def _return_final(
    call: Call, final: Sequence[Output], out: Collection[OutputKey], returned: Callable[[Returned], object]
) -> None:
    held: set[PartitionId] = set()
    for one in final:
        if one.key.query in held:
            continue
        empty = one.rows is None and one.staged is None
        if not (empty or one.key in out):
            held.add(one.key.query)  # another driver swept it away: the rows come again, by the driver
        returned(Returned(call.number, one.key, one.key.query not in held))
