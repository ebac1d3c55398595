"""The report of a drill: recovery, shading, promises and the command, from histories that no cluster made."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from drill.made_up import event, one_node_killed
from holdfast.cli.drill import drill
from holdfast.cli.main import run
from holdfast.drill.checkers import Check, ExactlyOnce, Verdict
from holdfast.drill.drill import write_files
from holdfast.drill.history import Event, read_history
from holdfast.drill.measures import measure
from holdfast.drill.report import drill_command, drill_report
from holdfast.drill.result import make_result
from holdfast.drill.settings import DrillFeed, DrillSettings, DrillStrategy, Uniform
from holdfast.reports.document import recovery_document
from holdfast.reports.model import Report

ASKED = DrillSettings("traffic", nodes=3, kill=1, arrivals=(10.0,), batches=60)


def report_of(history: list[Event], **more: Any) -> Report:
    measures = measure(history)
    checks = [Check("exactly once", Verdict.OK, "600 rows, each once")]
    result = make_result(ASKED, measures, checks, {"A": ExactlyOnce(600)}, 1, {"seconds": 70.0, **more})
    return drill_report(result, measures, checks, history)


def test_the_recovery_begins_with_the_fault() -> None:
    report = report_of(one_node_killed())
    rows = {row.partition: row for row in report.gantt}
    assert set(rows) == {"A[1]", "T[0]", "B[0]"}
    first = rows["A[1]"].phases[0]
    assert (first.kind, first.begin, first.end) == ("undetected", 20.0, 20.25)
    waiting = next(phase for phase in rows["B[0]"].phases if phase.kind == "waiting")
    assert (waiting.begin, waiting.end) == (20.25, 35.0)
    assert [plan.number for plan in report.plans] == [1, 2], "the plan of the start is none of a recovery"
    assert recovery_document(report)["recovery"][0]["phases"][0] == {"kind": "undetected", "begin": 20.0, "end": 20.25}


def test_outages_and_faults_that_last_are_shaded() -> None:
    history = [
        *one_node_killed(),
        event(24, "fault", what="freeze", node="node-3"),
        event(29, "fault", what="thaw", node="node-3"),
    ]
    report = report_of(sorted(history, key=lambda one: one.at))
    (outage,) = [band for band in report.bands if band.kind == "outage"]
    assert outage.begin == 20
    assert outage.end == pytest.approx(38.0)
    assert "kill -9 node-2" in outage.label
    (fault,) = [band for band in report.bands if band.kind == "fault"]
    assert (fault.begin, fault.end, fault.label) == (24, 29, "node-3 freezes")
    assert {mark.kind for mark in report.marks} == {"bad", "good"}


def test_predicted_stands_beside_measured() -> None:
    report = report_of(one_node_killed(), predicted_back_after={"A[1]": 0.0, "B[0]": 13.0, "B[1]": 13.0})
    found = {one.query: (one.predicted, one.measured) for one in report.promises}
    assert found["B[0]"] == (13.0, pytest.approx(18.0))
    assert [one.query for one in report.promises] == ["B[0]", "A[1]", "B[1]"], "by priority"
    kept = event(
        38.0,
        "promise",
        what="recovery",
        query="B[0]",
        predicted=5.0,
        target=10.0,
        measured=17.8,
        nodes_lost=1,
        covered=True,
        kept=False,
    )
    assert report_of([*one_node_killed(), kept]).promises[0].kept is False


def test_the_evidence_is_per_output() -> None:
    by_output = {"A": {"expected": 600, "missing": 0, "duplicated": 0, "wrong": 0}}
    report = report_of(one_node_killed(), exactly_once_by_output=by_output, not_compared={"B": "draws random numbers"})
    assert report.evidence.table is not None
    assert [row[0] for row in report.evidence.table.rows] == ["A", "B"]


@pytest.mark.parametrize(
    "asked",
    [
        ASKED,
        replace(ASKED, strategy=DrillStrategy.BLOCKING, feed=DrillFeed.BATCHES, kill_driver=True, capacity=3.5),
        replace(ASKED, scenario="my app.py:app", arrivals=Uniform(5, 30), poison=True, poison_for=3.0, input="in put"),
        replace(ASKED, pause_driver=True, take_over=True, drop_packets=0.25, exchange="shuffle", storage="s3://b/c"),
        replace(
            ASKED, partition=1, heal_after=9.0, corrupt=2, hang=True, hang_for=4.0, slow=1, second_wave=1, freeze=1
        ),
    ],
)
def test_the_command_asks_for_the_same_drill(asked: DrillSettings) -> None:
    words = shlex.split(drill_command(asked.document()))
    assert words[:2] == ["holdfast", "drill"]
    context = drill.make_context("drill", words[2:])
    document = asked.document()
    for name, value in context.params.items():
        if name in document:
            wanted = document[name]
            if name == "arrivals":
                wanted = wanted if isinstance(wanted, str) else ",".join(f"{one:g}" for one in wanted)
            assert value == wanted or (value is None and wanted is None), name
    assert context.params["scenario"] == asked.scenario


def test_a_drill_leaves_its_files_and_the_report_can_be_drawn_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    history = read_history([one.line() for one in one_node_killed()])
    checks = [Check("exactly once", Verdict.OK, "600 rows, each once")]
    more = {"seconds": 70.0, "parked": [], "not_compared": {}, "predicted_back_after": None}
    result = make_result(ASKED, measure(history), checks, {"A": ExactlyOnce(600)}, 1, more)
    whole = write_files(tmp_path, result, checks, history)
    assert json.loads((tmp_path / "result.json").read_text()) == json.loads(json.dumps(whole))
    assert whole["plans"]
    assert whole["line"].startswith("1 of 3 nodes were killed; 3 of 4 queries went down")
    (tmp_path / "history.jsonl").write_text("".join(f"{one.line()}\n" for one in history))
    before = (tmp_path / "report.html").read_text()
    (tmp_path / "report.html").unlink()
    assert run(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("OK: 1 of 3 nodes were killed")
    assert (tmp_path / "report.html").read_text() == before
    (tmp_path / "result.json").write_text("{}")
    assert run(["report", str(tmp_path)]) == 2
    assert "is not a result of a drill" in capsys.readouterr().err
    (tmp_path / "result.json").unlink()
    assert run(["report", str(tmp_path)]) == 2
    assert "the drill did not end" in capsys.readouterr().err
