"""Deliberate bugs of publishing beside the coordinator's loop. The simulator must find each; see bugs.py."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from holdfast.ids import Epoch, PartitionId
from holdfast.runtime.coordinator import sink_calls
from holdfast.runtime.coordinator.outputs import Outputs, Published
from holdfast.runtime.coordinator.publishing import Publishing
from holdfast.runtime.io.sinks import Output
from holdfast_lab.simulation.recovery import late_sinks
from simulation.bugs import Bug, Patch


def handed_over_taken_for_published(patch: Patch) -> None:
    """What a publisher has been given counts as out; a driver that ends loses it."""
    right = Outputs._hand_over

    def hand_over(self: Outputs, output: Output, epoch: Epoch, done: Published) -> None:
        right(self, output, epoch, done)
        if self.publishing.last(output.key.query) == output.key.batch:
            self._is_out(output, done)

    patch.setattr(Outputs, "_hand_over", hand_over)


def sink_called_while_it_is_called(patch: Patch) -> None:
    """A publisher begins the next call though the one before has not returned."""
    right = Publishing.start

    def start(self: Publishing, *given: Any) -> None:
        for one in self._publishers:
            if one.waiting:
                one.call = None
        right(self, *given)

    patch.setattr(Publishing, "start", start)


def dropped_taken_for_held(patch: Patch) -> None:
    """What a publisher has dropped, because its query is held back, still counts as handed over."""

    def forget(self: Publishing, one: Any, queries: Collection[PartitionId]) -> None:
        one.waiting = type(one.waiting)(output for output in one.waiting if output.key.query not in queries)
        one.waiting_bytes = 0

    patch.setattr(Publishing, "_forget", forget)


def failed_output_passed_over(patch: Patch) -> None:
    """A call goes on with the next batch of a query whose batch before failed."""

    def run_call(call: Any, returned: Any, *rest: Any) -> None:
        for one in call.outputs:
            try:
                returned(sink_calls.Returned(call.number, one.key, sink_calls.give(call.sink, one, call.epoch)))
            except Exception as error:
                returned(sink_calls.Returned(call.number, one.key, error=error))
        returned(sink_calls.Returned(call.number))

    def take(self: Publishing) -> list[Any]:
        found = []
        for one in self._runner.returned():
            publisher = self._calls[one.call]
            if one.key is None:
                del self._calls[one.call]
                publisher.call, publisher.left = None, {}
            elif (output := publisher.left.pop(one.key, None)) is not None:
                if self._last.get(one.key.query) == one.key.batch:
                    del self._last[one.key.query]
                found.append((output, one))
        return found

    patch.setattr(late_sinks, "run_call", run_call)
    patch.setattr(Publishing, "take", take)


def backlog_without_a_bound(patch: Patch) -> None:
    """A publisher takes whatever it is given."""
    patch.setattr(Publishing, "takes", lambda self, query: True)


def ended_call_taken_for_out(patch: Patch) -> None:
    """Outputs of a call that has ended count as out, whatever became of them."""
    right = Outputs._collect

    def collect(self: Outputs, done: Published) -> None:
        right(self, done)
        for query in sorted(done.broken):
            for batch in [one.batch for _, one in done.failed if one.partition == query]:
                done.reached[query] = batch

    patch.setattr(Outputs, "_collect", collect)


PUBLISHING_BUGS = [
    Bug(put_in.__name__.replace("_", " "), put_in.__doc__ or "", put_in)
    for put_in in (
        handed_over_taken_for_published,
        sink_called_while_it_is_called,
        dropped_taken_for_held,
        failed_output_passed_over,
        backlog_without_a_bound,
        ended_call_taken_for_out,
    )
]
