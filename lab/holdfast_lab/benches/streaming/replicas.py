"""What replicas cost and save: throughput and CPU for shares of replicated partitions, and gaps after a kill.

Cost: one run per share on the same executors. They take turns with the same batches, in an order that moves on from
turn to turn; a turn ends when every replica is level again, so that its CPU seconds hold the replicas' work. Ratios are
within a turn.

Gap: batches come on a schedule that nothing delays; then a node that has partitions is killed, and batches go on
coming. A query's gap is the longest time between two of its publications from the kill on. Queries that had no
partition on the node show what a gap is without any loss. Each kill has a run and a replacement node of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import PartitionId
from holdfast.recovery.copies import level
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.spark.pinned_jobs import executors_of
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from holdfast_lab.benches.streaming.arrivals import arrivals
from holdfast_lab.benches.streaming.cpu import cpu_seconds
from holdfast_lab.benches.streaming.spread import Spread, median_with_interval
from holdfast_lab.benches.streaming.workloads import Workload

if TYPE_CHECKING:
    from holdfast.spark.cluster import EmbeddedCluster
    from holdfast_lab.baselines.structured_streaming import Session

SHARES = (0.0, 0.5, 1.0)
ROOM = 1e6
"""Capacity of a node: room for every replica, so that shares are what was asked for."""
MOST_SECONDS = 600.0
"""How long something that must come is waited for."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One run's turn."""

    share: float
    number: int
    rows: int
    seconds: float
    """Until every output was published."""
    cpu_seconds: float
    """Of the whole cluster and its driver, until every replica was level as well."""

    @property
    def rows_per_second(self) -> float:
        """Rows of all sources for each second on the clock."""
        return self.rows / self.seconds


@dataclass(frozen=True, slots=True)
class Gap:
    """What a kill did to one query."""

    share: float
    kill: int
    query: str
    hit: bool
    """Whether the node that was killed had one of its partitions."""
    replicated: bool
    """Whether each of those had a level replica."""
    seconds: float
    """The longest time between two publications from the kill on."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a share of replicas costs, against none in the same turn."""

    share: float
    partitions: int
    """How many partitions have a replica."""
    rows_per_second: Spread
    throughput: Spread
    """Rows a second as a share of those without replicas."""
    cpu: Spread
    """CPU seconds, in those without replicas."""


@dataclass(frozen=True, slots=True)
class Replicas:
    """What came of the bench."""

    workload: str
    partitions: int
    interval: float
    """Seconds between two batches while gaps were measured."""
    costs: tuple[Cost, ...]
    turns: tuple[Turn, ...]
    gaps: tuple[Gap, ...]

    def gap(self, share: float, *, hit: bool, replicated: bool | None = None) -> Spread | None:
        """Return the gaps of queries of a kind: the median of kills and queries, and the range; None where none is."""
        found = [
            one.seconds
            for one in self.gaps
            if one.share == share and one.hit == hit and (replicated is None or one.replicated == replicated)
        ]
        return median_with_interval(found) if found else None


class _Run:
    """A run with a share of its partitions replicated."""

    def __init__(
        self, share: float, workload: Workload, spark: Session, folder: Path, *, nodes: int, secret_file: Path
    ) -> None:
        self.share = share
        self.published: dict[str, list[tuple[int, float]]] = {}
        settings = replace(Settings.read(spark), exchange="resident", node_capacity=ROOM)
        if share:
            settings = replace(settings, replicas_budget=f"{share:.3f}")
        self.run = SparkRun(
            workload.application(),
            spark,
            folder / "run",
            sinks={output: str(folder / "out" / output) for output in workload.sql},
            settings=settings,
            pace=CycleSettings(checkpoint_batches=20, wait_seconds=MOST_SECONDS),
            nodes=nodes,
            wait_seconds=MOST_SECONDS,
            secret_file=secret_file,
            emit=self._saw,
        )

    def _saw(self, seen: Observation) -> None:
        if seen.kind == "published":
            at = self.published.setdefault(str(seen.fields["partition"]), [])
            at.append((int(seen.fields["batch"]), time.monotonic()))

    @property
    def replicas(self) -> tuple[PartitionId, ...]:
        """The partitions that are to have a replica."""
        return self.run.coordinator.state.settings.replicas

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Let the run go on until something holds."""
        deadline = time.monotonic() + MOST_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise CheckFailed(f"{what} within {MOST_SECONDS:g} s", where=f"bench replicas, share {self.share:g}")
            self.run.advance()

    def come_level(self) -> None:
        """Wait until each replica has completed what its primary has."""
        state = self.run.coordinator.state

        def done() -> bool:
            return set(level(state)) == set(self.replicas) and all(
                state.copies.at[p].frontier >= state.partitions[p].frontier for p in self.replicas
            )

        self.until(done, "not every replica is level")

    def turn(
        self, number: int, batches: Sequence[Mapping[str, pa.Table]], sessions: Callable[[], Sequence[int]]
    ) -> Turn:
        """Process batches; the turn's CPU seconds are those until the replicas are level."""
        for batch in batches:
            self.run.log(batch)
        cpu, began = cpu_seconds(sessions()), time.perf_counter()
        self.run.run()
        seconds = time.perf_counter() - began
        self.come_level()
        rows = sum(table.num_rows for batch in batches for table in batch.values())
        return Turn(self.share, number, rows, seconds, cpu_seconds(sessions()) - cpu)

    def feed(self, batches: Sequence[Mapping[str, pa.Table]], interval: float) -> None:
        """Log batches on a schedule; one that comes late does not delay the next."""
        start = time.monotonic()
        with arrivals(self.run):
            for number, batch in enumerate(batches):
                while time.monotonic() < start + number * interval:
                    self.run.advance()
                self.run.log(batch)
                self.run.advance()
            last = int(self.run.logged)
            outputs = [str(p) for p in self.run.program.outputs]
            self.until(lambda: all(self.reached(query) >= last for query in outputs), "an output is not published")

    def reached(self, query: str) -> int:
        """The last batch that was published."""
        return max((batch for batch, _ in self.published.get(query, [])), default=-1)


