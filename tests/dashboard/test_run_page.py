"""The page of a run in a directory: what if, resume by numbered requests, what the command refuses."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dashboard.made_up import Recorder, write
from holdfast import Application
from holdfast.cli.main import run
from holdfast.dashboard.page import TOKEN_FILE
from holdfast.dashboard.run_page import RunPage
from holdfast.dashboard.what_if import what_if
from holdfast.errors import BadInput
from holdfast.examples.registry import EXAMPLES
from holdfast.planning.joint.as_set import as_set
from holdfast.planning.joint.losing import losing
from holdfast.planning.joint.model import JointModel
from holdfast.planning.joint.targets import Targets, assumptions_of
from holdfast.planning.profiles.run_profile import profiled
from holdfast.runtime.coordinator.parking import ErrorSettings
from holdfast.runtime.coordinator.profile_records import ProfileRecords
from holdfast.runtime.coordinator.requests import ResumeRequests
from holdfast.runtime.in_process import InProcess
from holdfast.spark.page import wants_page
from holdfast.spark.settings import Settings
from holdfast.storage.files import FileStorage
from holdfast.store.client.tuning import first_code
from holdfast.topology import Topology, to_document


def ask(url: str, body: object = None, token: str | None = None) -> tuple[int, dict[str, Any]]:
    asked = urllib.request.Request(url, None if body is None else json.dumps(body).encode())
    if token is not None:
        asked.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


@pytest.fixture(scope="module")
def profile() -> tuple[Topology, dict[str, Any]]:
    example = EXAMPLES["traffic"]
    running = InProcess(example.application(), nodes=4, checkpoint_every=3)
    for batch in example.batches(1, 8, 100):
        running.feed(batch)
    topology, measured = profiled(running.program.topology, running.profile())
    return topology, {**measured, "placement": {str(p): str(node) for p, node in running.placement.items()}}


def test_what_if_is_the_answer_of_plan_explain(profile: tuple[Topology, dict[str, Any]]) -> None:
    topology, measured = profile
    model = JointModel(topology, Targets(overhead=1.0), assumptions_of(measured))
    placement = {str(p): str(node) for p, node in measured["placement"].items()}
    expected = losing(model, as_set(model, measured, first_code), placement, ("node-1",))
    found = what_if(profile, {"lose": "node-1"}, {})
    assert found["nodes"] == ["node-1"]
    assert {key: found[key] for key in ("partitions", "fidelity", "queries", "survives")} == {
        key: expected[key] for key in ("partitions", "fidelity", "queries", "survives")
    }
    assert sorted(found["down"], key=str) == sorted(expected["down"], key=str)
    assert found["plan"] == "the run's settings"


def test_what_if_by_rack_by_number_and_under_a_plan(profile: tuple[Topology, dict[str, Any]]) -> None:
    racks = {f"node-{number}": f"rack-{number % 2}" for number in range(4)}
    assert what_if(profile, {"domain": "rack-1"}, racks)["nodes"] == ["node-1", "node-3"]
    assert len(what_if(profile, {"lose": "2"}, racks)["nodes"]) == 2
    planned = what_if(profile, {"lose": "1", "plan": "auto", "recovery": "1:600", "overhead": "0.5"}, racks)
    assert planned["plan"].startswith("plan auto")


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"lose": "nobody"},
        {"lose": "99"},
        {"domain": "no-rack"},
        {"lose": "1", "domain": "rack-1"},
        {"lose": "1", "plan": "other"},
        {"lose": "1", "plan": "auto", "recovery": "soon"},
        {"lose": "1", "strange": "x"},
    ],
)
def test_what_if_refuses_what_it_cannot_answer(profile: tuple[Topology, dict[str, Any]], asked: dict[str, str]) -> None:
    with pytest.raises(BadInput):
        what_if(profile, asked, {"node-1": "rack-1"})


def test_a_parked_query_is_resumed_as_by_the_command(tmp_path: Path) -> None:
    def look(rows: pa.Table) -> pa.Table:
        raise ValueError("thirteen")

    app = Application("two")
    app.source("s", schema={"n": "int64"}).map(look, schema={"n": "int64"}, id="bad").output()
    record = Recorder()
    running = InProcess(app, directory=tmp_path / "run", errors=ErrorSettings(retries=0), nodes=2, emit=record)
    running.feed({"s": pa.table({"n": [13]})})
    topology = running.program.topology
    ProfileRecords(FileStorage(tmp_path / "run"), 1).write(0.0, to_document(*profiled(topology, running.profile())))
    write(tmp_path / "run" / "events.jsonl", record.events)
    shown = RunPage(str(tmp_path), host="127.0.0.1", port=0, require_run=True)
    try:
        token = (tmp_path / "run" / TOKEN_FILE).read_text().strip()
        assert ask(f"{shown.url}api/view")[1]["parked"][0]["query"] == "bad[0]"
        assert ask(f"{shown.url}api/resume", {"query": "bad[0]"})[0] == 401
        assert ask(f"{shown.url}api/resume", {"query": "good[0]"}, token)[0] == 400
        status, answer = ask(f"{shown.url}api/resume", {"query": "bad[0]"}, token)
        assert (status, answer["queries"]) == (202, ["bad[0]"])
        assert ResumeRequests(FileStorage(tmp_path / "run")).after(-1) == [(answer["request"], "bad[0]")]
        status, found = ask(f"{shown.url}api/what-if?lose=1")
        assert (status, found["queries"]) == (200, 1)
        assert ask(f"{shown.url}api/what-if?lose=nobody")[0] == 400
    finally:
        shown.close()


def test_a_directory_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dashboard", str(tmp_path)]) == 2
    assert "no run began here" in capsys.readouterr().err
    assert run(["dashboard", "s3://bucket/run"]) == 2
    assert "--events FILE" in capsys.readouterr().err


def test_who_gets_a_page() -> None:
    auto, on, off = (Settings.of({"spark.holdfast.page.enabled": text}) for text in ("auto", "true", "false"))
    assert [wants_page(None, one, own=True) for one in (auto, on, off)] == [True, True, False]
    assert [wants_page(None, one, own=False) for one in (auto, on, off)] == [False, True, False]
    assert [wants_page(True, off, own=False), wants_page(False, on, own=True)] == [True, False], "a program decides"
