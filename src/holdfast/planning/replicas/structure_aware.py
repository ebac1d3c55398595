"""The structure-aware planner (PPA, Alg. 3-5), which returns the better of itself and greedy. Runs anywhere.

From no replicas on, or from those of an earlier plan, it adds the candidate with the greatest profit density that still
fits, until nothing fits or helps. A candidate is a segment of a structured sub-topology or one partition of a full one,
with what completes it (replica_candidates). The first one is a whole MC-tree; whatever follows connects to it.

The paper plans every sub-topology by itself and then takes the best step among them. Sub-topologies meet over full
partitioning, where any partition serves any other, so the best step among all is the best among their best: we rank all
candidates in one pool, by the fidelity of the whole topology.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from holdfast.planning.replicas.candidates import Segments
from holdfast.planning.replicas.completion import Completion, Present, present
from holdfast.planning.replicas.exchange import improved
from holdfast.planning.replicas.fidelity import LossModel
from holdfast.planning.replicas.greedy import greedy
from holdfast.planning.replicas.units import units_of

SHORTLIST = 16
"""So many of the candidates that look best are computed exactly in each step."""
MOST_EXCHANGED = 1_000
"""Up to so many partitions a plan is improved by exchanges (replica_exchange)."""
_LEAST_GAIN = 1e-9
"""Gains below this part of what there is are rounding."""
_SMALL = 1_000
"""Up to so many partitions, candidates are ranked anew after every step."""
_STEPS_PER_RANKING = 12
"""Beyond, a ranking serves so many steps, as long as the short list beats the rest."""
_TIDY = 64
"""After so many rankings, segments that are wholly replicated are left out of the ranking."""


def structure_aware(model: LossModel, budget: int, *, exchange: bool = True) -> list[int]:
    """Return the partitions to replicate, in the order they were chosen: by this planner or greedy, the better.

    `exchange` improves the plan afterwards where the topology is small enough; without it the plan is the paper's.
    """
    planner = StructureAware(model)
    own = planner.extended([], budget)
    return better_of(model, planner.exchanged(own, budget) if exchange else own, greedy(model, budget))


def better_of(model: LossModel, *plans: list[int]) -> list[int]:
    """Return the plan with most of the metric; the first of equals."""
    values = model.values(np.stack([model.only(plan) for plan in plans]))
    return plans[int(np.argmax(values))]


class StructureAware:
    """The planner without the comparison with greedy, made once for a topology, used for any start and budget."""

    def __init__(self, model: LossModel) -> None:
        self.model = model
        units = units_of(model)
        self._segments = Segments(model, units.segments, units.inside)

    def extended(self, replicas: Sequence[int], budget: int) -> list[int]:
        """Add replicas to some that there are, until the budget is used or nothing more helps."""
        chosen = list(replicas)
        alive = self.model.only(chosen)
        level = self.model.topology.level
        segments = self._segments.unfinished(alive)
        at_once = 1 if len(alive) <= _SMALL else _STEPS_PER_RANKING
        rankings = 0
        while len(chosen) < budget:
            steps = _best_steps(segments, present(self.model, alive), budget - len(chosen), at_once)
            if not steps:
                break
            for step in steps:
                added = sorted(step, key=lambda p: (-level[p], p))
                chosen += added
                alive[added] = True
            rankings += 1
            if rankings % _TIDY == 0:
                segments = segments.unfinished(alive)
        return chosen

    def exchanged(self, replicas: list[int], budget: int) -> list[int]:
        """Improve a plan by exchanges where the topology is small enough for that."""
        if not replicas or len(self.model.topology) > MOST_EXCHANGED:
            return replicas
        return improved(self.model, replicas, budget, self.extended)


def _best_steps(segments: Segments, now: Present, left: int, most: int) -> list[frozenset[int]]:
    """Return the best candidate that fits, and as many more as surely come next, at most `most`; none: it is over."""
    for cheapest in (False, True):
        completion = Completion(segments.model, now, cheapest=cheapest)
        gain, cost = segments.estimate(completion)
        density = np.where(gain > 0, gain / np.maximum(cost, 1.0), 0.0)
        ranked = np.argsort(-density, kind="stable")
        candidates: dict[frozenset[int], None] = {}
        next_best = 0.0
        for number in ranked[density[ranked] > 0].tolist():
            if len(candidates) == SHORTLIST:
                next_best = float(density[number])
                break
            added = segments.followed(number, completion)
            if 0 < len(added) <= left:
                candidates[added] = None
        found = _taken(segments.model, now, list(candidates), left, next_best, most)
        if found:
            return found
    return []


def _taken(
    model: LossModel, now: Present, candidates: list[frozenset[int]], left: int, next_best: float, most: int
) -> list[frozenset[int]]:
    """Take candidates by their exact density, while they beat what is not on the short list.

    `next_best` is the density of the best one that is not; it is taken to have grown with the metric since. A step of
    several partitions may make its neighbours cheaper, so it is the last before the next ranking.
    """
    alive = now.alive.copy()
    before = first = float(model.weight @ now.kept)
    taken: list[frozenset[int]] = []
    while len(taken) < most:
        candidates = [
            one for one in (frozenset(p for p in c if not alive[p]) for c in candidates) if 0 < len(one) <= left
        ]
        if not candidates:
            break
        sets = np.repeat(alive[None], len(candidates), axis=0)
        for row, added in enumerate(candidates):
            sets[row, list(added)] = True
        values = model.values(sets)
        density = (values - before) / np.array([len(added) for added in candidates])
        best = int(np.argmax(density))
        if values[best] - before <= _LEAST_GAIN * before or (taken and density[best] * first < next_best * before):
            break
        step = candidates[best]
        taken.append(step)
        alive[list(step)] = True
        left -= len(step)
        before = float(values[best])
        if len(step) > 1:
            break
    return taken
