"""The driver's process as the drill sees it: started, read from, killed like a machine, started again.

Runs beside the cluster. Events come through a pipe that only the driver's Python holds: when it dies, the pipe ends.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from holdfast.drill.driver import DriverJob
from holdfast.drill.history import HistoryFile
from holdfast.spark.process_reaper import ProcessReaper, kill_session, signal_session

READ_SECONDS = 10.0
"""How long what a dead driver had sent may take to be read."""


class DriverProcess:
    """The driver, and the thread that takes its events into the history."""

    def __init__(self, job: DriverJob, folder: Path, number: int, host: str | None = None) -> None:
        """Start it; it emits `driver-ready` when it is, then waits for the time at which the stream begins.

        It listens on `host`; None: where Spark would, on loopback for a master there.
        """
        self.log = folder / f"driver-{number}.log"
        reading, writing = os.pipe()
        described = folder / f"driver-{number}.json"
        replace(job, events=writing).write(described)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.drill.driver", str(described)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(writing,),
                start_new_session=True,
                text=True,
                env=os.environ if host is None else {**os.environ, "SPARK_LOCAL_IP": host},
            )
        os.close(writing)
        self._reaper = ProcessReaper()
        self._reaper.watch_group(self._process.pid)
        self.ready = threading.Event()
        self.finished = threading.Event()
        self.failure: str | None = None
        self._early: list[tuple[float, str, dict[str, Any]]] = []
        self._history: HistoryFile | None = None
        self._lock = threading.Lock()
        self._superseded = False
        self._thread = threading.Thread(target=self._read, args=(os.fdopen(reading, "rb"),), daemon=True)
        self._thread.start()

    def begin(self, history: HistoryFile, began: float) -> None:
        """Send it the time at which the stream begins; its events until now go into the history, at the start."""
        with self._lock:
            for moment, kind, fields in self._early:
                history.add(max(moment, began), kind, fields)
            self._early.clear()
            self._history = history
        assert self._process.stdin is not None
        self._process.stdin.write(f"{began}\n")
        self._process.stdin.flush()

    @property
    def running(self) -> bool:
        """Whether its process is there."""
        return self._process.poll() is None

    def end(self) -> None:
        """End it as a machine dies: it and its JVM at once. What it sent before is taken."""
        kill_session(self._process.pid)
        self._process.wait()
        self._thread.join(READ_SECONDS)
        self._reaper.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def pause(self) -> None:
        """Freeze it, Python and JVM; its connections stay open, and it answers nothing."""
        signal_session(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        signal_session(self._process.pid, signal.SIGCONT)

    def supersede(self) -> None:
        """Another driver has the run: what this one emits from now on is of no use."""
        with self._lock:
            self._superseded = True

    def await_end(self, seconds: float) -> int | None:
        """Wait until it ends by itself; returns its status, None where it does not."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def last_line(self) -> str:
        """Return the last line of its log."""
        lines = self.log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it logged nothing"

    def _read(self, pipe: IO[bytes]) -> None:
        with pipe:
            for line in pipe:
                if not line.endswith(b"\n"):
                    return  # cut off by its death: it never happened
                fields = json.loads(line)
                moment, kind = fields.pop("time"), fields.pop("kind")
                with self._lock:
                    if self._superseded:
                        continue
                    if self._history is None:
                        self._early.append((moment, kind, fields))
                    else:
                        self._history.add(moment, kind, fields)
                if kind == "driver-ready":
                    self.ready.set()
                elif kind == "finished":
                    self.finished.set()
                elif kind == "driver-failed":
                    self.failure = str(fields.get("why"))
