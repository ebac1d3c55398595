"""Event logs that no run made: four queries on three nodes, one of which is lost, and comes back later."""

from __future__ import annotations

from typing import Any

from holdfast.reports.model import QuerySpec
from holdfast.runtime.coordinator.event_log import Observation

QUERIES = {
    "A[0]": QuerySpec(5, frozenset({"S[0]", "A[0]"})),
    "A[1]": QuerySpec(2, frozenset({"S[0]", "A[1]"})),
    "B[0]": QuerySpec(3, frozenset({"T[0]", "B[0]"})),
    "B[1]": QuerySpec(1, frozenset({"T[0]", "B[1]"})),
}
PLACED = {"S[0]": "n1", "A[0]": "n1", "A[1]": "n2", "T[0]": "n2", "B[0]": "n2", "B[1]": "n3"}
BEGAN = 1_790_000_000.0


def event(at: float, kind: str, **fields: Any) -> Observation:
    return Observation(BEGAN + at, kind, fields)


def state(at: float, partition: str, before: str, after: str, node: str | None = None) -> Observation:
    return event(at, "state", partition=partition, before=before, after=after, node=node, cause="")


def started(at: float = 0.0, claim: int = 1) -> list[Observation]:
    found = [
        event(at, "node-arrived", nodes=["n1", "n2", "n3"]),
        event(at, "epoch", claim=claim, epoch=2, why="3 nodes arrived"),
        event(at, "planned", recover=list(PLACED), placement=PLACED, left_out=[], queries=list(QUERIES), priority=11),
    ]
    for name, node in PLACED.items():
        found.append(state(at, name, "lost", "restoring", node))
    for name, node in PLACED.items():
        found += [
            state(at + 0.1, name, "restoring", "catching-up", node),
            state(at + 0.1, name, "catching-up", "running", node),
        ]
    return found


def outputs(batches: range, at: float, queries: tuple[str, ...] = tuple(QUERIES), claim: int = 1) -> list[Observation]:
    """One batch a second."""
    found = []
    for number, batch in enumerate(batches):
        found.append(
            event(
                at + number,
                "cycle",
                number=batch,
                claim=claim,
                epoch=2,
                through=batch,
                frontier=batch,
                seconds=0.1,
                rows=10,
            )
        )
        found += [event(at + number + 0.2, "published", partition=query, batch=batch, rows=10) for query in queries]
    return found


def one_node_lost() -> list[Observation]:
    """n2 is lost at 20 s; A[1] finds room at once, B waits for n4, which comes at 30 s."""
    found = [*started(), *outputs(range(20), 1.0)]
    found += [
        event(20.5, "node-lost", nodes=["n2"]),
        event(20.5, "requested", count=1),
        event(20.5, "epoch", claim=1, epoch=3, why="n2 lost"),
        *(state(20.5, name, "running", "lost") for name in ("A[1]", "T[0]", "B[0]")),
        event(20.6, "rolled-back", partitions=["S[0]"], to=10),
        event(
            20.6,
            "planned",
            recover=["A[1]"],
            placement={"A[1]": "n1"},
            left_out=["T[0]", "B[0]"],
            queries=["A[1]"],
            priority=2,
        ),
        state(20.6, "A[1]", "lost", "restoring", "n1"),
        state(21.6, "A[1]", "restoring", "catching-up", "n1"),
        state(23.6, "A[1]", "catching-up", "running", "n1"),
    ]
    found += outputs(range(20, 32), 22.0, ("A[0]", "A[1]"))
    found += [
        event(30.0, "node-arrived", nodes=["n4"]),
        event(30.0, "epoch", claim=1, epoch=4, why="1 node arrived"),
        event(
            30.1,
            "planned",
            recover=["T[0]", "B[0]"],
            placement={"T[0]": "n4", "B[0]": "n4"},
            left_out=[],
            queries=["B[0]", "B[1]"],
            priority=4,
        ),
        *(state(30.1, name, "lost", "restoring", "n4") for name in ("T[0]", "B[0]")),
        *(state(31.1, name, "restoring", "catching-up", "n4") for name in ("T[0]", "B[0]")),
        *(
            event(32.0, "published", partition=query, batch=batch, rows=1)
            for batch in range(20, 32)
            for query in ("B[0]", "B[1]")
        ),
        *(state(33.0, name, "catching-up", "running", "n4") for name in ("T[0]", "B[0]")),
        event(
            33.0,
            "promise",
            what="recovery",
            query="B[0]",
            predicted=5.0,
            target=10.0,
            measured=11.5,
            nodes_lost=1,
            covered=True,
            kept=False,
        ),
        event(40.0, "recovery-ended", batch=31),
    ]
    found += outputs(range(32, 60), 34.0)
    return sorted(found, key=lambda one: one.at)
