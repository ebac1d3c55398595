"""The branch of a worker: partitions that go on without inputs that are lost, beside their clean line. Runs on a node.

A member begins with its partition's state where the clean line stands; a stand-in, whose partition is lost, with the
snapshots that the partition would start from. It takes the blocks of clean partitions, of other members after the batch
from which these have a branch, and a barrier that is forged here for every hole. It has a host of its own and keeps
everything in memory, so nothing of it can reach the files, the snapshots or the outboxes of the clean line; blocks to
and from it are marked tentative and go to this host alone. A forged barrier has no rows, and the watermark of the
sources that its hole reads: what the hole's own barrier would have had. So windows close when they would have, also
where nothing is left that has a watermark. Members are taken in only where the worker has nothing else to do, or now
and then: a branch yields. Whatever fails ends the branch, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from holdfast.errors import CheckFailed, HoldfastError
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.cluster_state import Start
from holdfast.runtime.blocks import SINK, Block, Header
from holdfast.runtime.messages import (
    BranchAssignment,
    DesiredState,
    Done,
    Missing,
    PartitionAssignment,
    SourceWatermarks,
    StandInAssignment,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshots import Snapshot
from holdfast.runtime.state.store import MemoryStore
from holdfast.runtime.state.versions import NO_BATCH, Pointer
from holdfast.runtime.times import Watermark
from holdfast.runtime.worker.forged import ForgedWatermarks
from holdfast.runtime.worker.host import PartitionHost
from holdfast.runtime.worker.step_guard import StepGuard
from holdfast.runtime.worker.subscriptions import Publications, Request, Subscriptions

BRANCH_BYTES = 256 << 20
"""With more than this in its outboxes and inboxes on a node, a branch is given up; and with more than this of state
that is its own: all state of stand-ins, and what other members have gained since they left the clean line."""
ATTEMPT = -1
"""Steps of a branch are noted as this attempt: a process that dies in one is no failed attempt of the clean line."""
YIELDS = 4
"""Where the clean line always has work, a branch gets every so many-th round."""
_LOOK_BYTES = 16
_RESEND_SECONDS = 1.0

Bring = Callable[[str, PartitionId, Start], Sequence[Snapshot] | str | None]
"""Brings what a partition of a run starts from; None: it is on its way; text: why it cannot be had."""


class Branching:
    """The members of the branch that are in one worker."""

    def __init__(
        self,
        program: Program,
        clean: PartitionHost,
        guard: StepGuard,
        *,
        clock: Callable[[], float],
        subscriptions: Subscriptions,
        publications: Publications,
        window: int,
        bring: Bring,
        logged_watermark: Callable[[OperatorId, BatchId], Watermark],
        most_bytes: int = BRANCH_BYTES,
    ) -> None:
        """`clean` is the host of the clean line; `subscriptions` are for the branch's own requests.

        `publications` say how far members elsewhere are; `logged_watermark` reads what a source's was after a batch.
        `bring` has the snapshots that a stand-in begins with.
        """
        self._bring, self._publications = bring, publications
        self._program, self._clean, self._guard, self._clock = program, clean, guard, clock
        self._subscriptions, self._window, self._most_bytes = subscriptions, window, most_bytes
        self._store, self.host = self._empty(Epoch(0))
        self._epoch = Epoch(0)
        self._wanted: Mapping[PartitionId, BranchAssignment] = {}
        self._forks: dict[PartitionId, BatchId] = {}
        """Where each member left the clean line."""
        self._stand_ins: Mapping[PartitionId, StandInAssignment] = {}
        """Those of `_wanted` that stand in for partitions that are lost."""
        self._shared_bytes: dict[PartitionId, int] = {}
        """How many bytes of state each member has from its clean line, and shares with it."""
        self._state_bytes: dict[PartitionId, int] = {}
        """How many bytes of state each member has beside that."""
        self._forged = ForgedWatermarks(program, logged_watermark)
        self._handed: dict[tuple[PartitionId, PartitionId], BatchId] = {}
        self._reported: dict[PartitionId, tuple[BatchId, float, int]] = {}
        self._problems: dict[PartitionId, str] = {}
        self._not_served: dict[PartitionId, str] = {}
        """Members in other processes that senders here no longer have all blocks for: they get nothing more."""
        self._problems_reported: dict[PartitionId, float] = {}
        self._rounds = 0

    def _empty(self, epoch: Epoch) -> tuple[MemoryStore, PartitionHost]:
        store = MemoryStore()
        host = PartitionHost(
            self._program, store, node=self._clean.node, epoch=epoch, clock=self._clock, guard=self._guard
        )
        return store, host

    @property
    def members(self) -> tuple[PartitionId, ...]:
        """The members here."""
        return self.host.partitions

    def forked_at(self, partition: PartitionId) -> BatchId | None:
        """Return where a member left the clean line; None: it has no branch here."""
        return self._forks.get(partition)

    @property
    def waits(self) -> bool:
        """Whether snapshots are on their way that a stand-in begins with."""
        return any(p not in self._forks and p not in self._problems for p in self._stand_ins)

    # -- the desired state ---------------------------------------------------------------------------------------------

    def apply(self, desired: DesiredState, here: Iterable[PartitionId]) -> None:
        """Begin the members that are wanted here, and drop the others; a new epoch drops all of them."""
        if not desired.branches and not self._forks and desired.epoch == self._epoch:
            self._problems.clear()
            self._not_served.clear()
            self._wanted, self._stand_ins = {}, {}
            return
        self._not_served = {p: why for p, why in self._not_served.items() if p in desired.branches}
        wanted = {p: desired.branches[p] for p in here if p in desired.branches and not self._clean.is_held_back(p)}
        self._stand_ins = desired.standing_in_on(self._clean.node)
        wanted |= {p: desired.branches[p] for p in self._stand_ins}
        if desired.epoch != self._epoch or (not wanted and self._forks):
            self._drop_all(desired.epoch)
        for p in [p for p in self._forks if p not in wanted or self._is_over(p)]:
            self.host.lose(p)
            self._forget(p)
        self._wanted = wanted
        for p in wanted:
            if p in self._forks or p in self._problems:
                continue
            at = self._stand_in(desired.run, p, one) if (one := self._stand_ins.get(p)) is not None else self._begin(p)
            if at is not None:
                self.host.hold_back(p, True)  # who takes what from whom is decided here
                self._forks[p] = at

    def _is_over(self, partition: PartitionId) -> bool:
        """Whether a stand-in has to begin anew: the checkpoint of its partition has moved past it.

        Senders keep what comes after that.
        """
        one = self._stand_ins.get(partition)
        return one is not None and self.host.frontier(partition) < one.start.batch

    def _drop_all(self, epoch: Epoch) -> None:
        self._store, self.host = self._empty(epoch)
        self._epoch = epoch
        for memory in (self._forks, self._handed, self._reported, self._problems, self._problems_reported):
            memory.clear()
        self._state_bytes.clear()
        self._shared_bytes.clear()
        self._not_served.clear()

    def _forget(self, partition: PartitionId) -> None:
        self._forks.pop(partition, None)
        self._state_bytes.pop(partition, None)
        self._shared_bytes.pop(partition, None)
        self._reported.pop(partition, None)
        self._subscriptions.again(partition)
        for pair in [pair for pair in self._handed if partition in pair]:
            del self._handed[pair]

    def _begin(self, partition: PartitionId) -> BatchId | None:
        """Let a member begin where the clean line of its partition stands; return where, None: it cannot now."""
        self._guard.turn()
        at = self._clean.frontier(partition)
        if at == NO_BATCH:
            return self._from_nothing(partition)
        taken = self._clean.snapshot(partition, at)
        if isinstance(taken, Missing):
            return None  # its files are gone: the clean line says so
        self.host.restore([taken])
        self._shared_bytes[partition] = taken.commit.state_bytes
        return at

    def _from_nothing(self, partition: PartitionId) -> BatchId:
        self._store.point(partition, Pointer(self._epoch, None))
        self.host.take(partition, NO_BATCH)
        return NO_BATCH

    def _stand_in(self, run: str, partition: PartitionId, one: StandInAssignment) -> BatchId | None:
        """Let a stand-in begin where its partition would start; return where, None: it cannot now."""
        if one.start.batch == NO_BATCH:
            return self._from_nothing(partition)
        found = self._bring(run, partition, one.start)
        if found is None:
            return None
        self._guard.turn()
        problem = found if isinstance(found, str) else self._put_in_place(partition, found)
        if problem is None:
            return one.start.batch
        self._problems.setdefault(partition, f"its stand-in cannot begin: {problem}")
        return None

    def _put_in_place(self, partition: PartitionId, snapshots: Sequence[Snapshot]) -> str | None:
        """Give a stand-in its state; return why that cannot be. It is in memory, beside all else on the node."""
        size = snapshots[-1].commit.state_bytes
        if sum(self._state_bytes.values()) + size > self._most_bytes:
            return f"members on this node would have more than {self._most_bytes >> 20} MB of state of their own"
        try:
            self.host.restore(snapshots)
        except CheckFailed as error:  # they do not fit each other
            return str(error)
        self._state_bytes[partition] = size
        return None

    # -- blocks --------------------------------------------------------------------------------------------------------

    def deliver(self, blocks: Iterable[Block]) -> None:
        """Take blocks of this line in."""
        self.host.deliver(blocks)

    def frontier(self, sender: PartitionId) -> BatchId | None:
        """Return how far a sender here is for members: by its branch, else by its clean line; None: it is not here."""
        if sender in self._forks and sender in self.host:
            return self.host.frontier(sender)
        if sender in self._clean and not self._clean.is_held_back(sender):
            return self._clean.frontier(sender)
        return None

    def replay(
        self, sender: PartitionId, consumer: PartitionId, after: BatchId, through: BatchId
    ) -> list[Block] | None:
        """Return what a sender gives a member: of its clean line up to where its branch begins, then of that."""
        fork = self._forks.get(sender)
        found: list[Block] = []
        last = through if fork is None else min(through, fork)
        if after < last:
            clean = self._clean.replay(sender, consumer, after, last)
            if clean is None:
                return None
            found += [_tentative(block) for block in clean]
        if fork is not None and through > fork:
            more = self.host.replay(sender, consumer, max(after, fork), through)
            if more is None:
                return None
            found += more
        return found

    def requests(
        self, desired: DesiredState, senders: Callable[[PartitionId], Iterable[tuple[PartitionId, NodeId]]]
    ) -> dict[NodeId, list[Request]]:
        """Return what members request of senders in other processes."""
        if not self._forks:
            return {}
        frontiers = {p: self.host.frontier(p) for p in self._forks}
        place = self._clean.node

        def left(consumer: PartitionId) -> Iterable[tuple[PartitionId, NodeId]]:
            return (pair for pair in senders(consumer) if pair[0] not in self._wanted[consumer].holes)

        room = self.host.inbox_bytes <= self._most_bytes // 4
        found = self._subscriptions.requests(desired.epoch, frontiers, left, room, dict.fromkeys(frontiers, place))
        return {node: [replace(one, tentative=True) for one in many] for node, many in found.items()}

    # -- work ----------------------------------------------------------------------------------------------------------

    def work(self, desired: DesiredState, *, busy: bool) -> bool:
        """Let members take one batch each, unless the clean line has work; say whether one did."""
        if not self._forks:
            return False
        self._rounds += 1
        if busy and self._rounds % YIELDS:
            return False
        for p in self.host.partitions:
            self._feed(p, desired.watermarks)
        answers = self.host.run(
            1,
            without=[p for p in self.host.partitions if p in self._problems],
            attempts=dict.fromkeys(self.host.partitions, ATTEMPT),
            skips={p: skips for p in self.host.partitions if (skips := self._placed(desired, p).skips)},
            limits={p: self._wanted[p].through for p in self.host.partitions},
        )
        for answer in answers:
            if not isinstance(answer, Done):
                self._problems.setdefault(answer.partition, str(answer))
            else:
                shared = self._shared_bytes.get(answer.partition, 0)
                self._state_bytes[answer.partition] = max(0, answer.measures.state_bytes - shared)
        if sum(self._state_bytes.values()) > self._most_bytes:
            much = f"members on this node have more than {self._most_bytes >> 20} MB of state of their own"
            for p in [p for p, size in self._state_bytes.items() if size]:
                self._problems.setdefault(p, much)
        self._trim(desired)
        return any(isinstance(one, Done) for one in answers)

    def _trim(self, desired: DesiredState) -> None:
        """Drop the blocks that nobody needs; what is too much even so ends the branch.

        Other members get what these have completed again only if their process begins anew. So it is kept while there
        is room, and then dropped: a member that begins anew after that ends its branch (`not_served`).
        """
        for p in self.host.partitions:
            if all(one.operator.startswith("@") for one in self._program.consumers(p)):
                self.host.keep(p, self._unpublished(p))
        if self._rounds % _LOOK_BYTES or self._bytes() <= self._most_bytes // 2:
            return
        for p in self.host.partitions:
            self.host.keep(p, self._needed_from(p, desired))
        self.host.trim()
        if self._bytes() > self._most_bytes:
            for p in self.host.partitions:
                self._problems.setdefault(p, f"its blocks take more than {self._most_bytes >> 20} MB on this node")

    def _bytes(self) -> int:
        return self._store.kept_bytes() + self.host.inbox_bytes

    def _unpublished(self, partition: PartitionId) -> BatchId:
        """Return the first batch whose output the driver may still need."""
        out = self._wanted[partition].out
        return BatchId(self.host.frontier(partition) + 1 if out is None else out + 1)

    def _needed_from(self, partition: PartitionId, desired: DesiredState) -> BatchId:
        """Return the first batch that a sink or another member still has to get of a member here."""
        first = self._unpublished(partition)
        for consumer in self._program.consumers(partition):
            if consumer not in desired.branches:
                continue
            if consumer in self._forks:
                completed: BatchId | None = self.host.frontier(consumer)
            else:  # one that is on its way, here or elsewhere, has said nothing yet
                node = self._placed(desired, consumer).node
                completed = self._publications.completed((consumer, partition, node))
            first = min(first, BatchId(NO_BATCH + 1 if completed is None else completed + 1))
        return first

    def _placed(self, desired: DesiredState, partition: PartitionId) -> PartitionAssignment | StandInAssignment:
        return desired.stand_ins.get(partition) or desired.assignments[partition]

    def _feed(self, partition: PartitionId, watermarks: SourceWatermarks) -> None:
        """Give a member what senders in this process have for it, and the barriers that are forged."""
        frontier, one = self.host.frontier(partition), self._wanted[partition]
        coming = BatchId(frontier + 1)
        for edge, sender in self._program.streams(partition):
            if sender in one.holes:
                if coming <= one.through:
                    try:
                        mark = self._forged.at(sender, coming, watermarks)
                    except OSError:
                        continue  # storage that is away: with the next round
                    except HoldfastError as error:
                        self._problems.setdefault(partition, str(error))
                        continue
                    header = Header(edge, sender, partition, coming, self._epoch, mark, tentative=True)
                    self.host.deliver([Block(header)])
                continue
            at = self.frontier(sender)
            after = max(frontier, self._handed.get((partition, sender), NO_BATCH))
            through = min(NO_BATCH if at is None else at, BatchId(frontier + self._window))
            if after < through:
                blocks = self.replay(sender, partition, after, through)
                if blocks is None:
                    self._problems.setdefault(partition, f"{sender} no longer has batch {after + 1} for it")
                    continue
                self.host.deliver(block.stamped(self._epoch) for block in blocks)
                self._handed[partition, sender] = through

    # -- what goes out -------------------------------------------------------------------------------------------------

    def driver_connected(self) -> None:
        """Reports may have been lost."""
        self._reported.clear()
        self._problems_reported.clear()

    def outputs(self, desired: DesiredState, room: int) -> list[Block]:
        """Return tentative outputs that have not been reported, or not acknowledged for a while."""
        found: list[Block] = []
        now = self._clock()
        for p, fork in self._forks.items():
            out = self._wanted[p].out
            if out is None:
                continue
            sink = next(one for one in self._program.consumers(p) if one.operator == SINK)
            known = max(out, fork)
            last, at, number = self._reported.get(p, (known, now, desired.number))
            if last > known and now - at > _RESEND_SECONDS and desired.number > number:
                last = known
            after = max(last, known)
            while after < self.host.frontier(p) and room > 0:
                blocks = self.host.replay(p, sink, after, BatchId(after + 1))
                after = BatchId(after + 1)
                if blocks is None:
                    continue  # out already, or dropped
                room -= sum(one.rows.nbytes for one in blocks if one.rows is not None)
                found += blocks
                self._reported[p] = (after, now, desired.number)
        return found

    def not_served(self, desired: DesiredState, consumer: PartitionId, sender: PartitionId, after: BatchId) -> None:
        """A member elsewhere asks a sender here for what it no longer has; the member itself would wait for good.

        A stand-in that the checkpoint of its partition has passed begins anew, and asks for less.
        """
        one = desired.stand_ins.get(consumer)
        if consumer in desired.branches and (one is None or after >= one.start.batch):
            self._not_served[consumer] = f"{sender} no longer has batch {after + 1} for it"

    def problems(self) -> dict[PartitionId, str]:
        """Return what has failed, unless it was just reported."""
        now, found = self._clock(), {**self._not_served, **self._problems}
        due = {p: why for p, why in found.items() if now - self._problems_reported.get(p, -1e18) > _RESEND_SECONDS}
        self._problems_reported.update(dict.fromkeys(due, now))
        return due


def _tentative(block: Block) -> Block:
    """Return a block of the clean line as a member takes it."""
    return Block(replace(block.header, tentative=True), block.rows)
