"""Runs that change their layout over restarts after SIGKILL at random moments; every output row comes out once.

Run: `python tools/change_the_layout.py --seeds 30`, or a part of it with `--first 12 --seeds 1`. A seed is one stream
of files with several queries. A driver is started and killed at a random moment: while it starts, while it changes the
layout, or while it processes. The next one has another parallelism (4 to 2, 2 to 8, and others) or queries that were
added or removed. At the end, outputs of queries that were always there are those of a run in one process that never
changed; those of the others are what the query gives from the batch where it began to the one where it was removed.
Ends with status 1 if a row is missing, comes twice, is late, or a driver ends by itself.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pyarrow as pa

from holdfast.runtime import ParquetSink
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.storage.files import FileStorage
from holdfast_lab.changing_queries import Input, Layout
from holdfast_lab.driver_processes import Driver
from holdfast_lab.layout_changes import PATHS, LayoutHistory, LayoutPlan

NODES = 2


def main() -> int:
    """Run every seed, print a line for each, then the whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=30, help="how many seeds")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    parser.add_argument("--drivers", type=int, default=4, help="drivers of one run; all but the last are killed")
    parser.add_argument(
        "--files", type=int, default=4, help="files that are new for each driver; the log has 64 batches"
    )
    parser.add_argument("--rows", type=int, default=15, help="rows of a file")
    parser.add_argument("--without-spark", action="store_true", help="drivers whose nodes are in their own process")
    parser.add_argument("--keep", type=Path, help="keep the runs' directories here")
    options = parser.parse_args()
    whole: Counter[str] = Counter()
    changed: Counter[str] = Counter()
    with ExitStack() as held:
        cluster = None if options.without_spark else held.enter_context(EmbeddedCluster(NODES))
        for seed in range(options.first, options.first + options.seeds):
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="holdfast-layouts-") as made:
                place = Path(made) if options.keep is None else options.keep / str(seed)
                run = ChangingRun(place, cluster, seed, options.files, options.rows)
                run.go(options.drivers)
                run.check()
            whole += run.counts
            changed += run.changed
            print(f"seed {seed}: {run.told()}, {time.monotonic() - began:.0f} s", flush=True)
    print(
        f"{options.seeds} seeds from {options.first}: {whole['killed']} drivers killed, {whole['layouts']} changes of "
        f"layout, {whole['rows']} rows in {whole['outputs']} outputs, {whole['problems']} problems"
    )
    print(f"queries: {_words(changed)}")
    return 1 if whole["problems"] else 0


