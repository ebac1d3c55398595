"""A joint plan in words and numbers: what it costs, what it promises, what it cannot promise. Pure; runs anywhere.

`plan_document` is what `holdfast plan auto --json` prints and what a run reads; `read_plan` makes a plan of it again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput
from holdfast.planning.joint.intervals import segments_of
from holdfast.planning.joint.model import Evaluation, JointModel, JointPlan
from holdfast.planning.joint.targets import Assumptions, Targets
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.planning.replicas.fidelity import LossModel
from holdfast.topology import Floats, Topology, as_mask, from_document, made_for, require_made_for, to_document
from holdfast.wording import counted

FORMAT = 1
_AT_ONCE = 512


def query_seconds(model: JointModel, seconds: Floats) -> Floats:
    """Return, per query, the longest of its partitions' times."""
    queries, found = model.queries, np.zeros(len(model.queries))
    for first in range(0, len(queries), _AT_ONCE):
        some = np.arange(first, min(first + _AT_ONCE, len(queries)))
        found[some] = np.where(queries.matrix(some), seconds, 0.0).max(axis=1)
    return found


def promises_of(model: JointModel, plan: JointPlan, evaluated: Evaluation) -> list[dict[str, Any]]:
    """Return what a plan promises: recovery of every query, overhead, losses, fidelity."""
    heads = model.topology.partitions(model.queries.heads.tolist())
    promised, alone = query_seconds(model, evaluated.promised), query_seconds(model, evaluated.alone)
    found: list[dict[str, Any]] = [
        {
            "what": "recovery",
            "query": str(head),
            "priority": int(model.queries.priority[number]),
            "predicted": _short(promised[number]),
            "alone": _short(alone[number]),
            "target": None if math.isinf(model.query_limit[number]) else float(model.query_limit[number]),
        }
        for number, head in enumerate(heads)
    ]
    found.append(
        {
            "what": "overhead",
            "query": None,
            "predicted": _short(evaluated.overhead),
            "target": model.targets.overhead_limit,
        }
    )
    found.append({"what": "survive", "query": None, "predicted": plan.coding.parity, "target": model.targets.survive})
    if plan.replicas.any():
        value = LossModel(model.topology).value_of(np.flatnonzero(model.placed(plan.replicas)).tolist())
        found.append({"what": "fidelity", "query": None, "predicted": _short(value), "target": None})
    return found


def plan_document(
    model: JointModel, plan: JointPlan, measured: Mapping[str, Any] | None = None, **about: Any
) -> dict[str, Any]:
    """Return a plan as the contract prints it, with everything that is needed to explain or execute it."""
    topology, evaluated = model.topology, model.evaluate(plan)
    number = segments_of(model, plan.anchors)
    names = [str(operator.id) for operator in topology.operators]
    segments = []
    for segment in range(int(number.max()) + 1):
        members = [n for n in topology.operator_order if number[n] == segment]
        segments.append(
            {
                "operators": [names[n] for n in members],
                "anchors": [names[n] for n in members if plan.anchors[n]],
                "interval_seconds": _short(plan.interval[members[0]]),
            }
        )
    kept = model.output_bytes[plan.backups] * plan.interval[topology.operator_of[plan.backups]]
    spread = plan.coding.total / plan.coding.data
    promises = promises_of(model, plan, evaluated)
    return {
        "plan": FORMAT,
        "topology": made_for(topology),
        "segments": segments,
        "backups": [str(p) for p in topology.partitions(np.flatnonzero(plan.backups).tolist())],
        "replicas": [str(p) for p in topology.partitions(np.flatnonzero(plan.replicas).tolist())],
        "fragments": {
            "data": plan.coding.data,
            "parity": plan.coding.parity,
            "total": plan.coding.total,
            "success": model.success(plan.coding),
            "storage_overhead": plan.coding.parity / plan.coding.data,
        },
        "promises": promises,
        "cost": {
            "overhead": _short(evaluated.overhead),
            "checkpoints": _short(evaluated.checkpoint_overhead),
            "anchors": _short(evaluated.anchor_overhead),
            "backups": _short(evaluated.backup_overhead),
            "source_log": _short(float(model.input_bytes[topology.is_source].sum() / model.assumed.bandwidth)),
            "backup_bytes": _short(float(kept.sum())),
            "stored_bytes": _short(float(model.state.sum()) * spread),
            "replica_cost": _short(float(topology.cost[plan.replicas].sum())),
        },
        "downtime": _short(evaluated.downtime),
        "executed": {
            "interval_seconds": _short(plan.interval.min()),
            "not_executed": [],
            "promises": promises,
        },
        "cannot_promise": cannot_promise(model, plan),
        "explanation": explanation(model, plan, evaluated),
        "targets": model.targets.document(),
        "assumptions": model.assumed.document(),
        "profile": to_document(topology, measured),
        **about,
    }


