"""What the recovery machine asks for. The log is written before any of it is done. Values; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.recovery.checkpoints import SavedSnapshot
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
    """A checkpoint is global: outboxes need not reach back further; the batch log not beyond the older durable one."""

    batch: BatchId
    durable: BatchId
    inputs_from: BatchId
    """The batch after which the batch log must have rows."""


@dataclass(frozen=True, slots=True)
class Forget:
    """Drop snapshots that nobody needs any more."""

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
    | Forget
    | Changed
    | RecoveryEnded
    | Waiting
)
