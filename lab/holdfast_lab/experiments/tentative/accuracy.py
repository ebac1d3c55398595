"""How good tentative outputs are beside what fidelity and completeness predict: Q1 and Q2 (PPA, Fig. 12 and 13).

Every partition without a replica has failed. Accuracy is the paper's: of Q1, the share of the hundred hottest pages
that are among those of a run without failures; of Q2, the share of incidents with a jam that are found. The failure
comes at the start, so that nothing which was counted before it helps: Q1 keeps totals for ever, and with hours of
totals behind it any loss would look harmless. Runs anywhere, in one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from statistics import fmean

import pyarrow as pa

from holdfast.examples import EXAMPLES
from holdfast.ids import PartitionId
from holdfast.planning.replicas.algorithms import ReplicaAlgorithm, plan_replicas
from holdfast.planning.replicas.fidelity import LossModel, Metric
from holdfast.runtime.program import Program
from holdfast.topology import Topology
from holdfast_lab.experiments.tentative.partial_run import Arrived, Standing, advance, arrivals, measured_topology

QUERIES = {"Q1": "hot-pages", "Q2": "incidents"}
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Replicas as a share of all partitions."""
QUICK_SHARES = (0.2, 0.4, 0.6, 0.8)
PLANNERS: Mapping[str, tuple[ReplicaAlgorithm, Metric]] = {
    "structure-aware": (ReplicaAlgorithm.STRUCTURE_AWARE, Metric.FIDELITY),
    "completeness": (ReplicaAlgorithm.STRUCTURE_AWARE, Metric.COMPLETENESS),
    "dp": (ReplicaAlgorithm.DP, Metric.FIDELITY),
    "greedy": (ReplicaAlgorithm.GREEDY, Metric.FIDELITY),
    "exact": (ReplicaAlgorithm.EXACT, Metric.FIDELITY),
}
"""`completeness` is structure-aware with the other metric: what Fig. 12 compares fidelity with."""
GROUP_SECONDS = 10
"""Seconds of input in a batch: which rows are in which batch changes neither query's answers."""
PLAN_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Point:
    """One plan: what is predicted of it, and what it gives."""

    query: str
    planner: str
    budget: int
    partitions: int
    replicas: tuple[str, ...]
    fidelity: float
    completeness: float
    accuracy: float

    def document(self) -> dict[str, object]:
        """Return it as plain values."""
        return {**asdict(self), "replicas": list(self.replicas)}


@dataclass(frozen=True, slots=True, eq=False)
class Workload:
    """A query with its input, and what it gives without failures."""

    query: str
    program: Program
    topology: Topology
    """With the rates that were measured without failures."""
    batches: Sequence[Arrived]
    accurate: Sequence[Mapping[PartitionId, pa.Table]]

    def accuracy(self, working: frozenset[PartitionId]) -> float:
        """Return how much of the accurate answer comes out with these partitions only."""
        given = advance(self.program, Standing(), self.batches, working)
        return _JUDGES[self.query](self.accurate, given)


def workload(query: str, seed: int, seconds: int, rows: int) -> Workload:
    """Prepare a query with so many seconds of input, of so many rows each."""
    example = EXAMPLES[QUERIES[query]]
    program = Program(example.application())
    batches = arrivals(program, _grouped(example.batches(seed, seconds, rows)))
    standing = Standing()
    accurate = advance(program, standing, batches)
    return Workload(query, program, measured_topology(program.topology, standing, seconds), batches, accurate)


def points(found: Workload, shares: Sequence[float], planners: Sequence[str]) -> Iterator[Point]:
    """Plan for every budget by every planner; measure each distinct plan once."""
    topology = found.topology
    fidelity, completeness = LossModel(topology), LossModel(topology, Metric.COMPLETENESS)
    measure = cache(found.accuracy)
    for budget in sorted({max(1, round(share * len(topology))) for share in shares}):
        for name in planners:
            algorithm, metric = PLANNERS[name]
            plan = plan_replicas(
                topology,
                budget,
                clock=time.monotonic,
                algorithm=algorithm,
                metric=metric,
                seconds=PLAN_SECONDS,
                with_bound=False,
            )
            alive = [topology.index(p) for p in plan.replicas]
            yield Point(
                found.query,
                name,
                budget,
                len(topology),
                tuple(map(str, plan.replicas)),
                fidelity.value_of(alive),
                completeness.value_of(alive),
                measure(frozenset(plan.replicas)),
            )


