"""A plan of backups only, as a run executes it. Runs on the driver, at a start.

The plan's latencies hold for the checkpoint interval that its T(v) are for: a run takes checkpoints at it. Before it
runs, the one checker of backup plans says whether the backups meet R with these T(v) (FTC, eq. 3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.planning.backups.model import BackupProblem, check_backups
from holdfast.spark.planned_promises import recovery_promises
from holdfast.topology import Topology, as_mask, require_made_for

REMEDY = "give what `holdfast plan backups --json` printed"


@dataclass(frozen=True, slots=True, eq=False)
class PlannedBackups:
    """What a run executes of a plan of backups, and what it comes to."""

    backups: frozenset[PartitionId]
    interval: float | None
    """Seconds between checkpoints that T(v) is for; None: the plan does not say."""
    promises: tuple[dict[str, Any], ...] = ()
    """How soon every query is back; empty: the plan has no times."""
    survive: int = 0
    """Nodes that may be lost at once: 1 where every partition names the failure domain that it is in."""
    lines: tuple[str, ...] = ()
    """For people: what the plan misses, or does not say."""


def read_backups(document: Mapping[str, Any], topology: Topology, where: str) -> PlannedBackups:
    """Read what `holdfast plan backups --json` printed, for the topology that it was made for."""
    require_made_for(document, topology, where=where)
    try:
        backups = frozenset(PartitionId.parse(one) for one in document["backups"])
        strange = backups - set(topology.partitions())
        interval = None if document.get("interval_seconds") is None else float(document["interval_seconds"])
        required = None if document.get("required") is None else float(document["required"])
        known = document.get("reprocess_seconds")
        seconds = None if known is None else [float(known[str(one)]) for one in topology.partitions()]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(f"is not a plan of backups: {error}", where=where, remedy=REMEDY) from None
    if strange:
        raise BadInput(f"there is no partition {min(strange)}", where=where, remedy="plan for this topology")
    if interval is not None and not (math.isfinite(interval) and interval > 0):
        raise BadInput(f"{interval:g} s are no interval", where=where, field="interval_seconds", remedy=REMEDY)
    promises, lines = [], list[str]()
    if interval is None:
        lines.append(
            "the plan of backups names no checkpoint interval: checkpoints are taken as set, and its recovery times "
            "hold only for the interval that its reprocess_seconds are for"
        )
    if required is None or seconds is None:
        lines.append("the plan of backups has no reprocess_seconds: nothing is checked or promised; plan it again")
    else:
        problem = BackupProblem(topology, required, np.array(seconds, float))
        checked = check_backups(problem, as_mask(topology, topology.indices(sorted(map(str, backups)))))
        promises = recovery_promises(topology, checked.latency, required)
        if not checked.meets:
            worst = int(checked.latency.argmax())
            late = f"{topology.partition(worst)} is back after {checked.latency[worst]:.4g} s"
            lines.append(f"the plan misses its latency of {required:g} s: {late}, detection and restore not counted")
    survive = int(bool((topology.domain_of >= 0).all()))
    return PlannedBackups(backups, interval, tuple(promises), survive, tuple(lines))
