"""Plans that change while a run goes on: when they take effect, what they keep, what a restart knows of them."""

from __future__ import annotations

import tracemalloc
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.erasure.layout import Coding
from holdfast.ids import NodeId, SegmentId
from holdfast.planning.joint.model import JointModel
from holdfast.planning.joint.search import Planned, plan_jointly
from holdfast.planning.joint.targets import Assumptions, targets
from holdfast.recovery.executed_plan import ExecutedPlan, SegmentInterval
from holdfast.recovery.segments import ALL_PARTITIONS, ONE_SEGMENT, segments_of
from holdfast.runtime import InProcess
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.plan_keeping import PlanKeeping, Replanning
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.messages import Measures, SnapshotStored
from holdfast.runtime.program import Program
from holdfast.spark.planned import executed_plan
from runtime.test_segment_runs import LETTERS, SCHEMA, four, numbers, partition

TOPOLOGY = Program(four()).topology
EACH_ALONE = segments_of(TOPOLOGY, LETTERS)


def alone(*, every: int = 2) -> ExecutedPlan:
    """Every operator is a segment."""
    return ExecutedPlan(EACH_ALONE, intervals=tuple(SegmentInterval(name, every) for name in EACH_ALONE.names))


class Running:
    """The application of four operators, each on a node of its own."""

    def __init__(self, plan: ExecutedPlan | None = None, directory: Path | None = None) -> None:
        self.seen: list[Observation] = []
        self.run = InProcess(
            four(),
            nodes=4,
            checkpoint_every=3,
            directory=directory,
            sinks={} if directory is None else {"d": ParquetSink(directory / "out")},
            plan=plan,
            emit=self.seen.append,
        )
        self.coordinator = self.run._coordinator
        self.state = self.coordinator.state
        self.fed = 0

    def feed(self, count: int) -> None:
        for _ in range(count):
            self.run.feed(numbers(self.fed))
            self.fed += 1

    def kinds(self, *wanted: str) -> list[str]:
        return [one.kind for one in self.seen if one.kind in wanted]

    def kill(self, letter: str) -> list[str]:
        """Lose the node of an operator; return who else rolled back."""
        self.seen.clear()
        self.run._backend.lose_nodes(self.run.placement[partition(letter)])
        self.run._backend.add_nodes({NodeId(f"m-{letter}-{self.run.frontier}"): float("inf")})
        self.run.run()
        return [name for one in self.seen if one.kind == "rolled-back" for name in one.fields["partitions"]]


def test_a_plan_takes_effect_at_the_next_checkpoint_of_everything() -> None:
    running = Running()
    running.feed(4)
    assert running.coordinator.choose_plan(alone())
    assert running.state.segments == ONE_SEGMENT  # a batch is on its way that no checkpoint covers
    running.feed(1)
    assert running.state.segments == EACH_ALONE
    assert len(set(running.state.checkpoints.line.values())) == 1
    (changed,) = [one for one in running.seen if one.kind == "plan-changed"]
    assert changed.fields["number"] == 1
    assert changed.fields["batch"] == 4


def test_from_then_on_a_loss_takes_back_its_own_segment_alone() -> None:
    running = Running()
    running.feed(5)
    assert running.kill("c") == ["a[0]", "b[0]"]  # one segment: senders kept nothing
    running.coordinator.choose_plan(alone(every=3))
    running.feed(4)
    assert running.kill("c") == []
    running.coordinator.choose_plan(ExecutedPlan())
    running.feed(5)
    assert running.state.segments == ONE_SEGMENT
    assert "b[0]" in running.kill("c")


def test_backups_of_a_chosen_plan_are_kept_at_once() -> None:
    running = Running()
    running.feed(5)
    running.coordinator.choose_plan(ExecutedPlan(backups=frozenset({partition("b")})))
    running.feed(1)
    assert running.state.settings.backup_partitions == {partition("b")}
    assert running.kill("c") == []


