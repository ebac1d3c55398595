"""A node's share of a cycle: put partitions in place, take blocks in, process, save, hand over. Runs on a node.

Nothing here raises for what a partition, a user's function or a lost file does: those are answers, and the neighbours
go on. What is kept between cycles is a cache; a worker that is new finds everything in the node's files, the
snapshot_store and the cycle. A partition's state is put in place alone (two attempts of one task see each other) and
only when it has come whole; until then its neighbours do not wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from holdfast.errors import CheckFailed, HoldfastError
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot, snapshot_name
from holdfast.runtime.answers import Done, Failed, Measures, Missing, Ready, Refused
from holdfast.runtime.blocks import LATE, SINK, Block
from holdfast.runtime.io.sources import SourceLog
from holdfast.runtime.messages import Cycle, Lost, NodeReport, NotSaved, Stored, Task
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import SnapshotStore
from holdfast.runtime.state.snapshots import decode_snapshot, encode_snapshot
from holdfast.runtime.state.store import StaleEpoch, VersionStore
from holdfast.runtime.state.versions import Pointer, VersionId
from holdfast.runtime.worker.host import PartitionHost

Said = list[object]
SENT_AHEAD = 2
"""A consumer gets so many times the batches that it may take in a cycle: it may take some at several levels."""
SMALL_SNAPSHOT = 512
"""Bytes up to which a snapshot goes to the driver's log: what a partition without state needs."""


