"""Plans of many random topologies at one setting, and what they have in common (Fig. 4.1-4.12). Runs anywhere.

FastRecover, 1Segment and NSegments all work on the same grid, as in the paper: increments of overhead for chains,
frequencies and increments for trees. Beside them stand ours: `auto`, which has no grid, and either one refined.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from holdfast.errors import NoPlan
from holdfast.planning.segments.chain import plan_chain
from holdfast.planning.segments.dag import plan_dag
from holdfast.planning.segments.model import Bools, SegmentModel, SegmentPlan, check_plan
from holdfast.planning.segments.refine import refine
from holdfast.planning.segments.tree import plan_tree
from holdfast.topology.model import Floats
from holdfast_lab.experiments.segments.failures import simulate
from holdfast_lab.experiments.segments.settings import Setting
from holdfast_lab.rivals.segment_grids import plan_on_frequency_grid, plan_on_overhead_grid
from holdfast_lab.transcriptions.segment_tree import plan_printed_tree


@dataclass(frozen=True, slots=True)
class Outcome:
    """Expected recovery times of one topology's plans, seconds per second; NaN where there is no plan."""

    fast_recover: float
    printed: float
    """The paper's own algorithm: the same as ours on a chain, Algorithm 2 on a tree."""
    one_segment: float
    n_segments: float
    refined: float
    auto: float
    auto_refined: float
    computing: float
    latency: float
    anchors: float


@dataclass(frozen=True, slots=True)
class Spread:
    """A box and its whiskers."""

    least: float
    quarter: float
    median: float
    three_quarters: float
    most: float
    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class Point:
    """Means over the random topologies of one setting; a mean of a plan is over those where it exists."""

    setting: Setting
    topologies: int
    fast_recover: float
    printed: float
    one_segment: float
    n_segments: float
    refined: float
    auto: float
    auto_refined: float
    computing: float
    latency: float
    anchors: float
    infeasible: float
    """Share of topologies without a FastRecover plan on the grid."""
    n_infeasible: float
    """Share of topologies without an NSegments plan."""
    less_than_one: float
    """Mean over topologies of how much lower FastRecover is than 1Segment."""
    less_than_n: float
    """The same against NSegments, where it has a plan."""
    mean_less_than_n: float
    """How much lower the mean is than that of NSegments, over the same topologies: bad ones weigh more."""
    printed_gap: float
    """Mean by which the paper's own algorithm is above the true optimum on the grid."""
    printed_gap_most: float
    refined_gain: float
    """Mean by which refining lowers FastRecover."""
    auto_gain: float
    """Mean by which auto is below FastRecover."""
    auto_refined_gain: float
    """Mean by which refining lowers auto."""
    spread: dict[str, Spread]

    def row(self) -> dict[str, Any]:
        """Return it flat, for a line of CSV."""
        flat = asdict(self)
        setting: dict[str, Any] = flat.pop("setting")
        spread = flat.pop("spread")
        for plan, figures in spread.items():
            flat |= {f"{plan}_{name}": figure for name, figure in figures.items()}
        return setting | flat


def measure(setting: Setting, seed: int, *, failures: int, beyond: bool) -> Outcome:
    """Plan one random topology in every way; `beyond`: also with auto and refined."""
    model = setting.model(seed)
    overhead, limit = setting.overhead, setting.max_frequency

    def fast_recover() -> SegmentPlan:
        if setting.shape == "chain":
            return plan_chain(model, overhead, steps=setting.steps, max_frequency=limit)
        return plan_tree(model, overhead, setting.grid)

    def printed() -> SegmentPlan:
        return fast if setting.shape == "chain" and fast else plan_printed_tree(model, overhead, setting.grid)

    def fixed(anchors: Bools) -> SegmentPlan:
        if setting.shape == "chain":
            return plan_on_overhead_grid(model, anchors, overhead, setting.steps, max_frequency=limit)
        return plan_on_frequency_grid(model, anchors, overhead, setting.grid)

    fast = _plan(model, setting, fast_recover)
    theirs = _plan(model, setting, printed) if fast else None
    one = _plan(model, setting, lambda: fixed(model.sources))
    n = _plan(model, setting, lambda: fixed(np.ones(len(model), bool)))
    auto = _plan(model, setting, lambda: plan_dag(model, overhead, grid=setting.grid)) if beyond else None
    refined = fast and beyond and _refined(model, setting, fast)
    auto_refined = auto and _refined(model, setting, auto)
    recovery = simulate(model, fast, failures, np.random.default_rng(seed)) if fast and failures else None
    return Outcome(
        fast_recover=_time(fast),
        printed=_time(theirs),
        one_segment=_time(one),
        n_segments=_time(n),
        refined=_time(refined or None),
        auto=_time(auto),
        auto_refined=_time(auto_refined),
        computing=recovery.computing if recovery else np.nan,
        latency=recovery.latency if recovery else np.nan,
        anchors=float(fast.anchors.sum()) if fast else np.nan,
    )


def compare(
    setting: Setting,
    topologies: int,
    *,
    failures: int = 0,
    beyond: bool = True,
    step: Callable[[], None] = lambda: None,
) -> Point:
    """Plan many random topologies (seeds 0, 1, 2, ...) and take means."""
    outcomes = []
    for seed in range(topologies):
        outcomes.append(measure(setting, seed, failures=failures, beyond=beyond))
        step()
    names = Outcome.__slots__
    column = {name: np.array([getattr(outcome, name) for outcome in outcomes]) for name in names}
    fast, n = column["fast_recover"], column["n_segments"]
    return Point(
        setting=setting,
        topologies=topologies,
        **{name: _mean(column[name]) for name in names},
        infeasible=float(np.isnan(fast).mean()),
        n_infeasible=float(np.isnan(n).mean()),
        less_than_one=_mean(1 - fast / column["one_segment"]),
        less_than_n=_mean(1 - fast / n),
        mean_less_than_n=1 - _mean(fast + 0 * n) / _mean(n + 0 * fast),
        printed_gap=_mean(column["printed"] / fast - 1),
        printed_gap_most=_most(column["printed"] / fast - 1),
        refined_gain=_mean(1 - column["refined"] / fast),
        auto_gain=_mean(1 - column["auto"] / fast),
        auto_refined_gain=_mean(1 - column["auto_refined"] / column["auto"]),
        spread={name: _spread(column[name]) for name in ("fast_recover", "n_segments", "one_segment")},
    )


def _plan(model: SegmentModel, setting: Setting, make: Callable[[], SegmentPlan]) -> SegmentPlan | None:
    try:
        plan = make()
    except NoPlan:
        return None
    check_plan(model, plan, setting.overhead, setting.max_frequency)
    return plan


def _refined(model: SegmentModel, setting: Setting, plan: SegmentPlan) -> SegmentPlan:
    better = refine(model, plan, setting.overhead, max_frequency=setting.max_frequency)
    check_plan(model, better, setting.overhead, setting.max_frequency)
    return better


def _time(plan: SegmentPlan | None) -> float:
    return plan.recovery_time if plan else np.nan


def _mean(values: Floats) -> float:
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else np.nan


def _most(values: Floats) -> float:
    there = values[~np.isnan(values)]
    return float(there.max()) if len(there) else np.nan


def _spread(values: Floats) -> Spread:
    there = values[~np.isnan(values)]
    if not len(there):
        return Spread(*[float("nan")] * 7)
    low, middle, high = np.quantile(there, [0.25, 0.5, 0.75])
    return Spread(
        float(there.min()), float(low), float(middle), float(high), float(there.max()), float(there.mean()),
        float(there.std()),
    )  # fmt: skip
