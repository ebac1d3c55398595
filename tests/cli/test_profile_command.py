"""`holdfast profile`: of an application in this process, of a run's directory, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from holdfast.cli.main import run
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
    assert "not measured, so as declared: cost, failure_rate, rate" in capsys.readouterr().out
    topology = parse(Path(file).read_bytes(), file)
    assert topology.operator("speeds").state_bytes > 0
    assert topology.operator("speeds").tuple_bytes < 1000
    assert run(["plan", "backups", file, "--latency", "9", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["topology"]["name"] == "traffic"
    measured = json.loads(Path(file).read_text())["measured"]
    assert plan["topology"]["identity"] == measured["identity"]


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
