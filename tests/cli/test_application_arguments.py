"""Commands that take a topology take an application too, and give the same as for its topology file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run
from holdfast.examples.registry import EXAMPLES
from holdfast.topology import parse, to_json

APP = """
from holdfast import Application

app = Application("mine")
rows = app.source("rows", schema={"key": "string"}, parallelism=2, rate=10, failure_rate=0.001, state_bytes=1000)
kept = rows.filter(lambda table: table["key"], id="kept", failure_rate=0.001, state_bytes=1000).output(priority=[5, 2])
kept.map(lambda table: table, id="last", parallelism=1, failure_rate=0.001, state_bytes=1000).output(priority=3)
"""


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = list(sys.path)
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(APP)
    yield
    sys.path[:] = before
    sys.modules.pop("mine", None)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    if isinstance(found, dict):
        found.pop("seconds", None)
    return found


@pytest.mark.parametrize(
    "arguments",
    [
        ["topology", "show", "*"],
        ["plan", "recovery", "*", "--capacity", "3"],
        ["plan", "replicas", "*", "--budget", "3"],
        ["plan", "backups", "*", "--latency", "3"],
        ["plan", "segments", "*", "--overhead", "0.4", "--bandwidth", "10e6"],
        ["fidelity", "*", "--failed", "kept[0]"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("given", ["mine.py", "mine.py:app", "mine:app"])
def test_an_application_is_its_topology(given: str, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "show", given, "--file", "mine.json"]) == 0
    capsys.readouterr()
    by_file = printed(capsys, *(word.replace("*", "mine.json") for word in arguments))
    assert printed(capsys, *(word.replace("*", given) for word in arguments)) == by_file


def test_check_takes_applications_and_names_what_is_wrong(capsys: pytest.CaptureFixture[str]) -> None:
    Path("wrong.py").write_text("x = 1\n")
    assert run(["topology", "check", "mine.py", "traffic", "wrong.py"]) == 2
    shown = capsys.readouterr()
    assert "mine.py: right (5 partitions" in shown.out
    assert shown.err.startswith("holdfast: wrong.py: defines no application")


def test_simulate_times_of_an_application(capsys: pytest.CaptureFixture[str]) -> None:
    wanted = ["--nodes", "4", "--strategy", "incremental", "--strategy", "blocking", "--first-seed", "3"]
    found = printed(capsys, "simulate", "recovery", "mine.py", *wanted)
    assert (found["topology"], found["partitions"], found["queries"]) == ("mine", 5, 3)
    priorities = {one["query"]: one["priority"] for one in found["strategies"]["incremental"]["queries"]}
    assert priorities == {"kept[0]": 5, "kept[1]": 2, "last[0]": 3}
    assert printed(capsys, "simulate", "recovery", *wanted)["topology"] == "hashtags-1"


def test_seeds_are_of_generated_applications(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["simulate", "recovery", "mine.py", "--seeds", "1"]) == 2
    assert "give --nodes N" in capsys.readouterr().err


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_topology_of_an_example_is_that_of_its_application(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    topology = EXAMPLES[name].application().topology()
    Path(name).mkdir()  # neither a folder nor a Python file of that name gets in the way
    Path(f"{name}.py").write_text("raise AssertionError\n")
    assert run(["topology", "show", name, "--file", "shown.json"]) == 0
    assert Path("shown.json").read_text() == to_json(topology)
    assert parse(Path("shown.json").read_bytes(), "shown.json") == topology
    shown = printed(capsys, "topology", "show", name) if not capsys.readouterr().err else None
    assert shown is not None
    assert shown["name"] == name


def test_a_topology_file_wins_over_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["topology", "show", "mine.py", "--file", "traffic"]) == 0
    capsys.readouterr()
    assert printed(capsys, "topology", "show", "traffic")["name"] == "mine"


@pytest.mark.parametrize("command", [("topology", "show"), ("topology", "check"), ("plan", "replicas"), ("fidelity",)])
def test_help_says_what_may_be_given(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*command, "--help"]) == 0
    assert "APP|FILE|NAME" in capsys.readouterr().out
