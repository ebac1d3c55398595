"""Plots of `holdfast experiment segments`, from its result document. Runs where matplotlib is.

They have the contents of FastRecover's Fig. 4.1 to 4.14, which are lost as pictures, and of what it left undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from holdfast.pictures.style import FAINT, GRID, figure, legend, save, seconds, series

Document = dict[str, Any]
_LABELS = {
    "operators": "operators n",
    "tuples_per_minute": "input rate Ω (tuples/min)",
    "overhead": "CH_max",
    "steps": "increments Z",
    "bandwidth": "bandwidth of permanent storage (MB/s)",
    "selectivity": "selectivity (middle of its range)",
    "tuple_kb": "tuple size (KB)",
    "tuple_ms": "time per tuple (ms)",
    "state_mb": "state (MB, middle of its range)",
}
_LOGARITHMIC = {"bandwidth", "tuple_kb", "tuple_ms", "state_mb"}
_PLANS = (
    ("fast_recover", "FastRecover (grid)", 0),
    ("n_segments", "NSegments", 1),
    ("one_segment", "1Segment", 2),
    ("auto", "auto (ours, no grid)", 3),
)
_TIME = "RT_all (s/s)"


def draw_segments(document: Document, folder: Path) -> list[Path]:
    """Write every plot whose figures are in the document; return the files."""
    sweeps = {sweep["name"]: sweep for sweep in document["sweeps"]}
    made = [
        _comparison(sweeps, "chain", "Chains: expected recovery time (Fig. 4.1, 4.4-4.6)", folder / "chains.png"),
        _comparison(sweeps, "tree", "Trees: expected recovery time (Fig. 4.7-4.10)", folder / "trees.png"),
        _spread(sweeps, folder / "spread.png"),
        _recoveries(sweeps, folder / "recoveries.png"),
        _reductions(sweeps, folder / "bandwidth.png"),
        _left_by_the_paper(sweeps, folder / "attributes.png"),
        _past_the_paper(sweeps, folder / "past-the-paper.png"),
        _running_times(document, folder / "running-times.png"),
    ]
    return [path for path in made if path is not None]


def _axis(sweep: Document) -> list[float]:
    values = [point[sweep["varied"]] for point in sweep["points"]]
    return [sum(value) / len(value) if isinstance(value, list | tuple) else float(value) for value in values]


def _set_axis(axes: Axes, sweep: Document) -> None:
    varied = sweep["varied"]
    axes.set_xlabel(_LABELS[varied])
    if varied in _LOGARITHMIC:
        axes.set_xscale("log")
        _logarithmic(axes.xaxis)
    if varied == "bandwidth":
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / 1e6:g}"))


def _line(axes: Axes, sweep: Document, name: str, label: str, number: int, *, dashed: bool = False) -> None:
    pairs = [(x, point[name]) for x, point in zip(_axis(sweep), sweep["points"], strict=True)]
    pairs = [(x, y) for x, y in pairs if y is not None and isfinite(y)]
    if pairs:
        axes.plot(*zip(*pairs, strict=True), label=label, **series(number, dashed=dashed))


def _infeasible(axes: Axes, sweep: Document) -> None:
    """Shade, on a second axis, the share of topologies that NSegments has no plan for."""
    other = axes.twinx()
    xs = _axis(sweep)
    other.fill_between(xs, [point["n_infeasible"] for point in sweep["points"]], color=GRID, alpha=0.7, lw=0)
    other.set_ylim(0, 1)
    other.yaxis.set_major_formatter(PercentFormatter(1.0))
    other.set_ylabel("without NSegments plan", color=FAINT, fontsize=9)
    other.tick_params(axis="y", colors=FAINT, labelsize=9, length=0)
    other.grid(False)
    for spine in other.spines.values():
        spine.set_visible(False)
    other.set_zorder(0)
    axes.set_zorder(1)
    axes.patch.set_visible(False)


def _logarithmic(axis: Axis) -> None:
    """Label 1, 2 and 5 of every power of ten with plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=10, fontweight="bold")


def _plans(panels: Sequence[Axes], sweeps: Sequence[Document]) -> None:
    """Draw every plan's expected recovery time, a panel for each sweep."""
    for axes, sweep in zip(panels, sweeps, strict=False):
        for name, label, number in _PLANS:
            _line(axes, sweep, name, label, number)
        axes.set_yscale("log")
        _logarithmic(axes.yaxis)
        axes.set_ylabel(_TIME)
        _set_axis(axes, sweep)
        _infeasible(axes, sweep)


