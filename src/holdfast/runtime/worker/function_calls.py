"""Functions of outputs that are called on a node: what waits for each, and what was called. Runs on a node.

The driver decides what is called and in which order; here each function gets one output at a time, in the order in
which calls came, from a thread of its own beside the loop: one that hangs holds back its own output on this node and
nothing else. Rows come from the partition's outbox, when it is their turn. What a function has been called with is
known as long as the process lives: a call that comes again because its answer was lost is answered, and not made again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pyarrow as pa

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.coordinator.sink_calls import Returned, give
from holdfast.runtime.io.sinks import Output, OutputKey, Sink

Begin: TypeAlias = Callable[[OperatorId, Callable[[], object], Callable[[BaseException | None], None]], None]
"""Begins work of an output's function, beside the loop; the last is called, in the loop, when it has ended."""


@dataclass(slots=True)
class _Waiting:
    """A call: what it still has to give."""

    number: int
    epoch: Epoch
    outputs: deque[Output]
    connection: int
    held: set[bool] = field(default_factory=set)
    """Of final (False) and tentative outputs, whether one is not out: those after it are not given."""


@dataclass(slots=True)
class _Function:
    """An output's function, and the calls that wait for it."""

    sink: Sink
    calls: deque[_Waiting] = field(default_factory=deque)
    busy: bool = False


class FunctionCalls:
    """See the module. Everything is called by one thread, the loop's."""

    def __init__(
        self,
        functions: Mapping[OperatorId, Sink],
        rows_of: Callable[[PartitionId, BatchId], pa.Table | None],
        begin: Begin,
        answer: Callable[[Sequence[Returned]], object],
    ) -> None:
        """`rows_of` gives an output's rows where they are here; `answer` sends what is known to the driver."""
        self._functions = {name: _Function(sink) for name, sink in functions.items()}
        self._rows_of, self._begin, self._answer = rows_of, begin, answer
        self._called: dict[PartitionId, OutputKey] = {}
        """The last final output of each query whose function has returned."""
        self._connection = 0

    def take(self, number: int, epoch: Epoch, outputs: Sequence[Output]) -> None:
        """Take a call of the driver."""
        mine = self._functions.get(outputs[0].key.query.operator)
        if mine is None:
            self._answer([Returned(number, outputs[0].key, tentative=outputs[0].tentative), Returned(number)])
            return
        mine.calls.append(_Waiting(number, epoch, deque(outputs), self._connection))

    def driver_left(self) -> None:
        """The driver's connection has ended: what was not begun comes again, from whatever node has the rows then."""
        self._connection += 1
        for one in self._functions.values():
            one.calls.clear()

    def work(self) -> None:
        """Begin what can begin; answer what needs no call."""
        for operator, one in self._functions.items():
            while one.calls and not one.busy:
                self._next(operator, one, one.calls[0])

    def _next(self, operator: OperatorId, one: _Function, call: _Waiting) -> None:
        if not call.outputs:
            one.calls.popleft()
            self._answer([Returned(call.number)])
            return
        output = call.outputs.popleft()
        if output.tentative in call.held:
            return
        empty = output.rows is None and output.staged is None
        if empty or self.was_called(output):
            self._answer([Returned(call.number, output.key, out=True, tentative=output.tentative)])
            return
        rows = output.rows if output.rows is not None else self._rows_of(output.key.query, output.key.batch)
        if rows is None:
            self._ended(one, call, output, gone=True)
            return
        given = replace(output, rows=rows, staged=None)
        one.busy = True
        self._begin(
            operator,
            lambda: give(one.sink, given, call.epoch),
            lambda error: self._ended(one, call, output, error),
        )

    def was_called(self, output: Output) -> bool:
        """Whether the function has returned from this final output in this process."""
        last = self._called.get(output.key.query)
        return (
            last is not None
            and not output.tentative
            and (last.run, last.generation) == (output.key.run, output.key.generation)
            and output.key.batch <= last.batch
            and output.key.revision <= last.revision
        )

    def _ended(
        self, one: _Function, call: _Waiting, output: Output, error: BaseException | None = None, *, gone: bool = False
    ) -> None:
        if not gone:
            one.busy = False
        out = not gone and error is None
        if out and not output.tentative:
            self._called[output.key.query] = output.key
        if not out:
            call.held.add(output.tentative)
        if call.connection == self._connection:  # else nobody waits for this answer: the batch comes again
            self._answer([Returned(call.number, output.key, out, error, output.tentative)])
