"""Keeps a run's plan true: measures what it promised, and has it made again beside the stream. Runs on the driver.

At checkpoints the plan in force is evaluated with what was measured in the last checkpoint interval or so, and its
overhead is measured: bytes and CPU of snapshots, with the sent blocks that they hold. Event `plan-measured` has
predicted and measured values side by side; `promise-alarm` says that a promise does not hold any more, and
`promise-holds` that it does again. Another plan is searched for in a thread, and never in the loop of the coordinator;
the recovery machine decides when it takes effect. Nothing here is needed for correctness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput, HoldfastError, one_line
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.planning.joint.checking import unsound
from holdfast.planning.joint.explaining import promises_of
from holdfast.planning.joint.judging import Look, PlanJudge
from holdfast.planning.joint.model import JointModel, JointPlan
from holdfast.planning.joint.search import Planned
from holdfast.planning.joint.targets import Assumptions, Targets, assumptions_of
from holdfast.planning.profiles.run_profile import profiled
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import Effect
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.runtime.coordinator.profiling import Profiler, SavedSnapshots
from holdfast.runtime.messages import Measures, SnapshotStored
from holdfast.topology import Topology, as_mask

LEAST_SECONDS = 5.0
"""Between two looks, and measured before the first one."""
MOST_WINDOW = 300.0
OVERHEAD_SLACK = 0.2
"""A measured overhead may be above its target by this share before it is an alarm."""


@dataclass(frozen=True, slots=True)
class Replanning:
    """How plans of a run are made again."""

    targets: Targets
    assumed: Assumptions
    coding: Coding
    """The code of the run: it stays."""
    interval: float
    """Seconds between checkpoints where a plan names none."""
    plan: Callable[[JointModel], Planned]
    convert: Callable[[JointModel, JointPlan], ExecutedPlan]
    submit: Callable[[Callable[[], Planned]], Future[Planned]]
    """Begins a search beside the stream."""
    never_anchors: frozenset[str] = frozenset()
    """Operators that no segment may begin with."""


Finding = tuple[str, dict[str, Any], str | None]
"""An event's kind and fields, and a line for people."""


