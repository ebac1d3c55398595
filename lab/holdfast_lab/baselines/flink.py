"""Apache Flink, as something to compare with: a session cluster on loopback, and SQL jobs over files. Runs on a driver.

Flink comes from PyPI (`apache-flink`) into an environment of its own in the user's cache folder, made when it is first
needed: `python -m holdfast_lab.baselines.flink` makes it beforehand. It is no dependency of anything.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from holdfast.errors import BadInput, CheckFailed, one_line
from holdfast.spark.process_reaper import ProcessReaper
from holdfast_lab.s3_server import free_port

VERSION = "2.3.0"
START_SECONDS = 600.0
"""On a busy machine each JVM may take a minute."""
JOB_SECONDS = 3600.0
CHECKPOINT_SECONDS = 10
_CLIENT = """
import json, sys
from pyflink.table import EnvironmentSettings, TableEnvironment

job = json.load(sys.stdin)
table = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
for name, value in job["settings"].items():
    table.get_config().set(name, value)
for statement in job["before"]:
    table.execute_sql(statement)
print(table.execute_sql(job["insert"]).get_job_client().get_job_id())
"""
"""Submits a job and prints its id, in Flink's environment."""


@dataclass(frozen=True, slots=True)
class FlinkJob:
    """What a job took."""

    seconds: float
    """From running to finished, as Flink says."""
    cpu_seconds: float
    """Of JobManager and TaskManagers; the client that submits it not."""


