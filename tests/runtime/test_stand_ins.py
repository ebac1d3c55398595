"""Tentative outputs of queries whose output partition is lost, and the watermarks of forged barriers; without Spark."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.application.readers import Files
from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.runtime import InProcess
from holdfast.runtime.coordinator.sink_calls import Call
from holdfast.runtime.coordinator.tentative import source_watermarks
from holdfast.runtime.io.batch_log import WATERMARKS_KEPT
from holdfast.runtime.io.sinks import VERSION_COLUMNS, FunctionSink, MemorySink, Output, OutputKey
from holdfast.spark.resident_backend import ResidentBackend
from runtime.test_tentative import Running, rows_of

COUNT = 16


def application() -> hf.Application:
    """Visits on four partitions, counted by page and window on four, each an output of its own."""
    app = hf.Application("web")
    visits = app.source("visits", schema="t double, page string", event_time="t", parallelism=4)
    visits.key_by("page").window(hf.tumbling(6)).count(id="pages", parallelism=4).output("pages", tentative=True)
    return app


def batches() -> list[dict[str, pa.Table]]:
    return [
        {
            "visits": pa.table(
                {"t": [float(b) + i / 100 for i in range(80)], "page": [f"p{(i * 7 + b) % 23}" for i in range(80)]}
            )
        }
        for b in range(COUNT)
    ]


def expected(app: hf.Application, given: list[dict[str, pa.Table]], output: str) -> list[str]:
    running = InProcess(app, nodes=3)
    for batch in given:
        running.feed(batch)
    running.close()
    return sorted(map(str, running.rows(output).to_pylist()))


class Watched(MemorySink):
    """Remembers what was tentative, by query and batch: the final rows take its place."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[tuple[str, int], tuple[list[str], float]] = {}

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        self.seen[str(key.query), key.batch] = rows_of(rows), fidelity
        return super().publish_tentative(key, rows, fidelity, epoch)

    def final(self) -> dict[tuple[str, int], list[str]]:
        return {(str(key.query), key.batch): rows_of(rows) for key, rows in self.outputs().items()}

    def whole(self) -> list[str]:
        """All rows that readers of all versions get, once none is tentative."""
        shown = self.versions()
        assert shown is not None
        assert not any(shown["tentative"].to_pylist())
        return rows_of(shown.drop_columns(list(VERSION_COLUMNS)))


@pytest.mark.parametrize("processes", [1, 2])
def test_a_lost_output_goes_on_by_a_stand_in_with_its_whole_state(processes: int) -> None:
    sink = Watched()
    running = Running(sink, processes=processes, app=application(), nodes=8, capacity=2.0)
    for number, batch in enumerate(batches()):
        if number == 7:
            assert running.coordinator.state.checkpoints.global_batch >= 3
            running.lose("pages[1]")
        if number == 14:
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
        if 7 <= number < 14:
            assert running.coordinator.state.partitions[PartitionId.parse("pages[1]")].state == "lost"
    (went,) = running.kinds("tentative")
    assert went.fields["query"] == "pages[1]"
    assert (went.fields["fidelity"], went.fields["without"]) == (1.0, [])
    assert {query for query, _ in sink.seen} == {"pages[1]"}, "the others are whole, and go on as always"
    seen = {key: rows for key, (rows, _) in sink.seen.items() if rows}
    assert seen, "a window that began before the checkpoint has closed in the outage"
    running.end()
    final = sink.final()
    assert {key: final[key] for key in seen} == seen, "nothing that it reads is lost: its rows are right"
    assert sink.whole() == rows_of(sink.rows()) == expected(application(), batches(), "pages")
    assert running.coordinator.rollbacks == 0


