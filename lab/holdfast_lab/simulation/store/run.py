"""One seed: a ring of peers, clients that save, read, release and forget, faults at any point, and the checks.

Deterministic: the seed draws the machines, what clients do, every fault, and whose turn it is. Then the faults stop,
all machines run again, repair has a few rounds, and what the model wants is compared with the disks.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from random import Random

from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.client import ClientSettings, PeerStore
from holdfast.store.wire.failures import BadRequest, NotTrusted, StaleEpoch
from holdfast_lab.simulation.store.disk import SimulatedDisk
from holdfast_lab.simulation.store.model import Attempt, Model, Violation
from holdfast_lab.simulation.store.peers import REPAIR, Machine, SimulatedPeer, simulated_modules
from holdfast_lab.simulation.store.threads import Killed, Process, Scheduler, Stuck
from holdfast_lab.simulation.store.wire import Host, Listening, Network, SimulatedPool

FAULT_SECONDS = 60.0
SETTLE_SECONDS = 40.0
"""For the ring, after the last fault."""
ROUNDS = 4
"""Regular rounds of repair before the checks."""
NAMESPACE = "run"


class StoreFault(StrEnum):
    """What goes wrong."""

    PEER_KILLED = "peer killed"
    POWER_LOST = "power lost"
    DISK_LOST = "disk lost"
    NEW_NAME = "peer back under another id"
    NEW_ADDRESS = "peer back at another address"
    ADDRESSES_SWAPPED = "two peers back at each other's address"
    FROZEN = "frozen"
    CUT = "cut one way"
    DISK_FULL = "disk full"
    NO_HANDLES = "too many files open"
    DAMAGED = "fragment damaged"
    STRANGER = "stranger at a peer's address"
    CLIENT_KILLED = "client killed"
    REPAIR_ASKED = "repair asked for"


WEIGHTS = {
    StoreFault.PEER_KILLED: 4,
    StoreFault.POWER_LOST: 4,
    StoreFault.DISK_LOST: 2,
    StoreFault.NEW_NAME: 2,
    StoreFault.NEW_ADDRESS: 1,
    StoreFault.ADDRESSES_SWAPPED: 1,
    StoreFault.FROZEN: 3,
    StoreFault.CUT: 4,
    StoreFault.DISK_FULL: 3,
    StoreFault.NO_HANDLES: 2,
    StoreFault.DAMAGED: 2,
    StoreFault.STRANGER: 2,
    StoreFault.CLIENT_KILLED: 2,
    StoreFault.REPAIR_ASKED: 2,
}


@dataclass(slots=True)
class StoreOutcome:
    """What came of a seed."""

    seed: int
    violation: str | None = None
    faults: Counter[StoreFault] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    """Saves, reads, releases and forgets that ended well, operations that failed, and what repair did."""
    journal: list[str] = field(default_factory=list)


def simulate_store(seed: int, *, record: bool = False) -> StoreOutcome:
    """Run one seed; `record` fills the journal, at the end with where an unexpected error was raised."""
    outcome = StoreOutcome(seed)
    memory = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="holdfast-store-", dir=memory if memory.is_dir() else None))
    scheduler = Scheduler(Random(f"{seed} turns"))
    try:
        with simulated_modules(scheduler, Random(f"{seed} waits")), _quiet_logs(outcome, scheduler):
            run = _Run(seed, scheduler, folder, outcome, record=record)
            try:
                run.run()
            except Violation as violation:
                outcome.violation = str(violation)
            except Stuck as stuck:
                outcome.violation = f"the store stands still: {stuck}"
            except Exception as error:
                outcome.violation = f"{type(error).__name__} was raised: {error}"
                if record:
                    outcome.journal += traceback.format_exc().splitlines()
            finally:
                run.end()
                scheduler.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    outcome.counts["switches"] = scheduler.switches
    return outcome


@contextmanager
def _quiet_logs(outcome: StoreOutcome, scheduler: Scheduler) -> Iterator[None]:
    """Keep the store's lines away; an error with a traceback is a fault of the store."""

    class Errors(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info is not None and record.exc_info[1] is not None:
                error = record.exc_info[1]
                kept = error if isinstance(error, Violation) else Violation(f"{record.getMessage()}: {error!r}")
                scheduler.failures.append(kept)

    log, handler = logging.getLogger("holdfast.store"), Errors()
    propagate, level = log.propagate, log.level
    log.propagate = False
    log.setLevel(logging.ERROR)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.propagate = propagate
        log.setLevel(level)


class _Client(Host):
    """A client's machine, and the process that runs on it now."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.process = Process(name)


class _Run:
    """A run of one seed."""

    def __init__(self, seed: int, scheduler: Scheduler, folder: Path, outcome: StoreOutcome, *, record: bool) -> None:
        self._draw = draw = Random(seed)
        self._scheduler, self._outcome, self._record = scheduler, outcome, record
        self._network = Network(scheduler, Random(f"{seed} network"))
        self._model = Model()
        self._quiet = False
        count = draw.randint(3, 6)
        domains = draw.choice([None, None, 2, 3, count])
        for number in range(count):
            disk = SimulatedDisk(folder / f"m{number}", scheduler, Random(f"{seed} disk {number}"), self._model)
            self._model.machines.append(Machine(number, None if domains is None else f"d{number % domains}", disk))
        self._machines = self._model.machines
        self._most_off = draw.randint(1, max(1, count - 2))
        total = draw.randint(2, min(count + 1, 5))
        parity = draw.randint(1, total - 1)
        self._coding = None if draw.random() < 0.2 else Coding(total - parity, parity)
        self._tolerate = draw.choice([None, None, 1])
        self._epoch = Epoch(1)
        self._next_version = 1
        self._next_name = 0
        self._names: list[StateId] = []
        self._clients = [_Client("writer"), _Client("reader")]
        self._away: dict[str, float] = {}
        """Machines whose peer is off, and when it starts again."""

    # The course of a run

    def run(self) -> None:
        """Run it."""
        scheduler = self._scheduler
        for machine in self._machines:
            self._start(machine)
            scheduler.sleep(0.5)
        scheduler.sleep(10.0)
        for client in self._clients:
            self._start_client(client)
        end = scheduler.now + FAULT_SECONDS
        while scheduler.now < end:
            scheduler.sleep(self._draw.uniform(0.2, 4.0))
            self._fault()
            self._check_running()
        self._heal()
        self._finish()

    def end(self) -> None:
        """End all threads."""
        processes = [client.process for client in self._clients]
        processes += [one.peer.process for one in self._machines if one.peer is not None]
        processes += [one.process for one in self._network.listening.values()]
        for process in processes:
            self._scheduler.kill(process)
        self._scheduler.failures.clear()
        left = 1000
        while any(process.tasks for process in processes) and left:
            left -= 1
            try:
                self._scheduler.sleep(0.001)
            except Exception:
                self._scheduler.failures.clear()
        for machine in self._machines:
            if machine.peer is not None:
                machine.peer.files.close()
            machine.disk.let_go()

    def _log(self, line: str) -> None:
        if self._record:
            self._outcome.journal.append(f"{self._scheduler.now:9.3f} {line}")

    # Machines

    def _start(self, machine: Machine) -> bool:
        if machine.peer is not None:
            return True
        self._away.pop(machine.name, None)
        stranger = self._network.listening.pop(machine.address, None)
        if stranger is not None:
            self._scheduler.kill(stranger.process)
        machine.powered = True
        try:
            peer = SimulatedPeer(machine, self._network, self._addresses, Random(self._draw.getrandbits(64)))
        except OSError as error:
            self._log(f"{machine.name} does not start: {error}")
            machine.disk.process = None
            self._away[machine.name] = self._scheduler.now + 5.0
            return False
        machine.peer = peer
        peer.start()
        self._log(f"{machine.name} starts as {machine.peer_name} at {machine.address}")
        return True

    def _stop(self, machine: Machine, *, power: bool, seconds: float) -> None:
        assert machine.peer is not None
        now = self._scheduler.now
        before = {place for name, place in self._model.synced if name == machine.name}
        before = {place for place in before if (machine.disk.folder / place).exists()}
        machine.peer.killed(power=power)
        gone = {place for place in before if not (machine.disk.folder / place).exists()}
        if gone:
            raise Violation(f"{machine.name} lost acknowledged fragments when its power went: {sorted(map(str, gone))}")
        self._away[machine.name] = now + seconds

    def _addresses(self) -> list[str]:
        return [one.address for one in self._machines]

    def _running(self) -> list[Machine]:
        return [one for one in self._machines if one.peer is not None]

    # Faults

    def _fault(self) -> None:
        draw, now = self._draw, self._scheduler.now
        for machine in self._machines:
            if machine.peer is None and self._away.get(machine.name, now) <= now:
                self._start(machine)
        kind = draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        running = self._running()
        stops = kind in (
            StoreFault.PEER_KILLED,
            StoreFault.POWER_LOST,
            StoreFault.DISK_LOST,
            StoreFault.NEW_NAME,
            StoreFault.NEW_ADDRESS,
        )
        if not running or (stops and len(self._machines) - len(running) >= self._most_off):
            return
        machine = draw.choice(running)
        if not self._strike(kind, machine):
            return
        self._outcome.faults[kind] += 1
        self._log(f"fault: {kind} ({machine.name})")

    def _strike(self, kind: StoreFault, machine: Machine) -> bool:
        draw, scheduler, disk = self._draw, self._scheduler, machine.disk
        peer = machine.peer
        assert peer is not None
        seconds = draw.choice([1.0, draw.uniform(1, 20), draw.uniform(20, 80)])
        match kind:
            case StoreFault.PEER_KILLED:
                self._stop(machine, power=False, seconds=seconds)
            case StoreFault.POWER_LOST:
                self._stop(machine, power=True, seconds=seconds)
            case StoreFault.DISK_LOST:
                self._model.harmed(scheduler.now)
                self._stop(machine, power=draw.random() < 0.5, seconds=seconds)
                disk.wipe()
                self._new_name(machine)
            case StoreFault.NEW_NAME:
                self._stop(machine, power=False, seconds=draw.choice([0.1, seconds]))
                self._new_name(machine)
            case StoreFault.NEW_ADDRESS:
                self._stop(machine, power=False, seconds=seconds)
                machine.names += 1
                machine.address = f"{machine.address.partition(':')[0]}:{7400 + machine.names}"
            case StoreFault.ADDRESSES_SWAPPED:
                off = [one for one in self._machines if one.peer is None]
                if len(off) < 2:
                    return False
                one, other = draw.sample(off, 2)
                one.address, other.address = other.address, one.address
            case StoreFault.FROZEN:
                scheduler.freeze(peer.process)
                scheduler.at(scheduler.now + seconds, lambda: scheduler.thaw(peer.process))
            case StoreFault.CUT:
                others: list[Host] = [*self._machines, *self._clients]
                pair = (machine.name, draw.choice([one.name for one in others if one is not machine]))
                pair = pair if draw.random() < 0.5 else (pair[1], pair[0])
                self._network.cut.add(pair)
                scheduler.at(scheduler.now + seconds, lambda: self._network.cut.discard(pair))
            case StoreFault.DISK_FULL:
                name = draw.choice(["full", "quietly_full"])
                setattr(disk, name, True)
                scheduler.at(scheduler.now + seconds, lambda: setattr(disk, name, False))
            case StoreFault.NO_HANDLES:
                disk.no_handles = True
                scheduler.at(scheduler.now + seconds, lambda: setattr(disk, "no_handles", False))
            case StoreFault.DAMAGED:
                fragments = disk.fragments()
                if not fragments:
                    return False
                self._model.harmed(scheduler.now)
                disk.flip(draw.choice(fragments))
            case StoreFault.STRANGER:
                off = [one for one in self._machines if one.peer is None and one.address not in self._network.listening]
                if not off:
                    return False
                self._stranger(draw.choice(off))
            case StoreFault.CLIENT_KILLED:
                client = draw.choice(self._clients)
                if draw.random() < 0.5:  # else its machine died, and closes none
                    self._network.drop_connections(client.process, client)
                scheduler.kill(client.process)
                self._start_client(client)
            case StoreFault.REPAIR_ASKED:
                peer.repair(scrub=draw.random() < 0.5)
        return True

    def _new_name(self, machine: Machine) -> None:
        machine.names += 1
        machine.peer_name = f"{machine.peer_name.partition('.')[0]}.{machine.names}"

    def _stranger(self, machine: Machine) -> None:
        machine.powered = True
        stranger = Listening(machine, Process(f"stranger at {machine.address}"))
        stranger.refusal = self._draw.choice([NotTrusted, BadRequest])
        self._network.listening[machine.address] = stranger

    def _check_running(self) -> None:
        if self._network.unexpected:
            error = self._network.unexpected[0]
            if isinstance(error, Violation):
                raise error
            raise Violation(f"a request failed with an unexpected error: {error!r}") from error

    # Clients

    def _start_client(self, client: _Client) -> None:
        client.process = process = Process(client.name)
        draw = Random(self._draw.getrandbits(64))
        work = self._write if client.name == "writer" else self._read
        self._scheduler.spawn(process, lambda: self._work(client, process, draw, work), client.name)

    def _store(self, client: _Client, process: Process, draw: Random) -> PeerStore:
        addresses = [one.address for one in self._machines]
        draw.shuffle(addresses)
        settings = ClientSettings(
            tuple(addresses[: draw.randint(2, len(addresses))]),
            coding=self._coding,
            tolerate=self._tolerate,
            answer_seconds=5.0,
        )
        pool = SimulatedPool(self._network, client, process)
        return PeerStore(settings, known_peers=lambda: len(self._machines), pool=pool)

    def _work(self, client: _Client, process: Process, draw: Random, work: Callable[[PeerStore, Random], None]) -> None:
        store = self._store(client, process, draw)
        again = self._scheduler.now + draw.uniform(20, 60)
        while not self._quiet:
            self._scheduler.sleep(draw.choice([0.05, draw.uniform(0.5, 6.0)]))
            try:
                work(store, draw)
            except HoldfastError as error:
                self._outcome.counts["failed"] += 1
                self._log(f"{client.name}: {type(error).__name__}: {error}")
            if self._scheduler.now > again:
                store.close()
                store = self._store(client, process, draw)
                again = self._scheduler.now + draw.uniform(20, 60)
        store.close()

    def _write(self, store: PeerStore, draw: Random) -> None:
        kind = draw.choices(["save", "release", "forget", "fence"], [10, 2, 1, 0.5])[0]
        if kind == "save" or not self._names:
            self._save(store, draw)
        elif kind == "release":
            state = draw.choice(self._names)
            bases = [one.version for one in self._model.live if one.state == state and one.follows is None]
            if bases:
                self._model.released(state, max(bases))
                store.release(state, max(bases), self._epoch)
                self._outcome.counts["released"] += 1
        elif kind == "forget":
            state = draw.choice(self._names)
            self._names.remove(state)
            self._model.forget(state)
            self._forget(store, state)
        else:
            self._epoch = Epoch(self._epoch + 1)
            store.fence(NAMESPACE, self._epoch)

    def _save(self, store: PeerStore, draw: Random) -> None:
        if not self._names or (len(self._names) < 4 and draw.random() < 0.3):
            self._names.append(StateId(NAMESPACE, f"O{self._next_name}[0]"))
            self._next_name += 1
        state = draw.choice(self._names)
        mine = [one for one in self._model.live if one.state == state and one.epoch == self._epoch]
        follows = max(one.version for one in mine) if mine and draw.random() < 0.3 else None
        version = BatchId(self._next_version)
        self._next_version += 1
        contents = draw.randbytes(draw.choice([0, 1, 300, 1500, 3000]))
        attempt = Attempt(state, version, self._epoch, contents, follows)
        self._model.attempts[state, version, self._epoch] = attempt
        harms = self._model.harms
        saved = store.save(state, version, self._epoch, contents, follows=follows)
        self._model.saved(attempt, saved, harms)
        self._outcome.counts["saved"] += 1
        self._log(f"saved {attempt.header(saved.coding)} at {', '.join(saved.holders)}")

    def _forget(self, store: PeerStore, state: StateId) -> None:
        silent = store.forget(NAMESPACE, [state.name], self._epoch)
        self._model.forgotten[state] = not silent
        self._outcome.counts["forgotten"] += not silent
        self._log(f"forgot {state}; silent: {silent}")

    def _read(self, store: PeerStore, draw: Random) -> None:
        wanted = list(self._model.live)
        if not wanted:
            return
        header = draw.choice(wanted)
        self._load(store, header.state, draw.choice([header.version, None]))

    def _load(self, store: PeerStore, state: StateId, version: BatchId | None) -> BatchId:
        loaded = store.load(state, version)
        for part in loaded.parts:
            attempt = self._model.attempts.get((state, part.version, part.epoch))
            if attempt is None or bytes(part.contents) != attempt.contents:
                raise Violation(f"{state} version {part.version} was read with other bytes than were saved")
        self._outcome.counts["read"] += 1
        return loaded.version

    # The end

    def _heal(self) -> None:
        scheduler = self._scheduler
        self._quiet = True
        self._log("faults end")
        self._network.cut.clear()
        for machine in self._machines:
            disk = machine.disk
            disk.full = disk.quietly_full = disk.no_handles = False
            if machine.peer is not None:
                scheduler.thaw(machine.peer.process)
        for machine in self._machines:
            self._start(machine)
        for name in list(self._network.listening):
            if name not in {one.address for one in self._machines}:
                scheduler.kill(self._network.listening.pop(name).process)
        scheduler.sleep(SETTLE_SECONDS)
        self._check_running()
        for client in self._clients:
            if client.process.tasks:
                scheduler.sleep(60.0)
        stuck = [task.name for client in self._clients for task in client.process.tasks]
        if stuck:
            raise Violation(f"threads of clients do not end: {stuck}")

    def _finish(self) -> None:
        scheduler, host = self._scheduler, Host("checker")
        store = PeerStore(
            ClientSettings(tuple(one.address for one in self._machines)),
            pool=SimulatedPool(self._network, host, scheduler.main.process),
        )
        for state in self._model.forgotten:
            while True:
                try:
                    if not store.forget(NAMESPACE, [state.name], self._epoch):
                        break
                except StaleEpoch:
                    raise
                except HoldfastError as error:
                    self._log(f"forgetting {state}: {error}")
                scheduler.sleep(5.0)
                if scheduler.now > 2000:
                    raise Violation(f"{state} cannot be forgotten")
        for machine in self._running():
            assert machine.peer is not None
            machine.peer.repair(scrub=True)
        for _ in range(ROUNDS):
            scheduler.sleep(REPAIR.every)
            self._check_running()
        if problems := self._model.problems():
            raise Violation("; ".join(problems))
        before = self._moved()
        scheduler.sleep(2.2 * REPAIR.every)
        if self._moved() != before:
            raise Violation(f"repair does not come to rest: {before}, then {self._moved()}")
        self._check_reads(store)
        store.close()
        self._check_leaks()
        self._outcome.counts["rebuilt"] = before[0]
        self._outcome.counts["removed"] = before[1]
        self._outcome.counts["spread"] = before[3]

    def _moved(self) -> tuple[int, ...]:
        progress = [one.peer.repairer.progress for one in self._machines if one.peer is not None]
        return (
            sum(one.rebuilt for one in progress),
            sum(one.removed for one in progress),
            sum(one.handed_over for one in progress),
            sum(one.spread for one in progress),
            sum(one.failed for one in progress),
        )

    def _check_reads(self, store: PeerStore) -> None:
        """Read every version that faults have left, and the newest of every state."""
        running = self._running()
        whole = [
            header for header in self._model.live if len(self._model.copies(header, running)) >= header.coding.data
        ]
        for header in whole:
            if header.follows is None:
                try:
                    self._load(store, header.state, header.version)
                except HoldfastError as error:
                    raise Violation(f"{header} has enough fragments and cannot be read: {error}") from None
        for state in {header.state: None for header in whole}:
            newest = max((one.epoch, one.version) for one in whole if one.state == state and one.follows is None)
            read = self._load(store, state, None)
            if read < newest[1]:
                raise Violation(f"{state}: version {read} was read, {newest[1]} was acknowledged")

    def _check_leaks(self) -> None:
        for machine in self._running():
            peer = machine.peer
            assert peer is not None
            reserved = peer.files._incoming_bytes.total()
            if reserved:
                raise Violation(f"{machine.name} reserves {reserved} bytes for fragments that do not come")
            parts = sorted(one.name for one in machine.disk.folder.glob("incoming/*"))
            if parts:
                raise Violation(f"{machine.name} keeps unfinished files: {parts}")
            busy = [task.name for task in peer.process.tasks if task.name != "holdfast-repair"]
            busy = [name for name in busy if not name.startswith("serve ")]
            if busy:
                raise Violation(f"threads at {machine.name} do not end: {busy}")
        serving = sum(channel.serving for channel in self._network.channels if not channel.ends[1].over)
        if serving:
            raise Violation(f"{serving} requests are still served")


__all__ = ["Killed", "StoreFault", "StoreOutcome", "simulate_store"]
