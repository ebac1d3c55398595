"""Operator-centric: the baseline that recovers in topological order (incremental recovery, sec. 6). Pure.

It looks at partitions and not at queries: level by level, within a level the cheapest, a partition only when all it
reads from is back. It may bring back much without completing a query; that is the point of comparing.
"""

from __future__ import annotations

import numpy as np

from holdfast.planning.recovery.leftover import UpstreamReady
from holdfast.planning.recovery.problem import Mask, RecoveryPlan, RecoveryProblem


def operator_centric(problem: RecoveryProblem) -> RecoveryPlan:
    """Take failed partitions in topological order, cheapest first, while they fit."""
    return problem.plan("operator-centric", operator_centric_set(problem))


def operator_centric_set(problem: RecoveryProblem) -> Mask:
    """Return what it takes, as a mask over the failed partitions."""
    taken = np.zeros(len(problem.partitions), bool)
    left = problem.capacity
    ready = UpstreamReady(problem)
    order = np.lexsort((problem.partitions, problem.cost, problem.topology.level[problem.partitions]))
    for number in order.tolist():
        if problem.cost[number] <= left and ready.of(number, taken):
            taken[number] = True
            left -= int(problem.cost[number])
    return taken
