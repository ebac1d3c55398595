"""What became of queries and partitions, read from the log of a run; and the report of it."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.cli.main import run
from holdfast.errors import BadInput
from holdfast.reports.document import run_document
from holdfast.reports.event_log_files import read_event_log
from holdfast.reports.junit import make_junit
from holdfast.reports.model import CheckRow, Report
from holdfast.reports.outages import RunOutages, find_incidents
from holdfast.reports.page import make_page
from holdfast.reports.recovery import recovery_of
from holdfast.reports.run_report import run_report, sentence
from holdfast.runtime.coordinator.event_log import Observation
from reports.run_logs import BEGAN, PLACED, QUERIES, event, one_node_lost, outputs, started, state


def report_of(events: list[Observation], incident: int | None = None) -> Report:
    return run_report(events, QUERIES, name="web", directory="/data/web", incident=incident)


def test_a_query_is_down_back_and_level() -> None:
    found = {one.id: one for one in report_of(one_node_lost()).queries}
    assert found["A[0]"].periods == ()
    # The report begins 10 s before the first loss, at 20.5 s.
    a, b = found["A[1]"], found["B[0]"]
    assert (a.down_at, a.back_at, a.level_at) == pytest.approx((10.0, 11.7, 13.1))
    assert (b.down_at, b.back_at, b.level_at) == pytest.approx((10.0, 21.5, 22.5))
    assert [period.state for period in b.periods] == ["down", "late"]
    assert found["B[1]"].down_at == pytest.approx(10.0), "a partition that it shares was lost"


def test_the_recovery_has_phases_and_reasons() -> None:
    report = report_of(one_node_lost())
    rows = {one.partition: one for one in report.gantt}
    assert [one.partition for one in report.gantt if not one.rolled_back] == ["A[1]", "B[0]", "T[0]"], (
        "as they were restored"
    )
    assert [phase.kind for phase in rows["B[0]"].phases] == ["waiting", "restoring", "replaying"]
    assert rows["B[0]"].node == "n4"
    assert "needed by B[0] (priority 3)" in rows["B[0]"].reason
    assert "no room in plan 1" in rows["B[0]"].reason
    assert [plan.trigger for plan in report.plans] == ["n2 lost", "1 node arrived"]
    assert "B[0] (priority 3), B[1] (priority 1) wait" in report.plans[0].reason
    assert report.plans[1].reason.endswith("Nothing is left out.")


def test_a_partition_that_is_late_again_is_not_in_recovery() -> None:
    events = [
        *one_node_lost(),
        state(70, "A[1]", "running", "catching-up", "n1"),
        state(80, "A[1]", "catching-up", "running", "n1"),
    ]
    rows = {one.partition: one for one in recovery_of(events, QUERIES, BEGAN + 90).rows}
    assert max(phase.end for phase in rows["A[1]"].phases) == pytest.approx(BEGAN + 23.6)


def test_a_replica_that_takes_over_is_no_outage() -> None:
    events = [
        *started(),
        *outputs(range(20), 1.0),
        event(20.5, "node-lost", nodes=["n2"]),
        event(20.5, "promoted", partition="A[1]", before="n2", node="n3", batch=19, why="lost"),
        state(20.5, "A[1]", "running", "catching-up", "n3"),
        state(21.0, "A[1]", "catching-up", "running", "n3"),
        *outputs(range(20, 40), 22.0),
    ]
    report = report_of(events)
    assert all(not one.periods for one in report.queries)
    (row,) = report.gantt
    assert row.partition == "A[1]"
    assert not row.rolled_back
    assert row.reason == "its replica took the place of the one on n2: nothing was restored"


def test_tentative_outputs_end_no_outage() -> None:
    tentative = [event(25 + n, "published", partition="B[0]", batch=20 + n, rows=1, tentative=True) for n in range(3)]
    events = sorted([*one_node_lost(), *tentative], key=lambda one: one.at)
    found = {one.id: one for one in report_of(events).queries}["B[0]"]
    assert (found.tentative_at, found.back_at) == pytest.approx((14.5, 21.5))
    assert [period.state for period in found.periods] == ["down", "tentative", "late"]
    assert "tentative at, s" in make_page(report_of(events))


def test_verdict_promises_and_outputs() -> None:
    report = report_of(one_node_lost())
    checks = {one.name: one.verdict for one in report.checks}
    assert checks == {"recovered": "ok", "promises": "failed", "outputs": "ok", "covered": "ok"}
    assert report.verdict == "failed"
    assert report.line.startswith(
        "1 node lost; 3 of 4 queries went down, the first back after 1.7 s, all after 11.5 s."
    )
    kept = [one for one in one_node_lost() if one.kind != "promise"]
    assert report_of(kept).verdict == "ok"
    missing = [
        one
        for one in kept
        if not (one.kind == "published" and one.fields["batch"] == 40 and one.fields["partition"] == "A[0]")
    ]
    assert {one.name: one.verdict for one in report_of(missing).checks}["outputs"] == "failed"
    assert report_of([one for one in kept if one.kind != "recovery-ended"]).verdict == "unknown"


def test_an_outage_that_goes_on() -> None:
    cut = [one for one in one_node_lost() if one.at < BEGAN + 29]
    report = report_of(cut)
    assert report.verdict == "failed"
    assert "2 not back when the log ends" in report.line
    assert [one.id for one in report.queries if one.periods and one.periods[-1].open] == ["B[0]", "B[1]"]
    assert any(row.phases[-1].open for row in report.gantt)
    assert json.loads(json.dumps(run_document(report), allow_nan=False))["recovery"]


def test_a_driver_that_ends_takes_every_query_and_one_that_stops_takes_none() -> None:
    first = [*started(), *outputs(range(10), 1.0)]
    second = [
        event(40.0, "epoch", claim=2, epoch=1, why="start"),
        *started(40.0, claim=2),
        *outputs(range(9, 20), 42.0, claim=2),
    ]
    killed = RunOutages(QUERIES)
    killed.read([*first, *second], BEGAN + 60)
    (incident,) = find_incidents(killed.queries)
    assert set(incident.queries) == set(QUERIES)
    assert incident.begin == pytest.approx(BEGAN + 10.2), "the last sign of the driver"
    assert {one.repeated for one in killed.queries.values()} == {1}
    assert {one.gaps for one in killed.queries.values()} == {0}
    stopped = RunOutages(QUERIES)
    stopped.read([*first, event(12.0, "ended", problem=None), *second], BEGAN + 60)
    assert find_incidents(stopped.queries) == []


def test_incidents_are_apart_and_can_be_chosen() -> None:
    later = [event(200 + (one.at - BEGAN), one.kind, **one.fields) for one in one_node_lost() if one.at > BEGAN + 20.4]
    later = [
        replace(one, fields={**one.fields, "batch": one.fields["batch"] + 40}) if one.kind == "published" else one
        for one in later
    ]
    both = [*one_node_lost(), *later]
    report = report_of(both)
    assert report.incidents is not None
    assert len(report.incidents.rows) == 2
    assert report.end < 60, "one outage, not the time between them"
    assert "--outage 2" in report.command
    assert report_of(both, 1).began != report.began
    with pytest.raises(BadInput, match="there is no outage 3"):
        report_of(both, 3)


def test_a_sentence_keeps_the_case_of_a_name() -> None:
    assert sentence("no plan was checked") == "No plan was checked"
    assert sentence("jams[0] is parked: remove the cause") == "jams[0] is parked: remove the cause"


def test_a_parked_query_fails_the_report_until_it_is_resumed() -> None:
    parked = event(30.0, "parked", query="B[1]", partition="B[1]", batch=9, error="<script>alert(1)</script>")
    calm = [*started(), *outputs(range(60), 1.0)]
    calm = sorted([*calm, parked], key=lambda one: one.at)
    assert {one.name: one.verdict for one in report_of(calm).checks}["parked"] == "failed"
    assert "<script" not in make_page(report_of(calm))
    done = sorted(
        [*calm, event(35.0, "resumed", query="B[1]"), state(36.0, "B[1]", "parked", "running", "n3")],
        key=lambda one: one.at,
    )
    assert "parked" not in {one.name for one in report_of(done).checks}


@pytest.mark.parametrize("parked_at", [19.0, 21.0])
def test_a_query_that_is_resumed_while_its_partition_is_lost_is_not_back(parked_at: float) -> None:
    """It was parked before its node was lost, or afterwards; resumed, it has no output any more."""
    events = sorted(
        [
            *started(),
            *outputs(range(18), 1.0),
            event(20.0, "node-lost", nodes=["n3"]),
            state(20.1, "B[1]", "running", "lost", "n3"),
            event(parked_at, "parked", query="B[1]", partition="B[1]", batch=18, error="ValueError: no"),
            event(30.0, "resumed", query="B[1]"),
            *outputs(range(18, 60), 31.0, queries=tuple(name for name in QUERIES if name != "B[1]")),
        ],
        key=lambda one: one.at,
    )
    report = report_of(events)
    assert {one.name: one.verdict for one in report.checks}["recovered"] == "failed"
    assert report.verdict == "failed"


def test_nothing_happened() -> None:
    report = report_of([*started(), *outputs(range(10), 1.0)])
    assert report.verdict == "ok"
    assert report.line.startswith("No query was down")
    assert make_page(report).count("<svg") == 3
    with pytest.raises(BadInput, match="no events"):
        report_of([])


def test_a_query_without_any_output_is_not_checked() -> None:
    """All its batches may be missing: between its first and its last output there is nothing to look at."""
    others = tuple(name for name in QUERIES if name != "B[1]")
    report = report_of([*started(), *outputs(range(10), 1.0, queries=others)])
    (check,) = [one for one in report.checks if one.name == "outputs"]
    assert (check.verdict, check.reason) == ("unknown", "the log has no output of B[1]")
    assert report.verdict == "unknown"


class _Names(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}


def test_hostile_names_stay_text() -> None:
    evil = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\x01"
    events = [
        replace(
            one,
            fields=json.loads(
                json.dumps(dict(one.fields))
                .replace("A[1]", json.dumps(evil)[1:-1])
                .replace("n2", json.dumps(evil)[1:-1])
            ),
        )
        for one in one_node_lost()
    ]
    queries = {
        evil if name == "A[1]" else name: replace(
            spec, members=frozenset(evil if m == "A[1]" else m for m in spec.members)
        )
        for name, spec in QUERIES.items()
    }
    report = run_report(events, queries, name=evil, directory=evil)
    assert any(one.id == evil and one.periods for one in report.queries)
    names = _Names()
    names.feed(make_page(report))
    assert not names.tags & {"script", "img", "iframe", "object", "a", "link"}
    assert not any(name.startswith("on") for name in names.attributes)
    root = ElementTree.fromstring(make_junit([(evil, report)]))
    assert root.find("testsuite") is not None


def test_junit_has_failures_errors_and_skips() -> None:
    report = report_of(one_node_lost())
    extra = replace(report, checks=(*report.checks, CheckRow("hang", "unknown", "no process hung")))
    suite = ElementTree.fromstring(make_junit([("web", extra)])).find("testsuite")
    assert suite is not None
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors"), suite.get("skipped")) == (
        "6",
        "2",
        "1",
        "0",
    )
    assert {case.get("name") for case in suite.findall("testcase") if case.find("failure") is not None} == {
        "promises",
        "recovery of B[0]",
    }


def write_log(folder: Path, events: list[Observation], text: str = "") -> None:
    folder.mkdir(parents=True)
    lines = [json.dumps({"at": one.at, "event": one.kind, **one.fields}) + "\n" for one in events]
    half = len(lines) // 2
    (folder / "events.1.jsonl").write_text("".join(lines[:half]))
    (folder / "events.jsonl").write_text(text + "".join(lines[half:]) + '{"at": 1, "ev')


def test_a_log_is_read_over_rotations_and_torn_lines(tmp_path: Path) -> None:
    events = one_node_lost()
    write_log(tmp_path / "run", events, '{"at": 3, "event"{"at": 4}\n[]\n{"at": "NaN", "event": "x"}\n')
    log = read_event_log(tmp_path / "run")
    assert len(log.events) == len(events)
    assert log.unread == 3, "the last line may not be whole yet"


def test_events_that_lack_something_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = [
        event(20.0 + number, kind, **fields)
        for number, (kind, fields) in enumerate(
            [
                ("state", {"partition": 3}),
                ("published", {"partition": "A[0]", "batch": "x"}),
                ("node-lost", {"nodes": "n1"}),
                ("planned", {"recover": ["A[0]"]}),
                ("run", {"topology": {}}),
                ("epoch", {}),
                ("rolled-back", {"to": 4}),
            ]
        )
    ]
    described = event(-1.0, "run", application="web", topology=TOPOLOGY, outputs={}, claim=1)
    events = sorted([described, *one_node_lost(), *broken], key=lambda one: one.at)
    write_log(tmp_path / "web" / "run", events)
    assert read_event_log(tmp_path / "web" / "run").unread == len(broken)
    assert run(["report", str(tmp_path / "web")]) == 0
    capsys.readouterr()
    assert "7 lines of the log could not be read" in (tmp_path / "web" / "report" / "report.html").read_text()
    write_log(
        tmp_path / "bad" / "run",
        [replace(described, fields={**described.fields, "topology": {"holdfast": 9}}), *started()],
    )
    assert run(["report", str(tmp_path / "bad")]) == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "bad" / "run") in error
    assert error.count("\n") == 1


TOPOLOGY = {
    "holdfast": 1,
    "name": "web",
    "operators": [
        {"id": "S", "parallelism": 1},
        {"id": "T", "parallelism": 1},
        {"id": "A", "parallelism": 2, "inputs": [{"from": "S", "partitioning": "split"}], "priority": [5, 2]},
        {"id": "B", "parallelism": 2, "inputs": [{"from": "T", "partitioning": "split"}], "priority": [3, 1]},
    ],
}


def test_the_command_writes_a_post_mortem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described = event(-1.0, "run", application="web", topology=TOPOLOGY, outputs={}, claim=1)
    write_log(tmp_path / "web" / "run", [described, *one_node_lost()])
    assert run(["report", str(tmp_path / "web"), "--junit", str(tmp_path / "ci" / "out.xml")]) == 0
    out = capsys.readouterr().out
    assert out.startswith("FAILED: 1 node lost; 3 of 4 queries went down")
    folder = tmp_path / "web" / "report"
    assert sorted(path.name for path in folder.iterdir()) == ["report.html", "result.json"]
    result = json.loads((folder / "result.json").read_text())
    assert result["promises"][0] == {
        "what": "recovery",
        "query": "B[0]",
        "predicted": 5.0,
        "target": 10.0,
        "measured": 11.5,
        "kept": False,
    }
    assert len(result["plans"]) == 2
    assert ElementTree.parse(tmp_path / "ci" / "out.xml").getroot().tag == "testsuites"
    assert run(["report", str(tmp_path / "web"), "--json", "--out", str(tmp_path / "again")]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "failed"


@pytest.mark.parametrize(
    ("path", "words"), [("nowhere", "has no event log and no history of a drill"), ("empty", "has no event log")]
)
def test_what_is_no_run_is_refused(tmp_path: Path, path: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    assert run(["report", str(tmp_path / path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_placed_partitions_are_those_of_queries() -> None:
    assert set(PLACED) == {name for spec in QUERIES.values() for name in spec.members}