class PlanKeeping:
    """Measures one run, and proposes plans."""

    def __init__(self, topology: Topology, partitions: Iterable[PartitionId], how: Replanning, now: float) -> None:
        """`topology` has the declared values, which hold where nothing is measured."""
        self._topology, self._partitions, self._how = topology, tuple(partitions), how
        self._judge = PlanJudge(now)
        self._recent = Profiler(self._partitions, now, period=_window(how.interval))
        self._looked_at = now
        self._saved = SavedSnapshots()
        """Since the last look. Sums: in a recovery, which may wait for nodes for days, nothing is looked at."""
        self._alarms: set[str] = set()
        self._search: Future[Planned] | None = None
        self._model: JointModel | None = None
        """The model that the search has."""
        self._why = ""

    # -- what happens --------------------------------------------------------------------------------------------------

    def reported(self, now: float, partition: PartitionId, measures: Measures, batches: int, *, steady: bool) -> None:
        """Count what a partition did."""
        self._recent.reported(now, partition, measures, batches, steady=steady)

    def marked(self, now: float, batch: BatchId) -> None:
        """A checkpoint is marked at a batch."""
        self._recent.marked(now, batch)

    def took_effect(self, now: float, effects: Iterable[Effect]) -> None:
        """Take what the recovery machine decided."""
        self._recent.took_effect(now, effects)

    def saved(self, now: float, stored: SnapshotStored) -> None:
        """Count what a snapshot took."""
        self._saved.snapshots += 1
        self._saved.bytes += stored.size
        self._saved.cpu_seconds += stored.cpu_seconds

    def changed(self, now: float, before: ExecutedPlan, plan: ExecutedPlan) -> None:
        """Another plan has taken effect; what it costs is measured from now on."""
        model = self._model or self._modelled(now, 0.0, {}, {})
        self._judge.changed(now, self._joint(model, before, ()), self._joint(model, plan, ()))
        self._recent.measure_over(_window(self._longest(plan)))
        self._saved = SavedSnapshots()
        self._looked_at = now

    # -- looking -------------------------------------------------------------------------------------------------------

    def look(self, now: float, at: float, state: ClusterState) -> list[Finding]:
        """Compare the plan in force with what is measured; begin to search for another where it is time.

        Not in a recovery: what partitions do then says little about what follows it.
        """
        plan = state.plan.now
        window = _window(self._longest(plan))
        self._recent.measure_over(window)  # the plan in force is not always that of the start
        if now - self._looked_at < window * 0.9 or state.recovering or state.plan.next is not None:
            return []
        model = self._modelled(now, at, state.placement, state.nodes)
        joint = self._joint(model, plan, state.copies.replicas)
        look = self._judge.look(now, model, joint)
        measured, fields = self._overhead(now, model, joint, look)
        self._looked_at = now
        findings: list[Finding] = [("plan-measured", {"number": plan.number, **fields}, None)]
        findings += self._alarmed(model, joint, look, measured)
        why = look.replan
        if why is not None and self._search is None:
            self._why, self._model = why, model
            try:
                self._search = self._how.submit(lambda: self._how.plan(model))
            except RuntimeError as error:  # no thread can be started now: the next look tries again
                findings.append(_not_found(error))
        return findings

    def taken(self, now: float, state: ClusterState) -> tuple[ExecutedPlan | None, list[Finding]]:
        """Return the plan that a search has found and that is worth a change; None: there is none now."""
        search, model = self._search, self._model
        if search is None or model is None or not search.done():
            return None, []
        self._search = None
        joint = self._joint(model, state.plan.now, state.copies.replicas)
        try:
            found = search.result()
        except Exception as error:  # whatever ends a search: it runs beside the stream, and must not end the run
            self._judge.declined(model, joint)
            return None, [_not_found(error)]
        if problems := unsound(model, replace(found.plan, replicas=np.zeros(len(model.topology), bool))):
            self._judge.declined(model, joint)
            return None, [_not_found(BadInput(f"the plan that was found is not valid: {'; '.join(problems)}"))]
        # Replicas are those of the run: which partitions have one is decided elsewhere.
        executed = replace(found.plan, replicas=joint.replicas)
        evaluated = model.evaluate(executed)
        if not self._judge.accepts(model, joint, evaluated):
            self._judge.declined(model, joint)
            return None, []
        predicted = promises_of(model, executed, evaluated)
        made = self._how.convert(model, executed)
        return replace(made, about={"why": self._why, "predicted": predicted}), []

    def _longest(self, plan: ExecutedPlan) -> float:
        seconds = [one.seconds for one in plan.intervals if math.isfinite(one.seconds)]
        return max(seconds, default=self._how.interval)

    def _modelled(
        self, now: float, at: float, placement: Mapping[PartitionId, Any], nodes: Mapping[Any, float]
    ) -> JointModel:
        profile = self._recent.profile(now, at, placement, nodes)
        topology, measured = profiled(self._topology, profile)
        how, found = self._how, assumptions_of(measured)
        given = {name: getattr(how.assumed, name) for name, source in how.assumed.sources.items() if source == "given"}
        if how.assumed.nodes and "nodes" not in found.sources:
            given["nodes"] = how.assumed.nodes
        assumed = replace(found, **given)
        return JointModel(topology, how.targets, assumed, coding=how.coding, never_anchors=how.never_anchors)

    def _joint(self, model: JointModel, plan: ExecutedPlan, replicas: Iterable[PartitionId]) -> JointPlan:
        """Return the plan in force as the model has plans."""
        topology, segments = model.topology, plan.segments
        seconds = {one.segment: one.seconds for one in plan.intervals if math.isfinite(one.seconds)}
        names = [OperatorId(operator.id) for operator in topology.operators]
        interval = [
            seconds.get(segments.operators[name] if segments.many else segments.names[0], self._how.interval)
            for name in names
        ]
        return JointPlan(
            np.array([name in segments.anchors for name in names], bool) | model.sources,
            np.array(interval, float),
            as_mask(topology, topology.indices(sorted(map(str, plan.backups)))),
            as_mask(topology, topology.indices(sorted(map(str, replicas)))),
            self._how.coding,
        )

    def _overhead(self, now: float, model: JointModel, plan: JointPlan, look: Look) -> tuple[float, dict[str, Any]]:
        """Return the overhead that was measured since the last look, and what the event says."""
        seconds = max(1e-9, now - self._looked_at)
        saved, self._saved = self._saved, SavedSnapshots()
        size, cpu = saved.bytes, saved.cpu_seconds
        spread, assumed = plan.coding.total / plan.coding.data, model.assumed
        stored = (size * spread / assumed.bandwidth + saved.snapshots * assumed.snapshot_seconds) / seconds
        measured = stored + look.evaluation.backup_overhead
        return measured, {
            "seconds": round(seconds, 3),
            "overhead": {
                "predicted": float(f"{look.evaluation.overhead:.4g}"),
                "measured": float(f"{measured:.4g}"),
                "target": model.targets.overhead_limit,
            },
            "snapshots": saved.snapshots,
            "stored_bytes_per_second": round(size / seconds, 1),
            "cpu_share": float(f"{cpu / seconds:.4g}"),
            "recovery": {
                "predicted": float(f"{look.recovery:.4g}"),
                "target": _soonest(model),
            },
            "drift": float(f"{min(look.drift, 1e6):.4g}"),
        }

    def _alarmed(self, model: JointModel, plan: JointPlan, look: Look, measured: float) -> list[Finding]:
        """Return what changed about which promises hold."""
        broken: dict[str, tuple[float, float]] = {}
        for one in promises_of(model, plan, look.evaluation):
            if one["what"] == "recovery" and one["target"] is not None and one["predicted"] > one["target"]:
                broken[f"recovery of {one['query']}"] = one["predicted"], one["target"]
        limit = model.targets.overhead_limit
        overhead = max(look.evaluation.overhead, measured / (1 + OVERHEAD_SLACK))
        if overhead > limit * (1 + 1e-9):
            broken["overhead"] = overhead, limit
        findings: list[Finding] = []
        for what, (value, target) in broken.items():
            if what not in self._alarms:
                unit = " of the bandwidth" if what == "overhead" else " s"
                line = (
                    f"a promise of the plan does not hold with present measurements: {what} is {value:.3g}{unit}, the "
                    f"target is {target:.3g}"
                )
                findings.append(("promise-alarm", {"what": what, "now": value, "target": target}, line))
        for what in sorted(self._alarms - set(broken)):
            findings.append(("promise-holds", {"what": what}, f"a promise of the plan holds again: {what}"))
        self._alarms = set(broken)
        return findings


def _window(interval: float) -> float:
    """Return over how many seconds a plan with such an interval is measured."""
    return min(MOST_WINDOW, max(LEAST_SECONDS, interval))


def _not_found(error: Exception) -> Finding:
    """Return the event and the line of a search that failed."""
    why = one_line(str(error)) or type(error).__name__
    if not isinstance(error, HoldfastError):
        why = f"{type(error).__name__}: {why}"
    return (
        "plan-not-found",
        {"problem": why},
        f"the search for another plan failed, and the plan in force stays: {why}",
    )


def _soonest(model: JointModel) -> float | None:
    asked = model.query_limit[np.isfinite(model.query_limit)]
    return float(asked.min()) if asked.size else None
