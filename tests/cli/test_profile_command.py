"""`holdfast profile`: of an application in this process, of a run's directory, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.cli.main import run
from holdfast.planning.profiles.run_profile import PRIOR_SECONDS
from holdfast.runtime.coordinator.profile_records import ProfileRecords
from holdfast.runtime.coordinator.progress import Progress
from holdfast.storage.files import FileStorage
from holdfast.topology import parse

APP = """
import holdfast as hf
app = hf.Application("words")
words = app.source("words", {reader}schema="word string")
words.key_by("word").window(hf.rows(2)).count(id="pairs").output("pairs", sink=hf.foreach_batch(print))
"""


def test_an_example_is_measured_in_this_process_and_every_plan_takes_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "profile.json")
    assert run(["profile", "traffic", "--batches", "3", "--rows", "200", "--out", file]) == 0
    assert "not measured, so as declared: cost, rate" in capsys.readouterr().out
    topology = parse(Path(file).read_bytes(), file)
    assert topology.operator("speeds").state_bytes > 0
    assert topology.operator("speeds").tuple_bytes < 1000
    assert run(["plan", "backups", file, "--latency", "9", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["topology"]["name"] == "traffic"
    measured = json.loads(Path(file).read_text())["measured"]
    assert plan["topology"]["identity"] == measured["identity"]


PLANS = ("auto", "recovery", "replicas", "backups", "segments", "fragments")
GIVEN = {"recovery": "--capacity", "replicas": "--budget", "backups": "--latency", "segments": "--bandwidth"}


@pytest.mark.parametrize("example", ["traffic", "hashtags"])
def test_every_plan_command_takes_a_profile_without_further_options(
    example: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "profile.json")
    assert run(["profile", example, "--batches", "3", "--rows", "200", "--out", file]) == 0
    measured = json.loads(Path(file).read_text())["measured"]
    assert measured["snapshots"] > 0
    assert measured["snapshot_bytes"] > 0
    assert {"data", "parity", "encode_bytes_per_second", "decode_bytes_per_second"} == measured["coding"][0].keys()
    topology = parse(Path(file).read_bytes(), file)
    assert all(one.failure_rate == pytest.approx(1 / PRIOR_SECONDS, rel=1e-3) for one in topology.operators)
    capsys.readouterr()
    for plan in PLANS:
        assert run(["plan", plan, file, "--json"]) == 0, capsys.readouterr().err
        found = json.loads(capsys.readouterr().out)
        if plan in GIVEN:
            assert GIVEN[plan] in found["taken"], "what no option gave is named"
            assert found["taken"][GIVEN[plan]]["from"].startswith("assumed: ")
        if plan == "fragments":
            assert found["taken"]["--state-bytes"]["from"] == "measured"
            assert "--code-rate" not in found["taken"], "rates are those of this machine"
    assert run(["plan", "segments", file]) == 0
    assert "not given: --bandwidth 5e+07 (assumed: no large state was restored)" in capsys.readouterr().out


def test_a_topology_that_is_no_profile_still_needs_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    for plan, option in GIVEN.items():
        assert run(["plan", plan, "traffic"]) == 2
        assert f"{option}: is missing" in capsys.readouterr().err
    assert run(["plan", "fragments", "traffic"]) == 2
    assert "is no profile" in capsys.readouterr().err
    assert run(["plan", "fragments", "--peers", "4"]) == 2
    assert "--code-rate: is missing" in capsys.readouterr().err


def test_what_a_run_measured_goes_before_what_is_assumed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "profile.json"
    assert run(["profile", "traffic", "--batches", "3", "--rows", "200", "--out", str(file)]) == 0
    document = json.loads(file.read_text())
    code = {"data": 4, "parity": 2, "peers": 6, "bandwidth": 2e7, "encode_rate": 3e8, "node_failure": 0.02}
    document["measured"] |= {"restore_bandwidth": 3e7, "batches_per_second": 4.0, "nodes": {"a": 2.0, "b": 2.0}}
    document["measured"]["fragments"]["codes"] = [code]
    del document["measured"]["coding"]
    file.write_text(json.dumps(document))
    capsys.readouterr()

    def taken(plan: str) -> dict[str, float]:
        assert run(["plan", plan, str(file), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["taken"]
        return {name: one["value"] for name, one in found.items() if one["from"] == "measured"}

    assert taken("recovery") == {"--capacity": pytest.approx(0.8 * 4)}
    assert taken("segments") == {"--bandwidth": 3e7}
    found = taken("fragments")
    assert (found["--peers"], found["--bandwidth"], found["--node-failure"]) == (6, 2e7, 0.02)
    document["measured"]["fragments"]["codes"] = [{"peers": "many"}]
    file.write_text(json.dumps(document))
    assert run(["plan", "fragments", str(file)]) == 2
    assert "is not what a run measures" in capsys.readouterr().err


def test_an_application_reads_the_files_its_sources_name_or_those_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "words").mkdir()
    pq.write_table(pa.table({"word": ["a", "b", "a", "a"] * 10}), tmp_path / "words" / "part.parquet")
    app = tmp_path / "my_app.py"
    app.write_text(APP.format(reader=f"hf.files({str(tmp_path / 'words')!r}), "))
    assert run(["profile", str(app), "--batches", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["operators"][1]["selectivity"] == 0.5
    app.write_text(APP.format(reader=""))
    assert run(["profile", str(app)]) == 2
    assert "the rows of source words cannot be read without Spark; give them with --input" in capsys.readouterr().err
    assert run(["profile", str(app), "--input", str(tmp_path), "--batches", "2"]) == 0


def test_a_run_is_read_from_its_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", str(tmp_path)]) == 2
    assert "no run began here, and it is not an application" in capsys.readouterr().err
    storage = FileStorage(tmp_path / "run")
    Progress(storage, "words")
    assert run(["profile", str(tmp_path)]) == 2
    assert "has no profile yet; its driver writes one at its first checkpoint" in capsys.readouterr().err
    document = {
        "holdfast": 1,
        "name": "words",
        "operators": [{"id": "s", "rate": 7}],
        "measured": {"period_seconds": 9},
    }
    ProfileRecords(storage, 1).write(0.0, document)
    assert run(["profile", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out) == document
