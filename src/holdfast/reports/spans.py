"""A recovery as spans of a trace, from the events of a run: detect, plan, restore, replay, level. Runs anywhere; pure.

| span | from | to |
|---|---|---|
| `holdfast.recovery` | the first node or partition that is lost | every partition is level with the log |
| `detect` | a node is reported as lost or silent | the epoch that fences it has begun |
| `plan` | that epoch | the plan that passed the checker |
| `restore` | a partition has a node | its snapshot is in place |
| `replay` | its snapshot is in place | it is level with the log |
| `level` | the last partition is restored | every partition is level with the log |

A trace is complete when its recovery is: it is handed on then, as a whole. One that the end of the driver cuts off is
handed on with an error. The start of a run is no recovery.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.reports.model import Seen

_LIVE = frozenset({"running", "paused", "parked"})
_DOWN = frozenset({"lost", "restoring"})
MOST_SPANS = 5000
"""Of one trace; further partitions are counted in the root's attributes only."""


@dataclass(frozen=True, slots=True)
class Span:
    """One span; the first of a trace is the root, all others are its children. Times are seconds since 1970."""

    name: str
    begin: float
    end: float
    attributes: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(slots=True)
class _Open:
    began: float
    nodes: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    epochs: int = 0
    plans: int = 0
    restored: int = 0
    last_restored: float | None = None
    noticed: float | None = None
    """When a node was lost whose epoch has not begun yet."""
    fenced: float | None = None
    """When an epoch began whose plan has not been made yet."""

    def add(self, span: Span) -> None:
        if len(self.spans) < MOST_SPANS:
            self.spans.append(span)


class RecoverySpans:
    """Takes the events of a run, and gives the trace of each recovery when it is over."""

    def __init__(self) -> None:
        self._states: dict[str, tuple[str, float]] = {}
        self._started = False
        self._open: _Open | None = None
        self._lost: tuple[float, list[str]] | None = None
        self._claim: int | None = None

    def take(self, seen: Seen) -> list[Span]:
        """Take an event; return the spans of a recovery that it ends, the root first."""
        given = seen.fields
        match seen.kind:
            case "run":
                return self._driver_begins(int(given.get("claim") or 0), seen.at)
            case "ended":
                return self._close(seen.at, "the run ended")
            case "node-lost" | "node-silent":
                nodes = [str(node) for node in given.get("nodes", ())]
                self._lost = (seen.at, [*(self._lost[1] if self._lost else []), *nodes])
                if self._open is not None:
                    self._noticed(self._open)
            case "epoch":
                self._fenced(seen)
            case "planned":
                self._planned(seen)
            case "state":
                return self._changed(seen)
        return []

    def _driver_begins(self, claim: int, at: float) -> list[Span]:
        """A driver begins; a log repeats its event at the head of a file, which begins nothing."""
        if self._claim is not None and claim <= self._claim:
            return []
        self._claim = claim
        self._states, self._started, self._lost = {}, False, None
        return self._close(at, "the driver ended")

    def _noticed(self, one: _Open) -> None:
        if self._lost is not None:
            at, nodes = self._lost
            one.nodes += [node for node in nodes if node not in one.nodes]
            one.noticed = at if one.noticed is None else one.noticed
            one.began = min(one.began, at)
            self._lost = None

    def _fenced(self, seen: Seen) -> None:
        if self._lost is not None and self._started and self._open is None:
            self._open = _Open(self._lost[0])
        one = self._open
        if one is None:
            return
        self._noticed(one)
        if one.noticed is not None:
            one.add(Span("detect", one.noticed, seen.at, {"holdfast.nodes": list(one.nodes)}))
            one.noticed = None
        one.epochs += 1
        one.fenced = seen.at

    def _planned(self, seen: Seen) -> None:
        one = self._open
        if one is None:
            return
        one.plans += 1
        given = seen.fields
        attributes = {
            "holdfast.plan": one.plans,
            "holdfast.partitions": len(given.get("recover", ())),
            "holdfast.left_out": len(given.get("left_out", ())),
            "holdfast.queries": [str(query) for query in given.get("queries", ())],
            "holdfast.priority": int(given.get("priority") or 0),
        }
        one.add(Span("plan", seen.at if one.fenced is None else one.fenced, seen.at, attributes))
        one.fenced = None

    def _changed(self, seen: Seen) -> list[Span]:
        name, after = str(seen.fields["partition"]), str(seen.fields["after"])
        before, since = self._states.get(name, (str(seen.fields.get("before", "lost")), seen.at))
        self._states[name] = (after, seen.at)
        if after in _DOWN and self._started and self._open is None:
            self._open = _Open(seen.at if self._lost is None else self._lost[0])
            self._noticed(self._open)
        one = self._open
        if one is not None:
            attributes = {"holdfast.partition": name, "holdfast.node": str(seen.fields.get("node") or "")}
            if before == "restoring":
                failed = after == "lost"
                one.add(
                    Span(
                        "restore",
                        since,
                        seen.at,
                        attributes,
                        "the node was lost, or the restore failed" if failed else None,
                    )
                )
                if not failed:
                    one.restored += 1
                    one.last_restored = seen.at
            elif before == "catching-up" and one.restored:
                one.add(Span("replay", since, seen.at, attributes, "lost again" if after in _DOWN else None))
        states = {state for state, _ in self._states.values()}
        if not states & _DOWN:
            self._started = True
            if one is not None and states <= _LIVE:
                return self._close(seen.at, None)
        return []

    def _close(self, at: float, error: str | None) -> list[Span]:
        one, self._open = self._open, None
        if one is None:
            return []
        if error is None and one.last_restored is not None:
            one.add(Span("level", one.last_restored, at))
        root = Span(
            "holdfast.recovery",
            one.began,
            at,
            {
                "holdfast.nodes": one.nodes,
                "holdfast.epochs": one.epochs,
                "holdfast.plans": one.plans,
                "holdfast.restored": one.restored,
            },
            error,
        )
        return [root, *one.spans]
