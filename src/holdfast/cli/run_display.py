"""What people see of a run: a line that keeps up with it, and a table at the end. Runs on the driver."""

from __future__ import annotations

import sys
import time
from collections import Counter
from threading import RLock
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import print_table

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.event_log import Observation
    from holdfast.spark.run import SparkRun
    from holdfast.spark.start import Watch


class RunDisplay:
    """Prints lines and progress of a run on standard error."""

    def __init__(self, *, quiet: bool, last: int | None) -> None:
        """Print nothing where it is quiet; `last` is the last batch there will be, where that is known."""
        self._quiet, self._last = quiet, last
        self._live = not quiet and sys.stderr.isatty()
        self._rows, self._seconds = 0, 0.0
        self._checkpoint_at: float | None = None
        self._width = 0
        self._lock = RLock()
        self._run: SparkRun | None = None

    def starting(self, line: str) -> None:
        """Show how far the start has come: on a terminal in one line that changes, else line by line."""
        self._show(line)

    def watch(self, running: SparkRun) -> Watch:
        """Watch a run that is about to start."""
        from holdfast.spark.start import Watch

        self._run = running
        return Watch(self.log, self.observe, self.advanced)

    @property
    def running(self) -> SparkRun:
        """The run that is watched."""
        assert self._run is not None
        return self._run

    def observe(self, seen: Observation) -> None:
        """Keep the figures that the line shows."""
        if seen.kind == "cycle":
            self._rows, self._seconds = seen.fields["rows"], seen.fields["seconds"]
        elif seen.kind == "checkpoint":
            self._checkpoint_at = seen.at

    def log(self, line: str) -> None:
        """Print a line for people."""
        if not self._quiet:
            with self._lock:
                self.clear()
                click.echo(line, err=True)

    def advanced(self, report: dict[str, Any]) -> None:
        """Show where the run stands."""
        running = self.running
        state = running.coordinator.state
        states = Counter(str(one.state) for one in state.partitions.values())
        of = "" if self._last is None else f" of {self._last}"
        rate = self._rows / self._seconds if self._seconds else 0.0
        saved = state.checkpoints.global_batch
        age = "" if self._checkpoint_at is None else f" ({time.time() - self._checkpoint_at:.0f} s ago)"
        done = "no batch done yet" if running.frontier < 0 else f"batch {running.frontier}{of}"
        line = (
            f"{done} · {rate:,.0f} rows/s · "
            f"{', '.join(f'{many} {state}' for state, many in sorted(states.items()))} · "
            f"{'no checkpoint yet' if saved < 0 else f'checkpoint {saved}'}{age}"
        )
        if parked := list(state.parked):
            line += f" · parked: {', '.join(map(str, parked))}"
        self._show(line)

    def _show(self, line: str) -> None:
        """Show a line that the next one takes the place of, where that is possible; called in several threads."""
        with self._lock:
            if self._live:
                click.echo("\r" + line.ljust(self._width), nl=False, err=True)
                self._width = len(line)
            elif not self._quiet:
                click.echo(line, err=True)

    # -- the end -----------------------------------------------------------------------------------------------------

    def batches(self) -> int:
        """Return how many batches every partition has completed."""
        return self.running.frontier + 1

    def rollbacks(self) -> int:
        """Return how often live partitions rolled back."""
        return self.running.rollbacks

    def counted(self) -> list[str]:
        """Return the outputs whose sinks count rows."""
        from holdfast.errors import BadInput

        found = []
        for name in self.running.program.output_names.values():
            try:
                self.running.count(name)
            except BadInput:
                continue
            found.append(name)
        return found

    def partitions(self) -> list[dict[str, Any]]:
        """Return what every partition has taken."""
        running = self.running
        state = running.coordinator.state
        return [
            {
                "partition": str(partition),
                "node": state.partitions[partition].node,
                "state": str(state.partitions[partition].state),
                "rows_in": one.rows_in,
                "rows_out": one.rows_out,
                "late_rows": one.late_rows,
                "seconds": one.seconds,
                "cpu_seconds": one.cpu_seconds,
                "state_bytes": one.state_bytes,
                "checkpoint": (saved := getattr(state.checkpoints.last(partition), "batch", None)),
                "checkpoint_age_batches": state.partitions[partition].frontier - (-1 if saved is None else saved),
            }
            for partition, one in running.measures.items()
        ]

    def table(self) -> None:
        """Print what every partition has taken."""
        self.clear()
        rows = [
            [
                one["partition"],
                one["node"] or "-",
                f"{one['rows_in']:,}",
                f"{one['rows_out']:,}",
                f"{one['late_rows']:,}",
                f"{one['seconds']:.2f}",
                f"{one['cpu_seconds']:.2f}",
                f"{one['state_bytes']:,}",
                "-" if one["checkpoint"] is None else str(one["checkpoint"]),
            ]
            for one in self.partitions()
        ]
        head = ["partition", "node", "rows in", "rows out", "kept aside", "seconds", "CPU", "state bytes", "saved at"]
        print_table("partitions", head, rows, right=(2, 3, 4, 5, 6, 7, 8))

    def clear(self) -> None:
        """Remove the line."""
        with self._lock:
            if self._width:
                click.echo("\r" + " " * self._width + "\r", nl=False, err=True)
                self._width = 0
