"""What a partition host answers: values, never exceptions, so that a task always ends well and says what happened.

Runs anywhere; crosses from nodes to the driver.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from holdfast.errors import HoldfastError, one_line
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.times import Watermark


@dataclass(frozen=True, slots=True)
class Ready:
    """The partition is here, with everything up to its frontier, which may be past the logged one."""

    partition: PartitionId
    frontier: BatchId


@dataclass(frozen=True, slots=True)
class Missing:
    """The host is right, but the state at this batch is not here, or damaged: the partition has failed."""

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
    """A batch could not be processed: nothing was written, the partition stands where it stood."""

    partition: PartitionId
    batch: BatchId
    problem: str

    @property
    def operator(self) -> OperatorId:
        """The operator that failed."""
        return self.partition.operator

    def __str__(self) -> str:
        return one_line(f"operator {self.operator}, partition {self.partition}, batch {self.batch}: {self.problem}")


Answer: TypeAlias = Ready | Missing | Refused | Done | Failed


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
