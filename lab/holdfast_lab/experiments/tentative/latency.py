"""How soon outputs come back, by technique: the drills of PPA's Fig. 7, 8 and 10, and of its headline. Pure.

The paper ran 19 nodes with 1,000 to 2,000 tuples a second from each of 16 sources, windows of 10 and 30 seconds, and
killed one node or all that had primaries. Here are four nodes on one machine, and fewer rows. Replacements stand by and
are there at once: all capacity is present, and what is measured is recovery, not the start of machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.drill.settings import DrillFeed, DrillSettings, DrillStrategy

NODES = 4
NO_BOUND = 1000.0
"""A capacity at which every node has room for everything."""
WINDOWS = {30: "merge-tree", 10: "merge-tree-10"}
INTERVALS = (5, 15, 30)
"""Seconds between checkpoints."""
AFTER = 25
"""Seconds of the stream after the failure."""
HEADLINE = 0
"""Tentative outputs beside the full passive recovery of the same failure; no figure of the paper has this number."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One drill."""

    name: str
    figure: int
    technique: str
    window: int
    rows: int
    interval: int
    settings: DrillSettings


def cells(seed: int, rows: Sequence[int], *, quick: bool) -> list[Cell]:
    """List the drills, the most telling first. `rows`: input rates, in rows a second."""
    windows = (10,) if quick else (10, 30)
    intervals = (15,) if quick else INTERVALS
    rates = rows[:1] if quick else rows
    found = [
        _cell(seed, HEADLINE, "tentative", window, rate, 15, kill=1, replicas="0.2", tentative=True)
        for window in windows
        for rate in (rows[:2] if quick else rows)
    ]
    for figure, kill in ((7, 1), (8, 2)):
        for window in windows:
            for rate in rates:
                found.append(_cell(seed, figure, "active", window, rate, 15, kill=kill, replicas="1.0"))
                found += [_cell(seed, figure, "checkpoint", window, rate, every, kill=kill) for every in intervals]
                storm = _cell(seed, figure, "source-replay", window, rate, 15, kill=kill)
                found.append(replace(storm, settings=replace(storm.settings, strategy=DrillStrategy.SOURCE_REPLAY)))
    for interval in (15,) if quick else (15, 30):
        for share in ("0.5", "1.0"):
            window = windows[-1]
            one = _cell(seed, 10, f"PPA-{share}", window, rates[-1], interval, kill=2, replicas=share, tentative=True)
            found.append(one)
        found.append(_cell(seed, 10, "PPA-0", windows[-1], rates[-1], interval, kill=2))
    return found


def _cell(
    seed: int,
    figure: int,
    technique: str,
    window: int,
    rows: int,
    interval: int,
    *,
    kill: int,
    replicas: str | None = None,
    tentative: bool = False,
) -> Cell:
    fail_at = float(window + 12)  # windows are full, and a checkpoint has been taken
    settings = DrillSettings(
        WINDOWS[window],
        seed=seed,
        nodes=NODES,
        kill=kill,
        arrivals=(0.0,) * kill,
        standby=True,
        feed=DrillFeed.BATCHES,
        batches=int(fail_at) + AFTER,
        rows=rows,
        fail_at=fail_at,
        checkpoint_every=interval,
        capacity=NO_BOUND,
        replicas=replicas,
        tentative=tentative,
    )
    name = f"fig{figure}-{technique}" if figure else f"headline-{technique}"
    return Cell(f"{name}-w{window}-r{rows}-c{interval}", figure, technique, window, rows, interval, settings)


def summary(cell: Cell, result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a drill's result says of recovery; times in seconds after the failure."""
    fault = result["fault_at"]
    queries = [one for one in result["queries"] if one["down_at"] is not None]
    began = [one["tentative_at"] - fault for one in queries if one["tentative_at"] is not None]
    back = [one["back_at"] - fault for one in queries if one["back_at"] is not None]
    tentative = max(began) if began and len(began) == len(queries) else None
    recovered = max(back) if back and len(back) == len(queries) else None
    fidelity = [one["fidelity_predicted"] for one in queries if one["fidelity_predicted"] is not None]
    measured = [one["fidelity_measured"] for one in queries if one["fidelity_measured"] is not None]
    right = [one["accuracy"] for one in queries if one.get("accuracy") is not None]
    return {
        "cell": cell.name,
        "figure": cell.figure or "headline",
        "technique": cell.technique,
        "window": cell.window,
        "rows_per_second": cell.rows,
        "checkpoint_seconds": cell.interval,
        "verdict": result["verdict"],
        "queries_down": len(queries),
        "detected_after": result["detected_after"],
        "tentative_after": tentative,
        "recovered_after": recovered,
        "sooner": None if not tentative or recovered is None else recovered / tentative,
        "fidelity_predicted": min(fidelity, default=None),
        "fidelity_measured": min(measured, default=None),
        "accuracy": min(right, default=None),
    }


def findings(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, object]]:
    """Put the paper's claims beside ours, where the drills for them were run."""
    found: list[dict[str, object]] = []

    def claim(figure: str, paper: str, ours: str, agrees: bool) -> None:
        found.append({"figure": figure, "paper": paper, "ours": ours, "agrees": agrees})

    def after(figure: object, technique: str) -> list[float]:
        return [
            float(one["recovered_after"] or 0.0)
            for one in rows
            if (one["figure"], one["technique"]) == (figure, technique)
        ]

    for figure in (7, 8):
        active, passive = after(figure, "active"), after(figure, "checkpoint")
        if active and passive:
            claim(
                str(figure),
                "active replication recovers much sooner than checkpoints",
                f"{max(active):.1f} s at most against {min(passive):.1f} s at least",
                max(active) < min(passive),
            )
    half, none, full = after(10, "PPA-0.5"), after(10, "PPA-0"), after(10, "PPA-1.0")
    if half and none and full:
        claim(
            "10",
            "PPA-0.5 lies between PPA-0 and PPA-1.0",
            f"{full[0]:.1f}, {half[0]:.1f} and {none[0]:.1f} s for 1.0, 0.5 and 0",
            full[0] <= half[0] <= none[0],
        )
    sooner = [one for one in rows if one["figure"] == "headline" and one["sooner"]]
    if sooner:
        best, worst = (one(float(each["sooner"]) for each in sooner) for one in (max, min))
        claim(
            "headline",
            "tentative outputs begin ten times sooner than the full passive recovery ends",
            f"{worst:.1f} to {best:.1f} times sooner",
            worst >= 10,
        )
    return found
