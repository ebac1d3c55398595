"""A user's application in a drill on a cluster: a node and the driver are killed, a row is poisoned; every row once.

One source is a streaming DataFrame, the other one reads files in place: its rows arrive in any order, and come twice.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import run
from holdfast.drill.history import read_history

pytestmark = pytest.mark.cluster

APP = """
from holdfast import Application, files, tumbling
from own_rules import is_slow

COLUMNS = "at timestamp, page string, user string, ms double"

app = Application("web")
visits = app.source(
    "visits",
    lambda spark: spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1).json("visits"),
    schema={"at": "timestamp", "page": "string", "user": "string", "ms": "double"},
    event_time="at", lateness="1 second", parallelism=2, key="page")
slow = visits.filter(is_slow, id="slow").output(priority=2, sink="never/slow")
slow.key_by("page").window(tumbling("5 seconds")).count(id="pages").output(priority=[5, 4], sink="never/pages")
clicks = app.source(
    "clicks", files("visits/", format="json", maxFilesPerTrigger=2),
    schema=COLUMNS, event_time="at", lateness="1 second")
clicks.key_by("page").window(tumbling("5 seconds")).count(id="clicked").output(priority=3, sink="never/clicked")
slow.key_by("user").window(tumbling("5 seconds")).count(id="users", parallelism=1).output(sink="never/users")

if __name__ == "__main__":
    raise AssertionError("a drill only loads this file")
"""
RULES = """
import pyarrow.compute as pc


def is_slow(rows):
    return pc.greater(rows["ms"], 20.0)
"""
BEGAN = datetime(2026, 1, 1)
ROWS = 1200


def write_application(folder: Path) -> None:
    (folder / "own_app.py").write_text(APP)
    (folder / "own_rules.py").write_text(RULES)
    (folder / "visits").mkdir()
    for part in range(3):
        lines = [
            json.dumps(
                {
                    "at": (BEGAN + timedelta(seconds=number / 20)).isoformat(),
                    "page": f"/{number * 7 % 40}",
                    "user": f"u{number * 11 % 90}",
                    "ms": number * 37 % 100,
                }
            )
            for number in range(part * ROWS // 3, (part + 1) * ROWS // 3)
        ]
        (folder / "visits" / f"{part}.json").write_text("\n".join(lines) + "\n")


def in_place(sources: dict[str, Any]) -> list[list[Any]]:
    assert not sources["visits"].get("ranges"), "a streaming DataFrame is fed through Spark"
    found: list[list[Any]] = sources["clicks"].get("ranges", [])
    return found


def clicks_there(folder: Path) -> list[str]:
    return [path.name for path in (folder / "d" / "run" / "in" / "clicks").glob("*.json")]


def test_an_application_survives_a_drill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_application(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    options = "--nodes 2 --kill 1 --arrivals 1 --kill-driver --poison --poison-for 1 --batches 10 --rows 80 --fail-at 3"
    options += " --disorder"
    status = run(["drill", "own_app.py", *options.split(), "--seed", "2", "--keep", "--out", "d"])
    printed = capsys.readouterr()
    result = json.loads((tmp_path / "d" / "result.json").read_text())
    assert result["verdict"] == "ok", result["reasons"]
    assert status == 0
    counts = "recorded 800 rows of visits, 800 rows of clicks"
    assert f"{counts}, cut into 10 batches; more with --rows or --batches\n" in printed.err
    assert "OK: 1 of 2 nodes were killed" in printed.out
    assert "The application's own sinks were not used." in printed.out
    assert not (tmp_path / "never").exists()
    assert result["exactly_once"]["expected"] > 800
    assert result["not_compared"] == {}
    assert {one["id"]: one["priority"] for one in result["queries"]} == {
        "slow[0]": 2,
        "slow[1]": 2,
        "pages[0]": 5,
        "pages[1]": 4,
        "users[0]": 1,
        "clicked[0]": 3,
    }
    assert result["faults"] == {"kill": 1, "kill-driver": 1, "start-driver": 1, "add-node": 1, "poison": 1, "cure": 1}
    assert {one["query"] for one in result["parked"]} == {"users[0]"}, "the least valuable query, and no other"
    checks = {one["name"]: one["verdict"] for one in result["checks"]}
    assert checks["input"] == checks["parked"] == "ok"
    with (tmp_path / "d" / "history.jsonl").open() as lines:
        history = read_history(lines)
    assert all(one.fields["sources"].keys() == {"visits", "clicks"} for one in history if one.kind == "logged")
    paths = {one[1] for event in history if event.kind == "logged" for one in in_place(event.fields["sources"])}
    assert paths == {str(tmp_path / "d" / "run" / "in" / "clicks" / name) for name in clicks_there(tmp_path)}
    assert [event.at for event in history] == sorted(event.at for event in history)
    assert sum(event.kind == "driver-ready" for event in history) == 2, "the history goes on over both drivers"
    assert all(one["back_at"] is not None for one in result["queries"]), "the driver's end takes every query down"
    report = (tmp_path / "d" / "report.html").read_text()
    # On a very busy machine the failure comes before the first output: there is no latency to draw then.
    assert report.count("<svg") == (4 if "<h2>Relative latency</h2>" in report else 3)
    assert "<testcase" in (tmp_path / "d" / "junit.xml").read_text()
    assert (tmp_path / "d" / "input" / "visits.parquet").exists(), "to repeat it with --input d/input"
