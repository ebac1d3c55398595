"""Every structure of a small topology: the rival of the joint search. Pure; runs anywhere.

For each set of anchors, each set of operators whose outputs are kept and each code it takes the best intervals that
`intervals` finds. Backups are kept by whole operators here, as in the search's changes; with one partition per operator
these are all sets there are.
"""

from __future__ import annotations

from itertools import product

import numpy as np

from holdfast.errors import Undecided
from holdfast.planning.joint.intervals import best_intervals
from holdfast.planning.joint.model import Evaluation, JointModel, JointPlan
from holdfast.planning.joint.replicas import replica_mask
from holdfast.planning.joint.search import score_of

MOST_OPERATORS = 8


def plan_exhaustively(model: JointModel, *, one_segment: bool = False) -> tuple[JointPlan, Evaluation]:
    """Return the best of all structures, as the search scores them."""
    topology = model.topology
    size = len(topology.operators)
    if size > MOST_OPERATORS:
        raise Undecided(
            f"{size} operators have too many structures to try all",
            field="operators",
            remedy=f"use at most {MOST_OPERATORS}",
        )
    free = [] if one_segment else np.flatnonzero(model.anchorable).tolist()
    keepable = [n for n in range(size) if not model.sinks[model.own(n)].all()]
    replicas = replica_mask(topology, model.targets.replicas)
    best: tuple[JointPlan, Evaluation] | None = None
    for coding in model.codings:
        for chosen in product((False, True), repeat=len(free)):
            anchors = model.sources.copy()
            anchors[free] = chosen
            for kept in product((False, True), repeat=len(keepable)):
                backups = np.zeros(len(topology), bool)
                for operator, keep in zip(keepable, kept, strict=True):
                    backups[model.own(operator)] = keep & ~model.sinks[model.own(operator)]
                found = best_intervals(model, anchors, backups, replicas, coding)
                if best is None or score_of(*found) < score_of(*best):
                    best = found
    assert best is not None
    return best
