"""Rows per second against Structured Streaming: the same outputs from the same files on the same cluster.

Both sides stay running and take turns, so that whatever else the machine does meets both alike; the order within a
round changes from round to round. A figure is the ratio within a round; the median over rounds is what counts, with its
spread. At the end the rows of every output are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast_lab.benches.streaming.sides import HoldfastSide, StructuredStreamingSide, same_rows
from holdfast_lab.benches.streaming.workloads import Workload, in_our_days

if TYPE_CHECKING:
    from holdfast_lab.baselines.structured_streaming import Session


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of each side with the same batches."""

    workload: str
    number: int
    rows: int
    batches: int
    holdfast_seconds: float
    structured_streaming_seconds: float
    holdfast_first: bool

    @property
    def ratio(self) -> float:
        """How many times Structured Streaming's rows per second ours were."""
        return self.structured_streaming_seconds / self.holdfast_seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of one workload."""

    workload: str
    title: str
    target: float
    queries: int
    """Structured Streaming's queries: one for each output."""
    rounds: tuple[Round, ...]
    output_rows: int
    different: dict[str, str]
    """Outputs whose rows are not equal, and in what."""

    @property
    def ratio(self) -> float:
        """The median ratio over the rounds."""
        return statistics.median(one.ratio for one in self.rounds)

    @property
    def ratios(self) -> tuple[float, float]:
        """The least and the greatest ratio."""
        return min(one.ratio for one in self.rounds), max(one.ratio for one in self.rounds)

    @property
    def holdfast_rows_per_second(self) -> float:
        """Our median."""
        return statistics.median(one.rows / one.holdfast_seconds for one in self.rounds)

    @property
    def structured_streaming_rows_per_second(self) -> float:
        """Structured Streaming's median."""
        return statistics.median(one.rows / one.structured_streaming_seconds for one in self.rounds)


def compare(
    workload: Workload,
    spark: Session,
    folder: Path,
    *,
    rows: int,
    batches: int,
    rounds: int,
    files_per_batch: int,
    state_store: str,
    seed: int,
    secret_file: Path | None = None,
    progress: Callable[[str], object] = lambda text: None,
) -> Comparison:
    """Run both sides in turns: a warm-up, then so many rounds of so many batches of so many rows."""
    warm = max(2, batches)
    made = list(in_our_days(workload.batches(seed, warm + batches * rounds, rows)))
    ours = HoldfastSide(workload, spark, folder / "holdfast", files_per_batch, secret_file)
    theirs = StructuredStreamingSide(workload, spark, folder / "structured", files_per_batch, state_store)
    found = []
    try:
        progress(f"{workload.name}: warm-up")
        for side in (ours, theirs):
            side.process(made[:warm])
        for number in range(rounds):
            progress(f"{workload.name}: round {number + 1} of {rounds}")
            part = made[warm + number * batches : warm + (number + 1) * batches]
            order = (ours, theirs) if number % 2 == 0 else (theirs, ours)
            seconds = {side.name: side.process(part) for side in order}
            found.append(
                Round(
                    workload.name,
                    number,
                    sum(table.num_rows for batch in part for table in batch.values()),
                    batches,
                    seconds[ours.name],
                    seconds[theirs.name],
                    number % 2 == 0,
                )
            )
        progress(f"{workload.name}: compare")
        different, count = {}, 0
        for output in workload.sql:
            given = ours.rows(output)
            count += given.num_rows
            if (problem := same_rows(given, theirs.rows(output))) is not None:
                different[output] = problem
    finally:
        ours.close()
        theirs.close()
    return Comparison(workload.name, workload.title, workload.target, len(workload.sql), tuple(found), count, different)
