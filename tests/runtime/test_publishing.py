"""Publishing beside the coordinator's loop: slow sinks, sinks that do not return, and what is known of their calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.runtime.blocks import SINK, Block, Edge, Header
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.coordinator.publishing import Publishing, PublishSettings
from holdfast.runtime.coordinator.sink_calls import Call, Returned, run_call
from holdfast.runtime.coordinator.sink_threads import SinkThreads
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.gathered_parquet import GatheredParquetSink
from holdfast.runtime.io.sinks import FunctionSink, Gathered, MemorySink, Output, OutputKey, Sink, TransactionalSink
from holdfast.runtime.program import Program
from holdfast.storage.memory import MemoryStorage

SCHEMA = {"n": "int64"}
EPOCH = Epoch(1)
LONGEST = 60.0
"""Seconds that a test waits for something that comes at once."""


class ByHand:
    """Calls that are made when a test says so."""

    at_once = False

    def __init__(self) -> None:
        self.begun: list[Call] = []
        self.found: list[Returned] = []

    def start(self, call: Call) -> None:
        self.begun.append(call)

    def make(self) -> None:
        run_call(self.begun.pop(0), self.found.append)

    @property
    def has_returned(self) -> bool:
        return bool(self.found)

    def returned(self) -> list[Returned]:
        found, self.found = self.found, []
        return found

    def wait(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


class Bench:
    def __init__(self, *sinks: Sink, **settings: Any) -> None:
        self.now = 0.0
        self.runner = ByHand()
        named = {OperatorId(f"o{number}"): sink for number, sink in enumerate(sinks)}
        self.publishing = Publishing(named, self.runner, PublishSettings(**settings), lambda: self.now)

    def add(self, query: str, *batches: int) -> None:
        for batch in batches:
            key = OutputKey(PartitionId.parse(query), BatchId(batch))
            self.publishing.add(Output(key, pa.table({"n": [batch]})))
        self.publishing.start(EPOCH)

    def last(self, query: str) -> int | None:
        return self.publishing.last(PartitionId.parse(query))

    def out(self) -> list[tuple[str, int, bool]]:
        return [(str(one.key.query), one.key.batch, said.out) for one, said in self.publishing.take()]

    def late(self, *parked: str) -> list[str]:
        return [
            f"{one.partition}, batch {one.batch}: {one.problem}"
            for one in self.publishing.late([PartitionId.parse(query) for query in parked])
        ]


def test_a_publisher_gets_one_call_at_a_time_and_another_sink_goes_on_beside_it() -> None:
    first, second = MemorySink(), MemorySink()
    bench = Bench(first, second)
    bench.add("o0[0]", 0, 1)
    bench.add("o0[0]", 2)
    bench.add("o1[0]", 0)
    assert [[one.key.batch for one in call.outputs] for call in bench.runner.begun] == [[0, 1], [0]]
    assert (bench.last("o0[0]"), bench.last("o1[0]")) == (2, 0)
    bench.runner.begun.reverse()
    bench.runner.make()
    assert bench.out() == [("o1[0]", 0, True)], "the second sink returned first"
    bench.runner.make()
    assert bench.out() == [("o0[0]", 0, True), ("o0[0]", 1, True)]
    bench.publishing.start(EPOCH)
    assert [one.key.batch for one in bench.runner.begun[0].outputs] == [2], "and now what waited"
    bench.runner.make()
    bench.out()
    assert bench.last("o0[0]") is None


def test_one_sink_for_two_outputs_is_one_publisher() -> None:
    both = MemorySink()
    bench = Bench(both, both)
    bench.add("o0[0]", 0)
    bench.add("o1[0]", 0)
    assert len(bench.runner.begun) == 1


class Slow:
    """A storage on which a file takes as long as a test says."""

    def __init__(self, bench: Bench, seconds: float) -> None:
        self._inner, self._bench, self._seconds = MemoryStorage(), bench, seconds
        self.read, self.list, self.delete, self.url = (
            self._inner.read,
            self._inner.list,
            self._inner.delete,
            self._inner.url,
        )

    def create(self, name: str, data: Any) -> bool:
        if not name.startswith("_"):
            self._bench.now += self._seconds
        return self._inner.create(name, data)

    def files(self) -> list[str]:
        return [name for name in self.list() if not name.startswith("_")]


def test_long_publishing_of_gathered_outputs_is_no_call_that_does_not_return() -> None:
    """Three groups of 50 s each, where a call may take 120 s: outputs go in between."""
    bench = Bench()
    storage = Slow(bench, 50.0)
    sink = GatheredParquetSink(storage, every=60)  # type: ignore[arg-type]
    sink.begin("run", EPOCH)
    publishing = bench.publishing = Publishing(
        {OperatorId("o0"): sink}, bench.runner, PublishSettings(seconds=120.0), lambda: bench.now
    )
    out = {PartitionId.parse(f"o0[{number}]"): BatchId(0) for number in range(3)}
    publishing.published = lambda: out
    for query in out:
        bench.add(str(query), 0)
    while bench.runner.begun:
        bench.runner.make()
        bench.out()
        publishing.start(EPOCH)
    bench.now = 100.0
    assert publishing.has_news
    publishing.start(EPOCH)
    for number in range(3):
        (call,) = bench.runner.begun
        assert call.flush is not None
        bench.add("o0[0]", number + 1)
        bench.runner.make()
        assert bench.late() == [], "a group took less than a call may"
        assert len(storage.files()) == number + 1
        assert [one.key.batch for one in call.outputs] == ([number] if number else []), "outputs went in between"
        bench.out()
        publishing.start(EPOCH)
    (call,) = bench.runner.begun
    assert [one.key.batch for one in call.outputs] == [3]
    assert call.flush is None, "what came meanwhile is not due"


class Gathering(MemorySink):
    """Gathers outputs, and says when they are published, or that they are not."""

    gathers = True

    def __init__(self) -> None:
        super().__init__()
        self.waits, self.fails = False, False

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        self.waits = True
        return super().publish(key, rows, epoch)

    def due(self, now: float) -> bool:
        return self.waits

    def flush(self, known: Gathered, epoch: Epoch) -> None:
        if self.fails:
            raise OSError("away")
        self.waits = False


def test_the_end_tries_what_has_failed_before_and_does_not_try_again_what_fails_then() -> None:
    sink = Gathering()
    bench = Bench(sink)
    publishing = bench.publishing
    publishing.published = lambda: {PartitionId.parse("o0[0]"): BatchId(0)}
    sink.fails = True
    bench.add("o0[0]", 0)
    bench.runner.make()
    bench.out()
    publishing.start(EPOCH)
    assert len(bench.runner.begun) == 1
    bench.runner.make()
    bench.out()
    publishing.start(EPOCH)
    publishing.ending = True
    assert publishing.is_gathering
    for _ in range(2):  # the first call was begun before the end
        bench.runner.make()
        bench.out()
        publishing.start(EPOCH)
    assert not publishing.is_gathering
    assert not bench.runner.begun
    publishing.ending = False
    publishing.ending = True
    assert publishing.is_gathering
    sink.fails = False
    publishing.start(EPOCH)
    bench.runner.make()
    bench.out()
    assert not sink.waits
    assert not publishing.is_gathering


def test_the_end_waits_for_a_call_without_gathered_outputs_and_publishes_what_it_has_staged() -> None:
    sink = Gathering()
    bench = Bench(sink, seconds=10.0)
    publishing = bench.publishing
    publishing.published = lambda: {PartitionId.parse("o0[0]"): BatchId(0)}
    bench.add("o0[0]", 0)
    publishing.ending = True
    assert publishing.is_gathering, "what the call stages is to be published"
    bench.runner.make()
    bench.out()
    publishing.start(EPOCH)
    assert publishing.is_gathering
    bench.runner.make()
    bench.out()
    assert not publishing.is_gathering
    bench.add("o0[0]", 1)
    bench.now = 10.0
    assert not publishing.is_gathering, "it does not return"


def test_an_output_that_fails_holds_back_its_query_alone() -> None:
    def write(rows: pa.Table, key: OutputKey) -> None:
        if key.query.index == 0 and key.batch == 1:
            raise OSError("away")

    bench = Bench(FunctionSink(write))
    bench.add("o0[0]", 0)
    bench.add("o0[0]", 1, 2)
    bench.add("o0[1]", 0)
    bench.runner.make()
    assert bench.out() == [("o0[0]", 0, True)]
    bench.publishing.start(EPOCH)
    bench.add("o0[0]", 3)
    bench.runner.make()
    assert bench.out() == [("o0[0]", 1, False), ("o0[1]", 0, True)]
    assert bench.last("o0[0]") is None, "batches 1 to 3 have to come again"


def test_what_is_held_back_is_dropped_unless_it_is_in_the_call() -> None:
    bench = Bench(MemorySink())
    bench.add("o0[0]", 0)
    bench.add("o0[0]", 1)
    bench.add("o0[1]", 5)
    bench.publishing.drop([PartitionId.parse("o0[0]")])
    assert (bench.last("o0[0]"), bench.last("o0[1]")) == (0, 5)
    bench.runner.make()
    assert bench.out() == [("o0[0]", 0, True)], "what was in the call is out, and counts"
    assert bench.last("o0[0]") is None


def test_a_publisher_is_full_at_its_bounds() -> None:
    bench = Bench(MemorySink(), most_outputs=2)
    query = PartitionId.parse("o0[0]")
    assert bench.publishing.takes(query)
    bench.add("o0[0]", 0, 1)
    assert not bench.publishing.takes(query), "what its sink has been given counts"
    small = Bench(MemorySink(), most_bytes=1)
    small.add("o0[0]", 0)
    assert small.publishing.takes(query), "nothing waits"
    small.add("o0[0]", 1)
    assert not small.publishing.takes(query)


def test_a_call_that_is_out_for_too_long_names_all_who_wait_for_it_once() -> None:
    bench = Bench(MemorySink(), seconds=10)
    bench.add("o0[0]", 3)
    bench.add("o0[1]", 4)
    bench.now = 9.0
    assert not bench.publishing.has_news
    assert bench.publishing.is_at_work
    bench.now = 10.0
    assert bench.publishing.has_news
    assert not bench.publishing.is_at_work
    assert bench.late() == [
        "o0[0], batch 3: its sink has not returned for 10 s, and is not called again before it has",
        "o0[1], batch 4: its sink has not returned from o0[0], batch 3 for 10 s, and is not called again before it has",
    ]
    assert bench.late("o0[0]", "o0[1]") == []
    bench.publishing.drop([PartitionId.parse("o0[0]"), PartitionId.parse("o0[1]")])
    bench.now = 15.0
    assert bench.late("o0[1]") == [], "one that is resumed has as long again"
    bench.now = 25.0
    assert bench.late("o0[1]") == [
        "o0[0], batch 3: its sink has not returned for 10 s, and is not called again before it has"
    ]
    assert len(bench.runner.begun) == 1, "there was never a second call"
    bench.runner.make()
    assert bench.out() == [("o0[0]", 3, True)], "a late return counts"
    assert bench.late("o0[0]", "o0[1]") == []


def test_a_call_that_gets_on_is_not_late() -> None:
    bench = Bench(MemorySink(), seconds=10)
    bench.add("o0[0]", 0, 1)
    key = bench.runner.begun[0].outputs[0].key
    bench.now = 9.0
    bench.runner.found.append(Returned(1, key, out=True))
    assert bench.out() == [("o0[0]", 0, True)]
    bench.now = 18.0
    assert bench.late() == []
    bench.now = 19.0
    assert [one.partition("[")[0] for one in bench.late()] == ["o0"]


def test_a_sink_that_takes_many_at_once_is_given_what_has_gathered() -> None:
    class Grouped(MemorySink):
        grouped = True

        def __init__(self) -> None:
            super().__init__()
            self.steps: list[int] = []

        def publish_all(self, outputs: Any, epoch: Epoch) -> Any:
            self.steps.append(len(outputs))
            return super().publish_all(outputs, epoch)

    sink = Grouped()
    bench = Bench(sink)
    bench.add("o0[0]", 0)
    for batch in (1, 2):
        bench.add("o0[0]", batch)
        bench.add("o0[1]", batch - 1)
    bench.runner.make()
    assert bench.out() == [("o0[0]", 0, True)]
    bench.publishing.start(EPOCH)
    bench.runner.make()
    assert len(bench.out()) == 4
    assert sink.steps == [1, 4]


def test_tentative_and_final_rows_of_one_batch_are_told_apart_by_a_sink_that_takes_many_at_once() -> None:
    class Grouped(MemorySink):
        grouped = True

        def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
            if key.batch == 2:
                raise OSError("no room")
            return super().publish_tentative(key, rows, fidelity, epoch)

    sink = Grouped()
    bench = Bench(sink)
    bench.add("o0[0]", 0)
    bench.runner.make()
    bench.out()
    query = PartitionId.parse("o0[0]")
    for batch in (1, 2, 3):
        bench.publishing.add(Output(OutputKey(query, BatchId(batch)), pa.table({"n": [-batch]}), fidelity=0.5))
    bench.publishing.add(Output(OutputKey(query, BatchId(1)), pa.table({"n": pa.array([], pa.int64())}), retracts=True))
    bench.add("o0[0]", 2)
    bench.runner.make()
    became = [(one.key.batch, one.tentative, said.out, said.error is None) for one, said in bench.publishing.take()]
    assert became == [(1, False, True, True), (2, False, True, True), (1, True, True, True), (2, True, False, False)]
    shown = sink.versions()
    assert shown is not None
    assert shown["n"].to_pylist() == [0, 2]
    assert not any(shown["tentative"].to_pylist())


# -- in one process, with threads --------------------------------------------------------------------------------------


class Gate:
    """A function of a user's that does not return from some batches until a test says so."""

    def __init__(self, closed: Callable[[OutputKey], bool]) -> None:
        self._closed, self._open = closed, threading.Event()
        self.entered = threading.Event()
        self.calls: list[tuple[int, int]] = []
        self.rows: list[int] = []
        self.running: InProcess | None = None
        self._now = 0.0

    def __call__(self, rows: pa.Table, key: OutputKey) -> None:
        self.calls.append((key.query.index, key.batch))
        if self._closed(key) and not self._open.is_set():
            self.entered.set()
            assert self._open.wait(LONGEST)
        self.rows += rows["n"].to_pylist()

    def open(self) -> None:
        self._open.set()

    def clock(self) -> float:
        """Return a time that passes only while all that is out is the call that does not return."""
        if self.running is not None and self.entered.is_set() and not self._open.is_set():
            self._now += len(self.running._coordinator.outputs.publishing._calls) == 1
        return self._now


