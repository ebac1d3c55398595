"""The plans that are compared, made from what a run of the same topology measured. Pure; runs anywhere.

Segment plans have one overhead in common: what one segment needs that checkpoints every `INTERVAL` seconds. Bandwidth
is only the unit that overhead is counted in: a run's checkpoints are not slowed to it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.errors import NoPlan
from holdfast.planning.backups.algorithms import plan_backups
from holdfast.planning.backups.model import BackupProblem
from holdfast.planning.segments.algorithms import Algorithm, plan_segments
from holdfast.planning.segments.grid import FrequencyGrid
from holdfast.planning.segments.model import SegmentModel, SegmentPlan, model_of, segments_of, totals_of
from holdfast.planning.segments.stored import stored_edges
from holdfast.topology import Topology, made_for
from holdfast_lab.experiments.promises.workloads import BATCH_SECONDS

BANDWIDTH = 1e6
"""Bytes per second."""
INTERVAL = 12.0
"""Seconds between checkpoints of one segment, and of backup plans."""
PIPELINED = "segments"
"""The chosen plan: `holdfast plan segments --replay pipelined`."""
SEGMENT_PLANS = {
    PIPELINED: Algorithm.AUTO,
    "one-segment": Algorithm.ONE_SEGMENT,
    "n-segments": Algorithm.N_SEGMENTS,
    "segments-summed": Algorithm.AUTO,
}
"""With the algorithm of each; `segments-summed` is chosen with replays added up, as in the paper."""
BACKUP_SHARES = {"backups-tight": 0.0, "backups-half": 0.5, "backups-loose": 1.0}
"""Backup plans by their target R: between the longest T(v), which no plan undercuts, and what no backups come to."""
PLANS = (*SEGMENT_PLANS, *BACKUP_SHARES)


@dataclass(frozen=True, slots=True)
class MadePlan:
    """A plan, and what it says it costs."""

    name: str
    document: Mapping[str, Any]
    """As `holdfast plan segments --json` and `holdfast plan backups --json` print it."""
    interval: Mapping[str, float]
    """Seconds between checkpoints, by operator."""
    latency: float | None
    """R, in seconds; None: the plan has none."""
    bytes_per_second: float
    """What checkpoints and stored edges are predicted to write; the log of the sources is written whatever the plan."""
    budget: float
    """The overhead allowed, in the same unit."""


def make_plan(name: str, topology: Topology) -> MadePlan:
    """Make one plan; NoPlan where there is none."""
    return _segments(name, topology) if name in SEGMENT_PLANS else _backups(name, topology)


def budget_of(model: SegmentModel) -> float:
    """Return the overhead, in seconds per second, of one segment that checkpoints every `INTERVAL` seconds."""
    return float(model.state_seconds.sum() / INTERVAL + model.input_seconds[model.sources].sum())


def _segments(name: str, topology: Topology) -> MadePlan:
    model = model_of(topology, BANDWIDTH, pipelined=name == PIPELINED, batches_per_second=1 / BATCH_SECONDS)
    allowed = budget_of(model)
    plan = plan_segments(
        model, allowed, algorithm=SEGMENT_PLANS[name], grid=FrequencyGrid(200, max_frequency=1 / INTERVAL)
    )
    log = float(model.input_seconds[model.sources].sum())
    interval = 1 / plan.frequency
    numbers = segments_of(model, plan.anchors[None, :])[0]
    edges = stored_edges(topology, numbers.tolist(), interval.tolist(), 1 / BATCH_SECONDS)
    return MadePlan(
        name,
        {**describe(model, plan), "algorithm": str(SEGMENT_PLANS[name]), "topology": made_for(topology)},
        {str(one): float(interval[number]) for number, one in enumerate(model.names)},
        None,
        float((model.state_seconds / interval).sum()) * BANDWIDTH + float(edges.sum()),
        (allowed - log) * BANDWIDTH,
    )


def describe(model: SegmentModel, plan: SegmentPlan) -> dict[str, Any]:
    """Return a segment plan as the command prints it."""
    totals = totals_of(model, plan.anchors, plan.frequency)
    numbers = segments_of(model, plan.anchors[None, :])[0]
    groups: dict[int, list[str]] = {}
    for operator in model.order:
        groups.setdefault(int(numbers[operator]), []).append(str(model.names[operator]))
    return {
        "anchors": [str(one) for one, anchor in zip(model.names, plan.anchors, strict=True) if anchor],
        "frequency": {str(one): float(plan.frequency[number]) for number, one in enumerate(model.names)},
        "recovery_time": plan.recovery_time,
        "overhead": plan.overhead,
        "segments": list(groups.values()),
        "recovery_seconds": {str(one): float(totals.recovery_seconds[n]) for n, one in enumerate(model.names)},
    }


def _backups(name: str, topology: Topology) -> MadePlan:
    model = model_of(topology, BANDWIDTH)
    # A kill comes at the end of an interval here: T(v) is for a whole one, where FTC takes the mean.
    reprocess = (model.work_seconds * INTERVAL)[topology.operator_of]
    nothing = BackupProblem(topology, float(reprocess.sum()), reprocess)
    without = nothing.in_seconds(nothing.latencies(np.zeros(len(topology), bool)))
    shortest, longest = float(reprocess.max()), float(without.max())
    latency = shortest + BACKUP_SHARES[name] * (longest - shortest)
    latency = float(f"{latency * 1.001:.4g}")  # not below what it is made from by rounding
    plan = plan_backups(BackupProblem(topology, latency, reprocess), clock=time.perf_counter)
    state = float(model.state_seconds.sum()) * BANDWIDTH
    return MadePlan(
        name,
        {
            "backups": [str(p) for p in topology.partitions(plan.backups.tolist())],
            "count": len(plan.backups),
            "latency": {str(p): float(plan.latency[v]) for v, p in enumerate(topology.partitions())},
            "worst": plan.worst,
            "R": latency,
            "topology": made_for(topology),
        },
        {str(operator.id): INTERVAL for operator in topology.operators},
        latency,
        state / INTERVAL,
        state / INTERVAL,
    )


def plans_of(topology: Topology, names: tuple[str, ...]) -> tuple[dict[str, MadePlan], dict[str, str]]:
    """Return the plans that exist, and why others do not."""
    found: dict[str, MadePlan] = {}
    refused: dict[str, str] = {}
    for name in names:
        try:
            found[name] = make_plan(name, topology)
        except NoPlan as error:
            refused[name] = str(error)
    return found, refused
