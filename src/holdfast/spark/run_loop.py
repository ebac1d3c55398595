"""The thread of a run: it logs batches, advances the coordinator, and ends with a drain and a checkpoint.

Runs on the driver.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from holdfast.errors import CheckFailed, HoldfastError, one_line
from holdfast.ids import BatchId
from holdfast.runtime.coordinator.feeding import feed_until_end
from holdfast.spark.feed import Feed, drain, finish
from holdfast.spark.run import SparkRun
from holdfast.spark.run_view import RunView
from holdfast.spark.start_progress import StartProgress

REPORTS_KEPT = 100
"""Progress reports that `recentProgress` returns at most, as in Spark."""
_EXIT_SECONDS = 10.0
"""How long the end of the program waits for a run that was not stopped."""
_LOOK_SECONDS = 0.5
_STOP_SECONDS = 120.0
"""How long a stop waits for the checkpoint where nodes are lost meanwhile."""


class RunLoop:
    """Drives a run in a thread of its own until the input ends, a stop is requested or something fails."""

    def __init__(
        self,
        running: SparkRun,
        feed: Feed,
        view: RunView,
        held: ExitStack,
        *,
        close: bool = False,
        log: Callable[[str], object] = lambda line: None,
        advanced: Callable[[dict[str, Any]], object] = lambda report: None,
        progress: StartProgress | None = None,
    ) -> None:
        """`held` is closed at the end: executors, files, and a session and a cluster of the run's own."""
        self._running, self._feed, self._view, self._held = running, feed, view, held
        self._close, self._log, self._advanced = close, log, advanced
        self._progress, self._logged_before = progress or StartProgress(), running.logged
        self.reports: deque[dict[str, Any]] = deque(maxlen=REPORTS_KEPT)
        self.problem: BaseException | None = None
        self.phase = "Starting"
        self.worked = False
        """Whether the last step ran a job."""
        self._stop, self._abandon, self._done = threading.Event(), threading.Event(), threading.Event()
        self._turn = threading.Condition()
        self._thread = threading.Thread(target=self._main, name=f"holdfast {running.program.name}", daemon=True)

    def start(self) -> None:
        """Begin; the feed has started."""
        atexit.register(self._at_exit)
        self._thread.start()

    # -- from other threads ------------------------------------------------------------------------------------------

    @property
    def active(self) -> bool:
        """Whether the run goes on."""
        return not self._done.is_set()

    def log(self, line: str) -> None:
        """Pass on a line for people."""
        self._log(line)

    def request_stop(self) -> None:
        """Ask the run to end: no more is read, what is logged is processed, a checkpoint is taken. Does not wait."""
        self._stop.set()

    def abandon(self) -> None:
        """Let the process end without waiting for the run: the next start continues from the last checkpoint."""
        atexit.unregister(self._at_exit)
        self._abandon.set()
        self._stop.set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end; say whether it has come. The run's own thread (a sink's function) does not wait."""
        return False if threading.current_thread() is self._thread else self._done.wait(timeout)

    def process_all_available(self) -> None:
        """Wait until what the sources have now is processed and published; return early where the run ends."""
        try:
            in_batches = self._feed.available()
        except Exception:
            # A stop ends the queries of sources; whoever waits for one gets an exception of Spark. The drain goes on.
            if not self._stop.is_set() and not self._ended_soon() and not self._stop.is_set():
                raise
            self.wait()
            return
        if not self._until(in_batches):
            return
        read = self._running.logged
        self._until(lambda: self._view.is_published(read))
        # What was read in place moves watermarks with the batch after it.
        moved = self._running.marks_logged()
        if not self._until(lambda: moved() or self._running.all_parked):
            return
        logged = self._running.logged
        # The report of the last batch comes a moment after its rows: whoever looks next finds it too.
        self._until(
            lambda: (
                self._view.is_published(logged)
                and ((self._view.reported >= logged and not self._view.has_news) or self._running.all_parked)
            )
        )

    def _until(self, reached: Callable[[], bool]) -> bool:
        """Wait until a condition holds; False where the run has ended before."""
        with self._turn:
            while not reached():
                if self._done.is_set():
                    return reached()
                self._turn.wait(_LOOK_SECONDS)
        return True

    def _ended_soon(self) -> bool:
        """Whether the run ends now as well: what failed in a source ends the run a moment later."""
        return self._done.wait(5.0)

    # -- the run's own thread ----------------------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.problem = error
        finally:
            try:
                self._held.close()
            except Exception as error:
                self._log(f"the run did not end in order: {one_line(str(error))}")
            self.phase = "Stopped" if self.problem is None else f"Terminated with exception: {self.problem}"
            atexit.unregister(self._at_exit)
            self._done.set()
            with self._turn:
                self._turn.notify_all()

    def _run(self) -> None:
        try:
            self.phase = "Processing"
            ended = self._read()
        finally:
            with suppress(Exception):  # what failed first says more; Ctrl-C may have ended Spark's JVM as well
                self._feed.stop()
        if self._abandon.is_set():
            return
        if self._stop.is_set():
            self._end_on_request()
            return
        self.phase = "Finishing"
        try:
            # Where it has not ended, all queries are parked: rows that no batch has yet could not follow the last one.
            finish(self._running, close=self._close and ended, gives_up=self._stop.is_set)
        finally:
            self._report()
        if not self._stop.is_set():
            try:
                self._running.checkpoint(gives_up=self._stop.is_set)
            except CheckFailed:
                if not self._stop.is_set():
                    raise
            else:
                self._running.coordinator.publish_gathered(gives_up=self._abandon.is_set)
                self._report()
                return
        if not self._abandon.is_set():
            self._end_on_request()  # it was requested while partitions waited for nodes

    def _read(self) -> bool:
        """Log batches and process them until the input has ended or a stop is requested; say whether it has ended.

        With every query parked, a run whose input has an end does not wait for somebody to resume one. Requests
        that were made while no driver ran are taken first.
        """
        self._running.take_requests()

        def stopped() -> bool:
            return self._stop.is_set() or (self._feed.ends and self._running.all_parked)

        def rest() -> None:
            self._running.coordinator.run(gives_up=stopped)

        return feed_until_end(self._feed, self._running.advance, rest=rest, stopped=stopped, turned=self._turned)

    def _turned(self, worked: bool) -> None:
        self.worked = worked
        self._note_first_batch()
        self._report()
        with self._turn:
            self._turn.notify_all()

    def _note_first_batch(self) -> None:
        if "logged" not in self._progress.phases and self._running.logged > self._logged_before:
            first = BatchId(self._logged_before + 1)
            self._progress.batch_logged(first, sum(self._running.logged_rows(first).values()))

    def _end_on_request(self) -> None:
        """Drain what is logged, and take a checkpoint where every partition is live.

        Where Spark has gone meanwhile, nothing is lost: what is logged is processed by the next start.
        """
        self.phase = "Stopping"
        try:
            drain(self._running, gives_up=self._abandon.is_set)
            if (problem := self._running.parked_problem) is not None:
                self._log(f"queries are parked, so no checkpoint was taken: {problem}")
            elif self._view.all_live():
                until = time.monotonic() + _STOP_SECONDS  # nodes may go now, and nobody waits for others to come
                self._running.checkpoint(gives_up=lambda: self._abandon.is_set() or time.monotonic() > until)
            else:
                self._log("partitions are lost, so no checkpoint was taken: the next start recovers them")
        except Exception as error:
            if isinstance(error, HoldfastError) and not isinstance(error, CheckFailed):
                raise
            line = one_line(str(error), 200)
            self._log(f"the logged batches were not drained: {line}; the next start processes them")
        try:  # what is out is published whether or not the rest was drained
            self._running.coordinator.publish_gathered(gives_up=self._abandon.is_set)
        except Exception as error:
            if isinstance(error, HoldfastError) and not isinstance(error, CheckFailed):
                raise
            line = one_line(str(error), 200)
            self._log(f"gathered rows were not published: {line}; they stay staged, and the next start publishes them")
        self._report()
        saved = self._view.checkpoint_batch()
        at = "before its first checkpoint" if saved < 0 else f"at checkpoint {saved}"
        self._log(f"stopped {at}; the next start continues from there")

    def _report(self) -> None:
        report = self._view.advanced()
        if report is not None:
            self.reports.append(report)
            self._view.reported = report["batchId"]
            self._advanced(report)

    def _at_exit(self) -> None:
        """End before the interpreter does: a thread that is cut off in a call to the JVM would leave a traceback."""
        self._abandon.set()
        self._stop.set()
        self._thread.join(_EXIT_SECONDS)