class ChangingRun:
    """One run over growing folders of files, with the drivers it takes."""

    def __init__(self, place: Path, cluster: EmbeddedCluster | None, seed: int, files: int, rows: int) -> None:
        """Prepare it; without a cluster, drivers have their nodes in their own process."""
        self._place, self._cluster, self._files, self._seed = place, cluster, files, seed
        self._draw, self._input, self._written = Random(seed), Input(seed, rows), 0
        self._plan = LayoutPlan(self._draw, PATHS[seed % len(PATHS)])
        self._history = LayoutHistory(FileStorage(place / "run"), self._input)
        self.counts: Counter[str] = Counter()
        self._pace = 0.2 if cluster is None else 1.0  # without Spark, all goes faster
        self.changed: Counter[str] = Counter()
        """What changed of queries, and how often."""
        self._moments: list[str] = []

    # -- running -----------------------------------------------------------------------------------------------------

    def go(self, drivers: int) -> None:
        """Start, kill and change, so many times; the last driver reads everything and ends."""
        layout = self._plan.first()
        for number in range(drivers):
            self._write(self._files + (4 if number == 0 else 0))
            last = number == drivers - 1
            driver = self._start(number, layout, last=last)
            if last:
                self._ended(driver.end(), driver, "the last driver")
            elif not self._kill(driver):
                self._problem(f"driver {number + 1} ended by itself:\n{driver.last_lines()}")
            self._history.see()
            layout = self._plan.changed(number + 1, layout)

    def _write(self, files: int) -> None:
        self._input.write(self._place / "in", self._written, self._written + files)
        self._written += files

    def _start(self, number: int, layout: Layout, *, last: bool) -> Driver:
        if self._cluster is None:
            words = ["holdfast_lab.driver_in_process", str(self._place), str(self._seed), str(self._input.rows)]
            words += [layout.written(), str(self._written), *(["last"] if last else [])]
            return Driver(words, str(self._place), self._place / "log")
        file = self._place / f"changing_{number}.py"
        file.write_text(
            "from pathlib import Path\n"
            "from holdfast_lab.changing_queries import application\n"
            f"app = application({layout.written()!r}, Path({str(self._place / 'in')!r}))\n"
        )
        words = [
            "holdfast.cli.main",
            "run",
            str(file),
            "--master",
            self._cluster.master_url,
            "--directory",
            str(self._place),
            "--json",
        ]
        words += ["--checkpoint-every", str(self._draw.choice((2, 3, 5)))]
        words += ["--conf", f"spark.holdfast.store.secretFile={self._cluster.secret_file}"]
        words += ["--conf", "spark.sql.session.timeZone=UTC"]
        return Driver(
            [*words, *(["--available-now", "--close"] if last else [])], str(self._place), self._place / "log"
        )

    def _kill(self, driver: Driver) -> bool:
        """Wait for a random moment and end a driver; False: it has ended by itself."""
        moment = self._draw.choice(("start", "claim", "claim", "change", "batches", "batches", "batches", "stop"))
        self._moments.append(moment)
        if moment == "start":
            time.sleep(self._draw.uniform(2, 10) * self._pace)
            alive = not driver.ended
        elif moment == "claim":
            # While it takes over, runs the old layout to its end, changes it or begins.
            alive = driver.await_claim()
            time.sleep(self._draw.uniform(0, 0.4 if self._draw.random() < 0.5 else 6) * self._pace)
        elif moment == "change":
            alive = driver.await_batches(1)  # the one that fences the log, where the layout changes
            time.sleep(self._draw.uniform(0, 0.2 if self._draw.random() < 0.5 else 4) * self._pace)
        else:
            alive = driver.await_batches(self._draw.randint(2, 5), seconds=10 * self._pace)
            time.sleep(self._draw.uniform(0, 1.5) * self._pace)
        if not alive or driver.ended:
            return False
        if moment == "stop" and self._cluster is not None:
            self._ended(driver.stop(), driver, "a driver that was stopped")
        else:
            driver.kill(driver.tree if self._draw.random() < 0.5 else None)
            self.counts["killed"] += 1
        return True

    def _ended(self, status: int, driver: Driver, who: str) -> None:
        if status != 0:
            self._problem(f"{who} ended with status {status}:\n{driver.last_lines()}")

    def _problem(self, line: str) -> None:
        print(line, flush=True)
        self.counts["problems"] += 1

    # -- checking ----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare all outputs with what the queries give in one process."""
        self.counts["layouts"] += self._history.changes
        self.changed = self._history.changed()
        queries = [*self._plan.always, *self._plan.sometimes]
        for line in self._history.problems(queries, self._written, self._output, self.counts):
            self._problem(line)
        late = [str(path) for path in (self._place / "run" / "late").rglob("*.parquet")]
        if late:
            self._problem(f"rows are late: {late}")

    def _output(self, name: str) -> pa.Table | None:
        folder = self._place / "out" / name
        return ParquetSink(folder).rows() if folder.exists() else None

    def told(self) -> str:
        """Return what happened in a few words."""
        counts = self.counts
        return (
            f"{'-'.join(self._moments)}, {counts['layouts']} changes of layout ({_words(self.changed)}), "
            f"{counts['rows']} rows in {counts['outputs']} outputs, {counts['problems'] or 'no'} problems"
        )


def _words(changed: Counter[str]) -> str:
    return ", ".join(f"{many} {what}" for what, many in sorted(changed.items()) if many)


if __name__ == "__main__":
    sys.exit(main())
