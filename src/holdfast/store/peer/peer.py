"""One peer of the ring: listener, membership, fragments, repair and restores. Runs as a process of its own.

A peer serves requests before it has joined, reports ready once it is part of the ring, and leaves in order on SIGTERM:
it notifies its neighbours and finishes the requests in progress. After `kill -9` the next start finds every fragment
that was acknowledged.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import resource
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from holdfast.durable_files import replace_durably
from holdfast.erasure.fragment import StateId
from holdfast.errors import BadInput
from holdfast.ids import BatchId
from holdfast.store.client.states import StateStore
from holdfast.store.peer.fragment_files import FragmentFiles
from holdfast.store.peer.limits import Limits
from holdfast.store.peer.operations import Operations
from holdfast.store.peer.repair import Repairer, RepairSettings
from holdfast.store.peer.restores import RestoreService
from holdfast.store.ring.ids import RingId, peer_id, written
from holdfast.store.ring.leaf_set import leaf_set_size
from holdfast.store.ring.machine import RingSettings
from holdfast.store.ring.membership import Membership
from holdfast.store.ring.messages import Contact
from holdfast.store.wire.address import Address, is_loopback
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import Busy, Corrupt, StateMissing
from holdfast.store.wire.frames import FrameProtocol
from holdfast.store.wire.listener import Answer, Listener
from holdfast.store.wire.messages import Frame
from holdfast.store.wire.secret_files import keys_from_file
from holdfast.store.wire.tls import TlsFiles

log = logging.getLogger("holdfast.store.peer.peer")

MOST_MET = 4
"""Peers that are asked at once whether they are of the same ring."""
RING = RingSettings(
    leaf_size=leaf_set_size(32), keep_alive=1.0, silences=1.5, answer_within=0.5, probes=2, table_period=10.0
)
"""A leaf set for the most fragments there can be; a frozen peer is given up after two to four seconds."""


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How one peer runs."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 0
    ports: tuple[int, ...] = ()
    """Several, of which the first that is free is taken; none: `port`."""
    advertise: str | None = None
    """HOST:PORT that others use; None: where it listens."""
    reached_at: str | None = None
    """The host that others use, where only the port is known once it listens."""
    join: tuple[str, ...] = ()
    join_seconds: float = 60.0
    secret_file: str | None = None
    tls: TlsFiles | None = None
    domain: str | None = None
    weight: float = 1.0
    restores: Path | None = None
    """Where restores go; None: a folder in `data`."""
    limits: Limits = field(default_factory=Limits)
    ring: RingSettings = RING
    repair: RepairSettings = field(default_factory=RepairSettings)


@dataclass(frozen=True, slots=True)
class Entrance:
    """How to enter the ring: through one of these peers; with none of them, as its first."""

    join: tuple[str, ...] = ()
    seconds: float = 60.0
    or_begin: bool = False
    """Start a new ring if no peer responds in time, instead of failing."""


FindEntrance = Callable[[Contact], Awaitable[Entrance]]


class Peer:
    """A running peer. Use `run`."""

    def __init__(self, settings: PeerSettings) -> None:
        """Check the settings and open the data folder; the peer does not listen yet."""
        self.settings = settings
        self._key = keys_from_file(settings.secret_file)
        if not self._key.secret and not is_loopback(settings.host):
            raise BadInput(
                f"refusing to listen on {settings.host} without a secret",
                field="--host",
                remedy="give --secret-file, or listen on 127.0.0.1",
            )
        if settings.advertise is None and settings.reached_at is None and settings.host in ("0.0.0.0", "::", ""):
            raise BadInput(
                f"other peers cannot connect to {settings.host}", remedy="give --advertise HOST:PORT as well"
            )
        try:
            self.files = FragmentFiles(settings.data, settings.limits)
            self._name = _peer_name(settings.data)
        except OSError as error:
            raise BadInput(
                f"cannot use this data folder: {error.strerror}",
                where=str(settings.data),
                remedy="name a folder this user may write to",
            ) from None
        self._threads = ThreadPoolExecutor(4, thread_name_prefix="holdfast-disk")
        self._began = time.monotonic()
        self._stop = asyncio.Event()

    async def run(self, on_ready: Callable[[Contact, int], None], find_entrance: FindEntrance | None = None) -> None:
        """Serve until stopped; `on_ready` gets this peer's contact and the number of other peers it knows.

        `find_entrance` is called once this peer listens and returns how to join the ring; default: the settings.
        """
        settings = self.settings
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        serving = settings.tls.context(serving=True) if settings.tls is not None else None
        calling = settings.tls.context(serving=False) if settings.tls is not None else None
        self.listener = Listener(
            self._key,
            settings.limits,
            self._serve,
            self._handle_note,
            serving,
        )
        try:
            port = await self.listener.open(settings.host, settings.ports or settings.port)
        except BadInput as bad:
            self.files.close()
            raise BadInput(bad.what, field=None if settings.ports else "--port", remedy=bad.remedy) from None
        address = settings.advertise or str(Address(settings.reached_at or settings.host, port))
        contact = Contact(peer_id(self._name), address, settings.domain, settings.weight)
        self._membership = Membership(
            contact, settings.ring, self._key, tls=calling, on_found=self._found, on_lost=self._lost
        )
        self._operations = Operations(self.files, self._membership, self, self._threads)
        ring = self._membership.ring
        self._repairer = Repairer(
            self.files,
            ConnectionPool(self._key, settings.tls),
            contact,
            lambda: [ring.contact, *ring.leaves.members],
            self._covers,
            settings.repair,
            settings.limits.repair_bandwidth,
        )
        self._restores = RestoreService(
            self._open_store, settings.restores or settings.data / "restores", settings.limits.restores
        )
        self._repairer.start()
        try:
            await self._enter(contact, find_entrance)
            if not self._stop.is_set():
                on_ready(contact, len(self._membership.everyone()) - 1)
            await self._stop.wait()
        finally:
            await self._leave()

    async def _enter(self, contact: Contact, find_entrance: FindEntrance | None) -> None:
        """Join the ring, unless the peer is stopped meanwhile."""
        entering = asyncio.create_task(self._entered(contact, find_entrance))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait([entering, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if entering.done():
            entering.result()
        else:
            entering.cancel()

    async def _entered(self, contact: Contact, find_entrance: FindEntrance | None) -> None:
        entrance = Entrance(self.settings.join, self.settings.join_seconds)
        if find_entrance is not None:
            entrance = await find_entrance(contact)
        others = [peer for peer in entrance.join if peer != contact.address]
        if others:
            try:
                await self._membership.join(others, entrance.seconds)
                return
            except StateMissing:
                if not entrance.or_begin:
                    raise
                log.warning("none of %s responds; this peer starts a new ring", ", ".join(others))
        self._membership.start()

    def neighbours(self) -> list[str]:
        """Return where the others listen that this peer knows, once it is part of the ring."""
        membership = getattr(self, "_membership", None)
        return [] if membership is None else sorted(one.address for one in membership.ring.leaves.members)

    def meet(self, addresses: Sequence[str]) -> None:
        """Contact some of these peers if they are unknown here; to be called regularly."""
        membership = getattr(self, "_membership", None)
        if membership is not None:
            known = {one.address for one in membership.everyone()}
            strangers = [one for one in addresses if one not in known]
            membership.meet(random.sample(strangers, min(MOST_MET, len(strangers))))

    def stop(self) -> None:
        """Leave in good order, as on SIGTERM; to be called on the event loop."""
        self._stop.set()

    async def _leave(self) -> None:
        log.info("leaving the ring")
        await asyncio.get_running_loop().run_in_executor(None, self._repairer.stop)
        self._restores.close()
        await self._membership.leave()
        await self.listener.close()
        self._threads.shutdown(wait=True)
        self.files.close()

    async def _serve(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        return await self._operations.serve(protocol, frame)

    def _handle_note(self, frame: Frame) -> None:
        self._membership.handle(frame)

    def _covers(self, key: RingId) -> bool:
        """Return whether this peer is among the neighbours of the key's root, where readers look."""
        ring = self._membership.ring
        return ring.leaves.covers(key, whole_ring=lambda: all(one.id in ring.leaves for one in ring.table))

    # Events of the ring

    def _found(self, contact: Contact) -> None:
        self._repairer.soon()

    def _lost(self, contact: Contact) -> None:
        self._repairer.soon()

    # What others ask for (operations.Chores)

    def restore(self, state: StateId, version: BatchId | None, file: str) -> str:
        """Start a restore."""
        if self._stop.is_set():
            raise Busy("this peer is leaving the ring")
        return self._restores.order(state, version, file)

    def restored(self, ticket: str) -> dict[str, Any]:
        """Return the status of a restore."""
        return self._restores.look(ticket)

    def repair(self, *, scrub: bool) -> dict[str, Any]:
        """Start a round of repair now."""
        return {"after_round": self._repairer.now(scrub=scrub)}

    def status(self) -> dict[str, Any]:
        """Return the status of this peer."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        contact = self._membership.ring.contact
        return {
            "id": written(contact.id),
            "address": contact.address,
            "domain": contact.domain,
            "neighbours": len(self._membership.ring.leaves),
            "uptime": time.monotonic() - self._began,
            "fragments": asdict(self.files.usage()),
            "repair": self._repairer.report(),
            "restores": self._restores.counts(),
            "refused": dict(self.listener.counts),
            "connections": self.listener.connections,
            "bytes_in": self.listener.incoming.total,
            "bytes_out": self.listener.outgoing.total,
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "memory_bytes": _resident_bytes(),
            "peak_memory_bytes": used.ru_maxrss * 1024,
        }

    def _open_store(self) -> StateStore:
        # The client brings the code and its libraries: loaded by the first restore, so that peers start fast.
        from holdfast.store.client.client import ClientSettings, PeerStore

        own = self._membership.ring.contact.address
        limit = self.settings.limits.bandwidth
        return PeerStore(ClientSettings((own,), self.settings.secret_file, self.settings.tls, bandwidth=limit))


def _peer_name(folder: Path) -> str:
    """Return the name this peer keeps for life, made when its folder is new."""
    path = folder / "peer.json"
    if path.exists():
        try:
            name = json.loads(path.read_bytes())["name"]
            if isinstance(name, str) and name:
                return name
        except (ValueError, KeyError, TypeError):
            pass
        raise Corrupt(
            "the file with the peer's name cannot be read",
            where=str(path),
            remedy="remove the file: the peer gets a new name",
        )
    name = secrets.token_hex(16)
    replace_durably(path, json.dumps({"holdfast": 1, "name": name}).encode())
    return name


def _resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as statm:
            return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
