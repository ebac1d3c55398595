"""Tentative outputs under workers that stay, without Spark: they flow on what is left, and final rows replace them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import InProcess
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.progress import Progress, last_driver
from holdfast.runtime.coordinator.requests import TentativeRequests
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import (
    ORIGIN_COLUMNS,
    VERSION_COLUMNS,
    FunctionSink,
    MemorySink,
    OutputKey,
    Sink,
    TransactionalSink,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore
from holdfast.runtime.state.store import MemoryStore
from holdfast.storage.memory import MemoryStorage
from runtime.resident_loop import ResidentLoop

COUNT = 12


def application(last: Callable[[pa.Table], pa.Table] = lambda rows: rows) -> hf.Application:
    """Visits on four partitions, counted by page and window on two, put together on one."""
    app = hf.Application("web")
    visits = app.source("visits", schema="t double, page string", event_time="t", parallelism=4)
    by_page = visits.key_by("page").window(hf.tumbling(2)).count(id="pages", parallelism=2)
    by_page.flat_map(last, id="all", parallelism=1, schema=None).output("all", tentative=True)
    return app


def batches() -> list[dict[str, pa.Table]]:
    return [
        {
            "visits": pa.table(
                {"t": [float(b) + i / 100 for i in range(40)], "page": [f"p{(i * 7 + b) % 9}" for i in range(40)]}
            )
        }
        for b in range(COUNT)
    ]


class Running:
    """The application on seven nodes with room for one partition each."""

    def __init__(
        self,
        sink: Sink | None = None,
        storage: MemoryStorage | None = None,
        processes: int = 1,
        app: hf.Application | None = None,
        asked: bool = True,
        nodes: int = 7,
        capacity: float = 1.25,
    ) -> None:
        self.clock = 0.0
        self.program = Program(app or application())
        self.storage = storage or MemoryStorage()
        progress = Progress(self.storage, "web")
        self.log = BatchLog(self.program.sources, self.program.name, self.storage, claim=progress.claim)
        stores: dict[NodeId, MemoryStore] = {}
        self.backend = ResidentLoop(
            self.program,
            self.log,
            MemorySnapshotStore(),
            lambda node: stores.setdefault(node, MemoryStore()),
            processes=processes,
        )
        self.backend.add_nodes({NodeId(f"n{number}"): capacity for number in range(nodes)})
        self.sink = sink or MemorySink()
        self.seen: list[Observation] = []
        self.coordinator = Coordinator(
            self.program,
            self.backend,
            self.log,
            {query.operator: self.sink for query in self.program.outputs},
            lambda operator, feed: MemorySink(),
            progress,
            recovery=RecoverySettings(tentative=frozenset(self.program.outputs if asked else ())),
            pace=CycleSettings(checkpoint_batches=4),
            choices=TentativeRequests(self.storage),
            clock=lambda: self.clock,
            now=time.time,
            emit=self.seen.append,
        )

    def feed(self, batch: object, *, last: bool = False, rounds: int = 30) -> None:
        self.log.append(batch, last=last)  # type: ignore[arg-type]
        for _ in range(rounds):
            self.clock += 0.1
            self.coordinator.step()

    def lose(self, *names: str) -> None:
        placement = self.coordinator.state.placement
        self.backend.lose_nodes(*{placement[PartitionId.parse(name)] for name in names})

    def end(self) -> None:
        self.feed({}, last=True)
        self.coordinator.run()
        for _ in range(20):
            self.coordinator.step()

    def kinds(self, kind: str) -> list[Observation]:
        return [one for one in self.seen if one.kind == kind]

    def tentative_batches(self) -> list[int]:
        return [one.fields["batch"] for one in self.kinds("published") if one.fields.get("tentative")]


def expected() -> list[str]:
    running = InProcess(application(), nodes=3)
    for batch in batches():
        running.feed(batch)
    running.close()
    return sorted(map(str, running.rows("all").to_pylist()))


def rows_of(table: pa.Table | None) -> list[str]:
    return [] if table is None else sorted(map(str, table.to_pylist()))


@pytest.mark.parametrize("processes", [1, 2])
def test_outputs_flow_on_what_is_left_and_final_ones_replace_them(processes: int) -> None:
    sink = MemorySink()
    running = Running(sink, processes=processes)
    for number, batch in enumerate(batches()):
        if number == 4:
            running.lose("visits[1]")
        if number == 9:
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
        if number == 8:
            assert running.tentative_batches() == [4, 5, 6, 7, 8]
            assert running.coordinator.state.published[PartitionId.parse("all[0]")] == 3
            shown = sink.versions()
            assert shown is not None
            tentative = shown.filter(shown["tentative"])
            assert set(tentative["fidelity"].to_pylist()) == {0.75}
            assert set(tentative["revision"].to_pylist()) == {0}
            finals = rows_of(sink.rows())
            assert all(not one["tentative"] for one in shown.to_pylist() if str(_own(one)) in finals)
    running.end()
    assert rows_of(sink.rows()) == expected()
    shown = sink.versions()
    assert shown is not None
    assert not any(shown["tentative"].to_pylist())
    assert rows_of(shown.drop_columns(["tentative", "fidelity", "revision"])) == expected()
    assert 1 in shown["revision"].to_pylist()
    assert len(running.kinds("tentative")) == 1
    (corrected,) = running.kinds("corrected")
    assert corrected.fields["since"] == 4
    assert corrected.fields["through"] >= 8
    assert running.coordinator.rollbacks == 0


def _own(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in ("tentative", "fidelity", "revision")}


def test_it_is_in_the_progress_before_the_first_tentative_row_is_published() -> None:
    sink = MemorySink()
    running = Running(sink)
    known: list[object] = []
    right: Callable[..., bool] = sink.publish_tentative

    def publish(*given: object) -> bool:
        last = last_driver(running.storage)
        known.append(last and last["machine"]["tentative"])
        return right(*given)

    sink.publish_tentative = publish  # type: ignore[method-assign]
    for number, batch in enumerate(batches()[:8]):
        if number == 4:
            running.lose("visits[1]")
        running.feed(batch)
    assert known
    assert all(one == {"all[0]": {"since": 4, "fidelity": 0.75}} for one in known)


def test_a_restarted_process_begins_its_branch_anew_and_doubles_nothing() -> None:
    sink = MemorySink()
    running = Running(sink)
    for number, batch in enumerate(batches()):
        if number == 4:
            running.lose("visits[3]")
        if number in (6, 7):
            name = "all[0]" if number == 7 else "pages[1]"
            running.backend._restart(running.coordinator.state.placement[PartitionId.parse(name)])
        if number == 9:
            assert running.tentative_batches() == [4, 5, 6, 7, 8]
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
    found = running.tentative_batches()
    assert found == sorted(set(found))
    running.end()
    assert rows_of(sink.rows()) == expected()


def test_further_losses_and_arrivals_while_tentative_give_the_same_final_rows() -> None:
    sink = MemorySink()
    running = Running(sink)
    for number, batch in enumerate(batches()):
        if number == 3:
            running.lose("visits[1]")
        if number == 5:
            running.lose("pages[1]")
        if number == 6:
            running.backend.add_nodes({NodeId("m"): 1.25})
        if number == 8:
            running.lose("visits[0]")
        if number == 9:
            running.backend.add_nodes({NodeId("k"): 1.25, NodeId("l"): 1.25})
        running.feed(batch)
    assert running.tentative_batches()
    fidelities = [one.fields["fidelity"] for one in running.kinds("tentative")]
    assert fidelities[:2] == [0.75, pytest.approx(0.375)]
    running.end()
    assert rows_of(sink.rows()) == expected()
    assert running.coordinator.state.branches.at == {}


def test_a_driver_that_starts_again_corrects_what_the_one_before_published(tmp_path: Path) -> None:
    storage, sink = MemoryStorage(), ParquetSink(tmp_path / "out")
    running = Running(sink, storage)
    for number, batch in enumerate(batches()[:8]):
        if number == 4:
            running.lose("visits[1]")
        running.feed(batch)
    assert running.tentative_batches()
    assert (tmp_path / "out" / "_tentative").is_dir()
    before = sink.versions()
    assert before is not None
    assert any(before["tentative"].to_pylist())
    second = Running(ParquetSink(tmp_path / "out"), storage)
    assert second.coordinator.state.branches.at
    for batch in batches()[8:]:
        second.feed(batch)
    second.end()
    assert second.coordinator.state.branches.at == {}
    after = sink.versions()
    assert after is not None
    assert not any(after["tentative"].to_pylist())
    assert rows_of(sink.rows()) == expected()
    assert rows_of(after.drop_columns(["tentative", "fidelity", "revision"])) == expected()


def test_tentative_rows_of_a_batch_that_the_driver_before_logged_meanwhile_are_taken_back(tmp_path: Path) -> None:
    """A driver logs one more batch, and publishes its tentative rows, after the next one has read the log."""

    def few(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.less(rows["count"], 8))

    storage, sink = MemoryStorage(), ParquetSink(tmp_path / "out")
    first = Running(sink, storage, app=application(few))
    for number, batch in enumerate(batches()[:8]):
        if number == 4:
            first.lose("visits[1]")
        first.feed(batch)
    second = Running(ParquetSink(tmp_path / "out"), storage, app=application(few))
    assert second.log.frontier == 7
    first.feed(batches()[8])
    assert first.tentative_batches()[-1] == 8
    assert second.log.adopt()
    for batch in batches()[9:]:
        second.feed(batch)
    second.end()
    assert second.coordinator.state.branches.at == {}
    shown = sink.versions()
    assert shown is None or not any(shown["tentative"].to_pylist())


def test_a_third_driver_takes_tentative_rows_back_that_the_second_one_never_knew_of(tmp_path: Path) -> None:
    """The second driver has replaced all that it knows of, and dies before it takes the batch that was logged since."""

    def few(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.less(rows["count"], 8))

    storage, sink = MemoryStorage(), ParquetSink(tmp_path / "out")
    first = Running(sink, storage, app=application(few))
    for number, batch in enumerate(batches()[:8]):
        if number == 4:
            first.lose("visits[1]")
        first.feed(batch)
    second = Running(ParquetSink(tmp_path / "out"), storage, app=application(few))
    assert second.log.frontier == 7
    first.feed(batches()[8])
    assert first.tentative_batches()[-1] == 8
    second.coordinator.run()
    assert set(second.coordinator.state.published.values()) == {7}
    assert second.kinds("corrected") == [], "the first driver can still log a batch, and has"
    third = Running(ParquetSink(tmp_path / "out"), storage, app=application(few))
    for batch in batches()[9:]:
        third.feed(batch)
    third.end()
    assert third.coordinator.state.branches.at == {}
    assert third.kinds("corrected")[-1].fields["through"] == 8
    shown = sink.versions()
    assert shown is None or not any(shown["tentative"].to_pylist())


def test_a_driver_says_that_all_is_corrected_once_no_earlier_one_can_log_a_batch(tmp_path: Path) -> None:
    storage, sink = MemoryStorage(), ParquetSink(tmp_path / "out")
    first = Running(sink, storage)
    for number, batch in enumerate(batches()[:8]):
        if number == 4:
            first.lose("visits[1]")
        first.feed(batch)
    second = Running(ParquetSink(tmp_path / "out"), storage)
    first.feed(batches()[8])
    assert second.log.adopt()
    second.feed(batches()[9])
    assert [one.fields["through"] for one in second.kinds("corrected")] == [8], "with what the first one logged last"
    assert second.coordinator.state.branches.at == {}


def test_a_delta_table_has_tentative_rows_until_the_commit_with_the_final_ones(tmp_path: Path) -> None:
    table = tmp_path / "table"
    running = Running(DeltaSink(table, tentative=True))
    for number, batch in enumerate(batches()):
        if number == 4:
            running.lose("visits[1]")
        if number == 9:
            rows = DeltaSink(table).rows()
            assert rows is not None
            assert {row["fidelity"] for row in rows.to_pylist() if row["tentative"]} == {0.75}
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
    running.end()
    rows = DeltaSink(table).rows()
    assert rows is not None
    assert not any(rows["tentative"].to_pylist())
    assert set(rows["holdfast_batch"].to_pylist()) <= set(range(len(batches()) + 1))
    assert rows_of(rows.drop_columns([*VERSION_COLUMNS, *ORIGIN_COLUMNS])) == expected()


def test_people_choose_in_an_outage_and_take_it_back_and_a_driver_that_starts_again_knows() -> None:
    storage, sink = MemoryStorage(), MemorySink()
    requests = TentativeRequests(storage)
    running = Running(sink, storage, asked=False)
    requests.add("all", on=True)
    given = batches()
    for number, batch in enumerate(given[:10]):
        if number == 2:
            assert len(running.kinds("tentative-chosen")) == 1, "the first is read at the start, where nothing is live"
            requests.add("all[0]", on=False)
        if number == 4:
            running.lose("visits[1]")
        if number == 6:
            assert running.tentative_batches() == []
            requests.add("all[0]", on=True)
        running.feed(batch)
    assert [(one.fields["on"], one.fields["refused"]) for one in running.kinds("tentative-chosen")] == [
        *((True, []), (False, []), (True, []))
    ]
    found = running.tentative_batches()
    assert found[0] in (4, 5)  # the branch begins with what is not final yet
    assert found[-1] == 9
    second = Running(sink, storage, asked=False)
    assert second.coordinator.state.branches.chosen == {PartitionId.parse("all[0]"): True}
    assert second.coordinator.state.branches.requests == 2
    for batch in given[10:]:
        second.feed(batch)
    second.end()
    assert second.coordinator.state.branches.at == {}
    assert rows_of(sink.rows()) == expected()
    shown = sink.versions()
    assert shown is not None
    assert not any(shown["tentative"].to_pylist())


def test_a_choice_that_cannot_be_is_refused_with_a_line_and_nothing_stops() -> None:
    sink = TransactionalSink(lambda key: False, lambda rows, key: None)
    running = Running(sink, asked=False)
    requests = TentativeRequests(running.storage)
    requests.add("all", on=True)
    requests.add("pages", on=True)
    for number, batch in enumerate(batches()):
        if number == 4:
            running.lose("visits[1]")
        if number == 8:
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
    refused = [line for one in running.kinds("tentative-chosen") for line in one.fields["refused"]]
    assert "its sink (TransactionalSink) cannot correct them" in refused[0]
    assert refused[1] == "pages: the run has no such query"
    assert running.tentative_batches() == []
    running.end()
    assert running.coordinator.status.caught_up


def test_functions_get_tentative_rows_and_then_final_ones_under_a_higher_revision() -> None:
    held: dict[tuple[str, int], tuple[int, list[str]]] = {}
    revisions: list[tuple[int, int]] = []

    def final(rows: pa.Table, key: OutputKey) -> None:
        held[str(key.query), key.batch] = (key.revision, [str(row) for row in rows.to_pylist()])
        revisions.append((key.batch, key.revision))

    def tentative(rows: pa.Table, key: OutputKey, fidelity: float) -> None:
        assert fidelity == 0.75
        revisions.append((key.batch, key.revision))
        if (str(key.query), key.batch) not in held:
            held[str(key.query), key.batch] = (key.revision, [str(row) for row in rows.to_pylist()])

    running = Running(FunctionSink(final, tentative))
    for number, batch in enumerate(batches()):
        if number == 4:
            running.lose("visits[1]")
        if number == 9:
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
    running.end()
    assert sorted(row for _, rows in held.values() for row in rows) == expected()
    both = {batch for batch, revision in revisions if revision == 0}
    assert both
    for batch in both:
        assert [revision for at, revision in revisions if at == batch] == [0, 1]


def test_a_final_version_without_rows_takes_tentative_rows_back(tmp_path: Path) -> None:
    key = OutputKey(PartitionId.parse("all[0]"), BatchId(3))
    rows, epoch = pa.table({"n": [1]}), Running().coordinator.state.epoch
    for sink in (MemorySink(), ParquetSink(tmp_path / "out")):
        assert sink.publish_tentative(key, rows, 0.5, epoch)
        assert not sink.publish_tentative(key, pa.table({"n": [2]}), 0.6, epoch), "the first counts"
        shown = sink.versions()
        assert shown is not None
        assert shown.to_pylist() == [{"n": 1, "tentative": True, "fidelity": 0.5, "revision": 0}]
        sink.retract(key, rows.slice(0, 0), epoch)
        assert sink.versions() is None
        assert sink.rows() is None


def test_rows_that_only_incomplete_inputs_give_are_taken_back() -> None:
    """Pages with few visits: of complete inputs there are none, so nothing final comes in the place of these rows."""

    def few(rows: pa.Table) -> pa.Table:
        return rows.filter(pc.less(rows["count"], 8))

    sink = MemorySink()
    running = Running(sink, app=application(few))
    for number, batch in enumerate(batches()):
        if number == 4:
            running.lose("visits[1]")
        if number == 9:
            shown = sink.versions()
            assert shown is not None
            assert shown.num_rows == sum(shown["tentative"].to_pylist()) > 0
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
    running.end()
    assert running.kinds("corrected")
    final = sink.rows()
    shown = sink.versions()
    assert rows_of(None if shown is None else shown.drop_columns(list(VERSION_COLUMNS))) == rows_of(final)
    assert shown is None or not any(shown["tentative"].to_pylist())


def test_a_branch_that_fails_costs_the_query_nothing_else() -> None:
    fails: list[bool] = []

    def check(rows: pa.Table) -> pa.Table:
        if fails:
            raise ValueError("no")
        return rows

    sink = MemorySink()
    running = Running(sink, app=application(check))
    for number, batch in enumerate(batches()):
        if number == 4:
            running.lose("visits[1]")
            fails.append(True)
        if number == 9:
            fails.clear()
            running.backend.add_nodes({NodeId("m"): 1.25})
        running.feed(batch)
    assert [one.fields["problem"] is not None for one in running.kinds("tentative-ended")] == [True]
    assert not running.kinds("parked")
    assert not running.kinds("failed")
    running.end()
    assert rows_of(sink.rows()) == expected()


def test_a_member_whose_sender_elsewhere_has_dropped_its_blocks_ends_the_branch_with_a_reason() -> None:
    """It asks the sender's process, which serves it no more: nothing else would end the wait, or say why."""
    running = Running()
    for number, batch in enumerate(batches()):
        if number == 5:
            running.lose("visits[2]")
        if number == 8:
            node = running.coordinator.state.placement[PartitionId.parse("visits[0]")]
            sender = running.backend.residents[node].branching
            sender.replay = lambda *given: None  # type: ignore[method-assign]
        running.feed(batch)
    (ended,) = running.kinds("tentative-ended")
    assert ended.fields["query"] == "all[0]"
    assert "visits[0] no longer has batch 8 for it" in ended.fields["problem"]
    running.backend.add_nodes({NodeId("m"): 1.25})
    running.end()
    assert rows_of(running.sink.rows()) == expected()  # type: ignore[attr-defined]


