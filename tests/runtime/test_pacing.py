"""How long a run goes on that gets nowhere."""

from __future__ import annotations

from holdfast.runtime.coordinator.pacing import LONGEST_PAUSE, REPORT_SECONDS, CycleSettings, StallDetector


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
