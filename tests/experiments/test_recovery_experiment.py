"""The drills of the recovery experiment can be done; its findings come from result files, made up here."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.drill.scenarios import find_scenario
from holdfast.drill.schedule import FaultKind, make_schedule
from holdfast.drill.settings import check_settings
from holdfast.reports.junit import make_junit
from holdfast.reports.page import make_page
from holdfast_lab.experiments.recovery.drills import planned_drills
from holdfast_lab.experiments.recovery.findings import find_claims, latencies, mean_relative, summary
from holdfast_lab.experiments.recovery.report import experiment_report


def test_every_drill_can_be_done() -> None:
    planned = planned_drills(seed=3)
    assert len({one.name for one in planned}) == len(planned)
    assert {one.figure for one in planned} == {9, 10, 11, 12, 14}
    for one in planned:
        find_scenario(one.settings.scenario)
        check_settings(one.settings)
        faults = make_schedule(one.settings)
        assert sum(fault.kind is FaultKind.KILL for fault in faults) == one.settings.kill
        # The stream goes on after the last replacement: queries can be seen to be level again.
        assert faults[-1].at + 20 < one.settings.batches


def result(unavailability: float, predicted: float | None = None, back: float = 30.0) -> dict[str, Any]:
    relative = [[float(at), 1.0] for at in range(1, 20)] + [[back, (back - 20) / 0.5], [back + 5, 1.0]]
    return {
        "verdict": "ok",
        "unavailability": unavailability,
        "unavailability_level": unavailability * 1.5,
        "predicted_unavailability": predicted,
        "fault_at": 20.0,
        "detected_after": 0.2,
        "planned_after": 0.3,
        "first_restore_after": 1.0,
        "first_output_after": back - 20,
        "all_back_after": back - 20,
        "level_after": back - 15,
        "queries": [
            {
                "id": "A",
                "priority": 3,
                "down_at": 20.0,
                "back_at": back,
                "latency_before": 0.5,
                "relative_latency": relative,
            },
            {
                "id": "B",
                "priority": 2,
                "down_at": None,
                "back_at": None,
                "latency_before": 0.5,
                "relative_latency": [[float(at), 1.5 if 20 < at < 25 else 1.0] for at in range(1, 40)],
            },
        ],
    }


def test_claims_hold_or_do_not() -> None:
    results = {
        "fig11-incremental": result(600.0, 560.0),
        "fig11-blocking": result(1000.0),
        "fig11-operator-centric": result(900.0),
        "fig11-best-case": result(500.0),
        "fig11-source-replay": result(1100.0, back=40.0),
    }
    claims = {claim.paper: claim.holds for claim in find_claims(results)}
    assert len(claims) == 6
    assert all(claims.values())
    best_is_worse = find_claims({**results, "fig11-best-case": result(700.0)})
    assert [claim.holds for claim in best_is_worse if claim.paper.startswith("best case")] == [False]
    results["fig11-incremental"] = result(950.0, 560.0)
    claims = {claim.paper: claim.holds for claim in find_claims(results)}
    assert claims["within 15 % of the prediction"] is False
    assert claims["query-centric plans beat operator-centric ones"] is False
    assert find_claims({}) == []


def test_more_failures_take_longer_under_source_replay() -> None:
    results = {f"fig9-{kill}": result(100.0, back=20 + 5.0 * kill) for kill in (1, 2, 3)}
    (claim,) = find_claims(results)
    assert claim.holds
    assert claim.ours == "1: 5 s, 2: 10 s, 3: 15 s"


def test_series_and_rows() -> None:
    one = result(600.0)
    failed = dict(mean_relative(one, failed=True))
    assert failed[30.0] == pytest.approx(20.0)
    assert dict(mean_relative(one, failed=False))[22.0] == 1.5
    worst = max(latencies(one), key=lambda pair: pair[1])
    assert worst == [20.0, 10.0], "a batch due at 20 s came out at 30 s"
    row = summary("x", "y", one)
    assert row["median_down_seconds"] == 10.0
    assert row["failed_queries"] == 1
    assert row["live_relative_latency"] == pytest.approx(1.0)
    # A is late from the failure to its return; B, which did not fail, for four outputs a second apart.
    assert row["late"] == pytest.approx(3 * 10 + 2 * 4)


def test_structured_streaming_beside_holdfast_under_the_same_kills() -> None:
    results = {"fig10-1": result(100.0, back=50.0), "fig10-holdfast-1": result(100.0, back=25.0)}
    first, second = find_claims(results)
    assert (first.holds, first.ours) == (True, "1 killed: worst latency 30 s, 0.5 s before")
    assert (second.holds, second.ours) == (True, "1 killed: worst latency 5 s beside 30 s")


def test_one_report_compares_the_drills() -> None:
    planned = [one for one in planned_drills(seed=1) if one.figure == 11]
    results = {one.name: result(600.0 + number, 500.0) for number, one in enumerate(planned)}
    for one in results.values():
        one |= {"available": [[0.0, 2], [20.0, 1], [30.0, 2]], "ended_at": 60.0}
        one["exactly_once"] = {"expected": 100, "missing": 0, "duplicated": 0, "wrong": 0}
    results[planned[0].name] |= {"verdict": "unknown", "reasons": ["faults: none hit <a> partition"]}
    rows = [summary(one.name, one.label, results[one.name]) for one in planned]
    report = experiment_report(planned, results, rows, find_claims(results), ["holdfast", "experiment", "recovery"])
    assert report.verdict == "unknown"
    assert report.line.startswith(f"{len(planned) - 1} of {len(planned)} drills are ok")
    page = make_page(report)
    assert page.count("<svg") == 1
    assert "&lt;a&gt; partition" in page
    assert all(one.name in page for one in planned)
    assert make_junit([("recovery", report)]).count("<error") == 1
