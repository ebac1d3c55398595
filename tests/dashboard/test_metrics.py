"""Metrics: the text is what Prometheus' own parser reads; names, units and labels are conventional and bounded."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dashboard.lost_run import QUERIES, run_and_lose_nodes
from holdfast.dashboard.metric_readers import Kind
from holdfast.dashboard.metric_totals import MetricTotals
from holdfast.dashboard.metrics import METRICS, exposition
from holdfast.dashboard.page import LivePage
from holdfast.dashboard.server import Request
from holdfast.dashboard.view import view_of
from holdfast.dashboard.view_model import RunModel
from holdfast_lab.monitoring.alerts import ALERTS, rules
from holdfast_lab.monitoring.grafana import PANELS, dashboard

ROOT = Path(__file__).resolve().parent.parent.parent
RING = {
    "problem": None,
    "peers": [{"address": "a"}, {"address": "b"}],
    "silent": ["c"],
    "states": 3,
    "bytes": 1000,
    "redundancy": {"1": 3},
    "least": 1,
    "code": [4, 2],
    "to_rebuild": 5,
}


def read_all(path: Path, ring: dict[str, Any] | None = None) -> tuple[str, float]:
    model, totals = RunModel(), MetricTotals()
    for line in path.read_text().splitlines():
        model.take(json.loads(line))
        totals.take(json.loads(line))
    assert model.last_at is not None
    now = model.last_at + 7.0
    return exposition(view_of(model, now, driver="alive", ring=ring), totals, now), now


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lost") / "events.jsonl"
    run_and_lose_nodes(path)
    return path


def test_a_run_that_lost_its_nodes(lost: Path) -> None:
    text, _ = read_all(lost, RING)
    found = samples(text)
    for query in QUERIES:
        label = (("query", query),)
        assert found["holdfast_query_up", label] == 0
        assert found["holdfast_query_down_seconds", label] >= 7.0
        assert found["holdfast_query_recovery_target_seconds", label] == 0.05
        assert found["holdfast_query_missed_targets_total", label] == 0, "from 0 on, so that an increase is seen"
    assert found["holdfast_nodes_lost_total", (("how", "lost"),)] == 2
    assert found["holdfast_run_state", (("state", "recovering"),)] == 1
    assert found["holdfast_partitions", (("state", "lost"),)] == 6
    assert found["holdfast_checkpoints_total", ()] >= 1
    assert found["holdfast_operator_input_rows_total", (("operator", "cars"),)] > 0
    assert found["holdfast_ring_redundancy_min", ()] == 1
    assert found["holdfast_ring_silent_peers", ()] == 1
    assert ("holdfast_recovery_remaining_seconds", ()) not in found, "nothing can be said: no node is there"


def test_a_run_that_came_back(tmp_path: Path) -> None:
    run_and_lose_nodes(tmp_path / "events.jsonl", back=True)
    text, _ = read_all(tmp_path / "events.jsonl")
    found = samples(text)
    assert {value for (name, _), value in found.items() if name == "holdfast_query_up"} == {1.0}
    assert {value for (name, _), value in found.items() if name == "holdfast_query_down_seconds"} == {0.0}
    assert found["holdfast_restore_seconds_count", ()] >= 6
    assert not [name for name, _ in found if name.startswith("holdfast_ring")], "it has no ring"


def test_records_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    run_and_lose_nodes(path)
    assert samples(read_all(path)[0])["holdfast_unread_records_total", ()] == 0, "from 0 on"
    unread = {"at": 9.0, "event": "unread-records", "source": "cars", "batch": 3, "rows": 2, "error": "not JSON"}
    with path.open("a") as log:
        log.write(json.dumps(unread) + "\n" + json.dumps(unread | {"batch": 4, "rows": 5}) + "\n")
    assert samples(read_all(path)[0])["holdfast_unread_records_total", ()] == 7


def test_every_metric_has_one_family_with_help_and_type(lost: Path) -> None:
    text, _ = read_all(lost, RING)
    families = {one.name: one for one in text_string_to_metric_families(text)}
    known = {one.name.removesuffix("_total"): one for one in METRICS}
    assert set(families) <= set(known)
    for name, family in families.items():
        assert family.type == known[name].kind
        assert family.documentation == known[name].help
    assert text.endswith("\n")


def test_names_units_and_labels_are_conventional() -> None:
    names = [one.name for one in METRICS]
    assert len(names) == len(set(names))
    for one in METRICS:
        assert re.fullmatch(r"holdfast_[a-z]+(_[a-z]+)*", one.name)
        assert (one.kind is Kind.COUNTER) == one.name.endswith("_total"), one.name
        assert set(one.labels) <= {
            "query",
            "operator",
            "node",
            "state",
            "how",
            "origin",
            "application",
            "run",
            "output",
            "priority",
            "kind",
        }
        assert one.help.endswith((".", "1")), one.name
        assert not re.search(r"_(ms|millis|minutes|kb|mb|percent)\b", one.name)


def test_hostile_names_are_escaped() -> None:
    evil = 'a"} 1\nholdfast_query_up{query="b\\'
    topology = {"holdfast": 1, "name": "x", "operators": [{"id": "S", "parallelism": 1}]}
    model = RunModel()
    model.take(
        {"at": 1.0, "event": "run", "topology": topology, "application": evil, "run": evil, "outputs": {"S": evil}}
    )
    model.take({"at": 2.0, "event": "node-arrived", "nodes": [evil]})
    text = exposition(view_of(model, 3.0), MetricTotals(), 3.0)
    found = samples(text)
    assert ("holdfast_run_info", (("application", evil), ("run", evil))) in found
    assert ("holdfast_node_partitions", (("node", evil),)) in found


def test_garbage_in_the_log_changes_nothing() -> None:
    totals = MetricTotals()
    for event in (
        {},
        {"at": "x", "event": "cycle"},
        {"at": 1, "event": "node-lost"},
        {"at": 1, "event": "measures", "partitions": 3},
    ):
        totals.take(event)
    assert totals.cycles == 0
    assert totals.measured == {}


def test_the_page_serves_them(lost: Path) -> None:
    page = LivePage(lost)
    try:
        answer = page.routes()["/metrics"].handler(Request("GET", "/metrics", {}))
    finally:
        page.close()
    assert answer.content_type.startswith("text/plain; version=0.0.4")
    assert ("holdfast_query_up", (("query", QUERIES[0]),)) in samples(answer.body.decode())


# -- what is made of them ----------------------------------------------------------------------------------------------

SERIES = {series for one in METRICS for series in one.series}


def used(text: str) -> set[str]:
    return set(re.findall(r"\bholdfast_[a-z_]+", text))


def test_alerts_and_panels_name_real_metrics_and_labels() -> None:
    for alert in ALERTS:
        assert used(alert.expression) <= SERIES, alert.name
    labels = {series: one.labels for one in METRICS for series in one.series}
    for panel in PANELS:
        for shown, legend in panel.shows:
            assert used(shown), panel.title
            assert used(shown) <= SERIES, panel.title
            mine = {label for name in used(shown) for label in labels[name]}
            assert set(re.findall(r"{{(\w+)}}", legend)) <= mine, panel.title
    assert used(json.dumps(dashboard())) <= SERIES
    assert len({panel["id"] for panel in dashboard()["panels"]}) == len(PANELS)


def test_the_files_in_monitoring_are_those_of_the_tables() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "make_monitoring.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"run tools/make_monitoring.py: {done.stdout}{done.stderr}"
    assert len(rules()["groups"][0]["rules"]) == len(ALERTS)  # type: ignore[index]
