"""Promised recovery times beside measured ones, from the events of a run."""

from __future__ import annotations

from typing import Any

from holdfast.ids import PartitionId
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.promises import PromiseWatch, promise_line

S, A, B = (PartitionId.parse(name) for name in ("s[0]", "a[0]", "b[0]"))
PREDICTED = [
    {"what": "recovery", "query": "a[0]", "predicted": 9.0, "target": 10.0},
    {"what": "recovery", "query": "b[0]", "predicted": 9.0, "target": None},
    {"what": "overhead", "query": None, "predicted": 0.01, "target": 0.05},
]


class Driven:
    """A watch, and what it gave."""

    def __init__(self, survive: int = 1) -> None:
        self.watch = PromiseWatch({A: [S, A], B: [S, B]}, PREDICTED, survive)
        self.found: list[dict[str, Any]] = []
        for p in (S, A, B):
            self.state(0.0, p, "restoring")
        for p in (S, A, B):
            self.state(1.0, p, "catching-up")

    def tell(self, at: float, kind: str, **fields: Any) -> None:
        self.found += [dict(one.fields) for one in self.watch.emit(Observation(at, kind, fields))]

    def state(self, at: float, partition: PartitionId, after: str) -> None:
        self.tell(at, "state", partition=str(partition), after=after, before="", node=None, cause="")

    def published(self, at: float, partition: PartitionId, batch: int) -> None:
        self.tell(at, "published", partition=str(partition), batch=batch, rows=0)


def test_an_outage_ends_with_the_first_new_output_after_everything_is_back() -> None:
    driven = Driven()
    for batch in range(4):
        driven.published(2.0 + batch, A, batch)
    driven.tell(10.0, "node-lost", nodes=["n1"])
    driven.state(10.0, S, "lost")
    driven.state(10.0, A, "lost")
    driven.state(10.5, S, "restoring")
    driven.state(10.5, A, "restoring")
    driven.state(11.0, A, "catching-up")
    driven.published(12.0, A, 4)
    assert driven.found == [], "a sender is still away: that output was made before"
    driven.state(13.0, S, "catching-up")
    driven.published(13.5, A, 4)
    driven.published(15.0, A, 5)
    driven.published(16.0, A, 6)
    (found,) = driven.found
    assert (found["query"], found["predicted"], found["target"], found["measured"]) == ("a[0]", 9.0, 10.0, 3.5)
    assert (found["nodes_lost"], found["covered"], found["kept"]) == (1, True, True)
    driven.published(30.0, B, 0)
    late = driven.found[-1]
    line = promise_line(Observation(30.0, "promise", late))
    assert line == "recovery of b[0]: back after 20.0 s, predicted 9 s: broken"
    assert (late["query"], late["kept"]) == ("b[0]", False), "no target: what was predicted counts"


def test_a_start_is_no_outage_and_more_losses_than_promised_are_not_covered() -> None:
    driven = Driven()
    driven.published(5.0, A, 0)
    assert driven.found == []
    driven.tell(10.0, "node-lost", nodes=["n1"])
    driven.state(10.0, A, "lost")
    driven.tell(12.0, "node-silent", nodes=["n2"])
    driven.state(20.0, A, "catching-up")
    driven.published(90.0, A, 1)
    (found,) = driven.found
    assert (found["nodes_lost"], found["covered"], found["kept"]) == (2, False, None)
    alone = Driven(survive=0)
    alone.state(10.0, A, "lost")
    alone.state(11.0, A, "running")
    alone.published(12.0, A, 0)
    assert [(one["covered"], one["measured"]) for one in alone.found] == [(True, 2.0)]


def test_repeated_outputs_do_not_end_an_outage() -> None:
    driven = Driven()
    driven.published(2.0, A, 7)
    driven.state(10.0, A, "lost")
    driven.state(11.0, A, "running")
    driven.published(11.5, A, 7)
    assert driven.found == []
    driven.published(12.0, A, 8)
    assert [one["measured"] for one in driven.found] == [2.0]
