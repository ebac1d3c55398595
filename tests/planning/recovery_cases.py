"""Random recovery problems for property tests: shared queries, fractional costs, some partitions already back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from holdfast.planning.recovery.problem import RecoveryProblem
from holdfast.topology import Topology
from holdfast_lab.random_topologies import generate


@st.composite
def problems(draw: st.DrawFn, most_queries: int = 8) -> RecoveryProblem:
    queries = draw(st.integers(1, most_queries))
    topology = generate(
        "queries",
        draw(st.integers(0, 10_000)),
        {
            "queries": queries,
            "smallest": 2,
            "largest": draw(st.integers(2, 6)),
            "most_shared": draw(st.integers(1, queries)),
            "skew": draw(st.sampled_from([0.0, 0.5, 2.0])),
            "priority": draw(st.sampled_from(["random", "linear"])),
        },
    )
    factor = draw(st.sampled_from([1.0, 0.1, 0.37, 1 / 3]))
    free = draw(st.integers(0, 2))
    operators = [
        replace(one, cost=0.0 if free and number % 7 < free else float(one.cost) * factor)  # type: ignore[arg-type]
        for number, one in enumerate(topology.operators)
    ]
    topology = Topology(topology.name, operators)
    kept = draw(st.sampled_from([1.0, 1.0, 0.6]))
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    failed = np.flatnonzero(rng.random(len(topology)) < kept)
    share = draw(st.floats(0, 1.05))
    return RecoveryProblem(topology, failed, share * float(topology.cost[failed].sum()))


def brute_force(problem: RecoveryProblem) -> int:
    """The most priority any plan restores, by trying every set of failed queries."""
    count = len(problem.queries)
    best = 0
    for bits in range(2**count):
        chosen = np.array([bits >> query & 1 for query in range(count)], bool)
        if problem.cost_of(problem.partitions_of(problem.groups_of(chosen))) <= problem.capacity:
            best = max(best, int(problem.priority[chosen].sum()))
    return best
