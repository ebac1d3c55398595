"""Which nodes have fallen silent: pings to every agent, answered by the process itself. Runs on the driver.

Spark sees a dead process at once and a frozen machine after a minute; this sees the frozen one in two to three seconds.
A node is silent when its agent has not answered for `seconds`, several pings in a row. Time counts only while this
process itself was awake: a driver that was starved or frozen for ten seconds has answered from nobody, and blames
nobody. An agent whose process has ended refuses connections: its machine lives, so it is not silent but *agentless*;
Spark tells whether the executor is still there.

    with KeepAlive(cluster.agents, secret_file=cluster.secret_file) as watching:
        watching.silent()
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from holdfast.errors import HoldfastError
from holdfast.ids import NodeId
from holdfast.store.wire.address import Address
from holdfast.store.wire.frames import ConnectionEnded, FrameProtocol
from holdfast.store.wire.greeting import open_frames
from holdfast.store.wire.messages import Kind
from holdfast.store.wire.secret_files import keys_from_file
from holdfast.store.wire.tls import Tls

SECONDS = 2.5
PINGS = 5
"""Pings within the time after which a node is silent; all of them must have been missed."""
FIRST_SECONDS = 30.0
"""An agent that has never answered is given this long."""


@dataclass(slots=True)
class _Watched:
    address: Address
    quiet: float = 0.0
    """Seconds, awake, since the last answer."""
    answered: bool = False
    refused: bool = False
    pings: int = 0
    """Asked since the last answer."""
    task: asyncio.Task[None] | None = None


class KeepAlive:
    """Watches nodes; one daemon thread. Safe to use from any thread."""

    def __init__(
        self,
        agents: Mapping[NodeId, Address] | None = None,
        *,
        secret_file: Path | str | None = None,
        tls: Tls | None = None,
        seconds: float = SECONDS,
        first_seconds: float = FIRST_SECONDS,
    ) -> None:
        """Watch these nodes; `seconds` of silence, with several pings unanswered, make a node silent."""
        self._key = keys_from_file(secret_file)
        self._tls = None if tls is None else tls.context(serving=False)
        self._seconds, self._first = seconds, first_seconds
        self._every = seconds / PINGS
        self._lock = threading.Lock()
        self._watched: dict[NodeId, _Watched] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="holdfast-keepalive", daemon=True)
        self._closed = False
        self._thread.start()
        for node, address in (agents or {}).items():
            self.watch(node, address)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def watch(self, node: NodeId, address: Address) -> None:
        """Watch a node; again with another address where its agent has started anew."""
        with self._lock:
            known = self._watched.get(node)
            if self._closed or (known is not None and known.address == address):
                return
            self._watched[node] = fresh = _Watched(address)
        self._call(self._begin, fresh, known)

    def unwatch(self, node: NodeId) -> None:
        """Watch a node no longer; fine when it was not watched."""
        with self._lock:
            known = self._watched.pop(node, None)
        self._call(self._end, known)

    def silent(self) -> set[NodeId]:
        """Return the nodes that do not answer although something listens there, or nobody says that nothing does."""
        with self._lock:
            return {node for node, one in self._watched.items() if not one.refused and self._is_silent(one)}

    def agentless(self) -> set[NodeId]:
        """Return the nodes whose agent's process is not there: the machine refuses connections to it."""
        with self._lock:
            return {node for node, one in self._watched.items() if one.refused and self._is_silent(one)}

    def answered(self) -> set[NodeId]:
        """Return the nodes that have answered at least once."""
        with self._lock:
            return {node for node, one in self._watched.items() if one.answered}

    def quiet(self) -> dict[NodeId, float]:
        """Return for how long each node has been quiet, in seconds that this process was awake."""
        with self._lock:
            return {node: one.quiet for node, one in self._watched.items()}

    def close(self) -> None:
        """Stop watching."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _is_silent(self, one: _Watched) -> bool:
        limit = self._seconds if one.answered else max(self._first, self._seconds)
        return one.quiet >= limit and (one.pings >= PINGS - 1 or one.refused)

    # On the thread's event loop

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        ticking = self._loop.create_task(self._tick())
        try:
            self._loop.run_forever()
        finally:
            tasks = [ticking, *(one.task for one in self._watched.values() if one.task is not None)]
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.close()

    def _call(self, do: object, *arguments: object) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile: there is nobody left to tell
            self._loop.call_soon_threadsafe(do, *arguments)  # type: ignore[arg-type]

    def _begin(self, fresh: _Watched, before: _Watched | None) -> None:
        self._end(before)
        fresh.task = self._loop.create_task(self._watch(fresh))

    @staticmethod
    def _end(gone: _Watched | None) -> None:
        if gone is not None and gone.task is not None:
            gone.task.cancel()

    async def _tick(self) -> None:
        """Let quiet grow by the time that passed, but by no more than two ticks: the rest this process slept."""
        tick = min(0.1, self._every / 4)
        last = self._loop.time()
        while True:
            await asyncio.sleep(tick)
            # What has arrived is read before time is counted: answers may have waited while this process slept.
            await asyncio.sleep(0)
            now = self._loop.time()
            passed, last = min(now - last, 2 * tick), now
            with self._lock:
                for one in self._watched.values():
                    one.quiet += passed

    async def _watch(self, one: _Watched) -> None:
        """Keep a connection to one agent, and ask over it again and again."""
        while True:
            protocol: FrameProtocol | None = None
            try:
                with self._lock:
                    one.pings += 1
                protocol = await asyncio.wait_for(
                    open_frames(one.address, self._key, self._tls), max(self._seconds, 1.0)
                )
                while True:
                    await protocol.send(Kind.REQUEST, {"do": "ping"})
                    await self._answer(one, protocol)
                    await asyncio.sleep(self._every)
            except ConnectionRefusedError:
                with self._lock:
                    one.refused = True
            except (OSError, TimeoutError, ConnectionEnded, HoldfastError):
                pass  # not answered: the time since the last answer tells
            finally:
                if protocol is not None:
                    protocol.end()
            await asyncio.sleep(self._every)

    async def _answer(self, one: _Watched, protocol: FrameProtocol) -> None:
        """Wait for an answer, counting the pings that fall due meanwhile; a connection is given up with its node."""
        waiting = asyncio.ensure_future(protocol.next())
        try:
            for _ in range(4 * PINGS):
                done, _ = await asyncio.wait([waiting], timeout=self._every)
                if done:
                    waiting.result()
                    with self._lock:
                        one.quiet, one.pings, one.answered, one.refused = 0.0, 0, True, False
                    return
                with self._lock:
                    one.pings += 1
        finally:
            waiting.cancel()
        raise TimeoutError
