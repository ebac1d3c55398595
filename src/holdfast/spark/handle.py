"""The handle of a run: the members of PySpark's StreamingQuery, and the queries, nodes and recovery of Holdfast.

Runs on the driver, in the user's threads.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path
from threading import current_thread, main_thread
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.spark.feed import Feed
from holdfast.spark.listeners import Listeners
from holdfast.spark.planned import RunPlan
from holdfast.spark.run import SparkRun
from holdfast.spark.run_loop import RunLoop
from holdfast.spark.run_view import NodeStatus, QueryStatus, RecoveryStatus, RunView
from holdfast.spark.stop_signals import StopSignals
from holdfast.wording import counted

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import StreamingQueryListener


class Run:
    """A run of an application, as `hf.start` returns it.

    Example:
        run = hf.start(app, directory="/data/web")
        run.processAllAvailable()
        print(run.lastProgress["numInputRows"], [query.lag for query in run.queries])
        run.stop()
    """

    def __init__(
        self,
        running: SparkRun,
        feed: Feed,
        view: RunView,
        loop: RunLoop,
        directory: Path | str,
        planned: RunPlan | None = None,
        page: str | None = None,
        listeners: Listeners | None = None,
    ) -> None:
        """Made by `hf.start`."""
        self._listeners = listeners or Listeners(running.id, running.start_id, running.program.name, loop.log)
        self._planned = planned
        self.page = page
        """The address of the live page, as long as the run goes on; None: there is none."""
        self._running, self._feed, self._view, self._loop = running, feed, view, loop
        self._signals = StopSignals(loop.log)
        self._signals.stop(self)
        self.directory = directory
        """The folder of the run: logs, checkpoints and events in `run/`, outputs without a sink in `out/`."""

    # -- as PySpark's StreamingQuery ---------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of the application."""
        return self._running.program.name

    @property
    def id(self) -> str:
        """Identifies the run over all its starts: it stays the same when the run is started again."""
        return self._running.id

    @property
    def runId(self) -> str:  # noqa: N802
        """Identifies this start of the run."""
        return self._running.start_id

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether the run goes on: it has neither ended nor failed."""
        return self._loop.active

    @property
    def status(self) -> dict[str, Any]:
        """What the run does now: `message`, `isDataAvailable`, `isTriggerActive`."""
        active = self._loop.active
        recovery = self._view.recovery() if active else None
        message = self._loop.phase
        if recovery is not None and message == "Processing":
            message = (
                f"Recovering: {counted(len(recovery.lost), 'partition')} lost, {len(recovery.restoring)} being restored"
            )
        if active and (parked := [query.id for query in self._view.queries() if query.state == "parked"]):
            message = f"{message}; parked: {', '.join(parked)}"
        if active and (late := self._running.coordinator.status.catching_up):
            message = f"{message}; catching up: {', '.join(map(str, late))}"
        behind = self._running.live_frontier < self._running.logged
        return {
            "message": message,
            "isDataAvailable": active and (behind or self._feed.pending),
            "isTriggerActive": active and self._loop.worked,
        }

    @property
    def lastProgress(self) -> dict[str, Any] | None:  # noqa: N802
        """The newest progress report; None before the first.

        Fields as in Spark: `id`, `runId`, `name`, `timestamp`, `batchId` (the last batch that every live partition has
        completed), `numInputRows`, `inputRowsPerSecond`, `processedRowsPerSecond`, `durationMs`, `sources`, `sinks`
        (rows of this report). Holdfast's own: `loggedBatchId`, `checkpointBatchId`, `epoch`, `partitions` (how many
        are in which state).
        """
        reports = list(self._loop.reports)
        return reports[-1] if reports else None

    @property
    def recentProgress(self) -> list[dict[str, Any]]:  # noqa: N802
        """The last hundred progress reports, oldest first."""
        return list(self._loop.reports)

    def addListener(self, listener: StreamingQueryListener) -> None:  # noqa: N802
        """Call a PySpark listener for this run: its start at once, then every progress report, and its end.

        `listener` is what `spark.streams.addListener` takes, and gets the same events; that one does not reach runs of
        Holdfast, because Spark's own bus carries Structured Streaming's queries only. It is called in a thread of its
        own. `event.progress.json` has the fields of `lastProgress` too; its `id` is a UUID made of the run's.

        Example:
            class Rows(StreamingQueryListener):
                def onQueryProgress(self, event):
                    print(event.progress.batchId, event.progress.numInputRows)
                ...
            run.addListener(Rows())
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self._listeners.add(listener, now)

    def removeListener(self, listener: StreamingQueryListener) -> None:  # noqa: N802
        """Call a listener no more."""
        self._listeners.remove(listener)

    def awaitTermination(self, timeout: float | None = None) -> bool | None:  # noqa: N802
        """Wait until the run ends, and raise what it failed with.

        With a timeout in seconds, return whether the run has ended within it. Where the main thread waits, SIGTERM and
        Ctrl-C stop the run in order, as `stop` does; a second signal ends the process at once.
        """
        with self._signals:
            ended = self._loop.wait(timeout)
        if ended and self._loop.problem is not None:
            raise self._loop.problem
        return None if timeout is None else ended

    def processAllAvailable(self) -> None:  # noqa: N802
        """Wait until everything that the sources have now is processed and in the sinks; for tests, mostly.

        Windows that later rows may still belong to stay open. Raises what the run failed with, and where queries are
        parked what parked them: all others are processed then, and the run goes on.

        Where the main thread waits, SIGTERM and Ctrl-C stop the run in order, as `stop` does, and then raise
        KeyboardInterrupt; a second signal ends the process at once.
        """
        requested = self._signals.requested
        with self._signals:
            self._loop.process_all_available()
            # A signal interrupts the main thread; others that wait return, as from a stop.
            interrupted = self._signals.requested and not requested and current_thread() is main_thread()
            if interrupted:
                self._loop.wait()
        if self._loop.problem is not None:
            raise self._loop.problem
        if interrupted:
            raise KeyboardInterrupt
        if (parked := self._running.parked_problem) is not None:
            raise parked

    def stop(self) -> None:
        """Stop reading, process what is logged, take a checkpoint, release the executors; wait until this is done.

        Queries that are down are not waited for. The next start of the same directory continues from there. A session
        that was passed to `hf.start` goes on. What failed meanwhile is in `exception()`. Where the main thread waits, a
        first SIGTERM or Ctrl-C changes nothing; a second one ends the process at once.
        """
        with self._signals:
            self._loop.request_stop()
            self._loop.wait()

    def request_stop(self) -> None:
        """Do the same as `stop`, without waiting for it: `awaitTermination` does."""
        self._loop.request_stop()

    def exception(self) -> BaseException | None:
        """Return what the run failed with; None where it goes on or has ended in order."""
        return self._loop.problem

    def explain(self, extended: bool = False) -> None:
        """Print the operators, partitionings and outputs; with `extended`, where every partition is."""
        sys.stdout.write(self._view.explained(extended=extended) + "\n")

    # -- Holdfast's own ----------------------------------------------------------------------------------------------

    @property
    def queries(self) -> list[QueryStatus]:
        """Every query: `id`, `output`, `priority`, `state`, `published` (the last batch in its sink), `lag`, `error`.

        A query whose state is `parked` waits for `resume`; `error` says what parked it.
        """
        return self._view.queries()

    def resume(self, query: str) -> None:
        """Let a parked query go on with the batch that failed, once the cause is removed; does not wait for it.

        `query` is its `id`, like `jams[0]`, or the name of an output: all its parked queries. One that fails again is
        parked again.

        Example:
            for query in run.queries:
                if query.state == "parked":
                    print(query.id, query.error)
                    run.resume(query.id)
        """
        self._running.resume(query)

    @property
    def nodes(self) -> list[NodeStatus]:
        """Every node: `name`, `host`, `partitions`, `capacity`."""
        return self._view.nodes()

    @property
    def recovery(self) -> RecoveryStatus | None:
        """What is `lost`, `restoring` and since when; None where every partition is live."""
        return self._view.recovery()

    @property
    def plan(self) -> dict[str, Any] | None:
        """The joint plan of this start; None: there is none.

        The fields of `holdfast plan auto --json`, and `predicted`: the promises of what this run executes of it.
        """
        if self._planned is None:
            return None
        return {**self._planned.document, "predicted": [dict(one) for one in self._planned.predicted]}

    def rows(self, output: str) -> pa.Table:
        """Return all rows of an output, by batch and then by partition; its sink must be Parquet or memory."""
        return self._running.rows(output)

    def count(self, output: str) -> int:
        """Return how many rows an output has; its sink must be Parquet or memory."""
        return self._running.count(output)

    def abandon(self) -> None:
        """Let the process end at once, without a drain: the next start continues from the last checkpoint."""
        self._loop.abandon()

    def __repr__(self) -> str:
        return f"<holdfast.Run {self.name} {self.id} {'active' if self.isActive else self._loop.phase}>"
