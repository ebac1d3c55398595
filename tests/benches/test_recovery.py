"""Kills on both exchanges side by side: the same failure, who begins in turns, and what is said of them."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.drill.drill import with_capacity
from holdfast.drill.scenarios import SCENARIOS, find_scenario
from holdfast.drill.schedule import make_schedule
from holdfast.drill.settings import check_settings
from holdfast_lab.benches.streaming.recovery import STEPS, Failure, drilled, in_turns, summarize
from holdfast_lab.commands.bench_recovery import print_drills


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_both_exchanges_have_the_same_failure_and_batches(scenario: str) -> None:
    failure = Failure(scenario, seed=3, nodes=6, kill=3)
    asked = [failure.settings(exchange) for exchange in ("resident", "shuffle")]
    for one in asked:
        check_settings(with_capacity(one, find_scenario(scenario).application().topology()))
    assert make_schedule(asked[0]) == make_schedule(asked[1])
    first, second = (one.document() for one in asked)
    assert {name for name in first if first[name] != second[name]} == {"exchange"}


def test_who_is_first_changes_from_failure_to_failure() -> None:
    failures = [Failure("traffic", seed, 4, 1) for seed in (1, 2)]
    found = [(one.seed, exchange) for one, exchange in in_turns(failures)]
    assert found == [(1, "resident"), (1, "shuffle"), (2, "shuffle"), (2, "resident")]


def result(first_output: float | None) -> dict[str, Any]:
    after = {f"{step}_after": 0.1 for step in STEPS} | {"first_output_after": first_output}
    queries = [{"latency_before": latency} for latency in (0.3, None, 0.1, 0.2)]
    return {"killed": 2, "verdict": "ok", "exactly_once": {"expected": 70}, "queries": queries, **after}


def test_ratios_are_within_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    failures = [Failure("traffic", seed, 4, 2) for seed in (1, 2, 3)]
    seconds = {"resident": (0.5, 1.0, None), "shuffle": (2.0, 2.0, 3.0)}
    found = [
        drilled(failure, exchange, result(seconds[exchange][failure.seed - 1]))
        for failure, exchange in in_turns(failures)
    ]
    assert {one.latency_before for one in found} == {0.2}
    ours, theirs = sorted(summarize(found), key=lambda row: row["side"])
    assert ours["first_output_seconds"] == {"median": 0.75, "low": 0.5, "high": 1.0}
    assert ours["first_output_times_sooner"] == {"median": 3.0, "low": 2.0, "high": 4.0}
    assert theirs["ratio"] == pytest.approx(0.375), "one of three has no pair"
    print_drills(found, "here")
    printed = capsys.readouterr().out
    assert "(0.50-1.00)" in printed
    assert "(2.00-4.00)" in printed
