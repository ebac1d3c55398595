"""The experiment on segments, small: what it computes, what it writes, and how it refuses."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from holdfast.cli.main import run
from holdfast.pictures import style
from holdfast.planning.segments.baselines import plan_n_segments, plan_one_segment
from holdfast.planning.segments.model import totals_of
from holdfast_lab.experiments.segments.claims import crossing
from holdfast_lab.experiments.segments.comparison import compare, measure
from holdfast_lab.experiments.segments.failures import simulate
from holdfast_lab.experiments.segments.run import run as run_experiment
from holdfast_lab.experiments.segments.search_gap import measure_search
from holdfast_lab.experiments.segments.settings import CHAIN, SLOW_TREE, SWEEPS
from holdfast_lab.plots.segments import draw_segments


def test_fast_recover_is_never_worse_than_what_it_is_compared_with() -> None:
    for setting in (CHAIN, replace(SLOW_TREE, operators=8, steps=30)):
        for seed in range(4):
            outcome = measure(setting, seed, failures=5, beyond=True)
            for other in (outcome.one_segment, outcome.n_segments, outcome.printed):
                assert np.isnan(other) or outcome.fast_recover <= other * (1 + 1e-9)
            assert outcome.refined <= outcome.fast_recover * (1 + 1e-12)
            assert outcome.auto_refined <= outcome.auto * (1 + 1e-12)
            assert outcome.auto <= outcome.fast_recover * (1 + 1e-9)


def test_a_point_has_the_shares_and_spreads_of_its_topologies() -> None:
    point = compare(replace(CHAIN, operators=35), 6, beyond=False)
    assert point.n_infeasible > 0.6
    assert point.infeasible == 0
    assert point.less_than_one > 0.5
    box = point.spread["fast_recover"]
    assert box.least <= box.quarter <= box.median <= box.three_quarters <= box.most
    assert point.row()["fast_recover_median"] == box.median


def test_simulated_failures_recover_what_goes_back_once() -> None:
    model = CHAIN.model(3)
    one, every = plan_one_segment(model, 0.4), plan_n_segments(model, 0.4)
    # In one segment the deepest failed operator brings back the whole chain above it: computing time is its recovery.
    recovery = simulate(model, one, 50, np.random.default_rng(1))
    assert recovery.computing == pytest.approx(recovery.latency)
    # With every operator an anchor, five operators recover alone.
    seconds = totals_of(model, every.anchors, every.frequency).recovery_seconds
    recovery = simulate(model, every, 50, np.random.default_rng(1))
    assert 5 * seconds.min() <= recovery.computing <= 5 * seconds.max()
    assert recovery.latency < recovery.computing


def test_the_gap_of_the_search_is_measured_against_all_sets() -> None:
    for gap in measure_search(2):
        assert gap.cases == 2
        assert 0 <= gap.mean <= gap.most < 0.2


def test_crossing() -> None:
    assert crossing([1.0, 100.0], [0.9, 0.1], 0.5) == pytest.approx(10.0)
    assert crossing([1.0, 10.0, 100.0], [float("nan"), 0.4, 0.6], 0.5) == pytest.approx(31.6, rel=0.01)
    assert crossing([1.0, 10.0], [0.9, 0.8], 0.5) is None


def test_one_sweep_by_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["experiment", "segments", "--topologies", "2", "--only", "chain-bandwidth", "--out", str(tmp_path)]
    assert run([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((tmp_path / "result.json").read_text())
    (sweep,) = document["sweeps"]
    assert sweep["name"] == "chain-bandwidth"
    with (tmp_path / "points.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(sweep["points"]) > 5
    assert float(rows[0]["bandwidth"]) == 1.5e5
    assert run([*arguments[:-4], "--only", "chain-breadth"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_every_picture_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(style, "DOTS_PER_INCH", 40)
    document = run_experiment(1, ("chain-bandwidth",)).document()
    # What is drawn depends on names, not on figures: lend the points of one sweep to all.
    (sweep,) = document["sweeps"]
    document["sweeps"] = [{**sweep, "name": other.name} for other in SWEEPS]
    document["running_times"] = [
        {"figure": figure, "varied": varied, "value": value, "ours": 0.001 * value, "transcription": 0.1 * value}
        for figure in ("Fig. 4.13", "Fig. 4.14")
        for varied in ("operators", "steps")
        for value in (5, 10)
    ]
    made = draw_segments(document, tmp_path)
    assert len(made) == 8
    for path in made:
        assert path.read_bytes().startswith(b"\x89PNG")
        assert path.stat().st_size > 5_000
