"""What recovery segments cost: checkpoint overhead, recovery time, totals, and the one checker of segment plans.

FastRecover, chapter 2 and sec. 3.2.1, eq. 2.1 and 3.2. Pure; runs anywhere.

An **anchor** stores all its inputs in permanent storage; sources always do. When operator i fails, i and everything
upstream of it back to the nearest anchors go back to their last checkpoint, the anchors read their inputs since then,
and these are processed again down to i. With B the bandwidth of permanent storage, per operator and second:

- overhead (eq. 2.1): ch_i = eta_i pi_i / B, and for an anchor Omega_i theta_i / B more;
- recovery time (eq. 3.2): rt_i = a_i / eta_i + b_i, where a_i sums tau_k Omega_k over the operators that go back and
  Omega_h theta_h / B over their anchors, and b_i sums pi_k / B. The replay interval 1 / eta_i is a whole checkpoint
  interval, the longest there can be (FTC takes half of one, the mean).

**Pipelined replay** (ours; docs/decisions/0235): the sum over k says that an operator begins when the one before it is
through. A runtime whose operators pass on every batch as they make it, each on a node of its own, replays all of them
at once, and the slowest sets the pace: with `pipelined`, a_i and b_i are the largest of the terms and not their sum.

The paper has chains and trees, where one path leads to one anchor. The same definitions hold for any DAG: the
operators that go back are a set, each counted once, and it may have several anchors. **Segments** are then the groups
of operators that can be made to go back together: every operator that is no anchor is in the segment of all its inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadInput, CheckFailed, NoPlan, Undecided
from holdfast.ids import OperatorId
from holdfast.planning.segments.stored import framing_by_operator
from holdfast.topology.model import Floats, Ints, Topology
from holdfast.topology.rates import rates_of

Bools = NDArray[np.bool_]

TOLERANCE = 1e-9
"""Relative error of sums of floats that the checker forgives."""

MOST_OPERATORS = 5_000
"""Largest topology whose segments are planned: what goes back with what is kept as a table of all pairs."""

MAX_FREQUENCY = 200 / 60
"""Default F_max, checkpoints per second: the paper's 200 per minute."""


@dataclass(frozen=True, eq=False)
class SegmentModel:
    """The attributes of a topology that segment planning uses, per operator; times in seconds."""

    names: tuple[OperatorId, ...]
    inputs: tuple[tuple[int, ...], ...]
    """The operators that feed each operator; none: a source."""
    order: tuple[int, ...]
    """The operators, each after its inputs."""
    input_seconds: Floats
    """Time to store, or read back, what arrives in one second: Delta(Omega theta)."""
    state_seconds: Floats
    """Time to store, or read back, the state: Delta(pi)."""
    work_seconds: Floats
    """Time to process what arrives in one second: tau Omega."""
    failure_rate: Floats
    """Failures per second: rho."""
    pipelined: bool = False
    """Whether operators that go back together replay at once; the paper has one after the other."""

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def sources(self) -> Bools:
        """The operators without inputs; they are anchors in every plan."""
        return np.array([not feeds for feeds in self.inputs], bool)

    @cached_property
    def is_forest(self) -> bool:
        """Whether every operator has at most one input, so that one path leads to one anchor."""
        return all(len(feeds) <= 1 for feeds in self.inputs)

    @cached_property
    def is_tree(self) -> bool:
        """Whether it is one tree with the source at its root."""
        return self.is_forest and int(self.sources.sum()) == 1

    @cached_property
    def is_chain(self) -> bool:
        """Whether the operators stand in a row."""
        return self.is_tree and all(len(children) <= 1 for children in self.consumers)

    @cached_property
    def consumers(self) -> tuple[tuple[int, ...], ...]:
        """The operators each operator feeds."""
        found: list[list[int]] = [[] for _ in self.names]
        for number, feeds in enumerate(self.inputs):
            for feed in feeds:
                found[feed].append(number)
        return tuple(tuple(one) for one in found)


@dataclass(frozen=True, slots=True, eq=False)
class SegmentPlan:
    """Anchors, checkpoints per second of every operator, and their costs by the model."""

    anchors: Bools
    frequency: Floats
    recovery_time: float
    """RT_all: expected seconds of recovery per second."""
    overhead: float
    """CH_all: seconds of checkpointing per second."""
    relaxed: bool = False
    """Whether frequencies within a segment may differ by whole factors (RSRFS, sec. 3.3)."""


