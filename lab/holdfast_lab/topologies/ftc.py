"""Topologies of FTC, minimum backups: lines, a tree, SignalGuru and Twitter Sentiment. Pure.

Each comes twice, as in its experiments (sec. V-B): with T(v) = 1 everywhere, and with whole T(v) from 1 to 10.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from holdfast.ids import OperatorId
from holdfast.topology.draws import Draws
from holdfast.topology.operators import Operator
from holdfast_lab.topologies.named import FULL, MERGE, ONE_TO_ONE, SPLIT, NamedTopology, reads


def _line() -> list[Operator]:
    return [
        Operator(OperatorId(f"v{step}"), 1, reads((f"v{step - 1}", ONE_TO_ONE)) if step > 1 else ())
        for step in range(1, 17)
    ]


def _lines() -> list[Operator]:
    steps = [
        Operator(OperatorId(f"v{step}"), 3, reads((f"v{step - 1}", ONE_TO_ONE)) if step > 1 else ())
        for step in range(1, 6)
    ]
    return [*steps, Operator(OperatorId("sink"), 1, reads(("v5", MERGE)))]


def _tree() -> list[Operator]:
    return [
        Operator(OperatorId("a1"), 6),
        Operator(OperatorId("a2"), 3, reads(("a1", MERGE))),
        Operator(OperatorId("a3"), 1, reads(("a2", MERGE))),
        Operator(OperatorId("b1"), 4),
        Operator(OperatorId("b2"), 2, reads(("b1", MERGE))),
        Operator(OperatorId("b3"), 1, reads(("b2", MERGE))),
        Operator(OperatorId("c"), 2),
        Operator(OperatorId("sink"), 1, reads(("a3", ONE_TO_ONE), ("b3", ONE_TO_ONE), ("c", MERGE))),
    ]


def _signal_guru() -> list[Operator]:
    return [
        Operator(OperatorId("source"), 4),
        Operator(OperatorId("dispatcher"), 2, reads(("source", MERGE))),
        Operator(OperatorId("colour-filter"), 16, reads(("dispatcher", SPLIT))),
        Operator(OperatorId("shape-filter"), 8, reads(("colour-filter", MERGE))),
        Operator(OperatorId("motion-filter"), 10, reads(("shape-filter", FULL))),
        Operator(OperatorId("voting-filter"), 5, reads(("motion-filter", MERGE))),
        Operator(OperatorId("group"), 3, reads(("voting-filter", FULL))),
        Operator(OperatorId("predict"), 6, reads(("group", SPLIT))),
        Operator(OperatorId("sink"), 1, reads(("predict", MERGE))),
    ]


def _sentiment(topics: int, filters: int, sentiments: int) -> list[Operator]:
    return [
        Operator(OperatorId("source"), 1),
        Operator(OperatorId("hot-topics"), topics, reads(("source", FULL))),
        Operator(OperatorId("merger"), 1, reads(("hot-topics", FULL))),
        Operator(OperatorId("filter"), filters, reads(("source", FULL), ("merger", FULL))),
        Operator(OperatorId("sentiment"), sentiments, reads(("filter", FULL))),
        Operator(OperatorId("sink"), 1, reads(("sentiment", FULL))),
    ]


def _unequal(operators: list[Operator], name: str) -> list[Operator]:
    """Give every task a T(v) of 1 to 10 seconds, all values alike."""
    draws = Draws(3).branch(name)
    return [
        replace(one, reprocess_seconds=tuple(float(draws.whole(1, 10)) for _ in range(one.parallelism)))
        for one in operators
    ]


def _both(
    name: str, title: str, place: str, printed: str, chosen: str, operators: Callable[[], list[Operator]]
) -> tuple[NamedTopology, NamedTopology]:
    drawn = "which T(v) each task has: drawn once, from seed 3"
    return (
        NamedTopology(name, title, "FTC", place, f"{printed}; T(v) = 1", chosen, operators),
        NamedTopology(
            f"{name}-unequal",
            f"{title}; T(v) from 1 to 10",
            "FTC",
            place,
            f"{printed}; T(v) from 1 to 10",
            f"{chosen}; {drawn}" if chosen else drawn,
            lambda: _unequal(operators(), name),
        ),
    )


_SENTIMENT_PRINTED = "all partitionings full"

ENTRIES = (
    *_both(
        "line",
        "One line of tasks",
        "Fig. 7(a), sec. IV-B",
        "tasks in a row",
        "16 of them, as many as Fig. 3 has",
        _line,
    ),
    *_both(
        "lines",
        "Parallel lines that meet in one sink",
        "Fig. 3, sec. IV-B",
        "16 tasks, with R = 2 in the example",
        "three lines of five tasks and the sink",
        _lines,
    ),
    *_both(
        "tree",
        "A tree of tasks towards one sink",
        "Fig. 7(d), sec. IV-C",
        "several sources, one sink, and one downstream neighbour for every other task",
        "20 tasks; twelve sources at three depths",
        _tree,
    ),
    *_both(
        "signal-guru",
        "SignalGuru: traffic signal schedules from phones' pictures",
        "Fig. 8(a), sec. V-B",
        "paths of nine steps, 55 tasks, and another parallelism in each step",
        "the steps by the stages of the application; 4, 2, 16, 8, 10, 5, 3, 6 and 1 tasks; full partitioning into "
        "motion-filter and group, which regroup by key, and otherwise merge or split",
        _signal_guru,
    ),
    *_both(
        "sentiment-50-20-20",
        "Twitter Sentiment, scaled to 50, 20 and 20",
        "Fig. 8(d), sec. V-B",
        f"source, hot topics (50), merger, filter (20), sentiment (20) and sink, {_SENTIMENT_PRINTED}: 560 edges; "
        "93 tasks, where the paper prints 92",
        "",
        lambda: _sentiment(50, 20, 20),
    ),
    *_both(
        "sentiment-30-30-30",
        "Twitter Sentiment, scaled to 30, 30 and 30",
        "Fig. 8(d), sec. V-B",
        f"source, hot topics (30), merger, filter (30), sentiment (30) and sink, {_SENTIMENT_PRINTED}: 1,050 edges; "
        "93 tasks, where the paper prints 92",
        "",
        lambda: _sentiment(30, 30, 30),
    ),
)
