"""The plan that a run executes: from targets, from a plan's file, or from `auto`. Runs on the driver, before a start.

What a run executes of a joint plan: segments with their checkpoint intervals, the backups, the replicas, and the code,
as the share of nodes whose loss a checkpoint survives, so that the ring may grow and shrink. Replicas follow measured
rates from then on, but for those that recovery times rest on. Settings that somebody has set go before the plan, and a
line says so. A plan of segments only, or of backups only, is executed too: the rest is as the settings say, and the
promises are those that follow from the plan's own times.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.errors import BadInput, HoldfastError, Undecided
from holdfast.ids import PartitionId
from holdfast.planning.joint.checking import missed_targets, problems_of, unsound
from holdfast.planning.joint.conflicts import refuse, require_room
from holdfast.planning.joint.explaining import plan_document, promises_of, read_plan, replicas_without_room
from holdfast.planning.joint.model import JointModel, JointPlan
from holdfast.planning.joint.replicas import fixed_replicas
from holdfast.planning.joint.search import Planned, plan_jointly
from holdfast.planning.joint.targets import Targets, assumptions_of
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.recovery.executed_plan import ExecutedPlan, SegmentInterval
from holdfast.recovery.segments import ALL_PARTITIONS, ONE_SEGMENT
from holdfast.runtime.coordinator.plan_keeping import Replanning
from holdfast.runtime.coordinator.profile_records import last_profile
from holdfast.spark.planned_backups import read_backups
from holdfast.spark.planned_promises import promises_line
from holdfast.spark.planned_segments import NEVER, PlannedSegments, planned_segments, read_segments, segment_promises
from holdfast.spark.replicas import PlannedReplicas
from holdfast.spark.settings import PREFIX, Settings
from holdfast.storage.storage import Storage
from holdfast.topology import Topology, fingerprint, from_document, smallest_mc_tree_size
from holdfast.wording import counted

AUTO = "auto"
BUDGET = f"{PREFIX}replicas.budget"
PLAN_SECONDS = 3.0
"""How long a start may plan."""


@dataclass(frozen=True, slots=True, eq=False)
class RunPlan:
    """What a run executes, and what it promises by that."""

    document: Mapping[str, Any]
    """The whole plan, as `holdfast plan auto --json` prints it."""
    interval: float | None
    """The shortest of the segments' intervals, in seconds; None: as the settings say."""
    backups: frozenset[PartitionId] | None
    """None: as the settings say."""
    tolerate: float | None
    """Share of the nodes whose loss a checkpoint survives; None: there are no fragments."""
    predicted: tuple[Mapping[str, Any], ...]
    """The promises of what is executed."""
    lines: tuple[str, ...]
    """For people: what is planned, and what is not executed."""
    segments: PlannedSegments = field(default_factory=PlannedSegments)
    replicas: PlannedReplicas | None = None
    origin: str = ""
    """Names what was asked for: a restart that asks for the same goes on with the last plan made from it."""
    takes_budget: bool = False
    """Whether the replicas are those of the budget that was set by hand."""
    joint: tuple[JointModel, JointPlan] | None = None
    """The model and the plan; None: it is not a joint plan, and is not made again."""

    def applied(self, settings: Settings, given: Mapping[str, str]) -> tuple[Settings, list[str]]:
        """Return the settings with the plan's; what was set by hand stays, with a line about it."""
        wanted: dict[str, tuple[str, Any]] = {}
        if self.interval is not None:
            wanted["checkpoint_seconds"] = ("checkpoint.seconds", self.interval)
            wanted["checkpoint_batches"] = ("checkpoint.batches", NEVER)
        fixed = {f"{PREFIX}store.dataFragments", f"{PREFIX}store.parityFragments"} & set(given)
        if self.tolerate is not None and not fixed:
            wanted["store_tolerate_node_loss"] = ("store.tolerateNodeLoss", self.tolerate)
        changed, kept = {}, []
        for name, (key, value) in wanted.items():
            if PREFIX + key in given:
                kept.append(PREFIX + key)
            else:
                changed[name] = value
        kept += sorted(fixed)
        if f"{PREFIX}retention" in given:
            kept.append(f"{PREFIX}retention")
        if self.takes_budget and f"{PREFIX}replicas.algorithm" not in given:
            changed["replicas_budget"] = None  # the plan's replicas are within it
        elif self.replicas is not None and self.replicas.partitions and BUDGET in given:
            kept.append(BUDGET)
        line = f"set by hand, so not as planned, and promises may not hold: {', '.join(kept)}"
        return replace(settings, **changed), [line] if kept else []

    def executed_segments(self, given: Mapping[str, str]) -> PlannedSegments:
        """Return the segments that a run executes; an interval that was set by hand is that of all of them."""
        by_hand = {f"{PREFIX}checkpoint.seconds", f"{PREFIX}checkpoint.batches"} & set(given)
        if not by_hand:
            return self.segments
        plain = replace(self.segments.segments, multiples={})
        return replace(self.segments, segments=plain, intervals=(), shortest=math.inf)

    def replanning(
        self, settings: Settings, given: Mapping[str, str], submit: Callable[[Callable[[], Planned]], Future[Planned]]
    ) -> Replanning | None:
        """Return how the plan is made again while the run goes on; None: it stays, or a part of it was set by hand."""
        by_hand = {f"{PREFIX}{name}" for name in ("checkpoint.seconds", "checkpoint.batches", "retention")} & set(given)
        if self.joint is None or self.interval is None or by_hand or settings.plan_adapt == "false":
            return None
        model, plan = self.joint

        def search(model: JointModel) -> Planned:
            return plan_jointly(model, clock=time.perf_counter, seconds=PLAN_SECONDS)

        return Replanning(
            model.targets,
            model.assumed,
            plan.coding,
            self.interval,
            search,
            executed_plan,
            submit,
            model.never_anchors,
        )

    def event(self) -> dict[str, Any]:
        """Return what the event `plan` says."""
        document = self.document
        return {
            "topology": document["topology"],
            "targets": document["targets"],
            "interval_seconds": self.interval,
            "segments": self.segments.described(),
            "backups": sorted(str(p) for p in self.backups or ()),
            "replicas": [str(p) for p in (self.replicas.partitions if self.replicas else ())],
            "fragments": document["fragments"],
            "not_executed": document["executed"]["not_executed"],
            "predicted": [dict(one) for one in self.predicted],
        }