def _comparison(sweeps: dict[str, Document], shape: str, title: str, path: Path) -> Path | None:
    found = _present(sweeps, [f"{shape}-{name}" for name in ("operators", "rate", "overhead", "steps")])
    if not found:
        return None
    count = found[0]["points"][0]["topologies"]
    fig, panels = figure(
        title,
        subtitle=f"means over {count} random topologies, where a plan exists; grey: share without NSegments plan"
        + ("; FastRecover lies under NSegments" if shape == "tree" else ""),
        rows=2,
        columns=2,
        width=11,
    )
    _plans(panels, found)
    legend(panels[0])
    save(fig, path)
    return path


def _spread(sweeps: dict[str, Document], path: Path) -> Path | None:
    sweep = sweeps.get("chain-operators")
    if sweep is None:
        return None
    fig, (axes,) = figure(
        "Chains: spread of the expected recovery time (Fig. 4.2 and 4.3)",
        subtitle="boxes: quartiles and median; whiskers: at most 1.5 boxes; dots: least and greatest beyond them",
        width=9,
    )
    for place, (name, label, number) in enumerate(_PLANS[:3]):
        boxes, positions = [], []
        for x, point in zip(_axis(sweep), sweep["points"], strict=True):
            figures = {key: point[f"{name}_{key}"] for key in ("least", "quarter", "median", "three_quarters", "most")}
            if any(value is None or not isfinite(value) for value in figures.values()):
                continue
            reach = 1.5 * (figures["three_quarters"] - figures["quarter"])
            low = max(figures["least"], figures["quarter"] - reach)
            high = min(figures["most"], figures["three_quarters"] + reach)
            boxes.append(
                {
                    "med": figures["median"],
                    "q1": figures["quarter"],
                    "q3": figures["three_quarters"],
                    "whislo": low,
                    "whishi": high,
                    "fliers": [end for end in (figures["least"], figures["most"]) if not low <= end <= high],
                }
            )
            positions.append(x + 1.2 * (place - 1))
        look = series(number)
        drawn = axes.bxp(
            boxes,
            positions=positions,
            widths=1.0,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": look["color"], "alpha": 0.55, "edgecolor": look["color"]},
            medianprops={"color": "#222222", "linewidth": 1.4},
            whiskerprops={"color": look["color"]},
            capprops={"color": look["color"]},
            flierprops={"marker": ".", "markeredgecolor": look["color"], "markerfacecolor": look["color"]},
        )
        if drawn["boxes"]:
            drawn["boxes"][0].set_label(label)
    axes.set_yscale("log")
    _logarithmic(axes.yaxis)
    axes.set_xticks(_axis(sweep))
    axes.set_ylabel(_TIME)
    axes.set_xlabel(_LABELS["operators"])
    legend(axes)
    save(fig, path)
    return path


def _recoveries(sweeps: dict[str, Document], path: Path) -> Path | None:
    names = [f"{shape}-{name}" for shape in ("chain", "tree") for name in ("operators", "rate", "overhead", "steps")]
    found = _present(sweeps, names)
    if not found:
        return None
    fig, panels = figure(
        "Expected recovery time beside simulated recoveries (Fig. 4.11 chains, 4.12 trees)",
        subtitle="each divided by its mean over the panel, so that shapes can be compared; five operators fail at once",
        rows=2,
        columns=4,
        width=15,
        height=7,
    )
    shown = (
        ("fast_recover", "RT_all", 0),
        ("computing", "computing time of a recovery", 1),
        ("latency", "latency of a recovery", 2),
    )
    for axes, sweep in zip(panels, found, strict=False):
        for name, label, number in shown:
            pairs = [(x, p[name]) for x, p in zip(_axis(sweep), sweep["points"], strict=True)]
            pairs = [(x, y) for x, y in pairs if y is not None and isfinite(y)]
            if pairs:
                mean = sum(y for _, y in pairs) / len(pairs)
                axes.plot([x for x, _ in pairs], [y / mean for _, y in pairs], label=label, **series(number))
        _title(axes, {"chain": "chains", "tree": "trees"}[sweep["name"].split("-")[0]])
        axes.set_ylim(bottom=0)
        _set_axis(axes, sweep)
    legend(panels[0])
    save(fig, path)
    return path