def test_where_nothing_is_on_its_way_a_plan_takes_effect_at_once() -> None:
    running = Running()
    running.feed(4)
    running.run.checkpoint()
    running.coordinator.choose_plan(alone())
    assert running.state.segments == EACH_ALONE


def test_the_same_plan_again_is_no_change() -> None:
    running = Running(alone())
    assert not running.coordinator.choose_plan(alone())
    assert running.coordinator.choose_plan(alone(every=4))
    assert not running.coordinator.choose_plan(alone(every=4))


def test_the_later_of_two_chosen_plans_counts() -> None:
    running = Running()
    running.feed(4)
    running.coordinator.choose_plan(alone(every=2))
    running.coordinator.choose_plan(alone(every=5))
    running.feed(3)
    assert running.state.plan.now.number == 2
    assert {one.batches for one in running.state.plan.now.intervals} == {5}
    assert running.kinds("plan-chosen", "plan-changed") == ["plan-chosen", "plan-chosen", "plan-changed"]


def test_a_plan_waits_while_something_is_lost() -> None:
    running = Running()
    running.feed(4)
    running.run._backend.lose_nodes(running.run.placement[partition("b")])
    running.coordinator.read_reports()
    for node in list(running.run._backend.nodes):
        running.run._backend.lose_nodes(node)
    running.coordinator.read_reports()
    running.coordinator.choose_plan(alone())
    assert running.state.segments == ONE_SEGMENT
    running.run._backend.add_nodes({NodeId(f"new-{n}"): float("inf") for n in range(4)})
    running.run.run()
    running.feed(6)
    assert running.state.segments == EACH_ALONE
    assert not running.state.recovering


def test_a_restart_goes_on_with_the_plan_in_force_and_with_the_chosen_one(tmp_path: Path) -> None:
    first = Running(directory=tmp_path)
    first.feed(4)
    first.coordinator.choose_plan(alone())
    first.feed(1)
    first.coordinator.choose_plan(alone(every=7))
    again = Running(directory=tmp_path)
    again.fed = first.fed
    assert again.state.segments == EACH_ALONE
    found = [again.state.plan.now, again.state.plan.next]
    assert 2 in [one.number for one in found if one is not None]
    again.feed(8)
    assert again.state.plan.now.number == 2
    assert {one.batches for one in again.coordinator.pace.segment_intervals} == {7}


def test_a_restart_that_asks_for_another_plan_gets_it(tmp_path: Path) -> None:
    first = Running(directory=tmp_path)
    first.feed(4)
    first.coordinator.choose_plan(alone())
    first.feed(2)
    again = Running(ExecutedPlan(origin="another"), directory=tmp_path)
    assert again.state.segments == ONE_SEGMENT
    assert again.state.plan.next is None


def test_plans_are_read_as_they_were_written() -> None:
    plan = ExecutedPlan(
        EACH_ALONE,
        frozenset({partition("b")}),
        (SegmentInterval(SegmentId("a"), 5), SegmentInterval(SegmentId("b"), 2**31 - 1, 2.5)),
        3,
        "asked",
        {"why": "drift"},
    )
    assert ExecutedPlan.read(plan.written()) == plan
    assert ExecutedPlan.read(plan.written()).about == {"why": "drift"}


