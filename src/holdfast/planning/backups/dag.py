"""Algorithm FTC for general DAGs: candidates ranked by backup workload (FTC, Alg. 4, eq. 7 and 8).

Runs anywhere. F(v) (eq. 7) is the part of the search source's output that passes through v when every partition
divides what it has equally over its consumers; B(v) (eq. 8) adds up the work a backup at v saves along the way. The
base of both is the search source of the round, whose T counts once.
"""

from __future__ import annotations

from holdfast.planning.backups.model import BackupProblem, Mask
from holdfast.planning.backups.search import Round, search, without_redundant


def dag_backups(problem: BackupProblem) -> Mask:
    """Return backups by backup workload, the redundant ones removed."""
    ticks: list[int] = problem.ticks.tolist()

    def workload(found: Round) -> dict[int, float]:
        return backup_workload(found, ticks)

    taken = search(problem, workload)
    # The last chosen saved the least work in its round: it is the first to go.
    return without_redundant(problem, reversed(taken), problem.mask(taken))


def backup_workload(found: Round, ticks: list[int]) -> dict[int, float]:
    """Return B(v) of a round's candidates (eq. 8), in ticks."""
    source = found.source
    workload = {source: float(ticks[source])}
    for z in found.candidates[1:]:
        workload[z] = sum(
            (workload[u] + (ticks[u] if u != source else 0)) / len(found.consumers[u]) for u in found.upstream[z]
        )
    return workload
