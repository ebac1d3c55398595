"""What the recovery machine asks for. The log is written before any of it is done. Values; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId, SegmentId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.cluster_state import ParkedQuery
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.quarantine import PoisonRow
from holdfast.recovery.states import Cause, PartitionState


@dataclass(frozen=True, slots=True)
class Fence:
    """Begin an epoch: what earlier ones still write is refused from now on. Comes first: log it."""

    epoch: Epoch
    why: str


@dataclass(frozen=True, slots=True)
class Place:
    """Run partitions on nodes; where each starts is in its assignment."""

    placement: tuple[tuple[PartitionId, NodeId], ...]
    queries: tuple[PartitionId, ...]
    """The queries that are whole again with them."""
    priority: int
    left: tuple[PartitionId, ...]
    """Lost partitions for which there is no room yet."""


@dataclass(frozen=True, slots=True)
class PlanRejected:
    """A plan did not pass the check, and does not run: a fault of the planner."""

    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class RollBack:
    """Roll live partitions back to a batch; the log and the outboxes that reach back replay what came after."""

    partitions: tuple[PartitionId, ...]
    batch: BatchId


@dataclass(frozen=True, slots=True)
class Keep:
    """Change how far back outboxes are kept: all to the checkpoint, or as the plan says."""

    everything: bool


@dataclass(frozen=True, slots=True)
class RequestNodes:
    """Ask for so many nodes."""

    count: int


@dataclass(frozen=True, slots=True)
class GlobalCheckpoint:
    """A set of partitions has moved its checkpoint to a batch: outboxes and the batch log are trimmed accordingly."""

    batch: BatchId
    durable: BatchId
    """The last batch that the durable checkpoint of every partition covers."""
    inputs_from: BatchId
    """The batch after which the batch log must have rows."""
    without: tuple[PartitionId, ...] = ()
    """Partitions that wait, and whose checkpoint stays where it is; none: the checkpoint is global."""
    segments: tuple[SegmentId, ...] = ()
    """The segments whose checkpoint moved, where there are several."""


@dataclass(frozen=True, slots=True)
class IntermediateSnapshots:
    """Operators have saved between two checkpoints of their segment: for those who watch."""

    batch: BatchId
    operators: tuple[OperatorId, ...]


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop snapshots that are not needed any more."""

    snapshots: tuple[tuple[PartitionId, SavedSnapshot], ...]


@dataclass(frozen=True, slots=True)
class Changed:
    """A partition's state has changed: for those who watch."""

    partition: PartitionId
    before: PartitionState
    after: PartitionState
    cause: Cause
    node: NodeId | None


@dataclass(frozen=True, slots=True)
class Parked:
    """A query is parked, and keeps its place; log it."""

    query: PartitionId
    why: ParkedQuery


@dataclass(frozen=True, slots=True)
class Resumed:
    """A parked query goes on; log it."""

    query: PartitionId


@dataclass(frozen=True, slots=True)
class LeaveOut:
    """Leave rows of a batch out, in this and every later execution; log it before the batch is tried again."""

    partition: PartitionId
    batch: BatchId
    rows: tuple[PoisonRow, ...]


@dataclass(frozen=True, slots=True)
class CopyPlaced:
    """A second copy of a partition is built on a node, from the state at a batch."""

    partition: PartitionId
    node: NodeId
    batch: BatchId


@dataclass(frozen=True, slots=True)
class CopyLevel:
    """A copy has caught up with its primary."""

    partition: PartitionId
    node: NodeId
    batch: BatchId


@dataclass(frozen=True, slots=True)
class CopyDropped:
    """A copy is given up, and why; another is built where one is wanted."""

    partition: PartitionId
    node: NodeId
    why: str


@dataclass(frozen=True, slots=True)
class CopyLeftOut:
    """There is no place for a copy that is wanted, and why; it is built when there is."""

    partition: PartitionId
    why: str


@dataclass(frozen=True, slots=True)
class ReplicasChanged:
    """The plan of replicas has changed: who gets a copy, who has one no longer, and why."""

    start: tuple[PartitionId, ...]
    stop: tuple[PartitionId, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Promoted:
    """A copy has taken its primary's place, with everything up to a batch."""

    partition: PartitionId
    before: NodeId | None
    """Where the primary was."""
    node: NodeId
    batch: BatchId
    why: str


@dataclass(frozen=True, slots=True)
class NodesEvacuated:
    """Nodes that will go have nothing left on them: their tasks may end."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class WentTentative:
    """A query gives tentative outputs from now on, or others than before; log it before any of them is published."""

    query: PartitionId
    since: BatchId
    """The first batch that may be out as tentative."""
    fidelity: float
    """As predicted for what is missing now."""
    without: tuple[PartitionId, ...]
    """The partitions that give nothing."""
    stand_in: NodeId | None = None
    """The node on which something stands in for its output partition; None: that is live."""


@dataclass(frozen=True, slots=True)
class BranchChanged:
    """Other partitions than before have a branch, or other nodes stand-ins: workers are to be told."""

    members: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class BranchEnded:
    """A query gives no more tentative outputs: it is whole again, cannot, or its branch failed (and why)."""

    query: PartitionId
    problem: str | None


@dataclass(frozen=True, slots=True)
class Corrected:
    """Final rows have replaced all tentative rows of a query; log it."""

    query: PartitionId
    since: BatchId
    through: BatchId
    """The last batch that was out as tentative; before `since`: none was."""


@dataclass(frozen=True, slots=True)
class PlanAwaited:
    """A plan was chosen, and waits for a checkpoint that is complete under it and the one in force; log it."""

    plan: ExecutedPlan


@dataclass(frozen=True, slots=True)
class PlanTookEffect:
    """A plan is executed from a batch on, at which every partition has its checkpoint; log it."""

    plan: ExecutedPlan
    batch: BatchId


@dataclass(frozen=True, slots=True)
class KeptNoMore:
    """What is kept for partitions that wait has reached its bound, and is dropped: it will be regenerated. Log it."""

    partitions: tuple[PartitionId, ...]
    kept_bytes: int
    """What all outboxes held."""


@dataclass(frozen=True, slots=True)
class BuffersFull:
    """Outboxes have reached their bound, and these queries pause until they hold less, or nothing waits. Log it."""

    queries: tuple[PartitionId, ...]
    """None: outboxes grow beyond it, and no query is left whose pause would bound them."""
    kept_bytes: int
    """What all outboxes held."""


@dataclass(frozen=True, slots=True)
class Regenerated:
    """Everything is kept again for partitions that have returned."""

    partitions: tuple[PartitionId, ...]


@dataclass(frozen=True, slots=True)
class RecoveryEnded:
    """Everything is back, and a global checkpoint covers it."""

    batch: BatchId


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nodes that were asked for have not come, and something waits for them."""

    missing: int
    partitions: tuple[PartitionId, ...]


Effect: TypeAlias = (
    Fence
    | Place
    | PlanRejected
    | RollBack
    | Keep
    | RequestNodes
    | GlobalCheckpoint
    | IntermediateSnapshots
    | Forget
    | Changed
    | Parked
    | Resumed
    | LeaveOut
    | CopyPlaced
    | CopyLevel
    | CopyDropped
    | CopyLeftOut
    | ReplicasChanged
    | Promoted
    | NodesEvacuated
    | WentTentative
    | BranchChanged
    | BranchEnded
    | Corrected
    | PlanAwaited
    | PlanTookEffect
    | KeptNoMore
    | BuffersFull
    | Regenerated
    | RecoveryEnded
    | Waiting
)
