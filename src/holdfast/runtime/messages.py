"""What coordinator and workers say to each other: the desired state, and reports. Values; runs anywhere.

The coordinator hands out a *desired state*: which partitions run where, from which batch, in which epoch, how far back
they keep their output, at which batches they take snapshots. Workers reconcile with it and *report*. Every message may
be lost, repeated or late: a desired state that is handed out twice, or to two workers at once, changes nothing, and
reports of an earlier epoch do not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.errors import HoldfastError, one_line
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.cluster_state import Start
from holdfast.recovery.events import NodesArrived, NodesLost, NodesSilent, RestoreFailed, StateMissing
from holdfast.runtime.blocks import Block
from holdfast.runtime.io.sinks import StagedRows
from holdfast.runtime.times import Watermark

# -- the desired state -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PartitionAssignment:
    """What one partition is to do."""

    node: NodeId
    start: Start
    """What it starts from, unless it has started since."""
    frontier: BatchId
    """The last batch that it has completed, as far as the coordinator knows."""
    keep_from: BatchId
    """The first batch whose output it keeps."""
    through: BatchId
    """The last batch that it takes from its source's log; without meaning for other partitions."""
    marks: tuple[BatchId, ...] = ()
    """Batches at which it takes a snapshot."""
    durable: frozenset[BatchId] = frozenset()
    """Those of them whose snapshots are whole and durable."""
    follows: SavedSnapshot | None = None
    """Its last snapshot: the next one may hold only what has changed since."""
    with_outbox: bool = False
    forgotten: int = 0
    """Part of the names of its snapshots: one that was forgotten is never used again."""
    paused: bool = False


@dataclass(frozen=True, slots=True)
class DesiredState:
    """What holds for every worker, until the next one is handed out."""

    run: str
    """Names the run: its snapshots are apart from those of every other run."""
    number: int
    """Counts the desired states of a driver."""
    epoch: Epoch
    assignments: Mapping[PartitionId, PartitionAssignment]
    """The partitions that have a node."""
    published: Mapping[PartitionId, BatchId]
    """The last batch of each output partition that has reached its sink."""
    max_batches: int | None = None
    """Batches that a partition processes at most before it reports; None: all that are complete."""
    time_budget: float = 1e9
    """No partition begins a second batch after so many seconds: the others report no later."""
    lag: int = 0
    """How many batches the last of the placed partitions is behind the log: under load a cycle has fewer exchanges.

    Partitions that are being restored count: cycles of one exchange are short, and a restore takes several.
    """
    report_outbox_bytes: bool = False
    """Whether workers report how much their outboxes hold."""
    forget: tuple[str, ...] = ()
    """Snapshots to drop."""
    trim_outboxes: bool = False
    """Whether workers trim their outboxes now, and report from which batch on they hold rows: looking costs."""
    generation: int = 0
    """The layout of the run: part of the key of every output."""


# -- what a partition host answers: values, never exceptions -----------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The partition is here, with everything up to its frontier, which may be past the logged one."""

    partition: PartitionId
    frontier: BatchId


@dataclass(frozen=True, slots=True)
class Missing:
    """The node is right, but the state at this batch is not here, or damaged: the partition has failed."""

    partition: PartitionId
    batch: BatchId


@dataclass(frozen=True, slots=True)
class Refused:
    """What was asked is of an epoch that is over."""

    partition: PartitionId
    epoch: Epoch
    current: Epoch


@dataclass(frozen=True, slots=True)
class Measures:
    """What one partition's batch took."""

    rows_in: int = 0
    rows_out: int = 0
    late_rows: int = 0
    """Rows kept aside: late, or without an event time."""
    seconds: float = 0.0
    state_bytes: int = 0
    written_bytes: int = 0
    """Bytes of state that this batch added or wrote again."""
    cpu_seconds: float = 0.0
    """Its share of its task's CPU, by rows."""

    def plus(self, more: Measures) -> Measures:
        """Return the sums of both, and the later size of the state."""
        return Measures(
            self.rows_in + more.rows_in,
            self.rows_out + more.rows_out,
            self.late_rows + more.late_rows,
            self.seconds + more.seconds,
            more.state_bytes,
            self.written_bytes + more.written_bytes,
            self.cpu_seconds + more.cpu_seconds,
        )