@contextmanager
def opened(gate: Gate) -> Iterator[Gate]:
    try:
        yield gate
    finally:
        gate.open()


def two_queries() -> Application:
    app = Application("two")
    source = app.source("s", schema=SCHEMA)
    source.map(lambda rows: rows, schema=SCHEMA, id="good").output(priority=9)
    source.map(lambda rows: rows, schema=SCHEMA, id="bad").output(priority=1)
    return app


def numbers(*given: int) -> dict[str, pa.Table]:
    return {"s": pa.table({"n": list(given)})}


NOW = ErrorSettings(retries=3, backoff=0.0)


def test_a_sink_that_does_not_return_parks_its_query_and_all_others_go_on(tmp_path: Path) -> None:
    with opened(Gate(lambda key: key.batch == 1)) as gate:
        running = InProcess(
            two_queries(),
            sinks={"bad": FunctionSink(gate)},
            errors=NOW,
            publishing=PublishSettings(seconds=10),
            clock=gate.clock,
            directory=tmp_path,
        )
        gate.running = running
        for batch in range(6):
            running.feed(numbers(batch))
        assert running.rows("good")["n"].to_pylist() == [*range(6)], "the highest query is complete"
        ((query, why),) = running.parked.items()
        assert (str(query), why.batch, why.attempts) == ("bad[0]", 1, 1)
        assert why.error == "its sink has not returned for 10 s, and is not called again before it has"
        assert gate.calls == [(0, 0), (0, 1)]
        running.resume("bad")
        assert running.parked, "it has not returned yet"
        assert gate.calls == [(0, 0), (0, 1)], "and was not called a second time"
        with pytest.raises(BadInput, match="is parked"):
            running.checkpoint()
        gate.open()
        while running._coordinator.state.published[query] < 1:
            running._coordinator.step(0.1)
        running.resume("bad")
        assert gate.rows == [*range(6)], "every row once, in order"
        assert gate.calls == [(0, batch) for batch in range(6)]
        running.checkpoint()


