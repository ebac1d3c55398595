"""The embedded cluster: real processes that come, go and leave nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import NodeId
from holdfast.spark.pinned_jobs import DRIVER, PinnedSlots, executors_of
from holdfast.spark.process_reaper import ProcessReaper, session_of
from holdfast.store.agent.spool import SPOOL_VARIABLE, Spool
from holdfast.topology import Queries
from holdfast_lab.benches.routed_rates import run_routed_rates

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster


def wait_until(condition: Callable[[], bool], seconds: float = 300) -> None:
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


def states_of(session: int) -> dict[int, str]:
    """The processes of a node and how each is: T is frozen."""
    found = {}
    for process in session_of(session):
        try:
            found[process] = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
    return found


def commands_of(session: int) -> list[str]:
    found = []
    for process in session_of(session):
        try:
            found.append(Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode())
        except OSError:
            continue
    return found


def test_a_node_is_one_machine_with_its_agent(spark: SparkSession, cluster: EmbeddedCluster) -> None:
    """Added, used, slowed, frozen, thawed and killed: worker, executor, Python workers and agent alike."""
    node = cluster.add_node()
    context = spark.sparkContext
    wait_until(lambda: node.host in {one.host for one in executors_of(context)})
    cluster.await_agents()
    assert len(cluster.agents) == len(cluster.nodes)
    assert cluster.agents[node.id].host == node.host
    assert cluster.secret_file.stat().st_mode & 0o777 == 0o600

    numbers = count()

    def work() -> str:
        name = f"machine/O1-0/{next(numbers)}.1"

        def save(slot: int, blocks: list[bytes]) -> list[tuple[int, bytes]]:
            spool = Spool(os.environ[SPOOL_VARIABLE])
            spool.save(name, bytes(1000), epoch=1, durable=False)
            return [(DRIVER, str(spool.folder).encode())]

        with PinnedSlots(context, [one for one in executors_of(context) if one.host == node.host]) as slots:
            outcome = slots.run([save])
            assert [report for _, report in outcome.reports] == [str(node.spool).encode()]
        return name

    def all_took_a_fragment() -> bool:
        name, spool = work(), Spool(node.spool)
        wait_until(lambda: (answer := spool.saved(name)) is not None and answer.ok)
        answer = spool.saved(name)
        return answer is not None and answer.fragments == len(cluster.nodes)

    wait_until(all_took_a_fragment)  # again where, just now or on a busy machine, one is not known to all
    running = " ".join(commands_of(node.group))
    for part in (
        "worker.Worker",
        "CoarseGrainedExecutorBackend",
        "holdfast.spark.python_daemon",
        "holdfast.store.agent.agent",
    ):
        assert part in running
    cluster.slow_node(node.id, 0.5)
    work()
    cluster.freeze_node(node.id)
    wait_until(lambda: set(states_of(node.group).values()) == {"T"})
    cluster.thaw_node(node.id)
    wait_until(lambda: "T" not in states_of(node.group).values())
    work()
    cluster.freeze_node(node.id)
    cluster.kill_node(node.id)
    wait_until(lambda: not session_of(node.group))
    assert node.id not in cluster.agents


def test_nothing_is_left_behind_when_the_parent_is_killed(tmp_path: Path) -> None:
    """The reaper ends what a killed parent started, also what has left the group and is frozen, and a folder."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    code = (
        "import subprocess, sys, time\n"
        "from holdfast.spark.process_reaper import ProcessReaper\n"
        "w = ProcessReaper()\n"
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
    wait_until(lambda: not group_lives(group))
    wait_until(lambda: not folder.exists())


def test_a_closed_reaper_has_ended_everything() -> None:
    reaper = ProcessReaper()
    kept = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    ended = subprocess.Popen(["sleep", "3600"], start_new_session=True)
    for process in (kept, ended):
        reaper.watch_group(process.pid)
    reaper.forget_group(kept.pid)
    reaper.close()
    assert ended.wait(120) == -signal.SIGKILL
    assert kept.poll() is None, "what was forgotten is left alone"
    kept.kill()
    kept.wait()


def test_a_reaper_ends_what_left_the_group_and_is_frozen() -> None:
    code = (
        "import os, subprocess, signal, time\n"
        "p = subprocess.Popen(['sleep', '3600'], process_group=0)\n"
        "os.kill(p.pid, signal.SIGSTOP)\n"
        "print(p.pid, flush=True)\n"
        "time.sleep(3600)\n"
    )
    reaper = ProcessReaper()
    leader = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    strayed = int(leader.stdout.readline())
    assert sorted(session_of(leader.pid)) == sorted([leader.pid, strayed])
    assert os.getpgid(strayed) != leader.pid
    reaper.watch_group(leader.pid)
    reaper.close()
    wait_until(lambda: not session_of(leader.pid))
    leader.wait()
    leader.stdout.close()


