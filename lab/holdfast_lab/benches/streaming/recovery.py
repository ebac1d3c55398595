"""From a kill to detected, to the first output and to everything back: tasks that stay beside shuffle. Pure.

Each failure is drilled once on each exchange, with the same seed: the same batches, the same nodes, the same moment.
A batch is due every so often; a query that is back shows it with its next batch, so no figure of an output is finer
than that. Which exchange comes first changes from failure to failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.drill.settings import DrillFeed, DrillSettings, Uniform
from holdfast_lab.benches.streaming.spread import Spread, median_with_interval

EXCHANGES = ("resident", "shuffle")
STEPS = ("detected", "planned", "first_restore", "first_output", "all_back")
"""What comes after a kill, in this order; `result.json` has each as seconds `…_after` the first fault."""
NO_LIMIT = 1000.0
"""A capacity at which every node has room for everything."""


ARRIVALS = Uniform(6.0, 8.0)
"""When replacements are started: after everything is back, where nodes have room for it."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What is done to each exchange."""

    scenario: str
    seed: int
    nodes: int
    kill: int
    capacity: float | None = None
    """What a node can carry; None: everything."""
    batch_seconds: float = 0.25
    fail_at: float = 15.0
    seconds_after: float = 12.0
    """How long the stream goes on after the kill."""
    rows: int = 40

    def settings(self, exchange: str) -> DrillSettings:
        """Return the drill of this failure on an exchange; the drill feeds the batches, so that both have the same."""
        return DrillSettings(
            self.scenario,
            seed=self.seed,
            nodes=self.nodes,
            kill=self.kill,
            arrivals=ARRIVALS,
            rows=self.rows,
            batches=round((self.fail_at + self.seconds_after) / self.batch_seconds),
            batch_seconds=self.batch_seconds,
            fail_at=self.fail_at,
            capacity=NO_LIMIT if self.capacity is None else self.capacity,
            feed=DrillFeed.BATCHES,
            exchange=exchange,
        )


def in_turns(failures: Sequence[Failure], exchanges: Sequence[str] = EXCHANGES) -> Iterable[tuple[Failure, str]]:
    """Return every drill: each failure on all exchanges, who is first in turns."""
    for number, failure in enumerate(failures):
        for exchange in exchanges if number % 2 == 0 else exchanges[::-1]:
            yield failure, exchange


@dataclass(frozen=True, slots=True)
class Drilled:
    """What came of one drill; None where a step did not come."""

    scenario: str
    seed: int
    killed: int
    exchange: str
    verdict: str
    rows: int
    """Output rows that were expected; the verdict says whether each came once."""
    latency_before: float | None
    """Of the query with the median latency, from when a batch was due, before the kill."""
    after: Mapping[str, float | None]
    """Seconds from the kill to each step."""


def drilled(failure: Failure, exchange: str, result: Mapping[str, Any]) -> Drilled:
    """Read a drill's result."""
    before = sorted(one["latency_before"] for one in result["queries"] if one["latency_before"] is not None)
    return Drilled(
        failure.scenario,
        failure.seed,
        int(result["killed"]),
        exchange,
        str(result["verdict"]),
        int(result["exactly_once"]["expected"]),
        before[len(before) // 2] if before else None,
        {step: result[f"{step}_after"] for step in STEPS},
    )


def summarize(found: Sequence[Drilled]) -> list[dict[str, Any]]:
    """Return a row for each exchange: medians with their intervals, and how many times sooner than the other it was."""
    rows = []
    for exchange in dict.fromkeys(one.exchange for one in found):
        mine = [one for one in found if one.exchange == exchange]
        ratio = _ratio(mine, [one for one in found if one.exchange != exchange])
        rows.append(
            {
                "workload": f"{len(mine)} failures",
                "side": exchange,
                "verdicts": {word: sum(one.verdict == word for one in mine) for word in {one.verdict for one in mine}},
                **{f"{step}_seconds": _document(_spread(mine, step)) for step in STEPS},
                "ratio": None if ratio is None else ratio.median,
                "first_output_times_sooner": _document(ratio),
            }
        )
    return rows


def _spread(found: Sequence[Drilled], step: str) -> Spread | None:
    values = [seconds for one in found if (seconds := one.after[step]) is not None]
    return median_with_interval(values) if values else None


def _ratio(mine: Sequence[Drilled], others: Sequence[Drilled]) -> Spread | None:
    """Return the seconds to the first output on the other exchange over those on this one, failure by failure."""
    there = {(one.scenario, one.seed): one.after["first_output"] for one in others}
    values = []
    for one in mine:
        here, other = one.after["first_output"], there.get((one.scenario, one.seed))
        if here and other is not None:
            values.append(other / here)
    return median_with_interval(values) if values else None


def _document(one: Spread | None) -> dict[str, float] | None:
    return None if one is None else {"median": one.median, "low": one.low, "high": one.high}
