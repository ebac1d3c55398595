"""One joint plan: several starts, single changes, then pairs, then fewer backups. Pure; the clock is an argument.

A structure is who is an anchor, who keeps a backup, who has a replica and the code; its best intervals follow
(`intervals`). The search starts from the plain structures (nothing, every output kept, every operator an anchor) and
from what the planners of the papers give one after the other, and changes one operator at a time, the best change
first. Because the plan of one after the other is a start, with its own intervals too, the joint plan is never worse.
Up to 12 operators pairs of changes are tried as well. At the end backups that change nothing are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput, NoPlan, Undecided
from holdfast.planning.backups.algorithms import BackupAlgorithm, plan_backups
from holdfast.planning.backups.model import BackupProblem
from holdfast.planning.joint.intervals import best_intervals, segments_of
from holdfast.planning.joint.model import TOLERANCE, Evaluation, JointModel, JointPlan, Mask
from holdfast.planning.joint.replicas import replica_mask
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.planning.segments.algorithms import plan_segments
from holdfast.planning.segments.grid import FrequencyGrid
from holdfast.planning.segments.model import model_of
from holdfast.topology import Floats

PAIRS_UP_TO = 12
"""Operators up to which pairs of changes are tried."""
SEGMENTS_UP_TO = 40
"""Operators up to which the planner of segments is asked for a start: a second or two at most."""
BACKUP_SECONDS = 1.0
DEFAULT_SECONDS = 8.0
_LEAST_GAIN = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan, what it comes to, and how it was found."""

    plan: JointPlan
    evaluation: Evaluation
    looked_at: int
    """Structures that were evaluated."""
    finished: bool
    """Whether the search ended by itself, and not because its time was over."""
    notes: tuple[str, ...] = ()

    @property
    def keeps_targets(self) -> bool:
        """Whether every target is kept."""
        return self.evaluation.violation == 0.0

    @property
    def score(self) -> tuple[float, float, int]:
        """What is compared, less is better: distance from the targets, downtime, backups."""
        return score_of(self.plan, self.evaluation)


def score_of(plan: JointPlan, found: Evaluation) -> tuple[float, float, int]:
    """Return what plans are compared by, less is better."""
    return found.violation, found.downtime, int(plan.backups.sum())