def _grouped(batches: Iterator[dict[str, pa.Table]]) -> Iterator[dict[str, pa.Table]]:
    held: list[dict[str, pa.Table]] = []
    for one in batches:
        held.append(one)
        if len(held) == GROUP_SECONDS:
            yield {name: pa.concat_tables([each[name] for each in held]) for name in held[0]}
            held = []
    if held:
        yield {name: pa.concat_tables([each[name] for each in held]) for name in held[0]}


_Outputs = Sequence[Mapping[PartitionId, pa.Table]]


def hottest_accuracy(accurate: _Outputs, given: _Outputs) -> float:
    """Return the mean share of the hottest pages that are found, over the batches in which there are some."""
    shares = []
    for right, found in zip(accurate, given, strict=True):
        pages = {page for table in right.values() for page in _last_pages(table)}
        if pages:
            some = {page for table in found.values() for page in _last_pages(table)}
            shares.append(len(pages & some) / len(pages))
    return fmean(shares) if shares else 0.0


def _last_pages(table: pa.Table) -> list[str]:
    pages: list[str] = table["page"].to_pylist()
    return pages


def incidents_accuracy(accurate: _Outputs, given: _Outputs) -> float:
    """Return the share of incidents with a jam that are found."""
    right, found = _incidents(accurate), _incidents(given)
    return len(right & found) / len(right) if right else 0.0


def _incidents(outputs: _Outputs) -> set[int]:
    return {int(number) for one in outputs for table in one.values() for number in table["incident"].to_pylist()}


_JUDGES: Mapping[str, Callable[[_Outputs, _Outputs], float]] = {"Q1": hottest_accuracy, "Q2": incidents_accuracy}


def findings(found: Sequence[Point]) -> list[dict[str, object]]:
    """Put the paper's claims beside ours."""
    rows: list[dict[str, object]] = []

    def claim(figure: str, paper: str, ours: str, agrees: bool) -> None:
        rows.append({"figure": figure, "paper": paper, "ours": ours, "agrees": agrees})

    below = max((one.fidelity - one.accuracy for one in found), default=0.0)
    worst = max(found, key=lambda one: one.fidelity - one.accuracy)
    claim(
        "12",
        "fidelity predicts accuracy well (ours: accuracy not below it by more than 0.1)",
        f"at most {below:.3f} below ({worst.query}, {worst.planner}, budget {worst.budget})",
        below <= 0.1,
    )
    joins = [one for one in found if one.query == "Q2"]
    if joins:
        off = {
            name: fmean(abs(getattr(one, metric) - one.accuracy) for one in joins if one.planner == planner)
            for name, planner, metric in (
                ("fidelity", "structure-aware", "fidelity"),
                ("completeness", "completeness", "completeness"),
            )
            if any(one.planner == planner for one in joins)
        }
        if len(off) == 2:
            claim(
                "12b",
                "with joins completeness does not predict accuracy, and fidelity does",
                f"mean distance on Q2: fidelity {off['fidelity']:.3f}, completeness {off['completeness']:.3f}",
                off["fidelity"] < off["completeness"],
            )
    for query in dict.fromkeys(one.query for one in found):
        mean = {
            planner: fmean(one.accuracy for one in found if (one.query, one.planner) == (query, planner))
            for planner in dict.fromkeys(one.planner for one in found if one.query == query)
            if PLANNERS[planner][1] is Metric.FIDELITY
        }
        if {"dp", "structure-aware", "greedy"} <= mean.keys():
            claim(
                "13",
                f"{query}: structure-aware is close to dp, greedy is the worst",
                ", ".join(f"{name} {value:.3f}" for name, value in mean.items()),
                abs(mean["dp"] - mean["structure-aware"]) <= 0.05 and mean["greedy"] <= min(mean.values()) + 1e-9,
            )
    return rows
