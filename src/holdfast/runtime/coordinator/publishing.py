"""Publishing beside the coordinator's loop: one publisher for each sink, and what waits for it. Runs on the driver.

A sink that is called on nodes has one for each query, so that all nodes call at the same time.

The coordinator hands outputs over, and takes what became of them as it takes reports. A publisher gets one *call* at a
time: its outputs go to the sink one after the other, those of each query in the order of their batches. So a sink that
is slow, or does not return, holds back the queries of its own output alone. What a publisher holds is bounded; the rest
stays in outboxes. A call that is out for too long is reported: the queries that wait for it are parked. It is never
called off, and its sink gets nothing else before it has returned; what it has written by then counts. Tentative rows
go the same way and hold nothing back: where a sink does not take them, the branch of their query ends.

A sink that gathers outputs (`Sink.gathers`) is asked whether some are due, and publishes them at the end of a call, or
in one of their own.

Decisions only: a `CallRunner` makes the calls (`sink_calls`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.coordinator.sink_calls import Call, CallRunner, Returned
from holdfast.runtime.io.sinks import Gathered, Output, OutputKey, Sink
from holdfast.runtime.messages import Failed


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """How much publishers hold, and how long a sink may take."""

    seconds: float = math.inf
    """A sink that has not returned for so long fails: the queries that wait for it are parked."""
    most_outputs: int = 1000
    """Outputs that a publisher holds at most, those that its sink has been given among them."""
    most_bytes: int = 64 << 20
    """Bytes of rows that wait in a publisher at most; one output always may."""


@dataclass(slots=True)
class _Publisher:
    """A sink, what it has been given, and what waits for it."""

    sink: Sink
    waiting: deque[Output] = field(default_factory=deque)
    waiting_bytes: int = 0
    call: Call | None = None
    left: dict[tuple[OutputKey, bool], Output] = field(default_factory=dict)
    """What is in the call, and of which nothing is known yet; by key, and whether it is tentative."""
    since: float = 0.0
    """When the call began, or something of it was known last."""
    blamed: set[PartitionId] = field(default_factory=set)
    """Queries that were reported because the call does not return."""
    gave_up: bool = False
    """Whether gathered outputs could not be published at the end of the run: the next start publishes them."""

    def held(self) -> Iterable[Output]:
        """What is in its hands."""
        yield from self.left.values()
        yield from self.waiting


class Publishing:
    """The publishers of a run."""

    def __init__(
        self,
        sinks: Mapping[OperatorId, Sink],
        runner: CallRunner,
        settings: PublishSettings,
        clock: Callable[[], float],
    ) -> None:
        self._runner, self._settings, self._clock = runner, settings, clock
        self._sinks = sinks
        self._of: dict[int | PartitionId, _Publisher] = {}
        """By sink: one that was given for several outputs gets one call at a time. On nodes, by query."""
        self._calls: dict[int, _Publisher] = {}
        self._count = 0
        self._last: dict[PartitionId, BatchId] = {}
        self.published: Callable[[], Mapping[PartitionId, BatchId]] = dict
        """Returns the last batch that is out of each query."""
        self.generation = 0
        """The number of the run's layout."""
        self._ending = False
        self._held: frozenset[PartitionId] = frozenset()
        self._flushed: list[tuple[list[Failed], BaseException | None]] = []
        for sink in sinks.values():
            if sink.gathers and not sink.on_nodes:
                self._of.setdefault(id(sink), _Publisher(sink))

    @property
    def ending(self) -> bool:
        """Whether the run ends: then all that was gathered is due, and each sink tries until it fails once."""
        return self._ending

    @ending.setter
    def ending(self, ends: bool) -> None:
        for one in self._publishers:
            one.gave_up = False
        self._ending = ends

    @property
    def _publishers(self) -> Collection[_Publisher]:
        return self._of.values()

    def _publisher(self, query: PartitionId) -> _Publisher:
        sink = self._sinks[query.operator]
        place = query if sink.on_nodes else id(sink)
        if place not in self._of:
            self._of[place] = _Publisher(sink)
        return self._of[place]

    # -- what it holds -------------------------------------------------------------------------------------------------

    @property
    def at_once(self) -> bool:
        """Whether calls have returned when they have been begun."""
        return self._runner.at_once

    @property
    def is_at_work(self) -> bool:
        """Whether a call is out, and not for too long."""
        return any(not self._is_late(one) for one in self._calls.values())

    def last(self, query: PartitionId) -> BatchId | None:
        """Return the last batch of a query that its publisher holds; None: it holds none."""
        return self._last.get(query)

    def takes(self, query: PartitionId) -> bool:
        """Whether the publisher of a query takes more."""
        one = self._publisher(query)
        return (
            len(one.left) + len(one.waiting) < self._settings.most_outputs
            and one.waiting_bytes < self._settings.most_bytes
        )

    def unreturned(self) -> list[OutputKey]:
        """Return the output that each sink is at whose call has not returned."""
        return [next(iter(one.left))[0] for one in self._publishers if one.call is not None and one.left]

    # -- handing over --------------------------------------------------------------------------------------------------

    def add(self, output: Output) -> None:
        """Take an output; a final one is the next of its query."""
        one = self._publisher(output.key.query)
        one.waiting.append(output)
        one.waiting_bytes += _bytes(output)
        if not output.tentative:
            self._last[output.key.query] = output.key.batch

    def hold(self, queries: Collection[PartitionId]) -> None:
        """Give sinks nothing of these queries now, and drop what waits of them."""
        self._held = frozenset(queries)
        self.drop(queries)

    def drop(self, queries: Collection[PartitionId]) -> None:
        """Drop what waits of these queries: they are held back, and it comes again."""
        for one in self._publishers:
            if mine := {output.key.query for output in one.waiting if output.key.query in queries}:
                self._forget(one, mine)

    def _forget(self, one: _Publisher, queries: Collection[PartitionId]) -> None:
        """Drop what waits of these queries; what a call has of them stays known until it has returned."""
        one.waiting = deque(output for output in one.waiting if output.key.query not in queries)
        one.waiting_bytes = sum(map(_bytes, one.waiting))
        for query in queries:
            left = [key.batch for key, tentative in one.left if key.query == query and not tentative]
            if left:
                self._last[query] = max(left)
            else:
                self._last.pop(query, None)

    def start(self, epoch: Epoch, operator: OperatorId | None = None) -> None:
        """Begin a call of every publisher, or that of an output, that has none and holds something."""
        wanted = None if operator is None else self._sinks[operator]
        for one in self._publishers:
            if one.call is not None or (wanted is not None and one.sink is not wanted):
                continue
            flush = self._due(one) if wanted is None else None
            if not one.waiting and flush is None:
                continue
            self._count += 1
            call = one.call = Call(self._count, one.sink, tuple(one.waiting), epoch, flush)
            one.left = {(output.key, output.tentative): output for output in one.waiting}
            one.waiting.clear()
            one.waiting_bytes, one.since = 0, self._clock()
            self._calls[call.number] = one
            self._runner.start(call)

    def _due(self, one: _Publisher, held: Collection[PartitionId] | None = None) -> Gathered | None:
        """Return what a sink may publish of what it has gathered; None: nothing is due, or all its queries are held.

        `held`: by default what was held back when news were taken last.
        """
        if not one.sink.gathers or (self.ending and one.gave_up):
            return None
        now = math.inf if self.ending else self._clock()
        if not one.sink.due(now):
            return None
        published = {p: batch for p, batch in self.published().items() if self._sinks.get(p.operator) is one.sink}
        if not published or (not self.ending and set(published) <= set(self._held if held is None else held)):
            return None
        return Gathered(published, self.generation, now)

    @property
    def is_gathering(self) -> bool:
        """Whether gathered outputs are being published or staged, or are to be, and that does not take too long."""
        return any(
            self._due(one) is not None if one.call is None else one.sink.gathers and not self._is_late(one)
            for one in self._publishers
        )

    # -- what became of it ---------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether something has returned, a call is out for too long, or one can begin."""
        return self._runner.has_returned or any(
            self._is_late(one) or (one.call is None and (one.waiting or self._due(one, held=())))
            for one in self._publishers
        )

    def _is_late(self, one: _Publisher) -> bool:
        return one.call is not None and self._clock() - one.since >= self._settings.seconds

    def wait(self, seconds: float) -> None:
        """Wait until something has returned, at most so long."""
        self._runner.wait(seconds)

    def take(self) -> list[tuple[Output, Returned]]:
        """Return what became of outputs since this was called last."""
        found: list[tuple[Output, Returned]] = []
        for one in self._runner.returned():
            publisher = self._calls.get(one.call)
            if publisher is None:
                continue
            publisher.since = self._clock()
            if one.flushed:
                self._take_flushed(publisher, one.error)
                continue
            if one.key is None:
                del self._calls[one.call]
                unknown = {key.query for key, tentative in publisher.left if not tentative}
                publisher.call, publisher.left = None, {}
                publisher.blamed.clear()
                if unknown:  # it was held back, or was not given any more
                    self._forget(publisher, unknown)
                continue
            output = publisher.left.pop((one.key, one.tentative))
            query = one.key.query
            if one.tentative:
                if not one.out:
                    for place in [at for at in publisher.left if at[0].query == query and at[1]]:
                        del publisher.left[place]
            elif not one.out:
                for place in [at for at in publisher.left if at[0].query == query and not at[1]]:
                    del publisher.left[place]  # the call does not give them
                self._forget(publisher, (query,))
            elif self._last.get(query) == one.key.batch:
                del self._last[query]
            found.append((output, one))
        return found

    def _take_flushed(self, one: _Publisher, error: BaseException | None) -> None:
        assert one.call is not None
        assert one.call.flush is not None
        one.gave_up = error is not None and one.call.flush.now == math.inf  # before, it might pass
        queries = [(p, batch) for p, batch in one.call.flush.published.items() if error is None or p not in self._held]
        self._flushed.append(([Failed(p, batch, "") for p, batch in queries], error))

    def take_flushed(self) -> list[tuple[list[Failed], BaseException | None]]:
        """Return what became of gathered outputs since this was called last: queries, how far they are, and why not."""
        found, self._flushed = self._flushed, []
        return found

    def late(self, parked: Collection[PartitionId]) -> list[Failed]:
        """Return, of every query that waits for a call that is out for too long, its first batch, as failed.

        One that is parked is not named again. One that was resumed since has as long again.
        """
        found = []
        for one in self._publishers:
            if one.call is None:
                continue
            if one.blamed - set(parked):
                one.blamed &= set(parked)
                one.since = self._clock()
            if not self._is_late(one) or not (one.left or one.waiting):
                continue
            present = next(iter(one.left))[0] if one.left else None
            first: dict[PartitionId, BatchId] = {}
            for output in one.held():
                first.setdefault(output.key.query, output.key.batch)
            for query, batch in first.items():
                if query not in parked:
                    one.blamed.add(query)
                    found.append(Failed(query, batch, _late_text(present, query, self._settings.seconds)))
        return found

    def close(self) -> None:
        """Begin nothing more."""
        self._runner.close()


def _late_text(present: OutputKey | None, query: PartitionId, seconds: float) -> str:
    if present is None:
        which = " from publishing gathered rows"
    else:
        which = "" if present.query == query else f" from {present.query}, batch {present.batch}"
    return f"its sink has not returned{which} for {seconds:g} s, and is not called again before it has"


def _bytes(output: Output) -> int:
    return 0 if output.rows is None else int(output.rows.nbytes)