def measure_replicas(
    workload: Workload,
    spark: Session,
    cluster: EmbeddedCluster,
    folder: Path,
    *,
    nodes: int,
    shares: Sequence[float] = SHARES,
    rows: int,
    batches: int,
    turns: int,
    kills: int,
    interval: float,
    paced: int,
    seed: int = 1,
    progress: Callable[[str], object] = lambda text: None,
) -> Replicas:
    """Measure costs in turns, then gaps by kills.

    A turn has so many `batches` of so many `rows`; while gaps are measured, `paced` batches come before a kill and as
    many after it, one each `interval` seconds. Every run holds a core of each executor, so the cluster needs one more
    core a node than there are shares.
    """
    if shares[0] != 0:
        raise CheckFailed("the first share must be 0: the others are compared with it", where="bench replicas")

    def sessions() -> list[int]:
        return [node.group for node in cluster.nodes.values()]

    found_turns: list[Turn] = []
    given = list(workload.batches(seed, batches * (turns + 1), rows))
    runs: list[_Run] = []
    try:
        for share in shares:
            progress(f"share {share:g}: starts")
            at = folder / f"cost-{share:g}"
            runs.append(_Run(share, workload, spark, at, nodes=nodes, secret_file=cluster.secret_file))
            runs[-1].turn(-1, given[:batches], sessions)
        for number in range(turns):
            mine = given[batches * (number + 1) : batches * (number + 2)]
            for place in range(len(runs)):
                one = runs[(place + number) % len(runs)]
                progress(f"turn {number + 1} of {turns}: share {one.share:g}")
                found_turns.append(one.turn(number, mine, sessions))
        costs = tuple(_cost(one, found_turns) for one in runs)
        partitions = len(runs[0].run.program.partitions)
    finally:
        for one in runs:
            one.run.close()
    gaps: list[Gap] = []
    paced_batches = list(workload.batches(seed + 1, 2 * paced, rows))
    for kill in range(kills):
        for place in range(len(shares)):
            share = shares[(place + kill) % len(shares)]
            progress(f"kill {kill + 1} of {kills}: share {share:g}")
            at = folder / f"gap-{share:g}-{kill}"
            run = _Run(share, workload, spark, at, nodes=nodes, secret_file=cluster.secret_file)
            try:
                gaps += _gaps_of(run, kill, cluster, paced_batches, interval)
            finally:
                run.run.close()
            _replace_node(spark, cluster, nodes)
    return Replicas(workload.name, partitions, interval, costs, tuple(found_turns), tuple(gaps))


def _cost(run: _Run, turns: Sequence[Turn]) -> Cost:
    plain = {one.number: one for one in turns if one.share == 0}
    mine = [one for one in turns if one.share == run.share]
    return Cost(
        run.share,
        len(run.replicas),
        median_with_interval([one.rows_per_second for one in mine]),
        median_with_interval([one.rows_per_second / plain[one.number].rows_per_second for one in mine]),
        median_with_interval([one.cpu_seconds / plain[one.number].cpu_seconds for one in mine]),
    )


def _gaps_of(
    run: _Run, kill: int, cluster: EmbeddedCluster, batches: Sequence[Mapping[str, pa.Table]], interval: float
) -> list[Gap]:
    """Feed, kill a node that has partitions, feed on; compare every query's publications."""
    half = len(batches) // 2
    run.feed(batches[:half], interval)
    run.come_level()
    state, graph = run.run.coordinator.state, run.run.coordinator.state.graph
    victim = sorted(set(state.placement.values()))[kill % len(set(state.placement.values()))]
    host = victim.rpartition("-")[0]
    node = next(one.id for one in cluster.nodes.values() if one.host == host)
    here = {p for p, at in state.placement.items() if at == victim}
    covered = set(level(state))
    needed = {query: here.intersection(graph.members(query)) for query in run.run.program.outputs}
    killed: list[float] = []

    def end_node() -> None:
        killed.append(time.monotonic())
        cluster.kill_node(node)

    killer = threading.Timer(1.5 * interval, end_node)
    killer.start()
    try:
        run.feed(batches[half:], interval)
    finally:
        killer.join()
    run.until(lambda: victim not in state.nodes, "the loss was not noticed")
    found = []
    for query, lost in needed.items():
        moments = [at for _, at in run.published[str(query)]]
        longest = max(after - before for before, after in pairwise(moments) if after >= killed[0])
        found.append(Gap(run.share, kill, str(query), bool(lost), bool(lost) and lost <= covered, longest))
    return found


def _replace_node(spark: Session, cluster: EmbeddedCluster, nodes: int) -> None:
    """Bring a node for the one that was killed, and wait until Spark has all of them."""
    cluster.add_node()
    deadline = time.monotonic() + MOST_SECONDS
    while len(executors_of(spark.sparkContext)) < nodes:
        if time.monotonic() > deadline:
            raise CheckFailed(f"a replacement node did not come within {MOST_SECONDS:g} s", where="bench replicas")
        time.sleep(0.1)
