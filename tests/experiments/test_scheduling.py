"""The scheduling experiment: small, its points and claims, its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast_lab.experiments.scheduling import (
    ALGORITHMS,
    PERCENTAGES,
    SETTINGS,
    run_arrivals,
    scheduling_jobs,
    scheduling_points,
)


def test_points_are_in_the_order_the_algorithms_must_have() -> None:
    points = scheduling_points(SETTINGS[0], 5)
    assert [one.percent for one in points] == list(PERCENTAGES)
    for one in points:
        assert one.optimal
        assert one.restored["dp"] == one.restored["exact"] >= one.restored["best-density"]
        assert one.restored["exact"] >= one.restored["operator-centric"]
    exact = [one.restored["exact"] for one in points]
    assert exact == sorted(exact)


def test_settings_that_panels_share_are_computed_once() -> None:
    assert len(scheduling_jobs(3)) == 4 * 3


def test_arrivals_begin_with_figure_2() -> None:
    first, second = run_arrivals(1)
    assert first.unavailability == {
        "incremental": 1140,
        "operator-centric": 1320,
        "blocking": 1440,
        "best-case": 720,
    }
    drawn = second.unavailability
    assert drawn["best-case"] <= drawn["incremental"] <= drawn["blocking"]


def test_the_command_writes_its_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "scheduling"
    assert run(["experiment", "scheduling", "--topologies", "1", "--processes", "1", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "result.json").read_text())
    assert printed["cases"] == len(SETTINGS) * len(PERCENTAGES)
    shown = {(row["panel"], row["setting"]) for row in printed["mean_restored"]}
    assert shown == {(one.panel, one.label) for one in SETTINGS}
    assert {row["algorithm"] for row in printed["mean_restored"]} == set(ALGORITHMS)
    assert all({"where", "paper", "ours", "holds"} <= set(claim) for claim in printed["claims"])
    for name in ("points.csv", "mean_restored.csv", "unavailability.csv"):
        assert len((out / name).read_text().splitlines()) > 1
    for name in ("fig15.png", "unavailability.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
