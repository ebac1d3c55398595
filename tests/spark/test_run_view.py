"""Progress reports of a run whose partitions go back. No Spark: the run is one that a test moves."""

from types import SimpleNamespace
from typing import Any

from holdfast.ids import BatchId, Epoch
from holdfast.recovery.branches import TentativeQuery
from holdfast.recovery.copies import Copies
from holdfast.runtime.fetches import Fetched
from holdfast.spark.run_view import QueryStatus, RunView, with_tentative


def moved_run() -> Any:
    """Return what a progress report reads of a run; each batch has three rows."""
    cluster = SimpleNamespace(
        checkpoints=SimpleNamespace(global_batch=-1), epoch=Epoch.of(1, 1), partitions={}, copies=Copies()
    )
    return SimpleNamespace(
        live_frontier=BatchId(-1),
        logged=BatchId(9),
        ingested_rows=lambda batch: {"words": 3},
        id="id",
        start_id="start",
        program=SimpleNamespace(name="words", sources=["words"], output_names={"counts": "minutes"}),
        coordinator=SimpleNamespace(
            state=cluster,
            false_alarms=0,
            reads=SimpleNamespace(rows_read={"words": 0}),
            measuring=SimpleNamespace(profiler=SimpleNamespace(fetched_total=Fetched())),
        ),
    )


def test_a_query_says_whether_its_outputs_are_tentative_since_when_and_how_good_they_are() -> None:
    status = QueryStatus("pages[0]", "pages", 1, "down", 3, 9)
    since = TentativeQuery(BatchId(4), 0.75, BatchId(8))
    assert with_tentative(status, None) == status
    found = with_tentative(status, since)
    assert (found.tentative, found.fidelity, found.tentative_from) == (True, 0.75, 4)
    since.active = False
    awaited = with_tentative(status, since)
    assert (awaited.tentative, awaited.tentative_from) == (False, 4), "final rows have not replaced them yet"


def test_rows_are_in_one_report_though_a_restored_partition_joins_behind() -> None:
    running = moved_run()
    view, reports = RunView(running), []
    for reached in (1, -1, 0, 1, 2, 2):
        running.live_frontier = BatchId(reached)
        reports.append(view.advanced())
    found = [report and (report["batchId"], report["numInputRows"]) for report in reports]
    assert found == [(1, 6), None, None, None, (2, 3), None]


def test_rows_of_files_are_in_the_report_after_they_were_read() -> None:
    running = moved_run()
    running.ingested_rows = lambda batch: {"words": 0}
    view = RunView(running)
    found = []
    for reached, read in ((1, 0), (1, 5), (1, 5), (2, 9)):
        running.live_frontier, running.coordinator.reads.rows_read = BatchId(reached), {"words": read}
        report = view.advanced()
        found.append(report and (report["batchId"], report["numInputRows"]))
    assert found == [(1, 0), (1, 5), None, (2, 4)]