@dataclass(frozen=True, slots=True)
class Done:
    """The partition has completed a batch."""

    partition: PartitionId
    batch: BatchId
    watermark: Watermark
    measures: Measures = field(default_factory=Measures)
    tentative: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch could not be processed: nothing was written, the partition is where it was."""

    partition: PartitionId
    batch: BatchId
    problem: str

    @property
    def operator(self) -> OperatorId:
        """The operator that failed."""
        return self.partition.operator

    def __str__(self) -> str:
        return one_line(f"operator {self.operator}, partition {self.partition}, batch {self.batch}: {self.problem}")


class OperatorFailed(HoldfastError):
    """A partition could not process a batch, and the run stops there; nothing before it is lost."""

    def __init__(self, failed: Failed) -> None:
        """Name operator, partition and batch."""
        self.failed = failed
        super().__init__(
            failed.problem,
            where=f"operator {failed.operator}",
            field=f"partition {failed.partition}, batch {failed.batch}",
        )

    def placed(self, where: str) -> HoldfastError:
        """Return the error as it is: it names its place."""
        return self


@dataclass(frozen=True, slots=True)
class SnapshotStored:
    """A snapshot of a partition is safe."""

    partition: PartitionId
    snapshot: SavedSnapshot


@dataclass(frozen=True, slots=True)
class SnapshotNotStored:
    """A snapshot of a partition is not safe, and why; it is tried again."""

    partition: PartitionId
    batch: BatchId
    problem: str
    gone: bool = False
    """The state at this batch is not there any more: it will never be saved."""


@dataclass(frozen=True, slots=True)
class SnapshotLost:
    """A snapshot that a partition should start from cannot be retrieved."""

    partition: PartitionId
    snapshot: tuple[BatchId, Epoch]
    problem: str


Answer: TypeAlias = Ready | Missing | Refused | Done | Failed | SnapshotStored | SnapshotNotStored | SnapshotLost

# -- reports -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class NodeReport:
    """What a worker has done towards the desired state, since its last report."""

    node: NodeId
    epoch: Epoch
    answers: Sequence[Answer] = ()
    sent: Mapping[NodeId, Sequence[Block]] = field(default_factory=dict)
    """Blocks that consumers on other nodes have not acknowledged; whoever carries them takes them out."""
    outputs: Sequence[Block] = ()
    """Blocks that sinks have not acknowledged, and rows kept aside."""
    frontiers: Mapping[PartitionId, BatchId] = field(default_factory=dict)
    """The partitions whose state is here, and the last batch that each has completed."""
    measures: Mapping[PartitionId, Measures] = field(default_factory=dict)
    outbox_bytes: int = 0
    kept_from: Mapping[PartitionId, BatchId] = field(default_factory=dict)
    """The first batch of whose output rows are here, of each partition; where it was asked for."""
    staged: Mapping[tuple[PartitionId, BatchId], StagedRows] = field(default_factory=dict)
    """Outputs whose rows the node has staged for their sink; their blocks come without rows."""
    not_staged: Mapping[OperatorId, str] = field(default_factory=dict)
    """Outputs whose rows the node should have staged and could not, and why; their blocks have the rows."""


@dataclass(frozen=True, slots=True)
class CycleEnded:
    """The backend has brought a desired state to its workers and has all the reports that come of it."""

    number: int
    """Which desired state."""
    epoch: Epoch
    problem: str | None = None
    """Why it was not brought to an end; what it did is found out by the next."""


Report: TypeAlias = NodesArrived | NodesLost | NodesSilent | NodeReport | CycleEnded


@dataclass(slots=True)
class CycleResult:
    """What the reports of several workers come to."""

    frontiers: dict[PartitionId, BatchId] = field(default_factory=dict)
    """How far partitions are, where they should be: what a node reports of other nodes' partitions does not count."""
    measures: list[tuple[PartitionId, Measures]] = field(default_factory=list)
    outputs: list[Block] = field(default_factory=list)
    staged: dict[tuple[PartitionId, BatchId], StagedRows] = field(default_factory=dict)
    not_staged: dict[OperatorId, str] = field(default_factory=dict)
    stored: list[SnapshotStored] = field(default_factory=list)
    not_stored: list[SnapshotNotStored] = field(default_factory=list)
    refused: Refused | None = None
    """The refusal with the highest epoch."""
    failed: Failed | None = None
    """Of the operators that failed, the first by batch."""
    outbox_bytes: dict[NodeId, int] = field(default_factory=dict)
    kept_from: dict[PartitionId, BatchId] = field(default_factory=dict)
    _losses: dict[PartitionId, RestoreFailed | StateMissing] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows that partitions took."""
        return sum(measures.rows_in for _, measures in self.measures)

    @property
    def losses(self) -> list[RestoreFailed | StateMissing]:
        """What is missing, once for each partition; a lost snapshot says more than a missing state."""
        return list(self._losses.values())

    def add(self, report: NodeReport, placement: Mapping[PartitionId, NodeId]) -> None:
        """Add one report."""
        self.outbox_bytes[report.node] = report.outbox_bytes
        for partition, frontier in report.frontiers.items():
            if placement.get(partition) == report.node:
                self.frontiers[partition] = max(frontier, self.frontiers.get(partition, frontier))
        self.kept_from.update(report.kept_from)
        self.measures += report.measures.items()
        self.outputs += report.outputs
        self.staged.update(report.staged)
        self.not_staged.update(report.not_staged)
        for answer in report.answers:
            self._answer(report, answer)

    def _answer(self, report: NodeReport, answer: Answer) -> None:
        match answer:
            case SnapshotStored():
                self.stored.append(answer)
            case SnapshotNotStored():
                self.not_stored.append(answer)
            case Failed():
                earlier = self.failed
                if earlier is None or (answer.batch, answer.partition) < (earlier.batch, earlier.partition):
                    self.failed = answer
            case SnapshotLost(partition, snapshot, problem):
                self._losses[partition] = RestoreFailed(partition, snapshot, report.epoch, problem)
            case Missing(partition):
                self._losses.setdefault(partition, StateMissing(partition, report.node, report.epoch))
            case Refused():
                if self.refused is None or answer.current > self.refused.current:
                    self.refused = answer


def merge_reports(reports: Sequence[NodeReport], placement: Mapping[PartitionId, NodeId]) -> CycleResult:
    """Merge reports; a worker may send several."""
    result = CycleResult()
    for report in reports:
        result.add(report, placement)
    return result