@pytest.mark.parametrize(("capacity", "stands_in"), [(1.25, False), (2.0, True)])
def test_the_other_partitions_of_an_output_flow_whether_or_not_one_is_lost(capacity: float, stands_in: bool) -> None:
    """One of four sources and one of four counters are lost: three queries, or with room all four, go on."""
    sink = Watched()
    running = Running(sink, app=application(), nodes=8, capacity=capacity)
    for number, batch in enumerate(batches()):
        if number == 7:
            running.lose("visits[2]", "pages[1]")
        if number == 14:
            running.backend.add_nodes({NodeId("m"): 1.25, NodeId("k"): 1.25})
        running.feed(batch)
    others = {"pages[0]", "pages[2]", "pages[3]"}
    assert {query for query, _ in sink.seen} == (others | {"pages[1]"} if stands_in else others)
    assert {fidelity for _, fidelity in sink.seen.values()} == {0.75}
    assert {tuple(one.fields["without"]) for one in running.kinds("tentative")} == {("visits[2]",)}
    running.end()
    assert sink.whole() == rows_of(sink.rows()) == expected(application(), batches(), "pages")
    assert running.coordinator.state.branches.at == {}


def test_rows_are_right_when_a_source_is_back_before_its_output_is() -> None:
    """Windows that were open meanwhile get the rows that were not there."""
    sink = Watched()
    running = Running(sink, app=application(), nodes=8, capacity=2.0)
    for number, batch in enumerate(batches()):
        if number == 7:
            running.lose("visits[2]", "pages[1]")
        if number == 9:
            running.backend.add_nodes({NodeId("m"): 1.25})
        if number == 15:
            running.backend.add_nodes({NodeId("k"): 1.25})
        running.feed(batch)
        if number == 14:
            assert running.coordinator.state.partitions[PartitionId.parse("visits[2]")].state == "running"
            assert running.coordinator.state.branches.now.queries == {PartitionId.parse("pages[1]"): 1.0}
    right = {key: rows for key, (rows, fidelity) in sink.seen.items() if rows and fidelity == 1.0}
    assert right, "the window from 6 to 12 has closed after the source was back"
    running.end()
    final = sink.final()
    assert {key: final[key] for key in right} == right, "and has all its rows, as its fidelity says"
    assert sink.whole() == expected(application(), batches(), "pages")


def test_a_process_that_restarts_begins_its_stand_in_anew_and_doubles_nothing() -> None:
    sink = Watched()
    running = Running(sink, app=application(), nodes=8, capacity=2.0)
    for number, batch in enumerate(batches()):
        if number == 6:
            running.lose("pages[3]")
        if number in (9, 11):
            (node,) = running.coordinator.state.branches.now.stand_ins.values()
            running.backend._restart(node)
        if number == 12:
            running.lose("visits[0]")
        if number == 14:
            running.backend.add_nodes({NodeId("m"): 1.25, NodeId("k"): 1.25})
        running.feed(batch)
    found = [
        (one.fields["partition"], one.fields["batch"])
        for one in running.kinds("published")
        if one.fields.get("tentative")
    ]
    assert len(found) == len(set(found)), "of a batch one tentative version is out: the first"
    assert {batch for query, batch in found if query == "pages[3]"} >= set(range(6, 14))
    running.end()
    assert sink.whole() == rows_of(sink.rows()) == expected(application(), batches(), "pages")


@pytest.mark.parametrize(
    ("cause", "why"),
    [("gone", "it is not here"), ("large", "members on this node would have more than 0 MB of state of their own")],
)
def test_a_state_that_cannot_be_had_ends_the_stand_in_and_nothing_else(cause: str, why: str) -> None:
    sink = Watched()
    running = Running(sink, app=application(), nodes=8, capacity=2.0)
    given = batches()
    for batch in given[:7]:
        running.feed(batch)
    held = running.backend._snapshot_store
    taken = dict(held.snapshots)  # type: ignore[attr-defined]
    for name in [name for name in taken if "pages-1" in name and cause == "gone"]:
        del held.snapshots[name]  # type: ignore[attr-defined]
    for resident in running.backend.residents.values():
        resident.branching._most_bytes = 1 if cause == "large" else resident.branching._most_bytes
    running.lose("pages[1]")
    for batch in given[7:12]:
        running.feed(batch)
    held.snapshots.update(taken)  # type: ignore[attr-defined]
    (ended,) = running.kinds("tentative-ended")
    assert ended.fields["problem"] == f"its stand-in cannot begin: {why}"
    assert not sink.seen
    running.backend.add_nodes({NodeId("m"): 1.25})
    for batch in given[12:]:
        running.feed(batch)
    running.end()
    assert sink.whole() == expected(application(), given, "pages")


