"""Replica plans by dynamic programming over MC-trees (PPA, Alg. 1, from the prose of sec. IV-A). Runs anywhere.

Plans are unions of MC-trees. They are made in the order of their size: a plan of the present size is extended by every
tree, and the result waits until its own size is reached. (The paper scans all plans at every size for trees that fit
exactly; each pair of plan and tree then comes up once too, at the size of their union.) A plan that can no longer grow
is dropped from memory, never from the competition: the best plan met so far is kept. The plan is optimal, for what is
in no complete MC-tree adds nothing; the time is exponential in the number of trees, so there is a limit.

Under completeness every partition counts by itself and joins are unions, so a tree may end anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from holdfast.planning.replicas.fidelity import LossModel, Mask, Metric
from holdfast.topology import Topology, mc_trees

MOST_PLANS = 1_000_000
"""So many plans are held at most; each takes about 200 bytes."""
_CHUNK = 4_096


@dataclass(frozen=True, slots=True)
class DpResult:
    """The best plan met, and whether all were."""

    replicas: tuple[int, ...]
    complete: bool


def dp(model: LossModel, budget: int, *, out_of_time: Callable[[], bool], most_plans: int = MOST_PLANS) -> DpResult:
    """Return the best plan; ends early, and reports it, when `out_of_time` is true or too many plans are held."""
    best = _Best(model)
    waiting: dict[int, list[int]] = {}
    seen: set[int] = set()
    trees: list[int] = []
    met: set[int] = set()
    complete = True
    for at, tree in enumerate(_trees(model)):
        if tree not in met:
            met.add(tree)
            if tree.bit_count() <= budget:
                trees.append(tree)
        if at % _CHUNK == 0 and (out_of_time() or len(met) > most_plans):
            complete = False
            break
    for tree in trees:
        seen.add(tree)
        waiting.setdefault(tree.bit_count(), []).append(tree)
    for size in range(1, budget + 1):
        plans = waiting.pop(size, [])
        best.offer(plans)
        for at, plan in enumerate(plans):
            if at % 64 == 0 and (out_of_time() or len(seen) > most_plans):
                for left in waiting.values():
                    best.offer(left)
                return DpResult(best.replicas, complete=False)
            for tree in trees:
                union = plan | tree
                if union not in seen and union.bit_count() <= budget:
                    seen.add(union)
                    waiting.setdefault(union.bit_count(), []).append(union)
    return DpResult(best.replicas, complete)


def counted_topology(model: LossModel) -> Topology:
    """Return the topology whose MC-trees are the plans' pieces under the model's metric."""
    if model.metric is Metric.FIDELITY:
        return model.topology
    return Topology(model.topology.name, [replace(o, joins=False, output=True) for o in model.topology.operators])


def _trees(model: LossModel) -> Iterator[int]:
    """List MC-trees as whole numbers, one bit per partition."""
    for tree in mc_trees(counted_topology(model)):
        yield sum(1 << p for p in tree)


class _Best:
    """The best plan met so far: most of the metric, then fewest replicas, then first met."""

    def __init__(self, model: LossModel) -> None:
        self._model = model
        self._value = 0.0
        self._plan = 0

    def offer(self, plans: list[int]) -> None:
        for start in range(0, len(plans), _CHUNK):
            part = plans[start : start + _CHUNK]
            values = self._model.values(_masks(part, len(self._model.topology)))
            first = int(np.argmax(values))
            if values[first] > self._value * (1 + 1e-12):
                self._value, self._plan = float(values[first]), part[first]

    @property
    def replicas(self) -> tuple[int, ...]:
        return tuple(p for p in range(len(self._model.topology)) if self._plan >> p & 1)


def _masks(plans: list[int], count: int) -> Mask:
    width = (count + 7) // 8
    packed = np.frombuffer(b"".join(plan.to_bytes(width, "little") for plan in plans), np.uint8)
    return np.unpackbits(packed.reshape(len(plans), width), axis=1, count=count, bitorder="little").astype(bool)