class Search:
    """Looks at structures of one model."""

    def __init__(
        self,
        model: JointModel,
        clock: Callable[[], float],
        seconds: float = DEFAULT_SECONDS,
        *,
        one_segment: bool = False,
    ) -> None:
        """`one_segment`: only sources are anchors."""
        self.model, self._clock, self._until = model, clock, clock() + seconds
        self.looked_at, self.finished = 0, True
        self.notes: list[str] = []
        size = len(model.topology.operators)
        self.anchorable = np.zeros(0, np.int64) if one_segment else np.flatnonzero(model.anchorable)
        self.keepable = np.array([n for n in range(size) if not model.sinks[model.own(n)].all()], np.int64)
        self.replicas = replica_mask(model.topology, model.targets.replicas)
        self._best: tuple[JointPlan, Evaluation] | None = None

    @property
    def out_of_time(self) -> bool:
        """Whether the time is over."""
        return self._clock() >= self._until

    def look(self, anchors: Mask, backups: Mask, replicas: Mask, coding: Coding) -> tuple[JointPlan, Evaluation]:
        """Evaluate a structure with its best intervals."""
        self.looked_at += 1
        found = best_intervals(self.model, anchors, backups, replicas, coding)
        self.offer(*found)
        return found

    def offer(self, plan: JointPlan, found: Evaluation) -> None:
        """Keep a plan that is the best so far."""
        if self._best is None or score_of(plan, found) < score_of(*self._best):
            self._best = plan, found

    def run(self) -> Planned:
        """Search from all starts; return the best plan found."""
        model = self.model
        nobody = np.zeros(len(model.topology), bool)
        keeps = ~model.sinks
        sources, everyone = model.sources.copy(), model.sources.copy()
        everyone[self.anchorable] = True
        codings = model.codings
        starts = [(sources, nobody), (sources, keeps), (everyone, nobody)]
        sequential = self._one_after_the_other()
        if sequential is not None:
            self.offer(*sequential)
            starts.append((sequential[0].anchors, sequential[0].backups))
        for anchors, backups in starts:
            plan, found = self.look(anchors, backups, self.replicas, codings[0])
            if self.out_of_time:
                self.finished = False
                break
            self._descend(plan, found)
        self._other_codings()
        self._forced_replicas()
        self._fewer_backups()
        assert self._best is not None
        plan, found = self._best
        return Planned(plan, found, self.looked_at, self.finished, tuple(self.notes))

    def _one_after_the_other(self) -> tuple[JointPlan, Evaluation] | None:
        # The planner of segments may take any operator for an anchor.
        whole = not len(self.anchorable) or bool(self.model.never_anchors)
        plan, notes = one_after_the_other(self.model, self._clock, self.replicas, one_segment=whole)
        self.notes += notes
        return None if plan is None else (plan, self.model.evaluate(plan))

    # -- changes -------------------------------------------------------------------------------------------------------

    def _changes(self) -> list[tuple[str, int]]:
        return [("anchor", int(n)) for n in self.anchorable] + [("keep", int(n)) for n in self.keepable]

    def _changed(self, plan: JointPlan, changes: tuple[tuple[str, int], ...]) -> tuple[Mask, Mask]:
        anchors, backups = plan.anchors.copy(), plan.backups.copy()
        for kind, operator in changes:
            if kind == "anchor":
                anchors[operator] = not anchors[operator]
            else:
                own = self.model.own(operator)
                backups[own] = ~backups[own].any() & ~self.model.sinks[own]
        return anchors, backups

    def _descend(self, plan: JointPlan, found: Evaluation) -> None:
        """Make the best single change as long as one helps, then the first pair that does.

        In topologies of more operators every change that helps is made at once: one pass makes many.
        """
        changes = self._changes()
        small = len(self.model.topology.operators) <= PAIRS_UP_TO
        while not self.out_of_time:
            better = self._best_of(plan, found, [(one,) for one in changes]) if small else self._pass(plan, found)
            if better is None and small:
                better = self._best_of(plan, found, list(combinations(changes, 2)), first=True)
            if better is None:
                break
            plan, found = better
        self.finished = self.finished and not self.out_of_time

    def _pass(self, plan: JointPlan, found: Evaluation) -> tuple[JointPlan, Evaluation] | None:
        """Try every change once, and make each that helps; None where none does."""
        at, helped = (plan, found), False
        for change in self._changes():
            if self.out_of_time:
                break
            tried = self.look(*self._changed(at[0], (change,)), at[0].replicas, at[0].coding)
            if _helps(tried, at):
                at, helped = tried, True
        return at if helped else None

    def _best_of(
        self,
        plan: JointPlan,
        found: Evaluation,
        ways: list[tuple[tuple[str, int], ...]],
        *,
        first: bool = False,
    ) -> tuple[JointPlan, Evaluation] | None:
        best: tuple[JointPlan, Evaluation] | None = None
        for way in ways:
            if self.out_of_time:
                break
            tried = self.look(*self._changed(plan, way), plan.replicas, plan.coding)
            base = (plan, found) if best is None else best
            if _helps(tried, base):
                best = tried
                if first:
                    break
        return best

    def _other_codings(self) -> None:
        assert self._best is not None
        plan = self._best[0]
        for coding in self.model.codings:
            if coding != plan.coding and not self.out_of_time:
                changed, found = self.look(plan.anchors, plan.backups, plan.replicas, coding)
                if _helps((changed, found), self._best):
                    self._descend(changed, found)

    def _forced_replicas(self) -> None:
        """Where partitions are late whatever is kept, let their replicas go before those for fidelity."""
        assert self._best is not None
        plan, found = self._best
        model = self.model
        if not found.late or model.targets.survive >= 2 or not self.replicas.any() or self.out_of_time:
            return
        budget = model.targets.replicas
        if budget.cores is None:
            budget = ReplicaBudget(count=int(self.replicas.sum()))
        over = found.promised / model.limit
        order = np.argsort(-over, kind="stable")
        chosen: list[int] = []
        for one in dict.fromkeys([*order[over[order] > 1.0].tolist(), *np.flatnonzero(self.replicas).tolist()]):
            if budget.allows(model.topology, [*chosen, one]):
                chosen.append(one)
        forced = np.zeros(len(model.topology), bool)
        forced[chosen] = True
        self._descend(*self.look(plan.anchors, plan.backups, forced, plan.coding))

    def _fewer_backups(self) -> None:
        """Drop, operator by operator, as many of the backups as changes nothing: those of the shortest paths first."""
        assert self._best is not None
        for operator in self.keepable.tolist():
            plan, found = self._best
            own = np.arange(len(self.model.topology))[self.model.own(operator)]
            kept = own[plan.backups[own]]
            kept = kept[np.argsort(found.alone[kept], kind="stable")]
            low, high = 0, len(kept)
            while low < high and not self.out_of_time:
                middle = (low + high + 1) // 2
                backups = plan.backups.copy()
                backups[kept[:middle]] = False
                _, tried = self.look(plan.anchors, backups, plan.replicas, plan.coding)
                same = tried.violation <= found.violation and tried.downtime <= found.downtime * (1 + _LEAST_GAIN)
                low, high = (middle, high) if same else (low, middle - 1)
            if low:
                backups = plan.backups.copy()
                backups[kept[:low]] = False
                dropped = best_intervals(self.model, plan.anchors, backups, plan.replicas, plan.coding)
                if dropped[1].violation <= found.violation and dropped[1].downtime <= found.downtime * (
                    1 + _LEAST_GAIN
                ):
                    self._best = dropped


