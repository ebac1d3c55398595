"""A node's agent: its store peer, and the background work for the tasks on it. Runs as a process of its own.

    python -m holdfast.store.agent.agent SPOOL

The agent reads SPOOL/settings.json (`AgentSettings`), locks SPOOL/agent.lock so that a spool has one agent, listens,
writes its address to SPOOL/agent.json, and serves the orders in the spool until SPOOL/stop exists. The peers through
which it joins the ring are in the settings, or in SPOOL/ring.json once all agents are known (`enter_ring`): all agents
can therefore start at once, on ports that the system chooses. An agent that is killed and started again continues with
its fragments, its place on the ring and the pending orders.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from holdfast.erasure.layout import Coding
from holdfast.errors import HoldfastError
from holdfast.store.agent.acknowledging import losses_wanted
from holdfast.store.agent.agent_files import (
    AgentSettings,
    note_problem,
    process_began,
    read_note,
    read_settings,
    with_code,
    write_note,
)
from holdfast.store.agent.durable_folder import DurableFolder
from holdfast.store.agent.spool import make_folders
from holdfast.store.agent.spool_expiry import sweep_spools
from holdfast.store.agent.spool_orders import FragmentStore, SpoolServiceSettings
from holdfast.store.agent.spool_service import SpoolService
from holdfast.store.client.scatter import scatter
from holdfast.store.peer.limits import Limits
from holdfast.store.peer.peer import RING, Entrance, Peer, PeerSettings
from holdfast.store.ring.messages import Contact
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import BadRequest
from holdfast.store.wire.frames import FrameProtocol
from holdfast.store.wire.listener import Answer, Listener
from holdfast.store.wire.messages import Frame
from holdfast.store.wire.ports import Ports
from holdfast.store.wire.secret_files import keys_from_file
from holdfast.store.wire.tls import TlsFiles

if TYPE_CHECKING:
    from holdfast.store.client.client import ClientSettings, PeerStore
    from holdfast.store.client.states import Saved
    from holdfast.store.client.tuning import CodeChoice

log = logging.getLogger("holdfast.store.agent")
MEET_SECONDS = 3
"""Seconds between two attempts to contact peers of SPOOL/ring.json that are unknown to this agent."""
FIRST_SECONDS = 5.0
"""Seconds for which the ring's first peer, after a restart, tries the others before it starts a new ring."""


