"""Recovery plans for 18, 200 and 1,000 failed queries, at half the capacity (incremental recovery, sec. 6.3)."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_lab.benches.planners.sections import Case, Facts, Section

SIZES = (18, 200, 1000)
SHARE = 0.5
"""Capacity as a part of what all failed partitions cost."""
EXACT_SECONDS = 20.0
_MOST_SHARED = {18: 3}


def _case(algorithm: str, size: int, limit: float | None = None) -> Case:
    def prepare() -> Callable[[], Facts]:
        import numpy as np

        from holdfast.planning.recovery.algorithms import RecoveryAlgorithm, planner_of
        from holdfast.planning.recovery.problem import RecoveryProblem
        from holdfast.topology import Queries
        from holdfast_lab.random_topologies import generate

        topology = generate("queries", 1, {"queries": size, "most_shared": _MOST_SHARED.get(size, 6)})
        queries = Queries(topology)
        planner = planner_of(RecoveryAlgorithm(algorithm), time_limit=EXACT_SECONDS)
        failed, capacity = np.arange(len(topology)), SHARE * float(topology.cost.sum())

        def run() -> Facts:
            # Posing the problem is part of planning: it is what happens when nodes fail.
            plan = planner(RecoveryProblem(topology, failed, capacity, queries=queries))
            facts: dict[str, object] = {"priority": plan.priority, "bound": plan.bound, "optimal": plan.optimal}
            return facts if plan.seeds is None else {**facts, "seeds": plan.seeds}

        return run

    return Case(f"{algorithm}, {size:,} queries", size, prepare, series=algorithm, limit_seconds=limit)


def _cases() -> list[Case]:
    cases = [_case("best-density", size, 2.0 if size == 1000 else None) for size in SIZES]
    cases += [_case("operator-centric", size) for size in SIZES]
    cases += [_case("dp", SIZES[0])]
    cases += [_case("exact", size) for size in SIZES]
    return cases


SECTION = Section("recovery", "Recovery plans", _cases)
