"""One small drill on a real cluster of its own: a killed node, a replacement, a killed driver; every row once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.drill.drill import run_drill
from holdfast.drill.history import read_history
from holdfast.drill.settings import DrillSettings

pytestmark = pytest.mark.cluster


def test_a_drill_with_real_faults(tmp_path: Path) -> None:
    asked = DrillSettings(
        "traffic", nodes=3, kill=1, arrivals=(1.0,), kill_driver=True, batches=14, rows=80, fail_at=6.0, seed=2
    )
    outcome = run_drill(asked, tmp_path / "drill", keep=True)
    result = json.loads((tmp_path / "drill" / "result.json").read_text())
    assert result["verdict"] == "ok", result["reasons"]
    assert result["exactly_once"]["expected"] > 1000
    assert outcome.result["killed"] == 1
    assert result["faults"] == {"kill": 1, "kill-driver": 1, "start-driver": 1, "add-node": 1}
    with (tmp_path / "drill" / "history.jsonl").open() as lines:
        history = read_history(lines)
    assert [event.at for event in history] == sorted(event.at for event in history)
    assert sum(event.kind == "driver-ready" for event in history) == 2, "the history goes on over both drivers"
    assert all(one["back_at"] is not None for one in result["queries"]), "the driver's end takes every query down"
    assert (tmp_path / "drill" / "report.html").read_text().count("<svg") == 3
