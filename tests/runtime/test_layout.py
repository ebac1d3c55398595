"""A run that goes on with another layout: outputs are those of a run that never changed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.coordinator.layout import change_layout, changes_of
from holdfast.runtime.coordinator.progress import Progress, last_driver
from holdfast.runtime.coordinator.requests import TentativeRequests
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.batch_log import BatchLog, last_positions
from holdfast.runtime.io.batch_records import Arrived
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshots import decode_snapshot
from holdfast.runtime.state.store import StaleEpoch
from holdfast.storage.files import FileStorage
from holdfast.storage.storage import Storage
from sizes import share

SECOND = 1_000_000


def app(parallelism: int = 4, *, more: bool = False, less: bool = False, key: str = "road") -> hf.Application:
    made = hf.Application("cars")
    cars = made.source(
        "cars", schema="road string, lane int, speed int, at timestamp", event_time="at", lateness=1, parallelism=2
    )
    window = hf.tumbling("5 seconds")
    cars.key_by(key).window(window).agg(total=hf.sum("speed"), id="totals", parallelism=parallelism).output("totals")
    if not less:
        cars.key_by("road").window(hf.rows(3)).count(id="threes", parallelism=parallelism).output("threes")
    if more:
        cars.key_by("lane").window(window).count(id="lanes", parallelism=2).output("lanes")
    return made


def batches(seed: int, count: int) -> list[dict[str, pa.Table]]:
    draw = Random(seed)
    found = []
    for batch in range(count):
        many = draw.randrange(12)
        found.append(
            {
                "cars": pa.table(
                    {
                        "road": [f"r{draw.randrange(9)}" for _ in range(many)],
                        "lane": pa.array([draw.randrange(3) for _ in range(many)], pa.int32()),
                        "speed": pa.array([draw.randrange(200) for _ in range(many)], pa.int32()),
                        "at": pa.array([batch * SECOND + draw.randrange(SECOND) for _ in range(many)], pa.int64()).cast(
                            pa.timestamp("us")
                        ),
                    }
                )
            }
        )
    return found


def start(folder: Path, made: hf.Application) -> InProcess:
    names = made.output_names().values()
    return InProcess(made, directory=folder, nodes=2, sinks={name: str(folder / "out" / name) for name in names})


def rows(run: InProcess, name: str) -> list[str]:
    return sorted(map(str, run.rows(name).to_pylist()))


def never_changed(given: list[dict[str, pa.Table]], name: str) -> list[str]:
    run = InProcess(app())
    for batch in given:
        run.feed(batch)
    run.close()
    return rows(run, name)


@pytest.mark.parametrize("seed", range(share(6)))
@pytest.mark.parametrize("layouts", [(4, 2), (2, 8), (1, 3, 1), (4, 2, 8)])
def test_another_parallelism_changes_no_row(tmp_path: Path, layouts: tuple[int, ...], seed: int) -> None:
    given = batches(seed, 24)
    each = len(given) // len(layouts)
    for number, parallelism in enumerate(layouts):
        run = start(tmp_path, app(parallelism))
        for batch in given[number * each : (number + 1) * each]:
            run.feed(batch)
        run.checkpoint()
    run.close()
    assert last_driver(FileStorage(tmp_path))["generation"] == len(layouts) - 1  # type: ignore[index]
    for name in ("totals", "threes"):
        assert rows(run, name) == never_changed(given, name)


def test_queries_come_and_go_and_the_others_do_not_notice(tmp_path: Path) -> None:
    given = batches(5, 20)
    told: list[dict[str, int]] = []
    for number, made in enumerate((app(), app(more=True), app(more=True, less=True), app())):
        run = start(tmp_path, made)
        for batch in given[5 * number : 5 * number + 5]:
            run.feed(batch)
        run.checkpoint()
        told.append({str(p): one.rows_in for p, one in run.measures().items()})
    run.close()
    assert rows(run, "totals") == never_changed(given, "totals")
    rows_in = sum(batch["cars"].num_rows for batch in given[5:10])
    assert sum(n for p, n in told[1].items() if p.startswith("totals")) == rows_in, "nothing was replayed"
    assert sum(n for p, n in told[1].items() if p.startswith("lanes")) == rows_in, "what is new begins at the restart"
    assert len(rows(run, "threes")) < len(never_changed(given, "threes")), "removed and added again, it begins anew"


def test_state_and_rows_do_not_vanish_silently(tmp_path: Path) -> None:
    """Finding 3: other keys, windows or schemas under the same ids were accepted."""
    run = start(tmp_path, app())
    run.feed(batches(1, 1)[0])
    run.checkpoint()
    with pytest.raises(BadInput, match=r"totals.*keys road -> lane"):
        start(tmp_path, app(key="lane"))
    start(tmp_path, app()).feed(batches(2, 1)[0])


def test_what_people_chose_about_tentative_outputs_holds_in_the_next_layout(tmp_path: Path) -> None:
    run = start(tmp_path, app(2))
    requests = TentativeRequests(FileStorage(tmp_path))
    requests.add("totals", on=False)
    requests.add("threes[0]", on=False)
    run = start(tmp_path, app(2))
    run.feed(batches(3, 1)[0])
    run.checkpoint()
    chosen = last_driver(FileStorage(tmp_path))["machine"]["tentative_choices"]  # type: ignore[index]
    assert chosen == {"requests": 1, "queries": {"totals[0]": False, "totals[1]": False, "threes[0]": False}}
    run = start(tmp_path, app(4))
    run.checkpoint()
    chosen = last_driver(FileStorage(tmp_path))["machine"]["tentative_choices"]  # type: ignore[index]
    totals = {f"totals[{index}]": False for index in range(4)}
    assert chosen == {"requests": 1, "queries": {**totals, "threes[0]": False}}
    start(tmp_path, app(4, less=True)).checkpoint()
    chosen = last_driver(FileStorage(tmp_path))["machine"]["tentative_choices"]  # type: ignore[index]
    assert chosen == {"requests": 1, "queries": totals}, "of queries that are no more, nothing is known"


def test_batches_after_the_last_checkpoint_are_the_old_layout_s(tmp_path: Path) -> None:
    given = batches(7, 12)
    run = start(tmp_path, app(4))
    for batch in given[:6]:
        run.feed(batch)
    with pytest.raises(BadInput, match="there are batches after its last checkpoint"):
        start(tmp_path, app(2))
    run = start(tmp_path, app(4))  # the application as it was still runs
    run.checkpoint()
    run = start(tmp_path, app(2))
    for batch in given[6:]:
        run.feed(batch)
    run.close()
    assert rows(run, "totals") == never_changed(given, "totals")


def test_a_driver_of_the_old_layout_can_do_nothing_after_the_fence(tmp_path: Path) -> None:
    storage: Storage = FileStorage(tmp_path)
    given = batches(3, 4)
    old = start(tmp_path, app(4))
    for batch in given[:3]:
        old.feed(batch)
    old.checkpoint()
    new = start(tmp_path, app(2))
    with pytest.raises(StaleEpoch):
        old.feed(given[3])
    new.feed(given[3])
    stale = BatchLog(Program(app(4)).sources, "cars", storage, generation=0)
    assert stale.frontier == 2, "its nodes do not see batches of the new layout"
    with pytest.raises(BadInput, match="layout 1"):
        raise BadInput(str(_problem(lambda: stale.blocks(next(iter(stale.sources)), BatchId(4), new.epoch))))


def test_of_two_starts_at_once_the_one_with_the_old_layout_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It compares before it has the claim; meanwhile the other one changes the run."""
    given = batches(5, 6)
    old = start(tmp_path, app(4))
    for batch in given[:3]:
        old.feed(batch)
    old.checkpoint()

    def compare_then_change(storage: Storage, program: Program) -> object:
        found = changes_of(storage, program)
        monkeypatch.undo()
        start(tmp_path, app(2))
        return found

    monkeypatch.setattr("holdfast.runtime.in_process.changes_of", compare_then_change)
    with pytest.raises(CheckFailed, match="another start has changed the layout of this run meanwhile"):
        start(tmp_path, app(4))
    new = start(tmp_path, app(2))
    for batch in given[3:]:
        new.feed(batch)
    new.close()
    assert rows(new, "totals") == never_changed(given, "totals")


