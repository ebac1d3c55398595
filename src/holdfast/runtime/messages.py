"""A cycle, as values: what the driver says to all nodes, and what each says back. Runs anywhere.

Everything can be said again: a cycle that ran twice, or on two workers at once, changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.assignments import Start
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.runtime.answers import Answer, Measures
from holdfast.runtime.blocks import Block
from holdfast.runtime.io.parquet_sink import Staged


@dataclass(frozen=True, slots=True)
class Task:
    """What one partition is to do."""

    node: NodeId
    start: Start
    """What it starts from, unless it has since."""
    frontier: BatchId
    """What it has completed, as the driver knows."""
    keep_from: BatchId
    """The first batch whose output it keeps."""
    through: BatchId
    """The last batch it takes from its source's log; of no meaning for others."""
    marks: tuple[BatchId, ...] = ()
    """Batches at which it saves a snapshot."""
    durable: frozenset[BatchId] = frozenset()
    """Those of them whose snapshots are whole and durable."""
    follows: SavedSnapshot | None = None
    """Its last snapshot: the next one may hold only what has changed since."""
    with_outbox: bool = False
    paused: bool = False


@dataclass(frozen=True, slots=True)
class Cycle:
    """What holds in one cycle, for every node alike."""

    run: str
    """Names the run: its snapshots are apart from every other's."""
    number: int
    epoch: Epoch
    tasks: Mapping[PartitionId, Task]
    """The partitions that have a node."""
    published: Mapping[PartitionId, BatchId]
    """What has reached the sink of each output partition."""
    most: int | None = None
    """Batches per partition at most; None: all that are complete."""
    seconds: float = 1e9
    """No batch is begun on a node after so much time at one level."""
    behind: int = 0
    """How many batches the last of the placed partitions is behind the log: under load a cycle takes fewer exchanges.

    Those that are being restored count: cycles of one exchange are short, and a restore takes several.
    """
    count_kept: bool = False
    """Whether nodes say how much their outboxes hold."""
    forget: tuple[str, ...] = ()
    """Snapshots to drop."""
    ask_outboxes: bool = False
    """Whether nodes trim their outboxes now, and say from which batch on they hold rows: looking costs."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A snapshot of a partition is safe."""

    partition: PartitionId
    snapshot: SavedSnapshot


@dataclass(frozen=True, slots=True)
class NotSaved:
    """A snapshot of a partition is not safe, and why; it is tried again."""

    partition: PartitionId
    batch: BatchId
    problem: str
    gone: bool = False
    """The state at this batch is not there any more: this will never be saved."""


@dataclass(frozen=True, slots=True)
class Lost:
    """A snapshot that a partition should start from cannot be brought back."""

    partition: PartitionId
    snapshot: tuple[BatchId, Epoch]
    problem: str


@dataclass(frozen=True, slots=True, eq=False)
class NodeReport:
    """What came of one level of a cycle on one node."""

    node: NodeId
    epoch: Epoch
    answers: Sequence[Answer | Stored | NotSaved | Lost] = ()
    blocks: Sequence[Block] = ()
    """What consumers on other nodes, and sinks, have not acknowledged."""
    frontiers: Mapping[PartitionId, BatchId] = field(default_factory=dict)
    """The partitions whose state is here, and how far they are."""
    measures: Mapping[PartitionId, Measures] = field(default_factory=dict)
    """What partitions took at this level."""
    kept_bytes: int = 0
    kept_from: Mapping[PartitionId, BatchId] = field(default_factory=dict)
    """The first batch of whose output rows are here, of each partition; where it was asked for."""
    staged: Mapping[tuple[PartitionId, BatchId], Staged] = field(default_factory=dict)
    """Outputs whose rows the node has written for their sink; their blocks come without."""
    not_staged: Mapping[OperatorId, str] = field(default_factory=dict)
    """Outputs whose rows it should have written and could not, and why; their blocks have them."""
