"""The events that the recovery machine takes. Values; times are seconds on the caller's clock. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.cluster_state import ParkedQuery
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.quarantine import PoisonRow
from holdfast.recovery.segments import MarkedSegments


@dataclass(frozen=True, slots=True)
class NodesArrived:
    """Nodes are there, each with a capacity in the unit of the costs."""

    nodes: Mapping[NodeId, float]


@dataclass(frozen=True, slots=True)
class NodesLost:
    """Nodes are gone, with everything on them."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class NodesSilent:
    """Nodes do not answer. They count as lost; what they still write is fenced off by the epoch."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class NodesLeaving:
    """Nodes will go before long, and still work: their cluster manager has said so."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class StateMissing:
    """A node answers that it has not what a partition needs to go on."""

    partition: PartitionId
    node: NodeId
    epoch: Epoch


@dataclass(frozen=True, slots=True)
class PartitionsReported:
    """Workers have reported: how far partitions are, and how much all outboxes hold."""

    epoch: Epoch
    logged: BatchId
    """The last batch in the source logs."""
    frontiers: Mapping[PartitionId, BatchId]
    restored: frozenset[PartitionId] = frozenset()
    """Partitions whose state has been put in place on their node."""
    published: Mapping[PartitionId, BatchId] = field(default_factory=dict)
    kept_bytes: int = 0
    copies: Mapping[PartitionId, BatchId] = field(default_factory=dict)
    """How far the copies are whose state is in place."""
    copy_problems: Mapping[PartitionId, str] = field(default_factory=dict)
    """Copies that have failed, and why."""
    tentative: Mapping[PartitionId, BatchId] = field(default_factory=dict)
    """The last batch of each query that is out as tentative."""
    branch_problems: Mapping[PartitionId, str] = field(default_factory=dict)
    """Members of the branch that have failed, and why."""
    inherited: BatchId | None = None
    """The last batch that earlier drivers have logged; None: one of them may still log another."""


@dataclass(frozen=True, slots=True)
class CheckpointMarked:
    """Partitions are to save at this batch, which none has passed yet."""

    batch: BatchId
    durable: bool
    segments: MarkedSegments = None
    """Whose partitions; None: all."""
    between: frozenset[OperatorId] = frozenset()
    """Operators that save there, too, between two checkpoints of their segments (`intermediate`)."""


@dataclass(frozen=True, slots=True)
class CheckpointGivenUp:
    """A partition has passed this batch and cannot save at it any more: it will never be a checkpoint."""

    batch: BatchId
    partition: PartitionId | None = None
    """Which partition; None: it does not matter, or is not known."""


@dataclass(frozen=True, slots=True)
class CheckpointStored:
    """A snapshot of a partition is safe."""

    partition: PartitionId
    snapshot: SavedSnapshot


@dataclass(frozen=True, slots=True)
class RestoreFailed:
    """A snapshot cannot be brought back: too few of its fragments are left, and no durable copy."""

    partition: PartitionId
    snapshot: tuple[BatchId, Epoch]
    epoch: Epoch
    why: str
    regenerating: bool = False
    """Whether a regenerator was to start from it, and not the partition itself."""


@dataclass(frozen=True, slots=True)
class CostsMeasured:
    """What partitions need, as measured; plans from now on use it."""

    costs: Mapping[PartitionId, float]
    replan: bool = False
    """Whether what is lost is planned at once with them, and not at the next loss or arrival."""


@dataclass(frozen=True, slots=True)
class QueriesParked:
    """Queries cannot go on: an operator, a row or a sink of theirs fails, and has been tried often enough."""

    queries: Mapping[PartitionId, ParkedQuery]


@dataclass(frozen=True, slots=True)
class QueriesResumed:
    """Parked queries are to go on."""

    queries: tuple[PartitionId, ...]
    request: int = -1
    """The number of the request in the run's storage that says so; -1: it came another way."""


@dataclass(frozen=True, slots=True)
class TentativeChosen:
    """People have said that queries give tentative outputs, or none, whatever their application says."""

    queries: tuple[PartitionId, ...]
    on: bool
    request: int = -1
    """The number of the request in the run's storage."""


@dataclass(frozen=True, slots=True)
class ReplicasPlanned:
    """Other partitions than before are to have a second copy: rates have changed, or the budget has."""

    replicas: tuple[PartitionId, ...]
    """The most valuable first."""
    why: str
    at_once: bool = False
    """Whether copies that are no longer planned go at once, and not when the others are level."""


@dataclass(frozen=True, slots=True)
class RowsQuarantined:
    """Rows of a batch are to be left out from now on, by every execution: an operator cannot take them."""

    partition: PartitionId
    batch: BatchId
    rows: tuple[PoisonRow, ...]
    at: float
    """Seconds since 1970, by the driver's clock."""


@dataclass(frozen=True, slots=True)
class PlanChosen:
    """Another plan is to be executed from the next checkpoint on that is complete under both."""

    plan: ExecutedPlan


@dataclass(frozen=True, slots=True)
class Timer:
    """Time has passed; nodes that were requested may not have arrived."""


Event: TypeAlias = (
    NodesArrived
    | NodesLost
    | NodesSilent
    | NodesLeaving
    | StateMissing
    | PartitionsReported
    | CheckpointMarked
    | CheckpointGivenUp
    | CheckpointStored
    | RestoreFailed
    | CostsMeasured
    | QueriesParked
    | QueriesResumed
    | ReplicasPlanned
    | RowsQuarantined
    | TentativeChosen
    | PlanChosen
    | Timer
)
