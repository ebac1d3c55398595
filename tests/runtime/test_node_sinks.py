"""Functions that are called on nodes: what the driver sends, what nodes call, and what is known after failures."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.coordinator.node_sinks import LOSSES, NodeSinks
from holdfast.runtime.coordinator.publishing import Publishing, PublishSettings
from holdfast.runtime.coordinator.sink_calls import Call, Returned
from holdfast.runtime.function_messages import decode_call, decode_returned, encode_call, encode_returned
from holdfast.runtime.io.sinks import FunctionSink, MemorySink, Output, OutputKey, StagedRows
from holdfast.runtime.worker.function_calls import FunctionCalls

OUT = OperatorId("o")
EPOCH = Epoch.of(1, 1)
QUERIES = [PartitionId(OUT, index) for index in range(3)]


def rows_of(query: PartitionId, batch: BatchId) -> pa.Table:
    return pa.table({"n": [1000 * query.index + batch]})


def joined(pieces: Sequence[Any]) -> pa.Buffer:
    return pa.py_buffer(b"".join(bytes(memoryview(one)) for one in pieces))


@dataclass
class Process:
    """An operator process with functions that are called when the network says so."""

    network: Network
    number: int
    connection: object = None
    begun: deque[tuple[Callable[[], object], Callable[[BaseException | None], None]]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        function = FunctionSink(lambda rows, key: self.network.called(self, rows, key), on_nodes=True)
        self.calls = FunctionCalls({OUT: function}, self.rows, self.begin, self.answer)

    def rows(self, query: PartitionId, batch: BatchId) -> pa.Table | None:
        return rows_of(query, batch) if self.network.place[query] is self else None

    def begin(
        self, operator: OperatorId, work: Callable[[], object], ended: Callable[[BaseException | None], None]
    ) -> None:
        assert not self.begun, "a function is called again before it has returned"
        self.begun.append((work, ended))

    def answer(self, found: Sequence[Returned]) -> None:
        if self.connection is not None:
            data = pa.py_buffer(encode_returned(found))
            self.network.sinks.answered(self.connection, decode_returned(data))


class Network:
    """A driver with publishers and two processes; connections end, processes die, functions fail, as a seed says."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.now = 0.0
        self.processes = [self.process() for _ in range(2)]
        self.place = {query: self.processes[query.index % 2] for query in QUERIES}
        self.sinks = NodeSinks(self.send)
        self.sink = FunctionSink(print, on_nodes=True)
        self.publishing = Publishing({OUT: self.sink}, self.sinks, PublishSettings(most_outputs=4), lambda: self.now)
        self.published = dict.fromkeys(QUERIES, BatchId(-1))
        self.made = dict.fromkeys(QUERIES, BatchId(-1))
        self.seen: dict[OutputKey, list[int]] = {}
        """By output, the processes whose function has returned from it."""
        self.failures = 0
        self.faults = True

    def process(self) -> Process:
        self.count = getattr(self, "count", 0) + 1
        return Process(self, self.count, object())

    def called(self, process: Process, rows: pa.Table, key: OutputKey) -> None:
        assert rows.equals(rows_of(key.query, key.batch))
        assert process.number not in self.seen.get(key, []), f"{key} is given again to a process that has returned"
        if self.faults and self.draw.random() < 0.1:
            raise OSError("away")
        self.seen.setdefault(key, []).append(process.number)

    def send(self, call: Call) -> object | None:
        process = self.place[call.outputs[0].key.query]
        if process.connection is not None:
            process.calls.take(*decode_call(joined(encode_call(call))))
        return process.connection

    def hand_over(self) -> None:
        """Let publishers have what they do not have, as the coordinator does."""
        for query in QUERIES:
            last = self.publishing.last(query)
            batch = (self.published[query] if last is None else last) + 1
            while batch <= self.made[query] and self.publishing.takes(query):
                key = OutputKey(query, BatchId(batch), run="r")
                aside = self.draw.random() < 0.2  # rows that only the driver has
                self.publishing.add(
                    Output(key, rows_of(query, key.batch)) if aside else Output(key, None, StagedRows("", 1))
                )
                batch += 1
        self.publishing.start(EPOCH)

    def collect(self) -> None:
        for output, one in self.publishing.take():
            key = output.key
            if one.out:
                assert key.batch == self.published[key.query] + 1, "in order"
                assert key in self.seen, f"{key} counts as published, and no function has returned from it"
                self.published[key.query] = key.batch
            self.failures += one.error is not None

    def lose(self, process: Process) -> None:
        """End a connection, as both sides notice it."""
        old, process.connection = process.connection, None
        process.calls.driver_left()
        self.sinks.ended(old)

    def step(self) -> None:
        chance = self.draw.random()
        process = self.draw.choice(self.processes)
        if process.connection is None:
            process.connection = object()
        elif self.faults and chance < 0.08:
            self.lose(process)
        elif self.faults and chance < 0.12:
            self.lose(process)
            new = self.process()
            self.processes[self.processes.index(process)] = new
            self.place = {query: new if one is process else one for query, one in self.place.items()}
        elif self.faults and chance < 0.16:
            self.place[self.draw.choice(QUERIES)] = process  # a partition moves: the other has no rows any more
        if chance > 0.5:
            process.calls.work()
        if process.begun and self.draw.random() < 0.7:
            work, ended = process.begun.popleft()
            try:
                work()
            except OSError as error:
                ended(error)
            else:
                ended(None)
        self.collect()
        self.hand_over()

    def run(self) -> None:
        for number in range(400):
            query = self.draw.choice(QUERIES)
            self.made[query] = BatchId(self.made[query] + (number < 200))
            self.step()
        self.faults = False
        for _ in range(4000):
            self.step()
        assert self.published == self.made, "all is out in the end"
        assert set(self.seen) == {
            OutputKey(query, BatchId(batch)) for query in QUERIES for batch in range(self.made[query] + 1)
        }


