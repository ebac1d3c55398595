"""An agent whose disk is full goes on with everything that needs no disk."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.store.agent import agent as agents
from holdfast.store.agent.agent_files import AgentSettings, enter_ring
from holdfast.store.agent.spool import make_folders


class Neighbours:
    """A peer that knows one other, and is to meet two."""

    def __init__(self) -> None:
        self.met: list[Sequence[str]] = []

    def neighbours(self) -> list[str]:
        return ["b:1"]

    def meet(self, addresses: Sequence[str]) -> None:
        self.met.append(tuple(addresses))


def test_it_still_meets_the_peers_that_the_driver_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else an agent that the others gave up while its disk was full would stay alone when there is room again."""
    make_folders(tmp_path)
    enter_ring(tmp_path, ["b:1", "c:1"])
    peer, room, seconds = Neighbours(), [False], [0]

    def write_note(path: Path, plain: dict[str, Any]) -> None:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(plain)

    async def sleep(_: float) -> None:
        seconds[0] += 1
        room[0] = seconds[0] > 10
        if seconds[0] > 20:
            raise asyncio.CancelledError

    async def remember() -> None:
        agent = agents.NodeAgent(tmp_path, AgentSettings(wait_for_ring=True))
        agent._peer = cast(Any, peer)
        monkeypatch.setattr(asyncio, "sleep", sleep)
        with pytest.raises(asyncio.CancelledError):
            await agent._remember_ring()

    written: list[dict[str, Any]] = []
    monkeypatch.setattr(agents, "write_note", write_note)
    asyncio.run(remember())
    assert len(peer.met) == 20 // agents.MEET_SECONDS
    assert written == [{"peers": ["b:1"]}], "once, when there is room"
