"""Progress of a run for PySpark's `StreamingQueryListener`: the same classes, called by Holdfast. Runs on the driver.

Spark's own bus (`spark.streams.addListener`) carries events of Structured Streaming's queries only, and has no public
way to post others: a run is not among them. `run.addListener` takes the same listener and calls it with the same
events, in a thread of its own, so that a slow listener holds nothing up. What a listener raises is logged.
"""

from __future__ import annotations

import queue
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadInput, one_line

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener

MOST_WAITING = 1000
"""Events that wait for a slow listener; further ones are dropped, and the log says so once."""
_METHODS = ("onQueryStarted", "onQueryProgress", "onQueryTerminated")
_NAMES = uuid.UUID("8a3c5a6e-6c0b-5d53-9f60-5f5d3c1f4b0a")


def event_id(name: str) -> str:
    """Return the UUID that events have for a run's or a start's id: the id itself where it is one, else made of it."""
    try:
        return str(uuid.UUID(name))
    except ValueError:
        return str(uuid.uuid5(_NAMES, name))


def progress_document(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return a progress report with all the fields that Spark's `StreamingQueryProgress` has.

    A run has several sinks: `sink` names them all, with their rows together; `sinks` has them one by one.
    """
    duration = int(report["durationMs"]["triggerExecution"])
    return {
        **report,
        "id": event_id(report["id"]),
        "runId": event_id(report["runId"]),
        "batchDuration": duration,
        "stateOperators": [],
        "sources": [
            {
                "startOffset": "",
                "latestOffset": str(report["loggedBatchId"]),
                "inputRowsPerSecond": 1000 * one["numInputRows"] / max(1, duration),
                "processedRowsPerSecond": 1000 * one["numInputRows"] / max(1, duration),
                **one,
                "endOffset": str(one["endOffset"]),
            }
            for one in report["sources"]
        ],
        "sink": {
            "description": ", ".join(str(one["description"]) for one in report["sinks"]),
            "numOutputRows": sum(one["numOutputRows"] for one in report["sinks"]),
        },
    }


class Listeners:
    """The listeners of one run."""

    def __init__(self, run: str, start: str, name: str, log: Callable[[str], object]) -> None:
        self._about = {"id": event_id(run), "runId": event_id(start), "name": name}
        self._log = log
        self._lock = threading.Lock()
        self._listeners: list[StreamingQueryListener] = []
        self._waiting: queue.Queue[tuple[list[StreamingQueryListener], str, Any] | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._dropped = self._failed = False
        self._over: dict[str, Any] | None = None

    def add(self, listener: StreamingQueryListener, timestamp: str) -> None:
        """Call a listener from now on; it gets the start of the run first, and where the run is over its end."""
        from pyspark.sql.streaming.listener import QueryStartedEvent, QueryTerminatedEvent

        if not all(callable(getattr(listener, name, None)) for name in _METHODS):
            raise BadInput(
                f"{type(listener).__name__} is no StreamingQueryListener",
                where="addListener",
                remedy="derive it from pyspark.sql.streaming.StreamingQueryListener",
            )
        with self._lock:
            if listener in self._listeners:
                return
            if self._thread is None:
                self._thread = threading.Thread(target=self._call, name="holdfast-listeners", daemon=True)
                self._thread.start()
            self._listeners.append(listener)
            started = QueryStartedEvent.fromJson({**self._about, "timestamp": timestamp})
            self._put([listener], "onQueryStarted", started)
            if self._over is not None:
                self._put([listener], "onQueryTerminated", QueryTerminatedEvent.fromJson(self._over))

    def remove(self, listener: StreamingQueryListener) -> None:
        """Call a listener no more."""
        with self._lock:
            self._listeners = [one for one in self._listeners if one is not listener]

    def progress(self, report: Mapping[str, Any]) -> None:
        """Pass on a progress report."""
        with self._lock:
            if not self._listeners:
                return
            from pyspark.sql.streaming.listener import QueryProgressEvent

            event = QueryProgressEvent.fromJson({"progress": progress_document(report)})
            self._put(list(self._listeners), "onQueryProgress", event)

    def terminated(self, problem: BaseException | None) -> None:
        """Pass on that the run is over."""
        with self._lock:
            words = None if problem is None else one_line(str(problem))
            self._over = {**self._about, "exception": words, "errorClassOnException": None}
            if self._thread is None:
                return
            from pyspark.sql.streaming.listener import QueryTerminatedEvent

            self._put(list(self._listeners), "onQueryTerminated", QueryTerminatedEvent.fromJson(self._over))

    def _put(self, listeners: list[StreamingQueryListener], method: str, event: Any) -> None:
        try:
            self._waiting.put_nowait((listeners, method, event))
        except queue.Full:
            if not self._dropped:
                self._dropped = True
                self._log("a StreamingQueryListener is too slow: events for it are dropped")

    def _call(self) -> None:
        while (found := self._waiting.get()) is not None:
            listeners, method, event = found
            for one in listeners:
                try:
                    getattr(one, method)(event)
                except Exception as error:  # a listener's fault is not one of the run
                    if not self._failed:
                        self._failed = True
                        name = type(one).__name__
                        self._log(f"{name}.{method} failed: {one_line(str(error), 200)}; further ones are not logged")
