"""What coordinator and workers say to each other: the desired state, and reports. Values; runs anywhere.

The coordinator hands out a *desired state*: which partitions run where, from which batch, in which epoch, how far back
they keep their output, at which batches they take snapshots. Workers reconcile with it and *report*. Every message may
be lost, repeated or late: a desired state that is handed out twice, or to two workers at once, changes nothing, and
reports of an earlier epoch do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from shlex import quote
from types import MappingProxyType
from typing import TypeAlias

from holdfast.errors import HoldfastError, one_line
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot
from holdfast.recovery.cluster_state import Start
from holdfast.recovery.events import NodesArrived, NodesLeaving, NodesLost, NodesSilent, RestoreFailed, StateMissing
from holdfast.recovery.quarantine import PoisonRow, Quarantined
from holdfast.runtime.blocks import Block, in_messages
from holdfast.runtime.detection import SelfCheck
from holdfast.runtime.fetches import CodeChosen, Fetched, Fetching, Restored
from holdfast.runtime.io.file_ranges import RangesRead
from holdfast.runtime.io.sinks import StagedRows
from holdfast.runtime.times import Watermark

REPORT_BYTES = 64 << 20
"""With more than this in a report, a sink's next batches come with the next one."""

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
    """Whether it must not process."""
    parked: bool = False
    """Whether its own query is parked: what it has for its sink stays where it is. Others may still need it."""
    attempt: int = 0
    """Which attempt at a batch that failed this is: one that has failed is not made again before the next."""
    skips: Mapping[BatchId, Quarantined] = field(default_factory=dict)
    """Rows of its next batches that it leaves out, because that was decided and logged."""
    checks: tuple[tuple[BatchId, tuple[int, ...]], ...] = ()
    """Of a source that is read in place: checksums of its ranges in batches that it reads again."""
    replica: bool = False
    """Whether it is a second copy: it keeps what it makes to itself, saves nothing, and completes no batch after
    `through`, the last one that its primary is known to have completed."""
    regenerate: Mapping[PartitionId, BatchId] = field(default_factory=dict)
    """Senders that no longer have what it needs next, and the last batch that they lack: it gets the blocks up to it
    from regenerators in its own process, and requests none of them."""
    limit: BatchId | None = None
    """The last batch that its senders send it: what comes over a held edge waits for a checkpoint. None: any."""


@dataclass(frozen=True, slots=True)
class BranchAssignment:
    """What the branch of a partition is to do, where its clean line or its stand-in is: see `worker/branching.py`."""

    holes: tuple[PartitionId, ...]
    """Its senders that give nothing: their barriers are forged."""
    through: BatchId
    """The last batch of the log."""
    out: BatchId | None = None
    """The last batch that is out, of an output partition whose query is tentative; None: its sink gets nothing."""


@dataclass(frozen=True, slots=True)
class StandInAssignment:
    """Where the branch of a partition runs that is lost and waits for a node, and what it begins with."""

    node: NodeId
    start: Start
    skips: Mapping[BatchId, Quarantined] = field(default_factory=dict)
    """Rows of the batches after its start that it leaves out, because that was decided and logged."""


@dataclass(frozen=True, slots=True)
class RegeneratorAssignment:
    """What a regenerator of a partition starts from, wherever one runs: see `worker/regenerating.py`."""

    start: Start
    through: BatchId
    """The last batch that it may read of its source's log; without meaning for other partitions."""
    skips: Mapping[BatchId, Quarantined] = field(default_factory=dict)
    """Rows that are left out, of all batches that it makes again."""
    checks: tuple[tuple[BatchId, tuple[int, ...]], ...] = ()
    """Of a source that is read in place: checksums of its ranges, in the batches that are read next."""
    since: BatchId = NOTHING
    """The batch after which `checks` begin. A process that is not so far yet reads nothing of its source: it would
    compare it with nothing."""


