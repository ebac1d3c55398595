"""The share-based baseline of FTC (sec. V-A), which it only sketches. Runs anywhere.

The paper sorts candidates by their optimal resource share, after the balanced shares of Eidenbenz and Locher's "Task
Allocation for Distributed Stream Processing", and takes the largest in each round. The formula we fixed: a partition's
share is its part of all the work, where its work is T(v) times the part of the sources' output that reaches it when
every partition divides its output equally over its consumers. Rounds, candidates and the frontier are those of
`search`, so that only the ranking differs from `dag`; equal shares go to the candidate farthest from the search
source, in the baseline's favour. As in the paper, nothing is removed afterwards.
"""

from __future__ import annotations

import numpy as np

from holdfast.planning.backups.model import BackupProblem, Mask
from holdfast.planning.backups.search import Round, search
from holdfast.topology import Floats


def share_backups(problem: BackupProblem) -> Mask:
    """Return backups by share of the resources."""
    share: list[float] = resource_shares(problem).tolist()

    def by_share(found: Round) -> dict[int, float]:
        return {z: share[z] for z in found.candidates}

    return problem.mask(search(problem, by_share))


def resource_shares(problem: BackupProblem) -> Floats:
    """Return each partition's part of all the work; they add to 1."""
    topology = problem.topology
    reached = (np.diff(topology.up_start) == 0).astype(float)
    reached /= reached.sum()
    consumers = np.maximum(np.diff(topology.down_start), 1)
    for level in problem.levels:
        sent = reached[level.upstream] / consumers[level.upstream]
        reached[level.partitions] = np.add.reduceat(sent, level.starts)
    work: Floats = reached * problem.ticks
    total = work.sum()
    share: Floats = work / total if total > 0 else reached / reached.sum()
    return share
