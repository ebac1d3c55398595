"""The experiment on replica plans: what it computes, what it writes, and that its claims can fail."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast.planning.replicas.fidelity import LossModel
from holdfast_lab.experiments import replication
from holdfast_lab.experiments.replication import (
    ALGORITHMS,
    QUERIES,
    RATIOS,
    SETTINGS,
    RandomPoint,
    claims,
    plan_topology,
    run_queries,
    summaries,
)


def made(own: float, other: float, ratio: float = 0.1, panel: str = "a", setting: str = "uniform") -> RandomPoint:
    values = {"structure-aware": own, "printed": own, "greedy": other, "better": max(own, other)}
    return RandomPoint(panel, setting, 0, ratio, 50, 5, values, None)


def test_structure_aware_is_within_five_percent_of_dp_on_both_queries() -> None:
    points = run_queries()
    assert {one.query for one in points} == set(QUERIES)
    for one in points:
        assert one.fidelity["structure-aware"] >= 0.95 * one.fidelity["dp"]
        assert one.fidelity["better"] >= max(one.fidelity["greedy"], one.fidelity["structure-aware"])
        assert all(value <= one.fidelity["dp"] + 1e-12 for value in one.fidelity.values())


def test_a_random_topology_is_planned_for_every_budget_and_compared_with_exact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replication, "RATIOS", (0.1, 0.4))
    half_join = next(one for one in SETTINGS if one.label == "half join")
    points = plan_topology((half_join, 0, True))
    assert [one.ratio for one in points] == [0.1, 0.4]
    for one in points:
        assert one.bound is not None
        assert one.fidelity["printed"] <= one.fidelity["structure-aware"] + 1e-12
        assert max(one.fidelity["greedy"], one.fidelity["structure-aware"]) == one.fidelity["better"]
        assert one.fidelity["better"] <= one.fidelity["exact"] + 1e-9 <= one.bound + 2e-9


def test_structure_aware_is_reported_alone_where_greedy_is_better(monkeypatch: pytest.MonkeyPatch) -> None:
    class Idle:
        """A planner that finds nothing."""

        def __init__(self, model: LossModel) -> None: ...

        def extended(self, start: list[int], budget: int) -> list[int]:
            return []

        def exchanged(self, plan: list[int], budget: int) -> list[int]:
            return plan

    monkeypatch.setattr(replication, "StructureAware", Idle)
    monkeypatch.setattr(replication, "RATIOS", (0.8,))
    (point,) = plan_topology((SETTINGS[0], 0, False))
    assert point.fidelity["structure-aware"] == point.fidelity["printed"] == 0
    assert point.fidelity["better"] == point.fidelity["greedy"] > 0
    (found,) = summaries([point, made(0.5, 0.4, 0.8), made(0.4, 0.5, 0.8)])
    assert (found.greedy_ahead, found.greedy_ahead_of_printed) == (2, 2)


def test_means_and_ratios() -> None:
    (found,) = summaries([made(0.4, 0.1), made(0.2, 0.0), replace(made(0.6, 0.5), bound=0.8)])
    assert found.mean == pytest.approx({"structure-aware": 0.4, "printed": 0.4, "greedy": 0.2, "better": 0.4})
    assert found.ratio_of_means == pytest.approx(2)
    assert found.greatest_ratio == pytest.approx(4)
    assert found.greedy_nothing == 1
    assert found.below_exact == pytest.approx(0.25)
    (nothing,) = summaries([made(0.2, 0.0)])
    assert nothing.ratio_of_means is nothing.greatest_ratio is None


def test_claims_that_do_not_hold_say_so() -> None:
    def points(own: float, other: float) -> list[RandomPoint]:
        return [made(own, other, ratio, one.panel, one.label) for one in SETTINGS for ratio in RATIOS]

    queries = run_queries()
    said = claims(queries, summaries(points(0.2, 0.3)))
    assert [one.agrees for one in said[:4]] == [True, True, True, True]
    assert not any(one.agrees for one in said[4:])
    worse = [replace(one, fidelity=one.fidelity | {"structure-aware": 0.5 * one.fidelity["dp"]}) for one in queries]
    assert not claims(worse, summaries(points(0.2, 0.3)))[0].agrees


def test_the_command_writes_tables_and_plots(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "RATIOS", (0.1, 0.8))
    out = tmp_path / "out"
    assert run(["experiment", "replication", "--topologies", "1", "--processes", "1", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "result.json").read_text())
    assert printed["claims"][0]["agrees"]
    with (out / "fig14.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(SETTINGS) * 2
    assert set(ALGORITHMS) <= set(rows[0])
    for name in ("fig13.png", "fig14.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    assert (out / "fig13.csv").read_text().startswith("query,")
