"""What the machine knows of one partition: where it runs, from what it started, how far it is. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.ids import BatchId, Epoch, NodeId
from holdfast.recovery.checkpoints import FIRST, NOTHING, SavedSnapshot
from holdfast.recovery.states import History, PartitionState


@dataclass(frozen=True, slots=True)
class Start:
    """What a partition starts from: since which epoch, at which batch, by which snapshots (none: from nothing)."""

    epoch: Epoch
    batch: BatchId
    snapshots: tuple[SavedSnapshot, ...]


@dataclass(slots=True)
class Assignment:
    """What the machine knows of one partition."""

    story: History
    start: Start
    node: NodeId | None = None
    frontier: BatchId = NOTHING
    kept_from: BatchId = FIRST
    """The first batch that its outbox surely has: nobody was ever told to drop it."""
    first_mark: BatchId = NOTHING
    """It saves at marks from this one on."""

    @property
    def state(self) -> PartitionState:
        """Where it stands."""
        return self.story.state

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