def _helps(tried: tuple[JointPlan, Evaluation], base: tuple[JointPlan, Evaluation]) -> bool:
    one, other = tried[1], base[1]
    if abs(one.violation - other.violation) > TOLERANCE * max(1.0, other.violation):
        return one.violation < other.violation
    if abs(one.downtime - other.downtime) > _LEAST_GAIN * other.downtime:
        return one.downtime < other.downtime
    return int(tried[0].backups.sum()) < int(base[0].backups.sum())


def plan_jointly(
    model: JointModel,
    *,
    clock: Callable[[], float],
    seconds: float = DEFAULT_SECONDS,
    one_segment: bool = False,
) -> Planned:
    """Return the best joint plan found within so many seconds; it may miss targets (`keeps_targets`)."""
    return Search(model, clock, seconds, one_segment=one_segment).run()


def one_after_the_other(
    model: JointModel, clock: Callable[[], float], replicas: Mask, *, one_segment: bool = False
) -> tuple[JointPlan | None, list[str]]:
    """Return what the planners of the papers give, each after the other: a code, segments, backups, replicas.

    Segments get the whole overhead, and backups what the segments' intervals then need for the shortest target. The
    result may miss targets. None where the segments have no plan; notes say what was left out.
    """
    topology, assumed = model.topology, model.assumed
    notes: list[str] = []
    coding = model.codings[0]
    anchors, interval = _planned_segments(model, coding, one_segment=one_segment)
    if anchors is None or interval is None:
        return None, notes
    plan = JointPlan(anchors, interval, np.zeros(len(topology), bool), replicas, coding)
    limit = float(model.limit.min())
    if np.isfinite(limit):
        fixed, slope = model.parts(plan, model.crowding)
        try:
            problem = BackupProblem(topology, max(0.0, limit - assumed.fixed_seconds), fixed + slope)
            try:
                found = plan_backups(problem, clock=clock, seconds=BACKUP_SECONDS)
            except ModuleNotFoundError:
                notes.append("without the extra `plan`, backups of the start are by heuristic, not proven fewest")
                found = plan_backups(problem, BackupAlgorithm.DAG, clock=clock, seconds=BACKUP_SECONDS)
            backups = np.zeros(len(topology), bool)
            backups[found.backups] = True
            plan = JointPlan(anchors, interval, backups, replicas, coding)
        except NoPlan:
            pass  # no backups reach the target at these intervals; the joint search shortens them
    return plan, notes


def _planned_segments(
    model: JointModel, coding: Coding, *, one_segment: bool
) -> tuple[Mask, Floats] | tuple[None, None]:
    topology, assumed = model.topology, model.assumed
    least, greatest = assumed.least_interval, assumed.greatest_interval
    if one_segment or len(topology.operators) > SEGMENTS_UP_TO:
        anchors = model.sources.copy()
        price = float(model.storing(coding).sum())
        every = min(max(price / model.targets.overhead_limit, least), greatest)
        return anchors, np.full(len(anchors), every)
    try:
        bandwidth = assumed.bandwidth * coding.data / coding.total
        segments = model_of(topology, bandwidth, batches_per_second=assumed.batches_per_second)
        log = float(segments.input_seconds[segments.sources].sum())
        grid = FrequencyGrid(100, max_frequency=1 / least)
        plan = plan_segments(segments, model.targets.overhead_limit + log, grid=grid)
    except (NoPlan, Undecided):
        return None, None
    except BadInput:  # nothing ever fails by declaration: there is nothing to plan segments for
        return None, None
    number = segments_of(model, plan.anchors)
    interval = np.clip(1 / plan.frequency, least, greatest)
    slowest = np.zeros(int(number.max()) + 1)
    np.maximum.at(slowest, number, interval)
    return plan.anchors.copy(), slowest[number]
