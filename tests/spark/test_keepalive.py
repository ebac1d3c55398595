"""Keep-alives: frozen nodes are found, slow and busy ones are left alone, and a driver that slept blames nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.ids import NodeId
from holdfast.spark.keepalive import KeepAlive
from holdfast.store.wire.address import Address
from holdfast_lab.testing.agents_on_loopback import AgentsOnLoopback

NODES = [NodeId(f"node-{number}") for number in range(3)]


def wait_until(condition: Callable[[], object], seconds: float = 300) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.02)


@pytest.fixture(scope="module")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentsOnLoopback]:
    with AgentsOnLoopback(3, tmp_path_factory.mktemp("agents")) as running:
        yield running


def watching(agents: AgentsOnLoopback, seconds: float = 1.0) -> KeepAlive:
    addresses = {node: agents.address(number) for number, node in enumerate(NODES)}
    return KeepAlive(addresses, secret_file=agents.settings.secret_file, seconds=seconds)


def all_answer(keepalive: KeepAlive, nodes: list[NodeId] = NODES) -> bool:
    quiet = keepalive.quiet()
    heard = keepalive.answered().issuperset(nodes)
    return heard and all(quiet[node] < 0.5 for node in nodes) and not keepalive.silent()


def others_answer(keepalive: KeepAlive, frozen: NodeId) -> bool:
    quiet = keepalive.quiet()
    return all(quiet[node] < 1.0 or node == frozen for node in NODES)


def test_a_frozen_node_is_silent_until_it_is_thawed(agents: AgentsOnLoopback) -> None:
    with watching(agents) as keepalive:
        wait_until(lambda: all_answer(keepalive))
        agents.freeze([1])
        wait_until(lambda: keepalive.silent() == {NODES[1]} and others_answer(keepalive, NODES[1]))
        agents.thaw([1])
        wait_until(lambda: all_answer(keepalive))


def test_a_dead_agent_is_told_apart_and_may_come_back(agents: AgentsOnLoopback) -> None:
    with watching(agents) as keepalive:
        wait_until(lambda: all_answer(keepalive))
        agents.kill([2])
        # Together: on a busy machine one of the others may be silent for a moment.
        wait_until(lambda: (keepalive.agentless(), keepalive.silent()) == ({NODES[2]}, set()))
        agents.start([2])
        keepalive.watch(NODES[2], agents.address(2))
        wait_until(lambda: all_answer(keepalive) and not keepalive.agentless())


def test_who_is_not_watched_is_not_told_of(agents: AgentsOnLoopback) -> None:
    with watching(agents) as keepalive:
        wait_until(lambda: all_answer(keepalive))
        agents.freeze([0, 1])
        wait_until(lambda: keepalive.silent() == {NODES[0], NODES[1]})
        busy = {NODES[2]}  # it may be silent for a moment, on a busy machine
        keepalive.unwatch(NODES[0])
        assert keepalive.silent() - busy == {NODES[1]}
        keepalive.unwatch(NODES[1])
        keepalive.unwatch(NODES[1])
        assert keepalive.silent() - busy == set()
        agents.thaw([0, 1])
        keepalive.watch(NODES[0], agents.address(0))
        wait_until(lambda: NODES[0] in keepalive.quiet() and all_answer(keepalive, [NODES[0], NODES[2]]))


def test_one_that_never_answered_is_given_longer(agents: AgentsOnLoopback) -> None:
    nobody = {NodeId("late"): Address("127.0.0.9", 1)}
    secret = agents.settings.secret_file
    with KeepAlive(nobody, secret_file=secret, seconds=0.3, first_seconds=3600) as keepalive:
        wait_until(lambda: keepalive.quiet()[NodeId("late")] > 0.6)
        assert keepalive.silent() == keepalive.agentless() == set()
    with KeepAlive(nobody, secret_file=secret, seconds=0.3, first_seconds=1.5) as keepalive:
        wait_until(lambda: keepalive.agentless() == {NodeId("late")})
        assert keepalive.quiet()[NodeId("late")] >= 1.5


def test_a_driver_that_was_frozen_blames_nobody(agents: AgentsOnLoopback, tmp_path: Path) -> None:
    """The driver is frozen for longer than the limit; when it wakes up, its first look must show no silent node."""
    code = (
        "import sys, time\n"
        "from holdfast.spark.keepalive import KeepAlive\n"
        "from holdfast.store.wire.address import Address\n"
        "agents = {str(n): Address.parse(one) for n, one in enumerate(sys.argv[2:])}\n"
        "seen = set()\n"
        "with KeepAlive(agents, secret_file=sys.argv[1], seconds=5.0) as keepalive:\n"
        "    while keepalive.answered() != set(agents):\n"
        "        time.sleep(0.01)\n"
        "    end = None\n"
        "    last = time.monotonic()\n"
        "    print('begun', flush=True)\n"
        "    while end is None or time.monotonic() < end:\n"
        "        seen |= keepalive.silent()\n"
        "        now = time.monotonic()\n"
        "        if now - last > 6.0 and end is None:\n"
        "            end = now + 2\n"
        "        last = now\n"
        "        time.sleep(0.002)\n"
        "print('silent', sorted(seen), flush=True)\n"
    )
    addresses = [str(agents.address(number)) for number in range(3)]
    driver = subprocess.Popen(
        [sys.executable, "-c", code, str(agents.settings.secret_file), *addresses],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "begun\n"
    driver.send_signal(signal.SIGSTOP)
    time.sleep(8.0)  # not for luck: for so long it is frozen
    driver.send_signal(signal.SIGCONT)
    assert driver.stdout.readline() == "silent []\n"
    assert driver.wait() == 0
    driver.stdout.close()
