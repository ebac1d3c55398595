"""Every set of backups, smallest sets first (FTC, sec. IV-E: Algorithm exhaust). Runs anywhere.

Up to 25 partitions, of which at least one is a sink and needs no backup: at most 2^24 sets, tried in blocks of arrays.
Among the sets of the fewest backups it takes the one with the smallest overall latency, as the paper does.
"""

from __future__ import annotations

import numpy as np

from holdfast.errors import Undecided
from holdfast.planning.backups.model import NOTHING_LOST, BackupProblem, Mask
from holdfast.topology import Ints

MOST_PARTITIONS = 25
_BLOCK = 1 << 15


def exhaustive_backups(problem: BackupProblem) -> Mask:
    """Return a fewest set; with more than 25 partitions raise Undecided."""
    if len(problem) > MOST_PARTITIONS:
        raise Undecided(
            f"{problem.topology.name} has {len(problem)} partitions, and algorithm exhaustive tries every set of up to "
            f"{MOST_PARTITIONS}",
            remedy="use --algorithm exact, which proves the same",
        )
    useful = np.flatnonzero(~problem.sinks)
    sizes = np.bitwise_count(np.arange(1 << len(useful), dtype=np.uint32))
    for size in range(len(useful) + 1):
        best: tuple[int, int] | None = None
        of_size = np.flatnonzero(sizes == size)
        for start in range(0, len(of_size), _BLOCK):
            sets = of_size[start : start + _BLOCK]
            worst = _worst(problem, useful, sets)
            at = int(np.argmin(worst))
            if worst[at] <= problem.limit and (best is None or worst[at] < best[0]):
                best = int(worst[at]), int(sets[at])
        if best is not None:
            return problem.mask(useful[(best[1] >> np.arange(len(useful))) & 1 == 1])
    raise AssertionError("a feasible problem is met by the set of all partitions")


def _worst(problem: BackupProblem, useful: Ints, sets: Ints) -> Ints:
    """Return the overall latency O in ticks of each set, a number whose bits are those of `useful` keep a backup."""
    keeps = np.zeros((len(problem), len(sets)), bool)
    keeps[useful] = (sets[None, :] >> np.arange(len(useful))[:, None]) & 1 == 1
    worst = np.zeros(len(sets), np.int64)
    losses = range(len(problem.topology.domains)) if problem.has_domains else range(0)
    for lost in (NOTHING_LOST, *losses):
        there = problem.domain_of == lost
        kept = keeps & ~there[:, None] if lost != NOTHING_LOST else keeps
        found = np.repeat(problem.ticks[:, None], len(sets), axis=1)
        for level in problem.levels:
            waits = np.where(kept[level.upstream], 0, found[level.upstream])
            found[level.partitions] += np.maximum.reduceat(waits, level.starts, axis=0)
        # Alone, every partition fails; with its domain, those of that domain.
        worst = np.maximum(worst, found.max(axis=0) if lost == NOTHING_LOST else found[there].max(axis=0))
    return worst
