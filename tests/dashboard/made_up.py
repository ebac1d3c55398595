"""Event logs for tests of the page: made up event by event, or recorded from an application in this process."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from holdfast.runtime.coordinator.event_log import Observation

Event = dict[str, Any]


def topology(*operators: tuple[str, int], full: bool = True) -> dict[str, Any]:
    """A chain of operators with so many partitions each; the last has priorities that fall."""
    found: list[dict[str, Any]] = []
    for number, (name, parallelism) in enumerate(operators):
        one: dict[str, Any] = {"id": name, "parallelism": parallelism}
        if number:
            one["inputs"] = [{"from": operators[number - 1][0], "partitioning": "full" if full else "one-to-one"}]
        else:
            one["rate"] = 100
        found.append(one)
    found[-1]["priority"] = list(range(operators[-1][1], 0, -1))
    found[-1]["output"] = True
    return {"holdfast": 1, "name": "made-up", "operators": found}


class Log:
    """A run's events, at times that the test says."""

    def __init__(self, document: Mapping[str, Any], *, at: float = 1000.0, start: str = "one") -> None:
        self.at = at
        self.events: list[Event] = []
        self.names = [
            f"{one['id']}[{index}]" for one in document["operators"] for index in range(int(one.get("parallelism", 1)))
        ]
        self.document = dict(document)
        self.run(start)

    def run(self, start: str, claim: int = 1) -> None:
        self.start = start
        self.add(
            "run",
            application=self.document["name"],
            claim=claim,
            run="made-up-1",
            start=start,
            topology=self.document,
            outputs={},
            bound=0.8,
            parked={},
        )

    def add(self, kind: str, **fields: Any) -> Log:
        self.events.append({"at": self.at, "event": kind, **fields})
        return self

    def after(self, seconds: float) -> Log:
        self.at += seconds
        return self

    def state(self, partition: str, before: str, after: str, node: str | None, cause: str = "") -> Log:
        return self.add("state", partition=partition, node=node, before=before, after=after, cause=cause)

    def live(self, nodes: int) -> Log:
        """Let nodes arrive, and every partition be placed, restored and level."""
        names = [f"node-{number}" for number in range(nodes)]
        self.add("node-arrived", nodes=names, capacity=dict.fromkeys(names, 4.0))
        self.place({p: names[number % nodes] for number, p in enumerate(self.names)})
        return self

    def place(self, placement: Mapping[str, str], left: Iterable[str] = (), queries: Iterable[str] = ()) -> Log:
        recover = list(placement)
        self.add(
            "planned",
            recover=recover,
            placement=dict(placement),
            left_out=list(left),
            queries=list(queries),
            priority=1,
        )
        for p, node in placement.items():
            self.state(p, "lost", "restoring", node, "placed")
        return self

    def restored(self, *partitions: str, node: str = "node-0") -> Log:
        for p in partitions:
            self.state(p, "restoring", "catching-up", node, "restored")
        return self

    def level(self, *partitions: str, node: str = "node-0") -> Log:
        for p in partitions:
            self.state(p, "catching-up", "running", node, "level")
        return self

    def started(self, nodes: int = 2) -> Log:
        """A whole start."""
        return self.live(nodes).after(1.0).restored(*self.names).after(0.5).level(*self.names)

    def lose(self, node: str, *partitions: str) -> Log:
        self.add("node-lost", nodes=[node])
        for p in partitions:
            self.state(p, "running", "lost", None, "node-lost")
        return self


def lines(events: Iterable[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(one) + "\n" for one in events)


def write(path: Path, events: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(lines(events))
    return path


class Recorder:
    """Takes the observations of a run as its event file would have them."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, seen: Observation) -> None:
        self.events.append(json.loads(json.dumps({"at": seen.at, "event": seen.kind, **seen.fields})))

    def __iter__(self) -> Iterator[Event]:
        return iter(self.events)
