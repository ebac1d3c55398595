"""A drill's `result.json`, from its settings, its measures and the verdicts of its checks. Runs anywhere; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from holdfast.drill.accuracy import TentativeAccuracy, fields_of
from holdfast.drill.checkers import Check, ExactlyOnce, judge
from holdfast.drill.measures import DrillMeasures, QueryMeasures
from holdfast.drill.settings import DrillSettings


def make_result(
    asked: DrillSettings,
    measures: DrillMeasures,
    checks: Sequence[Check],
    compared: Mapping[str, ExactlyOnce],
    killed: int,
    more: Mapping[str, Any],
    tentative: Mapping[str, TentativeAccuracy] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the result as the contract has it: times in seconds from the drill's start.

    `tentative`: how right the tentative outputs of queries were.
    """
    return {
        "scenario": asked.scenario,
        "strategy": str(asked.strategy),
        "seed": asked.seed,
        "nodes": asked.nodes,
        "killed": killed,
        "batches": asked.batches,
        "batch_seconds": asked.batch_seconds,
        "verdict": str(judge(checks)),
        "reasons": [f"{one.name}: {one.reason}" for one in checks if one.verdict != "ok"],
        "exactly_once": asdict(sum(compared.values(), ExactlyOnce())),
        "fault_at": _rounded(measures.fault_at),
        "detections": [
            {"what": one.what, "node": one.node, "at": _rounded(one.at), "after": _rounded(one.after)}
            for one in measures.detections
        ],
        "detected_after": _rounded(measures.detected_after),
        "planned_after": _rounded(measures.planned_after),
        "first_restore_after": _rounded(measures.first_restore_after),
        "first_output_after": _rounded(measures.first_output_after),
        "all_back_after": _rounded(measures.all_back_after),
        "level_after": _rounded(measures.level_after),
        "unavailability": _rounded(measures.unavailability),
        "unavailability_level": _rounded(measures.unavailability_level),
        "queries": [_query(one, tentative) for one in measures.queries],
        "available": [[at, count] for at, count in measures.available],
        "recovered_at": {name: _rounded(at) for name, at in measures.recovered_at.items()},
        "checks": [{"name": one.name, "verdict": str(one.verdict), "reason": one.reason} for one in checks],
        "ended_at": _rounded(measures.ended_at),
        "settings": asked.document(),
        **more,
    }


def _query(one: QueryMeasures, tentative: Mapping[str, TentativeAccuracy]) -> dict[str, Any]:
    return {
        "id": one.query.id,
        "priority": one.query.priority,
        "down_at": _rounded(one.down_at),
        "tentative_at": _rounded(one.tentative_at),
        "fidelity_predicted": _rounded(one.fidelity_predicted),
        **fields_of(one.query.id, tentative),
        "gap": _rounded(one.gap),
        "gap_before": _rounded(one.gap_before),
        "back_at": _rounded(one.back_at),
        "level_at": _rounded(one.level_at),
        "latency_before": _rounded(one.latency_before),
        "latency_after": _rounded(one.latency_after),
        "outages": [[_rounded(period.down_at), _rounded(period.back_at)] for period in one.outages],
        "relative_latency": [[_rounded(at), _rounded(value)] for at, value in one.relative],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
