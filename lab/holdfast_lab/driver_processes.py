"""Drivers as processes of this machine: started, frozen, killed and waited for. Used by tools.

A run on files or on object storage is watched through its storage alone, as another driver would see it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.runtime.coordinator.progress import last_driver
from holdfast.storage.storage import open_storage

SECONDS = 300.0
"""A driver that does nothing for so long is taken for stuck."""
_LOOK_AGAIN = 0.03


class Driver:
    """One process of a driver; what it prints for people goes to the end of a file."""

    def __init__(self, words: Sequence[str], directory: str, log: Path, *, stuck_after: float = SECONDS) -> None:
        """Start it with these words after `python -m`; the run is in `run` of this directory.

        One that does nothing for `stuck_after` seconds is taken for stuck.
        """
        self._stuck_after = stuck_after
        self._log, self._storage = log, open_storage(f"{directory}/run")
        self._claim = self._last_claim()
        with log.open("ab") as lines:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *words],
                stdout=subprocess.DEVNULL,
                stderr=lines,
                env=driver_environment(),
            )

    @property
    def ended(self) -> bool:
        """Whether the process is gone."""
        return self._process.poll() is not None

    @property
    def tree(self) -> list[int]:
        """The process and all that it has started, as far as they have not moved away."""
        return process_tree(self._process.pid)

    @property
    def pid(self) -> int:
        """The process itself."""
        return self._process.pid

    def last_lines(self) -> str:
        """Return the end of what the drivers of this run have printed."""
        return self._log.read_text()[-3000:] if self._log.exists() else ""

    def await_claim(self) -> bool:
        """Wait until it has taken the run's next claim; False: it has ended before."""
        return self._until(lambda: self._last_claim() > self._claim)

    def await_batches(self, batches: int, *, seconds: float = SECONDS) -> bool:
        """Wait until so many more batches are logged; False: it has ended before.

        Where one has come and no other for so many seconds, there is no more to read: that is enough.
        """
        begun = seen = len(self._storage.list("batches/"))
        last = time.monotonic()

        def reached() -> bool:
            nonlocal seen, last
            now = len(self._storage.list("batches/"))
            if now != seen:
                seen, last = now, time.monotonic()
            return seen >= begun + batches or (seen > begun and time.monotonic() - last > seconds)

        return self._until(reached)

    def end(self, seconds: float | None = None) -> int:
        """Wait until it ends by itself; one that does not, in the time after which it is stuck, is killed.

        Returns its status.
        """
        try:
            return self._process.wait(self._stuck_after if seconds is None else seconds)
        except subprocess.TimeoutExpired:
            return self.kill(self.tree)

    def stop(self) -> int:
        """Let it end in order: it processes what is logged and takes a checkpoint."""
        self._process.send_signal(signal.SIGTERM)
        return self.end()

    def kill(self, processes: Sequence[int] | None = None) -> int:
        """End it with SIGKILL, alone or with others."""
        send([self.pid] if processes is None else processes, signal.SIGKILL)
        return self._process.wait()

    def _last_claim(self) -> int:
        last = last_driver(self._storage)
        return 0 if last is None else int(last["claim"])

    def _until(self, reached: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + self._stuck_after
        while not reached():
            if self.ended:
                return False
            if time.monotonic() > deadline:
                raise SystemExit(f"the driver does nothing:\n{self.last_lines()}")
            time.sleep(_LOOK_AGAIN)
        return not self.ended


def driver_environment() -> dict[str, str]:
    """Return what a driver's process has in its environment: it imports what this process imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONUNBUFFERED": "1"}


def process_tree(pid: int) -> list[int]:
    """Return a process and all that it has started, as far as they have not moved away."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def send(processes: Sequence[int], number: signal.Signals) -> None:
    """Send a signal to processes that may be gone."""
    for pid in processes:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
