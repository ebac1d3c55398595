"""Past PPA: improve a replica plan by growing it beyond its budget and pruning it back, and the other way round.

Runs anywhere. Adding by profit density never takes back a choice, and early choices are made when little is known:
which branch of a union to serve, where to begin. Growing to more than the budget, then giving up what costs least,
exchanges them; so does pruning below the budget and growing again. Each round keeps the better plan, and it ends when a
round brings nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from holdfast.planning.replicas.completion import present
from holdfast.planning.replicas.fidelity import LossModel

_SWINGS = (1.15, 0.8, 1.4, 0.5, 2.0)
"""How far beyond or below the budget a round goes, as a factor of it."""
_FEW = 120
"""Beyond so many partitions only the first two swings are made: the others take long and rarely bring more there."""
_ROUNDS = 3
_REAL = 1e-9

Extend = Callable[[Sequence[int], int], list[int]]
"""Adds to given replicas up to a budget."""


def improved(model: LossModel, replicas: list[int], budget: int, extend: Extend) -> list[int]:
    """Return a plan within the budget that is at least as good."""
    best, value = replicas, model.value_of(replicas)
    swings = _SWINGS if len(model.topology) <= _FEW else _SWINGS[:2]
    for _ in range(_ROUNDS):
        before = value
        for swing in swings:
            to = min(len(model.topology), max(round(budget * swing), budget + 1 if swing > 1 else 0))
            swung = extend(best, to) if swing > 1 else best
            other = extend(pruned(model, swung, min(to, budget if swing > 1 else budget - 1)), budget)
            if model.value_of(other) > value * (1 + _REAL):
                best, value = other, model.value_of(other)
        if value <= before:
            break
    return best


def pruned(model: LossModel, replicas: Sequence[int], budget: int) -> list[int]:
    """Give up replicas until the budget is kept: first what is of no use, then what costs least, one at a time."""
    chosen = list(replicas)
    alive = model.only(chosen)
    while True:
        now = present(model, alive)
        loss = now.kept * now.slope
        useless = alive & (loss <= 0)
        alive[useless] = False
        if int(alive.sum()) <= budget:
            return [p for p in chosen if alive[p]]
        standing = np.flatnonzero(alive)
        alive[standing[np.argmin(loss[standing])]] = False
