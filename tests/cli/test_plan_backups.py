"""`holdfast plan backups`: what scripts read, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import run


def plan(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, object]:
    assert run(["plan", "backups", *arguments, "--json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def test_the_fields_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    found = plan(capsys, "sentiment-50-20-20", "--latency", "3")
    assert found["backups"] == ["source[0]", "merger[0]"]
    assert found["count"] == found["bound"] == 2
    assert found["optimal"] is True
    assert found["worst"] == 3
    latency = found["latency"]
    assert isinstance(latency, dict)
    assert len(latency) == 93
    assert latency["hot-topics[49]"] == 1
    assert isinstance(found["seconds"], float)


@pytest.mark.parametrize("algorithm", ["auto", "line", "tree", "dag", "share", "exhaustive", "exact"])
def test_every_algorithm_by_name(capsys: pytest.CaptureFixture[str], algorithm: str) -> None:
    found = plan(capsys, "line", "--latency", "3", "--algorithm", algorithm)
    assert found["count"] == 5
    assert found["algorithm"] == ("line" if algorithm == "auto" else algorithm)


def test_a_previous_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = tmp_path / "plan.json"
    before.write_text(json.dumps(plan(capsys, "sentiment-50-20-20", "--latency", "3")))
    found = plan(capsys, "sentiment-30-30-30", "--latency", "3", "--previous", str(before))
    assert found["kept"] == found["backups"] == ["source[0]", "merger[0]"]
    assert found["added"] == found["removed"] == found["gone"] == []
    assert found["fewest_changes"] is True


def test_a_plan_names_the_interval_that_its_times_are_for(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Of the profile, of Young's formula, or of nobody."""
    operators = [
        {"id": "a", "rate": 1, "reprocess_seconds": 2, "failure_rate": 1e-4},
        {"id": "b", "inputs": [{"from": "a", "partitioning": "full"}], "failure_rate": 2e-4},
    ]
    file = tmp_path / "t.json"
    document = {"holdfast": 1, "name": "t", "operators": operators}
    file.write_text(json.dumps(document))
    assert plan(capsys, str(file), "--latency", "90")["interval_seconds"] is None
    young = plan(capsys, str(file), "--latency", "90", "--checkpoint-seconds", "1")
    assert young["interval_seconds"] == pytest.approx(100)
    assert young["reprocess_seconds"] == {"a[0]": 2, "b[0]": pytest.approx(50)}
    file.write_text(json.dumps({**document, "measured": {"checkpoint_interval_seconds": 30}}))
    assert plan(capsys, str(file), "--latency", "90")["interval_seconds"] == 30
    assert plan(capsys, str(file), "--latency", "90", "--checkpoint-seconds", "1")["interval_seconds"] == 30
    assert run(["plan", "backups", str(file), "--latency", "90"]) == 0
    assert "For a checkpoint every 30 s" in capsys.readouterr().out


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "backups", "signal-guru", "--latency", "4"]) == 0
    printed = capsys.readouterr().out
    assert "voting-filter" in printed
    assert "0-4" in printed
    assert "7 backups (the fewest there are), by exact" in printed


@pytest.mark.parametrize(
    ("arguments", "status", "says"),
    [
        (["signal-guru-unequal", "--latency", "4"], 3, "source[0] alone takes 10 s"),
        (["signal-guru", "--latency", "4", "--algorithm", "exhaustive"], 4, "55 partitions"),
        (["signal-guru", "--latency", "4", "--algorithm", "tree"], 2, "not a tree"),
        (["signal-guru", "--latency", "4", "--algorithm", "line"], 2, "lines"),
        (["signal-guru", "--latency", "-4"], 2, "latency of -4"),
        (["signal-guru", "--latency", "nan"], 2, "latency of nan"),
        (["signal-guru"], 2, "--latency"),
        (["signal-guru", "--latency", "4", "--checkpoint-seconds", "0"], 2, "checkpoint"),
        (["signal-guru", "--latency", "4", "--previous", "missing.json"], 2, "missing.json: cannot be read"),
        (["nowhere.json", "--latency", "4"], 2, "nowhere.json"),
    ],
)
def test_how_it_ends_otherwise(
    capsys: pytest.CaptureFixture[str], arguments: list[str], status: int, says: str
) -> None:
    assert run(["plan", "backups", *arguments]) == status
    met = capsys.readouterr()
    assert met.out == ""
    assert says in met.err
    assert met.err.count("\n") == 1


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"backups": 3}', '{"backups": [3]}', '{"backups": ["x"]}', "{" * 5000]
)
def test_previous_plans_that_are_none(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str) -> None:
    file = tmp_path / "previous.json"
    file.write_text(text)
    assert run(["plan", "backups", "line", "--latency", "3", "--previous", str(file)]) == 2
    met = capsys.readouterr().err
    assert "previous.json" in met
    assert met.count("\n") == 1


def test_youngs_interval_from_the_failure_rate(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "young.json"
    operators = [{"id": "a", "failure_rate": 0.01}, {"id": "b", "inputs": [{"from": "a", "partitioning": "full"}]}]
    file.write_text(json.dumps({"holdfast": 1, "name": "young", "operators": operators}))
    found = plan(capsys, str(file), "--latency", "10", "--checkpoint-seconds", "2")
    assert found["latency"] == {"a[0]": 10, "b[0]": 1}
    assert found["backups"] == ["a[0]"]
    assert plan(capsys, str(file), "--latency", "10")["backups"] == []
