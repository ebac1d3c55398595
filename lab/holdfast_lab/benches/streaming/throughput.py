"""Rows per second and CPU seconds against Structured Streaming: the same outputs from the same files on one cluster.

All sides stay running and take turns, so that whatever else the machine does meets all alike; who begins changes from
round to round. A figure is the ratio within a round; the median over rounds is what counts, with its spread. CPU
seconds are those of the whole cluster and the driver during a turn; writing the input does not count.

Marginal CPU seconds are what a million rows more cost: the CPU of a large size less that of a small one, in chunks of a
few batches that all sides take in turn, by kind of process. At the end the rows of every output are compared.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast_lab.benches.streaming.in_place_side import InPlaceSide
from holdfast_lab.benches.streaming.processes import by_kind, processes
from holdfast_lab.benches.streaming.sides import (
    HoldfastSide,
    LoggedSide,
    PyArrowSide,
    Side,
    StructuredStreamingSide,
    same_rows,
)
from holdfast_lab.benches.streaming.spread import Spread, median_with_interval
from holdfast_lab.benches.streaming.workloads import Workload, in_our_days

if TYPE_CHECKING:
    from holdfast_lab.baselines.structured_streaming import Session
    from holdfast_lab.benches.streaming.sides import Batch

IN_PLACE = {"in-place": "parquet", "in-place-csv": "csv", "in-place-json": "json", "in-place-kafka": "kafka"}
"""Sides whose source partitions read files, or a topic, themselves, and the format of the files."""
SIDES = ("holdfast", "logged", "shuffle", "structured-streaming", "pyarrow")
"""Holdfast with tasks that stay, the same from rows that are logged, Holdfast through Spark's shuffle, Spark's own
engine, and the operators alone."""
CHUNK_ROWS = 800_000
"""Rows of a turn where marginal CPU is measured, about."""
AGAINST = "structured-streaming"
"""What the other sides are compared with, where it is among them; else the first side is."""


def against(sides: Collection[str]) -> str:
    """Return the side that the others are compared with."""
    return AGAINST if AGAINST in sides else next(iter(sides))


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of each side with the same batches."""

    workload: str
    number: int
    rows: int
    batches: int
    seconds: Mapping[str, float]
    cpu: Mapping[str, float]
    first: str

    against: str = AGAINST

    def ratio(self, side: str) -> float:
        """How many times the rows per second of the side that it is compared with this side's were."""
        return self.seconds[self.against] / self.seconds[side]


