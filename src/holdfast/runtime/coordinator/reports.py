"""What the reports of a cycle's nodes come to, taken together. Pure; runs on the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.recovery.events import RestoreFailed, StateMissing
from holdfast.runtime.answers import Failed, Measures, Missing, Refused
from holdfast.runtime.blocks import Block
from holdfast.runtime.io.parquet_sink import Staged
from holdfast.runtime.messages import Lost, NodeReport, NotSaved, Stored


@dataclass(slots=True)
class CycleResult:
    """What all nodes said."""

    frontiers: dict[PartitionId, BatchId] = field(default_factory=dict)
    """How far partitions are, where they should be: what a node says of others' partitions does not count."""
    measures: list[tuple[PartitionId, Measures]] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    staged: dict[tuple[PartitionId, BatchId], Staged] = field(default_factory=dict)
    """Outputs whose rows nodes have written."""
    not_staged: dict[OperatorId, str] = field(default_factory=dict)
    """Outputs whose rows nodes could not write, and why."""
    stored: list[Stored] = field(default_factory=list)
    not_saved: list[NotSaved] = field(default_factory=list)
    refused: Refused | None = None
    failed: Failed | None = None
    """Of the operators that failed, the first by batch."""
    kept_bytes: int = 0
    """What outboxes hold on all nodes."""
    kept_from: dict[PartitionId, BatchId] = field(default_factory=dict)
    """From which batch on they do."""
    _troubles: dict[PartitionId, RestoreFailed | StateMissing] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows that partitions took."""
        return sum(measures.rows_in for _, measures in self.measures)

    @property
    def troubles(self) -> list[RestoreFailed | StateMissing]:
        """What is missing, once for each partition; a lost snapshot says more than a missing state."""
        return list(self._troubles.values())

    def _hear(self, report: NodeReport) -> None:
        for answer in report.answers:
            match answer:
                case Stored():
                    self.stored.append(answer)
                case NotSaved():
                    self.not_saved.append(answer)
                case Failed():
                    earlier = self.failed
                    if earlier is None or (answer.batch, answer.partition) < (earlier.batch, earlier.partition):
                        self.failed = answer
                case Lost(partition, snapshot, problem):
                    self._troubles[partition] = RestoreFailed(partition, snapshot, report.epoch, problem)
                case Missing(partition):
                    self._troubles.setdefault(partition, StateMissing(partition, report.node, report.epoch))
                case Refused():
                    self.refused = self.refused or answer


def merge_reports(reports: Sequence[NodeReport], placement: Mapping[PartitionId, NodeId]) -> CycleResult:
    """Take a cycle's reports together; a node has one for every level."""
    heard = CycleResult()
    kept: dict[NodeId, int] = {}
    for report in reports:
        kept[report.node] = report.kept_bytes
        for partition, frontier in report.frontiers.items():
            if placement.get(partition) == report.node:
                heard.frontiers[partition] = max(frontier, heard.frontiers.get(partition, frontier))
        heard.kept_from.update(report.kept_from)
        heard.measures += report.measures.items()
        heard.blocks += report.blocks
        heard.staged.update(report.staged)
        heard.not_staged.update(report.not_staged)
        heard._hear(report)
    heard.kept_bytes = sum(kept.values())
    return heard