def test_others_of_the_same_output_wait_for_the_same_sink_and_are_parked_with_it() -> None:
    app = Application("wide")
    source = app.source("s", schema=SCHEMA, parallelism=2)
    source.map(lambda rows: rows, schema=SCHEMA, id="wide", parallelism=2).output()
    with opened(Gate(lambda key: key.batch == 1)) as gate:
        running = InProcess(
            app,
            sinks={"wide": FunctionSink(gate)},
            errors=NOW,
            publishing=PublishSettings(seconds=10),
            clock=gate.clock,
        )
        gate.running = running
        running.feed(numbers(1, 2, 3, 4))
        running.feed(numbers(5, 6, 7, 8))
        assert {str(query) for query in running.parked} == {"wide[0]", "wide[1]"}
        assert sum(batch == 1 for _, batch in gate.calls) == 1, "its function is called by one at a time"


def test_an_output_that_others_read_holds_no_log_back_while_its_sink_hangs() -> None:
    app = Application("both")
    first = app.source("s", schema=SCHEMA).map(lambda rows: rows, schema=SCHEMA, id="first")
    first.output("first")
    first.map(lambda rows: rows, schema=SCHEMA, id="second").output("second")
    with opened(Gate(lambda key: key.batch == 1)) as gate:
        running = InProcess(
            app,
            sinks={"first": FunctionSink(gate)},
            errors=NOW,
            publishing=PublishSettings(seconds=10),
            clock=gate.clock,
        )
        gate.running = running
        for batch in range(4):
            running.feed(numbers(batch))
        assert [str(query) for query in running.parked] == ["first[0]"]
        assert running.rows("second")["n"].to_pylist() == [0, 1, 2, 3]
        assert running._coordinator.status.live_frontier == 3


