"""Agents that start by themselves: one to a node, found by all, gone when nobody needs them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import BadInput
from holdfast.ids import NodeId
from holdfast.spark import agents
from holdfast.spark.agents import AgentReport, Roster, agent_settings, ensure_agent, node_spool
from holdfast.spark.pinned_jobs import DRIVER, PinnedSlots, executors_of, own_host
from holdfast.spark.process_reaper import kill_session, session_of
from holdfast.spark.settings import Settings
from holdfast.store.agent.agent_files import AgentSettings, process_began, stop_agent
from holdfast.store.agent.spool import SPOOL_VARIABLE, SaveAnswer, Spool, agent_address

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def wait_until(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.05)


def agents_of(folder: Path) -> list[int]:
    """The agents that run on spools in this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"holdfast.store.agent.agent" in words and any(str(folder).encode() in word for word in words):
            found.append(int(process.name))
    return found


def the_agent_of(folder: Path) -> int:
    """The one agent there; of several that were started at once, the others end when they see it."""
    wait_until(lambda: len(agents_of(folder)) == 1)
    return agents_of(folder)[0]


def saved(spool: Spool, name: str) -> SaveAnswer:
    spool.save(name, bytes(10_000), epoch=1, durable=False)
    wait_until(lambda: (answer := spool.saved(name)) is not None and answer.ok)
    answer = spool.saved(name)
    assert answer is not None
    return answer


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for process in agents_of(tmp_path):
        kill_session(process)


def test_many_tasks_start_one_agent_and_it_ends_after_its_executor(place: Path) -> None:
    spool = place / "spool"
    code = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from holdfast.spark.agents import ensure_agent\n"
        "from holdfast.store.agent.agent_files import AgentSettings\n"
        "settings = AgentSettings(linger=1.0)\n"
        "while not ensure_agent(Path(sys.argv[1]), settings, executor=int(sys.argv[2])).ready:\n"
        "    time.sleep(0.05)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    executor = subprocess.Popen(["sleep", "3600"])
    tasks = [
        subprocess.Popen([sys.executable, "-c", code, str(spool), str(executor.pid)], env=environment) for _ in range(4)
    ]
    assert [task.wait() for task in tasks] == [0, 0, 0, 0]
    agent = the_agent_of(place)
    assert session_of(agent) == [agent], "detached: it outlives the tasks"
    saved(Spool(spool), "run/O1-0/1.1")
    second = subprocess.Popen(["sleep", "3600"])
    assert ensure_agent(spool, AgentSettings(linger=1.0), executor=second.pid).ready, "found again by the next executor"
    wait_until(lambda: ensure_agent(place / "other", AgentSettings(linger=1.0), executor=executor.pid).ready)
    executor.kill()
    executor.wait()
    wait_until(lambda: len(agents_of(place)) == 1)  # by now one that lived with the first has ended
    assert agents_of(place) == [agent], "it lives with the second"
    second.kill()
    second.wait()
    wait_until(lambda: not agents_of(place))
    wait_until(lambda: process_began(agent) is None)  # a process that ends has no command line first


def test_an_agent_whose_run_is_over_ends_and_can_be_started_again(place: Path) -> None:
    spool, settings = place / "spool", AgentSettings()
    wait_until(lambda: ensure_agent(spool, settings, executor=os.getpid()).ready)
    first = the_agent_of(place)
    stop_agent(spool)
    wait_until(lambda: not agents_of(place))
    os.utime(spool / "started", (1, 1))
    wait_until(lambda: ensure_agent(spool, settings, executor=os.getpid()).ready)
    assert agents_of(place) != [first]


def test_an_agent_is_started_again_although_the_clock_was_set_back(tmp_path: Path) -> None:
    assert not agents._just_started(tmp_path)
    (tmp_path / "started").touch()
    assert agents._just_started(tmp_path)
    for age in (-7200, agents.START_SECONDS + 1):
        os.utime(tmp_path / "started", (time.time() - age,) * 2)
        assert not agents._just_started(tmp_path)


