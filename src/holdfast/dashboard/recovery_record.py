"""One recovery, as its events tell it: who was lost, which plans ran, how long each partition took. Pure.

It becomes the Gantt of the page: a row per partition, its spans (lost, restoring, replaying) from the detection on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from holdfast.dashboard.estimate import Durations

LEVEL = "level"
"""How a recovery ends in which every partition came back."""
MOST_ROWS = 120
"""Partitions of a recovery that are shown one by one, those that were planned first; the rest is a number."""


@dataclass(slots=True)
class Span:
    """A time that a partition spent in one state."""

    state: str
    begin: float
    end: float | None = None
    node: str | None = None

    def document(self) -> list[Any]:
        """Return it as the page reads it."""
        return [self.state, round(self.begin, 3), None if self.end is None else round(self.end, 3), self.node]


@dataclass(slots=True)
class Outage:
    """How long one query was down."""

    down_at: float
    back_at: float | None = None


@dataclass(slots=True)
class RecoveryRecord:
    """A recovery that is under way, or over."""

    number: int
    began: float
    is_start: bool = False
    """Whether it is the start of a driver: every partition is lost then, and no query has failed."""
    ended: float | None = None
    """When the last partition was level with the log again."""
    how_ended: str | None = None
    covered_at: float | None = None
    """When a checkpoint covered everything."""
    nodes: list[str] = field(default_factory=list)
    spans: dict[str, list[Span]] = field(default_factory=dict)
    plans: list[dict[str, Any]] = field(default_factory=list)
    outages: dict[str, Outage] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)
    """Partitions that are not level yet."""
    order: dict[str, tuple[int, int]] = field(default_factory=dict)
    """The plan and the place in it by which a partition came back."""
    fetched: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Where the snapshot of a partition came from, and how long that took, beside what was predicted."""
    lowest_fidelity: float = 1.0
    first_estimate: tuple[float, float, float | None] | None = None
    """When the page first gave an estimate, how many seconds from the beginning on, and its plus-minus."""
    restores: Durations = field(default_factory=Durations)
    """How long partitions were restored, of those that replay or are level since."""
    replays: Durations = field(default_factory=Durations)
    """How long partitions replayed, of those that are level since."""
    _made: tuple[tuple[object, ...], dict[str, Any]] | None = None
    """The last document of a recovery that is over, and what it was made from."""

    def enter(self, partition: str, state: str, at: float, node: str | None) -> None:
        """A partition is in a state from now on."""
        spans = self.spans.setdefault(partition, [])
        if spans and spans[-1].end is None:
            if spans[-1].state == state and spans[-1].node == node:
                return
            self._end(spans[-1], at, state)
        if state in ("lost", "restoring", "catching-up"):
            spans.append(Span(state, at, None, node))
            self.open.add(partition)
        else:
            self.open.discard(partition)

    def _end(self, span: Span, at: float, after: str) -> None:
        span.end = at
        if span.state == "restoring" and after not in ("lost", "restoring"):
            self.restores.add(at - span.begin)
        elif span.state == "catching-up" and after not in ("lost", "restoring", "catching-up"):
            self.replays.add(at - span.begin)

    def planned(self, plan: dict[str, Any]) -> None:
        """Take a plan that passed the checker."""
        number = len(self.plans)
        self.plans.append(plan)
        for place, partition in enumerate(plan["recover"]):
            self.order[partition] = (number, place)

    def close(self, at: float, how: str) -> None:
        """It is over."""
        for spans in self.spans.values():
            if spans and spans[-1].end is None:
                spans[-1].end = at
        self.ended, self.how_ended = at, how

    def rows(self) -> tuple[list[str], int]:
        """Return the partitions to show in the order in which they were planned, and how many are not shown."""
        last = (len(self.plans), 0)
        began = {p: spans[0].begin if spans else 0.0 for p, spans in self.spans.items()}
        names = sorted(self.spans, key=lambda p: (self.order.get(p, last), began[p]))
        return names[:MOST_ROWS], max(0, len(names) - MOST_ROWS)

    def document(self) -> dict[str, Any]:
        """Return it as the page reads it; of one that is over, the same object until something about it changes."""
        if self.ended is None:
            return self._document()
        back = sum(one.back_at is not None for one in self.outages.values())
        known = (self.ended, self.covered_at, back, len(self.outages), len(self.fetched), self.lowest_fidelity)
        if self._made is None or self._made[0] != known:
            self._made = known, self._document()
        return self._made[1]

    def _document(self) -> dict[str, Any]:
        rows, hidden = self.rows()
        first = self.first_estimate
        return {
            "number": self.number,
            "began": round(self.began, 3),
            "ended": None if self.ended is None else round(self.ended, 3),
            "how_ended": self.how_ended,
            "covered_at": None if self.covered_at is None else round(self.covered_at, 3),
            "is_start": self.is_start,
            "nodes": self.nodes,
            "partitions": len(self.spans),
            "lowest_fidelity": self.lowest_fidelity,
            "plans": self.plans,
            "rows": [{"partition": p, "spans": [one.document() for one in self.spans[p]]} for p in rows],
            "hidden": hidden,
            "fetched": _added_up(list(self.fetched.values())),
            "queries": {
                query: {"down_at": round(one.down_at, 3), "back_at": one.back_at and round(one.back_at, 3)}
                for query, one in self.outages.items()
            },
            "first_estimate": None if first is None else {"seconds": round(first[1], 1), "plus_minus": first[2]},
        }


def _added_up(fetched: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Return the bytes of all restores, and the mean seconds of those that a prediction was made for."""
    if not fetched:
        return None
    both = [(one["seconds"], one["predicted"]) for one in fetched if one["predicted"] is not None]
    return {
        "restores": len(fetched),
        "from_peers": sum(one["from_peers"] for one in fetched),
        "from_folder": sum(one["from_folder"] for one in fetched),
        "from_node": sum(one["from_node"] for one in fetched),
        "seconds": round(sum(one[0] for one in both) / len(both), 4) if both else None,
        "predicted": round(sum(one[1] for one in both) / len(both), 4) if both else None,
    }
