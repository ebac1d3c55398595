"""`holdfast plan segments`: the contract's fields, every algorithm, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.main import run

DIAMOND = {
    "holdfast": 1,
    "name": "diamond",
    "operators": [
        {"id": "in", "rate": 100, "state_bytes": 5e6, "failure_rate": 0.001},
        {"id": "left", "inputs": [{"from": "in", "partitioning": "one-to-one"}], "state_bytes": 1e6},
        {
            "id": "right",
            "inputs": [{"from": "in", "partitioning": "one-to-one"}],
            "selectivity": 0.1,
            "state_bytes": 9e6,
            "failure_rate": 0.002,
        },
        {
            "id": "out",
            "inputs": [{"from": "left", "partitioning": "one-to-one"}, {"from": "right", "partitioning": "one-to-one"}],
            "state_bytes": 20e6,
            "failure_rate": 0.001,
        },
    ],
}


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict:
    assert run(["plan", "segments", *arguments, "--json"]) == 0
    out = capsys.readouterr().out
    return json.loads(out)


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize(
    ("topology", "algorithms"),
    [
        ("chain-15", ["auto", "chain", "tree", "dag", "one-segment", "n-segments"]),
        ("tree-15", ["auto", "tree", "dag", "one-segment", "n-segments"]),
    ],
)
def test_every_algorithm_prints_the_contract(
    topology: str, algorithms: list[str], refine: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    best = None
    for algorithm in algorithms:
        extra = ["--refine"] if refine else []
        arguments = ["--overhead", "0.5", "--bandwidth", "3e7", "--algorithm", algorithm, "--steps", "60"]
        found = document(capsys, topology, *arguments, *extra)
        assert found.keys() >= {"anchors", "frequency", "recovery_time", "overhead", "seconds"}
        assert found["overhead"] <= 0.5 * (1 + 1e-9)
        assert len(found["frequency"]) == 15
        assert found["anchors"][0] == "op1"
        assert sorted(name for group in found["segments"] for name in group) == sorted(found["frequency"])
        if algorithm == "auto" and not refine:
            best = found["recovery_time"]
        assert best is None or best <= found["recovery_time"] * (1 + 1e-9)


def test_a_dag_from_a_file_and_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "diamond.json"
    file.write_text(json.dumps(DIAMOND))
    found = document(capsys, str(file), "--overhead", "0.2", "--bandwidth", "20e6")
    assert found["anchors"][0] == "in"
    assert found["never_fail"] == ["left"]
    assert run(["plan", "segments", str(file), "--overhead", "0.2", "--bandwidth", "20e6"]) == 0
    printed = capsys.readouterr().out
    assert "expected recovery time" in printed
    assert "taken to never fail (failure_rate 0): left" in printed


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["chain-15", "--overhead", "0.1", "--bandwidth", "1e5"], 3, "storing the inputs of the sources alone (op1)"),
        (
            ["chain-15", "--overhead", "0.4", "--bandwidth", "2e5", "--algorithm", "n-segments"],
            3,
            "storing the inputs of 15 anchors",
        ),
        (["tree-15", "--overhead", "0.5", "--bandwidth", "3e6", "--algorithm", "tree"], 3, "no plan on a grid of 200"),
        (["tree-15", "--overhead", "0.5", "--bandwidth", "3e7", "--algorithm", "chain"], 2, "are not a chain"),
        (["signal-guru", "--overhead", "0.5", "--bandwidth", "3e7"], 2, "failure_rate above 0"),
        (["chain-15", "--overhead", "0", "--bandwidth", "3e7"], 2, "overhead: must be above zero"),
        (["chain-15", "--overhead", "nan", "--bandwidth", "3e7"], 2, "overhead: must be above zero"),
        (["chain-15", "--overhead", "1", "--bandwidth", "-1"], 2, "bandwidth: must be above zero"),
        (["chain-15", "--overhead", "1", "--bandwidth", "3e7", "--max-frequency", "0"], 2, "max-frequency: must be"),
        (["chain-15", "--overhead", "1", "--bandwidth", "3e7", "--steps", "0"], 2, "--steps"),
        (["chain-15", "--bandwidth", "3e7"], 2, "--overhead"),
        (["nowhere", "--overhead", "1", "--bandwidth", "3e7"], 2, "no such file"),
    ],
)
def test_what_is_refused_says_why_in_one_line(
    arguments: list[str], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["plan", "segments", *arguments, "--json"]) == status
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_replay_may_be_added_up_or_pipelined(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["plan", "segments", "chain-15", "--overhead", "0.4", "--bandwidth", "20e6", "--json"]
    assert run([*given, "--algorithm", "one-segment"]) == 0
    summed = json.loads(capsys.readouterr().out)
    assert run([*given, "--algorithm", "one-segment", "--replay", "pipelined"]) == 0
    pipelined = json.loads(capsys.readouterr().out)
    assert (summed["replay"], pipelined["replay"]) == ("summed", "pipelined")
    assert pipelined["recovery_time"] < summed["recovery_time"]
    assert run([*given, "--replay", "pipelined"]) == 0
    best = json.loads(capsys.readouterr().out)
    assert best["recovery_time"] <= pipelined["recovery_time"]
    assert run([*given, "--algorithm", "chain", "--replay", "pipelined"]) == 2
    assert "one after the other" in capsys.readouterr().err