def explanation(model: JointModel, plan: JointPlan, evaluated: Evaluation) -> list[str]:
    """Return what a plan does, costs and promises, a line each."""
    topology, targets, assumed = model.topology, model.targets, model.assumed
    promised = query_seconds(model, evaluated.promised)
    lines = []
    losses = _losses(model)
    for least in sorted({int(one) for one in model.queries.priority}, reverse=True):
        mine = model.queries.priority == least
        asked = targets.seconds_for(least)
        wanted = "no target" if math.isinf(asked) else f"target {asked:g} s"
        count = int(mine.sum())
        lines.append(
            f"priority {least}: {count} {'query' if count == 1 else 'queries'}, back within "
            f"{promised[mine].max():.3g} s after {losses} ({wanted})"
        )
    parts = f"checkpoints {evaluated.checkpoint_overhead:.2%}, inputs of anchors {evaluated.anchor_overhead:.2%}, "
    lines.append(
        f"overhead {evaluated.overhead:.2%} of {_bytes(assumed.bandwidth)}/s "
        f"(allowed {targets.overhead_limit:.2%}): {parts}"
        f"backups {evaluated.backup_overhead:.2%}"
    )
    number = segments_of(model, plan.anchors)
    for segment in range(int(number.max()) + 1):
        members = [n for n in topology.operator_order if number[n] == segment]
        names = _some([str(topology.operators[n].id) for n in members])
        stored = [str(topology.operators[n].id) for n in members if plan.anchors[n] and not model.sources[n]]
        also = f"; inputs stored before {_some(stored)}" if stored else ""
        lines.append(f"checkpoint every {plan.interval[members[0]]:.3g} s: {names}{also}")
    kept = topology.partitions(np.flatnonzero(plan.backups).tolist())
    if kept:
        size = model.output_bytes[plan.backups] * plan.interval[topology.operator_of[plan.backups]]
        lines.append(
            f"backups: {len(kept)} of {len(topology)} partitions keep their output, at most "
            f"{_bytes(float(size.sum()))} on disk: {_some([str(p) for p in kept])}"
        )
    else:
        lines.append("backups: none")
    code = plan.coding
    lines.append(
        f"fragments: {code.data} data + {code.parity} parity on {code.total} nodes: checkpoints survive the loss of "
        f"any {code.parity}, stored {code.total / code.data:.2f} times"
        if code.parity
        else "fragments: none, every checkpoint goes to the run's directory"
    )
    if plan.replicas.any():
        placed = model.placed(plan.replicas)
        value = LossModel(topology).value_of(np.flatnonzero(placed).tolist())
        twice = [str(p) for p in topology.partitions(np.flatnonzero(plan.replicas).tolist())]
        left_out = int((plan.replicas & ~placed).sum())
        room = f", {left_out} of them without room" if left_out else ""
        lines.append(f"replicas: {_some(twice)}{room}; fidelity {value:.3g} when everything else is lost")
    return lines


def cannot_promise(model: JointModel, plan: JointPlan) -> list[str]:
    """Return what the plan does not cover, a line each."""
    targets, assumed, found = model.targets, model.assumed, []
    free = int(np.isinf(model.query_limit).sum())
    if free:
        found.append(f"{free} of {len(model.query_limit)} queries have no recovery target: their times are predictions")
    if targets.survive == 0:
        found.append("losses of whole nodes: backups and what they serve may be lost together (give --survive)")
    else:
        found.append(f"losses of more than {counted(targets.survive, 'node')} at once")
    if targets.survive == 1 and not model.topology.domains and plan.backups.any():
        found.append("backups after the loss of a node: no failure domains say where they are, so they do not count")
    if targets.survive >= 2 and (plan.backups.any() or plan.replicas.any()):
        found.append("backups and replicas after such a loss: they may be lost with what they serve, and do not count")
    if targets.survive and (plan.anchors & ~model.sources).any():
        found.append(
            "that anchors wait for no sender after such a loss: a sender that is lost as well makes again what it sent "
            "since its checkpoint, and the promises count that"
        )
    if not assumed.nodes:
        found.append("room for what is lost on the nodes that are left: how many there are is not known (--nodes)")
    elif math.isinf(assumed.cores):
        found.append("room for what is lost on the nodes that are left: their cores are not known")
    found += replicas_without_room(model, plan)
    if plan.replicas.any() and (not assumed.nodes or math.isinf(assumed.cores)):
        found.append("room for replicas: nodes or their cores are not known, and one without room takes over nothing")
    if (busy := np.flatnonzero(model.work >= 1.0)).size:
        worst = int(busy[np.argmax(model.work[busy])])
        found.append(
            f"that {counted(len(busy), 'partition')} ever catch up: {model.topology.partition(worst)} needs "
            f"{model.work[worst]:.3g} s for a second of input (tuple_seconds x rate)"
        )
    if model.rates_assumed:
        found.append("how often failures come: no failure rates are known, one in 30 days of each operator is assumed")
    named = ("bandwidth", "restore_bandwidth", "fixed_seconds")
    guessed = [f"{name.replace('_', ' ')} {getattr(assumed, name):g}" for name in named if name not in assumed.sources]
    if guessed:
        found.append(f"times on a machine of which nothing was measured: assumed are {', '.join(guessed)}")
    return found


