"""How long planning takes (Fig. 4.13 and 4.14): ours beside the paper's algorithms, loop by loop. Runs anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import numpy as np

from holdfast.planning.segments.chain import plan_chain
from holdfast.planning.segments.model import SegmentModel
from holdfast.planning.segments.tree import plan_tree
from holdfast_lab.experiments.segments.settings import CHAIN, TREE, Setting
from holdfast_lab.transcriptions.segment_chain import algorithm_1, algorithm_2

TIMED_TREE = replace(TREE, bandwidth=1e9, frequencies=20)
"""Trees are timed with 20 frequencies instead of 100, or listing every split would take minutes."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Median seconds of planning one topology: the process's own, so that other work on the machine does not count."""

    figure: str
    varied: str
    value: int
    ours: float
    transcription: float

    @property
    def ratio(self) -> float:
        """How many times as fast ours is."""
        return self.transcription / self.ours


SERIES: tuple[tuple[str, Setting, str, tuple[int, ...]], ...] = (
    ("Fig. 4.13", CHAIN, "operators", (5, 10, 15, 20, 25, 30, 35)),
    ("Fig. 4.13", CHAIN, "steps", (20, 40, 60, 80, 100, 150)),
    ("Fig. 4.14", TIMED_TREE, "operators", (6, 9, 12, 15, 18)),
    ("Fig. 4.14", TIMED_TREE, "steps", (15, 18, 20, 22, 24)),
)


def time_planning(topologies: int = 3, step: Callable[[], None] = lambda: None) -> list[Timing]:
    """Time both ways to plan; ours is run several times a topology because it is over so soon."""
    timings = []
    for figure, base, varied, values in SERIES:
        for value in values:
            setting = replace(base, operators=value) if varied == "operators" else replace(base, steps=value)
            ours, printed = [], []
            for seed in range(topologies):
                model = setting.model(seed)
                ours += [_seconds(partial(_ours, setting, model)) for _ in range(5)]
                printed.append(_seconds(partial(_transcription, setting, model)))
                step()
            timings.append(Timing(figure, varied, value, median(ours), median(printed)))
    return timings


def _ours(setting: Setting, model: SegmentModel) -> object:
    if setting.shape == "chain":
        return plan_chain(model, setting.overhead, steps=setting.steps)
    return plan_tree(model, setting.overhead, setting.grid)


def _transcription(setting: Setting, model: SegmentModel) -> object:
    if setting.shape == "chain":
        return algorithm_1(model, setting.overhead, setting.steps)
    return algorithm_2(model, setting.overhead, setting.grid)


def growth(values: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the exponent k of seconds ~ values^k that fits best."""
    return float(np.polyfit(np.log(values), np.log(seconds), 1)[0])


def _seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin
