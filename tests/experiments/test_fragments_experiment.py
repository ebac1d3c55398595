"""The fragments experiment: figures of the model, the tuner's run, its files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast.erasure.layout import Coding
from holdfast_lab.experiments.code_rate_measuring import CodingTimes, measure_coding, some_state
from holdfast_lab.experiments.fragments import (
    file_limit_points,
    fitted_rate,
    modelled,
    success_points,
    tuner_points,
)


def test_success_rises_with_n_and_falls_with_p() -> None:
    points = success_points()
    for data in (5, 10, 15):
        for p in (0.01, 0.1):
            line = [one.success for one in points if (one.data, one.node_failure) == (data, p)]
            assert line == sorted(line)
            assert line[0] == pytest.approx((1 - p) ** data)
    assert max(one.total for one in points) <= 32


def test_file_limit_stays_below_both_rates() -> None:
    for one in file_limit_points():
        assert one.file_bandwidth < min(one.bandwidth, one.code_rate)


def test_one_rate_is_fitted_to_all_sizes() -> None:
    times = [CodingTimes(Coding(10, 10), size, 1, 0.0, size / 5e8) for size in (10**6, 10**7, 10**8)]
    assert fitted_rate(times) == pytest.approx(5e8)
    assert [one.recompute_model for one in modelled(times)] == pytest.approx([0.002, 0.02, 0.2])


def test_coding_is_measured_with_the_given_clock() -> None:
    ticks = iter(range(100))
    times = measure_coding(Coding(4, 2), some_state(10_000), lost=2, repeat=3, clock=lambda: float(next(ticks)))
    assert (times.encode, times.decode) == (1.0, 1.0)


def test_the_tuner_moves_seldom_and_soon_after_each_change() -> None:
    points = tuner_points()
    moves = [one.number for one in points if one.changed]
    assert len(moves) <= 10
    for change in (80, 160):
        assert any(change <= move <= change + 6 for move in moves)
    assert points[-1].parity > points[100].parity
    assert tuner_points(rounds=12) == tuner_points(rounds=12)


def test_the_command_writes_its_files_and_plan_fragments_reads_the_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fragments"
    assert run(["experiment", "fragments", "--megabytes", "8", "--repeat", "1", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "result.json").read_text())
    assert {len(printed[name]) > 1 for name in ("fig7", "fig8", "fig11", "rates", "tuner")} == {True}
    for name in ("fig7", "fig8", "fig10", "fig11", "tuner"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (out / f"{name}.csv").exists()
    asked = ["--state-bytes", "1e6", "--peers", "20", "--node-failure", "0.01", "--reliability", "0.999"]
    asked += ["--bandwidth", "1e8", "--rates", str(out / "result.json")]
    assert run(["plan", "fragments", *asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["total"] <= 20