@dataclass(frozen=True, slots=True)
class Marginal:
    """What more rows cost one side, in CPU seconds per million."""

    small: int
    large: int
    """Rows of the two sizes."""
    seconds: float
    """CPU of the large size less that of the small one, per million rows between them."""
    chunks: Spread
    """CPU per million rows of the turns that make up both sizes."""
    kinds: Mapping[str, float]
    """`seconds` by kind of process."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What came of one workload with batches of one size."""

    workload: str
    title: str
    target: float
    queries: int
    """Structured Streaming's queries: one for each output."""
    sides: tuple[str, ...]
    rounds: tuple[Round, ...]
    output_rows: int
    different: dict[str, str]
    """Outputs whose rows are not equal, and in what."""
    batch_rows: int = 0
    marginal: Mapping[str, Marginal] = field(default_factory=dict)

    @property
    def against(self) -> str:
        """The side that the others are compared with."""
        return against(self.sides)

    def ratio(self, side: str = "holdfast") -> float:
        """The median ratio over the rounds."""
        return statistics.median(one.ratio(side) for one in self.rounds)

    def ratios(self, side: str = "holdfast") -> tuple[float, float]:
        """The least and the greatest ratio."""
        found = [one.ratio(side) for one in self.rounds]
        return min(found), max(found)

    def rows_per_second(self, side: str) -> float:
        """The median over the rounds."""
        return statistics.median(one.rows / one.seconds[side] for one in self.rounds)

    def cpu_per_million(self, side: str) -> float:
        """CPU seconds of the cluster and the driver for a million rows more: the median over the rounds."""
        return statistics.median(1e6 * one.cpu[side] / one.rows for one in self.rounds)


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
    sides: Collection[str] = SIDES,
    sessions: Collection[int] = (),
    secret_file: Path | None = None,
    marginal: tuple[int, int] | None = None,
    servers: str = "",
    progress: Callable[[str], object] = lambda text: None,
) -> Comparison:
    """Run the sides in turns: a warm-up, then `rounds` rounds of `batches` batches of `rows` rows each.

    `sessions`: the sessions of the nodes' processes, whose CPU seconds count beside the driver's. `marginal`: two sizes
    in rows, the smaller first, that are processed after the rounds for what more rows cost. `servers`: brokers, for
    the side that reads a topic.
    """
    warm = max(2, batches) if batches > 1 else 1
    more = [] if marginal is None else [-(-size // rows) for size in marginal]
    coming = in_our_days(workload.batches(seed, warm + batches * rounds + sum(more), rows))
    made = list(islice(coming, warm + batches * rounds))
    running: list[Side] = []
    found = []
    other = against(sides)
    try:
        for name in sides:
            place = folder / name
            if name == AGAINST:
                running.append(StructuredStreamingSide(workload, spark, place, files_per_batch, state_store))
            elif name in IN_PLACE:
                running.append(
                    InPlaceSide(workload, spark, place, files_per_batch, secret_file, IN_PLACE[name], servers)
                )
            elif name == "logged":
                running.append(LoggedSide(workload, spark, place, secret_file))
            elif name == "pyarrow":
                running.append(PyArrowSide(workload, place, files_per_batch))
            else:
                exchange = "resident" if name == "holdfast" else name
                running.append(HoldfastSide(workload, spark, place, files_per_batch, secret_file, exchange))
            progress(f"{workload.name}: {name} warms up")
            running[-1].add(made[:warm])
            running[-1].process()
        for number in range(rounds):
            progress(f"{workload.name}: round {number + 1} of {rounds}")
            part = made[warm + number * batches : warm + (number + 1) * batches]
            order = [*running[number % len(running) :], *running[: number % len(running)]]
            seconds, cpu = {}, {}
            for side in order:
                seconds[side.name], used = _turn(side, part, sessions)
                cpu[side.name] = sum(used.values())
            many = sum(table.num_rows for batch in part for table in batch.values())
            found.append(Round(workload.name, number, many, batches, seconds, cpu, order[0].name, other))
        found_marginal = {} if marginal is None else _marginal(running, coming, more, rows, sessions, progress)
        progress(f"{workload.name}: compare")
        different, count = {}, 0
        for output in workload.sql:
            given = {side.name: side.rows(output) for side in running}
            count += given[other].num_rows
            for side in running:
                problem = same_rows(given[side.name], given[other])
                if problem is not None:
                    different[output] = f"{side.name}: {problem}"
    finally:
        for side in running:
            side.close()
    names = tuple(side.name for side in running)
    return Comparison(
        workload.name,
        workload.title,
        workload.target,
        len(workload.sql),
        names,
        tuple(found),
        count,
        different,
        rows,
        found_marginal,
    )


def _turn(side: Side, batches: Sequence[Batch], sessions: Collection[int]) -> tuple[float, dict[str, float]]:
    """Process batches; return the seconds, and the CPU seconds by kind of process."""
    side.add(batches)
    before = by_kind(processes(sessions))
    seconds = side.process()
    after = by_kind(processes(sessions))
    # Work of a process that has ended is its parent's; of one kind it may be less than before.
    return seconds, {kind: used - before.get(kind, (0.0, 0))[0] for kind, (used, _) in after.items()}


def _marginal(
    running: Sequence[Side],
    coming: Iterator[dict[str, Any]],
    sizes: Sequence[int],
    rows: int,
    sessions: Collection[int],
    progress: Callable[[str], object],
) -> dict[str, Marginal]:
    """Process two sizes, in batches, chunk by chunk on all sides in turn; return what more rows cost each side."""
    per_chunk = max(1, CHUNK_ROWS // rows)
    used: dict[str, list[dict[str, float]]] = {side.name: [{}, {}] for side in running}
    chunks: dict[str, list[float]] = {side.name: [] for side in running}
    counted = [0, 0]
    turn = 0
    for number, size in enumerate(sizes):
        for first in range(0, size, per_chunk):
            progress(f"marginal CPU: batch {first} of {size} of size {number + 1} of {len(sizes)}")
            part = list(islice(coming, min(per_chunk, size - first)))
            many = sum(table.num_rows for batch in part for table in batch.values())
            counted[number] += many
            for place in range(len(running)):
                side = running[(place + turn) % len(running)]
                _, spent = _turn(side, part, sessions)
                chunks[side.name].append(1e6 * sum(spent.values()) / many)
                sums = used[side.name][number]
                for kind, seconds in spent.items():
                    sums[kind] = sums.get(kind, 0.0) + seconds
            turn += 1
    between = (counted[1] - counted[0]) / 1e6
    found = {}
    for name, (small, large) in used.items():
        kinds = {kind: (seconds - small.get(kind, 0.0)) / between for kind, seconds in large.items()}
        found[name] = Marginal(counted[0], counted[1], sum(kinds.values()), median_with_interval(chunks[name]), kinds)
    return found