def executed_plan(model: JointModel, plan: JointPlan) -> ExecutedPlan:
    """Return what a run executes of a joint plan."""
    operators = [str(operator.id) for operator in model.topology.operators]
    found = planned_segments(
        model.topology,
        [name for name, anchor in zip(operators, plan.anchors.tolist(), strict=True) if anchor],
        dict(zip(operators, plan.interval.tolist(), strict=True)),
    )
    return ExecutedPlan(
        found.segments if found.segments.many else ONE_SEGMENT,
        frozenset(model.topology.partitions([int(v) for v in plan.backups.nonzero()[0]])),
        found.intervals or (SegmentInterval(ALL_PARTITIONS, NEVER, found.shortest),),
    )


def plan_for_run(
    given: object,
    topology: Topology,
    storage: Storage | None,
    *,
    nodes: int | None = None,
    never_anchors: Iterable[str] = (),
    replicas: str | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> RunPlan | None:
    """Return the plan for a run: `auto`, targets, or a plan's file; None where none is asked for.

    `auto` and targets plan with the profile that an earlier driver of the run has left in its storage, where it is of
    this topology; else with what the application declares. Contradicting targets end with status 3, before a start. No
    segment begins with one of `never_anchors`. A file's plan that misses its targets is executed, and a line says so.
    `replicas` is the budget that somebody has set: `auto` and targets plan with it; a line says so where targets have
    another one.
    """
    if given is None:
        return None
    if isinstance(given, Targets) or given == AUTO:
        wanted = given if isinstance(given, Targets) else Targets()
        remarks: tuple[str, ...] = ()
        if replicas is not None:
            budget, targeted = _budget(replicas), wanted.replicas
            if targeted.any and targeted != budget:
                remarks = (f"{BUDGET}={budget} is set, and goes before hf.targets(replicas={targeted})",)
            wanted = replace(wanted, replicas=budget)
        made = _made(wanted, topology, storage, nodes, frozenset(never_anchors), clock)
        return replace(made, takes_budget=replicas is not None, lines=(*made.lines, *remarks))
    if not isinstance(given, str | Path):
        raise BadInput(f"{given!r} is not a plan", field="plan", remedy='give "auto", a plan\'s file, or hf.targets(…)')
    where = str(given)
    try:
        document = json.loads(Path(given).read_bytes())
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror}", where=where, remedy="give a plan's file") from None
    except ValueError:
        raise BadInput("is not JSON", where=where, remedy="give what `holdfast plan auto --json` printed") from None
    if isinstance(document, dict) and "plan" not in document:
        if "frequency" in document:
            return _segments_only(document, topology, where)
        if "backups" in document:
            return _backups_only(document, topology, where)
    model, plan, measured = read_plan(document, where, topology)
    model = JointModel(model.topology, model.targets, model.assumed, never_anchors=never_anchors)
    if problems := unsound(model, plan):
        remedy = "plan again with `holdfast plan auto --json`"
        raise BadInput(f"has a plan that no run may execute: {'; '.join(problems[:3])}", where=where, remedy=remedy)
    asked = {key: document[key] for key in ("topology", "targets", "segments", "backups", "fragments")}
    return replace(_run_plan(model, plan, measured), origin=_origin(asked), joint=(model, plan))


