"""Marks of segments: at their own intervals, durable ones together, one open mark each; read back by any driver."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId, SegmentId
from holdfast.recovery.checkpoints import Checkpoints, SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.executed_plan import SegmentInterval
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.segments import ALL_PARTITIONS, ONE_SEGMENT, Segments, segments_of
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime.coordinator.marking import BatchMarks, SegmentSchedule, by_segment, spread
from holdfast.runtime.coordinator.pacing import CycleSettings, Mark
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.logged_marks import LoggedMark, mark_fields, marks_of
from holdfast.runtime.program import Program
from holdfast.storage.memory import MemoryStorage
from runtime.test_coordinator import EXAMPLE

PROGRAM = Program(EXAMPLE.application())
TOPOLOGY = PROGRAM.topology
SEGMENTS = segments_of(TOPOLOGY, ["jams"])
FAST, SLOW = SegmentId("locations"), SegmentId("jams")


def pace(**intervals: int) -> CycleSettings:
    found = tuple(SegmentInterval(SegmentId(name), batches) for name, batches in intervals.items())
    return CycleSettings(checkpoint_batches=100, durable_every=2, segment_intervals=found)


class Keeping:
    """A log, and who decides its marks, for segments."""

    def __init__(self, storage: MemoryStorage, segments: Segments = SEGMENTS, claim: int = 1) -> None:
        self.log = BatchLog(PROGRAM.sources, PROGRAM.name, storage, claim=claim)
        graph = PartitionGraph(TOPOLOGY, {})
        self.state = ClusterState(graph, RecoverySettings(segments=segments), checkpoints=Checkpoints(graph.order))
        schedule = SegmentSchedule(pace(locations=2, incidents=3, jams=5), segments, 0.0)
        self.marks = BatchMarks(self.log, self.state, schedule, lambda: 0.0)

    def step(self) -> None:
        """Log a batch; whoever has a mark in it is at it at once."""
        self.log.append({})
        for mark in self.marks.take():
            self.state.checkpoints.mark(mark.batch, durable=mark.durable, segments=mark.segments)
            moved = {p: mark.batch for p in self.state.graph.order if self.state.checkpoints.concerns(p, mark.batch)}
            for p in moved:
                self.state.checkpoints.stored(p, SavedSnapshot(mark.batch, Epoch(1), durable=mark.durable))
            self.state.checkpoints.move(moved, {})

    def marked(self) -> dict[int, dict[str, bool]]:
        records = [self.log.record(BatchId(number)) for number in range(self.log.frontier + 1)]
        return {
            one.batch: {str(name): mark.durable for name, mark in one.marks.items()}
            for one in records
            if one is not None and one.marks
        }


def partition(name: str) -> PartitionId:
    return next(p for p in PROGRAM.partitions if p.operator == name)


def test_each_segment_has_its_interval_and_durable_marks_are_of_all() -> None:
    run = Keeping(MemoryStorage())
    assert sorted(SEGMENTS.names) == ["incidents", "jams", "locations"]
    for _ in range(16):
        run.step()
    found = run.marked()
    together = {batch: one for batch, one in found.items() if str(ALL_PARTITIONS) in one}
    assert all(one == {str(ALL_PARTITIONS): True} for one in together.values())
    assert sorted(together) == [4, 14], "every second one of the slowest segment, which has them all five batches"
    assert [batch for batch, one in found.items() if "jams" in one] == [9]
    assert [batch for batch, one in found.items() if "locations" in one or batch in together][:4] == [1, 3, 4, 6]


def test_a_segment_with_an_open_mark_gets_no_other_and_does_not_hold_others_up() -> None:
    run = Keeping(MemoryStorage())
    run.log.append({})
    run.log.append({})
    (mark,) = run.marks.take()
    assert mark == Mark(BatchId(1), durable=False, segments=frozenset({FAST}))
    run.state.checkpoints.mark(mark.batch, durable=False, segments=mark.segments)
    for _ in range(3):
        run.log.append({})
    found = run.marked()
    assert "locations" not in found.get(3, {}), "its mark at 1 is open"
    assert found[2] == {"incidents": False}
    assert found[4] == {"*": True}, "the slowest decides about durable ones, whatever else is open"


def test_another_driver_reads_the_same_marks_and_ignores_segments_that_it_does_not_have() -> None:
    storage = MemoryStorage()
    run = Keeping(storage)
    for _ in range(5):
        run.step()
    again = Keeping(storage, claim=2)
    assert {mark.batch: mark.segments for mark in again.marks.take()} == {
        1: frozenset({FAST}),
        2: frozenset({SegmentId("incidents")}),
        3: frozenset({FAST}),
        4: None,
    }
    plain = Keeping(storage, ONE_SEGMENT, claim=3)
    assert plain.marks.take() == [Mark(BatchId(4), durable=True)], "what all save is a mark of the one segment, too"


def test_marks_of_a_long_stretch_are_spread_by_segment() -> None:
    fast = [Mark(BatchId(number), durable=False, segments=frozenset({FAST})) for number in range(0, 40, 2)]
    slow = [Mark(BatchId(20), durable=False, segments=frozenset({FAST, SLOW})), Mark(BatchId(39), durable=True)]
    chosen = by_segment({FAST: sorted([*fast, slow[1]], key=lambda one: one.batch), SLOW: slow}, lambda m: spread(m, 4))
    assert [(mark.batch, mark.segments) for mark in chosen] == [(20, frozenset({SLOW})), (39, None)]
    few = by_segment({FAST: fast[:2], SLOW: slow}, lambda marks: spread(marks, 4))
    assert [mark.batch for mark in few] == [0, 2, 20, 39]


def test_seconds_count_before_batches_in_who_is_slowest() -> None:
    settings = CycleSettings(
        checkpoint_batches=2**31 - 1,
        durable_every=1,
        segment_intervals=(SegmentInterval(FAST, 2**31 - 1, 4.0), SegmentInterval(SLOW, 2**31 - 1, 9.0)),
    )
    schedule = SegmentSchedule(settings, Segments({p.operator: FAST if p.operator != "jams" else SLOW
                                                   for p in PROGRAM.partitions}), 0.0)  # fmt: skip
    nothing = BatchId(-1)
    at_five = schedule.next_marks(BatchId(3), 5.0, lambda name: nothing, ())
    assert at_five == {FAST: LoggedMark(durable=False)}
    assert schedule.next_marks(BatchId(6), 10.0, lambda name: nothing, ()) == {ALL_PARTITIONS: LoggedMark(durable=True)}
    assert partition("jams").operator == SLOW


def test_an_interval_is_cut_into_steps_at_which_some_operators_save() -> None:
    multiples = {OperatorId("locations"): 4, OperatorId("speeds"): 2}
    segments = replace(segments_of(TOPOLOGY, []), multiples=multiples)
    settings = CycleSettings(checkpoint_batches=8, checkpoint_seconds=math.inf, durable_every=2)
    schedule = SegmentSchedule(settings, segments, 0.0)
    found: dict[int, tuple[bool, int, list[str]]] = {}
    last = BatchId(-1)
    for number in range(24):
        marks = schedule.next_marks(BatchId(number), 0.0, lambda name, at=last: at, ())
        again = marks_of({"marks": mark_fields(marks)})
        assert again == marks, "a record keeps the step"
        mark = schedule.marked(BatchId(number), again, 0.0)
        for logged in marks.values():
            found[number] = logged.durable, logged.step, [] if mark is None else sorted(mark.between)
            last = last if logged.step else BatchId(number)
    steps = {1: (1, ["locations"]), 3: (2, ["locations", "speeds"]), 5: (3, ["locations"])}
    assert found == {start + number: (False, *one) for start in (0, 8, 16) for number, one in steps.items()} | {
        7: (True, 0, []),
        15: (False, 0, []),
        23: (True, 0, []),
    }


def test_steps_by_time_and_a_mark_of_all_that_begins_the_interval_anew() -> None:
    segments = replace(segments_of(TOPOLOGY, []), multiples={OperatorId("locations"): 2})
    schedule = SegmentSchedule(CycleSettings(checkpoint_batches=1000, checkpoint_seconds=10.0), segments, 0.0)

    def due(number: int, now: float) -> int | None:
        marks = schedule.next_marks(BatchId(number), now, lambda name: BatchId(-1), ())
        schedule.marked(BatchId(number), marks, now)
        return next((mark.step for mark in marks.values()), None)

    assert [due(number, now) for number, now in enumerate((4.0, 5.0, 9.0, 10.0))] == [None, 1, None, 0]
    assert due(4, 15.0) == 1
    schedule.marked(BatchId(5), {ALL_PARTITIONS: LoggedMark(durable=True)}, 16.0)
    assert [due(number, now) for number, now in ((6, 20.0), (7, 21.0), (8, 26.0))] == [None, 1, 0]


def marks_after(intervals: dict[str, tuple[float, int]], batches: int) -> dict[str, list[int]]:
    """Return the batches, one a second, at which a sender's segment and one after a held edge are marked."""
    segments = Segments({OperatorId("a"): SegmentId("a"), OperatorId("c"): SegmentId("c")})
    given = tuple(SegmentInterval(SegmentId(name), many, seconds) for name, (seconds, many) in intervals.items())
    schedule = SegmentSchedule(CycleSettings(segment_intervals=given, durable_every=1000), segments, 0.0)
    found: dict[str, list[int]] = {"a": [], "c": []}
    last = {SegmentId("a"): BatchId(0), SegmentId("c"): BatchId(0)}
    schedule.marked(BatchId(0), {ALL_PARTITIONS: LoggedMark(durable=True)}, 0.0)
    for number in range(1, batches):
        batch, now = BatchId(number), float(number)
        marks = schedule.next_marks(batch, now, last.__getitem__, (), {SegmentId("c"): [SegmentId("a")]})
        schedule.marked(batch, marks, now)
        for name in marks:
            found[str(name)].append(number)
            last[name] = batch
    return found


def test_a_segment_after_a_held_edge_is_marked_where_blocks_cross() -> None:
    never = 2**31 - 1
    often = marks_after({"a": (10.0, never), "c": (3.0, never)}, 41)
    assert often == {"a": [10, 20, 30, 40], "c": [10, 20, 30, 40]}, "in between it stands where the last came from"
    seldom = marks_after({"a": (10.0, never), "c": (25.0, never)}, 61)
    assert seldom["c"] == [20, 40, 60], "not at 30: that is later than it is to be"
    in_batches = marks_after({"a": (math.inf, 10), "c": (math.inf, 25)}, 61)
    assert in_batches == {"a": [10, 20, 30, 40, 50, 60], "c": [20, 40, 60]}
