"""What the recovery machine knows of nodes, partitions and checkpoints. Pure.

Only the machine changes it. The coordinator derives the desired state of the workers from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.recovery.checkpoints import FIRST, NO_EPOCH, NOTHING, Checkpoints, SavedSnapshot
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.states import LIVE_STATES, History, PartitionState
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
    kept_from: BatchId = FIRST
    """The first batch that its outbox surely has: no desired state has ever let it drop that one."""
    first_mark: BatchId = NOTHING
    """It saves at marks from this one on."""
    forgotten: int = 0
    """How often snapshots of it were forgotten: those saved from then on have other names."""

    @property
    def state(self) -> PartitionState:
        """Where it stands."""
        return self.history.state

    def begin(self, epoch: Epoch, snapshot: SavedSnapshot | None, chain: tuple[SavedSnapshot, ...]) -> None:
        """Start anew: from a snapshot, by the chain of those it needs; from nothing where there is none."""
        at = batch_of(snapshot)
        self.start = Start(epoch, at, chain)
        reach = at + 1 if snapshot is None or snapshot.outbox_from is None else min(snapshot.outbox_from, at + 1)
        self.kept_from = BatchId(reach)
        self.frontier = at


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
    ) -> None:
        """Begin with every partition lost, at the last global checkpoint: a start is a recovery of everything."""
        self.graph = graph
        self.settings = settings or RecoverySettings()
        self.epoch = epoch
        self.checkpoints = checkpoints or Checkpoints(graph.order)
        at = self.checkpoints.global_batch
        self.nodes: dict[NodeId, float] = {}
        """The nodes there are, with their capacity."""
        self.partitions = {
            p: PartitionStatus(History(p), Start(epoch, at, ()), None, at, BatchId(at + 1)) for p in graph.order
        }
        self.published: dict[PartitionId, BatchId] = dict.fromkeys(graph.outputs, at)
        """The last batch of each output partition that is out."""
        self.logged = at
        self.buffering = False
        """Whether every outbox is kept to the checkpoint."""
        self.recovering = False
        self.awaited = 0
        """Nodes that were asked for and have not come."""
        self.losses = self.settings.incremental_after_losses
        """Nodes, and states of live ones, lost since the last global checkpoint; at a start everything is."""
        self.paused: set[PartitionId] = set()
        """Queries that are held back."""
        self.wanted: dict[PartitionId, NodeId] = {}
        """Where people want lost partitions to go; it holds where the plan's bounds allow it."""
        self.costs: dict[PartitionId, float] = {}
        """What partitions were measured to cost; none: as the topology says."""

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

    def available(self, query: PartitionId) -> bool:
        """Whether a query is whole: none of its partitions is lost or being restored."""
        return all(self.partitions[p].state in LIVE_STATES for p in self.graph.members(query))

    def keep_from(self) -> dict[PartitionId, BatchId]:
        """Return how far back each placed partition's outbox is kept; from now on nothing before it is counted on."""
        found = {}
        safe = BatchId(self.checkpoints.global_batch + 1)
        for p in self.in_state(LIVE_STATES):
            mine = self.partitions[p]
            # Not beyond where it is known to stand: rows that it kept aside there may not be out yet.
            needed = [BatchId(mine.frontier + 1)]
            if p in self.published:
                needed.append(BatchId(self.published[p] + 1))
            for consumer in self.graph.consumers(p):
                other = self.partitions[consumer]
                if self.buffering or p in self.settings.backup_partitions:
                    needed.append(min(safe, BatchId(other.frontier + 1)))
                elif other.state is not PartitionState.LOST:
                    needed.append(BatchId(other.frontier + 1))
            mine.kept_from = max(mine.kept_from, min(needed))
            found[p] = mine.kept_from
        return found

    def marks_for(self, partition: PartitionId) -> tuple[BatchId, ...]:
        """Return the batches at which a partition is to save, those that are safe already left out."""
        mine = self.partitions[partition]
        return tuple(
            mark
            for mark in self.checkpoints.marks
            if mark >= mine.first_mark and mark >= mine.start.batch and not self.checkpoints.has(partition, mark)
        )

    def with_outbox(self, partition: PartitionId) -> bool:
        """Whether a partition's snapshots hold its outbox."""
        return self.buffering or not self.graph.deterministic(partition)

    def paused_next(self, dead: Set[PartitionId]) -> Set[PartitionId]:
        """Return the queries to pause next: first those that give nothing now, then the least valuable live one."""
        if not dead <= self.paused:
            return dead
        topology = self.graph.topology
        live = [query for query in self.graph.outputs if query not in self.paused]
        return {min(live, key=lambda query: (int(topology.priority[topology.index(query)]), query))} if live else set()

    # -- written down --------------------------------------------------------------------------------------------------

    def written(self) -> dict[str, object]:
        """Return what a driver that starts again needs, as plain values; it is on disk before any effect is done."""
        return {
            "checkpoints": self.checkpoints.written(),
            "placement": {str(p): node for p, node in self.placement.items()},
            "buffering": self.buffering,
            "published": {str(p): batch for p, batch in self.published.items()},
        }
