"""Machines with agents in a simulated run: the real spool, the real agent's orders, and a ring of simulated peers.

Runs anywhere. Tasks save and fetch through the spool as on a cluster; the agent of each machine carries out orders when
the simulation lets it, is killed between any two calls and starts again on what it finds. Fragments are on the disks of
peers, which outlive agents, nodes and drivers, and go with their machine. Durable snapshots go to the run's storage
too, which may not be there for a while. Agents choose codes with the real tuner, and at times another one than it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch, NodeId
from holdfast.recovery.checkpoints import is_durable_name
from holdfast.runtime.fetches import Fetched
from holdfast.runtime.state.snapshot_store import SaveAnswer, SnapshotStore
from holdfast.spark.snapshot_store import NodeSnapshotStore
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.storage import Storage
from holdfast.store.agent import acknowledging
from holdfast.store.agent.acknowledging import losses_survived
from holdfast.store.agent.snapshot_names import state_of
from holdfast.store.agent.spool import Spool
from holdfast.store.agent.spool_orders import SpoolOrders, SpoolServiceSettings
from holdfast.store.client import tuning
from holdfast.store.client.retrieving import Progress
from holdfast.store.client.states import Contents, LoadedFile, Saved
from holdfast.store.client.tuning import CodingTuner, TuningGoals
from holdfast.store.wire.failures import StaleEpoch, StateMissing, Unreachable
from holdfast_lab.simulation.recovery.faults import Fault, Mischief, draw_fragment_faults
from holdfast_lab.simulation.recovery.files import Disk, ProcessDied, ProcessFiles
from holdfast_lab.simulation.recovery.network import Network
from holdfast_lab.simulation.recovery.storage import DriverStorage, Outage
from holdfast_lab.simulation.recovery.stores import Complain

SPOOL = Path("/spool")
_HEARTBEAT = SPOOL / "heartbeat"
AWAY_SECONDS = 120.0
"""So long the durable folder is away, at most."""


@dataclass(slots=True)
class Machine:
    """A machine: its disk, the fragments that its peer keeps, and its agent."""

    name: NodeId
    """The node that runs on it, or did last."""
    disk: Disk
    fragments: dict[StateId, dict[Coding, tuple[int, bytes]]] = field(default_factory=dict)
    """By state and code: one that is saved again with another code has fragments of both."""
    fences: dict[str, Epoch] = field(default_factory=dict)
    alive: bool = True
    orders: SpoolOrders | None = None
    """The agent; None: it is not running."""
    threads: list[LaterThreads] = field(default_factory=list)
    """Of the workers on it."""


class LaterThreads:
    """Threads of a worker: what they are given is done later, or never where the worker is gone."""

    def __init__(self) -> None:
        self._waiting: list[tuple[Future[Any], Callable[[], Any]]] = []

    def submit(self, work: Callable[..., Any], *given: Any, **named: Any) -> Future[Any]:
        """Do something later."""
        future: Future[Any] = Future()
        self._waiting.append((future, lambda: work(*given, **named)))
        return future

    def run(self, mischief: Mischief) -> None:
        """Do some of it now."""
        for one in list(self._waiting):
            if not mischief.strikes(Fault.SAVE_LATE):
                self._waiting.remove(one)
                try:
                    one[0].set_result(one[1]())
                except (OSError, HoldfastError) as error:
                    one[0].set_exception(error)


class _PeerStore:
    """The ring as the agent of one machine sees it."""

    def __init__(self, ring: AgentSnapshots, machine: Machine) -> None:
        self._ring, self._machine = ring, machine
        self._tuner = CodingTuner(TuningGoals(reliability=0.999, gone=1))
        self._known = 0

    def _code(self, size: int, reached: int) -> Coding:
        """Choose the code of a save: as the tuner does, or another one for as many peers."""
        known, faults = self._ring.known(), self._ring.fragment_faults
        self._tuner.peers_went(self._known, self._known - known)
        self._known = known
        peers = tuning.peers_to_code_for(reached, known)
        if peers > 1 and self._ring.mischief.active and faults.strikes(Fault.CODE_CHANGED):
            total = faults.draw.randint(2, peers)
            parity = faults.draw.randint(1, total - 1)
            return Coding(total - parity, parity)
        return self._tuner.choose(size, peers)

    def save(self, state: StateId, version: BatchId, epoch: Epoch, contents: Contents) -> Saved:
        """See FragmentStore."""
        peers = self._ring.reached(self._machine)
        draw = self._ring.mischief.draw
        draw.shuffle(peers)
        if self._ring.mischief.strikes(Fault.SAVE_FAILED):
            peers = peers[: draw.randint(0, 1)]
        coding = self._code(len(contents), len(peers))
        stored = 0
        for index, peer in enumerate(peers[: coding.total]):
            self._fence(peer, state.namespace, epoch)
            # Other fragments stay: what was saved with another code may have been acknowledged.
            peer.fragments.setdefault(state, {})[coding] = index, bytes(contents)
            stored += 1
        holders = tuple(str(id(peer)) for peer in peers[:stored])
        wanted = max(coding.parity, 1 if self._ring.known() > 1 else 0)
        if losses_survived(holders, coding.data) >= wanted:
            self._ring.survives.add(state)
        # The agent decides whether that is enough: it has reached only some, and knows of others.
        return Saved(state, version, epoch, len(contents), coding, stored, holders=holders, peers=len(peers))

    def load_into(self, state: StateId, path: Path, version: BatchId | None, progress: Progress) -> LoadedFile:
        """See FragmentStore."""
        mischief, failed = self._ring.mischief, self._ring.failed_loads
        failed[id(self._machine), state] = failed.get((id(self._machine), state), 0) + 1
        self._ring.lose_fragments(state)
        data = self._ring.rebuilt(state, self._ring.reached(self._machine))
        if data is None:
            if any(one.alive and state in one.fragments for one in self._ring.unreached(self._machine)):
                raise Unreachable("too few fragments are in reach")
            raise StateMissing("too few fragments are left")
        damaged = any(mischief.strikes(Fault.SNAPSHOT_DAMAGED) for _ in range(2))  # in either of two fragments
        if damaged and not self._ring.is_the_last(state):
            data = data[:-1]
        else:
            failed.pop((id(self._machine), state), None)
        assert self._machine.orders is not None
        self._ring.files[id(self._machine)].write(path, [data])
        return LoadedFile(state, BatchId(0), path, (len(data),), 1)

    def forget(self, namespace: str, names: Sequence[str], epoch: Epoch) -> list[str]:
        """See FragmentStore."""
        for peer in self._ring.reached(self._machine):
            self._fence(peer, namespace, epoch)
            for name in names:
                peer.fragments.pop(StateId(namespace, name), None)
        return [str(one.name) for one in self._ring.unreached(self._machine) if one.alive]

    def standing_epoch(self, namespace: str) -> Epoch:
        """See FragmentStore."""
        reached = self._ring.reached(self._machine)
        return max((peer.fences.get(namespace, Epoch(0)) for peer in reached), default=Epoch(0))

    def close(self) -> None:
        """See FragmentStore."""

    def _fence(self, peer: Machine, namespace: str, epoch: Epoch) -> None:
        standing = peer.fences.get(namespace, Epoch(0))
        if epoch < standing:
            self._ring.mischief.injected[Fault.SAVE_REFUSED] += 1
            raise StaleEpoch(f"epoch {epoch} of {namespace!r} is fenced: epoch {standing} has started")
        peer.fences[namespace] = epoch


class AgentSnapshots:
    """The snapshots of a run: on the disks of machines, and in the run's storage."""

    def __init__(
        self,
        objects: MemoryStorage,
        outage: Outage,
        clock: Callable[[], float],
        network: Network,
        complain: Complain,
        may_lose: Callable[[str], bool],
        seed: int = 0,
    ) -> None:
        """`may_lose` says whether a durable snapshot may be lost as well."""
        self.fragment_faults = draw_fragment_faults(seed, outage.mischief)
        self.mischief, self._clock, self._network = outage.mischief, clock, network
        self.complain, self._may_lose = complain, may_lose
        self.over = False
        """Whether an old driver, or a task of a cycle that is over, asks now: what it wants may have been forgotten."""
        self.superseded: Callable[[], bool] = lambda: False
        self.folder = objects.within("checkpoints")
        """Durable snapshots as they are."""
        self._durable = _AwayFolder(DriverStorage(self.folder, _nothing, outage, _nothing), self)
        self._away_until = -1.0
        self.hidden: set[str] = set()
        """Durable snapshots that somebody did not find because the folder was away."""
        self.machines: list[Machine] = []
        self._machine_of: dict[NodeId, Machine] = {}
        self._in_use: set[NodeId] = set()
        """Nodes of the driver that started last."""
        self.files: dict[int, ProcessFiles] = {}
        """Of the agents, by machine."""
        self.contents: dict[str, bytes] = {}
        """What was ever told to be safe."""
        self.forgotten: set[str] = set()
        self.damaged: set[str] = set()
        self.given: dict[str, bytes] = {}
        """What was ever to be saved."""
        self.survives: set[StateId] = set()
        """Snapshots that were once stored so that they survive the losses they must."""
        self.failed_loads: dict[tuple[int, StateId], int] = {}
        """Attempts of a machine to load a snapshot from the ring since the last that went well."""

    # -- machines ------------------------------------------------------------------------------------------------------

    def new_driver(self) -> None:
        """A driver has started: its nodes are others, on machines that may be the same."""
        self._in_use = set()

    def node_joins(self, name: NodeId) -> None:
        """Let a node have a machine: the one it had, one that is free, or a new one."""
        self._in_use.add(name)
        had = self._machine_of.get(name)
        if had is not None and had.alive and (had.name == name or had.name not in self._in_use):
            had.name = name
            return
        free = [one for one in self.machines if one.alive and one.name not in self._in_use]
        if free and self.mischief.draw.random() < 0.7:
            machine = free[0]
            machine.name = name
        else:
            machine = Machine(name, Disk(self.mischief, self._clock))
            self.machines.append(machine)
        self._machine_of[name] = machine

    def node_killed(self, name: NodeId) -> None:
        """A node is gone: with its machine, by a crash of it that the disk survives, or alone."""
        machine, fate = self._machine_of[name], self.mischief.draw.random()
        if self.over and name in self._in_use:
            return  # an old driver loses a node that the next one has: it goes on there
        self._in_use.discard(name)
        if machine.name != name:
            return  # a node of an earlier driver: another one has the machine
        machine.threads.clear()  # nodes that come back have new workers
        if fate < 0.4:
            machine.alive = False
        elif fate < 0.7:
            self.mischief.injected[Fault.MACHINE_CRASHED] += 1
            machine.disk.crash()
            machine.orders = None

    def store(self, name: NodeId) -> SnapshotStore:
        """Return what a new worker on a node saves and fetches with."""
        machine, threads = self._machine_of[name], LaterThreads()
        machine.threads.append(threads)
        spool = Spool(SPOOL, files=ProcessFiles(machine.disk, Fault.TASK_KILLED))
        return _WatchedStore(self, NodeSnapshotStore(self._durable, spool, threads, self._clock), machine)

    def work(self) -> None:
        """Let agents and threads do some of what they have to do."""
        faults = self.fragment_faults
        if self.mischief.active and self._clock() >= self._away_until and faults.strikes(Fault.FOLDER_AWAY):
            self._away_until = self._clock() + faults.draw.uniform(5, AWAY_SECONDS)
        for machine in self.machines:
            if machine.alive and self.mischief.draw.random() < 0.7:
                for threads in machine.threads:
                    threads.run(self.mischief)
                self._let_agent_work(machine)

    def _let_agent_work(self, machine: Machine) -> None:
        try:
            if machine.orders is None:
                files = self.files[id(machine)] = ProcessFiles(machine.disk, Fault.AGENT_KILLED)
                settings = SpoolServiceSettings(
                    wanted_losses=lambda saved: acknowledging.losses_wanted(saved.coding, saved.peers, self.known()),
                    tolerant=lambda: True,
                )
                machine.orders = SpoolOrders(
                    SPOOL, lambda: _PeerStore(self, machine), None, settings, self._clock, files
                )
            files = self.files[id(machine)]
            if not files.exists(_HEARTBEAT):
                files.write(_HEARTBEAT, [b""])
            files.touch(_HEARTBEAT)
            for order in machine.orders.take():
                if self.mischief.strikes(Fault.FETCH_LATE if order.endswith(".fetch") else Fault.SAVE_LATE):
                    machine.orders.leave(order)
                else:
                    machine.orders.carry_out(order)
        except ProcessDied:
            machine.orders = None
        except OSError:
            pass  # a full disk: the service looks again

    def lacks_machines(self) -> bool:
        """See Snapshots: on a single one nothing is safe."""
        return sum(one.alive for one in self.machines) < 2

    def on_the_way(self) -> bool:
        """See Snapshots: agents and threads do it, and whoever calls them moves the clock."""
        return False

    def known(self) -> int:
        """Return how many machines the driver knows."""
        return sum(one.alive and one.name in self._in_use for one in self.machines)

    def lose_fragments(self, state: StateId) -> None:
        """Lose fragments of a snapshot that somebody wants, of some machines: up to n - m, or more."""
        faults = self.fragment_faults
        holders = [one for one in self.machines if state in one.fragments]
        if holders and self.mischief.active and faults.strikes(Fault.FRAGMENTS_LOST):
            for machine in faults.draw.sample(holders, faults.draw.randint(1, len(holders))):
                del machine.fragments[state]

    def rebuilt(self, state: StateId, machines: list[Machine]) -> bytes | None:
        """Return a snapshot from the fragments of these machines; None: they have too few of any one code."""
        held: dict[Coding, dict[int, bytes]] = {}
        for machine in machines:
            for coding, (index, data) in machine.fragments.get(state, {}).items():
                held.setdefault(coding, {})[index] = data
        for coding in sorted(held, key=lambda one: (one.data, one.parity)):
            if len(held[coding]) >= coding.data:
                return next(iter(held[coding].values()))
        return None

    def is_damaged(self, name: str) -> bool:
        """Whether nobody gets a durable snapshot any more."""
        return name in self.damaged

    def is_hidden(self, name: str) -> bool:
        """Whether somebody who reads a durable snapshot now does not find it: the folder is away.

        What is on no ring any more is hidden only where it may be lost: else nothing could be restored at all.
        """
        if not self.mischief.active or self._clock() >= self._away_until:
            return False
        if self.rebuilt(state_of(name), [one for one in self.machines if one.alive]) is None:
            if not self._may_lose(name):
                return False
            self.damaged.add(name)
        self.hidden.add(name)
        return True

    def is_the_last(self, state: StateId) -> bool:
        """Whether only the ring has a snapshot now, and it may not be lost: the folder is away."""
        return any(state_of(name) == state and not self._may_lose(name) for name in self.hidden)

    def given_up(self, name: str, machine: Machine, reason: str) -> None:
        """A snapshot counts as lost: then neither the ring nor the folder has it, as far as somebody has looked."""
        if not is_durable_name(name) or name in self.damaged or self.over or self.superseded():
            return
        if name not in self.hidden and self.folder.read(name) is not None:
            self.complain(f"snapshot {name} is given up ({reason}), and the durable folder has it")
        looked = self.failed_loads.get((id(machine), state_of(name)), 0)
        if looked < 2 and self.rebuilt(state_of(name), self.reached(machine)) is not None:
            self.complain(
                f"snapshot {name} is given up after {looked} looks at the ring, which has enough fragments: {reason}"
            )

    def reached(self, machine: Machine) -> list[Machine]:
        """Return the machines whose peers an agent reaches."""
        return [one for one in self.machines if one.alive and self._network.agents_reach(machine.name, one.name)]

    def unreached(self, machine: Machine) -> list[Machine]:
        """Return the others."""
        return [one for one in self.machines if not self._network.agents_reach(machine.name, one.name)]

    # -- watching ------------------------------------------------------------------------------------------------------

    def safe(self, name: str) -> bool:
        """Whether a snapshot was told to be safe, and nobody has dropped it."""
        if name not in self.contents or name in self.forgotten:
            return False
        return not is_durable_name(name) or name in self.damaged or self.folder.read(name) is not None

    def created(self, name: str) -> None:
        """A driver has written a durable snapshot: that of a new layout."""
        held = self.folder.read(name)
        assert held is not None
        self.contents[name] = held.to_pybytes()

    def wanted(self, name: str) -> None:
        """Somebody wants a durable snapshot: it is there, or is damaged now, or was before."""
        if name not in self.damaged and self.folder.read(name) is None and not self.over and not self.superseded():
            self.complain(f"a partition is to start from snapshot {name}, which somebody has deleted")
        if self._may_lose(name) and self.mischief.strikes(Fault.DURABLE_LOST):
            self.damaged.add(name)
            self.folder.delete([name])


