"""A run whose driver is frozen with SIGSTOP at random moments while another one takes over, then thawed; each row once.

Run: `python tools/pause_the_driver.py --times 50`, or with `--storage s3` on a real S3 server. Files are read as a
stream, one to a micro-batch. The frozen driver goes on after the new one has logged some batches (or none), and must
end by itself. Ends with status 1 if a row is missing, comes twice, or a frozen driver does not end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random

from holdfast.runtime import ParquetSink
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.storage.storage import open_storage
from holdfast_lab.s3_server import S3Server

SECONDS = 300.0
NODES = 3
"""For each of two drivers: one that is frozen keeps its executors."""
APPLICATION = """
import holdfast as hf

SCHEMA = "id long, key string, at timestamp"
app = hf.Application("paused")
rows = app.source(
    "rows",
    lambda spark: spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json({folder!r}),
    schema=SCHEMA, event_time="at", lateness="1 second", parallelism=2,
)
rows.output("all")
rows.key_by("key").window(hf.tumbling("10 seconds")).count(id="counts", parallelism=2).output("counts")
"""


def main() -> int:
    """Freeze, take over, thaw, so often; then compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50, help="drivers to freeze")
    parser.add_argument("--each", type=int, default=5, help="drivers to freeze in one run")
    parser.add_argument("--files", type=int, default=60, help="files of one run, each a micro-batch")
    parser.add_argument("--rows", type=int, default=50, help="rows of a file")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--storage", choices=["files", "s3"], default="files", help="where the run's directory is")
    options = parser.parse_args()
    draw, frozen, wrong, number = Random(options.seed), 0, 0, 0
    with ExitStack() as held:
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-paused-")))
        if options.storage == "s3":
            server = held.enter_context(S3Server())
            os.environ.update(server.environment)
        cluster = held.enter_context(EmbeddedCluster(2 * NODES))
        while frozen < options.times:
            number += 1
            folder = place / str(number)
            directory = f"{server.url}/run-{number}" if options.storage == "s3" else str(folder / "run")
            run = PausedRun(folder, directory, cluster, draw, options.files, options.rows)
            frozen += run.go(min(options.each, options.times - frozen))
            wrong += run.problems()
            print(f"run {number}: {frozen} drivers frozen so far, {wrong} problems", flush=True)
    print(f"{frozen} drivers frozen and thawed on {options.storage}, {wrong} problems")
    return 1 if wrong else 0


class PausedRun:
    """One run over a folder of files, with the drivers it takes."""

    def __init__(
        self, folder: Path, directory: str, cluster: EmbeddedCluster, draw: Random, files: int, rows: int
    ) -> None:
        self._folder, self._directory, self._draw = folder, directory, draw
        self._files, self._rows = files, rows
        (folder / "in").mkdir(parents=True)
        for number in range(files):
            self._write(number)
        (folder / "paused_app.py").write_text(APPLICATION.format(folder=str(folder / "in")))
        self._command = [
            *(sys.executable, "-m", "holdfast.cli.main", "run", str(folder / "paused_app.py")),
            *("--master", cluster.master_url, "--directory", directory, "--json", "--available-now", "--close"),
            *("--checkpoint-every", "5", "--conf", f"spark.cores.max={NODES}"),
            *("--conf", f"spark.holdfast.store.secretFile={cluster.secret_file}"),
        ]
        self._problems = 0

    def _write(self, number: int) -> None:
        lines = []
        for one in range(self._rows):
            second = number + one / self._rows
            at = f"2026-01-01T{int(second) // 3600:02d}:{int(second) // 60 % 60:02d}:{second % 60:06.3f}"
            lines.append(json.dumps({"id": number * self._rows + one, "key": f"k{one % 7}", "at": at}))
        path = self._folder / "in" / f"{number:05d}.json"
        path.write_text("\n".join(lines))
        os.utime(path, (1_000_000 + number, 1_000_000 + number))

    def go(self, times: int) -> int:
        """Freeze so many drivers, one after the other, then let the last one end; return how many were frozen."""
        driver, frozen = self._start(), 0
        self._await_claim(driver)
        while frozen < times:
            if not self._wait(driver, self._draw.choice((0, 1, 1, 2, 4))):
                break
            processes = tree(driver.pid) if self._draw.random() < 0.7 else [driver.pid]
            send(processes, signal.SIGSTOP)
            frozen += 1
            follower = self._start("--take-over")
            self._await_claim(follower)
            self._wait(follower, self._draw.choice((0, 1, 3)))
            send(processes, signal.SIGCONT)
            status = self._end(driver)
            if status != 1:
                print(f"a thawed driver ended with status {status}")
                self._problems += 1
            driver = follower
        if (status := self._end(driver)) != 0:
            print((self._folder / "log").read_text()[-3000:])
            self._problems += 1
        return frozen

    def _start(self, *more: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join(filter(None, sys.path))
        with (self._folder / "log").open("ab") as log:
            return subprocess.Popen(
                [*self._command, *more],
                stdout=subprocess.DEVNULL,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
            )

    def _await_claim(self, follower: subprocess.Popen[bytes]) -> None:
        """Wait until a driver has taken over."""
        storage = open_storage(f"{self._directory}/run")
        before, deadline = last_driver(storage), time.monotonic() + SECONDS
        claim = 0 if before is None else before["claim"]
        while (last := last_driver(storage)) is None or last["claim"] <= claim:
            if follower.poll() is not None or time.monotonic() > deadline:
                raise SystemExit("nobody takes over:\n" + (self._folder / "log").read_text()[-3000:])
            time.sleep(0.03)

    def _wait(self, driver: subprocess.Popen[bytes], batches: int) -> bool:
        """Wait until so many more batches are logged, and a little; False: the driver has ended before."""
        storage = open_storage(f"{self._directory}/run")
        begun, deadline = len(storage.list("batches/")), time.monotonic() + SECONDS
        while len(storage.list("batches/")) < begun + batches:
            if driver.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise SystemExit("the driver does nothing:\n" + (self._folder / "log").read_text()[-3000:])
            time.sleep(0.03)
        time.sleep(self._draw.uniform(0, 1.0 if batches else 3.0))
        return driver.poll() is None

    def _end(self, driver: subprocess.Popen[bytes]) -> int:
        try:
            return driver.wait(SECONDS)
        except subprocess.TimeoutExpired:
            send(tree(driver.pid), signal.SIGKILL)
            return driver.wait()

    def problems(self) -> int:
        """Compare what came out with what is in the files; return how many things are wrong."""
        found = ParquetSink(f"{self._directory}/out/all").rows()
        ids = sorted([] if found is None else found["id"].to_pylist())
        if ids != list(range(self._files * self._rows)):
            print(f"rows: {len(ids)}, {len(set(ids))} different, {self._files * self._rows} expected")
            self._problems += 1
        counts = ParquetSink(f"{self._directory}/out/counts").rows()
        total = 0 if counts is None else sum(counts["count"].to_pylist())
        windows = 0 if counts is None else counts.num_rows
        if total != self._files * self._rows or windows != 7 * -(-self._files // 10):
            print(f"counts: {total} in {windows} windows")
            self._problems += 1
        return self._problems


def tree(pid: int) -> list[int]:
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


def send(processes: list[int], number: signal.Signals) -> None:
    """Send a signal to processes that may be gone."""
    for pid in processes:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    sys.exit(main())
