"""What nodes and driver write to in a simulated run: files that go missing, a snapshot store that is slow and forgets,
and sinks that remember what they were given. Runs anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.runtime.fetches import Fetched
from holdfast.runtime.io.sinks import MemorySink, OutputKey, Sink, StagedRows
from holdfast.runtime.state.snapshot_store import Answered, SaveAnswer, SnapshotStore
from holdfast.runtime.state.store import Addition, MemoryStore
from holdfast.runtime.state.versions import Commit, Pointer
from holdfast.storage.storage import Storage
from holdfast_lab.simulation.recovery.faults import Fault, Mischief

Complain = Callable[[str], None]
"""Takes what must not happen."""


class FragileStore(MemoryStore):
    """A node's files, some of which can be lost. What was refused once must stay refused: it looks itself."""

    def __init__(self, complain: Complain) -> None:
        super().__init__()
        self._complain = complain
        self._highest: dict[PartitionId, Epoch] = {}

    def point(self, partition: PartitionId, pointer: Pointer) -> None:
        """See VersionStore."""
        super().point(partition, pointer)
        self._watch(partition, pointer.epoch)

    def begin(self, partition: PartitionId, epoch: Epoch) -> None:
        """See VersionStore."""
        super().begin(partition, epoch)
        self._watch(partition, epoch)

    def commit(self, commit: Commit, added: Addition) -> Commit:
        """See VersionStore."""
        kept = super().commit(commit, added)
        if commit.partition in self._pointers:  # else its files are gone: what does not know it yet writes into nowhere
            self._watch(commit.partition, commit.id.epoch)
        return kept

    def drop(self, partition: PartitionId) -> None:
        """See VersionStore."""
        super().drop(partition)
        self._highest.pop(partition, None)

    def _watch(self, partition: PartitionId, epoch: Epoch) -> None:
        if epoch < self._highest.get(partition, epoch):
            self._complain(
                f"{partition} is in epoch {self._highest[partition]}, and a write of epoch {epoch} was taken"
            )
        self._highest[partition] = epoch

    @property
    def partitions(self) -> list[PartitionId]:
        """Who has files here."""
        return list(self._commits)

    def lose_state(self, partition: PartitionId) -> bool:
        """Lose the state files of a partition; its commits and outbox stay."""
        return bool(self._segments.pop(partition, None))

    def lose_outbox(self, partition: PartitionId) -> bool:
        """Lose the outbox files of a partition."""
        return bool(self._blocks.pop(partition, None))

    def outbox_batches(self, partition: PartitionId) -> list[BatchId]:
        """Return the batches whose output is still here."""
        held = self._blocks.get(partition, {})
        return sorted(one.id.batch for one in self._commits.get(partition, {}).values() if one.blocks in held)


class NodeFiles:
    """The files of a node: a store for each of its operator processes, whether that runs or not."""

    def __init__(self, complain: Complain) -> None:
        self._complain = complain
        self.stores: list[FragileStore] = []

    def of(self, process: int = 0) -> FragileStore:
        """Return the store of a process."""
        while len(self.stores) <= process:
            self.stores.append(FragileStore(self._complain))
        return self.stores[process]


@dataclass(slots=True)
class _Held:
    data: pa.Buffer
    durable: bool
    safe_at: float
    epoch: int
    problem: str | None = None
    comes_at: float | None = None
    lost: str | None = None
    reported_safe: bool = False


_OVER = "its epoch is over"


