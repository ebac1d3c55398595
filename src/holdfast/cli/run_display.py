"""What people see of a run: a line that keeps up with it, the events as JSON lines, a table at the end."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

from holdfast.cli.output import print_table

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.event_log import Observation
    from holdfast.spark.run import SparkRun


MOST_BYTES = 64 << 20
"""Of the file of events; then it is put aside as events.1.jsonl, in the place of the one before, and begun anew."""


class RunDisplay:
    """Hears what a run says. Every event goes to a file, one JSON object a line."""

    def __init__(self, log: Path, *, quiet: bool) -> None:
        self._path, self._quiet = log, quiet
        self._live = not quiet and sys.stderr.isatty()
        self._rows, self._seconds, self._checkpoint_at = 0, 0.0, time.time()
        self._width = 0

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self._path.open("a")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._clear()
        self._file.close()

    def observe(self, seen: Observation) -> None:
        """Write an event down, and remember what the line tells."""
        self._file.write(json.dumps({"at": round(seen.at, 3), "event": seen.kind, **seen.fields}) + "\n")
        self._file.flush()
        if self._file.tell() > MOST_BYTES:
            self._file.close()
            self._path.replace(self._path.with_suffix(".1.jsonl"))
            self._file = self._path.open("a")
        if seen.kind == "cycle":
            self._rows, self._seconds = seen.fields["rows"], seen.fields["seconds"]
        elif seen.kind == "checkpoint":
            self._checkpoint_at = seen.at

    def tell(self, line: str) -> None:
        """Print a line for people."""
        if not self._quiet:
            self._clear()
            click.echo(line, err=True)

    def batch(self, running: SparkRun, last: int | None) -> None:
        """Show where the run stands."""
        state = running.coordinator.state
        states = Counter(str(one.state) for one in state.partitions.values())
        of = "" if last is None else f" of {last}"
        rate = self._rows / self._seconds if self._seconds else 0.0
        age = time.time() - self._checkpoint_at
        line = (
            f"batch {running.frontier}{of} · {rate:,.0f} rows/s · "
            f"{', '.join(f'{many} {state}' for state, many in sorted(states.items()))} · "
            f"checkpoint {state.checkpoints.global_batch} ({age:.0f} s ago)"
        )
        if self._live:
            click.echo("\r" + line.ljust(self._width), nl=False, err=True)
            self._width = len(line)
        elif not self._quiet:
            click.echo(line, err=True)

    def partitions(self, running: SparkRun) -> list[dict[str, Any]]:
        """Return what every partition has taken."""
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

    def table(self, running: SparkRun) -> None:
        """Print what every partition has taken."""
        self._clear()
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
            for one in self.partitions(running)
        ]
        head = ["partition", "node", "rows in", "rows out", "late", "seconds", "CPU", "state bytes", "saved at"]
        print_table("partitions", head, rows, right=(2, 3, 4, 5, 6, 7, 8))

    def _clear(self) -> None:
        if self._width:
            click.echo("\r" + " " * self._width + "\r", nl=False, err=True)
            self._width = 0
