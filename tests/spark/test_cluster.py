"""The embedded cluster: real processes that come, go and leave nothing behind."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.spark.routed_rates import run_routed_rates
from holdfast.spark.warden import Warden
from holdfast.topology import Queries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def group_lives(group: int) -> bool:
    """Whether a process of the group runs; one that has ended and waits to be reaped by its parent does not."""
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = status.read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its_group) == group and state not in "ZX":
            return True
    return False


def test_rates_on_spark_are_those_of_the_model(spark: SparkSession) -> None:
    topology, lines = run_routed_rates(spark, seconds=20, seed=7)
    assert len(lines) == len(Queries(topology)) == 8
    for line in lines:
        assert line.difference < 0.05, line


def test_a_killed_node_is_gone_and_a_new_one_joins(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    def executors() -> set[str]:
        status = spark.sparkContext._jsc.sc().statusTracker().getExecutorInfos()
        return {str(one.host()) for one in status} - {"127.0.0.1"}

    node = cluster.add_node()
    wait_until(lambda: node.host in executors())
    cluster.kill_node(node.id)
    wait_until(lambda: not group_lives(node.group))
    wait_until(lambda: node.host not in executors())
    assert spark.range(1000).repartition(4).count() == 1000, "the others go on"


def test_nothing_is_left_behind_when_the_parent_is_killed(tmp_path: Path) -> None:
    """The warden ends what a killed parent started: here a process that would sleep for an hour, and a folder."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    code = (
        "import subprocess, sys, time\n"
        "from holdfast.spark.warden import Warden\n"
        "w = Warden()\n"
        "p = subprocess.Popen(['sleep', '3600'], start_new_session=True)\n"
        "w.watch_group(p.pid)\n"
        f"w.watch_folder({str(folder)!r})\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(3600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    group = int(parent.stdout.readline())
    assert group_lives(group)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: not group_lives(group), 30)
    wait_until(lambda: not folder.exists(), 30)


def test_a_closed_warden_has_ended_everything() -> None:
    warden = Warden()
    kept = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    ended = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    for process in (kept, ended):
        warden.watch_group(process.pid)
    warden.forget_group(kept.pid)
    warden.close()
    assert ended.wait(30) == -signal.SIGKILL
    assert kept.poll() is None, "what was forgotten is left alone"
    kept.kill()
    kept.wait()


def test_a_cluster_whose_warden_was_killed_still_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that sleep stand for the master and a node: what is ended, and how, is the same."""
    from holdfast.spark import cluster as module

    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(module.EmbeddedCluster, "_start_master", lambda self: "spark://127.0.0.1:1")
    monkeypatch.setattr(module.EmbeddedCluster, "_await_workers", lambda self, count: None)

    def start_worker(self: EmbeddedCluster, host: str) -> None:
        process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        self._warden.watch_group(process.pid)
        self._processes[process.pid] = process  # type: ignore[assignment]

    monkeypatch.setattr(module.EmbeddedCluster, "_start_worker", start_worker)
    running = module.EmbeddedCluster(2)
    groups = list(running._processes)
    running._warden._process.kill()
    running._warden._process.wait()
    running.stop()
    assert len(groups) == 2
    assert not any(group_lives(group) for group in groups)
    assert not list(tmp_path.iterdir()), "the folder is gone"
