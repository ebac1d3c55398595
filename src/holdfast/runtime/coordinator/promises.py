"""Measures the recovery times that a plan promised, from the events of a run. Pure: times come with the events.

A query is down from the detection of a loss that took one of its partitions, and back with its first output of a batch
that was not out before, once none of its partitions is lost or being restored (decision 0063, from the detection on:
a run does not know when the fault was). Each outage becomes an event `promise`, with the prediction beside it. An
outage is *covered* where no more nodes were lost in it than the plan promises for; only then is it kept or broken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.ids import PartitionId
from holdfast.runtime.coordinator.event_log import Observation

_DOWN = ("lost", "restoring")


@dataclass(slots=True)
class _Outage:
    since: float
    out: int
    """The last batch that was out when it began."""
    nodes: set[str] = field(default_factory=set)


class PromiseWatch:
    """Takes the events of a run, and gives those about its promises."""

    def __init__(
        self,
        members: Mapping[PartitionId, Iterable[PartitionId]],
        predicted: Iterable[Mapping[str, Any]],
        survive: int,
    ) -> None:
        """`members` are the partitions of every query; `predicted` the promises of what the run executes."""
        self._queries: dict[str, list[str]] = {}
        for query, partitions in members.items():
            for partition in partitions:
                self._queries.setdefault(str(partition), []).append(str(query))
        self._promised = {one["query"]: one for one in predicted if one["what"] == "recovery"}
        self._survive = survive
        self._down: set[str] = set()
        """Partitions that are lost or being restored."""
        self._started = False
        """Whether all partitions have been live: a start is no outage."""
        self._out: dict[str, int] = {}
        self._outages: dict[str, _Outage] = {}
        self._nodes: dict[str, float] = {}
        """Nodes that were lost, and when."""

    def emit(self, seen: Observation) -> list[Observation]:
        """Take an event; return what it says about promises."""
        if seen.kind in ("node-lost", "node-silent"):
            for node in seen.fields["nodes"]:
                self._nodes[str(node)] = seen.at
            for outage in self._outages.values():
                outage.nodes.update(map(str, seen.fields["nodes"]))
        elif seen.kind == "plan-changed":
            found = {one["query"]: one for one in seen.fields.get("predicted", ()) if one["what"] == "recovery"}
            self._promised = found or self._promised
        elif seen.kind == "state":
            self._changed(seen)
        elif seen.kind == "published" and not seen.fields.get("tentative"):
            return self._published(seen)
        return []

    def _changed(self, seen: Observation) -> None:
        partition = str(seen.fields["partition"])
        if seen.fields["after"] in _DOWN:
            self._down.add(partition)
            if self._started and seen.fields["after"] == "lost":
                recent = {node for node, at in self._nodes.items() if at >= seen.at - 1.0}
                for query in self._queries.get(partition, ()):
                    outage = self._outages.setdefault(query, _Outage(seen.at, self._out.get(query, -1)))
                    outage.nodes |= recent
        else:
            self._down.discard(partition)
            self._started = self._started or not self._down

    def _published(self, seen: Observation) -> list[Observation]:
        query, batch = str(seen.fields["partition"]), int(seen.fields["batch"])
        before = self._out.get(query, -1)
        self._out[query] = max(before, batch)
        outage = self._outages.get(query)
        if outage is None or batch <= outage.out or any(query in self._queries.get(p, ()) for p in self._down):
            return []
        del self._outages[query]
        promise = self._promised.get(query)
        if promise is None:
            return []
        measured = seen.at - outage.since
        covered = len(outage.nodes) <= self._survive
        return [
            Observation(
                seen.at,
                "promise",
                {
                    "what": "recovery",
                    "query": query,
                    "predicted": promise["predicted"],
                    "target": promise["target"],
                    "measured": round(measured, 3),
                    "nodes_lost": len(outage.nodes),
                    "covered": covered,
                    "kept": measured <= (promise["target"] or promise["predicted"]) if covered else None,
                },
            )
        ]


def promise_line(seen: Observation) -> str:
    """Return a line for people about a promise that was measured."""
    fields = seen.fields
    kept = {True: "kept", False: "broken", None: "not promised for so many losses"}[fields["kept"]]
    wanted = "" if fields["target"] is None else f", target {fields['target']:g} s"
    times = f"{fields['measured']:.1f} s, predicted {fields['predicted']:.3g} s{wanted}"
    return f"recovery of {fields['query']}: back after {times}: {kept}"