@dataclass(frozen=True, slots=True, eq=False)
class Totals:
    """What an assignment of anchors and frequencies costs, per operator and in all."""

    operator_overhead: Floats
    """ch_i."""
    recovery_seconds: Floats
    """rt_i: how long one recovery from a failure of this operator takes."""
    overhead: float
    """CH_all."""
    recovery_time: float
    """RT_all."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """What goes back when an operator fails; arrays (sets of anchors, operators)."""

    replay: Floats
    """a_i: seconds of reading and processing per second of replay interval."""
    restore: Floats
    """b_i: seconds of reading states."""


def model_of(
    topology: Topology, bandwidth: float, *, pipelined: bool = False, batches_per_second: float = 0.0
) -> SegmentModel:
    """Take from a topology what segments need; `bandwidth` is bytes per second to permanent storage.

    Of every batch more is stored than its rows, where it is known how many there are (`stored.framing`).
    """
    if not (bandwidth > 0 and np.isfinite(bandwidth)):
        raise BadInput(f"must be above zero, not {bandwidth:g}", field="bandwidth", remedy="give bytes per second")
    operators = topology.operators
    if len(operators) > MOST_OPERATORS:
        raise Undecided(
            f"segments of {len(operators):,} operators are too many to plan",
            field="operators",
            remedy=f"plan parts of at most {MOST_OPERATORS:,} operators by themselves",
        )
    rate = np.bincount(topology.operator_of, rates_of(topology).input, minlength=len(operators))
    failure_rate = np.array([operator.failure_rate for operator in operators], float)
    if not (failure_rate > 0).any():
        raise BadInput(
            f"no operator of {topology.name} ever fails, so there is nothing to plan segments for",
            field="failure_rate",
            remedy="give operators a failure_rate above 0, in failures per second",
        )
    tuple_bytes = np.array([operator.tuple_bytes for operator in operators], float)
    feeds = [topology.link_from[a:b] for a, b in zip(topology.link_start[:-1], topology.link_start[1:], strict=True)]
    return SegmentModel(
        names=tuple(OperatorId(operator.id) for operator in operators),
        inputs=tuple(tuple(int(feed) for feed in one) for one in feeds),
        order=topology.operator_order,
        input_seconds=(rate * tuple_bytes + framing_by_operator(topology, batches_per_second)) / bandwidth,
        state_seconds=np.array([operator.state_bytes for operator in operators], float) / bandwidth,
        work_seconds=rate * np.array([operator.tuple_seconds for operator in operators], float),
        failure_rate=failure_rate,
        pipelined=pipelined,
    )


def reach_of(model: SegmentModel, anchors: Bools) -> Reach:
    """Compute what goes back when each operator fails, for many sets of anchors at once (one row each)."""
    replay = np.where(anchors, model.input_seconds, 0.0) + model.work_seconds
    restore = np.broadcast_to(model.state_seconds, anchors.shape).copy()
    if model.is_forest:
        together = np.maximum if model.pipelined else np.add
        for number in model.order:
            for feed in model.inputs[number]:
                goes_on = ~anchors[:, number]
                for costs in (replay, restore):
                    costs[:, number] = together(costs[:, number], np.where(goes_on, costs[:, feed], 0.0))
        return Reach(replay, restore)
    # Paths may meet again: keep, per operator, the set of those that go back with it, so that each counts once.
    size = len(model)
    back = np.zeros((size, len(anchors), size), bool)
    for number in model.order:
        for feed in model.inputs[number]:
            back[number] |= back[feed]
        back[number] &= ~anchors[:, number, None]
        back[number, :, number] = True
    if model.pipelined:
        members = back.transpose(1, 0, 2)
        return Reach(*(np.where(members, one[:, None, :], 0.0).max(axis=-1) for one in (replay, restore)))
    both = np.matmul(back.transpose(1, 0, 2).astype(float), np.stack([replay, restore], axis=-1))
    return Reach(both[..., 0], both[..., 1])


def segments_of(model: SegmentModel, anchors: Bools) -> Ints:
    """Number the segment of every operator, for many sets of anchors: the first of its operators in `order`."""
    if model.is_forest:
        segment = np.empty(anchors.shape, np.int64)
        for number in model.order:
            segment[:, number] = number
            for feed in model.inputs[number]:
                segment[:, number] = np.where(anchors[:, number], number, segment[:, feed])
        return segment
    place = np.empty(len(model), np.int64)
    place[list(model.order)] = np.arange(len(model))
    label = np.broadcast_to(place, anchors.shape).copy()
    while True:
        before = label.copy()
        for sweep in (model.order, model.order[::-1]):
            for number in sweep:
                feeds = model.inputs[number]
                if feeds:
                    together = label[:, (number, *feeds)]
                    least = together.min(axis=1, keepdims=True)
                    label[:, (number, *feeds)] = np.where(anchors[:, number, None], together, least)
        if np.array_equal(before, label):
            return np.array(model.order, np.int64)[label]


def totals_of(model: SegmentModel, anchors: Bools, frequency: Floats) -> Totals:
    """Return what any assignment costs. An operator that goes back with others replays since its own checkpoint."""
    reach = reach_of(model, anchors[None, :])
    overhead = frequency * model.state_seconds + np.where(anchors, model.input_seconds, 0.0)
    seconds = reach.replay[0] / frequency + reach.restore[0]
    return Totals(overhead, seconds, float(overhead.sum()), float(seconds @ model.failure_rate))


def plan_of(model: SegmentModel, anchors: Bools, frequency: Floats, *, relaxed: bool = False) -> SegmentPlan:
    """Make a plan of anchors and frequencies, with the totals the model gives."""
    totals = totals_of(model, anchors, frequency)
    return SegmentPlan(anchors.copy(), frequency.copy(), totals.recovery_time, totals.overhead, relaxed)


def require_feasible_overhead(model: SegmentModel, overhead: float) -> None:
    """Refuse an overhead that not even the fewest anchors leave anything of: no plan exists then."""
    if not (overhead > 0 and np.isfinite(overhead)):
        raise BadInput(f"must be above zero, not {overhead:g}", field="overhead", remedy="give seconds per second")
    least = float(model.input_seconds[model.sources].sum())
    if least > overhead or (least == overhead and model.state_seconds.any()):
        names = ", ".join(name for name, source in zip(model.names, model.sources, strict=True) if source)
        raise NoPlan(
            f"storing the inputs of the sources alone ({names}) takes {least:.4g} of the time, "
            f"which leaves nothing of an overhead of {overhead:.4g} for checkpoints",
            remedy=f"allow an overhead above {least:.4g}, or give a higher bandwidth",
        )


def check_plan(model: SegmentModel, plan: SegmentPlan, overhead: float, max_frequency: float = MAX_FREQUENCY) -> Totals:
    """Return what a plan costs, or why it is none. Every algorithm, the tests and the run ask here."""
    for name, source, anchor in zip(model.names, model.sources, plan.anchors, strict=True):
        if source and not anchor:
            raise CheckFailed(f"source {name} is not an anchor: its inputs would be lost")
    if not (np.isfinite(plan.frequency).all() and (plan.frequency > 0).all()):
        raise CheckFailed("every operator needs a checkpoint frequency above zero")
    if (plan.frequency > max_frequency * (1 + TOLERANCE)).any():
        raise CheckFailed(f"a frequency of {plan.frequency.max():.6g} is above the limit of {max_frequency:.6g}")
    for number, feeds in enumerate(model.inputs):
        if plan.anchors[number]:
            continue
        for feed in feeds:
            factor = plan.frequency[feed] / plan.frequency[number]
            whole = round(factor) if plan.relaxed else 1
            if whole < 1 or abs(factor - whole) > TOLERANCE * whole:
                raise CheckFailed(
                    f"{model.names[feed]} checkpoints {factor:.6g} times as often as {model.names[number]} in its "
                    f"segment, which must be {'a whole number' if plan.relaxed else '1'}"
                )
    totals = totals_of(model, plan.anchors, plan.frequency)
    if totals.overhead > overhead * (1 + TOLERANCE):
        raise CheckFailed(f"an overhead of {totals.overhead:.9g} is above the allowed {overhead:.9g}")
    for stated, found, word in (
        (plan.overhead, totals.overhead, "overhead"),
        (plan.recovery_time, totals.recovery_time, "recovery time"),
    ):
        if abs(stated - found) > TOLERANCE * max(abs(found), 1e-300):
            raise CheckFailed(f"the plan states a {word} of {stated:.9g}; the model computes {found:.9g}")
    return totals
