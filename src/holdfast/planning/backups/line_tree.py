"""Fewest backups on lines and trees, in linear time (FTC, sec. IV-B and IV-C). Runs anywhere.

`line` is Alg. 2 as corrected: walk down each line, adding up T from the start (or from 0 behind a backup), and let the
last partition that still fits keep a backup. Lines may end in one common sink, as in the paper's Fig. 4(b).

`tree` is not the printed Alg. 3, which takes more than the optimum on some trees, but the rule that is optimal: from
the sources down, partition c keeps a backup exactly when L(c) + T(v) > R for its one consumer v. Why: below c, the rule
uses the fewest backups, and of all sets with that many the one with the smallest L(c); one more backup is nowhere
better placed than at c itself.

Both are optimal when partitions fail alone. With failure domains their answer is where `domains` starts.
"""

from __future__ import annotations

import numpy as np

from holdfast.errors import BadInput
from holdfast.planning.backups.model import BackupProblem, Mask


def is_lines(problem: BackupProblem) -> bool:
    """Whether every partition has one consumer at most, and one upstream neighbour at most unless it is a sink."""
    inner = ~problem.sinks
    return is_forest(problem) and bool((np.diff(problem.topology.up_start)[inner] <= 1).all())


def is_forest(problem: BackupProblem) -> bool:
    """Whether every partition has one consumer at most: one tree towards a sink, or several."""
    return int(np.diff(problem.topology.down_start).max()) <= 1


def line_backups(problem: BackupProblem) -> Mask:
    """Return the fewest backups on lines (Alg. 2)."""
    if not is_lines(problem):
        raise BadInput(
            f"{problem.topology.name} is not made of lines, which algorithm line needs",
            remedy="use --algorithm auto, or tree where every partition has one consumer",
        )
    topology = problem.topology
    consumer = np.full(len(problem), -1, np.int64)
    consumer[topology.edge_from] = topology.edge_to
    next_of, ticks, limit = consumer.tolist(), problem.ticks.tolist(), problem.limit
    backups = np.zeros(len(problem), bool)
    for source in np.flatnonzero(np.diff(topology.up_start) == 0).tolist():
        at, taken = source, ticks[source]
        while (after := next_of[at]) >= 0:
            if taken + ticks[after] > limit:
                backups[at] = True
                taken = 0
            taken += ticks[after]
            at = after
    return backups


def tree_backups(problem: BackupProblem) -> Mask:
    """Return the fewest backups on trees towards sinks."""
    if not is_forest(problem):
        raise BadInput(
            f"{problem.topology.name} is not a tree towards its sinks, which algorithm tree needs: "
            "a partition has several consumers",
            remedy="use --algorithm auto, exact or dag",
        )
    backups = np.zeros(len(problem), bool)
    found = problem.ticks.copy()
    for level in problem.levels:
        upstream = found[level.upstream]
        widths = np.diff(np.append(level.starts, len(level.upstream)))
        late = upstream + np.repeat(problem.ticks[level.partitions], widths) > problem.limit
        backups[level.upstream[late]] = True
        found[level.partitions] += np.maximum.reduceat(np.where(late, 0, upstream), level.starts)
    return backups
