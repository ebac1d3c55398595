"""A worker: it reconciles its node with the desired state. Runs on a node.

It places partitions, takes blocks in, processes, takes snapshots, and addresses what its partitions send. Nothing here
raises for what a partition, a user's function or a lost file does: those are answers, and the other partitions go on.
What is kept between cycles is a cache; a worker that is new finds everything in the node's files, the snapshot store
and the desired state. A partition's state is put in place alone (two attempts of one task see each other) and only when
it has come whole; until then its neighbours do not wait for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa

from holdfast.errors import CheckFailed, HoldfastError
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot, is_saved_of, saved_count, snapshot_name
from holdfast.recovery.cluster_state import Start
from holdfast.recovery.quarantine import Decisions
from holdfast.runtime.blocks import LARGEST_BLOCK, LATE, SINK, Block, too_large
from holdfast.runtime.fetches import Fetched, Fetching, Restored
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import OutputKey, StagedRows, Stager
from holdfast.runtime.messages import (
    Answer,
    DesiredState,
    Done,
    Failed,
    Measures,
    Missing,
    NodeReport,
    PartitionAssignment,
    Ready,
    Refused,
    SnapshotLost,
    SnapshotNotStored,
    SnapshotStored,
    SourceRead,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import Answered, SnapshotStore
from holdfast.runtime.state.snapshots import Snapshot, decode_snapshot, encode_snapshot
from holdfast.runtime.state.store import StaleEpoch, VersionStore
from holdfast.runtime.state.versions import Pointer, VersionId
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import Watermark
from holdfast.runtime.worker.blame import QUARANTINE_ROWS
from holdfast.runtime.worker.exchange import Exchange
from holdfast.runtime.worker.host import PartitionHost, is_disk_full
from holdfast.runtime.worker.regenerating import Regenerating, Room, in_memory
from holdfast.runtime.worker.saving_beside import MOST_COSTS, SavesBeside
from holdfast.runtime.worker.step_guard import READING, NoGuard, StepGuard

SENT_AHEAD = 2
"""A consumer gets so many times the batches that it may take in a cycle: it may take some at several levels."""
READ_AHEAD_BYTES = 64 << 20
"""With more than this in inboxes, a source that is read in place is read no further than the batch that comes next."""
SMALL_SNAPSHOT = 512
"""Bytes up to which a snapshot goes to the driver's log: what a partition without state needs."""


