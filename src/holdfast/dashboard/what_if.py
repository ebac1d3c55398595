"""What if: these nodes or this rack are lost, under the run's settings or under another plan. Runs where a page does.

The answer is that of `holdfast plan explain --lose`: from the profile that the driver keeps in the run's directory.
With `plan=auto` the same loss is answered for the joint plan that targets lead to, so that people can move a target or
a budget and see what it would bring.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import BadInput
from holdfast.planning.joint.as_set import as_set, placed_as_measured
from holdfast.planning.joint.losing import chosen_nodes, losing
from holdfast.planning.joint.model import JointModel, JointPlan
from holdfast.planning.joint.search import plan_jointly
from holdfast.planning.joint.targets import Targets, assumptions_of, targets
from holdfast.store.client.tuning import first_code
from holdfast.topology import Topology

PLAN_SECONDS = 2.0
"""What a plan may take; the best one so far is used."""
KNOWN = frozenset({"lose", "domain", "plan", "recovery", "overhead", "survive"})

Profile = tuple[Topology, Mapping[str, Any]]


def what_if(
    profile: Profile,
    asked: Mapping[str, str],
    domains: Mapping[str, str],
    *,
    placement: Mapping[str, str] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Any]:
    """Answer what is down after a loss: `lose` is a number of nodes or their names, `domain` a rack or zone.

    `domains` are those of the nodes; `placement` where partitions are now, None: as the profile has it. `plan`:
    `settings` (the run as it is) or `auto`, with `recovery` (priority:seconds,…), `overhead` and `survive`.
    """
    if strange := sorted(set(asked) - KNOWN):
        raise BadInput(f"{strange[0]!r} is not a field of a what-if", remedy=f"give {', '.join(sorted(KNOWN))}")
    topology, measured = profile
    wanted = _targets(asked)
    model = JointModel(topology, wanted, assumptions_of(dict(measured)))
    placement = placement or placed_as_measured(measured)
    if not placement:
        raise BadInput("the profile does not say where partitions are", remedy="ask again after the next checkpoint")
    nodes = _nodes(model, placement, asked, domains)
    plan, which = _plan(model, measured, asked, clock)
    answer = losing(model, plan, placement, nodes)
    answer["down"].sort(key=lambda one: (-one["priority"], one["query"]))
    code = plan.coding
    return {
        **answer,
        "total": len(topology),
        "plan": which,
        "interval_seconds": round(float(plan.interval.min()), 3),
        "backups": int(plan.backups.sum()),
        "fragments": {"data": code.data, "parity": code.parity},
        "measured_at": measured.get("at"),
    }


def _nodes(
    model: JointModel, placement: Mapping[str, str], asked: Mapping[str, str], domains: Mapping[str, str]
) -> tuple[str, ...]:
    domain, lose = asked.get("domain"), asked.get("lose")
    if domain and lose:
        raise BadInput("a what-if loses nodes or a domain, not both", remedy="give lose or domain")
    if domain:
        found = tuple(sorted({node for node in placement.values() if domains.get(node) == domain}))
        if not found:
            raise BadInput(f"no node is in domain {domain!r}", field="domain", remedy="name one that the page shows")
        return found
    if not lose:
        raise BadInput("a what-if needs something to lose", remedy="give lose=1, lose=NODE,NODE or domain=RACK")
    return chosen_nodes(model, placement, lose)


def _targets(asked: Mapping[str, str]) -> Targets:
    if asked.get("plan", "settings") not in ("settings", "auto"):
        raise BadInput(f"{asked['plan']!r} is not a plan", field="plan", remedy="give settings or auto")
    if asked.get("plan", "settings") == "settings":
        return Targets(overhead=1.0)  # a run without a plan has no targets: its figures are predictions
    times: dict[int, float | str] = {}
    try:
        for one in filter(None, asked.get("recovery", "").split(",")):
            priority, _, within = one.partition(":")
            times[int(priority)] = float(within)
        overhead = float(asked["overhead"]) if asked.get("overhead") else None
        survive = int(asked.get("survive") or 0)
    except ValueError:
        raise BadInput("is not a target", field="recovery", remedy="write recovery=5:20,1:60") from None
    return targets(recovery=times, overhead=overhead, survive=survive)


def _plan(
    model: JointModel, measured: Mapping[str, Any], asked: Mapping[str, str], clock: Callable[[], float]
) -> tuple[JointPlan, str]:
    if asked.get("plan", "settings") == "settings":
        return as_set(model, measured, first_code), "the run's settings"
    found = plan_jointly(model, clock=clock, seconds=PLAN_SECONDS)
    return found.plan, "plan auto" if found.keeps_targets else "plan auto, which misses a target"
