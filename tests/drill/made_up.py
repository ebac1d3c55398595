"""Histories that no cluster made: four queries over six partitions, three nodes, one of them killed at 20 s."""

from __future__ import annotations

from typing import Any

from holdfast.drill.history import Event

QUERIES = {
    "A[0]": {"priority": 5, "members": ["S[0]", "A[0]"]},
    "A[1]": {"priority": 2, "members": ["S[0]", "A[1]"]},
    "B[0]": {"priority": 3, "members": ["T[0]", "B[0]"]},
    "B[1]": {"priority": 1, "members": ["T[0]", "B[1]"]},
}
PLACED = {
    "S[0]": "127.0.0.2-0",
    "A[0]": "127.0.0.2-0",
    "A[1]": "127.0.0.3-1",
    "T[0]": "127.0.0.3-1",
    "B[0]": "127.0.0.3-1",
    "B[1]": "127.0.0.4-2",
}


def event(at: float, kind: str, **fields: Any) -> Event:
    return Event(at, kind, fields)


def begin() -> list[Event]:
    hosts = {f"node-{number}": f"127.0.0.{number + 1}" for number in (1, 2, 3)}
    return [
        event(0, "begin", queries=QUERIES, batch_seconds=1.0, strategy="incremental"),
        *(event(0, "node-started", node=node, host=host) for node, host in hosts.items()),
        event(0, "planned", placement=PLACED, recover=list(PLACED), queries=list(QUERIES), priority=11),
        event(0, "driver-ready"),
    ]


def outputs(query: str, batches: range, latency: float = 0.5, at: float | None = None) -> list[Event]:
    """Published each `latency` after it was due; or all from `at` on, a tenth of a second apart."""
    return [
        event(
            batch + latency if at is None else at + 0.1 * number,
            "published",
            partition=query,
            batch=batch,
            rows=10,
            tentative=False,
        )
        for number, batch in enumerate(batches)
    ]


def one_node_killed() -> list[Event]:
    """node-2 dies at 20 s with A[1], T[0] and B[0]; node-4 comes at 30 s, and B waits for it."""
    found = begin()
    found += outputs("A[0]", range(60))
    for query in ("A[1]", "B[0]", "B[1]"):
        found += outputs(query, range(19))
    found += [
        event(20, "fault", what="kill", node="node-2"),
        event(20.2, "node-lost", nodes=["127.0.0.3-1"]),
        *(event(20.25, "state", partition=name, before="running", after="lost") for name in ("A[1]", "T[0]", "B[0]")),
        event(20.3, "planned", recover=["A[1]"], placement={"A[1]": "127.0.0.2-0"}, queries=["A[1]"], priority=2),
        event(21.5, "restored", partition="A[1]", node="127.0.0.2-0", batch=10),
        event(30, "fault", what="add-node", node="node-4"),
        event(33, "node-arrived", nodes=["127.0.0.5-3"]),
        event(
            33.1,
            "planned",
            recover=["T[0]", "B[0]"],
            placement={"T[0]": "127.0.0.5-3", "B[0]": "127.0.0.5-3"},
            queries=["B[0]", "B[1]"],
            priority=4,
        ),
        event(34, "restored", partition="T[0]", node="127.0.0.5-3", batch=10),
        event(35, "restored", partition="B[0]", node="127.0.0.5-3", batch=10),
    ]
    found += outputs("A[1]", range(19, 26), at=23.0)
    found += outputs("A[1]", range(26, 60))
    for query in ("B[0]", "B[1]"):
        found += outputs(query, range(19, 41), at=38.0)
        found += outputs(query, range(41, 60))
    found += [
        event(41, "recovery-ended", batch=40),
        event(60, "kept", checkpoint=59, oldest={"S[0]": None, "T[0]": 60}),
        event(60.1, "end"),
    ]
    return sorted(found, key=lambda one: one.at)
