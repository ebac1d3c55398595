"""How long a run goes on that gets nowhere."""

from __future__ import annotations

from holdfast.ids import BatchId
from holdfast.runtime.coordinator.pacing import (
    LONGEST_PAUSE,
    REPORT_SECONDS,
    CheckpointSchedule,
    CycleSettings,
    Mark,
    StallDetector,
)


def test_a_run_that_should_move_and_does_not_gives_up_after_some_tries() -> None:
    patience = StallDetector(CycleSettings(most_tries=3, wait_seconds=1000.0))
    for _ in range(3):
        patience.stood(could=True)
        assert not patience.gets_nowhere(1.0, restoring=False)
    patience.stood(could=True)
    assert patience.gets_nowhere(1.0, restoring=False)
    patience.moved()
    patience.stood(could=True)
    assert not patience.gets_nowhere(1.0, restoring=False), "it begins anew"


def test_what_is_on_its_way_has_its_time() -> None:
    patience = StallDetector(CycleSettings(most_tries=3, wait_seconds=10.0))
    for _ in range(9):
        patience.stood(could=False)
        assert not patience.gets_nowhere(1.0, restoring=True)
    assert not patience.gets_nowhere(100.0, restoring=False), "a save may wait for peers as long as it must"
    assert patience.gets_nowhere(1.0, restoring=True)


def test_pauses_grow_and_end() -> None:
    patience = StallDetector(CycleSettings())
    pauses = [patience.stood(could=False) for _ in range(20)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.05
    assert pauses[-1] == LONGEST_PAUSE


def test_waiting_is_told_now_and_then_and_ends() -> None:
    patience = StallDetector(CycleSettings(wait_seconds=40.0))
    told = [second for second in range(1, 41) if patience.idled(1.0)]
    assert told == [REPORT_SECONDS + 1, 2 * (REPORT_SECONDS + 1)]
    assert not patience.waits_in_vain
    patience.idled(1.0)
    assert patience.waits_in_vain
    patience.stood(could=False)
    assert not patience.waits_in_vain, "a cycle was run"


def test_a_driver_that_was_frozen_has_not_waited() -> None:
    patience = StallDetector(CycleSettings(wait_seconds=40.0))
    patience.idled(3600.0)
    assert not patience.waits_in_vain
    patience.stood(could=False)
    assert not patience.gets_nowhere(3600.0, restoring=True)


def test_a_batch_is_marked_after_batches_or_seconds() -> None:
    schedule = CheckpointSchedule(CycleSettings(checkpoint_batches=10, checkpoint_seconds=5.0), 0.0)
    none = BatchId(-1)
    assert schedule.next_mark(BatchId(8), none, 4.9) is None
    assert schedule.next_mark(BatchId(9), none, 1.0) == Mark(BatchId(9), durable=True), "the tenth"
    assert schedule.next_mark(BatchId(2), none, 5.0) == Mark(BatchId(2), durable=True), "after five seconds"
    assert schedule.next_mark(BatchId(2), none, 5.0) is not None, "what is decided and not logged changes nothing"
    schedule.marked(Mark(BatchId(9), durable=True), 3.0)
    assert schedule.next_mark(BatchId(18), BatchId(9), 7.9) is None
    assert schedule.next_mark(BatchId(18), BatchId(9), 8.0) is not None, "time counts from the last mark"


def test_every_so_many_marks_are_durable_whoever_has_logged_them() -> None:
    schedule = CheckpointSchedule(CycleSettings(checkpoint_batches=1, durable_every=3), 0.0)
    found = []
    for number in range(7):
        mark = schedule.next_mark(BatchId(number), BatchId(number - 1), 0.0)
        assert mark is not None
        schedule.marked(mark, 0.0)
        found.append(mark.durable)
    assert found == [True, False, False, True, False, False, True]
    later = CheckpointSchedule(CycleSettings(checkpoint_batches=1, durable_every=3), 0.0)
    later.marked(Mark(BatchId(4), durable=False), 0.0)
    assert later.next_mark(BatchId(7), BatchId(4), 0.0) == Mark(BatchId(7), durable=True), "no durable one is known"
    later.marked(Mark(BatchId(5), durable=True), 0.0)
    assert later.next_mark(BatchId(7), BatchId(5), 0.0) == Mark(BatchId(7), durable=False), "the log has it"
