"""Joint plans from targets: 1,000 and 10,000 partitions, and small topologies against every structure there is."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from holdfast_lab.benches.planners.sections import Case, Facts, Section

if TYPE_CHECKING:
    from holdfast.topology import Topology

LIMIT_SECONDS = 10.0
"""What we promise for 1,000 partitions."""
SIZES = ((10, 10), (25, 40), (100, 100))
"""Operators, and partitions of each."""
SMALL_OPERATORS = 6
SMALL_TOPOLOGIES = 6


def drawn(seed: int, operators: int, parallelism: int) -> Topology:
    """Return a random topology (PPA's generator) with states, times and failure rates of its own per operator."""
    from holdfast.topology import Topology
    from holdfast.topology.draws import Draws
    from holdfast_lab.random_topologies.ppa import replication

    plain = replication(
        seed,
        least_operators=operators,
        most_operators=operators,
        least_parallelism=parallelism,
        most_parallelism=parallelism,
        kind="general",
        rate=200.0,
    )
    draws = Draws(seed).branch("joint bench")
    return Topology(
        plain.name,
        [
            replace(
                one,
                selectivity=0.2 + 0.6 * draws.fraction(),
                tuple_seconds=1e-6 * (1 + 20 * draws.fraction()),
                tuple_bytes=100.0,
                state_bytes=parallelism * 1e6 * (1 + 20 * draws.fraction()),
                failure_rate=1e-6 * (0.1 + draws.fraction()),
            )
            for one in plain.operators
        ],
    )


def _case(operators: int, parallelism: int) -> Case:
    def prepare() -> Callable[[], Facts]:
        from holdfast.planning.joint.model import JointModel
        from holdfast.planning.joint.search import plan_jointly
        from holdfast.planning.joint.targets import Assumptions, targets

        topology = drawn(1, operators, parallelism)
        large = operators * parallelism > 1000
        wanted = targets(recovery={1: 300.0 if large else 120.0}, overhead=0.5 if large else 0.2, survive=1)
        assumed = Assumptions(bandwidth=1e9, nodes=50 if large else 20)

        def run() -> Facts:
            model = JointModel(topology, wanted, assumed)
            found = plan_jointly(model, clock=time.perf_counter)
            return {
                "keeps targets": found.keeps_targets,
                "finished": found.finished,
                "structures": found.looked_at,
                "backups": int(found.plan.backups.sum()),
            }

        return run

    size = operators * parallelism
    limit = LIMIT_SECONDS if size <= 1000 else None
    return Case(f"{size:,} partitions of {operators} operators", size, prepare, series="joint", limit_seconds=limit)


def _beside_all() -> Case:
    def prepare() -> Callable[[], Facts]:
        from holdfast.planning.joint.model import JointModel
        from holdfast.planning.joint.search import plan_jointly
        from holdfast.planning.joint.targets import Assumptions, targets
        from holdfast_lab.rivals.joint_exhaustive import plan_exhaustively

        topologies = [drawn(seed, SMALL_OPERATORS, 1) for seed in range(SMALL_TOPOLOGIES)]

        def run() -> Facts:
            gaps, missed = [], 0
            for number, topology in enumerate(topologies):
                wanted = targets(recovery={1: (8.0, 20.0, 60.0)[number % 3]}, overhead=0.05)
                model = JointModel(topology, wanted, Assumptions())
                found, (_, best) = plan_jointly(model, clock=time.perf_counter), plan_exhaustively(model)
                missed += bool(found.evaluation.violation) and not best.violation
                if not found.evaluation.violation:
                    gaps.append(found.evaluation.downtime / best.downtime - 1)
            return {
                "topologies": len(topologies),
                "with a plan": len(gaps),
                "plans missed": missed,
                "greatest gap %": round(100 * max(gaps, default=0.0), 3),
            }

        return run

    name = f"{SMALL_TOPOLOGIES} topologies of {SMALL_OPERATORS} operators, against every structure"
    return Case(name, SMALL_OPERATORS, prepare, series="against all")


SECTION = Section("joint", "Joint plans", lambda: [_beside_all(), *(_case(*one) for one in SIZES)])
