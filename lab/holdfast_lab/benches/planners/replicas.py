"""Replica plans for 100, 1,000 and 5,000 partitions, and fidelity updates at 10,000 (PPA)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast_lab.benches.planners.sections import Case, Facts, Section

if TYPE_CHECKING:
    from holdfast.topology import Topology

SHARE = 0.3
"""Budget as a part of all partitions."""
EXACT_SECONDS = 20.0
UPDATES = 100
UPDATE_LIMIT = 0.005
_SHAPES = {100: (8, 14), 1000: (16, 60), 5000: (20, 250)}
"""Operators and mean parallelism: they give 121, 1,011 and 5,520 partitions."""


def _plan_case(algorithm: str, size: int, limit: float | None = None) -> Case:
    def prepare() -> Callable[[], Facts]:
        import time

        from holdfast.planning.replicas.algorithms import ReplicaAlgorithm, plan_replicas
        from holdfast_lab.random_topologies import generate

        operators, mean = _SHAPES[size]
        topology = generate(
            "replication",
            1,
            {
                "least_operators": operators,
                "most_operators": operators,
                "least_parallelism": mean // 2,
                "most_parallelism": mean + mean // 2,
                "weights": "zipf",
                "skew": 0.5,
                "kind": "general",
                "join_share": 0.5,
            },
        )
        budget = round(SHARE * len(topology))

        def run() -> Facts:
            plan = plan_replicas(
                topology,
                budget,
                clock=time.perf_counter,
                algorithm=ReplicaAlgorithm(algorithm),
                seconds=EXACT_SECONDS,
                with_bound=False,
            )
            return {
                "partitions": len(topology),
                "replicas": len(plan.replicas),
                "fidelity": f"{plan.fidelity:.4g}",
                "optimal": plan.optimal,
            }

        return run

    return Case(f"{algorithm}, {size:,} partitions", size, prepare, series=algorithm, limit_seconds=limit)


def _update_case(size: int, limit: float | None = None) -> Case:
    def prepare() -> Callable[[], Facts]:
        import time
        from statistics import median

        from holdfast.planning.replicas.fidelity import LossModel
        from holdfast_lab.rivals.fidelity_incremental import IncrementalFidelity

        topology = _wide_topology(size)
        now = IncrementalFidelity(LossModel(topology))
        # Partitions all over the topology, sources and outputs among them.
        chosen = [at * len(topology) // UPDATES for at in range(UPDATES)]

        def run() -> Facts:
            taken = []
            for partition in chosen:
                begin = time.perf_counter()
                now.fail(partition)
                taken.append(time.perf_counter() - begin)
            value = now.value
            now.change(chosen, works=True)
            return {
                "task_edges": topology.task_edges,
                "median_ms": f"{median(taken) * 1e3:.3g}",
                "slowest_ms": f"{max(taken) * 1e3:.3g}",
                "fidelity": f"{value:.4g}",
            }

        return run

    return Case(f"{UPDATES} fidelity updates, {size:,} partitions", size, prepare, series="update", limit_seconds=limit)


def _wide_topology(size: int) -> Topology:
    """Ten operators in a row with a full fan in the middle: at 10,000 partitions over a million task edges."""
    from holdfast.ids import OperatorId
    from holdfast.topology import Input, Operator, Partitioning, Topology

    operators = [Operator(OperatorId("o0"), size // 10)]
    for number in range(1, 10):
        kind = Partitioning.FULL if number == 5 else Partitioning.ONE_TO_ONE
        operators.append(Operator(OperatorId(f"o{number}"), size // 10, (Input(OperatorId(f"o{number - 1}"), kind),)))
    return Topology("wide", operators)


def _cases() -> list[Case]:
    cases = [_plan_case("structure-aware", size, 30.0 if size == 5000 else None) for size in _SHAPES]
    cases += [_plan_case("greedy", size) for size in _SHAPES]
    cases += [_plan_case("exact", 100)]
    cases += [_update_case(1000), _update_case(10_000, UPDATES * UPDATE_LIMIT)]
    return cases


SECTION = Section("replicas", "Replica plans", _cases)
