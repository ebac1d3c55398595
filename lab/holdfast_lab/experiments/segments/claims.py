"""What the text of FastRecover states in numbers, with our figures beside it and the bandwidth at which both agree.

The paper's pictures are lost; these sentences are all the numbers it gives of its results. Runs anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, log

import numpy as np

from holdfast_lab.experiments.segments.comparison import Point
from holdfast_lab.experiments.segments.running_times import Timing, growth

MOST_INFEASIBLE = 0.5
"""Spreads are compared only where most topologies have an NSegments plan."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the paper and what we find."""

    where: str
    statement: str
    paper: str
    ours: str


def crossing(xs: list[float], ys: list[float], level: float) -> float | None:
    """Return where a line through points first crosses a level, x on a logarithmic axis; None where it never does."""
    for (x0, y0), (x1, y1) in zip(zip(xs, ys, strict=True), list(zip(xs, ys, strict=True))[1:], strict=False):
        if isfinite(y0) and isfinite(y1) and (y0 - level) * (y1 - level) <= 0 and y0 != y1:
            share = (level - y0) / (y1 - y0)
            return float(np.exp(log(x0) + share * (log(x1) - log(x0))))
    return None


def claims_of(points: dict[str, list[Point]], timings: list[Timing]) -> list[Claim]:
    """Set the paper's statements beside our points."""
    return [
        *_reductions(points["chain-bandwidth"], "chains"),
        *_reductions(points["slow-tree-bandwidth"], "trees, finer grid"),
        *_feasibility(points["chain-operators"]),
        *_spread(points["chain-operators"]),
        *_tracking(points),
        *_growth(timings),
    ]


def _reductions(points: list[Point], kind: str) -> list[Claim]:
    bandwidth = [point.setting.bandwidth for point in points]
    n = [point.less_than_n for point in points]
    one = [point.less_than_one for point in points]
    both = [(a + b) / 2 for a, b in zip(n, one, strict=True)]
    near = [b for b, mean in zip(bandwidth, both, strict=True) if abs(mean - 0.5) <= 0.05]
    span = f"within 5 points at {_rate(min(near))} to {_rate(max(near))}" if near else "never within 5 points"
    return [
        Claim(
            "abstract",
            f"{kind}: reduction against NSegments",
            "50 % on average",
            f"{_range(n)}; 50 % at {_rate(crossing(bandwidth, n, 0.5))}",
        ),
        Claim(
            "abstract",
            f"{kind}: reduction against 1Segment",
            "50 % on average",
            f"{_range(one)}; 50 % at {_rate(crossing(bandwidth, one, 0.5))}",
        ),
        Claim(
            "abstract",
            f"{kind}: mean of the two reductions",
            "50 % on average",
            f"{_range(both)}; 50 % at {_rate(crossing(bandwidth, both, 0.5))}, {span}",
        ),
    ]


def _feasibility(points: list[Point]) -> list[Claim]:
    last = points[-1]
    shares = ", ".join(f"{point.n_infeasible:.0%} at n = {point.setting.operators}" for point in points)
    worst = {point.setting.operators: point.spread["n_segments"].most for point in points}
    return [
        Claim("sec. 4.2.1", "chains without an NSegments plan, n = 35", "almost 100 %", f"{last.n_infeasible:.0%}"),
        Claim("Fig. 4.1", "the same by n", "grows with n", shares),
        Claim(
            "sec. 4.2.1",
            "largest RT of NSegments, n = 10 and 15",
            "1.211 and 0.49",
            f"{worst.get(10, np.nan):.3g} and {worst.get(15, np.nan):.3g}",
        ),
    ]


def _spread(points: list[Point]) -> list[Claim]:
    def ratio(plan: str, of: str) -> str:
        found = []
        for point in points:
            if point.n_infeasible > MOST_INFEASIBLE:
                continue
            ours, theirs = point.spread["fast_recover"], point.spread[plan]
            width = {
                "box": (ours.three_quarters - ours.quarter, theirs.three_quarters - theirs.quarter),
                "deviation": (ours.deviation, theirs.deviation),
            }[of]
            found.append(width[1] / width[0] if width[0] else np.nan)
        return f"{np.nanmin(found):.2g} to {np.nanmax(found):.2g}"

    return [
        Claim(
            "sec. 4.2.1",
            "spread of NSegments over that of FastRecover",
            "about 2",
            f"{ratio('n_segments', 'box')} (boxes), {ratio('n_segments', 'deviation')} (deviations)",
        ),
        Claim(
            "sec. 4.2.1",
            "spread of 1Segment over that of FastRecover",
            "about 5",
            f"{ratio('one_segment', 'box')} (boxes), {ratio('one_segment', 'deviation')} (deviations)",
        ),
    ]


def _tracking(points: dict[str, list[Point]]) -> list[Claim]:
    """Correlate RT_all with simulated recoveries over the sweeps of the paper, at fixed n."""
    found = []
    for shape in ("chain", "tree"):
        for name in ("computing", "latency"):
            values = []
            for sweep in ("rate", "overhead", "steps"):
                some = [p for p in points[f"{shape}-{sweep}"] if isfinite(p.fast_recover)]
                if len(some) > 2:
                    values.append(
                        float(np.corrcoef([p.fast_recover for p in some], [getattr(p, name) for p in some])[0, 1])
                    )
            found.append(
                Claim(
                    "sec. 4.3",
                    f"{shape}s: RT_all follows the {name} time of simulated recoveries (fixed n)",
                    "a good proxy",
                    f"correlation {min(values):.3f} to {max(values):.3f} over three sweeps",
                )
            )
    return found


def _growth(timings: list[Timing]) -> list[Claim]:
    stated = {
        ("Fig. 4.13", "operators"): "quadratic",
        ("Fig. 4.13", "steps"): "quadratic",
        ("Fig. 4.14", "operators"): "linear",
        ("Fig. 4.14", "steps"): "exponential",
    }
    found = []
    for (figure, varied), words in stated.items():
        some = [timing for timing in timings if (timing.figure, timing.varied) == (figure, varied)]
        if len(some) < 2:
            continue
        values = [float(timing.value) for timing in some]
        printed = growth(values, [timing.transcription for timing in some])
        ours = growth(values, [timing.ours for timing in some])
        symbol = {"operators": "n", "steps": "Z"}[varied]
        kind = "chain" if figure == "Fig. 4.13" else "tree"
        found.append(
            Claim(
                f"sec. 4.4, {figure}",
                f"{kind} planning time by {symbol}",
                words,
                f"as printed {symbol}^{printed:.1f}, ours {symbol}^{ours:.1f}, "
                f"{min(t.ratio for t in some):.0f} to {max(t.ratio for t in some):.0f} times as fast",
            )
        )
    return found


def _range(values: list[float]) -> str:
    there = [value for value in values if isfinite(value)]
    # Rounded first: a difference of floats that is nothing must not be shown as -0 %.
    return f"{round(min(there), 6) + 0.0:.0%} to {round(max(there), 6) + 0.0:.0%}" if there else "no plans"


def _rate(bandwidth: float | None) -> str:
    if bandwidth is None:
        return "no bandwidth"
    return f"{bandwidth / 1e6:.3g} MB/s"
