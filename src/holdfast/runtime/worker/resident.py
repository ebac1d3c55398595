"""A worker that stays: messages in, messages out, as fast as blocks come. No socket, no clock, no thread of its own.

Runs on a node, inside a process that moves its messages, or in the simulator. It has a `NodeWorker`, which places,
processes, saves and reports exactly as under every other backend; what differs is the exchange. A partition starts
when its own inputs are complete, and what it sends goes to its subscribers at once (see subscriptions.py); the
coordinator hands out a desired state when it has a new one and reads reports as they come. Every message may be lost
with its connection, or come late: the next subscription, desired state or report makes up for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from holdfast.ids import BatchId, NodeId, PartitionId
from holdfast.runtime.blocks import LATE, SINK, Block
from holdfast.runtime.messages import (
    REPORT_BYTES,
    Answer,
    DesiredState,
    Done,
    Missing,
    NodeReport,
    PartitionAssignment,
    SnapshotNotStored,
    SnapshotStored,
)
from holdfast.runtime.program import Program
from holdfast.runtime.worker.branching import Branching
from holdfast.runtime.worker.subscriptions import WINDOW, Publications, Request, Subscriptions
from holdfast.runtime.worker.worker import NodeWorker, attempts_of, limits_of, paused_of, skips_of

RESEND_SECONDS = 1.0
"""What the coordinator has not acted on for so long is reported again; outputs once it has handed out a new state."""
REQUEST_SECONDS = 2.0
"""A block that its sender has, and that has not come for so long, is requested again."""
TICK_SECONDS = 0.02
"""How often snapshots that are on their way are looked for."""
IDLE_SECONDS = 1.0
"""How long a worker sleeps at most where nothing comes."""
INBOX_BYTES = 256 << 20
"""With more than this in inboxes, streams get no further than the batch that their consumer needs next."""


@dataclass(slots=True)
class Round:
    """What one round of work gives."""

    requests: dict[NodeId, list[Request]] = field(default_factory=dict)
    """For the nodes of senders, by the connections to them."""
    blocks: dict[int, list[Block]] = field(default_factory=dict)
    """For subscribers, by the connections from them."""
    report: NodeReport | None = None
    applied: int = -1
    """The number of the last desired state that was reconciled with."""
    idle: bool = True
    """Whether nothing more can be done before something comes."""
    problem: str | None = None
    """What keeps sources from going on, and is tried again."""
    overdue: list[tuple[PartitionId, PartitionId]] = field(default_factory=list)
    """Consumers and senders of streams that are requested again because nothing comes."""
    wait: float = IDLE_SECONDS
    """Seconds after which the next round is due, if nothing comes before."""


class Standing:
    """What the driver was last told of a worker: which desired state it has reconciled with, and whether it is idle."""

    def __init__(self) -> None:
        self._sent: tuple[int, bool] | None = None

    def connected(self) -> None:
        """A new connection has been told nothing."""
        self._sent = None

    def is_news(self, done: Round) -> bool:
        """Whether a round has changed it: then the driver is told, with a report or without one, or no cycle ends."""
        before, self._sent = self._sent, (done.applied, done.idle)
        return self._sent != before


class ResidentWorker:
    """One node's worker, for as long as its process lives."""

    def __init__(
        self,
        worker: NodeWorker,
        program: Program,
        *,
        clock: Callable[[], float],
        cpu_clock: Callable[[], float],
        window: int = WINDOW,
        inbox_bytes: int = INBOX_BYTES,
        report_bytes: int = REPORT_BYTES,
    ) -> None:
        """`window`: batches that a stream may be ahead of its consumer."""
        self._worker, self._program, self._host = worker, program, worker.host
        self._clock, self._cpu_clock = clock, cpu_clock
        self._inbox_bytes, self._report_bytes = inbox_bytes, report_bytes
        self.publications, self.subscriptions = Publications(window), Subscriptions(window)
        self.branching = Branching(
            program,
            worker.host,
            worker.guard,
            clock=clock,
            subscriptions=self.subscriptions.beside(),
            publications=self.publications,
            window=window,
            bring=worker.bring,
            logged_watermark=worker.logged_watermark,
        )
        """Members of the branch that are here."""
        self._was_busy = False
        """Whether a partition has completed a batch in the last round."""
        self._desired: DesiredState | None = None
        self._fresh = False
        """Whether the desired state has not been reconciled with yet."""
        self._mine: dict[PartitionId, PartitionAssignment] = {}
        """What the desired state has for this worker: primaries, and second copies of others."""
        self._here: list[PartitionId] = []
        self._given: dict[PartitionId, BatchId] = {}
        """The last batch of the log that was given to each source partition."""
        self._reported: dict[tuple[PartitionId, PartitionId], tuple[BatchId, float, int]] = {}
        """The last output of each partition that was reported for each sink, when, and under which desired state."""
        self._waiting: dict[PartitionId, tuple[BatchId, float]] = {}
        """Since when each partition waits for the batch after this one, which its senders have."""
        self._reported_at: dict[Answer, float] = {}
        """What was reported beside completed batches, and when: the same again has time."""
        self._save_at: dict[PartitionId, float] = {}
        """When to look again what became of a partition's snapshot."""
        self._places: dict[PartitionId, int] = {}
        """The host's number for the place of each partition: in a new one nothing has been received."""
        self._arrived: list[Block] = []
        self._unforgotten: dict[str, None] = {}
        """Snapshots that nobody needs, and that could not be deleted yet."""
        self._senders = program.senders

    @property
    def desired(self) -> DesiredState | None:
        """The desired state that holds."""
        return self._desired

    def sender_nodes(self) -> set[NodeId]:
        """Return the nodes that partitions here have senders on."""
        desired = self._desired
        if desired is None:
            return set()
        here = (*self._here, *desired.standing_in_on(self._worker.name))
        found = (desired.assignments.get(sender) for p in here for sender in self._senders[p])
        return {one.node for one in found if one is not None and one.node != self._worker.name}

    # -- messages in ---------------------------------------------------------------------------------------------------

    def hand_out(self, desired: DesiredState) -> None:
        """Take a desired state; one that is older than the last is over."""
        held = self._desired
        if held is not None and (desired.epoch, desired.number) < (held.epoch, held.number):
            return
        if held is None or desired.epoch != held.epoch:
            for memory in (self._given, self._reported, self._waiting, self._reported_at, self._save_at, self._arrived):
                memory.clear()
        self._desired, self._fresh = desired, True
        self._mine = self._worker.mine(desired)

    def driver_connected(self) -> None:
        """A new connection to the driver is there: reports may have been lost with the one before, so all is news.

        A frontier acknowledges the late rows up to it: the next report holds all that was not acknowledged.
        """
        self._reported.clear()
        self._reported_at.clear()
        self.branching.driver_connected()

    def take_request(self, link: int, request: Request) -> None:
        """Take a consumer's request."""
        self.publications.take(link, request)

    def take_blocks(self, blocks: Iterable[Block]) -> None:
        """Take blocks in; those of another epoch than this node's are refused: they come again."""
        self._arrived += blocks

    @property
    def inbox_bytes(self) -> int:
        """How many bytes of rows wait in inboxes."""
        return self._host.inbox_bytes

    # -- work ----------------------------------------------------------------------------------------------------------

    def work(self) -> Round:
        """Do what can be done now; a partition takes one batch at most, so that what it sends does not wait."""
        desired = self._desired
        if desired is None:
            return Round()
        refused = self._worker.refusal(desired)
        if refused is not None:
            answered, self._fresh = self._fresh, False
            return Round(report=refused if answered else None, applied=desired.number)
        began, now = self._cpu_clock(), self._clock()
        stands_in = self.branching.members or self.branching.waits
        if not (self._fresh or self._mine or self._arrived or self._host.partitions or stands_in):
            return self._rest(desired)
        answers: list[Answer] = []
        fresh = self._fresh
        unsettled = self._reconcile(desired, answers)
        if self._arrived:
            arrived, self._arrived = self._arrived, []
            self._host.deliver(block for block in arrived if not block.header.tentative)
            self.branching.deliver(block for block in arrived if block.header.tentative)
        away = [why for p in self._here if (why := self._read_log(desired, p, answers)) is not None]
        regenerated = self._worker.regenerating.work(desired, self._here, most=1, busy=self._was_busy)
        answers += regenerated.answers
        answers += self._host.run(
            1,
            without=paused_of(self._mine, self._here),
            attempts=attempts_of(self._mine, self._here),
            skips=skips_of(self._mine, self._here),
            limits=limits_of(self._mine, self._here),
        )
        self._was_busy = any(isinstance(one, Done) for one in answers)
        self._still_here()
        saving = self._save(desired, answers, now)
        done = Round(applied=desired.number)
        branched = self._branch(desired, answers)
        self._serve(desired, done, answers)
        done.requests = self._requests(desired, done, now)
        moved = branched or regenerated.moved or any(isinstance(one, Done) for one in answers)
        # Who cannot read the log has work, and tries again: a storage that is away for a while ends no process.
        done.idle, done.problem = not moved and not away, next(iter(away), None)
        soon = unsettled or saving or regenerated.waits or self.publications.waits or self.branching.waits
        done.wait = 0.0 if moved else TICK_SECONDS if soon else IDLE_SECONDS
        outputs = self._outputs(desired, done, now)
        answers = [one for one in answers if self._is_news(one, now)]
        tentative, problems = self.branching.outputs(desired, self._report_bytes), self.branching.problems()
        if fresh or outputs or answers or tentative or problems:
            report = self._worker.report(desired, answers, outputs, self._cpu_clock() - began)
            done.report = replace(report, outputs=[*report.outputs, *tentative], branch_problems=problems)
        return done

    def _branch(self, desired: DesiredState, answers: Sequence[Answer]) -> bool:
        """Let members of the branch go on; say whether one did."""
        self.branching.apply(desired, self._here)
        return self.branching.work(desired, busy=any(isinstance(one, Done) for one in answers))

    def _rest(self, desired: DesiredState) -> Round:
        """Where nothing is to run here: forget who has subscribed in earlier epochs, and what was requested."""
        self._here = []
        self.publications.due(desired.epoch, lambda partition: None)
        requests = self.subscriptions.requests(desired.epoch, {}, lambda consumer: ())
        return Round(applied=desired.number, requests=requests, idle=True, wait=IDLE_SECONDS)

    def _reconcile(self, desired: DesiredState, answers: list[Answer]) -> bool:
        """Put partitions in place; return whether some are still on their way."""
        mine = len(self._mine)
        self._still_here()
        if self._fresh or len(self._here) < mine:
            self._here = self._worker.apply(desired, answers)
            for p in self._here:
                if self._places.get(p) != (place := self._host.place(p)):
                    self._places[p] = place
                    self._given.pop(p, None)
                    for consumer in self._program.consumers(p):
                        self._reported.pop((p, consumer), None)
                    self.subscriptions.again(p)
        if self._fresh:
            self._fresh = False
            self._unforgotten = dict.fromkeys((*self._unforgotten, *desired.forget))
            with suppress(OSError):  # storage that is away: with the next desired state
                self._worker.forget(tuple(self._unforgotten))
                self._unforgotten = {}
            answers += [Missing(p, at) for p, at in self._host.unkept()]
            if desired.trim_outboxes:
                answers += self._host.trim()
                self._still_here()
        return len(self._here) < mine

    def _still_here(self) -> None:
        """Leave out what the host has released meanwhile, because its files turned out to be gone: it has said so."""
        self._here = [p for p in self._here if p in self._host]

    def _read_log(self, desired: DesiredState, partition: PartitionId, answers: list[Answer]) -> str | None:
        """Give a source what the log has for it; return why the log could not be read."""
        if partition.operator in self._program.sources:
            after = max(self._host.frontier(partition), self._given.get(partition, BatchId(-1)))
            try:
                self._given[partition] = self._worker.read_log(desired, partition, answers, after)
            except OSError as error:  # what it got before is given again, and does no harm
                return f"{partition} cannot read the log: {type(error).__name__}: {error}"
        return None

    def _save(self, desired: DesiredState, answers: list[Answer], now: float) -> bool:
        """Save what is due; return whether a snapshot is on its way. One that failed, or is reported, has time."""
        saving = False
        for p in self._here:
            one = self._mine[p]
            if one.replica or not any(mark <= self._host.frontier(p) for mark in one.marks):
                continue
            saving = True
            if now >= self._save_at.get(p, now):
                came: list[Answer] = []
                self._worker.save(desired, p, came)
                answers += came
                ended = any(isinstance(one, SnapshotStored | SnapshotNotStored | Missing) for one in came)
                self._save_at[p] = now + (RESEND_SECONDS if ended else 0.0)
        return saving

    def _is_news(self, answer: Answer, now: float) -> bool:
        """Whether to report an answer: a completed batch always, anything else once in a while."""
        if isinstance(answer, Done):
            return True
        for old in [one for one, at in self._reported_at.items() if now - at >= RESEND_SECONDS]:
            del self._reported_at[old]  # news again; and it would be held for as long as the epoch lasts
        if answer in self._reported_at:
            return False
        self._reported_at[answer] = now
        return True

    # -- messages out --------------------------------------------------------------------------------------------------

    def _serve(self, desired: DesiredState, done: Round, answers: list[Answer]) -> None:
        """Address what subscribers have not been sent."""
        host = self._host
        for subscriber, after, last in self.publications.due(
            desired.epoch, lambda p: host.frontier(p) if p in host and not host.is_held_back(p) else None
        ):
            consumer, sender, copy = subscriber
            if (through := host.sent_through(consumer, last)) <= after:
                continue  # it waits for a checkpoint
            blocks = host.replay(sender, consumer, after, through)
            if blocks is None and copy is not None:
                self.publications.drop(subscriber)  # nobody goes back for a second copy: it is built again
            elif blocks is None and host.kept_from(sender) <= (known := self._known(desired, sender, consumer)) + 1:
                self.publications.sent(subscriber, known)  # it has them: its request is an old one; the stream goes on
            elif blocks is None:
                answers.append(Missing(sender, after))  # it has to make them again
            else:
                done.blocks.setdefault(self.publications.sent(subscriber, through), []).extend(blocks)
        for subscriber, after, through in self.publications.due(desired.epoch, self.branching.frontier, tentative=True):
            blocks = self.branching.replay(subscriber[1], subscriber[0], after, through)
            if blocks is None:
                self.publications.drop(subscriber)  # nobody goes back for a branch
                self.branching.not_served(desired, subscriber[0], subscriber[1], after)
            else:
                done.blocks.setdefault(self.publications.sent(subscriber, through), []).extend(blocks)

    def _known(self, desired: DesiredState, sender: PartitionId, consumer: PartitionId) -> BatchId:
        """Return the last batch of which a consumer needs nothing of a sender any more."""
        one = desired.assignments.get(consumer)
        if one is None:
            return BatchId(-1)
        return max(one.frontier, one.regenerate.get(sender, one.frontier))

    def _requests(self, desired: DesiredState, done: Round, now: float) -> dict[NodeId, list[Request]]:
        host = self._host
        frontiers = {p: host.frontier(p) for p in self._here}

        def senders(consumer: PartitionId) -> Iterable[tuple[PartitionId, NodeId]]:
            mine = self._mine.get(consumer)  # a stand-in has no assignment of its own
            lacking = {} if mine is None else mine.regenerate
            for sender in self._senders[consumer]:
                one = desired.assignments.get(sender)
                if one is None or lacking.get(sender, BatchId(-1)) > frontiers.get(consumer, BatchId(-1)):
                    continue  # regenerators here make what it lacks
                if one.node != self._worker.name:
                    yield sender, one.node

        for p, frontier in frontiers.items():
            # It waits from when its senders are known to be ahead, and may send: before that there is nothing to come.
            ahead = [
                sender
                for sender, _ in senders(p)
                if host.sent_through(p, desired.assignments[sender].frontier) > frontier
            ]
            if not ahead:
                self._waiting.pop(p, None)
                continue
            batch, since = self._waiting.get(p, (None, now))
            if batch != frontier:
                self._waiting[p] = (frontier, now)
            elif now - since > REQUEST_SECONDS:
                missing = {sender for _, sender in host.missing(p)}
                if overdue := [(p, sender) for sender in ahead if sender in missing]:
                    done.overdue += overdue
                    self.subscriptions.again(p)
                self._waiting[p] = (frontier, now)
        room = self._host.inbox_bytes <= self._inbox_bytes
        copies = {p: self._worker.name for p in self._here if self._mine[p].replica}
        found = self.subscriptions.requests(desired.epoch, frontiers, senders, room, copies)
        for node, more in self.branching.requests(desired, senders).items():
            found.setdefault(node, []).extend(more)
        return found

    def _outputs(self, desired: DesiredState, done: Round, now: float) -> list[Block]:
        """Return what sinks have not been reported, or have not acknowledged for a while; late rows among it.

        Of parked partitions late rows alone: their frontiers would acknowledge them.
        Where that is much, the rest comes with the next reports: a message has a bound.
        """
        found: list[Block] = []
        room = self._report_bytes
        for p in self._here:
            if self._mine[p].replica:
                continue  # its primary reports them
            parked = desired.assignments[p].parked
            for consumer in self._program.consumers(p):
                if consumer.operator == LATE or (consumer.operator == SINK and not parked):
                    blocks, all_of_it = self._unreported(desired, p, consumer, now, room)
                    room -= sum(one.rows.nbytes for one in blocks if one.rows is not None)
                    found += blocks
                    if not all_of_it:
                        done.idle, done.wait = False, 0.0
        return found

    def _unreported(
        self, desired: DesiredState, partition: PartitionId, sink: PartitionId, now: float, room: int
    ) -> tuple[Sequence[Block], bool]:
        """Return what to report of a partition, and whether that is all."""
        # Late rows are acknowledged by the frontier: where they are not written, it does not count. So all come at
        # once; of what a sink gets, the batches for which there is room.
        frontier, late = self._host.frontier(partition), sink.operator == LATE
        acknowledged = desired.assignments[partition].frontier if late else desired.published[partition]
        last, at, number = self._reported.get((partition, sink), (acknowledged, now, desired.number))
        if last > acknowledged and now - at > RESEND_SECONDS and desired.number > number:
            # A driver that has handed out nothing since has not read them yet, because a sink is slow: further copies
            # would fill its memory.
            last = acknowledged
        after = max(last, acknowledged)
        found: list[Block] = []
        while after < frontier:
            if not late and room <= 0:
                return found, False
            through = frontier if late else BatchId(after + 1)
            blocks = self._host.replay(partition, sink, after, through)
            if blocks is None:
                break  # `unkept` reports it
            found += blocks
            room -= sum(one.rows.nbytes for one in blocks if one.rows is not None)
            after = through
            self._reported[partition, sink] = (after, now, desired.number)
        return found, True
