"""`holdfast plan auto` and `plan explain`: the contract's fields, refusals with status 3, losses, other topologies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run
from holdfast.runtime.coordinator.profile_records import ProfileRecords
from holdfast.runtime.coordinator.progress import Progress
from holdfast.storage.files import FileStorage

PAIR: dict[str, Any] = {
    "holdfast": 1,
    "name": "pair",
    "operators": [
        {"id": "in", "rate": 100, "tuple_seconds": 0.0001, "state_bytes": 1e6, "failure_rate": 1e-6},
        {
            "id": "out",
            "parallelism": 2,
            "inputs": [{"from": "in", "partitioning": "full"}],
            "tuple_seconds": 0.001,
            "state_bytes": 1e8,
            "priority": [5, 1],
            "failure_rate": 1e-6,
        },
    ],
}
MEASURED = {
    "checkpoint_interval_seconds": 12.0,
    "nodes": {"a": 1.0, "b": 1.0, "c": 1.0},
    "placement": {"in[0]": "a", "out[0]": "b", "out[1]": "c"},
    "settings": {"backups": ["in[0]"], "tolerate_node_loss": 0.5},
}


@pytest.fixture
def pair(tmp_path: Path) -> str:
    file = tmp_path / "pair.json"
    file.write_text(json.dumps(PAIR))
    return str(file)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert run(["plan", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_contract_is_printed_and_explained_again(
    pair: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, "auto", pair, "--recovery", "5:20", "--recovery", "1:90", "--survive", "1", "--nodes", "4")
    assert found.keys() >= {"segments", "backups", "replicas", "fragments", "promises", "cost", "explanation"}
    times = {one["query"]: (one["predicted"], one["target"]) for one in found["promises"] if one["what"] == "recovery"}
    assert {query: target for query, (_, target) in times.items()} == {"out[0]": 20, "out[1]": 90}
    assert all(predicted <= target for predicted, target in times.values())
    assert found["cost"]["overhead"] <= 0.05
    assert found["fragments"]["parity"] >= 1
    assert all(isinstance(line, str) for line in found["explanation"] + found["cannot_promise"])
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(found))
    again = document(capsys, "explain", str(plan), "--lose", "1", "--nodes", "2")
    assert again["promises"][0]["query"] == "out[0]"
    assert again["lost"]["down"]
    assert run(["plan", "auto", pair, "--recovery", "5:20"]) == 0
    assert "It cannot promise:" in capsys.readouterr().out
    assert run(["plan", "explain", str(plan), "--nodes", "3", "--lose", "2"]) == 0
    assert "queries are down" in capsys.readouterr().out


def test_targets_that_contradict_each_other_end_with_status_3(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "auto", pair, "--recovery", "5:6", "--overhead", "0.01"]) == 3
    line = capsys.readouterr().err
    assert "recovery 5:6 (priority 5 and above back in 6 s) and overhead 0.01 contradict each other" in line
    assert run(["plan", "auto", pair, "--survive", "3", "--nodes", "3"]) == 3
    assert "survive 3 contradicts a cluster of 3 nodes" in capsys.readouterr().err
    every = document(capsys, "auto", pair, "--replica-budget", "1.0")
    assert every["targets"]["replicas"] == "1.0"
    assert len(every["replicas"]) == len(document(capsys, "auto", pair, "--replica-budget", "99")["replicas"]) > 1
    assert document(capsys, "auto", pair, "--replica-budget", "2 cores")["targets"]["replicas"] == "2.0 cores"
    for wrong in (["--recovery", "5"], ["--recovery", "x:1"], ["--recovery", "5:0"], ["--replica-budget", "1.5"]):
        assert run(["plan", "auto", pair, *wrong]) == 2, wrong


def test_a_recovery_time_of_no_query_is_refused(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("auto", "explain"):
        assert run(["plan", command, pair, "--recovery", "9:30"]) == 2
        line = capsys.readouterr().err
        assert "recovery 9:30 asks for nothing: no query has priority 9 or above" in line
        assert "there are queries of priority" in line


def test_a_target_that_no_plan_keeps_by_itself_contradicts_nothing(
    pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The overhead was named, though no overhead makes detection take less than the recovery may."""
    assert run(["plan", "auto", pair, "--recovery", "5:0.01", "--overhead", "0.0001"]) == 3
    line = capsys.readouterr().err
    assert "recovery 5:0.01 (priority 5 and above back in 0.01 s) cannot be met" in line
    assert "overhead 0.0001" not in line