def test_a_stand_in_whose_state_grows_beyond_the_bound_ends_and_nothing_else() -> None:
    sink = Watched()
    running = Running(sink, app=application(), nodes=8, capacity=2.0)
    given = batches()
    for number, batch in enumerate(given):
        if number == 7:
            running.lose("pages[1]")
        if number == 9:
            (node,) = running.coordinator.state.branches.now.stand_ins.values()
            running.backend.residents[node].branching._most_bytes = 1
        if number == 14:
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
    (ended,) = [one for one in running.kinds("tentative-ended") if one.fields["problem"]]
    assert ended.fields["problem"] == "members on this node have more than 0 MB of state of their own"
    running.end()
    assert sink.whole() == expected(application(), given, "pages")


# -- watermarks of forged barriers -------------------------------------------------------------------------------------


Inputs = tuple[pa.Table, ...]


def both(visits: int = 1) -> hf.Application:
    """Visits, and clicks that may be three seconds late, counted together in windows."""

    def together(state: pa.Table, inputs: Inputs, watermark: float) -> tuple[pa.Table, pa.Table]:
        return state, pa.concat_tables(inputs)

    app = hf.Application("web")
    seen = app.source("visits", schema="t double, page string", event_time="t", parallelism=visits)
    clicks = app.source("clicks", schema="t double, page string", event_time="t", lateness=3, parallelism=1)
    rows = seen.apply(
        together, clicks, state="n long", schema="t double, page string", event_time="t", id="both", parallelism=1
    )
    rows.key_by("page").window(hf.tumbling(2)).count(id="pages", parallelism=1).output("pages", tentative=True)
    return app


def with_clicks() -> list[dict[str, pa.Table]]:
    return [{**one, "clicks": one["visits"].slice(0, 9)} for one in batches()]


def test_windows_close_when_they_would_have_without_the_loss() -> None:
    """The source that is lost is the slower one: by the watermark of what is left they would close sooner."""
    sink = Watched()
    running = Running(sink, app=both(), nodes=4)
    for number, batch in enumerate(with_clicks()):
        if number == 5:
            running.lose("clicks[0]")
        if number == 13:
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
    seen = {batch for (_, batch), (rows, _) in sink.seen.items() if rows}
    assert len(seen) > 2, "windows have closed in the outage"
    running.end()
    assert seen <= {batch for (_, batch), rows in sink.final().items() if rows}
    assert sink.whole() == rows_of(sink.rows()) == expected(both(), with_clicks(), "pages")


def test_time_goes_on_where_what_is_left_has_no_watermark() -> None:
    """Operators of your own wait for watermarks, too: that of a source that is lost still comes."""

    def clock(state: pa.Table, inputs: Inputs, watermark: float) -> tuple[pa.Table, pa.Table]:
        return state, pa.table({"at": [watermark], "n": [inputs[1].num_rows]})

    app = hf.Application("web")
    visits = app.source("visits", schema="t double, page string", event_time="t", parallelism=1)
    clicks = app.source("clicks", schema="t double, page string", parallelism=1)
    rows = visits.apply(
        clock, clicks, state="n long", schema="at double, n long", event_time="at", id="clock", parallelism=1
    )
    rows.output("clock", tentative=True)
    sink = Watched()
    running = Running(sink, app=app, nodes=3)
    for number, batch in enumerate(with_clicks()[:10]):
        if number == 5:
            running.lose("visits[0]")
        running.feed(batch)
    assert [rows for _, (rows, _) in sorted(sink.seen.items())] == [
        [str({"at": number + 0.79, "n": 9})] for number in range(5, 10)
    ]


