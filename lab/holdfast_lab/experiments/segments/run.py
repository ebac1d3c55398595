"""The whole experiment: all sweeps, running times, the search's gap and the paper's statements. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.errors import BadInput
from holdfast.topology.checks import suggestion
from holdfast_lab.experiments.segments.claims import Claim, claims_of
from holdfast_lab.experiments.segments.comparison import Point, compare
from holdfast_lab.experiments.segments.running_times import SERIES, Timing, time_planning
from holdfast_lab.experiments.segments.search_gap import SIZES, SearchGap, measure_search
from holdfast_lab.experiments.segments.settings import PAPER_TOPOLOGIES, SWEEPS, Sweep

DEFAULT_TOPOLOGIES = 20
TIMED_TOPOLOGIES = 3
FAILURES = 1000
"""Simulated failures a point, shared by its topologies, as in the paper."""
KINDS = 3


@dataclass(frozen=True, slots=True)
class Result:
    """Everything the experiment found."""

    topologies: int
    sweeps: tuple[Sweep, ...]
    points: dict[str, list[Point]]
    timings: list[Timing]
    search: list[SearchGap]
    claims: list[Claim]

    def document(self) -> dict[str, Any]:
        """Return it as result.json has it."""
        return {
            "experiment": "segments",
            "paper": "FastRecover",
            "topologies": self.topologies,
            "paper_topologies": PAPER_TOPOLOGIES,
            "claims": [asdict(claim) for claim in self.claims],
            "sweeps": [
                {
                    "name": sweep.name,
                    "figure": sweep.figure,
                    "varied": sweep.field,
                    "points": [point.row() for point in self.points[sweep.name]],
                }
                for sweep in self.sweeps
            ],
            "running_times": [asdict(timing) | {"ratio": timing.ratio} for timing in self.timings],
            "dag_search": [asdict(gap) for gap in self.search],
        }


def chosen_sweeps(names: tuple[str, ...]) -> tuple[Sweep, ...]:
    """Return the sweeps with these names, all where none is given."""
    known = {sweep.name: sweep for sweep in SWEEPS}
    for name in names:
        if name not in known:
            raise BadInput(f"there is no sweep {name!r}", field="--only", remedy=suggestion(name, list(known)))
    return tuple(sweep for sweep in SWEEPS if not names or sweep.name in names)


def steps_of(sweeps: tuple[Sweep, ...], topologies: int, whole: bool) -> int:
    """Return how many steps of progress a run has."""
    points = sum(len(sweep.values) for sweep in sweeps) * topologies
    if not whole:
        return points
    return points + TIMED_TOPOLOGIES * sum(len(series[3]) for series in SERIES) + KINDS * len(SIZES) * topologies


def run(
    topologies: int = DEFAULT_TOPOLOGIES,
    names: tuple[str, ...] = (),
    step: Callable[[], None] = lambda: None,
) -> Result:
    """Run all sweeps, or only those named (then without running times, the search's gap and the statements)."""
    sweeps = chosen_sweeps(names)
    points = {
        sweep.name: [
            compare(setting, topologies, failures=max(1, FAILURES // topologies), step=step)
            for setting in sweep.settings
        ]
        for sweep in sweeps
    }
    if names:
        return Result(topologies, sweeps, points, [], [], [])
    timings = time_planning(TIMED_TOPOLOGIES, step)
    search = measure_search(topologies, step)
    return Result(topologies, sweeps, points, timings, search, claims_of(points, timings))
