"""What is down when some nodes are lost, for how long and at what fidelity, under a plan. Pure; runs anywhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from holdfast.errors import BadInput
from holdfast.planning.joint.explaining import query_seconds
from holdfast.planning.joint.model import JointModel, JointPlan, Mask
from holdfast.planning.recovery.best_density import best_density
from holdfast.planning.recovery.problem import RecoveryProblem
from holdfast.planning.replicas.fidelity import LossModel

MOST_SETS = 2_000
"""Up to so many sets of nodes are looked at for the worst; beyond, the worst node is added again and again."""


def chosen_nodes(model: JointModel, placement: Mapping[str, str], given: str) -> tuple[str, ...]:
    """Return the nodes named `a,b`, or, for a number, those whose loss takes the most priority down."""
    nodes = sorted(set(placement.values()))
    if not given.strip().isdigit():
        named = tuple(one.strip() for one in given.split(",") if one.strip())
        for one in named:
            if one not in nodes:
                there = ", ".join(nodes[:6])
                raise BadInput(f"there is no node {one!r}", field="--lose", remedy=f"give a number, or of {there}")
        return named
    count = int(given)
    if not 0 < count <= len(nodes):
        raise BadInput(f"{count} of {len(nodes)} nodes", field="--lose", remedy=f"give 1 to {len(nodes)}")
    if math.comb(len(nodes), count) <= MOST_SETS:
        sets: list[tuple[str, ...]] = list(combinations(nodes, count))
        return max(sets, key=lambda one: _priority_down(model, failed_on(model, placement, one)))
    lost: tuple[str, ...] = ()
    for _ in range(count):
        rest = [(*lost, one) for one in nodes if one not in lost]
        lost = max(rest, key=lambda one: _priority_down(model, failed_on(model, placement, one)))
    return lost


def failed_on(model: JointModel, placement: Mapping[str, str], nodes: Sequence[str]) -> Mask:
    """Return the partitions that are on some nodes."""
    failed = np.zeros(len(model.topology), bool)
    gone = set(nodes)
    failed[[model.topology.index(p) for p, node in placement.items() if node in gone]] = True
    return failed


def _down(model: JointModel, failed: Mask) -> Mask:
    return query_seconds(model, failed.astype(float)) > 0


def _priority_down(model: JointModel, failed: Mask) -> int:
    return int(model.queries.priority[_down(model, failed)].sum())


def losing(model: JointModel, plan: JointPlan, placement: Mapping[str, str], nodes: Sequence[str]) -> dict[str, Any]:
    """Return which queries are down after the loss of these nodes, for how long, and the fidelity meanwhile."""
    topology, assumed = model.topology, model.assumed
    failed = failed_on(model, placement, nodes)
    left = len(set(placement.values())) - len(set(nodes))
    cores = 1.0 if math.isinf(assumed.cores) else max(1.0, assumed.cores)
    crowding = max(1.0, math.ceil(int(failed.sum()) / (left * cores))) if left else 1.0
    fixed, slope = model.parts(plan, crowding)
    length, _ = model.longest(fixed, slope, plan.backups & ~failed, plan.anchors, stored=~failed)
    back = query_seconds(model, np.where(failed, length, 0.0)) + assumed.fixed_seconds
    down = _down(model, failed)
    waiting = np.zeros(len(down), bool)
    if left == 0:
        waiting = down.copy()
    elif not math.isinf(assumed.cores):
        spare = left * assumed.cores * assumed.bound - float(topology.cost[~failed].sum())
        problem = RecoveryProblem(topology, failed, max(0.0, spare), queries=model.queries)
        restored = {str(p) for p in best_density(problem).queries}
        heads = [str(p) for p in topology.partitions(model.queries.heads.tolist())]
        waiting = down & np.array([head not in restored for head in heads], bool)
    loss = LossModel(topology)
    kept = loss.sweep(~failed)[0]
    heads_of = topology.partitions(model.queries.heads.tolist())
    return {
        "nodes": list(nodes),
        "partitions": [str(p) for p in topology.partitions(np.flatnonzero(failed).tolist())],
        "fidelity": loss.value(~failed),
        "survives": not plan.coding.parity or len(set(nodes)) <= plan.coding.parity,
        "down": [
            {
                "query": str(heads_of[number]),
                "priority": int(model.queries.priority[number]),
                "seconds": None if waiting[number] else float(f"{back[number]:.6g}"),
                "waits_for_nodes": bool(waiting[number]),
                "fidelity": float(kept[model.queries.heads[number]]),
            }
            for number in np.flatnonzero(down).tolist()
        ],
        "queries": len(down),
    }
