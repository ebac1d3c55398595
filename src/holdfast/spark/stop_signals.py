"""Ctrl-C and SIGTERM: the first stops a run in order, a second ends the process at once. Runs on the driver.

They are handled by `holdfast run` and `hf.submit`, and while a program waits in `awaitTermination`,
`processAllAvailable` or `stop`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from holdfast.spark.handle import Run


class StopSignals:
    """Handles both signals while it is entered, also repeatedly; in the main thread only: Python allows no other."""

    def __init__(self, log: Callable[[str], object]) -> None:
        self._log = log
        self._run: Run | None = None
        self._requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._before and threading.current_thread() is threading.main_thread():
            number, before = self._before.popitem()
            signal.signal(number, before)

    @property
    def requested(self) -> bool:
        """Whether a signal has requested the stop."""
        return self._requested

    def stop(self, run: Run) -> None:
        """From now on, stop this run; before there is one, a signal ends the start with KeyboardInterrupt.

        A SparkContext that is made in the main thread has put a handler of its own in the place of ours for Ctrl-C.
        """
        self._run = run
        for number in self._before:
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._run is None:
            raise KeyboardInterrupt
        if self._requested:
            self._run.abandon()
            raise KeyboardInterrupt
        self._requested = True
        self._run.request_stop()
        self._log("stopping: logged batches are processed and a checkpoint is taken; Ctrl-C again ends at once")
