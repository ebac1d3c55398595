"""The experiment on tentative outputs: what it computes, that it goes on where it stood, that its claims can fail."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.cli.main import run
from holdfast.drill import merge_tree
from holdfast.drill.scenarios import find_scenario, is_application
from holdfast.ids import OperatorId, PartitionId
from holdfast.runtime import run_in_process
from holdfast.runtime.program import Program
from holdfast_lab.experiments.tentative import accuracy, latency, price
from holdfast_lab.experiments.tentative.accuracy import Point, hottest_accuracy, incidents_accuracy, points, workload
from holdfast_lab.experiments.tentative.partial_run import Standing, advance, arrivals

OUT = PartitionId(OperatorId("O4"), 0)


def made(query: str, planner: str, fidelity: float, measured: float) -> Point:
    return Point(query, planner, 5, 20, (), fidelity, 0.9, measured)


def test_a_run_with_all_partitions_is_a_run_without_failures() -> None:
    app, rows = merge_tree.application(5.0), list(merge_tree.batches(1, 8, 200))
    program = Program(app)
    given = advance(program, Standing(), arrivals(program, rows))
    found = pa.concat_tables([one[OUT] for one in given if OUT in one])
    done = run_in_process(merge_tree.application(5.0), rows, nodes=3, close=False).rows("merged")
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, done.to_pylist()))


def test_half_of_the_tree_gives_half_of_the_rows_and_nothing_without_the_root() -> None:
    program = Program(merge_tree.application(5.0))
    batches = arrivals(program, merge_tree.batches(1, 8, 400))
    whole = sum(one[OUT].num_rows for one in advance(program, Standing(), batches) if OUT in one)
    half = {p for p in program.partitions if p == OUT or p.index < program.operators[p.operator].parallelism // 2}
    some = sum(one[OUT].num_rows for one in advance(program, Standing(), batches, half) if OUT in one)
    assert 0.35 * whole < some < 0.65 * whole
    assert not any(advance(program, Standing(), batches, half - {OUT}))


def test_accuracy_follows_fidelity_on_the_top_pages_and_is_none_without_a_tree() -> None:
    found = list(points(workload("Q1", 1, 30, 2000), (0.1, 0.5, 1.0), ("structure-aware", "greedy")))
    by = {(one.planner, one.budget): one for one in found}
    full = max(one.budget for one in found)
    assert by["structure-aware", full].accuracy == pytest.approx(1.0)
    assert by["structure-aware", full].fidelity == pytest.approx(1.0)
    for one in found:
        assert one.accuracy >= one.fidelity - 0.1
        assert (one.fidelity > 0) == (one.accuracy > 0)


def test_the_papers_two_judges() -> None:
    page = PartitionId(OperatorId("hottest"), 0)
    right, some = pa.table({"page": ["a", "b", "c", "d"]}), pa.table({"page": ["a", "x"]})
    assert hottest_accuracy([{page: right}, {}], [{page: some}, {page: some}]) == 0.25
    assert hottest_accuracy([{page: right}], [{}]) == 0.0
    one, two = pa.table({"incident": [1, 2]}), pa.table({"incident": [2, 3]})
    assert incidents_accuracy([{page: one}, {page: two}], [{page: two}, {}]) == pytest.approx(2 / 3)


def test_claims_about_accuracy_can_fail() -> None:
    good = [
        made("Q2", "structure-aware", 0.5, 0.55), made("Q2", "completeness", 0.1, 0.1), made("Q2", "dp", 0.5, 0.55),
        made("Q2", "greedy", 0.2, 0.1),
    ]  # fmt: skip
    assert all(one["agrees"] for one in accuracy.findings(good))
    bad = [replace(one, fidelity=one.fidelity + 0.3) for one in good]
    assert not accuracy.findings(bad)[0]["agrees"]
    worst = [replace(one, accuracy=0.9 if one.planner == "greedy" else one.accuracy) for one in good]
    assert not accuracy.findings(worst)[-1]["agrees"]


def test_cells_are_drills_that_can_be_done_and_have_names_of_their_own() -> None:
    from holdfast.drill.settings import check_settings

    for quick in (True, False):
        found = latency.cells(1, (100, 200), quick=quick)
        assert len({one.name for one in found}) == len(found)
        assert {one.figure for one in found} == {latency.HEADLINE, 7, 8, 10}
        for one in found:
            check_settings(one.settings)
            assert not is_application(one.settings.scenario)
            assert find_scenario(one.settings.scenario).application().topology().name == "merge-tree"


def test_what_a_drill_says_of_recovery_and_that_its_claims_can_fail() -> None:
    cell = latency.cells(1, (100, 200), quick=True)[0]
    query = {
        "down_at": 20.5, "tentative_at": 21.0, "back_at": 32.0, "fidelity_predicted": 0.9, "fidelity_measured": 0.88,
    }  # fmt: skip
    result = {"fault_at": 20.0, "verdict": "ok", "detected_after": 0.5, "queries": [query, {**query, "down_at": None}]}
    found = latency.summary(cell, result)
    assert (found["tentative_after"], found["recovered_after"], found["sooner"]) == (1.0, 12.0, 12.0)
    assert latency.findings([found])[0]["agrees"]
    slow = {**found, "sooner": 3.0}
    assert not latency.findings([found, slow])[0]["agrees"]
    rows = [{**found, "figure": 7, "technique": name, "recovered_after": at} for name, at in (("active", 2.0),)]
    rows.append({**found, "figure": 7, "technique": "checkpoint", "recovered_after": 1.0})
    assert [one["agrees"] for one in latency.findings(rows)] == [False]


def test_the_price_of_checkpoints_has_every_interval_and_its_claim_can_fail() -> None:
    found = price.measure(1, 40, 3, 1, 2.0)
    assert [one["interval"] for one in found] == list(price.INTERVALS)
    rows = [{"interval": every, "ratio": ratio} for every, ratio in ((1, 0.5), (5, 0.1))]
    assert price.findings(rows)[0]["agrees"]
    assert not price.findings(rows[::-1])[0]["agrees"]


def test_the_command_goes_on_with_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(price, "INTERVALS", (1, 2))
    monkeypatch.setattr(
        price,
        "measure",
        lambda *given: [{"interval": n, "ratio": 1 / n, "cpu_seconds": 2.0, "without": 1.0} for n in (1, 2)],
    )
    command = ["experiment", "tentative", "--figures", "9", "--quick", "--out", str(tmp_path), "--json"]
    assert run(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["claims"][0]["agrees"]
    assert {one.name for one in tmp_path.iterdir()} >= {"result.json", "price.json", "fig9.png"}
    monkeypatch.setattr(price, "measure", lambda *given: pytest.fail("measured again"))
    assert run(command) == 0
    assert json.loads(capsys.readouterr().out)["price"] == first["price"]
    assert run(["experiment", "tentative", "--figures", "11", "--out", str(tmp_path)]) == 2
    assert run(["experiment", "tentative", "--figures", "7", "--rows", "many", "--out", str(tmp_path)]) == 2
