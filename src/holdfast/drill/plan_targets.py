"""What a drill's run is planned for, and whether the promises of its plan were kept. Runs anywhere; pure.

A promise counts where no more nodes were lost than it was made for. One that was asked for (a target) and was broken
fails the drill. A prediction that nobody asked for, and that was too short, leaves it unknown; so does a recovery
target that no outage tested.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.drill.checkers import Check, Verdict
from holdfast.drill.history import Event
from holdfast.drill.settings import AUTO, DrillSettings
from holdfast.planning.joint.targets import Targets, recovery_times, targets
from holdfast.wording import counted


def plan_of_drill(asked: DrillSettings) -> str | Targets | None:
    """Return the plan that the run executes: `auto` is made for the loss of as many nodes as the drill takes at once.

    A plan for partitions that fail alone promises nothing about a node that is killed, and no drill would test it.
    """
    lost = min(asked.kill + asked.freeze, asked.nodes - 1)
    if asked.plan != AUTO or not (lost > 0 or asked.recovery or asked.overhead is not None):
        return asked.plan
    return targets(recovery=recovery_times(asked.recovery), overhead=asked.overhead, survive=lost)


def check_promises(asked: DrillSettings, history: Sequence[Event]) -> Check | None:
    """Compare the recoveries that were measured with what the plan promised; None: there was nothing to compare."""
    seen = [event.fields for event in history if event.kind == "promise"]
    counting = [one for one in seen if one["kept"] is not None]
    broken = [one for one in counting if one["kept"] is False]
    missed = [one for one in broken if one["target"] is not None]
    if broken:
        worst = max(missed or broken, key=lambda one: one["measured"] - (one["target"] or one["predicted"]))
        words = f"{worst['query']} was back after {worst['measured']:.1f} s, predicted {worst['predicted']:.3g} s"
        words = f"{len(broken)} of {counted(len(counting), 'promise')} broken: {words}"
        if missed:
            return Check("promises", Verdict.FAILED, f"{words}, target {worst['target']:g} s")
        return Check("promises", Verdict.UNKNOWN, f"{words}, and no target was asked for")
    if counting:
        return Check("promises", Verdict.OK, f"{counted(len(counting), 'promise')} kept")
    if not asked.recovery:
        return None
    why = "more nodes were lost at once than they are for" if seen else "no query that has one was down and back"
    return Check("promises", Verdict.UNKNOWN, f"no recovery target was tested: {why}")
