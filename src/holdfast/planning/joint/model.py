"""What a joint plan costs and promises: one model over the papers'. Pure.

A plan has, for every operator, whether it is an anchor (its inputs are stored durably) and its checkpoint interval;
for every partition, whether it keeps a backup of its output and whether it has a replica; and one code (m, k). When
partition v fails,

    L(v) = r(v) + s(v) D(v) + max over senders u that cannot serve the inputs at once of L(u)

where r is the time to restore its state from fragments (A-FP4S, eq. 2), D its checkpoint interval and s the seconds it
takes per second of interval to read and process what came (FastRecover, eq. 3.2: a whole interval, the longest there
can be). A sender serves at once what it kept (FTC, eq. 3); an anchor reads its inputs from storage and waits for no
sender (FastRecover). Within a segment all intervals are one: L is a maximum of linear functions of the intervals.

**As executed.** Runs store the inputs of anchors with their senders' checkpoints (decision 0182): what was sent since
is on the sender's node alone. So an anchor waits for a sender that may be lost with it, and inputs are stored as often
as the code stores states.

**Two readings.** *Alone*: one partition fails, backups and replicas serve, and no path leaves a segment: what happens
on most days, and what expected downtime is computed from. *Promised*: the losses that the targets name. With `survive`
1 a whole node is lost: a backup, and a sender of an anchor, counts only where the topology's failure domains show that
it is elsewhere. With 2 or more, all of these may be lost with what they serve: they do not count at all. What is
promised is the longest L with all that is lost restored on the nodes that are left, crowded accordingly.

**Replicas** count where they find room beside the primaries, by nodes and cores where these are known (`replicas`).

**Downtime** is what plans minimise: expected seconds of downtime per second, weighed by priority: the sum over
partitions of failure rate x priority of the queries that need it x (fixed time + L alone).

**Overhead** is what plans are bounded by: seconds of writing per second at the bandwidth given: states x n/m every
interval, inputs of anchors that are not sources, outputs of backups. The sources' log is written whatever the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from holdfast.erasure.layout import Coding
from holdfast.planning.fragments.choice import all_codings, loss_probability
from holdfast.planning.joint.replicas import replicas_with_room
from holdfast.planning.joint.targets import Assumptions, Targets
from holdfast.planning.profiles.run_profile import PRIOR_SECONDS
from holdfast.planning.segments.stored import framing_by_operator
from holdfast.topology import Floats, Ints, Partitioning, Queries, Topology, rates_of

Mask = NDArray[np.bool_]

TOLERANCE = 1e-9
MOST_DOMAINS = 32
"""Up to so many failure domains are looked at one by one; beyond, a backup never counts when a node is lost."""
DEFAULT_PEERS = 8
"""Peers that hold fragments where the number of nodes is not known."""
HOLDER_DOWN = 0.01
"""The probability that a holder of a fragment is down, for the success that an explanation names."""
RELIABILITY = 0.9999
"""The least probability that a state can be rebuilt, with holders down as above."""
_QUERIES_AT_ONCE = 512
_KINDS = list(Partitioning)


@dataclass(frozen=True, slots=True, eq=False)
class JointPlan:
    """What is kept, where and how often."""

    anchors: Mask
    """Per operator."""
    interval: Floats
    """Seconds between checkpoints, per operator."""
    backups: Mask
    """Per partition."""
    replicas: Mask
    """Per partition."""
    coding: Coding


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What the model says of a plan."""

    downtime: float
    """Expected, per second, weighed by priority."""
    alone: Floats
    """Seconds until each partition is back when it fails alone, the fixed time among them."""
    promised: Floats
    """The same for the losses that the targets name."""
    overhead: float
    checkpoint_overhead: float
    anchor_overhead: float
    backup_overhead: float
    late: float
    """By what share the worst promise is over its target; 0: all are kept."""
    excess: float
    """By what share the overhead is over its limit; 0: it is not."""

    @property
    def violation(self) -> float:
        """How far the plan is from its targets; 0: it keeps them."""
        return self.late + self.excess


