"""Marginal CPU of a side, without a cluster: the operators alone, in chunks, and what is written of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from holdfast_lab.benches.streaming.cluster import this_machine
from holdfast_lab.benches.streaming.sides import PyArrowSide
from holdfast_lab.benches.streaming.throughput import Comparison, Round, _marginal, _turn
from holdfast_lab.benches.streaming.workloads import WORKLOADS, in_our_days
from holdfast_lab.commands.bench_throughput import document, print_comparisons, turns_of
from holdfast_lab.plots.performance import draw_throughput


def test_more_rows_cost_the_difference_of_two_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload = WORKLOADS["count"]
    side = PyArrowSide(workload, tmp_path / "pyarrow", 2)
    coming = in_our_days(workload.batches(1, 12, 300))
    _, used = _turn(side, [next(coming) for _ in range(4)], ())
    assert "driver's Python" in used
    found = _marginal([side], coming, [2, 6], 300, (), lambda text: None)["pyarrow"]
    assert (found.small, found.large, found.chunks.count) == (600, 1800, 2)
    assert found.seconds == pytest.approx(sum(found.kinds.values()))
    assert side.rows("counts").num_rows > 0, "every batch was processed"
    assert len(list((tmp_path / "pyarrow" / "in" / "tags").iterdir())) == 2 * 12

    seconds = {"structured-streaming": 2.0, "pyarrow": 0.5}
    rounds = (Round("count", 0, 600, 2, seconds, seconds, "pyarrow"),)
    sides = ("structured-streaming", "pyarrow")
    one = Comparison("count", "", 3.0, 1, sides, rounds, 5, {}, 300, {"pyarrow": found})
    written = document([one], this_machine(), {"batch_rows": [300]})
    assert [(row["workload"], row["side"], row["ratio"]) for row in written["rows"]] == [
        ("count, batches of 300", "structured-streaming", 1.0),
        ("count, batches of 300", "pyarrow", 4.0),
    ]
    assert (written["marginal"][0]["side"], written["marginal"][0]["large_rows"]) == ("pyarrow", 1800)
    assert [turn["batch_rows"] for turn in turns_of([one])] == [300, 300]
    print_comparisons([one], this_machine())
    assert "Marginal CPU seconds" in capsys.readouterr().out
    alone = Comparison("count", "", 3.0, 1, sides[1:], (replace(rounds[0], against="pyarrow"),), 5, {}, 300)
    assert (alone.against, alone.ratio("pyarrow")) == ("pyarrow", 1.0), "without the other it is its own measure"
    draw_throughput(written, tmp_path / "throughput.png")
    assert (tmp_path / "throughput.png").stat().st_size > 10_000
