"""Runs in one process whose segments hold: what is not deterministic, and the segment after it, recover alone."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.ids import NodeId, OperatorId, PartitionId, SegmentId
from holdfast.recovery.executed_plan import ExecutedPlan, SegmentInterval
from holdfast.recovery.segments import segments_of
from holdfast.runtime import InProcess
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.message_codec import decode_desired, encode_desired
from holdfast.runtime.program import Program

SCHEMA = {"n": "int64"}
_numbers = itertools.count(1)


def stamped() -> Application:
    """A source, an operator that gives other rows whenever it runs, and two after it that add up what they see."""

    def stamp(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        return state, pa.table({"n": pa.array([next(_numbers)], pa.int64())})

    def running_sum(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        total, found = sum(state["n"].to_pylist()), []
        for n in inputs[0]["n"].to_pylist():
            total += n
            found.append(total)
        return pa.table({"n": pa.array([total], pa.int64())}), pa.table({"n": pa.array(found, pa.int64())})

    app = Application("stamped")
    stream = app.source("a", schema=SCHEMA, parallelism=1)
    stream = stream.apply(stamp, schema=SCHEMA, state=SCHEMA, deterministic=False, id="s", parallelism=1).output()
    for name in "cd":
        stream = stream.apply(running_sum, schema=SCHEMA, state=SCHEMA, id=name, parallelism=1)
    stream.output()
    return app


class Streaming:
    """The application, one node for each operator; batches come one after the other, and nothing is drained."""

    def __init__(self, *, holds: bool = True, every: int = 4, after: int = 4) -> None:
        self.seen: list[Observation] = []
        segments = replace(segments_of(Program(stamped()).topology, "c"), holds=holds)
        intervals = SegmentInterval(SegmentId("a"), every), SegmentInterval(SegmentId("c"), after)
        self.now = 0.0
        self.run = InProcess(
            stamped(),
            nodes=4,
            checkpoint_every=every,
            plan=ExecutedPlan(segments, intervals=intervals),
            clock=lambda: self.now,
            emit=self.seen.append,
        )
        self.coordinator = self.run._coordinator
        self.state = self.coordinator.state

    def feed(self, count: int) -> None:
        for number in range(count):
            self.run.batch_log.append({"a": pa.table({"n": [number]})})
            self.work()

    def work(self) -> None:
        while self.coordinator.advance():
            pass

    def stands(self) -> list[int]:
        return [int(self.state.partitions[partition(one)].frontier) for one in "ascd"]

    def kill_node_of(self, letter: str) -> set[str]:
        """Lose the node of an operator; return who rolled back."""
        self.seen.clear()
        self.run._backend.lose_nodes(self.run.placement[partition(letter)])
        self.run._backend.add_nodes({NodeId(f"m-{letter}-{self.run.frontier}"): float("inf")})
        self.work()
        return {name[0] for one in self.seen if one.kind == "rolled-back" for name in one.fields["partitions"]}

    def agree(self) -> None:
        """What came out after the boundary is made of what came out before it."""
        self.run.checkpoint()
        stamps, sums = self.run.rows("s")["n"].to_pylist(), self.run.rows("d")["n"].to_pylist()
        twice = list(itertools.accumulate(itertools.accumulate(stamps)))
        assert sums == twice
        assert len(stamps) == self.run.frontier + 1


def partition(letter: str) -> PartitionId:
    return PartitionId(OperatorId(letter), 0)


def test_the_segment_after_the_boundary_follows_at_the_sender_s_checkpoints() -> None:
    running = Streaming()
    running.feed(3)
    assert running.stands() == [2, 2, -1, -1]
    running.feed(2)
    line = running.state.checkpoints.line[partition("s")]
    assert line >= 0
    assert running.stands() == [4, 4, line, line]
    running.agree()


def test_the_segment_after_the_boundary_has_nothing_to_replay_while_it_stands() -> None:
    """Marked at batches of its own it would have an interval of the sender's segment to replay."""
    running = Streaming(every=7, after=2)
    for _ in range(3):
        running.feed(7)
        line = [int(running.state.checkpoints.line[partition(one)]) for one in "ascd"]
        assert running.stands()[2:] == line[2:] == line[:2]
    running.agree()


def test_the_log_does_not_wait_for_what_waits_for_a_checkpoint() -> None:
    running = Streaming(every=50)
    running.feed(40)
    assert running.stands()[:2] == [39, 39]
    assert running.coordinator.status.live_frontier == 39
    assert {str(one.state) for one in running.state.partitions.values()} == {"running"}
    running.agree()


@pytest.mark.parametrize("lost", "ascd")
def test_either_side_recovers_alone(lost: str) -> None:
    running = Streaming()
    running.feed(11)
    assert running.stands()[2] >= 0
    side = "as" if lost in "as" else "cd"
    before = dict(zip("ascd", running.stands(), strict=True))
    assert running.kill_node_of(lost) <= set(side) - {lost}
    started = {one.fields["partition"][0] for one in running.seen if one.kind == "restored"}
    assert lost in started <= set(side)
    assert running.stands()[0] == before["a"]
    running.feed(5)
    running.agree()


def test_without_holding_the_segment_after_rolls_back_too() -> None:
    running = Streaming(holds=False)
    running.feed(11)
    assert running.kill_node_of("s") >= {"c", "d"}
    running.feed(5)
    running.agree()


def test_one_after_the_other_is_lost() -> None:
    running = Streaming()
    for number, lost in enumerate("scsdcas"):
        running.feed(3 + number)
        running.kill_node_of(lost)
    running.agree()


def test_where_no_batch_comes_any_more_the_last_ones_cross_after_a_while() -> None:
    running = Streaming()
    running.feed(7)
    stands = running.stands()
    assert stands[2] < 6
    running.work()
    assert running.stands() == stands
    running.now += 60.0
    running.work()
    assert running.stands() == [6, 6, 6, 6]


def test_a_driver_that_follows_goes_on_with_the_lines_it_finds(tmp_path: object) -> None:
    running = Streaming()
    running.feed(9)
    plan = ExecutedPlan.read(running.state.plan.now.written())
    assert plan.segments.holds
    assert plan.segments == running.state.segments


def test_the_limit_reaches_nodes() -> None:
    running = Streaming()
    running.feed(5)
    desired = running.coordinator.desired_state()
    limits = {str(p): one.limit for p, one in desired.assignments.items()}
    line = running.state.checkpoints.line[partition("s")]
    assert limits == {"a[0]": None, "s[0]": None, "c[0]": line, "d[0]": line}
    assert decode_desired(encode_desired(desired)).assignments == desired.assignments