class NodeAgent:
    """A running agent. Use `run`."""

    def __init__(self, spool: Path, settings: AgentSettings) -> None:
        """Take over the spool; nothing listens yet."""
        self._spool, self._started_with = spool, settings
        self._settings = with_code(settings, read_note(spool / "code.json"))
        self._stop = asyncio.Event()
        self._peer: Peer | None = None
        durable = None if settings.durable is None else DurableFolder(Path(settings.durable))
        uses_ring = settings.peer or bool(settings.peers)
        self._service = SpoolService(
            spool,
            self._open_store if uses_ring else None,
            durable,
            SpoolServiceSettings(
                settle=settings.settle,
                wanted_losses=self._wanted_losses,
                tolerant=self._is_tolerant,
                on_degraded=self._note_degraded,
            ),
        )
        self._degraded: str | None = None
        self._codes: dict[float, dict[str, Any]] = {}
        """What the tuner has chosen, by size of state."""
        self._store: PeerStore | None = None
        self._known: tuple[str, ...] = ()
        """The agents that the driver named last."""
        self._went: list[tuple[int, int]] = []
        """Agents there were, and how many of them the driver gave up together; not told to the tuner yet."""
        self._contact: str | None = None
        self._noting = threading.Lock()
        self._tls = None if settings.tls is None else TlsFiles(*settings.tls, names=True)
        self._faults: dict[str, Any] | None = None

    async def run(self) -> None:
        """Serve until the agent is stopped."""
        settings = self._settings
        life = asyncio.create_task(self._end_in_time())
        notes = asyncio.create_task(self._remember_ring())
        try:
            if settings.peer:
                await self._run_peer()
            else:
                await self._run_without_peer()
        finally:
            life.cancel()
            notes.cancel()
            await asyncio.get_running_loop().run_in_executor(None, self._service.stop)

    async def _run_peer(self) -> None:
        settings = self._settings
        wanted = PeerSettings(
            data=self._spool / "peer",
            host=settings.host,
            ports=self._ports(),
            reached_at=settings.reached_at,
            secret_file=settings.secret_file,
            tls=self._tls,
            domain=settings.domain,
            limits=replace(Limits(), memory_bytes=settings.memory_mb << 20),
            ring=replace(RING, keep_alive=settings.keep_alive),
        )
        self._peer = Peer(wanted)
        await self._peer.run(self._ready, self._entrance)

    async def _run_without_peer(self) -> None:
        """Only answer pings, so that a frozen node is found; peers elsewhere keep the fragments."""
        settings = self._settings
        serving = None if self._tls is None else self._tls.context(serving=True)
        listener = Listener(keys_from_file(settings.secret_file), Limits(), _only_ping, lambda note: None, serving)
        port = await listener.open(settings.host, self._ports())
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._stop.set)
        self._service.start()
        self._listens(str(Address(settings.reached_at or settings.host, port)))
        await self._stop.wait()
        await listener.close()

    async def _entrance(self, contact: Contact) -> Entrance:
        """Publish this agent's address, then wait for the peers through which it joins the ring."""
        self._listens(contact.address)
        settings, join = self._settings, self._settings.peers
        if settings.wait_for_ring:
            while (entrance := read_note(self._spool / "ring.json")) is None:
                await asyncio.sleep(0.02)
            join = tuple(entrance["join"])
        first = contact.address in join[:1] or not join
        known = tuple(str(one) for one in (read_note(self._spool / "known.json") or {}).get("peers", ()))
        others = [one for one in dict.fromkeys((*known, *join)) if one != contact.address]
        if first and not known:
            return Entrance()
        # A restarted agent must not start a second ring only because the others respond slowly.
        timeout = min(FIRST_SECONDS, settings.join_seconds) if first else settings.join_seconds
        ready = await self._ready_among(others, timeout)
        return Entrance(tuple(ready or others), settings.join_seconds if ready else 1.0, or_begin=first)

    async def _ready_among(self, peers: list[str], seconds: float) -> list[str]:
        """Wait until one of these has joined the ring; peers that are still joining cannot admit another."""
        loop = asyncio.get_running_loop()
        pool = ConnectionPool(
            keys_from_file(self._settings.secret_file), self._tls, connect_seconds=1.0, answer_seconds=1.0
        )

        def ready() -> list[str]:
            outcomes = scatter(peers, lambda peer: pool.request(Address.parse(peer), "ping", {}), seconds=1.5)
            return [one.asked for one in outcomes if one.result is not None and one.result.header.get("ready")]

        deadline = loop.time() + seconds
        try:
            while not (found := await loop.run_in_executor(None, ready)) and loop.time() < deadline:
                await asyncio.sleep(0.05)
        finally:
            pool.close()
        return found

    def _ready(self, contact: Contact, others: int) -> None:
        log.info("agent %s joined the ring; it knows %d other peers", contact.address, others)
        self._service.start()
        if (self._spool / "executor").exists():
            # The agent may outlive the folder it was imported from: modules that it needs later are imported now.
            threading.Thread(target=import_module, args=("holdfast.store.client.client",), daemon=True).start()
        write_note(self._spool / "agent.json", {**self._about(contact.address), "ready": True})

    def _listens(self, address: str) -> None:
        self._contact = address
        note_problem(self._spool, None)
        write_note(self._spool / "agent.json", {**self._about(address), "ready": not self._settings.peer})

    def _about(self, address: str) -> dict[str, Any]:
        return {
            "address": address,
            "pid": os.getpid(),
            "began": time.time(),
            "degraded": self._degraded,
            "codes": list(self._codes.values()),
        }

    def _note_degraded(self, line: str | None) -> None:
        """Let the driver know what saves lack."""
        self._degraded = line
        self._note(degraded=line)

    def _note_code(self, choice: CodeChoice) -> None:
        """Let the driver know which code the next saves have, and why."""
        self._codes[choice.state_bytes] = asdict(choice)
        log.info("code %d+%d: %s", choice.data, choice.parity, choice.reason)
        self._note(codes=list(self._codes.values()))

    def _note(self, **fields: Any) -> None:
        with self._noting:
            note = read_note(self._spool / "agent.json")
            if note is not None:
                write_note(self._spool / "agent.json", {**note, **fields})

    def _is_tolerant(self) -> bool:
        settings = self._settings
        return settings.survive != 0 if settings.parity_fragments is None else settings.parity_fragments > 0

    def _known_peers(self) -> int:
        """Return how many agents the driver knows; 0 where it does not name them."""
        if not self._settings.wait_for_ring:
            return 0
        return len((read_note(self._spool / "ring.json") or {}).get("join", ()))

    def _wanted_losses(self, saved: Saved) -> int:
        """Return how many losses a save must survive: of the agents that the driver knows, or of the peers reached."""
        settings = self._settings
        coding = None
        if settings.data_fragments is not None and settings.parity_fragments is not None:
            coding = Coding(settings.data_fragments, settings.parity_fragments)
        return losses_wanted(saved.coding, saved.peers, self._known_peers(), settings.survive, coding)

    def _count_losses(self, join: Sequence[str]) -> None:
        """Take the agents that the driver names: those that it names no more were lost together."""
        before, self._known = self._known, tuple(join)
        if lost := len(set(before) - set(join)):
            self._went.append((len(before), lost))
        store = self._store
        while self._went and store is not None:
            store.tuner.peers_went(*self._went.pop(0))

    def _ports(self) -> tuple[int, ...]:
        """Return the ports to try, that of the previous agent on this spool first: neighbours have it in their tables.

        Where ports are set and that is none of them, it is not tried: a firewall lets only these through.
        """
        settings, before = self._settings, read_note(self._spool / "agent.json")
        wanted = Ports(settings.port, settings.last_port or settings.port).tried()
        if before is None:
            return wanted
        earlier = Address.parse(before["address"]).port
        return tuple(dict.fromkeys((earlier, *wanted))) if not settings.port or earlier in wanted else wanted

    async def _remember_ring(self) -> None:
        """Write the ring's members to disk for a restart; contact peers of SPOOL/ring.json that are unknown here.

        A node that was frozen while all its neighbours were replaced is in no other peer's tables when it resumes.
        """
        written: list[str] = []
        for second in count(1):
            await asyncio.sleep(1.0)
            if self._peer is None:
                continue
            if (others := self._peer.neighbours()) and others != written:
                with contextlib.suppress(OSError):  # a full disk: written when there is room; peers are met meanwhile
                    write_note(self._spool / "known.json", {"peers": others})
                    written = others
            join = (read_note(self._spool / "ring.json") or {}).get("join", ())
            self._count_losses(join)
            if second % MEET_SECONDS == 0:
                self._peer.meet(join)

    async def _end_in_time(self) -> None:
        """Stop when SPOOL/stop exists, or when the executor exited more than `linger` seconds ago."""
        gone_since: float | None = None
        while True:
            await asyncio.sleep(0.5)
            self._take_faults()
            self._take_code()
            executor = read_note(self._spool / "executor")
            alive = executor is None or process_began(executor["pid"]) == executor["began"]
            gone_since = None if alive else gone_since or time.monotonic()
            overdue = gone_since is not None and time.monotonic() - gone_since >= self._settings.linger
            if overdue or (self._spool / "stop").exists():
                log.info("stopping: %s", "the executor has exited" if overdue else "the stop file exists")
                self._stop.set()
                if self._peer is not None:
                    self._peer.stop()
                return

    def _take_code(self) -> None:
        """Code the next saves as SPOOL/code.json says; saves that are under way end with the code they began with."""
        wanted = with_code(self._started_with, read_note(self._spool / "code.json"))
        if wanted != self._settings:
            self._settings = wanted
            if self._store is not None:
                self._store.settings = self._client_settings()

    def _take_faults(self) -> None:
        """Drop messages as SPOOL/faults.json asks for (drills)."""
        asked = read_note(self._spool / "faults.json")
        if self._peer is None or asked is None or asked == self._faults:
            return
        self._faults = asked
        draws, share = random.Random(asked["seed"]), float(asked["lose"])
        self._peer.listener.lose = lambda: draws.random() < share

    def _open_store(self) -> FragmentStore:
        # The client brings the code and its libraries: loaded by the first order, so that agents start fast.
        from holdfast.store.client.client import PeerStore

        self._store = PeerStore(self._client_settings(), known_peers=self._known_peers, on_code=self._note_code)
        return self._store

    def _client_settings(self) -> ClientSettings:
        from holdfast.store.client.client import ClientSettings
        from holdfast.store.client.tuning import TuningGoals

        settings = self._settings
        coding, fewest = None, settings.fewest_peers
        if settings.data_fragments is not None and settings.parity_fragments is not None:
            coding = Coding(settings.data_fragments, settings.parity_fragments)
            fewest = max(fewest, coding.total)
        own = (self._contact,) if settings.peer and self._contact is not None else ()
        return ClientSettings(
            (*own, *settings.peers),
            settings.secret_file,
            self._tls,
            coding=coding,
            survive=settings.survive,
            fewest_peers=fewest,
            # A restore happens because a node is lost, and with it a fragment.
            goals=TuningGoals(reliability=settings.reliability, gone=1),
        )