class Snapshots(Protocol):
    """The snapshots of a simulated run."""

    over: bool
    """Whether an old driver, or a task of a cycle that is over, asks now: what it wants may have been forgotten."""
    superseded: Callable[[], bool]
    """Whether the driver that has the run has lost it, and does not know it yet."""

    @property
    def folder(self) -> Storage:
        """Durable snapshots, as storage."""
        ...

    def is_damaged(self, name: str) -> bool:
        """Whether nobody gets a durable snapshot any more."""
        ...

    def new_driver(self) -> None:
        """A driver has started."""
        ...

    def node_joins(self, name: NodeId) -> None:
        """A node is there, with a machine that has an agent."""
        ...

    def node_killed(self, name: NodeId) -> None:
        """A node is gone."""
        ...

    def store(self, name: NodeId) -> SnapshotStore:
        """Return what a new worker on a node saves and fetches with."""
        ...

    def created(self, name: str) -> None:
        """A driver has written a durable snapshot."""
        ...

    def work(self) -> None:
        """Let whoever works in the background do something."""
        ...

    def lacks_machines(self) -> bool:
        """Whether there are too few machines to save anything."""
        ...

    def on_the_way(self) -> bool:
        """Whether time alone brings a snapshot that is being saved or fetched."""
        ...

    def safe(self, name: str) -> bool:
        """Whether a snapshot was told to be safe, and nobody has dropped it."""
        ...