def test_a_node_that_does_not_end_in_good_order_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sleeping processes stand for nodes: one ends when told to, one does not listen, and one is slowed."""
    from holdfast.spark import cluster as module

    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(module.EmbeddedCluster, "_start_master", lambda self: "spark://127.0.0.1:1")
    for name in ("_form_ring", "await_agents"):
        monkeypatch.setattr(module.EmbeddedCluster, name, lambda self: None)
    monkeypatch.setattr(module.EmbeddedCluster, "_await_workers", lambda self, count: None)
    scripts = iter(["sleep 3600", "trap '' TERM; while true; do sleep 1; done", "sleep 3600"])

    def start_worker(self: EmbeddedCluster, host: str) -> None:
        process = subprocess.Popen(["sh", "-c", next(scripts)], start_new_session=True)
        self._reaper.watch_group(process.pid)
        self._processes[process.pid] = process  # type: ignore[assignment]
        self.nodes[NodeId(host)] = module.Node(NodeId(host), host, process.pid, tmp_path / host)

    monkeypatch.setattr(module.EmbeddedCluster, "_start_worker", start_worker)
    with module.EmbeddedCluster(3) as running:
        willing, deaf, slow = running.nodes.values()
        running.freeze_node(willing.id)
        running.remove_node(willing.id)
        wait_until(lambda: not session_of(willing.group))
        running.remove_node(deaf.id, seconds=0.5)
        wait_until(lambda: not session_of(deaf.group))
        assert list(running.nodes) == [slow.id]
        with pytest.raises(BadInput, match="share above 0"):
            running.slow_node(slow.id, 0)
        running.slow_node(slow.id, 0.3)
        wait_until(lambda: "T" in states_of(slow.group).values())
        wait_until(lambda: "T" not in states_of(slow.group).values())
        running.slow_node(slow.id, 1)
        assert "T" not in states_of(slow.group).values()
        running.slow_node(slow.id, 0.3)
    wait_until(lambda: not session_of(slow.group))


def test_a_cluster_whose_reaper_was_killed_still_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes that sleep stand for the master and a node: what is ended, and how, is the same."""
    from holdfast.spark import cluster as module

    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(module.EmbeddedCluster, "_start_master", lambda self: "spark://127.0.0.1:1")
    monkeypatch.setattr(module.EmbeddedCluster, "_await_workers", lambda self, count: None)

    def start_worker(self: EmbeddedCluster, host: str) -> None:
        process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        self._reaper.watch_group(process.pid)
        self._processes[process.pid] = process  # type: ignore[assignment]

    monkeypatch.setattr(module.EmbeddedCluster, "_start_worker", start_worker)
    running = module.EmbeddedCluster(2)
    groups = list(running._processes)
    running._reaper._process.kill()
    running._reaper._process.wait()
    running.stop()
    assert len(groups) == 2
    assert not any(group_lives(group) for group in groups)
    assert not list(tmp_path.iterdir()), "the folder is gone"


def test_a_cluster_that_is_stopped_while_it_starts_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that sleeps stands for a master that never comes up."""
    from holdfast.spark import cluster as module

    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "find_java_home", lambda: tmp_path)
    begun = threading.Event()

    def start_master(self: EmbeddedCluster) -> str:
        process = subprocess.Popen(["sleep", "3600"], start_new_session=True)
        self._reaper.watch_group(process.pid)
        self._processes[process.pid] = process  # type: ignore[assignment]
        (self.folder / "log").touch()
        begun.set()
        return self._await_line(self.folder / "log", "never there", "the master did not start")[0]

    monkeypatch.setattr(module.EmbeddedCluster, "_start_master", start_master)
    running = module.EmbeddedCluster(2, wait=False)
    assert begun.wait(60)
    groups = list(running._processes)
    running.stop()
    assert groups
    assert not any(group_lives(group) for group in groups)
    for what in (lambda: running.master_url, running.await_ready):
        with pytest.raises(CheckFailed, match="was stopped while it started"):
            what()
    assert not list(tmp_path.iterdir()), "the folder is gone"


def test_what_failed_while_a_cluster_started_is_raised_to_who_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.spark import cluster as module

    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module, "find_java_home", lambda: tmp_path)
    monkeypatch.setattr(module.EmbeddedCluster, "_start_master", lambda self: "spark://127.0.0.1:1")

    def start_worker(self: EmbeddedCluster, host: str) -> None:
        raise CheckFailed("no more processes", where=host)

    monkeypatch.setattr(module.EmbeddedCluster, "_start_worker", start_worker)
    with module.EmbeddedCluster(2, wait=False) as running:
        assert running.master_url == "spark://127.0.0.1:1"
        with pytest.raises(CheckFailed, match="no more processes"):
            running.await_ready()
    with pytest.raises(CheckFailed, match="no more processes"):
        module.EmbeddedCluster(2)
    assert not list(tmp_path.iterdir()), "the folders are gone"
