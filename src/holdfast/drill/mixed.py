"""Drills drawn from a seed: scenario, number of failures and kinds of faults. Runs anywhere; pure.

Consecutive seeds go through the scenarios in turn; everything else is drawn. Two to five of the nodes are killed, at
once or one after the other; some drills freeze nodes too, kill more while recovery is under way, end the driver, slow a
node or lose messages.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.drill.scenarios import MIXED, SCENARIOS
from holdfast.drill.settings import DrillSettings
from holdfast.topology.draws import Draws

__all__ = ["MIXED", "draw_settings"]


def draw_settings(asked: DrillSettings) -> DrillSettings:
    """Draw scenario and faults from the seed; nodes, batches, rows, times and strategy stay as asked for."""
    draws = Draws(asked.seed).branch("mixed drill")
    nodes = asked.nodes
    kill = draws.whole(min(2, nodes), max(min(2, nodes), min(5, nodes - 1)))
    survivors = nodes - kill
    stagger = draws.real(1.0, 4.0) if draws.chance(0.35) else 0.0
    freeze = 1 if draws.chance(0.35) and survivors > 1 else 0
    second = draws.whole(1, 2) if draws.chance(0.35) else 0
    return replace(
        asked,
        scenario=list(SCENARIOS)[asked.seed % len(SCENARIOS)],
        kill=kill,
        stagger=round(stagger, 1),
        freeze=freeze,
        thaw_after=round(draws.real(4.0, 15.0), 1),
        second_wave=min(second, survivors - freeze),
        kill_driver=draws.chance(0.3),
        slow=1 if draws.chance(0.2) and survivors - freeze > 1 else 0,
        drop_packets=0.2 if draws.chance(0.2) else 0.0,
    )
