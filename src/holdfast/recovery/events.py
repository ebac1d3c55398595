"""The events that the recovery machine takes. Values; times are seconds on the caller's clock. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.recovery.checkpoints import SavedSnapshot


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


@dataclass(frozen=True, slots=True)
class CheckpointMarked:
    """Partitions are to save at this batch, which none has passed yet."""

    batch: BatchId
    durable: bool


@dataclass(frozen=True, slots=True)
class CheckpointGivenUp:
    """A partition has passed this batch and cannot save at it any more: it will never be a checkpoint."""

    batch: BatchId


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


@dataclass(frozen=True, slots=True)
class CostsMeasured:
    """What partitions need, as measured; plans from now on use it."""

    costs: Mapping[PartitionId, float]


@dataclass(frozen=True, slots=True)
class Timer:
    """Time has passed; nodes that were requested may not have arrived."""


Event: TypeAlias = (
    NodesArrived
    | NodesLost
    | NodesSilent
    | StateMissing
    | PartitionsReported
    | CheckpointMarked
    | CheckpointGivenUp
    | CheckpointStored
    | RestoreFailed
    | CostsMeasured
    | Timer
)
