"""Plan recovery segments by the name of an algorithm, refined if asked, and checked. Pure; runs anywhere.

`auto` is `dag`: it has no grid to lose overhead on, starts from what `chain` or `tree` give where the shape allows
them, and so is never worse than either.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.errors import BadInput
from holdfast.planning.segments.baselines import plan_n_segments, plan_one_segment
from holdfast.planning.segments.chain import plan_chain
from holdfast.planning.segments.dag import plan_dag
from holdfast.planning.segments.grid import FrequencyGrid
from holdfast.planning.segments.model import SegmentModel, SegmentPlan, check_plan
from holdfast.planning.segments.refine import refine
from holdfast.planning.segments.tree import plan_tree


class Algorithm(StrEnum):
    """The ways to plan segments."""

    AUTO = "auto"
    CHAIN = "chain"
    TREE = "tree"
    DAG = "dag"
    ONE_SEGMENT = "one-segment"
    N_SEGMENTS = "n-segments"


def plan_segments(
    model: SegmentModel,
    overhead: float,
    *,
    algorithm: Algorithm = Algorithm.AUTO,
    grid: FrequencyGrid,
    refined: bool = False,
) -> SegmentPlan:
    """Return a plan that the checker has passed; refuse with the reason where there is none."""
    limit = grid.max_frequency
    if model.pipelined and algorithm in (Algorithm.CHAIN, Algorithm.TREE):
        raise BadInput(
            f"{algorithm} adds replays up, one after the other",
            field="algorithm",
            remedy="use auto, or --replay summed",
        )
    match algorithm:
        case Algorithm.CHAIN:
            plan = plan_chain(model, overhead, steps=grid.steps, max_frequency=limit)
        case Algorithm.TREE:
            plan = plan_tree(model, overhead, grid)
        case Algorithm.ONE_SEGMENT:
            plan = plan_one_segment(model, overhead, max_frequency=limit)
        case Algorithm.N_SEGMENTS:
            plan = plan_n_segments(model, overhead, max_frequency=limit)
        case Algorithm.AUTO | Algorithm.DAG:
            plan = plan_dag(model, overhead, grid=grid)
    if refined:
        plan = refine(model, plan, overhead, max_frequency=limit)
    check_plan(model, plan, overhead, limit)
    return plan