def _made(
    wanted: Targets,
    topology: Topology,
    storage: Storage | None,
    nodes: int | None,
    never_anchors: frozenset[str],
    clock: Callable[[], float],
) -> RunPlan:
    measured: dict[str, Any] | None = None
    assumed = assumptions_of(None)
    if storage is not None and (document := last_profile(storage)) is not None:
        # A profile that another version wrote, and that this one cannot read, is measured again.
        with suppress(HoldfastError):
            known, about = from_document(document), document.get("measured")
            if fingerprint(known) == fingerprint(topology):
                assumed = assumptions_of(about)
                topology, measured = known, about
    if nodes is not None and "nodes" not in assumed.sources:
        assumed = assumed.given(nodes=nodes)
    require_room(topology, wanted, assumed)
    model = JointModel(topology, wanted, assumed, never_anchors=never_anchors)
    found = plan_jointly(model, clock=clock, seconds=PLAN_SECONDS)
    if not found.keeps_targets:
        raise refuse(model, clock, finished=found.finished)
    if problems := problems_of(model, found.plan):
        raise Undecided(f"the plan that was found is not valid: {'; '.join(problems)}", remedy="give a plan's file")
    asked = {"topology": fingerprint(topology), "targets": wanted.document()}
    made = replace(_run_plan(model, found.plan, measured), origin=_origin(asked), joint=(model, found.plan))
    if wanted.replicas.any and made.replicas is not None and not made.replicas.partitions:
        least, count = smallest_mc_tree_size(topology), wanted.replicas.count_for(topology)
        budget = wanted.replicas if count is None else counted(count, "replica")
        line = f"a budget of {budget} keeps no output alive, so none is started: the smallest tree "
        made = replace(made, lines=(*made.lines, f"{line}from sources to an output has {least} partitions"))
    return made


def _budget(text: str) -> ReplicaBudget:
    try:
        return ReplicaBudget.parse(text)
    except ValueError:
        remedy = "give a whole number, a share from 0.0 to 1.0, or cores like '4 cores'"
        raise BadInput(f"{text!r} is not a budget", field=BUDGET, remedy=remedy) from None


def _origin(asked: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:16]


