"""The ring experiment, small, without real peers: every part has rows, plots and claims that come from the rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from holdfast.cli.main import run
from holdfast_lab.experiments.ring.groups import GROUPS

PLOTTED = {"routing", "retrieval", "balance", "correlated", "recompute", "encoding", "lost-blocks"}


def test_simulated_and_coding_parts_are_written_and_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "ring"
    arguments = ["--peers", "40", "--applications", "8", "--state-mb", "1", "--repeat", "1", "--out", str(out)]
    arguments += ["--only", "simulated", "--only", "coding"]
    assert run(["experiment", "ring", *arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((out / "result.json").read_text())
    names = [name for group in GROUPS if group.name in ("simulated", "coding") for name in group.parts]
    assert [part["name"] for part in printed["parts"]] == names
    assert {path.stem for path in out.glob("*.png")} == PLOTTED
    for part in printed["parts"]:
        with (out / f"{part['name']}.csv").open() as file:
            assert len(list(csv.DictReader(file))) == len(part["rows"]) > 0
        assert part["claims"]
    balance = next(part for part in printed["parts"] if part["name"] == "balance")
    assert sum(row["fragments"] * row["peers"] for row in balance["rows"]) == 8 * 30
    assert balance["rows"][-1]["share_at_most"] == 1.0


def test_one_group_is_enough_and_unknown_parts_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "ring"
    arguments = ["experiment", "ring", "--state-mb", "1", "--repeat", "1", "--out", str(out)]
    assert run([*arguments, "--only", "encoding"]) == 0
    assert "1.5 to 2 s" in capsys.readouterr().out
    assert sorted(path.name for path in out.iterdir()) == ["claims.csv", "encoding.csv", "encoding.png", "result.json"]
    assert run([*arguments, "--only", "nonsense"]) == 2
    assert "there is no part 'nonsense'; use " in capsys.readouterr().err
