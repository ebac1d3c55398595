"""A run whose driver is frozen with SIGSTOP at random moments while another one takes over, then thawed; each row once.

Run: `python tools/pause_the_driver.py --times 50`, or with `--storage s3` on a real S3 server. Files are read as a
stream, one to a micro-batch. The frozen driver goes on after the new one has logged some batches (or none), and must
end by itself. Ends with status 1 if a row is missing, comes twice, or a frozen driver does not end.

Drivers are new processes of `holdfast run`, or, with `--processes kept`, two processes with a Spark session each that
take turns: then a driver begins in seconds, and most of the time goes into what is tried.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Protocol

from holdfast.runtime import ParquetSink
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.storage.storage import open_storage
from holdfast_lab.driver_processes import driver_environment, process_tree, send
from holdfast_lab.s3_server import S3Server

SECONDS = 300.0
NODES = 3
"""For each of two drivers: one that is frozen keeps its executors."""
CHECKPOINT_BATCHES = 5
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
READY, ENDED, OVER, DONE = "ready", "ended", "over", "done"


class Driver(Protocol):
    """A process that can be the driver of a run."""

    pid: int

    def begin(self, folder: Path, directory: str, *, take_over: bool) -> None:
        """Begin to be the driver of the run of a folder."""
        ...

    @property
    def running(self) -> bool:
        """Whether it has begun and not ended."""
        ...

    def outcome(self) -> str:
        """Wait for the end; return ENDED, OVER (another driver has the run), DONE (all is out), or what failed."""
        ...


class NewDriver:
    """A process of `holdfast run` that is over with its run."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster, self.pid = cluster, 0

    def begin(self, folder: Path, directory: str, *, take_over: bool) -> None:
        """See Driver."""
        command = [
            *(sys.executable, "-m", "holdfast.cli.main", "run", str(folder / "paused_app.py")),
            *("--master", self._cluster.master_url, "--directory", directory, "--json", "--available-now", "--close"),
            *("--checkpoint-every", str(CHECKPOINT_BATCHES), "--conf", f"spark.cores.max={NODES}"),
            *("--conf", f"spark.holdfast.store.secretFile={self._cluster.secret_file}"),
            *(["--take-over"] if take_over else []),
        ]
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=log, env=driver_environment())
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        """See Driver."""
        return self._process.poll() is None

    def outcome(self) -> str:
        """See Driver."""
        try:
            status = self._process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            send(process_tree(self.pid), signal.SIGKILL)
            self._process.wait()
            return f"it did not end within {SECONDS:.0f} s"
        return {0: ENDED, 1: OVER, 2: DONE}.get(status, f"status {status}")


class KeptDriver:
    """A process with a Spark session that is the driver of one run after another; see `serve`."""

    def __init__(self, cluster: EmbeddedCluster, log: Path) -> None:
        words = [sys.executable, __file__, "--serve", cluster.master_url, str(cluster.secret_file)]
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=driver_environment()
            )
        self.pid = self._process.pid
        self._said: queue.Queue[str] = queue.Queue()
        self._runs = False
        threading.Thread(target=self._listen, daemon=True).start()
        if (said := self._next()) != READY:
            raise SystemExit(f"a driver's process did not start: {said}\n{log.read_text()[-3000:]}")

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                self._said.put(json.loads(line)["outcome"])
        self._said.put("the process ended")

    def _next(self) -> str:
        try:
            return self._said.get(timeout=SECONDS)
        except queue.Empty:
            return f"it did not end within {SECONDS:.0f} s"

    def begin(self, folder: Path, directory: str, *, take_over: bool) -> None:
        """See Driver."""
        assert self._process.stdin is not None
        order = {"folder": str(folder), "directory": directory, "take_over": take_over}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._runs = True

    @property
    def running(self) -> bool:
        """See Driver."""
        return self._runs and self._said.empty()

    def outcome(self) -> str:
        """See Driver."""
        found, self._runs = self._next(), False
        return found

    def close(self) -> None:
        """End the process."""
        send(process_tree(self.pid), signal.SIGKILL)
        self._process.wait()


def serve(master: str, secret_file: str) -> int:
    """Be the driver of one run after another, as standard input says; runs in a process of its own."""
    import holdfast as hf
    from holdfast.loading import find_application
    from holdfast.spark.session import start_session

    spark = start_session("paused", master, settings={"spark.cores.max": str(NODES)})
    conf = {
        "spark.holdfast.store.secretFile": secret_file,
        "spark.holdfast.checkpoint.batches": str(CHECKPOINT_BATCHES),
    }
    say(READY)
    for line in sys.stdin:
        order = json.loads(line)
        try:
            run = hf.start(
                find_application(f"{order['folder']}/paused_app.py"),
                spark,
                directory=order["directory"],
                conf=conf,
                available_now=True,
                close=True,
                take_over=order["take_over"],
            )
            run.awaitTermination()
            say(ENDED)
        except hf.HoldfastError as error:
            sys.stderr.write(f"{order}: {error}\n")
            words = {"is over: ": OVER, "its sources were closed with batch": DONE}
            say(next((kind for text, kind in words.items() if text in str(error)), str(error)))
    return 0


def say(outcome: str) -> None:
    """Tell the parent process."""
    sys.stdout.write(json.dumps({"outcome": outcome}) + "\n")
    sys.stdout.flush()