async def _only_ping(protocol: FrameProtocol, frame: Frame) -> Answer:
    if frame.header.get("do") != "ping":
        raise BadRequest("this agent stores no fragments", remedy="send the request to a peer of the ring")
    return Answer({"ready": False})


def main(arguments: Sequence[str]) -> int:
    """Run an agent on the spool named; return the exit status."""
    logging.basicConfig(
        level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    if len(arguments) != 1:
        sys.stderr.write("holdfast: usage: python -m holdfast.store.agent.agent SPOOL\n")
        return 2
    spool = Path(arguments[0])
    make_folders(spool)
    with (spool / "agent.lock").open("w") as lock:
        if not _locked(lock):
            return 0  # another agent serves this spool
        with contextlib.suppress(FileNotFoundError):
            (spool / "stop").unlink()
        try:
            settings = read_settings(spool)
            if settings.expiry:
                threading.Thread(target=_sweep, args=(spool, settings.expiry), daemon=True).start()
            asyncio.run(_run(spool, settings))
        except HoldfastError as error:
            sys.stderr.write(f"holdfast: {error}\n")
            with contextlib.suppress(OSError):  # the driver shows it; where there is no room, this log has it
                note_problem(spool, str(error))
            return error.status
    return 0


def _sweep(spool: Path, seconds: float) -> None:
    """Remove what other runs have left on this host; what fails is tried by the agent that starts next."""
    try:
        for path in sweep_spools(spool, time.time(), seconds):
            log.warning("removed the spool %s: nothing has used it for %.0f s", path, seconds)
    except OSError as error:
        log.warning("old spools are removed later: %s", error)


def _locked(lock: IO[str], tries: int = 10) -> bool:
    """Take the spool's lock; try again, because a process that only tests the lock holds it for a moment."""
    for left in range(tries, 0, -1):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if left > 1:
            time.sleep(0.05)
    return False


async def _run(spool: Path, settings: AgentSettings) -> None:
    await NodeAgent(spool, settings).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