def _reductions(sweeps: dict[str, Document], path: Path) -> Path | None:
    found = _present(sweeps, ["chain-bandwidth", "slow-tree-bandwidth", "tree-bandwidth"])
    if not found:
        return None
    titles = {
        "chain-bandwidth": "chains",
        "slow-tree-bandwidth": "trees, frequencies to 0.005/s",
        "tree-bandwidth": "trees, the paper's frequencies",
    }
    fig, panels = figure(
        "How much lower FastRecover's expected recovery time is, by bandwidth",
        subtitle="the paper states 50 % on average and no bandwidth; grey: share of topologies without NSegments plan",
        columns=len(found),
        width=5.2 * len(found),
    )
    for axes, sweep in zip(panels, found, strict=False):
        _line(axes, sweep, "less_than_n", "than NSegments", 1)
        _line(axes, sweep, "less_than_one", "than 1Segment", 2)
        both = {**sweep, "points": [_with_mean(point) for point in sweep["points"]]}
        _line(axes, both, "less_than_both", "mean of the two", 0)
        axes.axhline(0.5, color=FAINT, linestyle=(0, (4, 2)), linewidth=1.2, label="the paper's 50 %")
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        _title(axes, titles[sweep["name"]])
        _set_axis(axes, sweep)
        _infeasible(axes, sweep)
    legend(panels[0])
    save(fig, path)
    return path


def _with_mean(point: Document) -> Document:
    a, b = point["less_than_n"], point["less_than_one"]
    return {**point, "less_than_both": None if a is None or b is None else (a + b) / 2}


def _left_by_the_paper(sweeps: dict[str, Document], path: Path) -> Path | None:
    kinds = ("chain", "slow-tree")
    names = [f"{kind}-{name}" for kind in kinds for name in ("selectivity", "tuple-size", "tuple-time", "state")]
    found = _present(sweeps, names)
    if not found:
        return None
    fig, panels = figure(
        "What the paper left to vary: selectivity, tuple size, time per tuple, state",
        subtitle="top: chains, bottom: trees on slow storage; grey: share of topologies without NSegments plan",
        rows=2,
        columns=4,
        width=17,
        height=7.4,
    )
    _plans(panels, found)
    legend(panels[3])
    save(fig, path)
    return path


def _past_the_paper(sweeps: dict[str, Document], path: Path) -> Path | None:
    found = _present(sweeps, ["chain-bandwidth", "slow-tree-bandwidth"])
    if not found:
        return None
    fig, panels = figure(
        "Past the paper: what refinement, auto and the true optimum gain",
        subtitle="mean change of the expected recovery time against the optimum on the grid (FastRecover)",
        columns=len(found),
        width=5.6 * len(found),
    )
    for axes, sweep in zip(panels, found, strict=False):
        _line(axes, sweep, "auto_gain", "auto: lower by", 3)
        _line(axes, sweep, "refined_gain", "refined (sec. 3.3): lower by", 0)
        _line(axes, sweep, "printed_gap", "paper's tree algorithm: higher by", 1, dashed=True)
        _line(axes, sweep, "printed_gap_most", "the same, worst topology", 4, dashed=True)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        _title(axes, "chains" if sweep["name"].startswith("chain") else "trees on slow storage")
        _set_axis(axes, sweep)
    legend(panels[-1])
    save(fig, path)
    return path


def _running_times(document: Document, path: Path) -> Path | None:
    timings = document["running_times"]
    if not timings:
        return None
    fig, panels = figure(
        "Time to plan one topology (Fig. 4.13 chains, Fig. 4.14 trees)",
        subtitle="ours beside the printed algorithms, loop by loop; trees with 20 frequencies",
        rows=2,
        columns=2,
        width=10,
    )
    kinds = [(figure_, varied) for figure_ in ("Fig. 4.13", "Fig. 4.14") for varied in ("operators", "steps")]
    for axes, (name, varied) in zip(panels, kinds, strict=True):
        some = [timing for timing in timings if timing["figure"] == name and timing["varied"] == varied]
        xs = [timing["value"] for timing in some]
        axes.plot(xs, [timing["transcription"] for timing in some], label="as printed", **series(1, dashed=True))
        axes.plot(xs, [timing["ours"] for timing in some], label="ours", **series(0))
        axes.set_yscale("log")
        seconds(axes.yaxis)
        axes.set_xlabel(_LABELS[varied])
        _title(axes, f"{name}: {'chains' if name == 'Fig. 4.13' else 'trees'}")
    legend(panels[0])
    save(fig, path)
    return path


def _present(sweeps: dict[str, Document], names: Iterable[str]) -> list[Document]:
    """Return the named sweeps, or none where one is missing: panels have fixed places."""
    wanted = list(names)
    return [sweeps[name] for name in wanted] if all(name in sweeps for name in wanted) else []
