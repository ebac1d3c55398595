"""What the recovery machine knows of nodes, partitions and checkpoints. Pure.

Only the machine changes it. The coordinator derives the desired state of the workers from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId, SegmentId
from holdfast.recovery.branches import Branches, TentativeQuery
from holdfast.recovery.checkpoints import FIRST, NO_EPOCH, NOTHING, Checkpoints, SavedSnapshot
from holdfast.recovery.copies import Copies, held_back_by
from holdfast.recovery.executed_plan import ExecutedPlan, PlanChange
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.held_edges import held_edges
from holdfast.recovery.quarantine import Decisions, Quarantined, written_decisions
from holdfast.recovery.regeneration import waiting as waiting_of
from holdfast.recovery.segments import unstored_tail
from holdfast.recovery.states import AT_WORK_STATES, LIVE_STATES, History, PartitionState
from holdfast.recovery.strategy import RecoverySettings


@dataclass(frozen=True, slots=True)
class Start:
    """What a partition starts from: since which epoch, at which batch, by which snapshots (none: from nothing)."""

    epoch: Epoch
    batch: BatchId
    snapshots: tuple[SavedSnapshot, ...]


@dataclass(slots=True)
class PartitionStatus:
    """What the machine knows of one partition."""

    history: History
    start: Start
    node: NodeId | None = None
    frontier: BatchId = NOTHING
    acknowledged: BatchId = NOTHING
    """The last batch that it has completed, as far as was ever reported: what it kept aside up to here is written.

    A snapshot may be saved of a later batch, before the rows that it kept aside are: it does not start from there.
    """
    kept_from: BatchId = FIRST
    """The first batch that its outbox surely has: no desired state has ever let it drop that one."""
    first_mark: BatchId = NOTHING
    """It saves at marks from this one on."""
    given: BatchId = NOTHING
    """After a held edge: the last batch that any desired state has let it be given, or what came of it elsewhere."""
    own_mark: BatchId | None = None
    """Where it stands while it waits for others: it saves there alone, so that they need keep less for it."""
    forgotten: int = 0
    """How often snapshots of it were forgotten: those saved from then on have other names."""
    gone: set[SavedSnapshot] = field(default_factory=set)
    """Those that were, and that a late report may still name as saved: they are being deleted."""

    @property
    def state(self) -> PartitionState:
        """Where it stands."""
        return self.history.state

    def has_passed(self, mark: BatchId) -> bool:
        """Whether all that it gave up to a mark is known: of what is lost, what was reported before counts."""
        return self.acknowledged >= mark and (self.state is PartitionState.LOST or self.frontier >= mark)

    def begin(self, epoch: Epoch, snapshot: SavedSnapshot | None, chain: tuple[SavedSnapshot, ...]) -> None:
        """Start anew: from a snapshot, by the chain of those it needs; from nothing where there is none."""
        at = batch_of(snapshot)
        self.start = Start(epoch, at, chain)
        reach = at + 1 if snapshot is None or snapshot.outbox_from is None else min(snapshot.outbox_from, at + 1)
        self.kept_from = BatchId(reach)
        self.frontier = at


@dataclass(frozen=True, slots=True)
class ParkedQuery:
    """Why a query is parked."""

    partition: PartitionId
    """Whose operator or sink fails; it may serve other queries as well, which are parked with this one."""
    batch: BatchId
    error: str
    """One line."""
    since: float
    """Seconds since 1970, by the driver's clock."""
    attempts: int
    """How often the batch was tried."""
    row: str = ""
    """The first row that its operator cannot take, as a short text; empty where none was found."""

    def written(self) -> dict[str, object]:
        """Return it as plain values."""
        return {
            "partition": str(self.partition),
            "batch": self.batch,
            "error": self.error,
            "since": self.since,
            "attempts": self.attempts,
            "row": self.row,
        }

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> ParkedQuery:
        """Read what was written."""
        return cls(
            PartitionId.parse(fields["partition"]),
            BatchId(fields["batch"]),
            str(fields["error"]),
            float(fields["since"]),
            int(fields["attempts"]),
            str(fields.get("row", "")),
        )


def batch_of(snapshot: SavedSnapshot | None) -> BatchId:
    """Return where a partition stands that starts from this snapshot."""
    return NOTHING if snapshot is None else snapshot.batch