def test_a_slow_sink_has_a_bounded_backlog_and_gets_everything() -> None:
    with opened(Gate(lambda key: True)) as gate:
        running = InProcess(
            two_queries(),
            sinks={"bad": FunctionSink(gate)},
            errors=NOW,
            publishing=PublishSettings(seconds=LONGEST, most_outputs=3),
        )
        coordinator = running._coordinator
        query = PartitionId.parse("bad[0]")
        for batch in range(20):
            running.batch_log.append(numbers(batch))
        while coordinator.state.published[PartitionId.parse("good[0]")] < 19:
            coordinator.step(0.0)
        assert gate.entered.wait(LONGEST)
        publisher = coordinator.outputs.publishing
        held = [one for each in publisher._publishers for one in each.held() if one.key.query == query]
        assert len(held) == 3, "as much as a publisher holds; the rest is in outboxes"
        assert coordinator.status.live_frontier == 2, "and the log waits for it in the end"
        assert not coordinator.status.caught_up
        gate.open()
        running.run()
        assert gate.rows == [*range(20)]


def test_a_start_after_a_driver_died_in_a_publication_publishes_each_batch_once(tmp_path: Path) -> None:
    """The rows are written, and nobody knows: the next start asks the sink."""
    written: dict[str, list[int]] = {}
    there, gone = threading.Event(), threading.Event()

    def sink(stays: Callable[[], bool]) -> TransactionalSink:
        def write(rows: pa.Table, key: OutputKey) -> None:
            assert str(key) not in written, "the sink is not asked to write it twice"
            written[str(key)] = rows["n"].to_pylist()
            if key.batch == 1 and stays():
                there.set()
                assert gone.wait(LONGEST)

        return TransactionalSink(lambda key: str(key) in written, write)

    running = InProcess(
        two_queries(),
        directory=tmp_path,
        sinks={"bad": sink(lambda: True)},
        errors=NOW,
        publishing=PublishSettings(),
    )
    for batch in range(3):
        running.batch_log.append(numbers(batch))
    while not there.is_set():
        running._coordinator.step(0.01)
    del running  # killed: what it held is gone
    again = InProcess(
        two_queries(), directory=tmp_path, sinks={"bad": sink(lambda: False)}, errors=NOW, publishing=PublishSettings()
    )
    again.run()
    assert sorted(one for rows in written.values() for one in rows) == [0, 1, 2]
    assert len(written) == 3
    gone.set()


