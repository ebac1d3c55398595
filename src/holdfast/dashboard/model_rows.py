"""What the model of a run consists of beside rows of partitions: queries, nodes, faults. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

LATENCIES_KEPT = 60


@dataclass(slots=True)
class QueryState:
    """One query."""

    id: str
    output: str
    priority: int
    published: int = -1
    published_at: float | None = None
    rows: int = 0
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))
    tentative: bool = False
    """Whether its outputs are tentative now."""
    fidelity: float | None = None
    """As predicted for what it goes on with; None: it is whole, or stands."""


@dataclass(slots=True)
class NodeState:
    """One node."""

    name: str
    since: float
    state: str = "up"
    capacity: float | None = None
    why: str | None = None


@dataclass(slots=True)
class Fault:
    """Something that fails and is tried again; the last one of its kind and place."""

    at: float
    times: int
    problem: str


def some(names: list[Any], most: int = 4) -> str:
    """Name the first of many."""
    text = ", ".join(str(one) for one in names[:most])
    return f"{text} and {len(names) - most} more" if len(names) > most else text
