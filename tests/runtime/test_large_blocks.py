"""Blocks that no message can carry: a failure of the step that gives them, and of nothing else."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime.blocks import LARGEST_BLOCK, LATE, OUTSIDE, SINK, Block, Edge, Header, decode_blocks
from holdfast.runtime.messages import REPORT_BYTES, DesiredState, Done, Failed, NodeReport, in_reports, merge_reports
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import MemoryStore
from holdfast.runtime.state.versions import NO_BATCH
from holdfast.runtime.worker.host import PartitionHost
from holdfast.runtime.worker.worker import NodeWorker
from holdfast.spark import worker_task
from holdfast.spark.agents import AgentReport
from holdfast.spark.pinned_jobs import DRIVER
from holdfast.store.wire.link import LARGEST_MESSAGE

P = PartitionId.parse
HERE = NodeId("here")


def program() -> Program:
    """Two queries of one source: one takes all columns, the other gives a number."""
    app = Application("large")
    stream = app.source("s", schema={"key": "string", "text": "string"}, parallelism=1)
    stream.flat_map(lambda rows: rows, id="wide", schema={"key": "string", "text": "string"}).output("all")
    stream.flat_map(lambda rows: pa.table({"n": [rows.num_rows]}), id="narrow", schema={"n": "int64"}).output("count")
    return Program(app)


def given(number: int, text: str, source: str = "s") -> Block:
    rows = pa.table({"key": ["a"], "text": [text]})
    to = PartitionId(OperatorId(source), 0)
    return Block(Header(Edge(OUTSIDE, to.operator), PartitionId(OUTSIDE, 0), to, BatchId(number), Epoch(1), 0), rows)


def host_of(made: Program, **options: Any) -> PartitionHost:
    host = PartitionHost(made, MemoryStore(), node=HERE, epoch=Epoch(1), clock=lambda: 0.0, **options)
    for partition in made.partitions:
        host.take(partition, NO_BATCH)
    return host


def test_with_the_largest_block_a_message_is_below_what_a_connection_takes() -> None:
    assert LARGEST_BLOCK + REPORT_BYTES < LARGEST_MESSAGE


def test_a_block_that_no_message_can_carry_fails_its_step_and_nothing_else() -> None:
    made = program()
    host = host_of(made, largest_block=1000)
    host.deliver([given(0, "x" * 10), given(1, "x" * 5000)])
    answers = host.run()
    failed = [one for one in answers if isinstance(one, Failed)]
    assert [str(one.partition) for one in failed] == ["s[0]"]
    assert "operator s, partition s[0], batch 1: what it sends to" in str(failed[0])
    assert "MiB in 1 rows; a message takes at most" in str(failed[0])
    assert "batchBytes" in str(failed[0])
    assert not failed[0].disk_full
    assert not failed[0].poison
    assert host.frontier(P("s[0]")) == 0, "the batch before went through"
    assert sum(isinstance(one, Done) for one in answers) == len(made.partitions)


def grown() -> Program:
    app = Application("grown")
    stream = app.source("s", schema={"key": "string", "text": "string"}, parallelism=1)
    many = stream.flat_map(
        lambda rows: pa.table({"text": pa.array(["y" * 3000])}), id="many", schema={"text": "string"}
    )
    many.output("large")
    stream.flat_map(lambda rows: pa.table({"n": [rows.num_rows]}), id="narrow", schema={"n": "int64"}).output("count")
    return Program(app)


def test_an_output_that_is_too_large_parks_its_own_query_unless_the_node_writes_it_itself() -> None:
    host = host_of(grown(), largest_block=1000)
    host.deliver([given(0, "x")])
    answers = host.run()
    assert [
        (str(one.partition), "its output in batch 0" in one.problem) for one in answers if isinstance(one, Failed)
    ] == [("many[0]", True)]
    assert {str(one.partition) for one in answers if isinstance(one, Done)} == {"s[0]", "narrow[0]"}
    staged = host_of(grown(), largest_block=1000, staged={OperatorId("many")})
    staged.deliver([given(0, "x")])
    assert all(isinstance(one, Done) for one in staged.run())


def test_an_output_that_its_node_could_not_write_and_no_message_can_carry_is_an_answer() -> None:
    class Broken:
        def stage(self, key: object, rows: pa.Table) -> str:
            return "permission denied"

    made = grown()
    worker = NodeWorker(
        made,
        MemoryStore(),
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        name=HERE,
        clock=lambda: 0.0,
        cpu_clock=lambda: 0.0,
        stagers={OperatorId("many"): Broken()},
        largest_block=1000,
    )
    worker._read = lambda desired, p: None  # type: ignore[method-assign, assignment, return-value]
    worker._is_in_place = lambda p: False  # type: ignore[method-assign, assignment]
    desired = DesiredState("run", 1, Epoch(1), {}, {})
    sink = PartitionId(SINK, 0)
    head = Header(Edge(OperatorId("many"), SINK), P("many[0]"), sink, BatchId(4), Epoch(1), None)
    blocks = [Block(head, pa.table({"text": ["y" * 3000]})), Block(replace(head, batch=BatchId(5)))]
    report = worker.report(desired, [], blocks, 0.0)
    assert [one.header.batch for one in report.outputs] == [5]
    [answer] = report.answers
    assert isinstance(answer, Failed)
    assert answer.batch == 4
    assert "its output in batch 4" in answer.problem
    assert "permission denied" in answer.problem


def report_with(*sizes: int) -> NodeReport:
    blocks = []
    for number, size in enumerate(sizes):
        head = Header(Edge(OperatorId("s"), LATE), P("s[0]"), PartitionId(LATE, 0), BatchId(number), Epoch(1), None)
        blocks.append(Block(head, pa.table({"n": pa.array(range(size), pa.int64())})))
    return NodeReport(HERE, Epoch(1), outputs=blocks, frontiers={P("s[0]"): BatchId(len(sizes) - 1)}, outbox_bytes=7)


def test_a_report_with_many_rows_goes_in_several_messages_and_its_frontiers_come_last() -> None:
    report = report_with(100, 100, 10)
    assert in_reports(report) == [report]
    parts = in_reports(report, most=900)
    assert [[one.header.batch for one in part.outputs] for part in parts] == [[0], [1, 2]]
    assert [dict(part.frontiers) for part in parts] == [{}, {P("s[0]"): 2}]
    whole = merge_reports(parts, {P("s[0]"): HERE})
    assert [len(whole.outputs), whole.frontiers, whole.outbox_bytes] == [3, {P("s[0]"): 2}, {HERE: 7}]


def test_a_task_gives_much_in_several_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    other = NodeId("other")
    made = report_with(100, 100, 10)
    made = replace(made, sent={other: made.outputs})

    class Worker:
        def reconcile(self, desired: object, level: int, blocks: object) -> NodeReport:
            return made

    monkeypatch.setattr(worker_task, "_worker", lambda context, name: Worker())
    monkeypatch.setattr(worker_task, "see_to_agent", lambda context, join: AgentReport("", None, ready=False))
    job = worker_task.Job(DesiredState("run", 1, Epoch(1), {}, {}), (HERE, other))
    found = list(worker_task.run_level(None, job, 0, 0, [], most=900))  # type: ignore[arg-type]
    sent = [decode_blocks(data) for slot, data in found if slot == 1]
    assert [[one.header.batch for one in part] for part in sent] == [[0], [1, 2]]
    reports = [worker_task.read_report(data)[0] for slot, data in found if slot == DRIVER]
    assert [len(one.outputs) for one in reports] == [1, 2]
    assert [len(one.frontiers) for one in reports] == [0, 1]
    assert max(len(pickle.dumps(data)) for _, data in found) < 4000