@dataclass(frozen=True, slots=True)
class _Link:
    source: slice
    target: slice
    kind: int
    index: Ints | None
    """Of a split: the upstream partition of each; of a merge: where each one's begin."""


@dataclass(frozen=True, slots=True, eq=False)
class Paths:
    """The longest path to each partition, for one kind of loss."""

    whose: Mask
    """The partitions for which this loss is the one that counts."""
    length: Floats
    slopes: Floats
    """The seconds among them that grow with the intervals."""
    after: Ints
    """The partition that each one waits for; -1: none."""


class JointModel:
    """A topology, targets and assumptions as arrays over operators and partitions."""

    def __init__(
        self,
        topology: Topology,
        targets: Targets,
        assumed: Assumptions,
        *,
        coding: Coding | None = None,
        never_anchors: Iterable[str] = (),
    ) -> None:
        """`coding`: the code that a run has, and that every plan for it keeps.

        `never_anchors`: operators that no segment may begin with, as those after what is not deterministic.
        """
        self.topology, self.targets, self.assumed, self._coding = topology, targets, assumed, coding
        self.never_anchors = frozenset(never_anchors)
        self._placed: dict[bytes, Mask] = {}
        operators, of = topology.operators, topology.operator_of
        rates = rates_of(topology)

        def each(name: str) -> Floats:
            return np.array([getattr(operator, name) for operator in operators], float)

        total = np.bincount(of, topology.weights, minlength=len(operators))
        share = topology.weights / np.maximum(total[of], 1e-300)
        self.state: Floats = each("state_bytes")[of] * share
        self.work: Floats = rates.input * each("tuple_seconds")[of]
        self.input_bytes: Floats = rates.input * each("tuple_bytes")[of]
        sent = np.zeros(len(operators))
        np.maximum.at(sent, topology.link_from, each("tuple_bytes")[topology.link_to])
        self.output_bytes: Floats = rates.output * sent[of]
        """Bytes per second that a backup keeps: 0 for a partition without consumers."""
        self.sinks: Mask = np.diff(topology.down_start) == 0
        self.sources: Mask = np.array([operator.is_source for operator in operators], bool)
        self._reprocess(topology)
        rate = each("failure_rate")
        self.rates_assumed = not (rate > 0).any()
        if self.rates_assumed:
            rate = np.full(len(operators), 1 / PRIOR_SECONDS)
        self.failure_rate: Floats = rate[of] / topology.parallelism[of]
        self._queries()
        self.links = self._linked()

    def asking(self, targets: Targets) -> JointModel:
        """Return the same model for other targets."""
        return JointModel(self.topology, targets, self.assumed, coding=self._coding, never_anchors=self.never_anchors)

    @property
    def keeps_code(self) -> bool:
        """Whether the code is that of a run, and no plan's to choose: rings grow and shrink."""
        return self._coding is not None

    @property
    def anchorable(self) -> Mask:
        """The operators that a segment may begin with, besides sources."""
        names = [str(operator.id) not in self.never_anchors for operator in self.topology.operators]
        return np.asarray(~self.sources & np.array(names, bool), bool)

    def _reprocess(self, topology: Topology) -> None:
        """Take T(v) as it is given, by its interval where that is known; else what arrives times the time per tuple."""
        base = self.assumed.base_interval
        fixed, slope = np.zeros(len(topology)), self.work.copy()
        for number, operator in enumerate(topology.operators):
            if operator.reprocess_seconds is not None:
                own = slice(int(topology.first[number]), int(topology.first[number + 1]))
                if base is None:
                    fixed[own], slope[own] = topology.reprocess_seconds[own], 0.0
                else:
                    # Measured for half an interval, the mean; promises are for a whole one.
                    slope[own] = topology.reprocess_seconds[own] / (base / 2)
        self.fixed_work: Floats = fixed
        self.slope_work: Floats = slope

    def _queries(self) -> None:
        queries = Queries(self.topology)
        self.queries = queries
        asked = np.array([self.targets.seconds_for(int(one)) for one in queries.priority], float)
        self.query_limit: Floats = asked
        self.weight: Floats = np.zeros(len(self.topology))
        self.limit: Floats = np.full(len(self.topology), math.inf)
        """Within how many seconds each partition must be back, by the queries that need it."""
        for first in range(0, len(queries), _QUERIES_AT_ONCE):
            some = np.arange(first, min(first + _QUERIES_AT_ONCE, len(queries)))
            member = queries.matrix(some)
            self.weight += queries.priority[some].astype(float) @ member
            for seconds in np.unique(asked[some][np.isfinite(asked[some])]):
                needed = member[asked[some] == seconds].any(axis=0)
                self.limit[needed] = np.minimum(self.limit[needed], seconds)

    def _linked(self) -> list[tuple[slice, list[_Link]]]:
        """Return, operator by operator in topological order, its partitions and its links."""
        topology, found = self.topology, []
        for number in topology.operator_order:
            mine = self.own(number)
            links = []
            for link in range(int(topology.link_start[number]), int(topology.link_start[number + 1])):
                source, kind = int(topology.link_from[link]), int(topology.link_kind[link])
                n1, n2 = int(topology.parallelism[source]), int(topology.parallelism[number])
                index: Ints | None = None
                if _KINDS[kind] is Partitioning.SPLIT:
                    index = np.arange(n2) * n1 // n2
                elif _KINDS[kind] is Partitioning.MERGE:
                    index = -(-np.arange(n2) * n1 // n2)
                links.append(_Link(self.own(source), mine, kind, index))
            found.append((mine, links))
        return found

    def own(self, operator: int) -> slice:
        """Return the partitions of an operator."""
        return slice(int(self.topology.first[operator]), int(self.topology.first[operator + 1]))

    # -- replicas ------------------------------------------------------------------------------------------------------

    def placed(self, replicas: Mask) -> Mask:
        """Return the replicas that find room, and so take over from what they copy."""
        key = replicas.tobytes()
        if key not in self._placed:
            self._placed[key] = replicas_with_room(self.topology, replicas, self.assumed)
        return self._placed[key]

    # -- the code ------------------------------------------------------------------------------------------------------

    @property
    def peers(self) -> int:
        """Nodes that can hold fragments."""
        return self.assumed.nodes or max(DEFAULT_PEERS, 2 * self.targets.survive + 2)

    @cached_property
    def codings(self) -> tuple[Coding, ...]:
        """Codes that survive the losses asked for and rebuild a state with 0.9999, those that store least first.

        Where no code of so many peers does, the most reliable one that stores at most twice the state.
        """
        if self._coding is not None:
            return (self._coding,)
        if self.peers < 2:
            return (Coding(1, 0),)  # every checkpoint goes to the run's directory
        lost = max(1, self.targets.survive)
        allowed = [one for one in all_codings(self.peers) if one.parity >= lost] or [Coding(1, self.peers - 1)]
        sure = [one for one in allowed if loss_probability(one, HOLDER_DOWN) <= 1 - RELIABILITY]
        usual = [one for one in allowed if one.parity <= one.data]
        if not sure:
            return (min(usual or allowed, key=lambda one: (loss_probability(one, HOLDER_DOWN), one.total / one.data)),)
        return tuple(sorted(sure, key=lambda one: (one.total / one.data, one.total))[:2])

    def restore_seconds(self, coding: Coding) -> Floats:
        """Return the time to retrieve and recompute each partition's state (A-FP4S, eq. 2)."""
        recompute = self.state / self.assumed.code_rate if coding.parity else np.zeros(len(self.state))
        return self.state / self.assumed.restore_bandwidth + recompute

    def success(self, coding: Coding) -> float:
        """Return the probability that a state can be rebuilt when holders are down with probability 0.01 (eq. 3)."""
        return 1.0 - loss_probability(coding, HOLDER_DOWN)

    # -- paths ---------------------------------------------------------------------------------------------------------

    @cached_property
    def crowding(self) -> float:
        """How many times longer restoring and replaying takes on the nodes that are left: partitions per core."""
        nodes, lost = self.assumed.nodes, self.targets.survive
        if not nodes or not lost or nodes <= lost:
            return 1.0
        cores = 1.0 if math.isinf(self.assumed.cores) else max(1.0, self.assumed.cores)
        moved = math.ceil(len(self.topology) * lost / nodes)
        return max(1.0, math.ceil(moved / ((nodes - lost) * cores)))

    def longest(
        self,
        fixed: Floats,
        slope: Floats,
        serves: Mask,
        anchors: Mask,
        stored: Mask | None = None,
        after: Ints | None = None,
    ) -> tuple[Floats, Floats]:
        """Return the longest path to each partition, and the slopes along it; `serves`: needs no path.

        `stored`: the partitions that serve an anchor at once; None: all do. `after` takes the partition that each waits
        for, where it is given.
        """
        length, slopes = fixed + slope, slope.copy()
        order = self.topology.operator_order
        for number, (mine, links) in zip(order, self.links, strict=True):
            if not links or (anchors[number] and stored is None):
                continue
            serving = serves | stored if anchors[number] and stored is not None else serves
            best, best_slope = np.zeros(mine.stop - mine.start), np.zeros(mine.stop - mine.start)
            for link in links:
                waits = np.where(serving[link.source], 0.0, length[link.source])
                steep = np.where(serving[link.source], 0.0, slopes[link.source])
                senders = np.arange(link.source.start, link.source.stop)
                kind = _KINDS[link.kind]
                if kind is Partitioning.FULL:
                    at = int(np.argmax(waits))
                    waits, steep = np.full(len(best), waits[at]), np.full(len(best), steep[at])
                    senders = np.full(len(best), senders[at])
                elif kind is Partitioning.SPLIT:
                    waits, steep, senders = waits[link.index], steep[link.index], senders[link.index]
                elif kind is Partitioning.MERGE:
                    assert link.index is not None
                    top = np.maximum.reduceat(waits, link.index)
                    group = np.searchsorted(link.index, np.arange(len(waits)), side="right") - 1
                    steep = np.maximum.reduceat(np.where(waits >= top[group], steep, 0.0), link.index)
                    senders = np.minimum.reduceat(np.where(waits >= top[group], senders, len(length)), link.index)
                    waits = top
                longer = waits > best
                best, best_slope = np.where(longer, waits, best), np.where(longer, steep, best_slope)
                if after is not None:
                    after[mine] = np.where(longer, senders, after[mine])
            length[mine] += best
            slopes[mine] += best_slope
        return length, slopes

    def parts(self, plan: JointPlan, crowding: float = 1.0) -> tuple[Floats, Floats]:
        """Return each partition's own time: what the interval does not change, and seconds of it at its interval."""
        of = self.topology.operator_of
        read = np.where(plan.anchors[of], self.input_bytes / self.assumed.bandwidth, 0.0)
        fixed = (self.restore_seconds(plan.coding) + self.fixed_work) * crowding
        return fixed, (self.slope_work + read) * plan.interval[of] * crowding

    def alone(self, plan: JointPlan) -> tuple[Floats, Floats]:
        """Return seconds and slope per partition that fails alone, without the fixed time."""
        fixed, slope = self.parts(plan)
        serves = plan.backups | self.placed(plan.replicas)
        return self._taken_over(plan, *self.longest(fixed, slope, serves, plan.anchors))

    def promised(self, plan: JointPlan) -> tuple[Floats, Floats]:
        """Return seconds and slope per partition for the losses that the targets name, without the fixed time."""
        if self.targets.survive == 0:
            return self.alone(plan)
        fixed, slope = self.parts(plan, self.crowding)
        length, slopes = np.zeros(len(fixed)), np.zeros(len(fixed))
        for paths in self.paths(plan, fixed, slope):
            length[paths.whose], slopes[paths.whose] = paths.length[paths.whose], paths.slopes[paths.whose]
        return length, slopes

    def paths(self, plan: JointPlan, fixed: Floats, slope: Floats) -> Iterator[Paths]:
        """Return the longest paths for the losses of nodes that the targets name, with these times of partitions."""
        size, survive, domain_of = len(self.topology), self.targets.survive, self.topology.domain_of
        nothing = np.zeros(size, bool)
        domains = range(len(self.topology.domains) if survive == 1 else 0)
        if len(domains) > MOST_DOMAINS:
            domains = range(0)
        replicas = self.placed(plan.replicas) if survive == 1 else nothing
        # Which partitions share a node is not known, but for those that are in different domains.
        losses = [(domain_of < 0 if domains else ~nothing, replicas, nothing)]
        for lost in domains:
            elsewhere = (domain_of >= 0) & (domain_of != lost)
            losses.append((domain_of == lost, (plan.backups & elsewhere) | replicas, elsewhere))
        for whose, serves, stored in losses:
            if whose.any():
                after = np.full(size, -1, np.int64)
                found = self.longest(fixed, slope, serves, plan.anchors, stored, after)
                yield Paths(whose, *(self._taken_over(plan, *found) if survive == 1 else found), after)

    def _taken_over(self, plan: JointPlan, length: Floats, slopes: Floats) -> tuple[Floats, Floats]:
        """Return the times where replicas take over from what they copy."""
        if not plan.replicas.any():
            return length, slopes
        sooner = self.placed(plan.replicas) & (length > self.assumed.takeover_seconds)
        return np.where(sooner, self.assumed.takeover_seconds, length), np.where(sooner, 0.0, slopes)

    # -- what it comes to ----------------------------------------------------------------------------------------------

    def storing(self, coding: Coding) -> Floats:
        """Return seconds of writing that one checkpoint takes, per operator."""
        of, size = self.topology.operator_of, len(self.topology.operators)
        spread = coding.total / coding.data
        state = np.bincount(of, self.state, minlength=size) * spread / self.assumed.bandwidth
        return np.asarray(state + self.topology.parallelism * self.assumed.snapshot_seconds, float)

    def inputs_stored(self, coding: Coding) -> Floats:
        """Return seconds of writing per second that an anchor takes, per operator; nothing for sources."""
        size, spread = len(self.topology.operators), coding.total / coding.data
        total = framing_by_operator(self.topology, self.assumed.batches_per_second)
        total = total + np.bincount(self.topology.operator_of, self.input_bytes, minlength=size)
        return np.where(self.sources, 0.0, total * spread / self.assumed.bandwidth)

    def evaluate(self, plan: JointPlan) -> Evaluation:
        """Return what a plan costs and promises."""
        fixed = self.assumed.fixed_seconds
        alone, promised = self.alone(plan)[0] + fixed, self.promised(plan)[0] + fixed
        checkpoints = float((self.storing(plan.coding) / plan.interval).sum())
        anchors = float(self.inputs_stored(plan.coding)[plan.anchors].sum())
        backups = float(self.output_bytes[plan.backups].sum() / self.assumed.disk_bandwidth)
        overhead = checkpoints + anchors + backups
        over = promised / self.limit - 1.0
        excess = overhead / self.targets.overhead_limit - 1.0
        return Evaluation(
            downtime=float((self.failure_rate * self.weight) @ alone),
            alone=alone,
            promised=promised,
            overhead=overhead,
            checkpoint_overhead=checkpoints,
            anchor_overhead=anchors,
            backup_overhead=backups,
            late=max(0.0, float(over.max())) if over.max() > TOLERANCE else 0.0,
            excess=excess if excess > TOLERANCE else 0.0,
        )
