"""Plots of the ring experiment (A-FP4S, Fig. 9c, 11, 12, and correlated failures), one file for each part."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.ticker import MaxNLocator, PercentFormatter

from holdfast.erasure.layout import Coding
from holdfast.pictures.style import BLUE, FAINT, RED, bars, figure, legend, save, seconds, series
from holdfast.planning.fragments.choice import success_probability

Rows = Sequence[Mapping[str, Any]]


def draw_parts(parts: Iterable[Mapping[str, Any]], directory: Path) -> list[Path]:
    """Draw every part that has a plot; return the files."""
    drawn = []
    for part in parts:
        draw = _PLOTS.get(part["name"])
        if draw is not None and part["rows"]:
            path = directory / f"{part['name']}.png"
            draw(part, path)
            drawn.append(path)
    return drawn


def draw_routing(part: Mapping[str, Any], path: Path) -> None:
    """Hops and milliseconds by the number of peers."""
    rows: Rows = part["rows"]
    peers = [row["peers"] for row in rows]
    fig, (hops, times) = figure(part["title"], subtitle=f"A-FP4S, Fig. {part['figure']}; simulated", columns=2)
    hops.plot(peers, [row["mean_hops"] for row in rows], label="mean hops", **series(0))
    hops.plot(peers, [row["most_hops"] for row in rows], label="most hops", **series(2))
    hops.plot(peers, [row["logarithm"] for row in rows], label="log16 N", **series(1, dashed=True))
    hops.yaxis.set_major_locator(MaxNLocator(integer=True))
    hops.set_ylabel("hops")
    hops.set_ylim(bottom=0)
    legend(hops)
    times.plot(peers, [1000 * row["mean_seconds"] for row in rows], label="mean", **series(0))
    times.plot(peers, [1000 * row["slow_seconds"] for row in rows], label="95 % within", **series(2))
    times.set_ylabel("milliseconds for a lookup and its answer")
    times.set_ylim(bottom=0)
    legend(times)
    for axes in (hops, times):
        axes.set_xlabel("peers")
    save(fig, path)


def draw_balance(part: Mapping[str, Any], path: Path) -> None:
    """Fragments per peer: counts, and the cumulative share beside the paper's point."""
    rows: Rows = part["rows"]
    fig, (counts, shares) = figure(part["title"], subtitle="A-FP4S, Fig. 12b and 12c; simulated", columns=2)
    held = [row["fragments"] for row in rows]
    counts.bar(held, [row["peers"] for row in rows], **bars(0))
    counts.xaxis.set_major_locator(MaxNLocator(integer=True))
    counts.set_xlabel("fragments on a peer")
    counts.set_ylabel("peers")
    at_most = [row["share_at_most"] for row in rows]
    shares.step(held, at_most, where="post", color=BLUE, linewidth=1.8, marker="none", label="ours")
    shares.plot([24], [0.95], linestyle="none", label="paper: 95 % below 25", **_point(RED))
    shares.axhline(0.95, color=FAINT, linewidth=0.8, linestyle=(0, (4, 2)))
    shares.set_xlabel("fragments on a peer, at most")
    shares.set_ylabel("share of peers")
    shares.yaxis.set_major_formatter(PercentFormatter(1.0))
    shares.set_xlim(0, max(30, held[-1] + 2))
    shares.set_ylim(0, 1.04)
    legend(shares)
    save(fig, path)


def draw_retrieval(part: Mapping[str, Any], path: Path) -> None:
    """Seconds per fragment by the number of peers, one line for each code."""
    rows: Rows = part["rows"]
    fig, (axes,) = figure(
        part["title"], subtitle="A-FP4S, Fig. 9c; simulated ring, each peer sends 100 Mbit/s, all in parallel"
    )
    for number, code in enumerate(dict.fromkeys(row["code"] for row in rows)):
        mine = [row for row in rows if row["code"] == code]
        axes.plot(
            [row["peers"] for row in mine],
            [row["seconds_per_fragment"] for row in mine],
            label=code,
            **_open(series(number), number),
        )
    axes.set_xlabel("peers")
    axes.set_ylabel("time per fragment")
    seconds(axes.yaxis)
    axes.margins(x=0.04, y=0.12)
    axes.set_ylim(bottom=0)
    legend(axes, title="data + parity", columns=2)
    save(fig, path)


def draw_recompute(part: Mapping[str, Any], path: Path) -> None:
    """Recompute time by m and by k."""
    rows: Rows = part["rows"]
    fig, panels = figure(
        part["title"], subtitle="A-FP4S, Fig. 11a; measured on one core, least and median of the runs", columns=2,
        share_y=True,
    )  # fmt: skip
    for axes, varied, name, other in (
        (panels[0], "m", "data", "data fragments m, with k = 10"),
        (panels[1], "k", "parity", "parity fragments k, with m = 10"),
    ):
        mine = [row for row in rows if row["varied"] == varied]
        fragments = [row[name] for row in mine]
        axes.plot(fragments, [1000 * row["recompute_seconds"] for row in mine], label="least", **series(0))
        axes.plot(fragments, [1000 * row["recompute_median"] for row in mine], label="median", **series(5))
        axes.set_xlabel(other)
        axes.set_ylim(bottom=0)
    panels[0].set_ylabel("milliseconds")
    legend(panels[1])
    save(fig, path)