class Node:
    """One node: its host, its files, its way to the snapshot_store, and the sources' logs."""

    def __init__(
        self,
        program: Program,
        store: VersionStore,
        snapshot_store: SnapshotStore,
        logs: Mapping[OperatorId, SourceLog],
        *,
        name: NodeId,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        small_snapshot: int = SMALL_SNAPSHOT,
    ) -> None:
        self.name, self._program, self._store, self._snapshot_store, self._logs = (
            name,
            program,
            store,
            snapshot_store,
            logs,
        )
        self._cpu_clock, self._small_snapshot = cpu_clock, small_snapshot
        self.host = PartitionHost(program, store, node=name, epoch=Epoch(0), clock=clock)
        self._begun: dict[tuple[PartitionId, VersionId], SavedSnapshot] = {}
        """Snapshots whose saving was begun by this process, and has not ended."""

    def level(self, cycle: Cycle, level: int, blocks: Iterable[Block]) -> NodeReport:
        """Do one level of a cycle; the blocks are drained, whatever happens."""
        given = list(blocks)
        mine = {
            p: cycle.tasks[p] for p in self._program.partitions if p in cycle.tasks and cycle.tasks[p].node == self.name
        }
        if cycle.epoch < self.host.epoch:
            return NodeReport(self.name, cycle.epoch, [Refused(p, cycle.epoch, self.host.epoch) for p in mine])
        began = self._cpu_clock()
        said: Said = []
        self.host.enter(cycle.epoch)
        here = [p for p, task in mine.items() if self._in_place(cycle, p, task, said)]
        for p in self.host.partitions:
            if p not in here:
                self.host.release(p)
        self._hear(cycle, here)
        self.host.deliver(given)
        if level == 0:
            self._read_logs(cycle, here, said)
        paused = [p for p in here if mine[p].paused]
        said += self.host.run(cycle.most, seconds=cycle.seconds, without=paused)
        for p in here:
            self._save(cycle, p, mine[p], said)
        if cycle.forget and level == 0:
            self._snapshot_store.forget(cycle.forget)
        said += [Missing(p, at) for p, at in self.host.unkept()]
        if cycle.ask_outboxes:
            self.host.trim()
        answers = [one for one in said if not isinstance(one, Ready | Done)]
        return NodeReport(
            self.name,
            cycle.epoch,
            answers,  # type: ignore[arg-type]
            tuple(self.host.outgoing(None if cycle.most is None else SENT_AHEAD * cycle.most)),
            {p: self.host.frontier(p) for p in self.host.partitions},
            _shares([one for one in said if isinstance(one, Done)], self._cpu_clock() - began),
            self._store.kept_bytes() if cycle.count_kept else 0,
            {p: self.host.oldest_output(p) for p in self.host.partitions} if cycle.ask_outboxes else {},
        )

    # -- putting in place ----------------------------------------------------------------------------------------------

    def _in_place(self, cycle: Cycle, partition: PartitionId, task: Task, said: Said) -> bool:
        """Say whether a partition can run here, putting its state in place where that can be done now."""
        host = self.host
        if partition in host and host.since(partition) >= task.start.epoch:
            if host.frontier(partition) >= task.frontier:
                return True
            host.release(partition)  # another worker on this node went on with it
        try:
            with self._store.alone(partition):
                line = self._store.line(partition)
                if line is None or line.pointer.epoch < task.start.epoch:
                    if task.frontier > task.start.batch:
                        # It had started, and gone on: its files were here and are gone.
                        said.append(Missing(partition, task.frontier))
                        return False
                    if not self._start(cycle, partition, task, said):
                        return False
                answer = host.take(partition, task.frontier)
        except StaleEpoch:
            said.append(Refused(partition, cycle.epoch, self.host.epoch))
            return False
        except HoldfastError as error:
            said.append(Failed(partition, task.frontier, str(error)))
            return False
        except OSError as error:
            said.append(Failed(partition, task.frontier, f"{type(error).__name__}: {error}"))
            return False
        if not isinstance(answer, Ready):
            said.append(answer)
            return False
        return True

    def _start(self, cycle: Cycle, partition: PartitionId, task: Task, said: Said) -> bool:
        """Let a partition start where its task says: from nothing, from a version that is here, or from snapshots."""
        start = task.start
        self.host.release(partition)
        if start.batch == NOTHING:
            self._store.drop(partition)
            self._store.point(partition, Pointer(cycle.epoch, None))
            return True
        line = self._store.line(partition)
        commit = None if line is None else line.commits.get(start.batch)
        sure = self._program.operators[partition.operator].deterministic
        asked = VersionId(start.batch, start.snapshots[-1].epoch)
        if line is not None and commit is not None and (sure or commit.id == asked):
            first = start.snapshots[-1].outbox_from
            sent = [
                line.commits.get(BatchId(b))
                for b in range(start.batch + 1 if first is None else first, start.batch + 1)
            ]
            kept = all(one is not None and self._store.sent(one) is not None for one in sent)
            if kept and self._store.load(commit) is not None:
                self._store.point(partition, Pointer(cycle.epoch, commit.id))
                return True
        return self._restore(cycle, partition, task, said)

    def _restore(self, cycle: Cycle, partition: PartitionId, task: Task, said: Said) -> bool:
        """Adopt snapshots that have come; begin to bring them, and come back later, where they have not."""
        found = []
        for snapshot in task.start.snapshots:
            name = snapshot_name(cycle.run, partition, snapshot)
            data = self._snapshot_store.fetched(name) if snapshot.contents is None else snapshot.contents
            if data is None:
                self._snapshot_store.fetch(name)
                problem = self._snapshot_store.lost(name)
                if problem is not None:
                    said.append(Lost(partition, snapshot.id, problem))
                continue
            try:
                found.append(decode_snapshot(data))
            except CheckFailed as error:
                said.append(Lost(partition, snapshot.id, str(error)))
        if len(found) < len(task.start.snapshots):
            return False
        self.host.restore(found)
        self.host.release(partition)
        return True

    # -- hearing and reading -------------------------------------------------------------------------------------------

    def _hear(self, cycle: Cycle, here: list[PartitionId]) -> None:
        """Take over what the driver's log says: how far consumers are, what is kept."""
        for p in here:
            task = cycle.tasks[p]
            for consumer in self._program.consumers(p):
                if consumer.operator == SINK:
                    self.host.hear(p, consumer, cycle.published[p])
                elif consumer.operator == LATE:
                    self.host.hear(p, consumer, task.frontier)
                else:
                    other = cycle.tasks.get(consumer)
                    self.host.hear(p, consumer, None if other is None else other.frontier)
            # The version of the last snapshot stays: the next one holds what has changed since.
            self.host.keep(p, task.keep_from, [*task.marks, *(() if task.follows is None else [task.follows.batch])])

    def _read_logs(self, cycle: Cycle, here: list[PartitionId], said: Said) -> None:
        """Give source partitions what their logs have for them."""
        for p in here:
            log = self._logs.get(p.operator)
            if log is None:
                continue
            first = self.host.frontier(p) + 1
            last: int = cycle.tasks[p].through
            if cycle.most is not None:
                last = min(last, first + cycle.most - 1)
            try:
                for number in range(first, last + 1):
                    self.host.deliver([log.block(BatchId(number), p.index, cycle.epoch)])
            except HoldfastError as error:
                said.append(Failed(p, self.host.frontier(p), str(error)))

    # -- saving --------------------------------------------------------------------------------------------------------

    def _save(self, cycle: Cycle, partition: PartitionId, task: Task, said: Said) -> None:
        """Save at the first mark that is not safe yet, once the partition has passed it; the next comes after it."""
        for mark in task.marks:
            if self.host.frontier(partition) < mark:
                return
            version = self.host.version(partition, mark)
            if version is not None:
                answer = self._save_at(cycle, partition, task, version)
                if not isinstance(answer, NotSaved) or not answer.gone:
                    said += [] if answer is None else [answer]
                    return
            said.append(NotSaved(partition, mark, "the state at this batch is not here any more", gone=True))

    def _save_at(
        self, cycle: Cycle, partition: PartitionId, task: Task, version: VersionId
    ) -> Stored | NotSaved | None:
        """Begin to save a version, or say what came of it; None: it is on its way."""
        snapshot = self._begun.get((partition, version)) or self._described(partition, task, version)
        name = snapshot_name(cycle.run, partition, snapshot)
        answer = self._snapshot_store.saved(name)
        again = answer is not None and answer.problem is not None
        if again or (answer is None and (partition, version) not in self._begun):
            begun = self._begin_save(cycle, partition, version, snapshot, name)
            if begun is not None:
                self._begun.pop((partition, version), None)  # next time it is described by what is here then
                return begun
            self._begun[partition, version] = snapshot
            answer = self._snapshot_store.saved(name) if answer is None else answer
        if answer is None:
            return None
        if answer.problem is not None:
            return NotSaved(partition, version.batch, answer.problem)
        self._begun.pop((partition, version), None)
        return Stored(partition, snapshot)

    def _begin_save(
        self, cycle: Cycle, partition: PartitionId, version: VersionId, snapshot: SavedSnapshot, name: str
    ) -> Stored | NotSaved | None:
        """Begin to save; one that is so small that the driver's log has room for it is safe with the report."""
        try:
            taken = self.host.snapshot(
                partition,
                version.batch,
                since=None if snapshot.follows is None else VersionId(*snapshot.follows),
                outbox_from=self._outbox_added(snapshot),
            )
            if isinstance(taken, Missing):
                return NotSaved(partition, version.batch, "the state is not here any more", gone=True)
            data = encode_snapshot(taken)
            if len(data) <= self._small_snapshot:
                return Stored(partition, replace(snapshot, contents=data))
            self._snapshot_store.save(name, data, epoch=cycle.epoch, durable=snapshot.durable)
        except (HoldfastError, OSError) as error:
            return NotSaved(partition, version.batch, f"{type(error).__name__}: {error}")
        return None

    def _outbox_added(self, snapshot: SavedSnapshot) -> BatchId | None:
        """Return the first batch of output that a snapshot itself holds; what it follows holds the ones before."""
        if snapshot.outbox_from is None or snapshot.follows is None:
            return snapshot.outbox_from
        return max(snapshot.outbox_from, BatchId(snapshot.follows[0] + 1))

    def _described(self, partition: PartitionId, task: Task, version: VersionId) -> SavedSnapshot:
        """Say what a snapshot of this version is to hold: all, or what is new since the last one."""
        last, durable = task.follows, version.batch in task.durable
        # Saved late, consumers may have passed it: then there is nothing up to it that an outbox should hold.
        first = min(self.host.outbox_from(partition), BatchId(version.batch + 1)) if task.with_outbox else None
        if (
            last is None
            or durable
            or last.batch >= version.batch
            or self.host.version(partition, last.batch) != VersionId(*last.id)
            or (first is not None and (last.outbox_from is None or last.outbox_from > first))
        ):
            return SavedSnapshot(version.batch, version.epoch, None, first, durable)
        if first is not None and first <= last.batch + 1:
            first = last.outbox_from  # with no gap to what the last one holds, they reach back together
        return SavedSnapshot(version.batch, version.epoch, last.id, first, durable)


def _shares(done: list[Done], cpu_seconds: float) -> dict[PartitionId, Measures]:
    """Sum up what partitions took, each with its share of the task's CPU by rows (incremental recovery, sec. 2.3)."""
    sums: dict[PartitionId, Measures] = {}
    for answer in done:
        sums[answer.partition] = sums.get(answer.partition, Measures()).plus(answer.measures)
    rows = sum(one.rows_in for one in sums.values())
    return {
        p: replace(one, cpu_seconds=cpu_seconds * (one.rows_in / rows if rows else 1 / len(sums)))
        for p, one in sums.items()
    }


__all__ = ["Node"]
