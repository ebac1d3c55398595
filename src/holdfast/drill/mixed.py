"""Drills drawn from a seed: scenario, number of failures and kinds of faults. Runs anywhere; pure.

Consecutive seeds go through the scenarios in turn; everything else is drawn. Two to five of the nodes are killed, at
once or one after the other; some drills freeze nodes too, kill more while recovery is under way, end or freeze the
driver, slow a node, lose messages, cut a node off, fill or corrupt a disk, poison a row, let an operator hang or
decommission a node. What feeds the drill is drawn too: files or topics read in place, or Spark's file stream.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from holdfast.drill.scenarios import MIXED, SCENARIOS
from holdfast.drill.schedule import FaultKind, make_schedule
from holdfast.drill.settings import DrillFeed, DrillSettings
from holdfast.errors import BadInput
from holdfast.topology.draws import Draws

__all__ = ["MIXED", "draw_settings", "read_faults"]


CHANCES = {
    "pause-driver": 0.15,
    "partition": 0.2,
    "fill-disk": 0.15,
    "corrupt": 0.25,
    "poison": 0.25,
    "hang": 0.25,
    "decommission": 0.2,
}
"""How often a mixed drill has each of these faults, where it has room for it."""
FEEDS = {"kafka": 0.35, "spark": 0.15, "kill-broker": 0.4, "disorder": 0.5}
"""How often the input comes from topics, or through Spark's file stream; the rest are files read in place. Of drills
from topics, in how many the broker is killed; of those that read in place, in how many input arrives in any order."""


def read_faults(text: str) -> frozenset[str]:
    """Read `partition,fill-disk`: faults that mixed drills leave out."""
    words = frozenset(word.strip() for word in text.split(",") if word.strip())
    known = (*CHANCES, *FEEDS)
    if strange := words - set(known):
        raise BadInput(f"there is no fault {min(strange)!r}", field="--without", remedy=f"there are {', '.join(known)}")
    return words


def draw_settings(asked: DrillSettings, without: frozenset[str] = frozenset()) -> DrillSettings:
    """Draw scenario and faults from the seed; nodes, batches, rows, times and strategy stay as asked for.

    What is left out changes nothing of the other faults that a seed gives.
    """
    draws = Draws(asked.seed).branch("mixed drill")
    nodes = asked.nodes
    kill = draws.whole(min(2, nodes), max(min(2, nodes), min(5, nodes - 1)))
    survivors = nodes - kill
    stagger = draws.real(1.0, 4.0) if draws.chance(0.35) else 0.0
    freeze = 1 if draws.chance(0.35) and survivors > 1 else 0
    second = draws.whole(1, 2) if draws.chance(0.35) else 0
    drawn = replace(
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
    drawn = replace(drawn, **_more_faults(drawn, without))
    return _with_room(replace(drawn, **_feed(drawn, without)))


def _feed(asked: DrillSettings, without: frozenset[str]) -> dict[str, Any]:
    """Draw what feeds the drill, with draws of its own; one that was asked for stays."""
    if asked.feed is not DrillFeed.SOURCES:
        return {}
    chosen = Draws(asked.seed).branch("mixed drill: feed").fraction()
    has = {
        name: Draws(asked.seed).branch(f"mixed drill: {name}").chance(FEEDS[name]) and name not in without
        for name in ("kill-broker", "disorder")
    }
    if chosen < FEEDS["kafka"]:
        feed = DrillFeed.SOURCES if "kafka" in without else DrillFeed.KAFKA
    elif chosen < FEEDS["kafka"] + FEEDS["spark"] and "spark" not in without:
        feed = DrillFeed.SPARK
    else:
        feed = DrillFeed.SOURCES
    return {
        "feed": feed,
        "kill_broker": has["kill-broker"] and feed is DrillFeed.KAFKA,
        "disorder": has["disorder"] and feed is not DrillFeed.SPARK,
    }


def _with_room(asked: DrillSettings) -> DrillSettings:
    """Return the drill without drawn faults for which no node is there at their time; its schedule is the same."""
    there = Counter(one.kind for one in make_schedule(asked))
    return replace(
        asked,
        second_wave=min(asked.second_wave, there[FaultKind.KILL] - asked.kill),
        slow=min(asked.slow, there[FaultKind.SLOW]),
        drop_packets=asked.drop_packets if there[FaultKind.DROP_PACKETS] else 0.0,
    )


def _more_faults(asked: DrillSettings, without: frozenset[str]) -> dict[str, Any]:
    """Draw the faults of single nodes and queries; each has draws of its own, so that none depends on the others."""
    has = {
        name: Draws(asked.seed).branch(f"mixed drill: {name}").chance(chance) and name not in without
        for name, chance in CHANCES.items()
    }
    left = asked.nodes - asked.kill - asked.freeze - asked.slow - asked.second_wave
    found: dict[str, Any] = {"poison": has["poison"], "hang": has["hang"]}
    has["decommission"] = has["decommission"] and asked.exchange != "shuffle"
    for name in ("partition", "fill-disk", "corrupt", "decommission"):
        chosen = has[name] and left > 1  # one node at least stays as it is
        left -= chosen
        found[name.replace("-", "_")] = int(chosen)
    found["pause_driver"] = has["pause-driver"] and not asked.kill_driver
    found["take_over"] = found["pause_driver"] and Draws(asked.seed).branch("mixed drill: take over").chance(0.5)
    found["pause_for"] = round(Draws(asked.seed).branch("mixed drill: pause").real(4.0, 15.0), 1)
    return found
