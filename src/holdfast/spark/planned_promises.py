"""What plans of one kind promise: how soon every query is back. Runs on the driver, at a start.

A plan of segments has the time of one recovery of each operator, a plan of backups the latency of each partition.
Neither counts detection and the recovery plan: these are assumed, as joint plans assume them without a profile.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.planning.joint.targets import Assumptions
from holdfast.topology import Floats, Queries, Topology

FIXED_SECONDS = Assumptions().fixed_seconds
_AT_ONCE = 512


def recovery_promises(topology: Topology, seconds: Floats, within: float | None = None) -> list[dict[str, Any]]:
    """Return the promise of every query, by the time of each partition; `within`: what was asked of every one."""
    queries = Queries(topology)
    longest = np.zeros(len(queries))
    for first in range(0, len(queries), _AT_ONCE):
        some = np.arange(first, min(first + _AT_ONCE, len(queries)))
        longest[some] = np.where(queries.matrix(some), seconds, 0.0).max(axis=1)
    return [
        {
            "what": "recovery",
            "query": str(head),
            "priority": int(queries.priority[number]),
            "predicted": float(f"{longest[number] + FIXED_SECONDS:.6g}"),
            "alone": float(f"{longest[number] + FIXED_SECONDS:.6g}"),
            "target": None if within is None else within + FIXED_SECONDS,
        }
        for number, head in enumerate(topology.partitions(queries.heads.tolist()))
    ]


def promises_line(promises: list[dict[str, Any]]) -> str:
    """Return the end of a start's line: how soon all queries are back."""
    if not promises:
        return ""
    slowest = max(one["predicted"] for one in promises)
    return f"; predicted: all queries back within {slowest:.3g} s, {FIXED_SECONDS:g} s of them assumed for detection"
