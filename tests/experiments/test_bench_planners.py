"""The planners' bench: sections are found, cases measured in processes of their own, limits and growth told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast.errors import CheckFailed
from holdfast_lab.benches.planners import Case, Section, all_sections
from holdfast_lab.benches.planners.measuring import CaseFigures, measure_sections


def test_sections_are_found_and_their_cases_have_names_of_their_own() -> None:
    sections = all_sections()
    assert "recovery" in sections
    for section in sections.values():
        names = [case.name for case in section.cases()]
        assert len(names) == len(set(names)) > 0


def test_a_case_is_measured_and_growth_is_within_its_series() -> None:
    real = all_sections()["recovery"]
    wanted = [case for case in real.cases() if case.series == "operator-centric"][:2]
    figures = list(measure_sections([Section("recovery", "", lambda: wanted)], repeat=2))
    assert [one.size for one in figures] == [18, 200]
    assert all(len(one.seconds) == 2 and one.peak_mb >= one.start_mb > 0 for one in figures)
    assert figures[0].growth is None
    assert figures[1].growth is not None
    assert "priority" in figures[0].facts


def test_a_case_that_fails_is_an_error_and_limits_are_told() -> None:
    missing = Case("no such case", 1, lambda: dict)
    with pytest.raises(CheckFailed, match="no such case"):
        list(measure_sections([Section("recovery", "", lambda: [missing])], repeat=1))
    figures = CaseFigures("s", "c", "", 1, (1.0, 3.0, 2.0), (1.0,), 1, 2, limit_seconds=2.5)
    assert figures.median == 2.0
    assert figures.within_limit


def test_the_command_prints_and_writes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cheap = [case for case in all_sections()["recovery"].cases() if case.series == "operator-centric"][:1]
    only = {"recovery": Section("recovery", "Recovery plans", lambda: cheap)}
    monkeypatch.setattr("holdfast_lab.benches.planners.all_sections", lambda: only)
    out = tmp_path / "bench"
    assert run(["bench", "planners", "--repeat", "1", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "result.json").read_text())
    (row,) = printed["cases"]
    assert row["case"] == "operator-centric, 18 queries"
    assert row["facts"]["priority"] >= 0
    assert "operator-centric" in (out / "cases.csv").read_text()
    assert run(["bench", "planners", "--section", "nothing"]) == 2
    assert "there is no section 'nothing'; use recovery" in capsys.readouterr().err