class _WatchedStore:
    """What a worker has, watched: see SnapshotStore."""

    def __init__(self, ring: AgentSnapshots, inner: NodeSnapshotStore, machine: Machine) -> None:
        self._ring, self._inner, self._machine = ring, inner, machine

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """See SnapshotStore."""
        given = bytes(memoryview(data))
        if self._ring.given.setdefault(name, given) != given:
            self._ring.complain(f"snapshot {name} is to be saved once more, with other bytes")
        self._inner.save(name, data, epoch=epoch, durable=durable)

    def saved(self, name: str) -> SaveAnswer | None:
        """See SnapshotStore: what counts as saved is there."""
        answer = self._inner.saved(name)
        if answer is not None and answer.problem is None and name not in self._ring.forgotten:
            held = self._ring.folder.read(name)
            over = self._ring.over or self._ring.superseded()
            if is_durable_name(name) and held is None and not over and name not in self._ring.damaged:
                self._ring.complain(f"snapshot {name} counts as saved, and is not in the run's storage")
            if state_of(name) not in self._ring.survives:
                self._ring.complain(f"snapshot {name} counts as saved, and survives fewer losses than it must")
            self._ring.contents.setdefault(name, self._ring.given[name])
        return answer

    def fetch(self, name: str) -> None:
        """See SnapshotStore."""
        if name not in self._ring.contents or name in self._ring.forgotten:
            if (self._ring.over or self._ring.superseded()) and name in self._ring.forgotten:
                return
            state = "that was forgotten" if name in self._ring.forgotten else "that was never safe"
            self._ring.complain(f"a partition is to start from snapshot {name}, {state}")
        if is_durable_name(name):
            self._ring.wanted(name)
        self._inner.fetch(name)

    def fetched(self, name: str) -> pa.Buffer | None:
        """See SnapshotStore: what comes is what was saved."""
        data = self._inner.fetched(name)
        if data is not None and data.to_pybytes() != self._ring.contents.get(name):
            self._ring.complain(f"snapshot {name} comes back with other contents than were saved")
        return data

    def lost(self, name: str) -> str | None:
        """See SnapshotStore."""
        reason = self._inner.lost(name)
        if reason is not None:
            self._ring.mischief.injected[Fault.SNAPSHOT_LOST] += 1
            self._ring.given_up(name, self._machine, reason)
        return reason

    def origin(self, name: str) -> Fetched:
        """See SnapshotStore."""
        return self._inner.origin(name)

    def progress(self, name: str) -> tuple[int, int] | None:
        """See SnapshotStore: here a fetch takes one step."""
        return None

    def put_in_place(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        self._inner.put_in_place(names)

    def forget(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        self._ring.forgotten.update(names)
        self._inner.forget(names)


class _AwayFolder:
    """The run's storage for durable snapshots as nodes see it: for a while, nothing that was written is there."""

    def __init__(self, inner: DriverStorage, ring: AgentSnapshots) -> None:
        self._inner, self._ring, self.url = inner, ring, inner.url
        self._written: set[str] = set()

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """See Storage."""
        self._written.add(name)
        return self._inner.create(name, data)

    def read(self, name: str) -> pa.Buffer | None:
        """See Storage; who has just written reads it back once, from the folder that it has made."""
        if name in self._written:
            self._written.discard(name)
            return self._inner.read(name)
        return None if self._ring.is_hidden(name) else self._inner.read(name)

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """See Storage."""
        return self._inner.list(prefix, after=after)

    def delete(self, names: Iterable[str]) -> None:
        """See Storage."""
        self._inner.delete(names)

    def within(self, folder: str) -> Storage:
        """See Storage: nobody looks into folders here."""
        raise NotImplementedError(folder)


def _nothing(what: str) -> None:
    pass
