"""A slow node of an embedded cluster: its processes are frozen and thawed in turns. Runs on the driver's machine."""

from __future__ import annotations

import signal
import threading

from holdfast.spark.process_reaper import signal_session

TURN_SECONDS = 0.1
"""A slowed node is frozen and thawed once in this time."""


class SlowedNode:
    """Freezes and thaws a session in turns."""

    def __init__(self, session: int, share: float) -> None:
        self._session, self._share = session, share
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"holdfast-slow-{session}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._end.is_set():
                signal_session(self._session, signal.SIGSTOP)
                self._end.wait(TURN_SECONDS * (1 - self._share))
                signal_session(self._session, signal.SIGCONT)
                self._end.wait(TURN_SECONDS * self._share)
        finally:
            signal_session(self._session, signal.SIGCONT)

    def end(self) -> None:
        """Let it run freely."""
        self._end.set()
        self._thread.join()
