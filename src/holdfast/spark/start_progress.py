"""How far a start has come: phases with their times, a line for people at each. Runs on the driver.

From the command to the first output row. Threads of the cluster, of the sources and of the run report here; each phase
counts once, at its first report. The first output ends the start: then its phases are one event (`started`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from threading import Lock

from holdfast.runtime.coordinator.event_log import Observation
from holdfast.wording import counted

PHASES = ("command", "driver", "session", "sources", "first-node", "nodes", "rows", "logged", "output")
"""What a start goes through: the command is read; the driver's JVM is up; the session is; queries read the sources; the
first node is ready; those that were waited for are used; the first rows are written down; the first batch is logged;
the first output is published."""


class StartProgress:
    """Takes what has come about, and shows it."""

    def __init__(
        self,
        show: Callable[[str], object] = lambda line: None,
        *,
        began: float | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`show` gets the lines; `began` is when the command was given (None: now)."""
        self._show, self._clock = show, clock
        self.began = clock() if began is None else began
        self.phases: dict[str, float] = {}
        """Seconds from the beginning to each phase that was reached."""
        self.emit: Callable[[Observation], object] = lambda seen: None
        """Takes the event at the end."""
        self._lock = Lock()
        self._nodes = -1
        self._over = False

    def line(self, text: str) -> None:
        """Show something that is no phase, with the seconds since the beginning."""
        if not self._over:
            self._show(f"{self._clock() - self.began:5.1f} s  {text}")

    def reached(self, phase: str, text: str = "") -> None:
        """A phase has come about; later reports of it change nothing."""
        with self._lock:
            if phase in self.phases or self._over:
                return
            self.phases[phase] = round(self._clock() - self.began, 3)
        if text:
            self.line(text)

    def driver_is_up(self, text: str) -> None:
        """The driver's JVM is up."""
        self.reached("driver", text)

    def batch_logged(self, batch: int, rows: int) -> None:
        """A batch of this start is logged; how many rows ranges read in place have is not known yet."""
        has = f": {counted(rows, 'row')} in" if rows else ":"
        self.reached("logged", f"first batch logged{has} batch {batch}")

    def nodes_ready(self, ready: int, wanted: int | None) -> None:
        """So many nodes can work; so many are waited for, where that is known."""
        with self._lock:
            if ready <= self._nodes:
                return
            self._nodes = ready
        if ready:
            self.reached("first-node")
            self.line(f"{counted(ready, 'node')} ready" if wanted is None else f"{ready} of {wanted} nodes ready")

    def reading(self, source: str) -> None:
        """A query reads a source."""
        self.line(f"reading {source}")

    def rows_came(self, source: str, rows: int) -> None:
        """The first rows of a source are written down."""
        self.reached("rows", f"first rows of {source} written: {rows:,}")

    def observe(self, seen: Observation) -> None:
        """Take an event of the run: nodes that are used, and output, which ends the start."""
        if self._over:
            return
        if seen.kind == "node-arrived":
            self.reached("nodes")
        elif seen.kind == "published" and seen.fields["rows"]:
            if "logged" not in self.phases:
                self.reached("logged")
            self.reached("output", f"first output: {counted(seen.fields['rows'], 'row')} of {seen.fields['partition']}")
            self._over = True
            self.emit(Observation(seen.at, "started", {"began": round(self.began, 3), "phases": dict(self.phases)}))


def process_began() -> float:
    """Return when this process began, in seconds since 1970; now, where the system does not show it."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        up = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - (up - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.time()