def counting() -> hf.Application:
    """Visits on two partitions, counted by page in one long window on one: its state grows with the pages."""
    app = hf.Application("web")
    visits = app.source("visits", schema="t double, page string", event_time="t", parallelism=2)
    by_page = visits.key_by("page").window(hf.tumbling(1000))
    by_page.count(id="counts", parallelism=1).output("counts", tentative=True)
    return app


def new_pages(batch: int, many: int = 400) -> dict[str, pa.Table]:
    """Rows of pages that no batch before had."""
    times = [float(batch) + i / many for i in range(many)]
    return {"visits": pa.table({"t": times, "page": [f"page {batch * many + i}" for i in range(many)]})}


def test_a_member_whose_state_grows_beyond_the_bound_ends_its_branch_and_nothing_else() -> None:
    """Its state is in memory alone: it would grow until the operator process is killed, with the clean line in it."""
    running = Running(app=counting(), nodes=3)
    for number in range(12):
        if number == 4:
            running.lose("visits[1]")
            node = running.coordinator.state.placement[PartitionId.parse("counts[0]")]
            before = running.backend.residents[node]._host  # the state that it shares does not count
            shared = before.snapshot(PartitionId.parse("counts[0]"), BatchId(3))
            bound = shared.commit.state_bytes  # type: ignore[union-attr]
            running.backend.residents[node].branching._most_bytes = bound
        running.feed(new_pages(number))
    (ended,) = [one for one in running.kinds("tentative-ended") if one.fields["problem"]]
    assert ended.fields["problem"] == "members on this node have more than 0 MB of state of their own"
    assert len(running.tentative_batches()) > 2, "as long as what it has gained is within the bound, it goes on"
    running.backend.add_nodes({NodeId("m"): 1.25})
    running.end()
    assert running.sink.rows().num_rows == 12 * 400  # type: ignore[attr-defined]


