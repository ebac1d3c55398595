"""The drills of the recovery experiment, by figure of incremental recovery. Runs anywhere; pure.

The paper ran 5 to 18 machines for minutes; here are six nodes on one machine, and nodes that come within a minute. Fig.
11 to 14 use the same fifteen queries, with priorities from 1 to 10; Fig. 9 and 10 a small topology of windows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from holdfast.drill.settings import DrillFeed, DrillSettings, DrillStrategy
from holdfast.examples.hashtags import query_name

UPSTREAM = tuple(f"{query_name(number)}[0]" for number in range(4))
DOWNSTREAM = tuple(f"{query_name(number)}[0]" for number in (14, 13, 12))
TOPOLOGICAL = tuple(f"{query_name(number)}[0]" for number in range(15))
REVERSE = tuple(reversed(TOPOLOGICAL))
STRATEGIES = (
    DrillStrategy.INCREMENTAL,
    DrillStrategy.OPERATOR_CENTRIC,
    DrillStrategy.BLOCKING,
    DrillStrategy.SOURCE_REPLAY,
    DrillStrategy.BEST_CASE,
)
NO_BOUND = 1000.0
"""A capacity at which every node has room for everything."""
SPACING = 15.0
"""Seconds between two replacements."""


@dataclass(frozen=True, slots=True)
class PlannedDrill:
    """One drill, and the figure it is for."""

    name: str
    figure: int
    label: str
    settings: DrillSettings


def planned_drills(seed: int, spacing: float = SPACING) -> list[PlannedDrill]:
    """List all drills of the experiment, in the order they are run."""
    after = 30.0
    """Seconds of the stream after the last arrival: to catch up and be level."""

    def batches(fail_at: float, last: float) -> int:
        return int(fail_at + last + after)

    four = tuple(spacing * number for number in range(1, 5))
    base = DrillSettings("hashtags", seed=seed, nodes=6, kill=4, arrivals=four, rows=40, fail_at=20.0, standby=True)
    # Strategies are compared on the same batches: the drill feeds them itself.
    base = replace(base, batches=batches(20.0, four[-1]), feed=DrillFeed.BATCHES)
    found = [PlannedDrill(f"fig11-{one}", 11, str(one), replace(base, strategy=one)) for one in STRATEGIES]
    two = replace(base, kill=2, arrivals=four[:2], batches=batches(20.0, four[1]))
    for where, hosting in (("upstream", UPSTREAM), ("downstream", DOWNSTREAM)):
        for strategy in (DrillStrategy.INCREMENTAL, DrillStrategy.BLOCKING):
            asked = replace(two, strategy=strategy, kill_hosting=hosting)
            found.append(PlannedDrill(f"fig12-{where}-{strategy}", 12, f"{strategy}, {where}", asked))
    for order, hosting in (("reverse", REVERSE), ("topological", TOPOLOGICAL)):
        for kill in (2, 4):
            arrivals = four[:kill]
            asked = replace(
                base, kill=kill, arrivals=arrivals, kill_hosting=hosting, batches=batches(20.0, arrivals[-1])
            )
            found.append(PlannedDrill(f"fig14-{order}-{kill}", 14, f"{kill} nodes, {order}", asked))
    traffic = DrillSettings("traffic", seed=seed, nodes=5, rows=200, fail_at=20.0, strategy=DrillStrategy.SOURCE_REPLAY)
    traffic = replace(traffic, feed=DrillFeed.BATCHES)
    for kill in (1, 2, 3):
        # One failure after the other; each replacement comes half an interval after its own.
        arrivals = tuple(spacing * (number + 0.5) for number in range(kill))
        asked = replace(traffic, kill=kill, stagger=spacing, arrivals=arrivals, batches=batches(20.0, arrivals[-1]))
        found.append(PlannedDrill(f"fig9-{kill}", 9, f"{kill} failures", asked))
    asked = replace(asked, strategy=DrillStrategy.INCREMENTAL)
    found.append(PlannedDrill("fig9-incremental", 9, "3 failures, incremental", asked))
    for kill in (1, 2):
        asked = replace(
            traffic,
            kill=kill,
            strategy=DrillStrategy.STRUCTURED_STREAMING,
            arrivals=(2 * spacing,) * kill,
            batches=batches(20.0, 2 * spacing),
        )
        found.append(PlannedDrill(f"fig10-{kill}", 10, f"Structured Streaming, {kill} killed", asked))
        # Structured Streaming knows no bound on what a node may carry: on equal terms Holdfast has none either.
        asked = replace(asked, strategy=DrillStrategy.INCREMENTAL, capacity=NO_BOUND)
        found.append(PlannedDrill(f"fig10-holdfast-{kill}", 10, f"Holdfast, {kill} killed", asked))
    return found