def _problem(work: Callable[[], object]) -> Exception | None:
    try:
        work()
    except Exception as error:
        return error
    return None


def test_a_driver_that_dies_on_the_way_leaves_the_old_layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = batches(4, 8)
    run = start(tmp_path, app(4))
    for batch in given[:4]:
        run.feed(batch)
    run.checkpoint()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    for parallelism in (2, 8):
        with monkeypatch.context() as patch:
            patch.setattr(Progress, "change", dies)
            with pytest.raises(KeyboardInterrupt):
                start(tmp_path, app(parallelism))
    run = start(tmp_path, app(4))  # back to what it was: batches follow the fences
    assert last_driver(FileStorage(tmp_path))["generation"] == 0  # type: ignore[index]
    for batch in given[4:]:
        run.feed(batch)
    run.close()
    assert rows(run, "totals") == never_changed(given, "totals")


def test_the_old_layout_is_run_until_it_is_settled(tmp_path: Path) -> None:
    given = batches(9, 6)
    run = start(tmp_path, app(4))
    for batch in given[:3]:
        run.feed(batch)
    asked: list[int] = []

    def run_old(*, anew: bool) -> None:
        assert not anew
        asked.append(1)
        start(tmp_path, app(4)).checkpoint()

    storage = FileStorage(tmp_path)
    change_layout(storage, storage.within("checkpoints"), Program(app(2)), run_old=run_old)
    assert asked == [1]
    run = start(tmp_path, app(2))
    for batch in given[3:]:
        run.feed(batch)
    run.close()
    assert rows(run, "threes") == never_changed(given, "threes")