def test_explaining_targets_that_contradict_each_other_ends_with_status_3(
    pair: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(document(capsys, "auto", pair, "--recovery", "5:20")))
    assert run(["plan", "explain", str(plan), "--recovery", "1:1", "--survive", "1"]) == 3
    line = capsys.readouterr().err
    assert "recovery 1:1 (priority 1 and above back in 1 s) cannot be met: " in line
    assert run(["plan", "explain", str(plan), "--survive", "3", "--nodes", "3"]) == 3
    assert "survive 3 contradicts a cluster of 3 nodes" in capsys.readouterr().err


def test_a_run_is_explained_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = FileStorage(tmp_path / "run")
    Progress(storage, "pair")
    ProfileRecords(storage, 1).write(0.0, {**PAIR, "measured": MEASURED})
    found = document(capsys, "explain", str(tmp_path), "--lose", "b")
    assert found["segments"][0]["interval_seconds"] == 12
    assert found["backups"] == ["in[0]"]
    assert [one["query"] for one in found["lost"]["down"]] == ["out[0]"]
    assert found["lost"]["fidelity"] == 0.5
    assert found["assumptions"]["nodes"] == {"value": 3, "from": "measured"}
    worst = document(capsys, "explain", str(tmp_path), "--lose", "1")
    assert worst["lost"]["nodes"] == ["a"], "the source's: everything is down"
    assert run(["plan", "explain", str(tmp_path), "--lose", "z"]) == 2
    assert "there is no node 'z'; give a number, or of a, b, c" in capsys.readouterr().err


def test_what_if_a_target_a_budget_or_a_rack_moves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    storage = FileStorage(tmp_path / "run")
    Progress(storage, "pair")
    where = {"in[0]": "a-0", "out[0]": "b-1", "out[1]": "b-2"}
    placed = {**MEASURED, "placement": where, "nodes": dict.fromkeys(("a-0", "b-1", "b-2"), 100.0)}
    ProfileRecords(storage, 1).write(0.0, {**PAIR, "measured": placed})
    log = [{"event": "run", "domains": {"a": "rack-a", "b": "rack-b"}}, {"event": "cycle"}]
    (tmp_path / "run" / "events.jsonl").write_text("".join(json.dumps(one) + "\n" for one in log))
    here = str(tmp_path)
    as_it_is = document(capsys, "explain", here, "--domain", "rack-b")
    assert as_it_is["lost"]["nodes"] == ["b-1", "b-2"]
    assert as_it_is["targets"]["recovery"] == {}
    moved = document(capsys, "explain", here, "--domain", "rack-b", "--recovery", "5:15", "--overhead", "0.3")
    assert (moved["what"], moved["targets"]["recovery"], moved["targets"]["overhead"]) == ("a plan", {"5": 15}, 0.3)
    assert moved["lost"]["nodes"] == ["b-1", "b-2"]
    assert {one["query"]: one["seconds"] <= 15 for one in moved["lost"]["down"]}["out[0]"]
    less = document(capsys, "explain", here, "--domain", "rack-b", "--overhead", "0.05")
    assert less["segments"][0]["interval_seconds"] > moved["segments"][0]["interval_seconds"], "a smaller budget"
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(moved))
    again = document(capsys, "explain", str(plan), "--survive", "1", "--nodes", "4")
    assert (again["targets"]["recovery"], again["targets"]["survive"]) == ({"5": 15}, 1), "the others stay"
    assert run(["plan", "explain", here, "--domain", "rack-z"]) == 2
    assert "its log has rack-a, rack-b" in capsys.readouterr().err
    assert run(["plan", "explain", here, "--domain", "rack-b", "--lose", "1"]) == 2


@pytest.mark.parametrize(("seconds", "said"), [(80.0, "up to 80 s"), (None, "an interval")])
def test_how_far_a_run_is_behind_that_holds_its_boundaries_is_explained(
    seconds: float | None, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    storage = FileStorage(tmp_path / "run")
    Progress(storage, "pair")
    measured = {**MEASURED, "settings": {**MEASURED["settings"], "behind_seconds": {"out": seconds}}}
    ProfileRecords(storage, 1).write(0.0, {**PAIR, "measured": measured})
    assert document(capsys, "explain", str(tmp_path))["behind_seconds"] == {"out": seconds}
    assert run(["plan", "explain", str(tmp_path)]) == 0
    assert f"Behind, as blocks wait for a checkpoint: out by {said}, and the time to save" in capsys.readouterr().out


def test_default_settings_are_explained_and_a_loss_needs_nodes(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "explain", pair)
    assert found["segments"][0]["interval_seconds"] == 10
    assert found["what"] == "default settings"
    assert run(["plan", "explain", pair, "--lose", "1"]) == 2
    assert "say how many there are with --nodes" in capsys.readouterr().err
    broken = Path(pair).with_name("broken.json")
    broken.write_text('{"plan": 1}')
    assert run(["plan", "explain", str(broken)]) == 2
    assert "is not a whole plan" in capsys.readouterr().err
