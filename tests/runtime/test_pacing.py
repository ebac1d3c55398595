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


def test_a_checkpoint_is_due_after_batches_or_seconds_and_some_are_durable() -> None:
    settings = CycleSettings(checkpoint_batches=10, checkpoint_seconds=5.0, most_batches=4, durable_every=2)
    schedule = CheckpointSchedule(settings, 0.0)
    none, last = BatchId(-1), BatchId(9)
    assert schedule.next_mark(none, BatchId(4), 1.0) is None, "the next cycle reaches batch 8, and 9 is due"
    assert schedule.next_mark(none, BatchId(5), 1.0) == Mark(BatchId(9), durable=True)
    assert schedule.next_mark(last, BatchId(11), 5.9) is None
    assert schedule.next_mark(last, BatchId(9), 6.0) is None, "no batch has come since"
    assert schedule.next_mark(last, BatchId(11), 6.0) == Mark(BatchId(12), durable=False), "which none has reached yet"
    assert schedule.next_mark(BatchId(12), BatchId(30), 7.0) == Mark(BatchId(31), durable=True)