SourceWatermarks: TypeAlias = Mapping[OperatorId, tuple[tuple[BatchId, int], ...]]
"""Of sources: batches of the log, in order, and the watermark after each."""


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
    copies: Mapping[PartitionId, PartitionAssignment] = field(default_factory=dict)
    """Second copies of partitions, on other nodes than their primaries."""
    branches: Mapping[PartitionId, BranchAssignment] = field(default_factory=dict)
    """Partitions that have a branch: beside their clean line, where that is, or as a stand-in."""
    stand_ins: Mapping[PartitionId, StandInAssignment] = field(default_factory=dict)
    """Those of them that are lost, and what stands in for them."""
    watermarks: SourceWatermarks = field(default_factory=dict)
    """Where the watermarks of sources stand after recent batches of the log, while there are branches: forged barriers
    carry them. A source of which that is not known is left out."""
    regenerators: Mapping[PartitionId, RegeneratorAssignment] = field(default_factory=dict)
    """Everything upstream of partitions that return after what was kept for them has been dropped."""

    def on(self, node: NodeId) -> dict[PartitionId, PartitionAssignment]:
        """Return what a node has to do: primaries, and copies of others."""
        found = {p: one for p, one in self.assignments.items() if one.node == node}
        return found | {p: one for p, one in self.copies.items() if one.node == node and p not in found}

    def standing_in_on(self, node: NodeId) -> dict[PartitionId, StandInAssignment]:
        """Return the stand-ins that a node has to run."""
        return {p: one for p, one in self.stand_ins.items() if one.node == node and p in self.branches}


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
    bytes_in: int = 0
    """Bytes of the rows it took, as Arrow has them."""

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
            self.bytes_in + more.bytes_in,
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
    attempt: int = 0
    """Which attempt, as its assignment says."""
    disk_full: bool = False
    """Whether the node could not write it down: its disk is full, and neither operator nor rows are to blame."""
    poison: tuple[PoisonRow, ...] = ()
    """The rows that are to blame, where the operator lets such rows be left out and the others pass without them."""
    all_rows: bool = False
    """Whether these are all rows of the batch: then the cause may well be another."""
    out_of_memory: bool = False
    """Whether its process was ended because it took more memory than it may."""
    row: str = ""
    """The first row that it cannot take, as a short text; empty where none was found. It is in no line of a log."""
    stalled: bool = False
    """Whether its process was ended because the step, or a search of its rows, did not end."""

    @property
    def operator(self) -> OperatorId:
        """The operator that failed."""
        return self.partition.operator

    def __str__(self) -> str:
        return one_line(f"operator {self.operator}, partition {self.partition}, batch {self.batch}: {self.problem}")


class OperatorFailed(HoldfastError):
    """A partition could not process a batch, and its queries stop there; nothing before it is lost."""

    def __init__(self, failed: Failed, parked: Sequence[str] = (), directory: str = "DIRECTORY") -> None:
        """Name operator, partition and batch, the queries that are parked, and what resumes them."""
        self.failed, self.parked = failed, tuple(parked)
        names = ", ".join(parked)
        outputs = dict.fromkeys(one.partition("[")[0] for one in parked)
        commands = " && ".join(f"holdfast resume {quote(directory)} {quote(one)}" for one in outputs)
        super().__init__(
            failed.problem,
            where=f"operator {failed.operator}",
            field=f"partition {failed.partition}, batch {failed.batch}",
            remedy=f"parked: {names}; remove the cause, then run `{commands}`" if parked else None,
        )

    def placed(self, where: str) -> HoldfastError:
        """Return the error as it is: it names its place."""
        return self


@dataclass(frozen=True, slots=True)
class SnapshotStored:
    """A snapshot of a partition is safe."""

    partition: PartitionId
    snapshot: SavedSnapshot
    size: int = field(default=0, compare=False)
    """Bytes that were saved: state and sent blocks. 0: this process does not know it, another one began to save."""
    cpu_seconds: float = field(default=0.0, compare=False)
    """What writing it down took of this process; coding and sending are the agent's."""


@dataclass(frozen=True, slots=True)
class SnapshotNotStored:
    """A snapshot of a partition is not safe, and why; it is tried again."""

    partition: PartitionId
    batch: BatchId
    problem: str
    gone: bool = False
    """The state at this batch is not there any more: it will never be saved."""
    fenced: bool = False
    """The save was refused because somebody saves in a newer epoch: another driver may have the run."""


@dataclass(frozen=True, slots=True)
class SnapshotLost:
    """A snapshot that a partition should start from cannot be retrieved."""

    partition: PartitionId
    snapshot: tuple[BatchId, Epoch]
    problem: str
    regenerating: bool = False
    """Whether a regenerator should start from it, and not the partition itself."""


Answer: TypeAlias = (
    Ready | Missing | Refused | Done | Failed | SnapshotStored | SnapshotNotStored | SnapshotLost | Restored | Fetching
)