def test_a_branch_that_begins_anew_far_behind_gives_each_window_once_and_in_its_batch() -> None:
    """It repeats batches of which nobody has handed out watermarks: they are in the log."""
    sink = Watched()
    running = Running(sink, app=both(visits=2), nodes=5)
    first, anew = 30, 30 + 2 * WATERMARKS_KEPT
    for number in range(anew + 10):
        if number == 5:
            running.lose("clicks[0]")
        if number == anew:
            running.lose("visits[1]")  # an epoch begins, and with it the branch
        visits = pa.table({"t": [number + i / 100 for i in range(80)], "page": [f"p{i % 5}" for i in range(80)]})
        waits = first <= number < anew
        running.feed({"visits": visits, "clicks": visits.slice(0, 9)}, rounds=0 if waits else 8)
    for _ in range(300):
        running.clock += 0.1
        running.coordinator.step()
    shown = sink.versions()
    assert shown is not None
    windows = [(row["page"], row["window_end"]) for row in shown.to_pylist()]
    assert len(windows) == len(set(windows))
    seen = {batch for (_, batch), (rows, _) in sink.seen.items() if rows}
    assert max(seen) >= anew, "it has caught up"
    running.backend.add_nodes({NodeId("m"): 1.25, NodeId("k"): 1.25})
    running.end()
    assert seen == {batch for (_, batch), rows in sink.final().items() if rows and 5 <= batch < anew + 10}


def test_a_source_that_is_read_in_place_by_a_lost_partition_holds_nothing_back(tmp_path: Path) -> None:
    """Its watermark waits for what that partition has not read."""
    running = Running(app=both(), nodes=4)
    for batch in batches()[:5]:
        running.feed(batch)
    state, log = running.coordinator.state, running.log
    assert source_watermarks(state, log) == {}, "nothing is forged"
    running.lose("visits[0]")
    running.feed(batches()[5])
    known = source_watermarks(state, log)
    assert set(known) == {"visits", "clicks"}
    assert [batch for batch, _ in known["visits"]] == [0, 1, 2, 3, 4, 5]
    assert [mark for _, mark in known["visits"]] == [round((b + 0.79) * 1_000_000) for b in range(6)]
    reader = Files(str(tmp_path), "parquet")
    log.sources = {name: replace(one, reader=reader) for name, one in log.sources.items()}
    assert set(source_watermarks(state, log)) == {"clicks"}, "all of these are read"


def test_a_function_that_runs_on_nodes_is_called_by_the_stand_in() -> None:
    """The query has no assignment while it waits: its tentative rows went nowhere, without a word."""
    running = Running(app=application(), nodes=8, capacity=2.0)
    for number, batch in enumerate(batches()[:12]):
        if number == 7:
            running.lose("pages[1]")
        running.feed(batch)
    query = PartitionId.parse("pages[1]")
    node = running.coordinator.state.branches.now.stand_ins[query]
    link = SimpleNamespace(ended=False, send=lambda *parts: None)
    backend = object.__new__(ResidentBackend)
    desired = running.backend.residents[node].desired
    assert desired is not None
    backend._sent = desired
    backend._held = {node: SimpleNamespace(processes=[SimpleNamespace(name=node, link=link)])}  # type: ignore[dict-item]
    sink = FunctionSink(lambda rows, key: None, lambda rows, key, fidelity: None, on_nodes=True)
    output = Output(OutputKey(query, BatchId(11)), pa.table({"n": [1]}), fidelity=1.0)
    assert backend.send_call(Call(1, sink, (output,), desired.epoch)) is link
