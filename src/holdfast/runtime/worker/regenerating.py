"""Regenerators: copies of everything upstream of partitions that return after a long wait. Runs on a node.

What live senders kept for a partition that waits is dropped at a bound (`recovery.regeneration`). When the partition is
at work again, its own process makes the dropped blocks once more: it restores all partitions upstream from the durable
checkpoint, lets them read the batch log, and delivers what they send to the returning partitions here. They have a host
and a store of their own, so nothing of them can reach the files, snapshots, outboxes or sinks of others, and no other
process takes part. They run a window ahead of the slowest returning partition, and keep no more than that. Blocks are
the same as the live senders': operators are deterministic, rows that are left out are those that were decided, ranges
that are read in place are compared with the checksums of the first read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from holdfast.errors import CheckFailed, HoldfastError
from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, snapshot_name
from holdfast.runtime.blocks import OUTSIDE
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.messages import (
    Answer,
    DesiredState,
    Done,
    Failed,
    PartitionAssignment,
    RegeneratorAssignment,
    SnapshotLost,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import SnapshotStore
from holdfast.runtime.state.snapshots import Snapshot, decode_snapshot
from holdfast.runtime.state.store import MemoryStore, VersionStore
from holdfast.runtime.worker.host import PartitionHost, is_disk_full
from holdfast.runtime.worker.step_guard import READING, ApartGuard, StepGuard

YIELDS = 4
"""Where other partitions of the process always have work, regenerators get every so many-th round."""
WINDOW = 16
"""Batches that regenerators may be ahead of the partitions that they feed."""
ATTEMPTS = -1000
"""Steps of regenerators are noted as attempts from here on: a process that dies in one is no failed attempt of the
partition itself."""

Room = Callable[[], tuple[VersionStore, Callable[[], None]]]
"""Makes an empty store for regenerators, and what removes it with all that is in it."""


def in_memory() -> tuple[VersionStore, Callable[[], None]]:
    """Return an empty store in memory."""
    return MemoryStore(), lambda: None


Gaps = Mapping[PartitionId, Mapping[PartitionId, BatchId]]
"""Returning partitions, the senders whose blocks they get here, and the last batch of which they do."""


@dataclass(slots=True)
class Regeneration:
    """What came of one round."""

    moved: bool = False
    waits: bool = False
    """Whether snapshots are on their way."""
    answers: list[Answer] = field(default_factory=list)


class Regenerating:
    """The regenerators of one process."""

    def __init__(
        self,
        program: Program,
        clean: PartitionHost,
        snapshot_store: SnapshotStore,
        batch_log: BatchLog,
        guard: StepGuard,
        *,
        clock: Callable[[], float],
        room: Room = in_memory,
    ) -> None:
        """`clean` is the host of the partitions that return; `room` makes an empty store for the regenerators."""
        self._program, self._clean, self._snapshot_store, self._log = program, clean, snapshot_store, batch_log
        # A step that ended a process before its partition came through it is no reason not to make it again.
        self._guard, self._clock, self._room = ApartGuard(guard, "regenerated"), clock, room
        self._remove: Callable[[], None] = lambda: None
        self._host: PartitionHost | None = None
        self._built: frozenset[PartitionId] = frozenset()
        self._base: BatchId = NOTHING
        """What was to be regenerated when the host was made, and the batch from which all of it starts."""
        self._rounds = 0
        self._given: dict[PartitionId, tuple[Epoch, BatchId]] = {}
        """The last batch of the log that was given to each source, in which epoch."""
        self._handed: dict[tuple[PartitionId, PartitionId], tuple[Epoch, int, BatchId]] = {}
        """The last batch that was delivered of a sender, to which place of the returning partition, in which epoch."""

    @property
    def members(self) -> tuple[PartitionId, ...]:
        """The partitions that are regenerated here."""
        return () if self._host is None else self._host.partitions

    def reached(self, desired: DesiredState, here: Iterable[PartitionId]) -> dict[PartitionId, BatchId]:
        """Return the partitions here that get regenerated blocks, and the last batch that is made of all of them."""
        gaps = self._gaps(desired, here)
        if not gaps:
            return {}
        host, starts = self._host, desired.regenerators
        at = [starts[p].start.batch if host is None or p not in host else host.frontier(p) for p in self._needed(gaps)]
        return dict.fromkeys(gaps, min(at, default=NOTHING))

    def work(
        self, desired: DesiredState, here: Iterable[PartitionId], *, most: int | None = None, busy: bool = False
    ) -> Regeneration:
        """Let regenerators take so many batches each, and deliver what they have made; without need they are dropped.

        Where others have work (`busy`), they yield to them in most rounds.
        """
        done = Regeneration()
        gaps = self._gaps(desired, here)
        if not gaps:
            self._drop()
            return done
        needed = self._needed(gaps)
        if self._host is not None and not self._serves(self._host, desired, gaps, needed):
            self._drop()
        try:
            self._go_on(desired, gaps, needed, done, most, busy=busy)
        except OSError as error:  # its files: others go on
            problem = f"{type(error).__name__}: {error}"
            self._fail(desired, gaps, problem, done, disk_full=is_disk_full(error))
            self._drop()
        return done

    def _go_on(
        self,
        desired: DesiredState,
        gaps: Gaps,
        needed: list[PartitionId],
        done: Regeneration,
        most: int | None,
        *,
        busy: bool,
    ) -> None:
        """Put regenerators in place, let them take what they may, and deliver what they have made."""
        host = self._host
        if host is None:
            self._built, self._base = frozenset(needed), desired.regenerators[needed[0]].start.batch
            store, self._remove = self._room()
            host = self._host = PartitionHost(
                self._program,
                store,
                node=NodeId(f"{self._clean.node} regenerating"),
                epoch=desired.epoch,
                clock=self._clock,
                guard=self._guard,
                staged=self._clean.staged,
            )
        host.enter(desired.epoch)
        for p in host.partitions:
            if p not in needed:
                host.lose(p)
        self._built = frozenset(needed)
        placed = [self._in_place(host, desired, p, done) for p in needed]
        self._rounds += 1
        if all(placed):
            if not busy or self._rounds % YIELDS == 0:
                self._run(host, desired, gaps, done, most)
            self._deliver(host, desired, gaps)
            self._trim(host, gaps)

    def _drop(self) -> None:
        if self._host is not None:
            self._host = None
            self._remove()
            self._handed.clear()
            self._given.clear()

    # -- what is needed ------------------------------------------------------------------------------------------------

    def _gaps(self, desired: DesiredState, here: Iterable[PartitionId]) -> Gaps:
        """Return what partitions here still have to get; nothing while what they wait for is not there."""
        found: dict[PartitionId, dict[PartitionId, BatchId]] = {}
        if not desired.regenerators:
            return found
        for p in here:
            one: PartitionAssignment | None = desired.assignments.get(p)
            if one is None or not one.regenerate or one.paused or self._clean.is_held_back(p):
                continue
            frontier = self._clean.frontier(p)
            left = {sender: through for sender, through in one.regenerate.items() if through > frontier}
            if left and all(one in desired.regenerators for sender in left for one in self._above(sender)):
                found[p] = left
        return found

    def _above(self, partition: PartitionId) -> set[PartitionId]:
        """Return a partition and everything upstream of it."""
        found, left = {partition}, [partition]
        while left:
            for sender in self._program.senders[left.pop()]:
                if sender not in found and sender.operator != OUTSIDE:
                    found.add(sender)
                    left.append(sender)
        return found

    def _needed(self, gaps: Gaps) -> list[PartitionId]:
        wanted = {one for senders in gaps.values() for sender in senders for one in self._above(sender)}
        return [p for p in self._program.partitions if p in wanted]

    def _serves(self, host: PartitionHost, desired: DesiredState, gaps: Gaps, needed: Iterable[PartitionId]) -> bool:
        """Whether the regenerators that run have all that is needed: another partition may have returned since.

        All of them start from one batch, or what is sent between them has gaps.
        """
        for p in needed:
            if p not in self._built or (p not in host and desired.regenerators[p].start.batch != self._base):
                return False
        return not any(
            sender in host and host.kept_from(sender) > self._clean.frontier(consumer) + 1
            for consumer, senders in gaps.items()
            for sender in senders
        )

    # -- putting in place ----------------------------------------------------------------------------------------------

    def _in_place(self, host: PartitionHost, desired: DesiredState, partition: PartitionId, done: Regeneration) -> bool:
        """Say whether a regenerator is in place, restoring it where its snapshots have come."""
        if partition in host:
            return True
        self._guard.turn()
        start = desired.regenerators[partition].start
        if start.batch == NOTHING:
            host.take(partition, NOTHING)
            return True
        found: list[Snapshot] = []
        for snapshot in start.snapshots:
            name = snapshot_name(desired.run, partition, snapshot)
            data = self._snapshot_store.fetched(name) if snapshot.contents is None else snapshot.contents
            if data is None:
                self._snapshot_store.fetch(name)
                done.waits = True
                if (problem := self._snapshot_store.lost(name)) is not None:
                    done.answers.append(SnapshotLost(partition, snapshot.id, problem, regenerating=True))
                continue
            try:
                found.append(decode_snapshot(data))
            except CheckFailed as error:
                done.answers.append(SnapshotLost(partition, snapshot.id, str(error), regenerating=True))
        if len(found) < len(start.snapshots):
            return False
        try:
            host.restore(found)
        except CheckFailed as error:  # they do not fit each other
            done.answers.append(SnapshotLost(partition, start.snapshots[-1].id, str(error), regenerating=True))
            return False
        self._snapshot_store.put_in_place([snapshot_name(desired.run, partition, one) for one in start.snapshots])
        done.moved = True
        return True

    # -- work ----------------------------------------------------------------------------------------------------------

    def _run(
        self, host: PartitionHost, desired: DesiredState, gaps: Gaps, done: Regeneration, most: int | None
    ) -> None:
        """Let each regenerator take what it may: no batch that is not needed, none far ahead of who needs it."""
        limits = self._limits(host, gaps)
        attempt = ATTEMPTS + max(desired.assignments[p].attempt for p in gaps)
        starts = desired.regenerators
        problems = [
            why for p in host.partitions if (why := self._read(host, desired, p, limits[p], done, attempt)) is not None
        ]
        answers = host.run(
            most,
            attempts=dict.fromkeys(host.partitions, attempt),
            skips={p: skips for p in host.partitions if p in starts and (skips := starts[p].skips)},
            limits=limits,
        )
        done.moved = done.moved or any(isinstance(one, Done) for one in answers)
        problems += [str(one) for one in answers if not isinstance(one, Done)]
        if problems:
            full = any(isinstance(one, Failed) and one.disk_full for one in answers)
            self._fail(desired, gaps, problems[0], done, disk_full=full)

    def _fail(
        self, desired: DesiredState, gaps: Gaps, problem: str, done: Regeneration, *, disk_full: bool = False
    ) -> None:
        """Fail the partitions that return: they are tried again, and their queries parked after some attempts."""
        for p in gaps:
            at = BatchId(self._clean.frontier(p) + 1)
            text = f"what it takes in cannot be regenerated: {problem}"
            done.answers.append(Failed(p, at, text, desired.assignments[p].attempt, disk_full))

    def _limits(self, host: PartitionHost, gaps: Gaps) -> dict[PartitionId, BatchId]:
        """Return the last batch that each regenerator may complete now."""
        limits: dict[PartitionId, BatchId] = {}
        last: dict[PartitionId, BatchId] = {}
        """What each is needed for; of later batches it is not decided yet which rows are left out."""
        for p in reversed(host.partitions):
            needed = [last[one] for one in self._program.consumers(p) if one in last]
            needed += [senders[p] for senders in gaps.values() if p in senders]
            last[p] = max(needed, default=host.frontier(p))
            fed = [host.frontier(one) for one in self._program.consumers(p) if one in host]
            fed += [self._clean.frontier(one) for one, senders in gaps.items() if p in senders]
            limits[p] = min(last[p], BatchId(min(fed, default=host.frontier(p)) + WINDOW))
        return limits

    def _read(
        self,
        host: PartitionHost,
        desired: DesiredState,
        partition: PartitionId,
        limit: BatchId,
        done: Regeneration,
        attempt: int = ATTEMPTS,
    ) -> str | None:
        """Give a source what the log has for it; return why it cannot be read. Storage that is away is tried again."""
        one: RegeneratorAssignment | None = desired.regenerators.get(partition)
        if partition.operator not in self._program.sources or one is None:
            return None
        checks, frontier = dict(one.checks), host.frontier(partition)
        epoch, last = self._given.get(partition, (desired.epoch, frontier))
        try:
            for number in range((max(last, frontier) if epoch == desired.epoch else frontier) + 1, limit + 1):
                batch = BatchId(number)
                if not one.since < batch <= one.through:
                    done.waits = True  # for the checksums of what comes next; others may be further, or were before
                    break
                if (died := self._guard.begin(partition, batch, attempt, READING)) is not None:
                    return f"{partition} cannot read batch {batch}: {died.in_reading}"
                try:
                    block = self._log.block(
                        partition.operator, batch, partition.index, desired.epoch, checks.get(batch)
                    )
                finally:
                    self._guard.end()
                host.deliver([block])
                self._given[partition] = (desired.epoch, batch)
            if partition not in self._clean:
                self._log.reads_of(partition, frontier, frontier)  # nobody asks for what is read here
        except HoldfastError as error:
            return f"{partition} cannot read the log: {error}"
        except OSError:
            done.waits = True
        return None

    # -- what goes out -------------------------------------------------------------------------------------------------

    def _deliver(self, host: PartitionHost, desired: DesiredState, gaps: Gaps) -> None:
        """Give returning partitions what they have not got; a new epoch, or place, has got nothing."""
        for consumer, senders in gaps.items():
            frontier, place = self._clean.frontier(consumer), self._clean.place(consumer)
            for sender, last in senders.items():
                epoch, at, handed = self._handed.get((consumer, sender), (desired.epoch, place, frontier))
                after = max(frontier, handed) if (epoch, at) == (desired.epoch, place) else frontier
                through = min(host.frontier(sender), last, BatchId(frontier + WINDOW))
                if after < through:
                    self._clean.deliver(host.replay(sender, consumer, after, through) or ())
                    self._handed[consumer, sender] = (desired.epoch, place, through)

    def _trim(self, host: PartitionHost, gaps: Gaps) -> None:
        """Keep what somebody here has still to take."""
        for p in host.partitions:
            fed = [host.frontier(one) for one in self._program.consumers(p) if one in host]
            fed += [self._clean.frontier(one) for one, senders in gaps.items() if p in senders]
            host.keep(p, BatchId(min(fed, default=host.frontier(p)) + 1))