class ClusterState:
    """The state of a run, as the driver knows it."""

    def __init__(
        self,
        graph: PartitionGraph,
        settings: RecoverySettings | None = None,
        *,
        epoch: Epoch = NO_EPOCH,
        checkpoints: Checkpoints | None = None,
        parked: Mapping[PartitionId, ParkedQuery] | None = None,
        requests: int = -1,
        quarantined: Decisions | None = None,
        tentative: Mapping[PartitionId, TentativeQuery] | None = None,
        plan: ExecutedPlan | None = None,
        next_plan: ExecutedPlan | None = None,
        dropped: Iterable[PartitionId] = (),
    ) -> None:
        """Begin with every partition lost, at the last global checkpoint: a start is a recovery of everything.

        `parked`: queries that the driver before had parked; `requests`: the last one to let such go on that it took;
        `quarantined`: rows that are left out, as drivers before have logged; `tentative`: queries of which they may
        have published tentative rows that no final rows have replaced; `plan`: what is executed, in the place of the
        settings' segments and backups, and `next_plan` what was chosen to follow it;
        `dropped`: partitions for which drivers before had let senders keep nothing.
        """
        self.graph = graph
        self.settings = settings or RecoverySettings()
        plan = plan or ExecutedPlan(self.settings.segments, self.settings.backup_partitions)
        self.epoch = epoch
        self.checkpoints = checkpoints or Checkpoints(graph.order)
        self.plan = PlanChange(plan, next_plan, max(self.checkpoints.line.values(), default=NOTHING))
        """What is executed, and what was chosen to follow it."""
        self.crossing: frozenset[PartitionId] = frozenset()
        """Partitions that send to another segment: their snapshots hold what it will need."""
        self.held = held_edges(graph, plan.segments)
        """Edges whose blocks cross once the sender's checkpoint covers them."""
        self.handed_out = NOTHING
        """The last batch of the log that any desired state has let sources take."""
        self.line_before: dict[PartitionId, BatchId] = {}
        """Where the checkpoints of partitions that send over held edges were before they moved last."""
        self.partitions: dict[PartitionId, PartitionStatus] = {}
        self.execute(plan)
        self.unsettled: set[SegmentId] = set()
        """Segments of which something was lost or held back since their checkpoint moved last."""
        line = self.checkpoints.line
        self.nodes: dict[NodeId, float] = {}
        """The nodes there are, with their capacity."""
        self.partitions = {
            p: PartitionStatus(History(p), self._first_start(p), None, line[p], line[p], BatchId(line[p] + 1))
            for p in graph.order
        }
        self.published: dict[PartitionId, BatchId] = {p: line[p] for p in graph.outputs}
        """The last batch of each output partition that is out."""
        self.logged = self.checkpoints.global_batch
        self.buffering = False
        """Whether every outbox is kept to the checkpoint."""
        self.recovering = False
        self.awaited = 0
        """Nodes that were asked for and have not come."""
        self.losses = self.settings.incremental_after_losses
        """Nodes, and states of live ones, lost since the last global checkpoint; at a start everything is."""
        self.paused: set[PartitionId] = set()
        """Queries that are held back."""
        self.parked: dict[PartitionId, ParkedQuery] = dict(parked or {})
        """Queries that are parked, and why."""
        self.requests = requests
        """The number of the last request to let parked queries go on that was taken."""
        self.quarantined: dict[PartitionId, dict[BatchId, Quarantined]] = {
            p: dict(found) for p, found in (quarantined or {}).items()
        }
        """Rows that operators cannot take and that are left out, of batches that may be processed again."""
        self.wanted: dict[PartitionId, NodeId] = {}
        """Where people want lost partitions to go; it holds where the plan's bounds allow it."""
        self.copies = Copies(lag=self.settings.replica_lag, replicas=self.settings.replicas)
        """Second live copies of partitions; a driver that starts again builds them anew."""
        self.branches = Branches(dict(tentative or {}), away=set(graph.order))
        """Tentative outputs, and what they come from."""
        self.dropped: set[PartitionId] = set(dropped) & self.partitions.keys()
        """Partitions that waited so long that nothing is kept for them: they get it regenerated when they return."""
        self.kept_bytes = 0
        """What all outboxes together hold, as far as it is reported: in a recovery, and while queries catch up."""
        self.costs: dict[PartitionId, float] = {}
        """What partitions were measured to cost; none: as the topology says."""

    def _first_start(self, partition: PartitionId) -> Start:
        """Return what a partition starts from under this driver, before one is chosen: a stand-in may begin with it."""
        at = self.checkpoints.line[partition]
        snapshot = self.checkpoints.at(partition, at)
        return Start(self.epoch, at, () if snapshot is None else self.checkpoints.chain(partition, snapshot))

    def execute(self, plan: ExecutedPlan) -> None:
        """Have a plan be the one that is executed."""
        self.plan.now = plan
        held = held_edges(self.graph, plan.segments)
        for p, mine in self.partitions.items():
            if p.operator in held.consumers and p.operator not in self.held.consumers:
                mine.given = max(mine.given, self.handed_out)  # until it is covered, it goes back with its senders
        self.held = held
        self.segments = self.checkpoints.segments = plan.segments
        self.crossing = plan.senders_across(self.graph)
        self.settings = replace(self.settings, segments=plan.segments, backup_partitions=plan.backups)

    # -- what a cycle needs to know ------------------------------------------------------------------------------------

    def in_state(self, states: Iterable[PartitionState]) -> list[PartitionId]:
        """Return the partitions in these states, senders first."""
        wanted = frozenset(states)
        return [p for p in self.graph.order if self.partitions[p].state in wanted]

    @property
    def lost(self) -> list[PartitionId]:
        """The partitions that run nowhere."""
        return self.in_state([PartitionState.LOST])

    @property
    def placement(self) -> dict[PartitionId, NodeId]:
        """Who is where."""
        return {p: node for p in self.graph.order if (node := self.partitions[p].node) is not None}

    @property
    def frontier(self) -> BatchId:
        """The last batch that every partition has completed."""
        return min(one.frontier for one in self.partitions.values())

    @property
    def inputs_from(self) -> BatchId:
        """The batch after which the log is needed: of the sources, at the older durable checkpoint."""
        oldest = self.checkpoints.oldest_line
        return min(oldest[p] for p in self.graph.order if not self.graph.senders(p))

    def kept_for(self, waiting: Iterable[PartitionId]) -> BatchId | None:
        """Return the first batch that senders keep for partitions that wait; None: they keep nothing for them."""
        fed = [p for p in waiting if self.graph.senders(p) and p not in self.dropped]
        return BatchId(min(self.checkpoints.line[p] for p in fed) + 1) if fed else None

    def able(self) -> set[PartitionId]:
        """Return the partitions that process what comes, with everything upstream of them."""
        able: set[PartitionId] = set()
        for p in self.graph.order:
            if self.partitions[p].state in AT_WORK_STATES and able.issuperset(self.graph.senders(p)):
                able.add(p)
        return able

    def waiting(self) -> set[PartitionId]:
        """Return the partitions that wait for nodes or people, or for partitions that do."""
        return waiting_of(self)

    def available(self, query: PartitionId) -> bool:
        """Whether a query is whole: it is not parked, and none of its partitions is lost or being restored."""
        return query not in self.parked and all(
            self.partitions[p].state in LIVE_STATES for p in self.graph.members(query)
        )

    def serves_parked_only(self, partition: PartitionId) -> bool:
        """Whether all queries of a partition are parked."""
        return bool(self.parked) and self.parked.keys() >= set(self.graph.queries_of(partition))

    @property
    def keeps_everything(self) -> bool:
        """Whether outboxes are kept back to the checkpoints of all consumers, whatever the plan lets senders keep."""
        # A copy starts from the checkpoint, and where it takes over nobody rolls back. A branch begins where live
        # partitions stand: these do not roll back either.
        copies = self.copies
        copied = bool(copies.replicas or copies.retiring or copies.leaving or copies.moving)
        return self.buffering or (self.settings.promotes and (copied or bool(self.settings.tentative)))

    def keep_from(self) -> dict[PartitionId, BatchId]:
        """Return how far back each placed partition's outbox is kept; from now on nothing before it is counted on."""
        found = {}
        line = self.checkpoints.line
        everything = self.keeps_everything
        unkept = self.dropped & self.waiting() if self.dropped else self.dropped
        for p in self.in_state(LIVE_STATES):
            mine = self.partitions[p]
            # Not beyond where it is known to stand: rows that it kept aside there may not be out yet.
            needed = [BatchId(mine.frontier + 1)]
            if p in self.published:
                needed.append(BatchId(self.published[p] + 1))
            for consumer in self.graph.consumers(p):
                if consumer in unkept:
                    continue
                other = self.partitions[consumer]
                if everything or self.plan.keeps(p, consumer):
                    needed.append(BatchId(min(line[consumer], other.frontier) + 1))
                elif other.state is not PartitionState.LOST:
                    needed.append(BatchId(other.frontier + 1))
            needed += held_back_by(self, self.graph.consumers(p))
            mine.kept_from = max(mine.kept_from, min(needed))
            found[p] = mine.kept_from
        return found

    def limits(self) -> dict[PartitionId, BatchId]:
        """Return the last batch that partitions after held edges can complete now; others wait for no checkpoint."""
        return self.held.limits(self.graph, self.checkpoints.line)

    def expected(self, logged: BatchId) -> dict[PartitionId, BatchId]:
        """Return from where on partitions after held edges count as level with a log that has come so far.

        What a checkpoint lets cross comes at once: until the next one they have time for it.
        """
        if not self.held.edges:
            return {}
        line = self.checkpoints.line
        found = self.held.limits(self.graph, {p: min(at, self.line_before.get(p, at)) for p, at in line.items()})
        return {p: min(at, logged) for p, at in found.items()}

    def may_have_seen(self, sender: PartitionId, consumer: PartitionId, batch: BatchId) -> bool:
        """Whether a consumer may have been given blocks of a sender that are later than a batch."""
        held = (sender.operator, consumer.operator) in self.held.edges
        return not held or self.partitions[consumer].given > batch

    def marks_for(self, partition: PartitionId) -> tuple[BatchId, ...]:
        """Return the batches at which a partition is to save, those that are safe already left out."""
        mine = self.partitions[partition]
        found = [
            mark
            for mark in self.checkpoints.marks
            if mark >= mine.first_mark
            and mark >= mine.start.batch
            and self.checkpoints.lacks(partition, mark)
            and not self.checkpoints.has(partition, mark)
        ]
        if self.checkpoints.between.open:
            between = self.checkpoints.between.of(partition)
            wanted = [one for one in between if one >= max(mine.first_mark, mine.start.batch)]
            found = sorted({*found, *(one for one in wanted if self.checkpoints.at(partition, one) is None)})
        own = mine.own_mark
        if own is not None and self.checkpoints.outbox_from(partition, own) is None and self.with_outbox(partition):
            found = sorted({*found, own})  # also where it saved there before outboxes were part of it
        return tuple(found)

    def skips_for(self, partition: PartitionId) -> dict[BatchId, Quarantined]:
        """Return the rows that a partition leaves out of the batches after its frontier."""
        decided = self.quarantined.get(partition)
        if not decided:
            return {}
        return {batch: one for batch, one in decided.items() if batch > self.partitions[partition].frontier}

    def with_outbox(self, partition: PartitionId) -> bool:
        """Whether a partition's snapshots hold its outbox."""
        return self.buffering or partition in self.crossing or not self.graph.deterministic(partition)

    def unstored_tail(self) -> dict[SegmentId, int]:
        """Return how many batches each segment has sent to others that no snapshot of the line holds yet."""
        frontiers = {p: one.frontier for p, one in self.partitions.items()}
        return unstored_tail(self.graph, self.segments, self.checkpoints.line, frontiers)

    # -- written down --------------------------------------------------------------------------------------------------

    def written(self) -> dict[str, object]:
        """Return what a driver that starts again needs, as plain values; it is on disk before any effect is done."""
        return {
            "checkpoints": self.checkpoints.written(),
            "placement": {str(p): node for p, node in self.placement.items()},
            "buffering": self.buffering,
            "published": {str(p): batch for p, batch in self.published.items()},
            "parked": {str(query): one.written() for query, one in self.parked.items()},
            "requests": self.requests,
            "quarantined": written_decisions(self.quarantined),
            "tentative": self.branches.written(),
            "tentative_choices": self.branches.written_choices(),
            "plan": self.plan.written(),
            "dropped": sorted(map(str, self.dropped)),
        }
