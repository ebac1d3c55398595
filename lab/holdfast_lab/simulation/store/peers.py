"""Simulated machines with peers: real fragment files, operations, repair and ring machine over simulated edges."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from holdfast.erasure.encoding import describe
from holdfast.store.client import client, retrieving, saving, scatter, sending
from holdfast.store.peer import fragment_files, operations, repair, survey
from holdfast.store.peer.fragment_files import FragmentFiles
from holdfast.store.peer.limits import Limits
from holdfast.store.peer.operations import Operations
from holdfast.store.peer.repair import Repairer, RepairSettings
from holdfast.store.ring.ids import RingId, peer_id
from holdfast.store.ring.machine import RingPeer, RingSettings
from holdfast.store.ring.messages import (
    Contact,
    Effect,
    Joined,
    JoinFailed,
    LookupDone,
    LookupFailed,
    Message,
    PeerFound,
    PeerLost,
    Send,
)
from holdfast.store.wire import connection
from holdfast.store.wire.failures import StateMissing
from holdfast.store.wire.frames import FrameProtocol
from holdfast.store.wire.listener import Answer
from holdfast.store.wire.messages import Frame
from holdfast_lab.simulation.store.disk import SimulatedDisk
from holdfast_lab.simulation.store.threads import (
    Process,
    Scheduler,
    SimulatedQueues,
    SimulatedThreading,
    SimulatedTime,
    Task,
)
from holdfast_lab.simulation.store.wire import Host, Listening, Network, ServerSide, SimulatedPool

RING = RingSettings(leaf_size=32, keep_alive=4.0, silences=1.5, answer_within=1.0, probes=2, table_period=20.0)
REPAIR = RepairSettings(after=5.0, every=40.0, garbage_after=60.0)
LIMITS = Limits(memory_bytes=0, idle_seconds=40.0)
JOIN_SECONDS = 15.0
"""Then a peer begins a ring alone; `meet` merges it with others."""
MEET_SECONDS = 10.0
MOST_MET = 4
BLOCK_BYTES = 256
"""Small, so that a small state has several stripes and travels in several frames."""


class Machine(Host):
    """A machine: its disk, its place in the network, and the peer that runs on it now."""

    def __init__(self, number: int, domain: str | None, disk: SimulatedDisk) -> None:
        super().__init__(f"m{number}")
        self.domain = domain
        self.disk = disk
        self.address = f"10.0.0.{number + 1}:7400"
        self.peer_name = f"peer-{number}"
        self.names = 0
        self.peer: SimulatedPeer | None = None


class SimulatedPeer(Listening):
    """A peer: what `Peer` puts together, with simulated edges."""

    def __init__(self, machine: Machine, network: Network, everyone: Callable[[], list[str]], random: Random) -> None:
        """Open the machine's folder; `OSError` where that fails."""
        process = Process(f"{machine.name} peer {machine.peer_name}")
        super().__init__(machine, process)
        self.machine, self._network, self._everyone, self._random = machine, network, everyone, random
        self._scheduler = network.scheduler
        machine.disk.process = process
        self.files = FragmentFiles(machine.disk.folder, LIMITS, machine.disk)
        self.contact = Contact(peer_id(machine.peer_name), machine.address, machine.domain)
        self.ring = RingPeer(self.contact, RING, Random(self.contact.id))
        self._lookups: dict[int, tuple[Task, list[LookupDone | None]]] = {}
        self._operations = _Operations(self._scheduler, self.files, self)
        self.pool = SimulatedPool(network, machine, process)
        self.repairer = Repairer(
            self.files,
            self.pool,
            self.contact,
            lambda: [self.ring.contact, *self.ring.leaves.members],
            self._covers,
            REPAIR,
            LIMITS.repair_bandwidth,
        )
        self._tick_at = float("inf")
        self._entrance: str | None = None
        self._join_until = 0.0

    def start(self) -> None:
        """Listen, join, repair."""
        self._network.hosts[self.machine.address] = self.machine
        self._network.listening[self.machine.address] = self
        self._scheduler.spawn(self.process, self.repairer.start, "start repair")
        self._join_until = self._scheduler.now + JOIN_SECONDS
        self._scheduler.at(self._join_until, self._begin_alone)
        self._join()
        self._meet()

    def _join(self) -> None:
        """Enter through one of the others, or else alone, as agents do."""
        if self.process.dead or self.ring.active or self._scheduler.now >= self._join_until:
            return
        others = [one for one in self._everyone() if one != self.contact.address]
        self._entrance = self._random.choice(others)
        self._carry_out(self.ring.join(self._entrance, self._scheduler.now))

    def _begin_alone(self) -> None:
        if not self.process.dead and not self.ring.active:
            self._carry_out(self.ring.start(self._scheduler.now))

    def _meet(self) -> None:
        if self.process.dead:
            return
        if not self.process.frozen and self.ring.active:
            known = {one.address for one in self.everyone()}
            strangers = [one for one in self._everyone() if one not in known]
            for address in self._random.sample(strangers, min(MOST_MET, len(strangers))):
                self._carry_out(self.ring.meet(address))
        self._scheduler.at(self._scheduler.now + MEET_SECONDS, self._meet)

    def _covers(self, key: RingId) -> bool:
        ring = self.ring
        return ring.leaves.covers(key, whole_ring=lambda: all(one.id in ring.leaves for one in ring.table))

    # The ring's machine

    def take_note(self, sender: Contact, message: Message) -> None:
        """See Listening."""
        if not self.process.dead:
            self._carry_out(self.ring.receive(sender, message, self._scheduler.now))

    def _carry_out(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    refused = partial(self._unreachable, effect.address)
                    self._network.note(self.machine, self.contact, effect.address, effect.message, refused)
                case JoinFailed():
                    self._scheduler.at(self._scheduler.now + 0.3, self._join)
                case PeerFound() | PeerLost():
                    self.repairer.soon()
                case LookupDone():
                    self._found(effect.token, effect)
                case LookupFailed():
                    self._found(effect.token, None)
                case Joined():
                    pass
        due = self.ring.next_tick
        if due < self._tick_at:
            self._tick_at = due
            self._scheduler.at(max(due, self._scheduler.now + 0.001), partial(self._tick, due))

    def _tick(self, due: float) -> None:
        if self.process.dead or self._tick_at != due:
            return
        if self.process.frozen:
            self._tick_at = self._scheduler.now + 0.5
            self._scheduler.at(self._tick_at, partial(self._tick, self._tick_at))
            return
        self._tick_at = float("inf")
        self._carry_out(self.ring.tick(self._scheduler.now))

    def _unreachable(self, address: str) -> None:
        if self.process.dead:
            return
        if address == self._entrance and not self.ring.active:
            self._scheduler.at(self._scheduler.now + 0.3, self._join)
        self._carry_out(self.ring.unreachable(address, self._scheduler.now))

    def _found(self, token: int, found: LookupDone | None) -> None:
        if token in self._lookups:
            task, result = self._lookups[token]
            result.append(found)
            self._scheduler.wake(task)

    # What operations ask (Membership, PeerServices)

    def everyone(self) -> list[Contact]:
        """See Membership."""
        return [self.ring.contact, *self.ring.leaves.members]

    async def lookup(self, key: RingId) -> LookupDone:
        """See Membership."""
        token, effects = self.ring.lookup(key, self._scheduler.now)
        result: list[LookupDone | None] = []
        self._lookups[token] = self._scheduler.current, result
        self._carry_out(effects)
        while not result:
            self._scheduler.block()
        del self._lookups[token]
        if result[0] is None:
            raise StateMissing("no peer responds for this key; the ring is being repaired")
        return result[0]

    def repair(self, *, scrub: bool) -> dict[str, Any]:
        """See PeerServices."""
        return {"after_round": self.repairer.now(scrub=scrub)}

    async def serve(self, protocol: ServerSide, frame: Frame) -> Answer:
        """See Listening."""
        return await self._operations.serve(cast(FrameProtocol, protocol), frame)

    def killed(self, *, power: bool) -> None:
        """End the process; with its machine where that loses power."""
        machine, scheduler = self.machine, self._scheduler
        self._network.listening.pop(machine.address, None)
        if power:
            machine.powered = False
        else:
            self._network.drop_connections(self.process, machine)
        scheduler.kill(self.process)
        if power:
            self._network.drop_connections(self.process, machine)
        self.files.close()
        machine.disk.let_go()
        if power:
            machine.disk.lose_power()
        machine.peer = None


class _Operations(Operations):
    """The real operations; disk work runs where it is asked for."""

    def __init__(self, scheduler: Scheduler, files: FragmentFiles, peer: SimulatedPeer) -> None:
        super().__init__(files, cast(Any, peer), cast(Any, peer), cast(Any, None))
        self._scheduler = scheduler

    async def _in_thread(self, work: Callable[..., Any], *arguments: object) -> Any:
        self._scheduler.pause()
        return work(*arguments)


class _Timeout:
    """Stands for `asyncio.timeout` around the next frame."""

    def __init__(self, scheduler: Scheduler, seconds: float) -> None:
        self._task, self._deadline = scheduler.current, scheduler.now + seconds

    async def __aenter__(self) -> None:
        self._task.deadline = self._deadline

    async def __aexit__(self, *_: object) -> None:
        self._task.deadline = float("inf")


@contextmanager
def simulated_modules(scheduler: Scheduler, random: Random) -> Iterator[None]:
    """Give the store's modules simulated threads, queues, time and randomness while the block runs."""
    threads, time, queues = SimulatedThreading(scheduler), SimulatedTime(scheduler), SimulatedQueues(scheduler)

    class ServedRetrieval(retrieving.Retrieval):
        def __init__(self, *given: Any, **named: Any) -> None:
            super().__init__(*given, **{"clock": scheduler.monotonic, **named})

    replaced: dict[Any, dict[str, object]] = {
        client: {"time": time, "Retrieval": ServedRetrieval, "describe": partial(describe, block_bytes=BLOCK_BYTES)},
        saving: {"time": time, "LARGEST_CHUNK": 2 * BLOCK_BYTES},
        sending: {"time": time, "threading": threads, "queue": queues},
        retrieving: {"threading": threads},
        scatter: {"time": time, "threading": threads},
        survey: {"time": time},
        repair: {"time": time, "threading": threads, "Retrieval": ServedRetrieval},
        connection: {"time": time, "threading": threads, "random": random},
        fragment_files: {"threading": threads},
        operations: {"asyncio": SimpleNamespace(timeout=partial(_Timeout, scheduler))},
    }
    real = {module: {name: getattr(module, name) for name in names} for module, names in replaced.items()}
    try:
        _put_in(replaced)
        yield
    finally:
        _put_in(real)


def _put_in(modules: dict[Any, dict[str, Any]]) -> None:
    for module, names in modules.items():
        for name, value in names.items():
            setattr(module, name, value)
