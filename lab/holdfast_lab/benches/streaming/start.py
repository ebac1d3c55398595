"""How long a start takes: `holdfast run` in a process of its own, from the command to the first output row, by phase.

On the embedded cluster, and on a standalone cluster that is running already. Sides take turns, so that what else the
machine does meets all of them alike.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from statistics import median

from holdfast.errors import CheckFailed, one_line
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.spark.start_progress import PHASES
from holdfast_lab.benches.streaming.processes import KINDS, by_kind, processes
from holdfast_lab.benches.streaming.spread import Spread, median_with_interval

FILES = 4
WAIT_SECONDS = 300.0
LOOK_SECONDS = 0.1
"""How often the events of a start are looked at."""
_APPLICATION = """import holdfast as hf

app = hf.Application("start")
visits = app.source("visits", hf.files({folder!r}, format="csv"), schema="ts timestamp, page string, ms double",
                    event_time="ts", lateness="1 second")
pages = visits.key_by("page").window(hf.tumbling("10 seconds"))
pages.agg(n=hf.count(), ms=hf.avg("ms")).output("pages")
"""


@dataclass(frozen=True, slots=True)
class Side:
    """What is timed: an exchange, and where Holdfast is imported from (None: as this process does)."""

    name: str
    exchange: str
    source: Path | None = None


@dataclass(frozen=True, slots=True)
class Timed:
    """One start."""

    cluster: str
    side: str
    phases: Mapping[str, float]
    """Seconds from the command to each phase."""
    cpu: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds of all processes from the command to the first output, by kind: other work hardly changes them."""


def write_input(folder: Path, rows: int) -> Path:
    """Write this number of rows as CSV, a millisecond apart, and an application that counts them; return its file."""
    rows_folder, draw, at = folder / "rows", random.Random(1), datetime(2026, 1, 1)
    rows_folder.mkdir(parents=True)
    for number in range(FILES):
        with (rows_folder / f"{number}.csv").open("w") as file:
            for row in range(number * rows // FILES, (number + 1) * rows // FILES):
                when = at + timedelta(milliseconds=row)
                file.write(f"{when.isoformat()},{draw.randrange(100)},{draw.random() * 100:.2f}\n")
    application = folder / "app.py"
    application.write_text(_APPLICATION.format(folder=str(rows_folder)))
    return application


def time_starts(
    folder: Path,
    sides: Sequence[Side],
    clusters: Sequence[str],
    *,
    rows: int,
    nodes: int,
    rounds: int,
    progress: Callable[[str], object] = lambda text: None,
) -> list[Timed]:
    """Start the application on each side and kind of cluster (`embedded`, `running`), in rounds, the sides in turns."""
    application, found = write_input(folder, rows), []
    for kind in clusters:
        with _cluster(kind, nodes) as options:
            for number in range(rounds):
                for side in sides if number % 2 == 0 else sides[::-1]:
                    progress(f"{kind} cluster, {side.name}, round {number + 1}")
                    place = folder / f"{kind}-{side.name}-{number}"
                    found.append(Timed(kind, side.name, *time_start(application, place, side, options)))
    return found


@contextmanager
def _cluster(kind: str, nodes: int) -> Iterator[list[str]]:
    """Yield the options of `holdfast run` for an embedded cluster, or for one that runs already."""
    if kind == "embedded":
        yield ["--nodes", str(nodes)]
        return
    with EmbeddedCluster(nodes) as cluster:
        yield ["--master", cluster.master_url, "--conf", f"spark.holdfast.store.secretFile={cluster.secret_file}"]


def time_start(
    application: Path, directory: Path, side: Side, options: Sequence[str]
) -> tuple[dict[str, float], dict[str, float]]:
    """Run the application to its end; return the seconds from the command to each phase, and CPU seconds by kind."""
    command = [sys.executable, "-m", "holdfast.cli.main", "run", str(application), "--available-now"]
    command += ["--directory", str(directory), "--conf", f"spark.holdfast.exchange={side.exchange}", *options]
    environment = dict(os.environ)
    if side.source is not None:
        path = os.pathsep.join(filter(None, [str(side.source), environment.get("PYTHONPATH")]))
        environment["PYTHONPATH"] = path
        command += ["--conf", f"spark.executorEnv.PYTHONPATH={path}"]  # a running cluster's nodes have another one
    events = directory / "run" / "events.jsonl"
    before, began, used = _cpu(), time.time(), dict[str, float]()
    with tempfile.TemporaryFile("w+") as errors:
        running = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=errors)
        while running.poll() is None:
            if time.time() - began > WAIT_SECONDS:
                running.kill()
            if not used and events.exists() and '"started"' in events.read_text():
                used = {kind: seconds - before.get(kind, 0.0) for kind, seconds in _cpu().items()}
            time.sleep(LOOK_SECONDS)
        if running.returncode:
            errors.seek(0)
            last = (errors.read().strip().splitlines() or ["nothing was printed"])[-1]
            raise CheckFailed(f"the run failed: {one_line(last, 200)}", where=f"{side.name} in {directory}")
    return read_phases(events.read_text().splitlines(), began), used


def _cpu() -> dict[str, float]:
    """Return the CPU seconds so far of all that this process has started, by kind; its own do not count."""
    found = processes((), in_their_sessions=True)
    return {kind: seconds for kind, (seconds, _) in by_kind([one for one in found if one.pid != os.getpid()]).items()}


def read_phases(lines: Sequence[str], began: float) -> dict[str, float]:
    """Return the seconds from the command to each phase, from the events of its run.

    A version that has no event of its start has two phases: nodes that are used, and the first output.
    """
    events = [json.loads(line) for line in lines]
    found: dict[str, float] = {}
    for event in events:
        if event["event"] == "started":
            found |= {phase: event["began"] + seconds - began for phase, seconds in event["phases"].items()}
        elif event["event"] == "node-arrived":
            found.setdefault("nodes", event["at"] - began)
        elif event["event"] == "published" and event["rows"]:
            found.setdefault("output", event["at"] - began)
    if "output" not in found:
        raise CheckFailed("no output was published", where="the run's events", remedy="give more rows")
    return {phase: max(0.0, found[phase]) for phase in PHASES if phase in found}


def summarize(timed: Sequence[Timed]) -> list[dict[str, object]]:
    """Return a row for each cluster and side: median and interval of each phase, and the ratio to the first side."""
    groups: dict[tuple[str, str], list[Timed]] = {}
    for one in timed:
        groups.setdefault((one.cluster, one.side), []).append(one)
    rows: list[dict[str, object]] = []
    first: dict[str, float] = {}
    for (cluster, side), group in groups.items():
        there = [phase for phase in PHASES if all(phase in one.phases for one in group)]
        spread: dict[str, Spread] = {
            phase: median_with_interval([one.phases[phase] for one in group]) for phase in there
        }
        output = spread["output"].median
        first.setdefault(cluster, output)
        rows.append(
            {
                "workload": f"{cluster} cluster",
                "side": side,
                "seconds": output,
                "ratio": output / first[cluster],
                "rounds": len(group),
                "cpu_seconds": median(sum(one.cpu.values()) for one in group),
                "cpu_seconds_by_kind": {
                    kind: median(one.cpu.get(kind, 0.0) for one in group)
                    for kind in KINDS
                    if any(kind in one.cpu for one in group)
                },
                "phases": {
                    phase: {"seconds": one.median, "low": one.low, "high": one.high} for phase, one in spread.items()
                },
            }
        )
    return rows