# -- measured, and made again ------------------------------------------------------------------------------------------


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def growing() -> Application:
    """One operator that keeps every row for 100 batches or so: its state follows the rate."""

    def keep(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        kept = pa.concat_tables([state, inputs[0]])
        return kept.slice(max(0, kept.num_rows - 20 * max(1, inputs[0].num_rows))), inputs[0]

    app = Application("growing")
    stream = app.source("a", schema=SCHEMA, parallelism=1)
    stream.apply(keep, schema=SCHEMA, state=SCHEMA, id="b", parallelism=1).output()
    return app


def at_once(search: Any) -> Future[Planned]:
    found: Future[Planned] = Future()
    found.set_result(search())
    return found


def one_segment(model: JointModel) -> Planned:
    return plan_jointly(model, clock=lambda: 0.0, one_segment=True)


@pytest.fixture(name="drifting")
def _drifting() -> Any:
    """A run whose rates and state triple half-way: one batch a second, a checkpoint every ten seconds at first."""
    clock, seen = Clock(), list[Observation]()
    program = Program(growing())
    wanted = targets(overhead=0.05)
    # 600 rows of eight bytes are half a second of writing: a checkpoint every ten seconds is what the target allows.
    assumed = Assumptions().given(bandwidth=600 * 8 / 0.5)
    model = JointModel(program.topology, wanted, assumed)
    coding = model.codings[0]
    spread = coding.total / coding.data
    assumed = assumed.given(bandwidth=600 * 8 * spread / 0.5)
    how = Replanning(wanted, assumed, coding, 10.0, one_segment, executed_plan, at_once)
    run = InProcess(
        growing(),
        nodes=2,
        plan=ExecutedPlan(intervals=(SegmentInterval(ALL_PARTITIONS, 2**31 - 1, 10.0),)),
        replanning=how,
        clock=clock,
        emit=seen.append,
    )

    def feed(rows: int, seconds: int) -> None:
        for _ in range(seconds):
            run.feed({"a": pa.table({"n": list(range(rows))})})
            clock.now += 1.0

    return run, clock, seen, feed


def test_a_plan_follows_when_rates_and_state_triple(drifting: Any) -> None:
    run, clock, seen, feed = drifting
    feed(30, 60)
    before = run._coordinator.state.plan.now
    (interval,) = [one.seconds for one in before.intervals]
    seen.clear()
    epoch, tripled = run.epoch, clock.now
    feed(90, 120)
    changed = [one for one in seen if one.kind == "plan-changed"]
    assert changed
    (after,) = [one["seconds"] for one in changed[-1].fields["intervals"]]
    assert after == pytest.approx(3 * interval, rel=0.25)
    # Within two checkpoint intervals of the state having grown: the first alarm and the change are that near.
    alarms = [one.kind for one in seen if one.kind in ("promise-alarm", "promise-holds")]
    assert alarms[0] == "promise-alarm"
    assert alarms[-1] == "promise-holds"
    assert len(changed) <= 2
    # Nothing stopped: no epoch, no rollback, every batch was processed as it came.
    assert run.epoch == epoch
    assert not [one for one in seen if one.kind in ("rolled-back", "epoch")]
    assert run._coordinator.state.frontier == run.frontier
    assert tripled < clock.now


def test_the_change_comes_within_two_intervals(drifting: Any) -> None:
    run, _clock, _seen, feed = drifting
    feed(30, 60)
    number = run._coordinator.state.plan.now.number
    (interval,) = [one.seconds for one in run._coordinator.state.plan.now.intervals]
    waited = 0
    while run._coordinator.state.plan.now.number == number and waited < 100:
        feed(90, 1)
        waited += 1
    assert waited <= 2 * interval + 1


def test_measurements_that_swing_let_a_plan_change_once_forth_and_once_back(drifting: Any) -> None:
    _run, _clock, seen, feed = drifting
    feed(30, 60)
    seen.clear()
    for _ in range(6):
        feed(90, 30)
        feed(30, 30)
    assert len([one for one in seen if one.kind == "plan-changed"]) <= 4


def test_predicted_and_measured_overhead_stand_side_by_side(drifting: Any) -> None:
    _run, _clock, seen, feed = drifting
    feed(30, 80)
    looks = [one.fields for one in seen if one.kind == "plan-measured"]
    assert looks
    last = looks[-1]
    assert last["overhead"]["target"] == 0.05
    assert last["snapshots"] > 0
    assert last["stored_bytes_per_second"] > 0
    # Snapshots of changes hold less than the model charges; a whole one is the most there is.
    assert 0 < last["overhead"]["measured"] <= 1.2 * last["overhead"]["predicted"]


def test_a_steady_stream_keeps_its_plan(drifting: Any) -> None:
    _run, _clock, seen, feed = drifting
    feed(30, 60)
    seen.clear()
    feed(30, 200)
    assert not [one for one in seen if one.kind in ("plan-changed", "promise-alarm")]


def test_snapshots_in_a_long_recovery_take_no_memory(drifting: Any) -> None:
    """Partitions may wait for nodes for days, and no look comes meanwhile."""
    run, clock, _seen, _feed = drifting
    keeping = run._coordinator.measuring._keeping
    stored = SnapshotStored(partition("b"), None, 1 << 20, cpu_seconds=0.5)  # type: ignore[arg-type]
    keeping.saved(clock(), stored)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(20_000):
        keeping.saved(clock(), stored)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 10_000


def test_a_plan_is_measured_over_its_own_interval_and_not_that_of_the_start() -> None:
    """From 2 s to 30 s: five seconds in which more rows come say little about a plan with a checkpoint every 30 s."""
    program = Program(growing())
    how = Replanning(targets(), Assumptions(), Coding(1, 0), 2.0, one_segment, executed_plan, at_once)
    before, after = (ExecutedPlan(intervals=(SegmentInterval(ALL_PARTITIONS, 2**31 - 1, s),)) for s in (2.0, 30.0))
    keeping = PlanKeeping(program.topology, [partition("a"), partition("b")], how, 0.0)

    def feed(first: int, last: int, rows: int) -> None:
        for second in range(first, last):
            for name in ("a", "b"):
                measures = Measures(rows_in=rows, rows_out=rows, bytes_in=8 * rows, seconds=1e-3 * rows)
                keeping.reported(float(second), partition(name), measures, 1, steady=True)

    def predicted(now: float, plan: ExecutedPlan) -> float:
        state: Any = SimpleNamespace(
            plan=SimpleNamespace(now=plan, next=None),
            recovering=False,
            placement={},
            nodes={},
            copies=SimpleNamespace(replicas=()),
        )
        (found,) = [fields for kind, fields, _ in keeping.look(now, now, state) if kind == "plan-measured"]
        return float(found["recovery"]["predicted"])

    feed(0, 20, 30)
    keeping.changed(20.0, before, after)
    feed(20, 50, 30)
    level = predicted(50.0, after) - 3.0
    feed(50, 75, 30)
    feed(75, 80, 300)
    assert predicted(80.0, after) - 3.0 < 4 * level, "the mean of 30 s is two and a half times as much, that of 5 s ten"


def test_a_plan_that_no_run_may_execute_is_not_taken(drifting: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One oracle: what a search gives is checked before it runs."""
    run, _clock, seen, feed = drifting
    keeping = run._coordinator.measuring._keeping

    def careless(model: JointModel) -> Planned:
        found = one_segment(model)
        return replace(found, plan=replace(found.plan, interval=found.plan.interval * np.array([1.0, 2.0])))

    monkeypatch.setattr(keeping, "_how", replace(keeping._how, plan=careless))
    feed(30, 60)
    feed(90, 120)
    problems = [one.fields["problem"] for one in seen if one.kind == "plan-not-found"]
    assert problems
    assert "a and b are in one segment and checkpoint at different intervals" in problems[0]
    assert not [one for one in seen if one.kind == "plan-changed"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("search", "ZeroDivisionError: division by zero"),
        ("submit", "RuntimeError: can't start new thread"),
    ],
)
def test_a_search_that_raises_ends_no_run(drifting: Any, how: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _clock, seen, feed = drifting
    keeping = run._coordinator.measuring._keeping

    def broken(search: Any) -> Future[Planned]:
        if how == "submit":
            raise RuntimeError("can't start new thread")
        found: Future[Planned] = Future()
        found.set_exception(ZeroDivisionError("division by zero"))
        return found

    monkeypatch.setattr(keeping, "_how", replace(keeping._how, submit=broken))
    feed(30, 60)
    feed(90, 120)
    failed = [one for one in seen if one.kind == "plan-not-found"]
    assert failed
    assert failed[0].fields["problem"] == words
    assert run.frontier == 179
    assert not [one for one in seen if one.kind == "plan-changed"]
