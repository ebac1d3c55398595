"""Whether a plan still holds with what is measured now, and when another takes its place: with hysteresis. Pure.

A plan is *looked at* with a model of the present measurements. It is made again when one of its promises does not hold
any more, or when what it comes to has drifted from what it came to when it was chosen. The plan that is found takes its
place only where that is worth it: it keeps targets that the present one breaks, or its expected downtime is less by a
fifth. A plan stays for at least two of its longest checkpoint intervals. One that goes back to the plan before stays
four times as long: measurements that swing let a plan swing once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from holdfast.planning.joint.explaining import query_seconds
from holdfast.planning.joint.model import Evaluation, JointModel, JointPlan

DRIFT = 0.25
"""By what share the overhead or the longest recovery has to differ from when the plan was chosen."""
GAIN = 0.2
"""By what share the downtime of another plan has to be less, where both keep the targets."""
LESS_VIOLATION = 0.02
"""By what share of a target a plan has to be nearer, where neither keeps all targets."""
INTERVALS = 2.0
"""A plan stays for at least so many of its longest intervals."""
AFTER_GOING_BACK = 4.0
"""And for so many times as long where it went back to the one before."""
SAME_INTERVAL = 0.15
"""Intervals that differ by less are taken for the same when a plan goes back."""


@dataclass(frozen=True, slots=True, eq=False)
class Look:
    """What the plan in force comes to with what is measured now."""

    evaluation: Evaluation
    recovery: float
    """The longest promised recovery of a query, in seconds."""
    drift: float
    """By what share the overhead or the longest recovery differs from when the plan was chosen."""
    replan: str | None
    """Why another plan is to be looked for; None: there is no reason, or it is too soon."""


class PlanJudge:
    """Judges the plan in force, and what is found to follow it."""

    def __init__(self, now: float) -> None:
        self._since = now
        self._then: tuple[float, float] | None = None
        """Overhead and longest recovery of the plan in force when it was first looked at."""
        self._before: JointPlan | None = None
        """The plan that the one in force took the place of."""
        self._patience = INTERVALS

    def look(self, now: float, model: JointModel, plan: JointPlan) -> Look:
        """Say what the plan in force comes to now, and whether it is to be made again."""
        evaluated = model.evaluate(plan)
        recovery = float(query_seconds(model, evaluated.promised).max(initial=0.0))
        if self._then is None:
            self._then = evaluated.overhead, recovery
        drift = max(_change(evaluated.overhead, self._then[0]), _change(recovery, self._then[1]))
        why = None
        if now - self._since >= self._patience * float(plan.interval.max()):
            if evaluated.late:
                why = "a recovery target does not hold any more"
            elif evaluated.excess:
                why = "the overhead is above its target"
            elif drift >= DRIFT:
                why = f"measurements have drifted by {drift:.0%}"
        return Look(evaluated, recovery, drift, why)

    def declined(self, model: JointModel, plan: JointPlan) -> None:
        """No better plan was found: what the one in force comes to now is what drift is measured from."""
        evaluated = model.evaluate(plan)
        self._then = evaluated.overhead, float(query_seconds(model, evaluated.promised).max(initial=0.0))

    def accepts(self, model: JointModel, plan: JointPlan, then: Evaluation) -> bool:
        """Whether a plan that was found, and comes to this, takes the place of the one in force."""
        now = model.evaluate(plan)
        if now.violation > 0 or then.violation > 0:
            return then.violation < now.violation - LESS_VIOLATION or (then.violation == 0.0 < now.violation)
        return then.downtime < now.downtime * (1 - GAIN)

    def changed(self, now: float, before: JointPlan, plan: JointPlan) -> None:
        """Another plan has taken effect."""
        back = self._before is not None and _is_like(self._before, plan)
        self._patience = INTERVALS * (AFTER_GOING_BACK if back else 1.0)
        self._since, self._then, self._before = now, None, before


def _change(now: float, then: float) -> float:
    return abs(now / then - 1.0) if then > 0 else (0.0 if now <= 0 else math.inf)


def _is_like(one: JointPlan, other: JointPlan) -> bool:
    """Whether plans are the same up to small differences of intervals."""
    return (
        bool(np.array_equal(one.anchors, other.anchors))
        and bool(np.array_equal(one.backups, other.backups))
        and bool((np.abs(one.interval / other.interval - 1.0) < SAME_INTERVAL).all())
    )