def _segments_only(document: Mapping[str, Any], topology: Topology, where: str) -> RunPlan:
    found = read_segments(document, topology, where)
    names = found.segments.names
    intervals = {one.segment: one.seconds for one in found.intervals} or {names[0]: found.shortest}
    shown = ", ".join(f"{name} every {seconds:.3g} s" for name, seconds in intervals.items())
    promises = segment_promises(document, topology, where)
    lines = found.lines
    if not promises:
        lines = (*lines, "the plan of segments has no recovery_seconds: it promises nothing; plan it again")
    return RunPlan(
        document=_partial(document, found.lines, promises),
        interval=found.shortest,
        backups=None,
        tolerate=None,
        predicted=tuple(promises),
        lines=(f"plan: {counted(len(names), 'segment')}, a checkpoint of {shown}{promises_line(promises)}", *lines),
        segments=found,
    )


def _backups_only(document: Mapping[str, Any], topology: Topology, where: str) -> RunPlan:
    found = read_backups(document, topology, where)
    promises = list(found.promises)
    how_often = "" if found.interval is None else f", a checkpoint every {found.interval:.3g} s"
    return RunPlan(
        document=_partial(document, found.lines, promises, found.survive),
        interval=found.interval,
        backups=found.backups,
        tolerate=None,
        predicted=found.promises,
        lines=(f"plan: {counted(len(found.backups), 'backup')}{how_often}{promises_line(promises)}", *found.lines),
    )


def _partial(
    document: Mapping[str, Any], not_executed: Sequence[str], promises: list[dict[str, Any]], survive: int = 0
) -> dict[str, Any]:
    """Return the document of a plan of one kind with what readers of a joint plan ask for."""
    return {
        "topology": None,
        "fragments": None,
        **document,
        "targets": Targets(survive=survive).document(),
        "executed": {"not_executed": list(not_executed), "promises": promises},
    }


def _run_plan(model: JointModel, plan: JointPlan, measured: Mapping[str, Any] | None) -> RunPlan:
    evaluated = model.evaluate(plan)
    promises = tuple(promises_of(model, plan, evaluated))
    code = plan.coding
    backups = frozenset(model.topology.partitions([int(v) for v in plan.backups.nonzero()[0]]))
    slowest = max((one["predicted"] for one in promises if one["what"] == "recovery"), default=0.0)
    operators = [str(operator.id) for operator in model.topology.operators]
    segments = planned_segments(
        model.topology,
        [name for name, anchor in zip(operators, plan.anchors.tolist(), strict=True) if anchor],
        dict(zip(operators, plan.interval.tolist(), strict=True)),
    )
    replicas = _replicas(model, plan)
    many = len(segments.segments.names)
    how_often = f"a checkpoint every {plan.interval.min():.3g} s"
    if many > 1:
        how_often = f"{many} segments, a checkpoint every {plan.interval.min():.3g} to {plan.interval.max():.3g} s"
    lines = [
        f"plan: {how_often}, {len(backups)} backups, {len(replicas.partitions)} replicas, fragments {code}; "
        f"predicted: all queries back within {slowest:.3g} s, overhead {evaluated.overhead:.2%}",
        *(f"the plan misses a target: {one}" for one in missed_targets(model, evaluated)),
        *(f"the plan does not promise {one}" for one in replicas_without_room(model, plan)),
    ]
    return RunPlan(
        document=plan_document(model, plan, measured),
        interval=float(plan.interval.min()),
        backups=backups,
        # A little more: of as many nodes as were planned for, the share must come to k whatever is rounded.
        tolerate=(code.parity + 1e-6) / code.total if code.parity else None,
        predicted=promises,
        lines=tuple(lines),
        segments=segments,
        replicas=replicas,
    )


def _replicas(model: JointModel, plan: JointPlan) -> PlannedReplicas:
    """Return a plan's replicas; those that are not for fidelity are there for recovery times, and stay."""
    fixed = fixed_replicas(model.topology, plan.replicas)
    every = model.topology.partitions(plan.replicas.nonzero()[0].tolist())
    cores = model.targets.replicas.cores
    left = None if cores is None else max(0.0, cores - float(model.topology.cost[fixed].sum()))
    return PlannedReplicas(tuple(every), tuple(model.topology.partitions(fixed.nonzero()[0].tolist())), left)
