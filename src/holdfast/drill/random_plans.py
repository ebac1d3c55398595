"""Plans drawn from a seed, for mixed drills: segments, backups, all of them jointly, or auto. Runs anywhere; pure.

A drawn plan is any plan that a run may execute, not a good one: a drill shows that whatever is planned, every row comes
out once. It promises nothing, so that no prediction is judged; `auto` alone is a plan that was searched for, and its
promises count. All draws are of branches of their own: what else a seed gives stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.drill.settings import AUTO, DrillSettings, DrillStrategy
from holdfast.planning.fragments.choice import all_codings
from holdfast.planning.joint.explaining import plan_document
from holdfast.planning.joint.intervals import segments_of as joint_segments_of
from holdfast.planning.joint.model import JointModel, JointPlan
from holdfast.planning.joint.targets import Assumptions, Targets
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.recovery.segments import segments_of
from holdfast.topology import Topology, made_for
from holdfast.topology.draws import Draws

KINDS = ("segments", "backups", "joint", AUTO)
SHORTEST, LONGEST = 2.0, 12.0
"""Seconds between checkpoints: a drill's stream lasts some tens of them."""
MOST_REPLICAS = 4


def draw_plan(asked: DrillSettings, topology: Topology) -> str | Mapping[str, Any]:
    """Draw the plan of one drill: `auto`, or the document of a plan's file."""
    draws = Draws(asked.seed).branch("mixed drill: plan")
    match draws.pick(KINDS):
        case "segments":
            return _segments(draws, topology)
        case "backups":
            kept = np.flatnonzero(_backups(draws, topology)).tolist()
            return {
                "topology": made_for(topology),
                "backups": [str(p) for p in topology.partitions(kept)],
                "interval_seconds": draws.real(SHORTEST, LONGEST),
            }
        case "joint":
            return _joint(draws, topology, asked)
        case _:
            return AUTO


def _anchors(draws: Draws, topology: Topology) -> list[str]:
    """Draw who is an anchor besides the sources: none, some or all operators."""
    share = draws.pick((0.2, 0.5, 1.0))
    return [str(one.id) for one in topology.operators if draws.chance(share) or one.is_source]


def _backups(draws: Draws, topology: Topology) -> list[bool]:
    share = draws.pick((0.0, 0.3, 0.7, 1.0))
    return [draws.chance(share) for _ in topology.partitions()]


def _segments(draws: Draws, topology: Topology) -> dict[str, Any]:
    """Draw segments with intervals; in half of the plans some operators save twice as often as their segment."""
    anchors = _anchors(draws, topology)
    found = segments_of(topology, anchors)
    interval = {name: draws.real(SHORTEST, LONGEST) for name in sorted(set(found.operators.values()))}
    twice = draws.pick((0.0, 0.4))
    frequency = {
        str(operator): (2 if draws.chance(twice) else 1) / interval[segment]
        for operator, segment in found.operators.items()
    }
    return {"topology": made_for(topology), "anchors": anchors, "frequency": frequency}


def _joint(draws: Draws, topology: Topology, asked: DrillSettings) -> dict[str, Any]:
    """Draw a joint plan for partitions that fail alone, which promises nothing about nodes."""
    able = asked.exchange != "shuffle" and asked.strategy is not DrillStrategy.SOURCE_REPLAY and asked.replicas is None
    replicas = np.zeros(len(topology), bool)
    replicas[draws.sample(range(len(topology)), draws.whole(0, MOST_REPLICAS) if able else 0)] = True
    targets = Targets(replicas=ReplicaBudget(count=int(replicas.sum())))
    model = JointModel(topology, targets, Assumptions().given(nodes=asked.nodes))
    chosen = set(_anchors(draws, topology))
    anchors = np.array([str(one.id) in chosen for one in topology.operators], bool)
    number = joint_segments_of(model, anchors)
    intervals = [draws.real(SHORTEST, LONGEST) for _ in range(int(number.max()) + 1)]
    codings = all_codings(model.peers) if model.peers > 1 else model.codings
    plan = JointPlan(
        anchors,
        np.array(intervals)[number],
        np.array(_backups(draws, topology), bool),
        replicas,
        draws.pick([one for one in codings if one.parity or model.peers == 1]),
    )
    return plan_document(model, plan)