# -- reports -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceRead:
    """What a source partition has found in the ranges that it read in place."""

    watermark: Watermark
    """After the last batch that it has completed."""
    batches: tuple[tuple[BatchId, RangesRead], ...] = ()
    """By batch, of those that the coordinator does not know to be completed."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeReport:
    """What a worker has done towards the desired state, since its last report."""

    node: NodeId
    epoch: Epoch
    answers: Sequence[Answer] = ()
    sent: Mapping[NodeId, Sequence[Block]] = field(default_factory=dict)
    """Blocks that consumers on other nodes have not acknowledged; whoever carries them takes them out."""
    outputs: Sequence[Block] = ()
    """Blocks that sinks have not acknowledged, and rows kept aside; those of a branch are marked tentative."""
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
    reads: Mapping[PartitionId, SourceRead] = field(default_factory=dict)
    """What the source partitions have read in place."""
    branch_problems: Mapping[PartitionId, str] = field(default_factory=dict)
    """Members of the branch that have failed, or that a sender here has nothing more for, and why."""
    regenerated: Mapping[PartitionId, BatchId] = field(default_factory=dict)
    """Partitions here that get regenerated blocks, and the last batch that all their regenerators have completed."""


@dataclass(frozen=True, slots=True)
class CycleEnded:
    """The backend has brought a desired state to its workers and has all the reports that come of it."""

    number: int
    """Which desired state."""
    epoch: Epoch
    problem: str | None = None
    """Why it was not brought to an end; what it did is found out by the next."""


@dataclass(frozen=True, slots=True)
class NodesAnswered:
    """Nodes that were declared silent have answered after all: false alarms. They stay lost."""

    nodes: tuple[NodeId, ...]


@dataclass(frozen=True, slots=True)
class DriverSuspected:
    """Most nodes fell silent together, and the driver has looked whether it is cut off itself."""

    nodes: tuple[NodeId, ...]
    check: SelfCheck


Report: TypeAlias = (
    NodesArrived
    | NodesLost
    | NodesSilent
    | NodesLeaving
    | NodesAnswered
    | DriverSuspected
    | CodeChosen
    | NodeReport
    | CycleEnded
)


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
    failed: dict[PartitionId, Failed] = field(default_factory=dict)
    """What failed, the first by batch of each partition."""
    full_disks: dict[NodeId, Failed] = field(default_factory=dict)
    """Nodes that could not write because their disk is full, and what."""
    outbox_bytes: dict[NodeId, int] = field(default_factory=dict)
    kept_from: dict[PartitionId, BatchId] = field(default_factory=dict)
    reads: list[tuple[PartitionId, SourceRead]] = field(default_factory=list)
    copies: dict[PartitionId, BatchId] = field(default_factory=dict)
    """How far the copies are that are in place."""
    copy_measures: list[tuple[PartitionId, Measures]] = field(default_factory=list)
    copy_problems: dict[PartitionId, str] = field(default_factory=dict)
    """Copies that have failed, or whose state is missing, and why: nothing follows from it for their primaries."""
    tentative: list[Block] = field(default_factory=list)
    """Outputs of the branch."""
    branch_problems: dict[PartitionId, str] = field(default_factory=dict)
    regenerated: dict[PartitionId, BatchId] = field(default_factory=dict)
    fetched: dict[PartitionId, Fetched] = field(default_factory=dict)
    fetching: dict[PartitionId, Fetching] = field(default_factory=dict)
    """Of the partitions that were restored from snapshots."""
    _losses: dict[PartitionId, RestoreFailed | StateMissing] = field(default_factory=dict)
    _unregenerated: dict[PartitionId, RestoreFailed] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows that partitions took."""
        return sum(measures.rows_in for _, measures in self.measures)

    @property
    def losses(self) -> list[RestoreFailed | StateMissing]:
        """What is missing, once for each partition; a lost snapshot says more than a missing state."""
        return [*self._unregenerated.values(), *self._losses.values()]

    def add(
        self,
        report: NodeReport,
        placement: Mapping[PartitionId, NodeId],
        copies: Mapping[PartitionId, NodeId] = MappingProxyType({}),
        stand_ins: Mapping[PartitionId, NodeId] = MappingProxyType({}),
        senders: Callable[[PartitionId], Iterable[PartitionId]] = lambda partition: (),
    ) -> None:
        """Add one report; `copies` are where second copies of partitions are, `stand_ins` where those of lost ones.

        What a node says of a member of the branch counts where the member is there, or one of its `senders`.
        """
        branches = {**placement, **stand_ins}
        mine = {p for p, node in copies.items() if node == report.node}
        self.outbox_bytes[report.node] = report.outbox_bytes
        for partition, frontier in report.frontiers.items():
            if placement.get(partition) == report.node:
                self.frontiers[partition] = max(frontier, self.frontiers.get(partition, frontier))
        self.copies |= {p: at for p, at in report.frontiers.items() if p in mine}
        self.kept_from |= {p: at for p, at in report.kept_from.items() if p not in mine}
        self.reads += [(p, read) for p, read in report.reads.items() if placement.get(p) == report.node]
        self.measures += [(p, one) for p, one in report.measures.items() if p not in mine]
        self.copy_measures += [(p, one) for p, one in report.measures.items() if p in mine]
        self.outputs += [block for block in report.outputs if not block.header.tentative]
        here = [one for one in report.outputs if branches.get(one.header.sender) == report.node]
        self.tentative += [block for block in here if block.header.tentative]
        for p, why in report.branch_problems.items():
            if any(branches.get(one) == report.node for one in (p, *senders(p))):
                self.branch_problems[p] = why
        self.regenerated |= {p: at for p, at in report.regenerated.items() if placement.get(p) == report.node}
        self.staged.update(report.staged)
        self.not_staged.update(report.not_staged)
        for answer in report.answers:
            regenerating = isinstance(answer, SnapshotLost) and answer.regenerating
            if answer.partition not in mine or regenerating or isinstance(answer, Refused) or _is_full(answer):
                self._answer(report, answer)
            elif isinstance(answer, Failed | Missing | SnapshotLost):
                self.copy_problems.setdefault(answer.partition, _copy_problem(answer))

    def _answer(self, report: NodeReport, answer: Answer) -> None:
        match answer:
            case SnapshotStored():
                self.stored.append(answer)
            case Restored(partition, _, fetched):
                self.fetched[partition] = fetched
            case Fetching():
                self.fetching[answer.partition] = answer
            case SnapshotNotStored():
                self.not_stored.append(answer)
            case Failed(disk_full=True):
                self.full_disks.setdefault(report.node, answer)
            case Failed():
                earlier = self.failed.get(answer.partition, answer)
                self.failed[answer.partition] = min(earlier, answer, key=lambda one: (-one.attempt, one.batch))
            case SnapshotLost(partition, snapshot, problem, True):
                self._unregenerated[partition] = RestoreFailed(partition, snapshot, report.epoch, problem, True)
            case SnapshotLost(partition, snapshot, problem):
                self._losses[partition] = RestoreFailed(partition, snapshot, report.epoch, problem)
            case Missing(partition):
                self._losses.setdefault(partition, StateMissing(partition, report.node, report.epoch))
            case Refused():
                if self.refused is None or answer.current > self.refused.current:
                    self.refused = answer