def test_with_peers_given_an_agent_keeps_no_fragments(place: Path) -> None:
    wait_until(lambda: ensure_agent(place / "peer", AgentSettings(), executor=os.getpid()).ready)
    peer = agent_address(place / "peer")
    settings = agent_settings(Settings(store_peers=(str(peer),)), "127.0.0.1")
    wait_until(lambda: ensure_agent(place / "spool", settings, executor=os.getpid()).ready)
    assert not (place / "spool" / "peer").exists()
    assert saved(Spool(place / "spool"), "run/O1-0/1.1").fragments == 1


def test_beyond_loopback_a_secret_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"spark.holdfast.store.secretFile: will not serve 10.0.0.7 without a secret"):
        agent_settings(Settings(), "10.0.0.7")
    assert agent_settings(Settings(store_secret_file="/s"), "10.0.0.7").secret_file == "/s"
    monkeypatch.setenv(SPOOL_VARIABLE, str(tmp_path))
    assert node_spool("any") == tmp_path
    monkeypatch.delenv(SPOOL_VARIABLE)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert node_spool("a", "h") != node_spool("b", "h")
    assert node_spool("a", "h").name == "h"


def test_the_roster_names_one_first_and_only_when_it_is_sure() -> None:
    a, b, c = NodeId("a"), NodeId("b"), NodeId("c")
    roster = Roster()
    roster.add({a: AgentReport("s", "127.0.0.3:1", ready=False), b: AgentReport("s", None, ready=False)})
    assert roster.join([a, b]) == (), "b may be anyone"
    roster.add({b: AgentReport("s", "127.0.0.2:1", ready=False)})
    assert roster.join([a, b]) == ("127.0.0.2:1", "127.0.0.3:1")
    roster.add({a: AgentReport("s", "127.0.0.3:1", ready=True)})
    assert roster.join([a, b, c]) == ("127.0.0.3:1", "127.0.0.2:1"), "those of the ring first, and c joins them"
    assert not roster.ready([a, b])
    roster.lose(b)
    assert roster.ready([a])
    assert set(roster.addresses()) == {a}


def test_executors_of_one_host_share_an_agent_that_is_counted_once() -> None:
    """Saves wanted to survive a share of the agents that the driver named: two on a host were two."""
    nodes = [NodeId("a"), NodeId("b"), NodeId("c")]
    roster = Roster()
    shared = AgentReport("s", "10.0.0.1:1", ready=True)
    roster.add({nodes[0]: shared, nodes[1]: shared, nodes[2]: AgentReport("t", "10.0.0.2:1", ready=False)})
    assert roster.join(nodes) == ("10.0.0.1:1", "10.0.0.2:1")
    roster.add({nodes[1]: AgentReport("s", "10.0.0.1:1", ready=False)})
    assert roster.join(nodes) == ("10.0.0.1:1", "10.0.0.2:1")
    roster.lose(nodes[0])
    assert set(roster.join(nodes[1:])) == {"10.0.0.1:1", "10.0.0.2:1"}, "the other executor is still there"


@pytest.mark.cluster
def test_executors_start_agents_that_find_each_other(spark: SparkSession, place: Path) -> None:
    """As on a user's cluster: no agent is there, tasks start them, the driver tells them of each other."""
    context = spark.sparkContext
    executors = executors_of(context)
    nodes = [NodeId(one.host) for one in executors]
    roster = Roster()
    with PinnedSlots(context, executors) as slots:
        while not roster.ready(nodes):
            join, folder = roster.join(nodes), str(place)

            def task(
                slot: int, blocks: list[bytes], join: tuple[str, ...] = join, folder: str = folder
            ) -> list[object]:
                spool = Path(folder) / own_host()
                report = ensure_agent(spool, agent_settings(Settings(), own_host()), join)
                return [(DRIVER, (own_host(), report))]

            outcome = slots.run([task])  # type: ignore[list-item]
            roster.add({NodeId(host): report for _, (host, report) in outcome.reports})  # type: ignore[misc]
    wait_until(lambda: len(agents_of(place)) == len(nodes))
    spools = [Spool(place / host) for host in nodes]
    names: list[str] = []

    def all_took_a_fragment() -> bool:
        names.append(f"own/O1-0/{len(names)}.1")
        return saved(spools[0], names[-1]).fragments == len(nodes)

    wait_until(all_took_a_fragment)  # one ring; where they have only just met, not yet the first time
    spools[-1].fetch(names[-1])
    wait_until(lambda: spools[-1].fetched(names[-1]) is not None)
