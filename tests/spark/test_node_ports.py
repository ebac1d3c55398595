"""A node whose ports are taken: the driver says so in one line, and agents and processes say where they are reached."""

from __future__ import annotations

import queue
import socket
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast.errors import BadInput
from holdfast.ids import NodeId
from holdfast.spark.agents import AgentReport, Roster, agent_settings, ensure_agent
from holdfast.spark.held_nodes import HeldNode, HeldProcess
from holdfast.spark.resident_backend import ResidentBackend
from holdfast.spark.resident_node import NodeIdentity, ResidentNode
from holdfast.spark.settings import PREFIX, Settings
from holdfast.store.agent.agent_files import AgentSettings, note_problem
from holdfast.store.wire.handshake import open_key
from holdfast.store.wire.link import LinkListener
from holdfast.store.wire.ports import Ports

NODE = NodeId("n1")


def driver(lines: list[str]) -> ResidentBackend:
    backend = object.__new__(ResidentBackend)
    held = HeldNode(NODE, Mock(), [HeldProcess(NodeId("n1#0")), HeldProcess(NodeId("n1#1"))], token="t")
    backend._held, backend._stopped, backend._pings, backend._cycle = {NODE: held}, False, Mock(), None
    backend._came, backend._logged, backend._log, backend.sinks = queue.SimpleQueue(), set(), lines.append, None
    backend._reports, backend._woken = [], False
    return backend


def process(identity: NodeIdentity, index: int) -> ResidentNode:
    node = object.__new__(ResidentNode)
    node._identity, node._index, node._key, node._tls = identity, index, open_key(), None
    node._on_subscriber = Mock()  # type: ignore[method-assign]
    return node


def test_the_driver_says_once_that_a_node_finds_no_free_port() -> None:
    lines: list[str] = []
    backend = driver(lines)
    listener = LinkListener("127.0.0.1", 0, open_key(), backend._on_link)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        identity = NodeIdentity(NODE, "1", "127.0.0.1", "t", str(listener.address), Ports(port, port))
        for _ in range(2):  # it is started again
            with pytest.raises(BadInput, match="the port is taken"):
                process(identity, 1)._listening(None)
            came = backend._came.get(timeout=60)
            assert came is not None
            backend._take(came)
    listener.close()
    assert lines == [
        f"n1 cannot be used: cannot listen on 127.0.0.1:{port}: the port is taken; free it, or give another port or a "
        f"range ({PREFIX}exchange.port, {PREFIX}node.bindAddress)"
    ]
    assert backend._held[NODE].links == [], "it is no connection of a process that works"


def test_processes_of_a_node_and_of_a_second_one_on_its_host_share_a_range() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        first = free.getsockname()[1]
    identity = NodeIdentity(NODE, "1", "127.0.0.1", "t", "127.0.0.1:1", Ports(first, first + 40), None, "localhost")
    listeners = [process(identity, index)._listening(None) for index in (1, 0, 1, 0)]
    ports = [one.address.port for one in listeners]
    for one in listeners:
        one.close()
    assert len(set(ports)) == 4
    assert all(first <= port <= first + 40 for port in ports)
    assert {one.address.host for one in listeners} == {"localhost"}


def test_a_range_that_is_smaller_than_a_node_is_refused() -> None:
    with pytest.raises(
        BadInput, match=r"spark.holdfast.exchange.port: 7410-7411 leaves no ports for 3 processes; each"
    ):
        Settings.of({f"{PREFIX}exchange.port": "7410-7411", f"{PREFIX}node.processes": "3"})
    settings = Settings.of({f"{PREFIX}exchange.port": "7410-7411"})
    assert settings.exchange_ports(2) == Ports(7410, 7411)
    with pytest.raises(BadInput, match="for 3 processes"):  # spark.task.cpus is known only later
        settings.exchange_ports(3)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("store.port", "7420-x", "'7420-x': must be a port (7400), a range of ports (7400-7409) up to 65535, or 0"),
        ("driver.port", "7409-7400", "must be a range from a port above 0 up to one that is not lower"),
        ("node.bindAddress", "10.0.0.5:7400", "must be a host's name or number, without a port"),
        ("node.addresses", "a=10.0.0.1:7400", "a=10.0.0.1:7400: must be a host's name or number, without a port"),
        ("node.addresses", "a", "must be HOST=ADDRESS,…"),
    ],
)
def test_what_is_no_port_or_address_is_refused(key: str, text: str, message: str) -> None:
    with pytest.raises(BadInput) as refused:
        Settings.of({PREFIX + key: text})
    assert f"{PREFIX}{key}: " in str(refused.value)
    assert message in str(refused.value)


def test_agents_listen_and_are_reached_where_settings_say() -> None:
    given = {"store.port": "7420-7423", "node.bindAddress": "0.0.0.0", "node.addresses": "pod-1=10.0.0.7"}
    settings = Settings.of({PREFIX + key: text for key, text in given.items()} | {f"{PREFIX}store.secretFile": "/s"})
    agent = agent_settings(settings, "pod-1")
    assert (agent.host, agent.port, agent.last_port, agent.reached_at) == ("0.0.0.0", 7420, 7423, "10.0.0.7")
    assert agent_settings(settings, "pod-2").reached_at == "pod-2"
    with pytest.raises(BadInput, match=r"will not serve 0\.0\.0\.0 without a secret"):
        agent_settings(Settings(node_bind_address="0.0.0.0"), "127.0.0.1")


def test_an_agent_that_finds_no_free_port_is_reported_until_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []
    monkeypatch.setattr("holdfast.spark.agents._start", lambda spool, own_session: started.append(spool))
    settings = AgentSettings(port=7420, last_port=7421, reached_at="10.0.0.7")
    (tmp_path / "orders").mkdir()
    note_problem(tmp_path, "of another run")
    look: Callable[[], AgentReport] = lambda: ensure_agent(tmp_path, settings, executor=1)  # noqa: E731
    assert look().degraded is None, "what an earlier run met may be over"
    assert started == [tmp_path]
    note_problem(tmp_path, "cannot listen on 10.0.0.7: all 2 ports from 7420 to 7421 are taken; free one of them")
    found = look()
    assert found.degraded == (
        "the store agent of 10.0.0.7 does not start, and is tried again: cannot listen on 10.0.0.7: all 2 ports from "
        f"7420 to 7421 are taken; free one of them ({PREFIX}store.port)"
    )
    assert found.address is None


def test_agents_form_a_ring_without_one_that_does_not_start() -> None:
    a, b = NodeId("a"), NodeId("b")
    roster = Roster()
    roster.add({a: AgentReport("s", "127.0.0.3:1", ready=False), b: AgentReport("s", None, ready=False)})
    assert roster.join([a, b]) == (), "b may start in a moment"
    roster.add({b: AgentReport("s", None, ready=False, degraded="its port is taken")})
    assert roster.join([a, b]) == ("127.0.0.3:1",)
    roster.add({b: AgentReport("s", None, ready=False)})
    assert roster.join([a, b]) == ()
    roster.add({b: AgentReport("s", "127.0.0.2:1", ready=False, degraded="one peer of two answers")})
    assert roster.join([a, b]) == ("127.0.0.2:1", "127.0.0.3:1")