def test_a_function_that_ends_its_thread_has_failed() -> None:
    def leaves(rows: pa.Table, key: OutputKey) -> None:
        raise SystemExit("bye")

    running = InProcess(
        two_queries(), sinks={"bad": FunctionSink(leaves)}, errors=ErrorSettings(0), publishing=PublishSettings()
    )
    running.feed(numbers(1))
    ((query, why),) = running.parked.items()
    assert (str(query), why.error) == ("bad[0]", "its sink failed: SystemExit: bye")


def test_threads_give_nothing_more_once_they_are_closed() -> None:
    with opened(Gate(lambda key: key.batch == 0)) as gate:
        threads = SinkThreads()
        query = PartitionId.parse("o[0]")
        outputs = tuple(Output(OutputKey(query, BatchId(batch)), pa.table({"n": [batch]})) for batch in range(3))
        threads.start(Call(1, FunctionSink(gate), outputs, EPOCH))
        assert gate.entered.wait(LONGEST)
        threads.close()
        gate.open()
        found: list[Returned] = []
        while not found or found[-1].key is not None:
            threads.wait(LONGEST)
            found += threads.returned()
        assert [(one.key and one.key.batch, one.out) for one in found] == [(0, True), (None, False)]


def test_what_waits_is_given_when_its_call_ends_as_reports_come() -> None:
    """The end of a call may be taken together with reports: nothing else would begin the next one."""
    program, sink, runner = Program(two_queries()), MemorySink(), ByHand()
    sinks = {OperatorId("good"): MemorySink(), OperatorId("bad"): sink}
    outputs = Outputs(program, sinks, lambda operator, feed: MemorySink(), runner=runner)
    query = PartitionId.parse("bad[0]")

    def block(batch: int) -> Block:
        edge, receiver = Edge(query.operator, SINK), PartitionId(SINK, 0)
        return Block(Header(edge, query, receiver, BatchId(batch), EPOCH, None), pa.table({"n": [batch]}))

    def publish(*blocks: Block) -> dict[PartitionId, BatchId]:
        return outputs.publish(blocks, {query: NOTHING}, {query: NOTHING}, EPOCH).reached

    assert publish(block(0)) == {}
    assert publish(block(1)) == {}
    right, looks = runner.returned, list[int]()

    def returned() -> list[Returned]:
        looks.append(len(looks))
        if looks == [0, 1]:  # it returns after what came was handed over, and before news are taken
            runner.make()
        return right()

    runner.returned = returned  # type: ignore[method-assign]
    assert publish(block(2)) == {query: 0}
    assert [one.key.batch for one in runner.begun[0].outputs] == [1, 2]
    assert not outputs.publishing.has_news
    runner.make()
    assert publish() == {query: 2}
