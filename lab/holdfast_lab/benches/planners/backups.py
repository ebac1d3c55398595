"""Backup plans on DAGs of 100, 1,000 and 10,000 partitions (FTC; T from 1 to 10, R a third of the longest path).

Operators in steps, a tenth of the partitionings full. `exact` ends in time: with a proof, or with its best and a bound.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from holdfast_lab.benches.planners.sections import Case, Facts, Section

EXACT_SECONDS = 9.0
LIMIT_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class _Size:
    partitions: int
    seed: int
    steps: int
    operators: int
    parallelism: int


SIZES = (
    _Size(100, 2, 9, 2, 14),
    _Size(1000, 17, 12, 6, 46),
    _Size(10000, 3, 20, 20, 94),
)
_SHARE_OF_LONGEST = 1 / 3


def _case(algorithm: str, size: _Size, limit: float | None = None) -> Case:
    def prepare() -> Callable[[], Facts]:
        import time

        from holdfast.planning.backups.algorithms import BY_NAME, BackupAlgorithm
        from holdfast.planning.backups.exact import exact_backups
        from holdfast.planning.backups.model import BackupProblem
        from holdfast_lab.random_topologies import generate

        topology = generate(
            "dag",
            size.seed,
            {
                "steps": size.steps,
                "most_operators": size.operators,
                "most_parallelism": size.parallelism,
                "full_share": 0.1,
                "times": "unequal",
            },
        )
        free = BackupProblem(topology, 1e6)
        longest = float(free.in_seconds(free.latencies(free.mask([]))).max())
        latency = max(float(topology.reprocess_seconds.max()), round(longest * _SHARE_OF_LONGEST))
        known: dict[str, object] = {"partitions": len(topology), "edges": topology.task_edges, "R": latency}

        def run() -> Facts:
            # Posing the problem is part of planning.
            problem = BackupProblem(topology, latency)
            if algorithm == "exact":
                found = exact_backups(problem, time.perf_counter, EXACT_SECONDS)
                return {**known, "backups": found.cost, "bound": found.bound, "optimal": found.optimal}
            return {**known, "backups": int(BY_NAME[BackupAlgorithm(algorithm)](problem).sum())}

        return run

    return Case(f"{algorithm}, {size.partitions:,} partitions", size.partitions, prepare, algorithm, limit)


def _cases() -> list[Case]:
    return [
        *(_case("exact", size, LIMIT_SECONDS) for size in SIZES),
        *(_case("dag", size) for size in SIZES),
        *(_case("share", size) for size in SIZES),
    ]


SECTION = Section("backups", "Backup plans", _cases)