class FlinkCluster:
    """A JobManager and TaskManagers; they end with the block."""

    def __init__(self, task_managers: int, slots: int, *, memory_mb: int = 1728) -> None:
        """Start them, with the given slots and memory for each TaskManager."""
        self._home = flink_home()
        self.parallelism = task_managers * slots
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-flink-"))
        self._reaper = ProcessReaper()
        self._reaper.watch_folder(str(self.folder))
        self._port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        settings = {
            "jobmanager.rpc.address": "127.0.0.1",
            "jobmanager.rpc.port": free_port(),
            "jobmanager.bind-host": "127.0.0.1",
            "jobmanager.memory.process.size": "1024m",
            "taskmanager.bind-host": "127.0.0.1",
            "taskmanager.host": "127.0.0.1",
            "taskmanager.numberOfTaskSlots": slots,
            "taskmanager.memory.process.size": f"{memory_mb}m",
            "parallelism.default": self.parallelism,
            "rest.address": "127.0.0.1",
            "rest.bind-address": "127.0.0.1",
            "rest.port": self._port,
            "execution.checkpointing.interval": f"{CHECKPOINT_SECONDS} s",
            "execution.checkpointing.dir": (self.folder / "checkpoints").as_uri(),
        }
        conf = self.folder / "conf"
        shutil.copytree(self._home / "conf", conf)
        # What its own configuration says of Java's modules stays.
        kept = (conf / "config.yaml").read_text() if (conf / "config.yaml").exists() else ""
        java = [line for line in kept.splitlines() if "--add-exports" in line or "--add-opens" in line]
        options = f"env.java.opts.all: {java[0].strip().removeprefix('all:').strip()}\n" if java else ""
        lines = "".join(f"{name}: {value}\n" for name, value in settings.items())
        (conf / "config.yaml").write_text(lines + options)
        try:
            self._start("jobmanager.sh")
            for _ in range(task_managers):
                self._start("taskmanager.sh")
            self._await_slots()
        except BaseException:
            self.close()
            raise

    def _start(self, script: str) -> None:
        environment = {
            **os.environ,
            "FLINK_CONF_DIR": str(self.folder / "conf"),
            "FLINK_LOG_DIR": str(self.folder),
            "FLINK_PID_DIR": str(self.folder),
        }
        with (self.folder / "out").open("ab") as log:
            one = subprocess.Popen(
                ["bash", str(self._home / "bin" / script), "start-foreground"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        self._processes.append(one)
        self._reaper.watch_group(one.pid)

    def _await_slots(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                if self._ask("/overview")["slots-available"] == self.parallelism:
                    return
            except (OSError, urllib.error.URLError):
                pass
            if time.monotonic() > deadline or any(one.poll() is not None for one in self._processes):
                lines = (self.folder / "out").read_text(errors="replace").splitlines() or ["it printed nothing"]
                raise OSError(f"Flink did not start: {one_line(lines[-1])}")
            time.sleep(0.2)

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}{path}", timeout=10) as answer:
            return json.load(answer)

    def run(self, before: Sequence[str], insert: str) -> FlinkJob:
        """Run a job to its end: statements that define tables, and one INSERT."""
        used = self.cpu_seconds()
        settings = {
            "execution.target": "remote",
            "rest.address": "127.0.0.1",
            "rest.port": str(self._port),
            "parallelism.default": str(self.parallelism),
            "execution.checkpointing.interval": f"{CHECKPOINT_SECONDS} s",
        }
        done = subprocess.run(
            [str(_python()), "-c", _CLIENT],
            input=json.dumps({"settings": settings, "before": list(before), "insert": insert}),
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            cwd=self.folder,
            env={**_plain_environment(), "FLINK_CONF_DIR": str(self.folder / "conf")},
            check=False,
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if "Exception:" in line or "Error:" in line]
            raise CheckFailed(f"Flink does not take the job: {one_line((lines or ['no reason given'])[-1], 500)}")
        number = done.stdout.split()[-1]
        deadline = time.monotonic() + JOB_SECONDS
        while (job := self._ask(f"/jobs/{number}"))["state"] not in ("FINISHED", "FAILED", "CANCELED"):
            if time.monotonic() > deadline:
                raise CheckFailed(f"Flink's job has not ended after {JOB_SECONDS:.0f} s")
            time.sleep(0.2)
        if job["state"] != "FINISHED":
            problems = self._ask(f"/jobs/{number}/exceptions").get("root-exception") or job["state"]
            raise CheckFailed(f"Flink's job failed: {one_line(problems, 500)}")
        times = job["timestamps"]
        return FlinkJob((times["FINISHED"] - times["RUNNING"]) / 1000, self.cpu_seconds() - used)

    def cpu_seconds(self) -> float:
        """Return what JobManager and TaskManagers have used."""
        ticks = 0
        for one in self._processes:  # each script becomes its JVM
            fields = Path(f"/proc/{one.pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(int(field) for field in fields[11:15])
        return ticks / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the cluster and remove its folder."""
        self._reaper.close()
        for one in self._processes:
            one.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _place() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "holdfast"
    return cache / f"flink-{VERSION}"


def _python() -> Path:
    return _place() / "bin" / "python"


def _plain_environment() -> dict[str, str]:
    """Return an environment in which Flink's Python finds its own packages alone."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def flink_home() -> Path:
    """Return where Flink is; makes its environment where it is not there. `BadInput` where it cannot be had."""
    place = _place()
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").exists():
            shutil.rmtree(place, ignore_errors=True)
            for words in (
                [sys.executable, "-m", "venv", str(place)],
                [str(_python()), "-m", "pip", "install", "-q", f"apache-flink=={VERSION}"],
            ):
                done = subprocess.run(words, capture_output=True, text=True, env=_plain_environment(), check=False)
                if done.returncode:
                    lines = (done.stderr or done.stdout).strip().splitlines() or ["it printed nothing"]
                    raise BadInput(
                        f"no Flink: {one_line(lines[-1], 300)}", remedy="let pip reach PyPI or a mirror of it"
                    )
            (place / "made").touch()
    found = list(place.glob("lib/python3*/site-packages/pyflink"))
    if not found:
        raise BadInput("no Flink: its package is not in its environment", remedy=f"remove {place}")
    return found[0]


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{flink_home()}\n")
    except BadInput as missing:
        sys.exit(str(missing))