def _is_full(answer: Answer) -> bool:
    return isinstance(answer, Failed) and answer.disk_full


def _copy_problem(answer: Failed | Missing | SnapshotLost) -> str:
    """Say why a copy cannot go on."""
    match answer:
        case Failed():
            return str(answer)
        case SnapshotLost(_, _, problem):
            return f"its snapshot cannot be retrieved: {problem}"
        case _:
            return "its state is not on its node"


def in_reports(report: NodeReport, most: int = REPORT_BYTES) -> list[NodeReport]:
    """Divide a report with many rows into several, in the order in which they are to be read; most are one.

    All but the last hold outputs alone. The last has the frontiers, which acknowledge late rows: they come first.
    """
    if sum(block.nbytes for block in report.outputs) <= most:
        return [report]
    *first, last = in_messages(report.outputs, most)
    bare = NodeReport(report.node, report.epoch, outbox_bytes=report.outbox_bytes, staged=report.staged)
    return [*(replace(bare, outputs=part) for part in first), replace(report, outputs=last)]


def merge_reports(
    reports: Sequence[NodeReport],
    placement: Mapping[PartitionId, NodeId],
    copies: Mapping[PartitionId, NodeId] = MappingProxyType({}),
    stand_ins: Mapping[PartitionId, NodeId] = MappingProxyType({}),
    senders: Callable[[PartitionId], Iterable[PartitionId]] = lambda partition: (),
) -> CycleResult:
    """Merge reports; a worker may send several."""
    result = CycleResult()
    for report in reports:
        result.add(report, placement, copies, stand_ins, senders)
    return result
