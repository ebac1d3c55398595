"""The one checker of joint plans: whether a run may execute a plan, and which targets it misses. Pure."""

from __future__ import annotations

import math

import numpy as np

from holdfast.planning.joint.model import TOLERANCE, Evaluation, JointModel, JointPlan
from holdfast.wording import counted


def problems_of(model: JointModel, plan: JointPlan) -> list[str]:
    """Return what is wrong with a plan; nothing when it may be used. Every search, the tests and the run ask here."""
    return unsound(model, plan) + missed_targets(model, model.evaluate(plan))


def unsound(model: JointModel, plan: JointPlan) -> list[str]:
    """Return why no run may execute a plan, whatever its targets are."""
    topology, assumed, found = model.topology, model.assumed, []
    for number, operator in enumerate(topology.operators):
        if model.sources[number] and not plan.anchors[number]:
            found.append(f"source {operator.id} is not an anchor: its inputs would be lost")
        if (
            not assumed.least_interval * (1 - TOLERANCE)
            <= plan.interval[number]
            <= assumed.greatest_interval * (1 + TOLERANCE)
        ):
            found.append(f"{operator.id} checkpoints every {plan.interval[number]:g} s, outside of the limits")
    for link in range(len(topology.link_from)):
        up, down = int(topology.link_from[link]), int(topology.link_to[link])
        if not plan.anchors[down] and not math.isclose(plan.interval[up], plan.interval[down], rel_tol=1e-6):
            names = f"{topology.operators[up].id} and {topology.operators[down].id}"
            found.append(f"{names} are in one segment and checkpoint at different intervals")
    if plan.coding.total > model.peers and not model.keeps_code:
        found.append(f"{plan.coding} needs {plan.coding.total} peers, there are {model.peers}")
    if model.peers > 1 and not model.keeps_code and plan.coding.parity < max(1, model.targets.survive):
        found.append(f"{plan.coding} does not survive the loss of {counted(max(1, model.targets.survive), 'node')}")
    if not model.targets.replicas.allows(topology, np.flatnonzero(plan.replicas).tolist()):
        found.append("there are more replicas than the budget allows")
    return found


def missed_targets(model: JointModel, evaluated: Evaluation) -> list[str]:
    """Return the targets that a plan misses, by what it comes to."""
    found = []
    if evaluated.excess:
        limit = model.targets.overhead_limit
        found.append(f"an overhead of {evaluated.overhead:.4g} is above the allowed {limit:.4g}")
    if evaluated.late:
        worst = int(np.argmax(evaluated.promised / model.limit))
        seconds = evaluated.promised[worst]
        found.append(f"{model.topology.partition(worst)} is back after {seconds:.4g} s, above {model.limit[worst]:g} s")
    return found