@pytest.mark.parametrize("seed", range(20))
def test_every_batch_is_called_and_counts_only_then_whatever_connections_and_processes_do(seed: int) -> None:
    Network(seed).run()


def counts_what_was_lost(self: NodeSinks, sent: Any, *, begun: bool) -> None:
    """A planted bug: what was out on a connection that has ended counts as called."""
    self._sent.pop(sent.call.number, None)
    for one in sent.left:
        self._report(Returned(sent.call.number, one.key, out=True))
    self._report(Returned(sent.call.number))


def forgets(self: FunctionCalls, output: Output) -> bool:
    """A planted bug: a call that comes again because its answer was lost is made again."""
    return False


@pytest.mark.parametrize(
    ("where", "name", "bug"),
    [(NodeSinks, "_end", counts_what_was_lost), (FunctionCalls, "was_called", forgets)],
    ids=["counts what was lost", "forgets what it has called"],
)
def test_planted_bugs_are_found(where: type, name: str, bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(where, name, bug)
    found = 0
    for seed in range(20):
        try:
            Network(seed).run()
        except AssertionError:
            found += 1
    assert found


def test_a_function_that_ends_its_process_again_and_again_fails() -> None:
    network = Network(1)
    network.made[QUERIES[0]] = BatchId(0)
    for number in range(LOSSES):
        assert network.failures == 0, number
        network.hand_over()
        network.lose(network.place[QUERIES[0]])
        network.place[QUERIES[0]].connection = object()
        network.collect()
    assert network.failures == 1
    assert not network.seen


def test_a_function_that_hangs_holds_back_its_own_query_on_the_other_node_not() -> None:
    network = Network(1)
    network.faults = False
    network.made = dict.fromkeys(QUERIES, BatchId(2))
    network.hand_over()
    hanging, other = network.processes
    hanging.calls.work()  # and never returns
    for _ in range(20):
        other.calls.work()
        while other.begun:
            work, ended = other.begun.popleft()
            work()
            ended(None)
            other.calls.work()
        network.collect()
        network.hand_over()
    assert {query.index: batch for query, batch in network.published.items()} == {0: -1, 1: 2, 2: -1}
    network.publishing._settings = PublishSettings(seconds=10)
    network.now = 11.0
    late = network.publishing.late(())
    assert sorted(str(one.partition) for one in late) == ["o[0]", "o[2]"], "both wait for the same process"


def test_messages_keep_what_a_call_has() -> None:
    key = OutputKey(QUERIES[1], BatchId(7), 1, 2, "r")
    outputs = (
        Output(key, None, StagedRows("", 3)),
        Output(key, rows_of(key.query, key.batch), fidelity=0.5),
        Output(key, rows_of(key.query, key.batch).slice(0, 0), retracts=True),
        Output(key),
    )
    number, epoch, read = decode_call(joined(encode_call(Call(5, MemorySink(), outputs, EPOCH))))
    assert (number, epoch, len(read)) == (5, EPOCH, 4)
    for one, other in zip(outputs, read, strict=True):
        assert (one.key, one.key.run, one.staged, one.fidelity, one.retracts) == (
            other.key,
            other.key.run,
            other.staged,
            other.fidelity,
            other.retracts,
        )
        assert (one.rows is None and other.rows is None) or one.rows.equals(other.rows)  # type: ignore[union-attr]
    found = decode_returned(pa.py_buffer(encode_returned([Returned(5, key, error=ValueError("no\nway")), Returned(5)])))
    assert str(found[0].error) == "ValueError: no way"
    assert (found[0].key, found[1].key) == (key, None)


def test_where_and_as_what_a_function_gets_rows() -> None:
    import pandas as pd

    given: list[Any] = []
    sink = hf.foreach_batch(lambda rows, key: given.append(rows), format="pandas", where="driver")
    assert not sink.on_nodes
    sink.publish(OutputKey(QUERIES[0], BatchId(0)), pa.table({"n": [1, 2]}), EPOCH)
    assert isinstance(given[0], pd.DataFrame)
    assert given[0]["n"].tolist() == [1, 2]
    assert hf.foreach_batch(print).on_nodes
    with pytest.raises(BadInput, match=r"foreach_batch.where: 'node' is none of nodes, driver; did you mean 'nodes'"):
        hf.foreach_batch(print, where="node")
    with pytest.raises(BadInput, match=r"foreach_batch.format"):
        hf.foreach_batch(print, format="polars")