def main() -> int:
    """Freeze, take over, thaw, so often; then compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=50, help="drivers to freeze")
    parser.add_argument("--each", type=int, default=5, help="drivers to freeze in one run")
    parser.add_argument("--files", type=int, default=60, help="files of one run, each a micro-batch")
    parser.add_argument("--rows", type=int, default=50, help="rows of a file")
    parser.add_argument("--seed", type=int, default=1, help="of the moments")
    parser.add_argument("--storage", choices=["files", "s3"], default="files", help="where the run's directory is")
    parser.add_argument("--processes", choices=["new", "kept"], default="new", help="of the drivers")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        return serve(*options.serve)
    draw, frozen, wrong, number = Random(options.seed), 0, 0, 0
    with ExitStack() as held:
        place = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-paused-")))
        if options.storage == "s3":
            server = held.enter_context(S3Server())
            os.environ.update(server.environment)
        cluster = held.enter_context(EmbeddedCluster(2 * NODES))
        kept = []
        if options.processes == "kept":
            for _ in range(2):
                kept.append(KeptDriver(cluster, place / "log"))
                held.callback(kept[-1].close)
        while frozen < options.times:
            number += 1
            folder = place / str(number)
            directory = f"{server.url}/run-{number}" if options.storage == "s3" else str(folder / "run")
            run = PausedRun(folder, directory, draw, options.files, options.rows)
            began = time.monotonic()
            frozen += run.go(
                min(options.each, options.times - frozen), kept or [NewDriver(cluster), NewDriver(cluster)]
            )
            wrong += run.problems()
            seconds = time.monotonic() - began
            print(f"run {number}: {frozen} drivers frozen so far, {wrong} problems, {seconds:.0f} s", flush=True)
            if wrong:
                for log in (place / "log", folder / "log"):
                    print(log.read_text()[-5000:] if log.exists() else "", flush=True)
                break
    print(f"{frozen} drivers frozen and thawed on {options.storage}, {wrong} problems (seed {options.seed})")
    return 1 if wrong else 0


class PausedRun:
    """One run over a folder of files, with the drivers it takes."""

    def __init__(self, folder: Path, directory: str, draw: Random, files: int, rows: int) -> None:
        self._folder, self._directory, self._draw = folder, directory, draw
        self._files, self._rows = files, rows
        (folder / "in").mkdir(parents=True)
        for number in range(files):
            self._write(number)
        (folder / "paused_app.py").write_text(APPLICATION.format(folder=str(folder / "in")))
        self._storage = open_storage(f"{directory}/run")
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

    def go(self, times: int, drivers: list[Any]) -> int:
        """Freeze so many drivers, one after the other, then let the last one end; return how many were frozen."""
        driver, follower = drivers
        frozen = 0
        self._begin(driver, take_over=False)
        while frozen < times:
            if not self._wait(driver, self._draw.choice((0, 1, 1, 2, 4))):
                break
            processes = process_tree(driver.pid) if self._draw.random() < 0.7 else [driver.pid]
            send(processes, signal.SIGSTOP)
            frozen += 1
            try:
                done = not self._begin(follower, take_over=True)
                if not done:
                    self._wait(follower, self._draw.choice((0, 1, 3)))
            finally:
                send(processes, signal.SIGCONT)
            outcome = driver.outcome()
            if done:
                print(f"frozen when everything was out; then: {outcome}")
                self._problems += outcome not in (ENDED, OVER)
                return frozen
            if outcome != OVER:
                print(f"a thawed driver ended otherwise: {outcome}")
                self._problems += 1
            driver, follower = follower, driver
        if (outcome := driver.outcome()) != ENDED:
            print(f"the last driver ended otherwise: {outcome}")
            self._problems += 1
        return frozen

    def _begin(self, driver: Driver, *, take_over: bool) -> bool:
        """Start a driver, and wait until it has the run; False: there is nothing left to do for it."""
        before, deadline = last_driver(self._storage), time.monotonic() + SECONDS
        claim = 0 if before is None else before["claim"]
        driver.begin(self._folder, self._directory, take_over=take_over)
        while (last := last_driver(self._storage)) is None or last["claim"] <= claim:
            if not driver.running and driver.outcome() == DONE:
                return False
            if not driver.running or time.monotonic() > deadline:
                raise SystemExit("nobody takes over:\n" + self._log())
            time.sleep(0.03)
        return True

    def _log(self) -> str:
        logs = [path for path in (self._folder / "log", self._folder.parent / "log") if path.exists()]
        return "\n".join(path.read_text()[-3000:] for path in logs)

    def _wait(self, driver: Driver, batches: int) -> bool:
        """Wait until so many more batches are logged, and a little; False: the driver has ended before."""
        begun, deadline = self._logged(), time.monotonic() + SECONDS
        while self._logged() < begun + batches:
            if not driver.running:
                return False
            if time.monotonic() > deadline:
                raise SystemExit("the driver does nothing:\n" + self._log())
            time.sleep(0.03)
        time.sleep(self._draw.uniform(0, 1.0 if batches else 3.0))
        return driver.running

    def _logged(self) -> int:
        return max((int(name.rpartition("/")[2]) for name in self._storage.list("batches/")), default=-1)

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


if __name__ == "__main__":
    sys.exit(main())
