"""Segment plans: chains by operators and increments, trees, DAGs, and Algorithm 1 loop by loop (FastRecover)."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from holdfast_lab.benches.planners.sections import Case, Facts, Section

TIMES_AS_FAST = 50
"""What we promise for chains of 15 operators with Z = 60, against the transcription of Algorithm 1."""
CHAINS = (15, 50, 100)
INCREMENTS = (60, 250, 1000)
TREES = (25, 50, 100, 200)
TREE_INCREMENTS = (100, 200, 400)
MIDDLE_CHAIN, MIDDLE_TREE = 30, 60
"""Held while increments grow."""
DAGS = (25, 50, 100, 200)
CHAIN_BANDWIDTH = 1e6
TREE_BANDWIDTH = 1e9
"""Fast enough that 200 operators at the lowest grid frequency take one of 200 increments each."""


def _chain(operators: int, steps: int, *, grows_with: str) -> Case:
    def prepare() -> Callable[[], Facts]:
        from holdfast.planning.segments.chain import plan_chain
        from holdfast.planning.segments.model import model_of
        from holdfast_lab.random_topologies import fast_recover

        model = model_of(fast_recover.chain(1, operators=operators), CHAIN_BANDWIDTH)

        def run() -> Facts:
            plan = plan_chain(model, 0.4, steps=steps)
            return {"anchors": int(plan.anchors.sum())}

        return run

    name = f"chain of {operators}, Z {steps:,}"
    if grows_with == "n":
        return Case(name, operators, prepare, series=f"chain Z {steps}")
    return Case(name, steps, prepare, series=f"chain n {operators}")


def _tree(operators: int, steps: int, *, grows_with: str) -> Case:
    def prepare() -> Callable[[], Facts]:
        from holdfast.planning.segments.grid import FrequencyGrid
        from holdfast.planning.segments.model import model_of
        from holdfast.planning.segments.tree import plan_tree
        from holdfast_lab.random_topologies import fast_recover

        model = model_of(fast_recover.root_tree(1, operators=operators), TREE_BANDWIDTH)

        def run() -> Facts:
            plan = plan_tree(model, 0.5, FrequencyGrid(steps))
            return {"anchors": int(plan.anchors.sum())}

        return run

    name = f"tree of {operators}, Z {steps:,}"
    if grows_with == "n":
        return Case(name, operators, prepare, series=f"tree Z {steps}")
    return Case(name, steps, prepare, series=f"tree n {operators}")


def _dag(operators: int) -> Case:
    def prepare() -> Callable[[], Facts]:
        from holdfast.planning.segments.dag import plan_dag
        from holdfast.planning.segments.model import model_of
        from holdfast_lab.experiments.segments.search_gap import random_dag

        model = model_of(random_dag(1, operators), CHAIN_BANDWIDTH)

        def run() -> Facts:
            plan = plan_dag(model, 0.5)
            return {"anchors": int(plan.anchors.sum())}

        return run

    return Case(f"dag of {operators}", operators, prepare, series="dag")


def _beside_the_transcription() -> Case:
    def prepare() -> Callable[[], Facts]:
        from holdfast.errors import CheckFailed
        from holdfast.planning.segments.chain import plan_chain
        from holdfast.planning.segments.model import model_of
        from holdfast_lab.random_topologies import fast_recover
        from holdfast_lab.transcriptions.segment_chain import algorithm_1

        model = model_of(fast_recover.chain(1), CHAIN_BANDWIDTH)

        def run() -> Facts:
            # Turn by turn, in the process's own time: what else the machine does falls on neither.
            ours, printed = [], []
            for _ in range(5):
                begin = time.process_time()
                expected = algorithm_1(model, 0.4, 60)
                printed.append(time.process_time() - begin)
                for _ in range(10):
                    begin = time.process_time()
                    plan = plan_chain(model, 0.4, steps=60)
                    ours.append(time.process_time() - begin)
            if expected is None or abs(plan.recovery_time / expected.recovery_time - 1) > 1e-9:
                raise CheckFailed("the fast chain planner and Algorithm 1 differ")
            ratio = median(printed) / median(ours)
            if ratio < TIMES_AS_FAST:
                raise CheckFailed(f"the chain planner is only {ratio:.0f} times as fast as Algorithm 1 loop by loop")
            return {
                "Algorithm 1 ms": round(1000 * median(printed)),
                "ours ms": round(1000 * median(ours), 2),
                "ratio": round(ratio),
            }

        return run

    return Case("5 x Algorithm 1, 50 x ours", 15, prepare, series="beside")


def _cases() -> list[Case]:
    return [
        _beside_the_transcription(),
        *(_chain(size, steps, grows_with="n") for steps in INCREMENTS for size in CHAINS),
        *(_chain(MIDDLE_CHAIN, steps, grows_with="Z") for steps in INCREMENTS),
        *(_tree(size, 200, grows_with="n") for size in TREES),
        *(_tree(MIDDLE_TREE, steps, grows_with="Z") for steps in TREE_INCREMENTS),
        *(_dag(size) for size in DAGS),
    ]


SECTION = Section("segments", "Segment plans", _cases)