@pytest.mark.parametrize("torn", [False, True])
def test_a_checkpoint_that_cannot_be_read_is_taken_anew_by_the_old_layout(tmp_path: Path, torn: bool) -> None:
    """A damaged file must not keep a run from changing: the old layout still has the state, or recovers it."""
    given = batches(9, 6)
    run = start(tmp_path, app(4))
    for batch in given[:3]:
        run.feed(batch)
    run.checkpoint()
    storage = FileStorage(tmp_path)
    durable = storage.within("checkpoints")
    damaged = [name for name in durable.list("") if "totals" in name]
    assert damaged  # states of other operators are small, and in the log
    held = {name: bytes(data) for name in damaged if (data := durable.read(name)) is not None}
    durable.delete(damaged)
    for name, data in held.items():
        if torn:
            durable.create(name, data[: len(data) // 2])
    asked: list[bool] = []

    def run_old(*, anew: bool) -> None:
        asked.append(anew)
        old = start(tmp_path, app(4))
        old.feed({})
        old.checkpoint()

    with pytest.raises(BadInput, match="its last checkpoint cannot be read"):
        start(tmp_path, app(2))
    change_layout(storage, durable, Program(app(2)), run_old=run_old)
    assert asked == [True]
    run = start(tmp_path, app(2))
    for batch in given[3:]:
        run.feed(batch)
    run.close()
    for output in ("threes", "totals"):
        assert rows(run, output) == never_changed(given, output)


def two_sources(*, both: bool = True) -> hf.Application:
    made = hf.Application("cars")
    for name in ("cars", "buses") if both else ("cars",):
        stream = made.source(name, schema="road string, at timestamp", event_time="at", lateness=1)
        stream.key_by("road").window(hf.tumbling("5 seconds")).count(id=f"{name}-counts").output()
    return made


def test_a_source_goes_on_where_it_stood_though_a_driver_that_died_had_removed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fence of that driver is the last batch: a reader goes on from what it says."""
    run = start(tmp_path, two_sources())
    log, buses = run._batch_log, OperatorId("buses")
    log.commit(BatchId(0), {buses: Arrived([], {"through": 4})})
    log.append({"buses": pa.table({"road": ["a"], "at": pa.array([9 * SECOND], pa.timestamp("us"))})})
    run.run()
    run.checkpoint()

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Progress, "change", dies)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path, two_sources(both=False))
    after = start(tmp_path, two_sources())._batch_log
    assert last_positions(after, [buses]) == {buses: {"through": 4}}
    after.append({})
    record = after.record(after.frontier)
    assert record is not None
    assert record.sources[buses].watermark == 8 * SECOND


def test_the_application_of_a_new_layout_is_kept_before_the_run_has_it(tmp_path: Path) -> None:
    """A driver that dies right after the change leaves what the next change must run first."""
    run = start(tmp_path, app(4))
    run.feed(batches(1, 1)[0])
    run.checkpoint()
    storage = FileStorage(tmp_path)
    change_layout(storage, storage.within("checkpoints"), Program(app(2)), run_old=dict, application=b"app(2)")
    last = last_driver(storage)
    assert last is not None
    kept = storage.read(last["program"])
    assert kept is not None
    assert kept.to_pybytes() == b"app(2)"


def test_an_added_join_with_an_added_source_gets_all_rows_of_it(tmp_path: Path) -> None:
    """The old source is far ahead: windows of the join are open until the new one has come as far."""

    def made(*, joined: bool) -> hf.Application:
        found = two_sources(both=joined)
        if joined:
            cars, buses = (hf.Stream(found, OperatorId(name), found.columns[name]) for name in ("cars", "buses"))
            cars.join(buses, on="road", window=hf.tumbling("5 seconds"), id="pairs").output()
        return found

    def rows_at(second: int) -> pa.Table:
        return pa.table({"road": ["a"], "at": pa.array([second * SECOND], pa.timestamp("us"))})

    run = start(tmp_path, made(joined=False))
    run.feed({"cars": rows_at(100)})
    run.checkpoint()
    run = start(tmp_path, made(joined=True))
    run.feed({"cars": rows_at(101), "buses": rows_at(50)})
    run.feed({"buses": rows_at(101)})
    run.close()
    assert run.rows("pairs").num_rows == 1
    assert run.late("pairs") is None


def counted(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
    """Count all rows of a partition: what it keeps has no key."""
    kept = pa.table({"road": ["all"], "seen": [sum(state["seen"].to_pylist()) + inputs[0].num_rows]})
    return kept, kept


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_state_that_cannot_be_cut_goes_on_where_others_change(
    tmp_path: Path, deterministic: bool, keyed: bool
) -> None:
    """Its parallelism stays, so nothing is cut; also where its snapshot holds outputs."""

    def made(*, more: bool) -> hf.Application:
        found = hf.Application("cars")
        cars = found.source("cars", schema="road string, lane int, speed int, at timestamp", event_time="at")
        columns = "road string, seen long"
        stream = cars.key_by("road") if keyed else cars
        stream.apply(
            counted, state=columns, schema=columns, deterministic=deterministic, id="own", parallelism=3
        ).output()
        if more:
            cars.key_by("lane").window(hf.rows(2)).count(id="lanes").output()
        return found

    given = batches(8, 9)
    for number, more in enumerate((False, True, False)):
        run = start(tmp_path, made(more=more))
        for batch in given[3 * number : 3 * number + 3]:
            run.feed(batch)
        run.checkpoint()
    never = InProcess(made(more=False), nodes=2)
    for batch in given:
        never.feed(batch)
    never.checkpoint()
    assert last_driver(FileStorage(tmp_path))["generation"] == 2  # type: ignore[index]
    assert set(rows(run, "own")) == set(rows(never, "own")), "an empty batch repeats what was"


@pytest.mark.parametrize(("before", "now", "reads"), [(8, 4, 8), (4, 8, 8), (6, 4, 9), (1, 5, 5)])
def test_a_state_is_read_by_those_who_get_some_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, now: int, reads: int
) -> None:
    """Not by every new partition: each has a range of hashes, and so have the old ones."""

    def made(parallelism: int) -> hf.Application:
        found = hf.Application("cars")
        cars = found.source("cars", schema="road string, lane int, speed int, at timestamp", event_time="at")
        cars.key_by("road").window(hf.rows(1000)).count(id="many", parallelism=parallelism).output()
        return found

    run = start(tmp_path, made(before))
    for batch in batches(1, 30):
        run.feed(batch)
    run.checkpoint()
    seen: list[str] = []
    monkeypatch.setattr(
        "holdfast.runtime.coordinator.layout.decode_snapshot",
        lambda data: (snapshot := decode_snapshot(data), seen.append(snapshot.commit.partition.operator))[0],
    )
    start(tmp_path, made(now))
    first = before  # once to see where every partition stands
    assert seen.count("many") <= first + reads