class SlowSnapshotStore:
    """Snapshots that take time to save and to fetch, and that can be lost where they are not durable.

    Losing is decided when a snapshot is first fetched: fragments go with the nodes that held them, and a recovery is
    when one finds out.
    """

    def __init__(
        self,
        mischief: Mischief,
        clock: Callable[[], float],
        complain: Complain,
        may_lose: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """`may_lose` says whether a durable snapshot may be lost as well."""
        self._mischief, self._clock, self._complain, self._may_lose = mischief, clock, complain, may_lose
        self.snapshots: dict[str, _Held] = {}
        self.forgotten: set[str] = set()
        self._given: dict[str, bytes] = {}
        """What was ever to be saved: a name stands for one thing."""
        self._epoch = 0
        """The newest epoch in which anybody has saved."""
        self.over = False
        """Whether an old driver, or a task of a cycle that is over, asks now: what it wants may have been forgotten."""
        self.superseded: Callable[[], bool] = lambda: False

    def save(self, name: str, data: bytes | pa.Buffer, *, epoch: int, durable: bool) -> None:
        """See SnapshotStore."""
        given = bytes(memoryview(data))
        if self._given.setdefault(name, given) != given:
            self._complain(f"snapshot {name} is to be saved once more, with other bytes")
        held = self.snapshots.get(name)
        if held is not None and (held.problem is None or (held.problem == _OVER and epoch <= held.epoch)):
            return
        self._epoch = max(self._epoch, epoch)
        now = self._clock()
        late = self._mischief.draw.uniform(5, 90) if self._mischief.strikes(Fault.SAVE_LATE) else 0.0
        problem = "too few peers answered" if self._mischief.strikes(Fault.SAVE_FAILED) else None
        buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        self.snapshots[name] = _Held(buffer, durable, now + late, epoch, problem)

    def saved(self, name: str) -> SaveAnswer | None:
        """See SnapshotStore."""
        held = self.snapshots.get(name)
        if held is None or held.safe_at > self._clock():
            return None
        if held.problem is None and not held.reported_safe and held.epoch < self._epoch:
            # A save that was still under way when another node saved in a newer epoch: peers refuse it for good.
            held.problem = _OVER
            self._mischief.injected[Fault.SAVE_REFUSED] += 1
        if held.problem is None:
            held.reported_safe = True
        return Answered(held.problem, fenced=held.problem == _OVER)

    def fetch(self, name: str) -> None:
        """See SnapshotStore."""
        held = self.snapshots.get(name)
        if held is None or not held.reported_safe:
            if (self.over or self.superseded()) and name in self.forgotten:
                return
            state = "that was forgotten" if name in self.forgotten else "that was never safe"
            self._complain(f"a partition is to start from snapshot {name}, {state}")
            return
        if held.comes_at is None:
            if held.durable and held.lost is None and self._may_lose(name):
                if self._mischief.strikes(Fault.DURABLE_LOST):
                    held.lost = "its file is damaged"
            elif not held.durable and held.lost is None:
                if self._mischief.strikes(Fault.SNAPSHOT_LOST):
                    held.lost = "3 of 4 fragments are gone"
                elif self._mischief.strikes(Fault.SNAPSHOT_DAMAGED):
                    held.data = held.data.slice(0, held.data.size - 1)
            late = self._mischief.draw.uniform(5, 60) if self._mischief.strikes(Fault.FETCH_LATE) else 0.0
            held.comes_at = self._clock() + late

    def is_damaged(self, name: str) -> bool:
        """Whether nobody gets a snapshot any more."""
        held = self.snapshots.get(name)
        return held is not None and held.lost is not None

    def fetched(self, name: str) -> pa.Buffer | None:
        """See SnapshotStore."""
        held = self.snapshots.get(name)
        if held is None or held.lost is not None or held.comes_at is None or held.comes_at > self._clock():
            return None
        return held.data

    def lost(self, name: str) -> str | None:
        """See SnapshotStore."""
        held = self.snapshots.get(name)
        if held is None:
            return "it is not here"
        return held.lost if held.comes_at is None or held.comes_at <= self._clock() else None

    def origin(self, name: str) -> Fetched:
        """See SnapshotStore."""
        held = self.snapshots.get(name)
        return Fetched(peer_bytes=0 if held is None else held.data.size)

    def progress(self, name: str) -> tuple[int, int] | None:
        """See SnapshotStore."""
        return None

    def put_in_place(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""

    def forget(self, names: Sequence[str]) -> None:
        """See SnapshotStore."""
        for name in names:
            if self.snapshots.pop(name, None) is not None:
                self.forgotten.add(name)

    def safe(self, name: str) -> bool:
        """Whether a snapshot was told to be safe, and nobody has dropped it."""
        held = self.snapshots.get(name)
        return held is not None and held.reported_safe

    @property
    def folder(self) -> Storage:
        """See Snapshots."""
        return SnapshotFolder(self)

    def node_joins(self, name: NodeId) -> None:
        """See Snapshots: there are no machines here."""

    def node_killed(self, name: NodeId) -> None:
        """See Snapshots."""

    def store(self, name: NodeId) -> SnapshotStore:
        """See Snapshots: one for all."""
        return self

    def created(self, name: str) -> None:
        """See Snapshots."""

    def work(self) -> None:
        """See Snapshots: the clock does it."""

    def lacks_machines(self) -> bool:
        """See Snapshots: it needs none."""
        return False

    def on_the_way(self) -> bool:
        """See Snapshots."""
        now = self._clock()
        return any(one.safe_at > now or (one.comes_at or 0.0) > now for one in self.snapshots.values())

    def new_driver(self) -> None:
        """See Snapshots: fetches of the nodes before count no more."""
        for held in self.snapshots.values():
            held.comes_at = None


class SnapshotFolder:
    """The durable snapshots of a store, as the storage that drivers look at when they start and change the layout."""

    url = "simulated:checkpoints"

    def __init__(self, store: SlowSnapshotStore) -> None:
        self._store = store

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """See Storage."""
        snapshots = self._store.snapshots
        if name in snapshots:
            return False
        snapshots[name] = _Held(pa.py_buffer(bytes(memoryview(data))), True, 0.0, 0, reported_safe=True)
        return True

    def read(self, name: str) -> pa.Buffer | None:
        """See Storage."""
        held = self._store.snapshots.get(name)
        return None if held is None or not held.durable or held.lost is not None else held.data

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """See Storage."""
        held = self._store.snapshots.items()
        return sorted(name for name, one in held if one.durable and name.startswith(prefix) and name > after)

    def delete(self, names: Iterable[str]) -> None:
        """See Storage."""
        self._store.forget(list(names))

    def within(self, folder: str) -> SnapshotFolder:
        """See Storage: nobody looks into folders here."""
        raise NotImplementedError(folder)


class WatchedSink(Sink):
    """A sink that a driver may die before or after publishing to, and that compares what it is given twice.

    Sinks that create outputs only if absent refuse nobody: what a driver or a node that is over wants to write must be
    the same as well.
    """

    def __init__(
        self,
        touch: Callable[[str], None],
        complain: Complain,
        *,
        at_sink: Callable[[OutputKey], object] = lambda key: None,
    ) -> None:
        """`at_sink` is called before anything is published: it may raise."""
        self._inner = MemorySink()
        self._touch, self._complain, self._at_sink = touch, complain, at_sink
        self._last: dict[tuple[int, PartitionId], BatchId] = {}
        self.given: dict[OutputKey, pa.Table] = {}
        self._first: dict[OutputKey, pa.Table] = {}
        """What somebody wanted to write first, whether it counted or not."""
        self._highest: dict[PartitionId | None, Epoch] = {}
        self.before_tentative: Callable[[OutputKey, Epoch], None] = lambda key, epoch: None
        """Called before tentative rows are published."""

    corrects = True

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """See Sink."""
        self._touch("before publishing tentative rows")
        if not 0.0 < fidelity <= 1.0:
            self._complain(f"tentative rows of {key} come with fidelity {fidelity}")
        self.before_tentative(key, epoch)
        new = self._inner.publish_tentative(key, rows, fidelity, epoch)
        self._touch("after publishing tentative rows")
        return new

    def retract(self, key: OutputKey, none: pa.Table, epoch: Epoch) -> None:
        """See Sink."""
        self._touch("before retracting")
        self._inner.retract(key, none, epoch)

    def versions(self) -> pa.Table | None:
        """Return one version of each output, as readers see it."""
        return self._inner.versions()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self._touch("before publishing")
        self._at_sink(key)
        self.compare(key, rows)
        new = self._inner.publish(key, rows, epoch)
        calls = key.query if self.on_nodes else None  # whose calls come one after the other
        if epoch < (highest := self._highest.get(calls, Epoch(0))):
            self._complain(f"{key} was taken from epoch {epoch} after one of epoch {highest}")
        self._highest[calls] = epoch
        if new and key in self.given:
            self._complain(f"{key} was published twice")
        if new:
            self.given[key] = rows
            if key.batch <= (before := self._last.get((key.generation, key.query), BatchId(-1))):
                self._complain(f"{key} was published after batch {before}")
            self._last[key.generation, key.query] = key.batch
        self._touch("after publishing")
        return new

    def compare(self, key: OutputKey, rows: pa.Table) -> None:
        """Complain where an output comes again with other rows, from whomever it comes."""
        if not self._first.setdefault(key, rows).equals(rows):
            self._complain(f"{key} comes again with other rows")


class _Stager:
    """What nodes stage rows with during one start of a driver."""

    def __init__(
        self, start: str, area: dict[str, pa.Table], compare: Callable[[OutputKey, pa.Table], None], mischief: Mischief
    ) -> None:
        self._start, self._area, self._compare, self._mischief = start, area, compare, mischief

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        if self._mischief.strikes(Fault.STAGING_FAILED):
            return "OSError: No space left on device"
        self._compare(key, rows)
        place = f"{self._start}/{key}"
        self._area[place] = rows
        return StagedRows(place, rows.num_rows)


class StagingWatchedSink(WatchedSink):
    """A watched sink whose rows nodes stage; what they staged can go missing before it is adopted."""

    def __init__(
        self,
        touch: Callable[[str], None],
        complain: Complain,
        mischief: Mischief,
        *,
        at_sink: Callable[[OutputKey], object],
    ) -> None:
        super().__init__(touch, complain, at_sink=at_sink)
        self._mischief = mischief
        self._areas: dict[str, dict[str, pa.Table]] = {}
        self._current = ""

    def stager(self, start: str) -> _Stager:
        """See Sink."""
        self._current, self._areas[start] = start, {}
        return _Stager(start, self._areas[start], self.compare, self._mischief)

    def adopt(self, key: OutputKey, staged: StagedRows, epoch: Epoch) -> bool:
        """See Sink."""
        area = self._areas.get(staged.place.partition("/")[0], {})
        if staged.place in area and self._mischief.strikes(Fault.STAGED_MISSING):
            del area[staged.place]
        if staged.place not in area:
            raise FileNotFoundError(staged.place)
        new = self.publish(key, area[staged.place], epoch)
        del area[staged.place]
        return new

    def sweep_staged(self) -> None:
        """See Sink."""
        self._areas = {start: area for start, area in self._areas.items() if start == self._current}

    def end_staging(self) -> None:
        """See Sink."""
        self._areas.clear()