def draw_encoding(part: Mapping[str, Any], path: Path) -> None:
    """Encode time by k, beside the paper's range."""
    rows: Rows = part["rows"]
    fig, (axes,) = figure(part["title"], subtitle="A-FP4S, Fig. 11b; m = 10, measured on one core")
    parity = [row["parity"] for row in rows]
    axes.plot(parity, [row["encode_seconds"] for row in rows], label="ours, least", **series(0))
    axes.plot(parity, [row["encode_median"] for row in rows], label="ours, median", **series(5))
    axes.axhspan(1.5, 2.0, color=RED, alpha=0.15, linewidth=0, label="paper, 128 MB: 1.5 to 2 s")
    axes.set_xlabel("parity fragments k")
    axes.set_ylabel("time to encode")
    axes.set_ylim(bottom=0)
    seconds(axes.yaxis)
    legend(axes)
    save(fig, path)


def draw_lost_blocks(part: Mapping[str, Any], path: Path) -> None:
    """Recompute time by lost fragments."""
    rows: Rows = part["rows"]
    fig, (axes,) = figure(part["title"], subtitle="A-FP4S, Fig. 11c; measured on one core")
    lost = [row["lost"] for row in rows]
    axes.plot(lost, [1000 * row["recompute_seconds"] for row in rows], label="least", **series(0))
    axes.plot(lost, [1000 * row["recompute_median"] for row in rows], label="median", **series(5))
    axes.set_xlabel("lost fragments e")
    axes.set_ylabel("milliseconds")
    axes.set_ylim(bottom=0)
    legend(axes)
    save(fig, path)


def draw_correlated(part: Mapping[str, Any], path: Path) -> None:
    """Share of states that survive, by the share of failed peers: simulated points on the lines of eq. 3."""
    rows: Rows = [row for row in part["rows"] if not row["domain"]]
    fig, (axes,) = figure(part["title"], subtitle="simulated; lines are eq. 3 of A-FP4S")
    for number, code in enumerate(dict.fromkeys(row["coding"] for row in rows)):
        mine = [row for row in rows if row["coding"] == code]
        look = series(number)
        coding = Coding(*map(int, code.split("+")))
        grid = [step / 200 for step in range(151)]
        expected = [success_probability(coding, share) for share in grid]
        axes.plot(grid, expected, color=look["color"], linewidth=1.4, marker="none")
        survived = [row["survived"] / row["states"] for row in mine]
        axes.plot([row["share"] for row in mine], survived, label=code, **{**look, "linestyle": "none"})
    axes.set_xlabel("peers that fail at once")
    axes.set_ylabel("states that survive")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0))
    axes.set_ylim(-0.03, 1.05)
    legend(axes, title="data + parity")
    save(fig, path)


def draw_applications(part: Mapping[str, Any], path: Path) -> None:
    """Recovery time of fragments and of checkpoints by the number of applications."""
    rows: Rows = part["rows"]
    fig, (times, less) = figure(part["title"], subtitle="A-FP4S, Fig. 9b; measured on 30 peers", columns=2)
    counts = [row["applications"] for row in rows]
    times.plot(counts, [row["file_seconds"] for row in rows], label="one remote file peer", **series(1))
    times.plot(counts, [row["fragments_seconds"] for row in rows], label="fragments, 10+20", **series(0))
    times.set_ylabel("until all are restored")
    times.set_ylim(bottom=0)
    seconds(times.yaxis)
    legend(times)
    less.axhspan(0.438, 0.544, color=RED, alpha=0.15, linewidth=0, label="paper: 43.8 to 54.4 %")
    less.plot(counts, [row["less"] for row in rows], label="ours", **series(0))
    less.set_ylabel("less than the file")
    less.yaxis.set_major_formatter(PercentFormatter(1.0))
    less.set_ylim(min(0.0, *(row["less"] for row in rows)) - 0.03, 1.0)
    legend(less)
    for axes in (times, less):
        axes.set_xlabel("applications of 10 operators, 1 % of them failing")
        axes.set_xlim(left=0)
    save(fig, path)


def draw_model(part: Mapping[str, Any], path: Path) -> None:
    """Measured and modelled: retrieving, recomputing, both."""
    rows: Rows = part["rows"]
    fig, panels = figure(
        part["title"], subtitle="A-FP4S, Fig. 10; measured on 30 peers, ten of them killed", columns=3, width=12.5
    )
    sizes = [row["state_mb"] for row in rows]
    for axes, title, measured, modelled in (
        (panels[0], "retrieving", "retrieve_seconds", "model_retrieve"),
        (panels[1], "recomputing", "recompute_seconds", "model_recompute"),
        (panels[2], "both", "total_seconds", "model_total"),
    ):
        axes.plot(sizes, [row[measured] for row in rows], label="measured", **{**series(0), "linestyle": "none"})
        axes.plot(sizes, [row[modelled] for row in rows], label="eq. 2", **series(1, dashed=True))
        axes.set_title(title)
        axes.set_xlabel("state, MB")
        axes.set_xlim(left=0)
        axes.set_ylim(bottom=0)
        seconds(axes.yaxis)
    legend(panels[0])
    save(fig, path)


def _point(colour: str) -> dict[str, Any]:
    return {"color": colour, "marker": "s", "markersize": 7}


def _open(look: dict[str, Any], number: int) -> dict[str, Any]:
    """Let every other series have open markers: lines that lie on one another stay visible."""
    return look | ({"markerfacecolor": "none", "markersize": 9} if number % 2 else {})


_PLOTS: dict[str, Callable[[Mapping[str, Any], Path], None]] = {
    "routing": draw_routing,
    "balance": draw_balance,
    "retrieval": draw_retrieval,
    "recompute": draw_recompute,
    "encoding": draw_encoding,
    "lost-blocks": draw_lost_blocks,
    "correlated": draw_correlated,
    "applications": draw_applications,
    "model": draw_model,
}
