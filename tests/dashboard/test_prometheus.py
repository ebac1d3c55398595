"""A real Prometheus: its checker reads the alert rules, and a scraped run that misses its target fires the alert."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboard.lost_run import QUERIES, run_and_lose_nodes
from holdfast.dashboard.page import LivePage, serve

RULES = Path(__file__).resolve().parent.parent.parent / "monitoring" / "alerts.yaml"
DEADLINE = 120.0
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs the command prometheus (Debian: prometheus)"
)
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs the command promtool (Debian: prometheus)"
)

QUIET = [
    ("holdfast_query_down_seconds{query='q'}", "0x40"),
    ("holdfast_query_recovery_target_seconds{query='q'}", "10x40"),
    ("holdfast_query_missed_targets_total{query='q'}", "0x40"),
    ("holdfast_query_parked{query='q'}", "0x40"),
    ("holdfast_partitions{state='lost'}", "0x40"),
    ("holdfast_logged_batch", "1+60x40"),
    ("holdfast_completed_batch", "0+60x40"),
    ("holdfast_checkpoint_batch", "0+60x40"),
    ("holdfast_checkpoint_timestamp_seconds", "0+60x40"),
    ("holdfast_checkpoint_interval_seconds", "60x40"),
    ("holdfast_ring_silent_peers", "0x40"),
    ("holdfast_ring_redundancy_min", "2x40"),
    ("holdfast_ring_parity_fragments", "2x40"),
    ("holdfast_run_state{state='running'}", "1x40"),
    ("holdfast_run_state{state='gone'}", "0x40"),
    ("holdfast_plans_rejected_total", "0x40"),
    ("holdfast_plan_broken_promises", "0x40"),
    ("holdfast_partitions_to_regenerate", "0x40"),
]
"""A run without trouble: series and their values, one a minute, in promtool's notation."""
TROUBLE: dict[str, dict[str, str]] = {
    "HoldfastRecoveryTargetMissed": {"holdfast_query_down_seconds{query='q'}": "0+5x40"},
    "HoldfastQueryDown": {
        "holdfast_query_down_seconds{query='q'}": "0+60x40",
        "holdfast_query_recovery_target_seconds{query='q'}": "_x40",
    },
    "HoldfastQueryParked": {"holdfast_query_parked{query='q'}": "1x40"},
    "HoldfastPartitionsWaitForNodes": {"holdfast_partitions{state='lost'}": "3x40"},
    "HoldfastNoProgress": {"holdfast_completed_batch": "5x40", "holdfast_checkpoint_batch": "0+1x40"},
    "HoldfastCheckpointTooOld": {"holdfast_checkpoint_timestamp_seconds": "60x40", "holdfast_checkpoint_batch": "1x40"},
    "HoldfastRingDegraded": {"holdfast_ring_silent_peers": "1x40"},
    "HoldfastRingAtRisk": {"holdfast_ring_redundancy_min": "0x40"},
    "HoldfastRunFailed": {"holdfast_run_state{state='gone'}": "1x40", "holdfast_run_state{state='running'}": "0x40"},
    "HoldfastPromiseBroken": {"holdfast_plan_broken_promises": "2x40"},
    "HoldfastInputsDropped": {"holdfast_partitions_to_regenerate": "3x40"},
    "HoldfastPlanRejected": {"holdfast_plans_rejected_total": "0+1x40"},
}
"""What changes, and the alert that must fire for it."""
ALSO = {"HoldfastRingAtRisk": {"HoldfastRingDegraded"}}


@needs_promtool
def test_promtool_accepts_the_rules() -> None:
    done = subprocess.run(["promtool", "check", "rules", str(RULES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_each_alert_fires_for_its_trouble_and_none_without(tmp_path: Path) -> None:
    names = [one["alert"] for one in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]]
    assert set(TROUBLE) == set(names)
    tests = []
    for trouble, changed in {"": {}, **TROUBLE}.items():
        series = {**dict(QUIET), **changed}
        firing = {trouble} | ALSO.get(trouble, set())
        tests.append(
            {
                "name": trouble or "no trouble",
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                # How many alerts fire, whatever their annotations.
                "promql_expr_test": [
                    {
                        "expr": f'count(ALERTS{{alertname="{name}",alertstate="firing"}}) or vector(0)',
                        "eval_time": "30m",
                        "exp_samples": [{"labels": "{}", "value": int(name in firing)}],
                    }
                    for name in names
                ],
            }
        )
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def ask(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=5.0) as answer:
        return json.loads(answer.read())


@needs_prometheus
def test_prometheus_scrapes_a_run_and_fires_the_alert_of_a_missed_target(tmp_path: Path) -> None:
    run_and_lose_nodes(tmp_path / "events.jsonl", target=0.05)
    page = LivePage(tmp_path / "events.jsonl")
    server = serve(page, host="127.0.0.1", port=0, token=None)
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "holdfast", "static_configs": [{"targets": [f"127.0.0.1:{server.port}"]}]}],
    }
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(config))
    log = (tmp_path / "prometheus.log").open("wb")
    prometheus = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={tmp_path / 'prometheus.yaml'}",
            f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=log,
        stderr=subprocess.STDOUT,
    )
    try:
        fired: set[str] = set()
        until = time.monotonic() + DEADLINE
        while fired != set(QUERIES) and time.monotonic() < until:
            assert prometheus.poll() is None, (tmp_path / "prometheus.log").read_text()[-2000:]
            try:
                alerts = ask(f"http://127.0.0.1:{port}/api/v1/alerts")["data"]["alerts"]
            except (urllib.error.URLError, OSError):
                alerts = []
            fired = {
                one["labels"]["query"]
                for one in alerts
                if one["labels"]["alertname"] == "HoldfastRecoveryTargetMissed" and one["state"] == "firing"
            }
            time.sleep(0.2)
        assert fired == set(QUERIES)
        assert ask(f"http://127.0.0.1:{port}/api/v1/targets")["data"]["activeTargets"][0]["health"] == "up"
    finally:
        prometheus.kill()
        prometheus.wait()
        log.close()
        page.close()
        server.close()
