"""How far a start has come: phases count once, lines are shown until the first output, which is one event."""

from __future__ import annotations

import time

from holdfast.runtime.coordinator.event_log import Observation
from holdfast.spark.start_progress import PHASES, StartProgress, process_began


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def published(rows: int) -> Observation:
    return Observation(107.0, "published", {"partition": "pages[0]", "batch": 0, "rows": rows})


def test_a_start_goes_through_its_phases_and_ends_with_the_first_output() -> None:
    clock, lines, events = Clock(), list[str](), list[Observation]()
    progress = StartProgress(lines.append, began=99.0, clock=clock)
    progress.emit = events.append
    progress.reached("command")
    clock.now = 102.0
    progress.driver_is_up("the driver's JVM is up")
    progress.nodes_ready(1, 3)
    clock.now = 103.0
    progress.nodes_ready(1, 3)
    progress.nodes_ready(3, 3)
    progress.observe(Observation(103.0, "node-arrived", {"nodes": ["a", "b", "c"]}))
    progress.reading("visits")
    clock.now = 105.5
    progress.rows_came("visits", 1200)
    progress.rows_came("visits", 4)
    progress.batch_logged(0, 1200)
    progress.observe(published(0))
    assert events == [], "windows are open: nothing is out yet"
    clock.now = 107.0
    progress.observe(published(7))
    progress.observe(published(8))
    progress.line("of no interest any more")
    assert progress.phases == {
        "command": 1.0,
        "driver": 3.0,
        "first-node": 3.0,
        "nodes": 4.0,
        "rows": 6.5,
        "logged": 6.5,
        "output": 8.0,
    }
    assert set(progress.phases) <= set(PHASES)
    assert events == [Observation(107.0, "started", {"began": 99.0, "phases": progress.phases})]
    assert lines == [
        "  3.0 s  the driver's JVM is up",
        "  3.0 s  1 of 3 nodes ready",
        "  4.0 s  3 of 3 nodes ready",
        "  4.0 s  reading visits",
        "  6.5 s  first rows of visits written: 1,200",
        "  6.5 s  first batch logged: 1,200 rows in batch 0",
        "  8.0 s  first output: 7 rows of pages[0]",
    ]


def test_nodes_without_an_expected_number_are_counted() -> None:
    lines: list[str] = []
    StartProgress(lines.append, clock=Clock()).nodes_ready(1, None)
    assert lines == ["  0.0 s  1 node ready"]


def test_rows_of_a_batch_that_nobody_knows_yet_are_not_counted() -> None:
    lines: list[str] = []
    StartProgress(lines.append, clock=Clock()).batch_logged(0, 0)
    assert lines == ["  0.0 s  first batch logged: batch 0"], "its ranges are read in place"


def test_a_process_began_before_now() -> None:
    assert 0 < process_began() <= time.time()
