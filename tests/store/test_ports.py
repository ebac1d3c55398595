"""Ports that are set: one, a range, or any; who finds one taken takes the next, and the last one says so."""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.store.agent.agent import NodeAgent
from holdfast.store.agent.agent_files import AgentSettings, write_note, write_settings
from holdfast.store.wire.handshake import open_key
from holdfast.store.wire.link import Link, LinkListener, dial
from holdfast.store.wire.ports import Ports, listen_at_first_free

HOST = "127.0.0.1"


@contextmanager
def taken(count: int) -> Iterator[tuple[int, ...]]:
    """Neighbouring ports that others listen at: of those that no system gives away, so they are free afterwards."""
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            for one in held:
                one.close()
            held, first = [], random.SystemRandom().randrange(15_000, 30_000)
            with suppress(OSError):
                held += [socket.create_server((HOST, first + step)) for step in range(count)]
        yield tuple(range(first, first + count))
    finally:
        for one in held:
            one.close()


@pytest.mark.parametrize("text", ["0", "7400", "7400-7409", "1-65535", " 7400 - 7409 "])
def test_ports_are_read_and_written(text: str) -> None:
    assert str(Ports.parse(text)) == text.replace(" ", "")
    assert Ports.parse(text).is_any == (text == "0")


@pytest.mark.parametrize("text", ["", "x", "-1", "65536", "7400-", "7400-x", "7409-7400", "0-10", "7400-70000", "٣"])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be a"):
        Ports.parse(text)


@given(first=st.integers(1, 65000), many=st.integers(1, 500), begin=st.integers(0, 2000))
def test_every_port_of_a_range_is_tried_once_beginning_with_ones_own(first: int, many: int, begin: int) -> None:
    tried = Ports(first, first + many - 1).tried(begin)
    assert sorted(tried) == list(range(first, first + many))
    assert tried[0] == first + begin % many


def test_one_port_is_that_of_the_first_process() -> None:
    assert [Ports(7400, 7400).widened(3).tried(process)[0] for process in range(3)] == [7400, 7401, 7402]
    assert Ports().widened(3).tried(1) == (0,)
    assert Ports(7400, 7401).widened(3) == Ports(7400, 7401), "a range is what it says"
    assert Ports(65535, 65535).widened(3) == Ports(65535, 65535)


def test_a_listener_takes_the_next_free_port_and_says_where_others_reach_it() -> None:
    def on_link(link: Link) -> tuple[object, object]:
        return (lambda *_: None), (lambda *_: None)

    with taken(2) as (first, second):
        ports = [first, second, 0]
        listener = LinkListener(HOST, ports, open_key(), on_link, reached_at="localhost")  # type: ignore[arg-type]
    assert listener.address.port not in (first, second)
    assert listener.address.host == "localhost"
    dial(listener.address, open_key(), {}, lambda *_: None, lambda *_: None).close()
    listener.close()


def test_a_range_of_which_all_are_taken_says_so() -> None:
    with taken(3) as ports, pytest.raises(BadInput) as refused:
        LinkListener(HOST, ports, open_key(), None)  # type: ignore[arg-type]
    assert str(refused.value) == (
        f"cannot listen on {HOST}: all 3 ports from {ports[0]} to {ports[-1]} are taken; "
        "free one of them, or give a wider range"
    )
    with taken(1) as (port,), pytest.raises(BadInput, match=f"{port}: the port is taken; free it, or give another"):
        LinkListener(HOST, port, open_key(), None)  # type: ignore[arg-type]


def test_an_address_that_is_not_of_this_host_is_not_tried_at_other_ports() -> None:
    tried: list[int] = []

    def listen(port: int) -> None:
        tried.append(port)
        raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")

    with pytest.raises(BadInput, match=r"10\.9\.9\.9:7400: cannot assign requested address; choose another host"):
        listen_at_first_free((7400, 7401), "10.9.9.9", listen)
    assert tried == [7400]


@pytest.mark.parametrize("peer", [True, False])
def test_an_agent_takes_a_free_port_of_its_range_and_then_the_same_again(tmp_path: Path, peer: bool) -> None:
    async def serve(settings: AgentSettings) -> str:
        agent = NodeAgent(tmp_path, settings)
        running = asyncio.create_task(agent.run())
        while not (await asyncio.sleep(0.01)) and agent._contact is None:
            if running.done():
                await running
        (tmp_path / "stop").touch()
        await running
        (tmp_path / "stop").unlink()
        assert agent._contact is not None
        return agent._contact

    with taken(3) as (first, second, third):
        settings = AgentSettings(port=first, last_port=third, peer=peer, reached_at="localhost")
        write_settings(tmp_path, settings)
        with pytest.raises(BadInput, match=f"all 3 ports from {first} to {third} are taken"):
            asyncio.run(serve(settings))
    write_note(tmp_path / "agent.json", {"address": f"{HOST}:{second}"})
    assert asyncio.run(serve(settings)) == f"localhost:{second}", "neighbours have that of the agent before it"
    write_note(tmp_path / "agent.json", {"address": f"{HOST}:1"})
    assert asyncio.run(serve(settings)) == f"localhost:{first}", "a port outside of the range is not for agents"