@pytest.mark.parametrize("together", [False, True])
def test_blocks_that_all_consumers_have_are_dropped_where_they_take_much_room(together: bool) -> None:
    """With many times the bound of blocks since the loss, of which consumers need the last few, the branch goes on."""
    app = hf.Application("web")
    visits = app.source("visits", schema="t double, page string", event_time="t", parallelism=4)
    pages = visits.key_by("page").flat_map(lambda rows: rows, id="pages", parallelism=2)
    pages.flat_map(lambda rows: rows, id="all", parallelism=1).output("all", tentative=True)
    running, most, held = Running(nodes=4 if together else 7, app=app), 10_000, 0
    if together:
        running.backend.add_nodes({NodeId("large"): 3.75})
    for number in range(100):
        if number == 4:
            running.lose("visits[1]")
            for one in running.backend.residents.values():
                one.branching._most_bytes = most
        running.feed(batches()[number % COUNT], rounds=20)
        if number > 4:
            held = max(held, *(one.branching._store.kept_bytes() for one in running.backend.residents.values()))
    assert not running.kinds("tentative-ended")
    assert running.tentative_batches() == list(range(4, 100))
    assert most // 4 < held <= most, "as long as there is room, blocks stay for members that begin anew"


def test_a_sink_that_cannot_correct_is_refused_in_one_line() -> None:
    with pytest.raises(BadInput) as refused:
        Running(TransactionalSink(lambda key: False, lambda rows, key: None))
    line = str(refused.value)
    assert "output all" in line
    assert "cannot correct" in line
    assert "hf.parquet" in line
    assert "\n" not in line


def test_cycles_through_the_shuffle_refuse_tentative_outputs() -> None:
    running = Running()
    running.backend.takes_updates = False
    with pytest.raises(BadInput, match="tentative outputs need tasks that stay"):
        Coordinator(
            running.program,
            running.backend,
            running.log,
            {OperatorId("all"): MemorySink()},
            lambda operator, feed: MemorySink(),
            Progress(MemoryStorage(), "web"),
            recovery=RecoverySettings(tentative=frozenset(running.program.outputs)),
        )