class NodeWorker:
    """The worker of one node: its host, its files, the snapshot store, and the batch log."""

    def __init__(
        self,
        program: Program,
        store: VersionStore,
        snapshot_store: SnapshotStore,
        batch_log: BatchLog,
        *,
        name: NodeId,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        stagers: Mapping[OperatorId, Stager] = MappingProxyType({}),
        small_snapshot: int = SMALL_SNAPSHOT,
        guard: StepGuard | None = None,
        quarantine_rows: int = QUARANTINE_ROWS,
        beside: SavesBeside | None = None,
        regenerators_in: Room = in_memory,
        largest_block: int = LARGEST_BLOCK,
    ) -> None:
        """`stagers`: for outputs whose rows this node writes itself, what it writes them with.

        `guard`: told of every step, so that one that ends its process is not tried for ever. `quarantine_rows`: of a
        partition and batch, at most. `beside`: what writes large snapshots beside the stream; None: nothing does.
        `regenerators_in`: makes an empty store for what is regenerated here for partitions that waited long.
        `largest_block`: bytes of the rows that one message can carry.
        """
        self.name, self._program, self._store, self._snapshot_store = name, program, store, snapshot_store
        self._batch_log = batch_log
        self._cpu_clock, self._stagers, self._small_snapshot = cpu_clock, stagers, small_snapshot
        self._guard, self._beside = guard or NoGuard(), beside
        self.host = PartitionHost(
            program,
            store,
            node=name,
            epoch=Epoch(0),
            clock=clock,
            guard=self._guard,
            quarantine_rows=quarantine_rows,
            staged=stagers,
            largest_block=largest_block,
        )
        self.guard = self._guard
        self.regenerating = Regenerating(
            program, self.host, snapshot_store, batch_log, self._guard, clock=clock, room=regenerators_in
        )
        """What makes blocks again that are not kept any more, for partitions here."""
        self._begun: dict[tuple[PartitionId, VersionId], SavedSnapshot] = {}
        self._costs: dict[str, tuple[int, float]] = {}
        """Snapshots whose saving was begun by this process, and has not ended."""
        self._far: dict[PartitionId, dict[str, tuple[int, int]]] = {}
        """Of partitions that are being restored: fragments that have come and are needed, by snapshot."""
        self._mine: tuple[DesiredState | None, dict[PartitionId, PartitionAssignment]] = (None, {})
        """The last desired state, and what it has for this node."""
        self._exchange = Exchange()
        self._dropped_for: DesiredState | None = None
        """The desired state under which what is outdated here was last dropped."""

    def reconcile(self, desired: DesiredState, level: int, blocks: Iterable[Block]) -> NodeReport:
        """Reconcile with a desired state, and report; the blocks are drained, whatever happens.

        Where blocks travel between nodes in steps, `level` counts the steps: sources are read at the first.
        """
        given = list(blocks)
        if (refused := self.refusal(desired)) is not None:
            return refused
        began = self._cpu_clock()
        answers: list[Answer] = []
        here = self.apply(desired, answers)
        self.host.deliver(given)
        if level == 0:
            for p in here:
                self.read_log(desired, p, answers)
        mine = self.mine(desired)
        answers += self.regenerating.work(desired, here).answers
        answers += self.host.run(
            desired.max_batches,
            seconds=desired.time_budget,
            without=paused_of(mine, here),
            attempts=attempts_of(mine, here),
            skips=skips_of(mine, here),
        )
        for p in here:
            if p in self.host:  # one whose files turned out to be gone was released, and has been reported
                self.save(desired, p, answers)
        if level == 0:
            self.forget(desired.forget)
        answers += [Missing(p, at) for p, at in self.host.unkept()]
        if desired.trim_outboxes:
            answers += self.host.trim()
        most = desired.max_batches
        sent, outputs = self._exchange.address(
            desired, level, self.host.outgoing(None if most is None else SENT_AHEAD * most)
        )
        return replace(self.report(desired, answers, outputs, self._cpu_clock() - began), sent=sent)

    # -- the steps of reconciling, for workers that stay as well -------------------------------------------------------

    def refusal(self, desired: DesiredState) -> NodeReport | None:
        """Return the report on a desired state of an epoch that is over; None: it is not."""
        if desired.epoch >= self.host.epoch:
            return None
        refused = [Refused(p, desired.epoch, self.host.epoch) for p in self.mine(desired)]
        return NodeReport(self.name, desired.epoch, refused)

    def apply(self, desired: DesiredState, answers: list[Answer]) -> list[PartitionId]:
        """Place partitions, release others, take over acknowledgements; return the partitions that can run here."""
        self.host.enter(desired.epoch)
        mine = self.mine(desired)
        here = [p for p, one in mine.items() if self._in_place(desired, p, one, answers)]
        for p in self.host.partitions:
            if p not in here:
                self.host.release(p)
        self._far = {p: far for p, far in self._far.items() if p in mine}
        if desired is not self._dropped_for:
            self._dropped_for = desired
            with suppress(OSError):  # with the next desired state
                self._drop_outdated(desired)
        self.host.limit({p: one.limit for p, one in desired.assignments.items() if one.limit is not None})
        for p in here:
            self.host.hold_back(p, mine[p].replica)
        self._take_acknowledgements(desired, here)
        return here

    def _drop_outdated(self, desired: DesiredState) -> None:
        """Drop what is here of partitions that have moved away, once their last checkpoint is past it.

        Until then they may start from it should they come back; after that, they start from the checkpoint.
        """
        mine = self.mine(desired)
        for p in self._store.held_partitions():
            one = desired.assignments.get(p)
            if one is None or one.follows is None or p in mine:
                continue
            with self._store.alone(p):
                chain = self._store.chain(p)
                # A task of an epoch that is over must not drop what a later one has put here.
                if chain is not None and chain.pointer.epoch <= desired.epoch and chain.frontier < one.follows.batch:
                    self._store.drop(p)

    def mine(self, desired: DesiredState) -> dict[PartitionId, PartitionAssignment]:
        """Return what is desired of this node, inputs before consumers."""
        held, found = self._mine
        if held is not desired:
            named = desired.on(self.name)
            found = {p: named[p] for p in self._program.partitions if p in named}
            self._mine = desired, found
        return found

    def forget(self, names: Sequence[str]) -> None:
        """Drop the snapshots that are of no use any more."""
        if names:
            self._snapshot_store.forget(names)

    def report(
        self, desired: DesiredState, answers: list[Answer], outputs: Iterable[Block], cpu_seconds: float
    ) -> NodeReport:
        """Report what was done, with what sinks have not acknowledged."""
        host = self.host
        staged: dict[tuple[PartitionId, BatchId], StagedRows] = {}
        not_staged: dict[OperatorId, str] = {}
        left = [self._staged(desired, block, staged, not_staged) for block in outputs]
        # A step checks what it sends; this one was to be written here, and could not be. It is tried again.
        large = {block: why for block in left if (why := too_large(block, self.host.largest_block)) is not None}
        for block, why in large.items():
            head = block.header
            one = desired.assignments.get(head.sender)
            problem = f"{why} ({not_staged.get(head.sender.operator, 'it was made by another version')})"
            answers.append(Failed(head.sender, head.batch, problem, 0 if one is None else one.attempt))
        return NodeReport(
            self.name,
            desired.epoch,
            [one for one in answers if not isinstance(one, Ready | Done)],
            {},
            [block for block in left if block not in large],
            {p: host.frontier(p) for p in host.partitions},
            _shares([one for one in answers if isinstance(one, Done)], cpu_seconds),
            # Outboxes of partitions that have left the node are not needed: they must not count in the bounds.
            self._store.kept_bytes(host.partitions) if desired.report_outbox_bytes else 0,
            {p: host.oldest_output(p) for p in host.partitions} if desired.trim_outboxes else {},
            staged,
            not_staged,
            {p: self._read(desired, p) for p in host.partitions if self._is_in_place(p) and not host.is_held_back(p)},
            regenerated=self.regenerating.reached(desired, host.partitions),
        )

    def output_rows(self, query: PartitionId, batch: BatchId) -> pa.Table | None:
        """Return the rows of an output that is here; None: it is not, or no longer."""
        if query not in self.host or self.host.is_held_back(query) or self.host.frontier(query) < batch:
            return None
        sink = next(one for one in self._program.consumers(query) if one.operator == SINK)
        blocks = self.host.replay(query, sink, BatchId(batch - 1), batch) or []
        found = [one.rows for one in blocks if one.rows is not None]
        return one_chunk(found) if found else None

    def _is_in_place(self, partition: PartitionId) -> bool:
        source = self._batch_log.sources.get(partition.operator)
        return source is not None and source.reader is not None

    def _read(self, desired: DesiredState, partition: PartitionId) -> SourceRead:
        """Say what a source partition has found, of batches that the coordinator does not know to be completed."""
        known, frontier = desired.assignments[partition].frontier, self.host.frontier(partition)
        return SourceRead(
            self.host.watermark(partition), tuple(self._batch_log.reads_of(partition, known, frontier).items())
        )

    def _staged(
        self,
        desired: DesiredState,
        block: Block,
        staged: dict[tuple[PartitionId, BatchId], StagedRows],
        not_staged: dict[OperatorId, str],
    ) -> Block:
        """Stage an output's rows where its sink takes staged rows; return what is left to report."""
        head = block.header
        stager = self._stagers.get(head.sender.operator)
        if stager is None or block.rows is None or head.receiver.operator != SINK:
            return block
        rows = stager.stage(
            OutputKey(head.sender, head.batch, generation=desired.generation, run=desired.run), block.rows
        )
        if isinstance(rows, str):
            not_staged[head.sender.operator] = f"on {self.name}: {rows}"
            return block
        staged[head.sender, head.batch] = rows
        return Block(head)

    # -- putting in place ----------------------------------------------------------------------------------------------

    def _in_place(
        self, desired: DesiredState, partition: PartitionId, assignment: PartitionAssignment, answers: list[Answer]
    ) -> bool:
        """Say whether a partition can run here, putting its state in place where that can be done now."""
        host = self.host
        if partition in host and host.since(partition) >= assignment.start.epoch:
            if host.frontier(partition) >= assignment.frontier:
                return True
            host.release(partition)  # another worker on this node went on with it
        try:
            with self._store.alone(partition):
                chain = self._store.chain(partition)
                if chain is None or chain.pointer.epoch < assignment.start.epoch:
                    if assignment.frontier > assignment.start.batch:
                        # It had started, and gone on: its files were here and are gone.
                        answers.append(Missing(partition, assignment.frontier))
                        return False
                    if not self._start(desired, partition, assignment, answers):
                        return False
                answer = host.take(partition, assignment.frontier)
        except StaleEpoch:
            answers.append(self.host.refused(partition))
            return False
        except HoldfastError as error:
            answers.append(Failed(partition, assignment.frontier, str(error), assignment.attempt))
            return False
        except OSError as error:
            problem = f"{type(error).__name__}: {error}"
            full = is_disk_full(error)
            answers.append(Failed(partition, assignment.frontier, problem, assignment.attempt, full))
            return False
        if not isinstance(answer, Ready):
            answers.append(answer)
            return False
        return True

    def _start(
        self, desired: DesiredState, partition: PartitionId, assignment: PartitionAssignment, answers: list[Answer]
    ) -> bool:
        """Let a partition start where its task says: from nothing, from a version that is here, or from snapshots."""
        self._guard.turn()  # with much state it takes a while, and is no hanging
        start = assignment.start
        self.host.release(partition)
        if start.batch == NOTHING:
            self._store.drop(partition)
            self._store.point(partition, Pointer(desired.epoch, None))
            return True
        chain = self._store.chain(partition)
        commit = None if chain is None else chain.commits.get(start.batch)
        sure = self._program.operators[partition.operator].deterministic
        asked = VersionId(start.batch, start.snapshots[-1].epoch)
        if chain is not None and commit is not None and (sure or commit.id == asked):
            first = start.snapshots[-1].outbox_from
            sent = [
                chain.commits.get(BatchId(b))
                for b in range(start.batch + 1 if first is None else first, start.batch + 1)
            ]
            kept = all(one is not None and self._store.sent(one) is not None for one in sent)
            if kept and self._store.load(commit) is not None:
                self._store.point(partition, Pointer(desired.epoch, commit.id))
                return True
        return self._restore(desired, partition, assignment, answers)

    def _restore(
        self, desired: DesiredState, partition: PartitionId, assignment: PartitionAssignment, answers: list[Answer]
    ) -> bool:
        """Adopt snapshots that have come; begin to bring them, and come back later, where they have not."""
        found, fetched, start = [], Fetched(), assignment.start
        far = self._far.setdefault(partition, {})
        for snapshot in start.snapshots:
            name = snapshot_name(desired.run, partition, snapshot)
            data = self._snapshot_store.fetched(name) if snapshot.contents is None else snapshot.contents
            if data is None:
                self._snapshot_store.fetch(name)
                problem = self._snapshot_store.lost(name)
                if problem is None and (came := self._snapshot_store.progress(name)) is not None:
                    far[name] = came
                if problem is not None:
                    answers.append(SnapshotLost(partition, snapshot.id, problem))
                continue
            if snapshot.contents is None:
                fetched = fetched.plus(self._snapshot_store.origin(name))
                if name in far:
                    far[name] = far[name][1], far[name][1]
            try:
                found.append(decode_snapshot(data))
            except CheckFailed as error:
                answers.append(SnapshotLost(partition, snapshot.id, str(error)))
        if len(found) < len(assignment.start.snapshots):
            if far:
                answers.append(Fetching(partition, *map(sum, zip(*far.values(), strict=True))))
            return False
        del self._far[partition]
        try:
            self.host.restore(found)
        except CheckFailed as error:  # they do not fit each other: it is started from others
            answers.append(SnapshotLost(partition, assignment.start.snapshots[-1].id, str(error)))
            return False
        self.host.release(partition)
        self._snapshot_store.put_in_place([snapshot_name(desired.run, partition, one) for one in start.snapshots])
        answers.append(Restored(partition, assignment.start.batch, fetched))
        return True

    def bring(self, run: str, partition: PartitionId, start: Start) -> list[Snapshot] | str | None:
        """Return the snapshots of a start, whoever begins with it; None: they are on their way; text: why not."""
        found = []
        for snapshot in start.snapshots:
            name = snapshot_name(run, partition, snapshot)
            data = self._snapshot_store.fetched(name) if snapshot.contents is None else snapshot.contents
            if data is None:
                self._snapshot_store.fetch(name)
                if (problem := self._snapshot_store.lost(name)) is not None:
                    return problem
                continue
            try:
                found.append(decode_snapshot(data))
            except CheckFailed as error:
                return str(error)
        if len(found) < len(start.snapshots):
            return None
        self._snapshot_store.put_in_place([snapshot_name(run, partition, one) for one in start.snapshots])
        return found

    # -- acknowledgements and sources ----------------------------------------------------------------------------------

    def _take_acknowledgements(self, desired: DesiredState, here: list[PartitionId]) -> None:
        """Take over how far consumers are, and how far back output is kept."""
        mine = self.mine(desired)
        for p in here:
            assignment = mine[p]
            elsewhere = [
                c
                for c in self._program.consumers(p)
                if (one := desired.assignments.get(c)) is not None and p in one.regenerate
            ]
            self.host.leave_to_regenerators(p, elsewhere)
            for consumer in self._program.consumers(p):
                if consumer.operator == SINK:
                    self.host.acknowledge(p, consumer, None if assignment.parked else desired.published[p])
                elif consumer.operator == LATE:
                    # What was kept aside up to a snapshot is written before it counts. A copy may start from a later
                    # one than it is known to have completed: a checkpoint has moved while it was on its way.
                    self.host.acknowledge(p, consumer, max(assignment.frontier, assignment.start.batch))
                else:
                    other = desired.assignments.get(consumer)
                    # What is held back gets nothing: it is kept, and comes when it goes on.
                    away = other is None or other.paused or consumer in elsewhere
                    self.host.acknowledge(p, consumer, None if away or other is None else other.frontier)
            # The version of the last snapshot stays: the next one holds what has changed since.
            self.host.keep(
                p,
                assignment.keep_from,
                [*assignment.marks, *(() if assignment.follows is None else [assignment.follows.batch])],
            )

    def read_log(
        self, desired: DesiredState, partition: PartitionId, answers: list[Answer], after: BatchId | None = None
    ) -> BatchId:
        """Give a source partition what the log has for it after a batch (by default its frontier); return the last."""
        last = self.host.frontier(partition) if after is None else after
        assignment = self.mine(desired)[partition]
        if partition.operator not in self._program.sources or assignment.paused:
            return last
        through: int = assignment.through
        if desired.max_batches is not None:
            through = min(through, self.host.frontier(partition) + desired.max_batches)
        in_place, checks = self._is_in_place(partition), dict(assignment.checks)
        try:
            for number in range(last + 1, through + 1):
                if in_place and number > self.host.frontier(partition) + 1 and self.host.inbox_bytes > READ_AHEAD_BYTES:
                    break  # rows that are read in place are in memory until they are processed
                batch = BatchId(number)
                if (died := self._guard.begin(partition, batch, assignment.attempt, READING)) is not None:
                    memory, stalled, attempt = died.out_of_memory, died.stalled, assignment.attempt
                    how = Failed(partition, batch, died.in_reading, attempt, out_of_memory=memory, stalled=stalled)
                    answers.append(how)
                    break
                try:
                    block = self._batch_log.block(
                        partition.operator, batch, partition.index, desired.epoch, checks.get(batch)
                    )
                finally:
                    self._guard.end()
                self.host.deliver([block])
                last = BatchId(number)
        except HoldfastError as error:
            answers.append(Failed(partition, BatchId(last + 1), str(error), assignment.attempt))
        return last

    def logged_watermark(self, source: OperatorId, batch: BatchId) -> Watermark:
        """Return where a source's watermark stood after a batch of the log; None: it had none, or the batch is gone."""
        record = self._batch_log.record(batch)
        mine = None if record is None else record.sources.get(source)
        return None if mine is None else mine.watermark

    # -- saving --------------------------------------------------------------------------------------------------------

    def save(self, desired: DesiredState, partition: PartitionId, answers: list[Answer]) -> None:
        """Save at the first mark that is not safe yet, once the partition has passed it; the next comes after it.

        A mark whose state is gone is given up, and the partition goes on: it has later states. Without the one that it
        goes on from it is missing: no later mark could be saved at either.
        """
        assignment = desired.assignments[partition]
        for mark in assignment.marks:
            if self.host.frontier(partition) < mark:
                return
            if assignment.with_outbox and self._lacks_output(desired, partition, mark):
                return  # its outbox is damaged: it is restored first, from a snapshot that has what this one would lack
            version = self.host.version(partition, mark)
            if version is not None:
                answer = self._save_at(desired, partition, assignment, version)
                if not isinstance(answer, SnapshotNotStored) or not answer.gone:
                    answers += [] if answer is None else [answer]
                    return
            found = self._gone(partition, mark)
            answers.append(found)
            if not isinstance(found, SnapshotNotStored) or not found.gone:
                return

    def _gone(self, partition: PartitionId, mark: BatchId) -> Missing | SnapshotNotStored:
        """Say what is gone: the state at a mark alone, or the state that the partition goes on from as well."""
        try:
            missing = self.host.look(partition)
        except (HoldfastError, OSError) as error:  # it cannot be told now: the save is tried again
            return SnapshotNotStored(partition, mark, f"{type(error).__name__}: {error}")
        if missing is not None:
            return missing
        return SnapshotNotStored(partition, mark, "the state at this batch is not here any more", gone=True)

    def saving(self, partition: PartitionId, batch: BatchId) -> SavedSnapshot | None:
        """Return the snapshot at a batch that is on its way, for checkers."""
        return next(
            (one for (p, version), one in self._begun.items() if (p, version.batch) == (partition, batch)), None
        )

    def _lacks_output(self, desired: DesiredState, partition: PartitionId, mark: BatchId) -> bool:
        """Whether rows up to a batch are gone here that the sink has not got."""
        out = desired.published.get(partition)
        return out is not None and out < mark and self.host.kept_from(partition) > out + 1

    def _save_at(
        self, desired: DesiredState, partition: PartitionId, assignment: PartitionAssignment, version: VersionId
    ) -> SnapshotStored | SnapshotNotStored | None:
        """Begin to save a version, or say what came of it; None: it is on its way."""
        snapshot = self._begun.get((partition, version)) or self._described(desired, partition, assignment, version)
        name = snapshot_name(desired.run, partition, snapshot)
        if self._beside is not None and self._beside.pending(name):
            return None
        problem = None if self._beside is None else self._beside.problem(name)
        answer = self._snapshot_store.saved(name) if problem is None else Answered(problem)
        again = answer is not None and answer.problem is not None
        if again or (answer is None and (partition, version) not in self._begun):
            begun = self._begin_save(desired, partition, version, snapshot, name)
            if begun is not None:
                self._begun.pop((partition, version), None)  # next time it is described by what is here then
                return begun
            self._begun[partition, version] = snapshot
            if answer is None and (self._beside is None or not self._beside.pending(name)):
                answer = self._snapshot_store.saved(name)
        if answer is None:
            return None
        if answer.problem is not None:
            return SnapshotNotStored(partition, version.batch, answer.problem, fenced=answer.fenced)
        self._begun.pop((partition, version), None)
        return SnapshotStored(partition, snapshot, *self._cost_of(name))

    def _cost_of(self, name: str) -> tuple[int, float]:
        """Return, once, the bytes of a snapshot that was saved here, and the CPU that writing it down took."""
        beside = None if self._beside is None else self._beside.cost_of(name)
        return beside or self._costs.pop(name, (0, 0.0))

    def _begin_save(
        self, desired: DesiredState, partition: PartitionId, version: VersionId, snapshot: SavedSnapshot, name: str
    ) -> SnapshotStored | SnapshotNotStored | None:
        """Begin to save; one that is so small that the driver's log has room for it is safe with the report."""
        self._guard.turn()
        began = time.thread_time()
        try:
            taken = self.host.snapshot(
                partition,
                version.batch,
                since=None if snapshot.follows is None else VersionId(*snapshot.follows),
                outbox_from=self._outbox_added(snapshot),
            )
            if isinstance(taken, Missing):
                return SnapshotNotStored(partition, version.batch, "the state is not here any more", gone=True)
            if self._beside is not None and self._beside.takes(taken):
                self._beside.begin(name, taken, epoch=desired.epoch, durable=snapshot.durable)
                return None
            data = encode_snapshot(taken)
            if len(data) <= self._small_snapshot:
                return SnapshotStored(
                    partition, replace(snapshot, contents=data), len(data), time.thread_time() - began
                )
            if len(self._costs) >= MOST_COSTS:
                self._costs.clear()  # of saves that were given up; the others count as not known
            self._costs[name] = len(data), time.thread_time() - began
            self._snapshot_store.save(name, data, epoch=desired.epoch, durable=snapshot.durable)
        except (HoldfastError, OSError) as error:
            return SnapshotNotStored(partition, version.batch, f"{type(error).__name__}: {error}")
        return None

    def _outbox_added(self, snapshot: SavedSnapshot) -> BatchId | None:
        """Return the first batch of output that a snapshot itself holds; what it follows holds the ones before."""
        if snapshot.outbox_from is None or snapshot.follows is None:
            return snapshot.outbox_from
        return max(snapshot.outbox_from, BatchId(snapshot.follows[0] + 1))

    def _described(
        self, desired: DesiredState, partition: PartitionId, assignment: PartitionAssignment, version: VersionId
    ) -> SavedSnapshot:
        """Say what a snapshot of this version is to hold: all, or what is new since the last one."""
        last, durable = assignment.follows, version.batch in assignment.durable
        saved = desired.epoch.claim, saved_count(assignment.forgotten, self.host.digest(partition, version.batch))
        # Saved late, consumers may have passed it: then there is nothing up to it that an outbox should hold.
        first = min(self.host.outbox_from(partition), BatchId(version.batch + 1)) if assignment.with_outbox else None
        if (
            last is None
            or durable
            or last.batch >= version.batch
            or self.host.version(partition, last.batch) != VersionId(*last.id)
            or not is_saved_of(last, self.host.digest(partition, last.batch))
            or (first is not None and (last.outbox_from is None or last.outbox_from > first))
        ):
            return SavedSnapshot(version.batch, version.epoch, None, first, durable, saved)
        if first is not None and first <= last.batch + 1:
            first = last.outbox_from  # with no gap to what the last one holds, they reach back together
        return SavedSnapshot(version.batch, version.epoch, last.id, first, durable, saved)


Assigned: TypeAlias = Mapping[PartitionId, PartitionAssignment]
"""What is desired of a node."""


def paused_of(assigned: Assigned, here: Iterable[PartitionId]) -> list[PartitionId]:
    """Return the partitions that are placed and must not process."""
    return [p for p in here if assigned[p].paused]


def attempts_of(assigned: Assigned, here: Iterable[PartitionId]) -> dict[PartitionId, int]:
    """Return which attempt at a batch that failed the partitions are at that are placed."""
    return {p: attempt for p in here if (attempt := assigned[p].attempt)}


def skips_of(assigned: Assigned, here: Iterable[PartitionId]) -> Decisions:
    """Return the rows that are left out of the next batches of the partitions that are placed."""
    return {p: skips for p in here if (skips := assigned[p].skips)}


def limits_of(assigned: Assigned, here: Iterable[PartitionId]) -> dict[PartitionId, BatchId]:
    """Return the last batch that second copies may complete now."""
    return {p: assigned[p].through for p in here if assigned[p].replica}


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


__all__ = ["NodeWorker"]