def replicas_without_room(model: JointModel, plan: JointPlan) -> list[str]:
    """Return which replicas of a plan find no room, in a line; nothing where all do."""
    assumed, topology = model.assumed, model.topology
    left_out = np.flatnonzero(plan.replicas & ~model.placed(plan.replicas)).tolist()
    if not left_out:
        return []
    names = _some([str(p) for p in topology.partitions(left_out)])
    what = f"take-over by {counted(len(left_out), 'replica')} without room: {names}"
    if assumed.nodes == 1:
        return [f"{what}; a replica needs a node besides that of its primary"]
    free = max(0.0, assumed.nodes * assumed.cores * assumed.bound - float(topology.cost.sum()))
    return [
        f"{what}; besides the primaries {assumed.nodes} nodes of {assumed.cores:g} cores have {free:.4g} within the "
        f"bound of {assumed.bound:g}"
    ]


def _losses(model: JointModel) -> str:
    lost = model.targets.survive
    if not lost:
        return "the failure of a partition"
    return "the loss of a node" if lost == 1 else f"the loss of any {lost} nodes"


# -- reading -----------------------------------------------------------------------------------------------------------


def read_plan(
    document: object, where: str, topology: Topology | None = None
) -> tuple[JointModel, JointPlan, dict[str, Any] | None]:
    """Make a plan of its document again, with the values of its own profile.

    `topology`: what it must have been made for. Its declared values are not those that the plan was made with.
    """
    remedy = "give what `holdfast plan auto --json` printed"
    if not isinstance(document, Mapping) or document.get("plan") != FORMAT:
        raise BadInput("is not a joint plan", where=where, remedy=remedy)
    try:
        mine = from_document(document["profile"])
        if topology is not None:
            require_made_for(document, topology, where=where)
            require_made_for({"topology": made_for(mine)}, topology, where=where)
        asked = document["targets"]
        targets = Targets(
            tuple(sorted((int(priority), float(within)) for priority, within in asked["recovery"].items())),
            float(asked["overhead"]),
            int(asked["survive"]),
            ReplicaBudget.read(asked["replicas"]),
        )
        model = JointModel(mine, targets, Assumptions.read(document["assumptions"]))
        anchors, interval = np.zeros(len(mine.operators), bool), np.zeros(len(mine.operators))
        for segment in document["segments"]:
            for name in segment["operators"]:
                interval[mine.position(name)] = float(segment["interval_seconds"])
            for name in segment["anchors"]:
                anchors[mine.position(name)] = True
        code = document["fragments"]
        plan = JointPlan(
            anchors,
            interval,
            as_mask(mine, mine.indices(document["backups"])),
            as_mask(mine, mine.indices(document["replicas"])),
            Coding(int(code["data"]), int(code["parity"])),
        )
        if not (plan.interval > 0).all():
            raise ValueError("an operator is in no segment")
        return model, plan, document["profile"].get("measured")
    except BadInput as error:
        raise (error if error.where else error.placed(where)) from None
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"is not a whole plan: {type(error).__name__}: {error}", where=where, remedy=remedy) from None


def _short(value: Any) -> float:
    return float(f"{float(value):.6g}")


def _bytes(size: float) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} B"


def _some(names: list[str], most: int = 6) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


__all__ = [
    "cannot_promise",
    "explanation",
    "plan_document",
    "promises_of",
    "query_seconds",
    "read_plan",
    "replicas_without_room",
]
