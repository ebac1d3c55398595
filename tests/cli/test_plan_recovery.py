"""`holdfast plan recovery`: the contract's fields, nodes, arrivals, and how it refuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.cli.main import run

FIG2 = ["incremental-fig2", "--failed", ",".join(f"p{n}" for n in range(3, 13))]
NODES = ["--nodes", "2.5,2.5,2.5,2.5,2.5", "--arrivals", "120,180,240,300,360"]


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["plan", "recovery", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("algorithm", ["best-density", "dp", "operator-centric", "exact"])
def test_fields_of_the_contract(capsys: pytest.CaptureFixture[str], algorithm: str) -> None:
    found = document(capsys, "hashtags", "--capacity", "8", "--algorithm", algorithm)
    assert {"recover", "queries", "priority", "cost", "optimal", "bound", "seconds"} <= set(found)
    assert len(found["recover"]) == found["cost"] == 8
    assert found["priority"] == len(found["queries"]) == 6
    assert found["optimal"] is True
    assert found["bound"] == 6
    assert "placement" not in found
    assert "schedule" not in found


def test_failed_partitions_and_operators_may_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "traffic", "--capacity", "2", "--failed", "speeds[0],jams")
    assert found["failed"]["partitions"] == 3
    assert set(found["recover"]) <= {"speeds[0]", "jams[0]", "jams[1]"}
    assert document(capsys, "traffic", "--capacity", "2", "--failed", "none")["recover"] == []


def test_nodes_place_and_say_what_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *FIG2, "--capacity", "4", "--nodes", "2.5,2.5")
    assert set(found["placement"]) == set(found["recover"])
    assert sorted(found["placement"].values()) == ["N1", "N1", "N2", "N2"]
    assert found["left_out"] == []
    split = document(capsys, *FIG2, "--capacity", "4", "--nodes", "0.9,1.9,2.2", "--bound", "1")
    # Costs are 1 each: only three places.
    assert len(split["recover"]) == 3
    assert split["queries"] == []
    assert {one["partition"] for one in split["left_out"]}
    assert all(one["reason"] for one in split["left_out"])


def test_arrivals_reproduce_figure_2_and_report_every_strategy(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, *FIG2, "--capacity", "10", *NODES)
    assert [step["recover"] for step in found["schedule"]] == [
        ["p3[0]", "p5[0]"],
        ["p7[0]", "p9[0]"],
        ["p4[0]", "p10[0]"],
        ["p6[0]", "p8[0]"],
        ["p11[0]", "p12[0]"],
    ]
    assert [step["queries"] for step in found["schedule"]] == [[], ["p9[0]"], ["p10[0]"], [], ["p11[0]", "p12[0]"]]
    assert found["unavailability"] == {
        "incremental": 1140,
        "operator-centric": 1320,
        "blocking": 1440,
        "best-case": 720,
    }
    assert len(found["recover"]) == 10
    assert found["priority"] == 4
    assert document(capsys, *FIG2, *NODES)["unavailability"] == found["unavailability"]


def test_drawn_arrivals_come_from_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    drawn = ["--nodes", "2.5,2.5,2.5", "--arrivals", "uniform:120-360"]
    one = document(capsys, *FIG2, *drawn, "--seed", "5")["schedule"]
    assert one == document(capsys, *FIG2, *drawn, "--seed", "5")["schedule"]
    assert [step["at"] for step in one] == sorted(step["at"] for step in one)
    assert all(120 <= step["at"] <= 360 for step in one)
    assert one != document(capsys, *FIG2, *drawn, "--seed", "6")["schedule"]


def test_tables_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "recovery", *FIG2, "--capacity", "10", *NODES]) == 0
    out = capsys.readouterr().out
    assert "p11[0], p12[0]" in out
    assert "1,140" in out
    assert run(["plan", "recovery", *FIG2, "--capacity", "3", "--nodes", "1.2,2.4"]) == 0
    assert "left over" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["hashtags"], "--capacity: is missing"),
        (["hashtags", "--capacity", "-1"], "--capacity"),
        (["hashtags", "--capacity", "nan"], "capacity"),
        (["hashtags", "--capacity", "3", "--failed", "O99"], "O99"),
        (["hashtags", "--capacity", "3", "--nodes", "2,x"], "'x' is not a number"),
        (["hashtags", "--capacity", "3", "--arrivals", "10"], "--arrivals: needs nodes"),
        (["hashtags", "--capacity", "3", "--nodes", "2,2", "--arrivals", "10"], "1 times for 2 nodes"),
        (["hashtags", "--capacity", "3", "--nodes", "2,2", "--arrivals", "uniform:9"], "has no range"),
        (["hashtags", "--capacity", "3", "--nodes", "2,2", "--arrivals", "uniform:9-2"], "not a range"),
        (["hashtags", "--capacity", "3", "--nodes", "2", "--bound", "1.5"], "--bound"),
        (["nowhere.json", "--capacity", "3"], "nowhere.json"),
    ],
)
def test_bad_input_is_one_line_and_status_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    assert run(["plan", "recovery", *arguments, "--json"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert captured.err.count("\n") == 1
