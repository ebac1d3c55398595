"""PySpark's own listeners and event classes, called by a run."""

from __future__ import annotations

import threading
import uuid
from typing import Any

import pytest
from pyspark.sql.streaming.listener import StreamingQueryListener

from holdfast.errors import BadInput
from holdfast.spark.listeners import MOST_WAITING, Listeners

REPORT = {
    "id": "web-12ab",
    "runId": "5f0c9f0a4d3c4e0e8d0f3b7a1c2d4e5f",
    "name": "web",
    "timestamp": "2026-01-01T00:00:00.000Z",
    "batchId": 7,
    "numInputRows": 300,
    "inputRowsPerSecond": 150.0,
    "processedRowsPerSecond": 150.0,
    "durationMs": {"triggerExecution": 2000},
    "sources": [{"description": "visits", "endOffset": 7, "numInputRows": 300}],
    "sinks": [{"description": "pages", "numOutputRows": 20}, {"description": "users", "numOutputRows": 5}],
    "loggedBatchId": 8,
    "checkpointBatchId": 5,
    "claim": 1,
    "epoch": 2,
    "partitions": {"running": 4},
}


class Seen(StreamingQueryListener):
    def __init__(self) -> None:
        self.events: list[Any] = []
        self.over = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        self.go.wait(30)
        self.events.append(event)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        self.events.append(event)

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        self.events.append(event)
        self.over.set()


class Failing(Seen):
    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        raise RuntimeError("the table is full")


def test_a_listener_gets_start_progress_and_end() -> None:
    lines: list[str] = []
    listeners = Listeners("web-12ab", REPORT["runId"], "web", lines.append)  # type: ignore[arg-type]
    seen = Seen()
    listeners.progress(REPORT)  # nobody listens
    listeners.add(seen, "2026-01-01T00:00:00.000Z")
    listeners.add(seen, "2026-01-01T00:00:00.000Z")
    listeners.progress(REPORT)
    listeners.terminated(BadInput("no more"))
    assert seen.over.wait(30)
    started, advanced, ended = seen.events
    assert (started.name, started.id) == ("web", advanced.progress.id)
    assert advanced.progress.batchId == 7
    assert advanced.progress.runId == uuid.UUID("5f0c9f0a4d3c4e0e8d0f3b7a1c2d4e5f")
    assert advanced.progress.sink.numOutputRows == 25
    assert advanced.progress.sources[0].inputRowsPerSecond == 150.0
    assert '"checkpointBatchId": 5' in advanced.progress.json
    assert ended.exception == "no more"
    late = Seen()
    listeners.add(late, "2026-01-01T00:00:01.000Z")
    assert late.over.wait(30), "the run is over"
    assert lines == []


def test_a_listener_that_fails_or_hangs_holds_nothing_up() -> None:
    lines: list[str] = []
    listeners = Listeners("a", "b", "web", lines.append)
    slow, failing = Seen(), Failing()
    slow.go.clear()
    listeners.add(slow, "t")
    listeners.add(failing, "t")
    for _ in range(MOST_WAITING + 10):
        listeners.progress(REPORT)
    assert lines == ["a StreamingQueryListener is too slow: events for it are dropped"]
    listeners.remove(slow)
    slow.go.set()
    until = threading.Event()
    for _ in range(600):
        if any("the table is full" in line for line in lines):
            break
        until.wait(0.05)
    assert sum("the table is full" in line for line in lines) == 1


def test_what_is_no_listener_is_refused() -> None:
    with pytest.raises(BadInput, match="is no StreamingQueryListener"):
        Listeners("a", "b", "web", lambda line: None).add(object(), "t")  # type: ignore[arg-type]
