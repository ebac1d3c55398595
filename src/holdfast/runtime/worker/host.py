"""The partition host: it runs the partitions that are placed on a node. It does not move their blocks.

Runs on a node, in a Spark task, in one process for tests, or under the simulator. For each partition it takes the next
batch whose barriers are all in (incremental recovery, Alg. 1), runs the operator, commits state and output at once, and
hands over what consumers have not completed. What it keeps in memory is a cache: inboxes, and what was acknowledged of
consumers, which the next cycle brings again. It answers with values: an operator that raises, a state that is not
there, an epoch that is over are answers, and the partition stands where it stood.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from holdfast.erasure.checksums import crc32
from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.quarantine import Decisions, Quarantined
from holdfast.runtime.blocks import LARGEST_BLOCK, LATE, SINK, Block, Edge, too_large
from holdfast.runtime.messages import Done, Failed, Measures, Missing, Ready, Refused
from holdfast.runtime.program import OperatorProgram, Program
from holdfast.runtime.state.snapshots import Snapshot, install, take_snapshot
from holdfast.runtime.state.store import Addition, StaleEpoch, VersionStore
from holdfast.runtime.state.versions import NO_BATCH, Commit, FileName, Pointer, VersionChain, VersionId, encode_record
from holdfast.runtime.times import Watermark
from holdfast.runtime.worker.blame import QUARANTINE_ROWS, blame, error_text, show_row
from holdfast.runtime.worker.hosted import Delivery, HostedPartition, Inbox
from holdfast.runtime.worker.step import Batch, barrier, process
from holdfast.runtime.worker.step_guard import NoGuard, StepGuard

DEFAULT_VERSIONS = 4
"""How many of the last versions of a state stay on the node, beside those it is told to keep."""
_REWRITE_EVERY = 16
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})


def is_disk_full(error: OSError) -> bool:
    """Whether a disk takes no more: it is full, over its quota, or read-only since it failed."""
    return error.errno in _NO_ROOM


class PartitionHost:
    """The partitions of one node."""

    def __init__(
        self,
        program: Program,
        store: VersionStore,
        *,
        node: NodeId,
        epoch: Epoch,
        clock: Callable[[], float],
        versions: int = DEFAULT_VERSIONS,
        guard: StepGuard | None = None,
        quarantine_rows: int = QUARANTINE_ROWS,
        staged: Collection[OperatorId] = (),
        largest_block: int = LARGEST_BLOCK,
    ) -> None:
        """Run a program's partitions from a store; outboxes are kept until `keep` says from where on.

        `staged`: the outputs whose rows this node writes itself, so that no message has to carry them.
        `largest_block`: bytes of the rows that one message can carry.
        """
        self.staged, self.largest_block = frozenset(staged), largest_block
        self._program, self._store, self._clock = program, store, clock
        self.node, self.epoch = node, epoch
        self._versions, self._guard, self._quarantine_rows = versions, guard or NoGuard(), quarantine_rows
        self._shown: dict[PartitionId, tuple[BatchId, str]] = {}
        """The batch of each partition whose rows were searched last, and the first that its operator cannot take."""
        self._placed: dict[PartitionId, HostedPartition] = {}
        self._in_order: tuple[PartitionId, ...] | None = ()
        """Those of `_placed`, inputs before consumers; None: they have changed."""
        self._failed: dict[PartitionId, Failed] = {}
        """The last step of each partition that failed."""
        self._places = 0
        self._limits: Mapping[PartitionId, BatchId] = {}
        self._edges = program.edges

    # -- placing ----------------------------------------------------------------------------------------------------

    def take(self, partition: PartitionId, frontier: BatchId) -> Ready | Missing | Refused:
        """Place a partition, which has completed this batch at least; or say why it cannot be: see the answers."""
        chain = self._store.chain(partition)
        if chain is not None and chain.pointer.epoch > self.epoch:
            return self.refused(partition)
        if (NO_BATCH if chain is None else chain.frontier) < frontier:
            return Missing(partition, frontier)
        try:
            self._store.begin(partition, self.epoch)
        except StaleEpoch:
            return self.refused(partition)
        chain = self._usable(partition, NO_BATCH)
        if chain is None:
            return Missing(partition, frontier)
        self._place(partition, chain)
        return Ready(partition, chain.frontier)

    def refused(self, partition: PartitionId) -> Refused:
        """Return the answer that this host's epoch is over for a partition, with the epoch that is not."""
        chain = self._store.chain(partition)
        return Refused(partition, self.epoch, self.epoch if chain is None else chain.pointer.epoch)

    def _usable(self, partition: PartitionId, beyond: BatchId) -> VersionChain | None:
        """Return a partition's chain with its last state there.

        Another attempt may complete batches and drop old versions between two looks: while the chain moves on, what
        was not found is not lost.
        """
        while True:
            chain = self._store.chain(partition)
            if chain is None or chain.last is None or self._store.load(chain.last) is not None:
                return chain
            if chain.frontier <= beyond:
                return None
            beyond = chain.frontier

    def look(self, partition: PartitionId) -> Missing | None:
        """Say whether the state that a partition goes on from is gone.

        What a host holds of a partition is a cache: while the partition has nothing to process, its files may vanish
        unnoticed. Where another attempt went on with it, it is not gone: the next step, or desired state, stands there.
        """
        placed = self._need(partition)
        chain = self._usable(partition, NO_BATCH)
        if chain is not None and chain.pointer.epoch > self.epoch:
            return None  # this host's epoch is over: another worker has the partition, and may have gone back with it
        if chain is None or chain.frontier < placed.frontier:
            return Missing(partition, placed.frontier)
        if chain.frontier == placed.frontier and chain.last != placed.commits.get(placed.frontier):
            self._place(partition, chain)  # the files had vanished, and another attempt has made the same version again
        return None

    def enter(self, epoch: Epoch) -> None:
        """Begin an epoch: every partition goes on from its frontier, and the writes of earlier epochs are refused."""
        if epoch < self.epoch:
            raise StaleEpoch(f"epoch {epoch} is over: this host is in {self.epoch}", remedy="take a new epoch")
        if epoch > self.epoch:
            for placed in self._placed.values():
                # What was sent in an earlier epoch may be of a chain that is abandoned; it is sent again.
                placed.inbox.clear()
                placed.handed.clear()
        self.epoch = epoch

    def release(self, partition: PartitionId) -> None:
        """Stop running a partition; its files stay."""
        self._placed.pop(partition, None)
        self._in_order = None

    def lose(self, partition: PartitionId) -> None:
        """Forget a partition and delete its files."""
        self._placed.pop(partition, None)
        self._in_order = None
        self._store.drop(partition)

    def __contains__(self, partition: PartitionId) -> bool:
        """Whether a partition is placed here."""
        return partition in self._placed

    @property
    def partitions(self) -> tuple[PartitionId, ...]:
        """The partitions placed here, inputs before consumers."""
        if self._in_order is None:
            self._in_order = tuple(one for one in self._program.partitions if one in self._placed)
        return self._in_order

    def frontier(self, partition: PartitionId) -> BatchId:
        """The last batch a partition has completed."""
        return self._need(partition).frontier

    def watermark(self, partition: PartitionId) -> Watermark:
        """The watermark after the last batch that a partition has completed; None: it has none."""
        placed = self._need(partition)
        commit = placed.commits.get(placed.frontier)
        return None if commit is None else commit.watermark

    def is_tentative(self, partition: PartitionId) -> bool:
        """Whether the last batch that a partition has completed is tentative."""
        placed = self._need(partition)
        commit = placed.commits.get(placed.frontier)
        return commit is not None and commit.tentative

    def place(self, partition: PartitionId) -> int:
        """The number of a partition's place: another one means that what it had received is gone."""
        return self._need(partition).place

    @property
    def inbox_bytes(self) -> int:
        """How many bytes of rows wait to be processed."""
        return sum(placed.inbox.bytes for placed in self._placed.values())

    def since(self, partition: PartitionId) -> Epoch:
        """The epoch in which a partition was last put in place, or went on from there."""
        return self._need(partition).pointer.epoch

    def version(self, partition: PartitionId, batch: BatchId) -> VersionId | None:
        """The version of a partition's state at a batch, if it is on its chain."""
        commit = self._need(partition).commits.get(batch)
        return None if commit is None else commit.id

    def digest(self, partition: PartitionId, batch: BatchId) -> int | None:
        """A number for how a partition's state at a batch is kept here; None: it is not on its chain.

        Where files vanish, a version may be made again, in the same epoch: it is the same state in other segments.
        """
        commit = self._need(partition).commits.get(batch)
        return None if commit is None else crc32(encode_record(commit), 0)

    def missing(self, partition: PartitionId) -> list[tuple[Edge, PartitionId]]:
        """The input streams whose barrier for the next batch has not come."""
        placed = self._need(partition)
        return placed.inbox.missing(BatchId(placed.frontier + 1))

    # -- batches ----------------------------------------------------------------------------------------------------

    def deliver(self, blocks: Iterable[Block]) -> list[Delivery]:
        """Take blocks in, in any order and any number of copies; say what became of each."""
        found = []
        for block in blocks:
            placed = self._placed.get(block.header.receiver)
            if placed is None:
                found.append(Delivery.NOT_HERE)
            elif block.header.epoch != self.epoch:
                found.append(Delivery.STALE)
            else:
                found.append(placed.inbox.put(block, placed.frontier))
        return found

    def run(
        self,
        most: int | None = None,
        *,
        seconds: float = math.inf,
        without: Collection[PartitionId] = (),
        attempts: Mapping[PartitionId, int] = MappingProxyType({}),
        skips: Decisions = MappingProxyType({}),
        limits: Mapping[PartitionId, BatchId] = MappingProxyType({}),
    ) -> list[Done | Failed | Missing | Refused]:
        """Process every batch that is complete: at most so many per partition, begun within so many seconds.

        Rows go from one partition here to the next at once, except to those that must not process (`without`). A batch
        that failed is not tried again in the same of its `attempts` (by default the first): it is answered as before.
        `skips`: rows that are left out; `limits`: the last batch that a partition may complete now.
        """
        answers: list[Done | Failed | Missing | Refused] = []
        counts: dict[PartitionId, int] = {}
        stopped: set[PartitionId] = set(without)
        until = self._clock() + seconds if seconds < math.inf else math.inf
        moved = True
        while moved:
            moved = False
            for partition in self.partitions:
                placed = self._placed[partition]
                self._hand_over(placed, without)
                while partition not in stopped and (most is None or counts.get(partition, 0) < most):
                    blocks = placed.inbox.complete(BatchId(placed.frontier + 1))
                    if blocks is None or placed.frontier >= limits.get(partition, placed.frontier + 1):
                        break
                    # One batch is begun however little time is left: those that catch up would take it all.
                    if counts.get(partition, 0) and until < math.inf and self._clock() >= until:
                        break
                    skipped = skips[partition].get(BatchId(placed.frontier + 1)) if partition in skips else None
                    answer = self._try(placed, blocks, attempts.get(partition, 0), skipped)
                    if answer is None:
                        moved = True
                        continue
                    answers.append(answer)
                    if not isinstance(answer, Done):
                        stopped.add(partition)
                        break
                    moved = True
                    counts[partition] = counts.get(partition, 0) + 1
                self._hand_over(placed, without)
        # Now and then: looking costs as well.
        due = [one for one in self._placed.values() if one.frontier - one.trimmed_at >= self._versions]
        return answers + [lost for placed in due if (lost := self._trim(placed)) is not None]

    def trim(self) -> list[Missing]:
        """Drop what nobody needs, everywhere; say whose files turn out to be gone."""
        return [lost for placed in list(self._placed.values()) if (lost := self._trim(placed)) is not None]

    def _try(
        self, placed: HostedPartition, blocks: Sequence[Block], attempt: int, skipped: Quarantined | None
    ) -> Done | Failed | Missing | Refused | None:
        """Process one batch, unless this attempt at it has failed."""
        before = self._failed.get(placed.partition)
        if before is not None and (before.batch, before.attempt) == (placed.frontier + 1, attempt):
            return before
        answer = self._step(placed, blocks, attempt, skipped)
        if isinstance(answer, Failed):
            answer = self._failed[placed.partition] = replace(answer, attempt=attempt)
        elif before is not None:
            del self._failed[placed.partition]
        return answer

    def _step(
        self, placed: HostedPartition, blocks: Sequence[Block], attempt: int, skipped: Quarantined | None
    ) -> Done | Failed | Missing | Refused | None:
        """Process one batch; None: another attempt has done it, and the partition now stands where that one stands."""
        partition, batch = placed.partition, BatchId(placed.frontier + 1)
        started = self._clock()
        before = placed.commits.get(placed.frontier)
        if any(block.header.epoch != self.epoch for block in blocks):
            return Failed(partition, batch, f"a block of another epoch than {self.epoch} was taken in")
        try:
            state = {} if before is None else self._store.load(before)
            if state is None:
                chain = self._usable(partition, placed.frontier)
                if chain is None or chain.frontier <= placed.frontier:
                    return Missing(partition, placed.frontier)
                self._place(partition, chain)
                return None
            if placed.pointer.epoch < self.epoch:
                # The first write in an epoch: another worker may have gone on with the partition in an earlier one.
                chain = self._store.chain(partition)
                if chain is None or chain.frontier < placed.frontier:
                    return Missing(partition, placed.frontier)
                self._store.begin(partition, self.epoch)
                if chain.last != before:
                    self._place(partition, chain)
                    return None
                placed.pointer = Pointer(self.epoch, None if before is None else before.id)
            rewritten: set[FileName] = set()
            if before is not None and batch % _REWRITE_EVERY == 0:
                rewritten = self._store.rewrite(before)
            given = Batch(partition, batch, self.epoch, blocks, before, state, skipped)
            made = self._process(given, rewritten, attempt)
            if isinstance(made, Failed):
                return made
            commit, added = made
            for block in added.blocks:
                # Here, and not where it is sent: it fails this step, and nothing that others need of the process.
                if self._is_sent(block) and (refused := too_large(block, self.largest_block)) is not None:
                    raise refused
            kept = self._store.commit(commit, added)
        except StaleEpoch:
            return self.refused(partition)
        except HoldfastError as error:
            return Failed(partition, batch, str(error))
        except OSError as error:
            return Failed(partition, batch, f"{type(error).__name__}: {error}", disk_full=is_disk_full(error))
        except Exception as error:  # what it gave cannot be written, say: an answer, not the end of the task
            return Failed(partition, batch, f"{type(error).__name__}: {error}")
        placed.add(kept)
        placed.inbox.done(batch)
        measures = Measures(
            rows_in=kept.rows_in - (0 if before is None else before.rows_in),
            rows_out=kept.rows_out - (0 if before is None else before.rows_out),
            late_rows=kept.late_rows - (0 if before is None else before.late_rows),
            seconds=self._clock() - started,
            state_bytes=kept.state_bytes,
            written_bytes=sum(run.nbytes for segments in added.segments.values() for run in segments),
            bytes_in=sum(block.rows.nbytes for block in blocks if block.rows is not None),
        )
        return Done(partition, batch, kept.watermark, measures, kept.tentative)

    def _is_sent(self, block: Block) -> bool:
        """Whether messages carry a block's rows, wherever its receiver is or will be."""
        return block.header.receiver.operator != SINK or block.header.sender.operator not in self.staged

    def _process(self, given: Batch, rewritten: set[FileName], attempt: int) -> tuple[Commit, Addition] | Failed:
        """Run the operator; where it fails, look for the rows that are to blame."""
        operator = self._program.operators[given.partition.operator]
        died = self._guard.begin(given.partition, given.batch, attempt)
        if died is not None:
            failed = Failed(
                given.partition, given.batch, str(died), out_of_memory=died.out_of_memory, stalled=died.stalled
            )
            if died.stalled:
                return failed  # each try of some of its rows might take as long, and the process's partitions wait
        else:
            try:
                return process(operator, given, rewritten)
            except Exception as error:  # a user's function may raise anything, also an error of files
                failed = Failed(given.partition, given.batch, error_text(error))
            finally:
                self._guard.end()
            if not operator.quarantines:
                return self._with_row(operator, given, attempt, failed)
        return blame(operator, given, attempt, failed, self._guard, self._quarantine_rows)

    def _with_row(self, operator: OperatorProgram, given: Batch, attempt: int, failed: Failed) -> Failed:
        """Return the answer with the row that people can look at; it is looked for once for a batch."""
        batch, row = self._shown.get(given.partition, (None, ""))
        if batch != given.batch:
            failed = show_row(operator, given, attempt, failed, self._guard, self._clock)
            self._shown[given.partition] = (given.batch, failed.row)
            return failed
        return replace(failed, row=row)

    # -- what goes out ----------------------------------------------------------------------------------------------

    def outgoing(self, most: int | None = None) -> list[Block]:
        """Return what consumers that are not here have not completed: blocks, barriers, and rows kept aside.

        For a consumer so many batches at most: one that is far behind gets the rest as it goes on. One that needs what
        is kept no more is passed over: `replay` says so, and the sender has to go back.
        """
        found: list[Block] = []
        for partition in self.partitions:
            placed = self._placed[partition]
            for consumer, at in placed.acknowledged.items():
                if consumer in self._placed or at is None:
                    continue
                through = self.sent_through(consumer, placed.frontier)
                if most is not None and consumer.operator not in (SINK, LATE):
                    through = min(through, BatchId(at + most))
                found += self.replay(partition, consumer, at, through) or []
        return found

    def replay(
        self, sender: PartitionId, consumer: PartitionId, after: BatchId, through: BatchId | None = None
    ) -> list[Block] | None:
        """Return what a partition sent to a consumer after a batch; None where not all of it is kept."""
        placed = self._need(sender)
        found: list[Block] = []
        for number in range(after + 1, (placed.frontier if through is None else through) + 1):
            commit = placed.commits.get(BatchId(number))
            if consumer.operator == LATE and commit is not None and commit.blocks is not None:
                before = placed.commits.get(BatchId(number - 1))
                if before is not None and before.late_rows == commit.late_rows:
                    continue  # it kept none aside, as almost always
            sent = None if commit is None else self._store.sent(commit)
            if commit is None or sent is None:
                return None
            mine = [block.stamped(self.epoch) for block in sent.get(consumer, ())]
            if not mine and consumer.operator != LATE:
                mine = [barrier(self._edges[sender, consumer], sender, consumer, commit, self.epoch)]
            found += mine
        return found

    def kept_from(self, partition: PartitionId) -> BatchId:
        """The first batch whose output is still here, with all after it."""
        placed = self._need(partition)
        number = placed.frontier
        while (commit := placed.commits.get(number)) is not None and self._store.sent(commit) is not None:
            number = BatchId(number - 1)
        return BatchId(number + 1)

    def oldest_output(self, partition: PartitionId) -> BatchId:
        """The first batch of which this host still has rows that a partition sent; the next one where it has none."""
        placed = self._need(partition)
        held = [b for b, one in placed.commits.items() if one.blocks is not None and self._store.sent(one) is not None]
        return min(held, default=BatchId(placed.frontier + 1))

    def unkept(self) -> list[tuple[PartitionId, BatchId]]:
        """Return senders here that no longer have all that a consumer, or a sink, still has to get.

        They have to make it again.
        """
        found = []
        for partition, placed in self._placed.items():
            kept_for = {c: last for c, last in placed.acknowledged.items() if c not in placed.regenerated}
            nears = ((self._near(consumer), last) for consumer, last in kept_for.items())
            stands = [last if near is None else near.frontier for near, last in nears]
            behind = min((at for at in stands if at is not None), default=placed.frontier)
            if behind < placed.frontier and self.kept_from(partition) > behind + 1:
                found.append((partition, behind))
        return found

    def _near(self, consumer: PartitionId) -> HostedPartition | None:
        """Return a consumer that is here itself, and not by a second copy: nobody goes back for one of those."""
        near = self._placed.get(consumer)
        return None if near is None or near.held_back else near

    def limit(self, limits: Mapping[PartitionId, BatchId]) -> None:
        """Say through which batch consumers, here or elsewhere, are sent anything: the rest stays in outboxes."""
        self._limits = limits

    def sent_through(self, consumer: PartitionId, through: BatchId) -> BatchId:
        """Return the last batch up to one that may be sent to a consumer."""
        return min(through, self._limits.get(consumer, through))

    def hold_back(self, partition: PartitionId, held: bool) -> None:
        """Say whether a partition is a second copy, which keeps what it makes to itself."""
        self._need(partition).held_back = held

    def is_held_back(self, partition: PartitionId) -> bool:
        """Whether a partition is a second copy."""
        return self._need(partition).held_back

    def acknowledge(self, sender: PartitionId, consumer: PartitionId, frontier: BatchId | None) -> None:
        """Take over the last batch that a consumer has completed, also when it rolled back; None: it is lost."""
        self._need(sender).acknowledged[consumer] = frontier

    def leave_to_regenerators(self, sender: PartitionId, consumers: Collection[PartitionId]) -> None:
        """Say which consumers need nothing of what is not kept here any more."""
        self._need(sender).regenerated = frozenset(consumers)

    def keep(self, partition: PartitionId, first: BatchId, states: Collection[BatchId] = ()) -> None:
        """Keep a partition's output from a batch on, and its states at these batches until they are safe."""
        placed = self._need(partition)
        placed.keep_from, placed.pinned = first, frozenset(states)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def snapshot(
        self,
        partition: PartitionId,
        batch: BatchId,
        *,
        since: VersionId | None = None,
        outbox_from: BatchId | None = None,
    ) -> Snapshot | Missing:
        """Return a partition's state at a batch: the changes since a version that is on its chain, else all of it.

        It holds the output from a batch on too, where one is named.
        """
        placed = self._need(partition)
        commit = placed.commits.get(batch)
        state = None if commit is None else self._store.load(commit)
        if commit is None or state is None:
            return Missing(partition, batch)
        if commit.tentative:
            raise CheckFailed(f"{partition} at batch {batch} is tentative", remedy="checkpoint its clean chain")
        earlier = None if since is None else placed.commits.get(since.batch)
        if earlier is not None and earlier.id != since:
            earlier = None
        outbox: list[Block] = []
        if outbox_from is not None:
            for consumer in placed.acknowledged:
                kept = self.replay(partition, consumer, BatchId(outbox_from - 1), batch)
                if kept is None:
                    raise CheckFailed(
                        f"{partition} has no longer all that it sent from batch {outbox_from} on",
                        remedy="save what it has",
                    )
                # A snapshot that is saved again, in a later epoch and by another process, is the same to the byte.
                outbox += [block.stamped(commit.id.epoch) for block in kept]
        return take_snapshot(commit, state, earlier, outbox)

    def outbox_from(self, partition: PartitionId) -> BatchId:
        """The first batch of a partition's output that is here and that consumers may still ask for."""
        return max(self.kept_from(partition), self._need(partition).keep_from)

    def restore(self, snapshots: Sequence[Snapshot]) -> Ready:
        """Put a partition here from a base and the changes since, in this host's epoch."""
        commit = snapshots[-1].commit
        self.release(commit.partition)
        self._place(commit.partition, install(self._store, snapshots, self.epoch))
        return Ready(commit.partition, commit.id.batch)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _need(self, partition: PartitionId) -> HostedPartition:
        placed = self._placed.get(partition)
        if placed is None:
            raise BadInput(f"{partition} is not on node {self.node}", remedy="place it there first")
        return placed

    def _place(self, partition: PartitionId, chain: VersionChain) -> None:
        placed = self._placed.get(partition)
        if placed is None:
            none: dict[PartitionId, BatchId | None] = dict.fromkeys(self._program.consumers(partition), NO_BATCH)
            inbox = Inbox(self._program.streams(partition))
            self._places += 1
            placed = HostedPartition(partition, inbox, chain.pointer, dict(chain.commits), none, place=self._places)
            self._placed[partition] = placed
            self._in_order = None
            # Its inbox is empty: what was handed to it before, it needs again.
            for sender in self._placed.values():
                sender.handed.pop(partition, None)
        else:
            placed.stand(chain)
        placed.inbox.done(placed.frontier)

    def _hand_over(self, placed: HostedPartition, without: Collection[PartitionId]) -> None:
        """Give consumers on this host what they have not got yet; what is held back would only heap it up."""
        if placed.held_back:
            return
        for consumer in placed.acknowledged:
            near = self._placed.get(consumer)
            if near is None or consumer in without:
                continue
            after = max(near.frontier, placed.handed.get(consumer, NO_BATCH))
            through = self.sent_through(consumer, placed.frontier)
            if after >= through:
                continue
            for block in self.replay(placed.partition, consumer, after, through) or []:
                near.inbox.put(block, near.frontier)
                placed.handed[consumer] = block.header.batch

    def _trim(self, placed: HostedPartition) -> Missing | None:
        """Drop what nobody needs; a partition whose files turn out to be gone, or of an earlier batch, is released."""
        placed.trimmed_at = placed.frontier
        now = self._store.chain(placed.partition)
        if now is None or now.pointer.epoch > self.epoch:
            return None  # an attempt of an epoch that is over: what is kept is not its business
        recent = sorted(placed.commits)[-self._versions :]
        states = {placed.commits[batch].id for batch in recent}
        states |= {commit.id for batch, commit in placed.commits.items() if batch in placed.pinned}
        self._store.forget(placed.partition, states, placed.keep_from)
        chain = self._store.chain(placed.partition)
        if chain is None or chain.pointer.epoch > self.epoch:
            return None
        if chain.frontier < placed.frontier:
            # The files had vanished, and a late task of an earlier cycle has begun the partition again.
            self.release(placed.partition)
            return Missing(placed.partition, placed.frontier)
        placed.stand(chain)
        return None
