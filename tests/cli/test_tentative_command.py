"""`holdfast tentative`: a request in the run's storage, and what it says where nothing can read it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.cli.main import run
from holdfast.runtime import InProcess
from holdfast.runtime.coordinator.requests import TentativeRequests
from holdfast.storage.files import FileStorage


def _run(directory: Path) -> None:
    app = hf.Application("web")
    visits = app.source("visits", schema="t double, page string", event_time="t")
    visits.key_by("page").window(hf.tumbling(2)).count(id="pages", parallelism=2).output("pages", sink=hf.memory())
    running = InProcess(app, directory=directory / "run")
    running.feed({"visits": pa.table({"t": [1.0, 9.0], "page": ["a", "b"]})})
    running.close()


def test_a_request_is_written_for_the_next_outage_or_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _run(tmp_path)
    assert run(["tentative", str(tmp_path), "pages"]) == 0
    assert capsys.readouterr().out.startswith(
        "pages[0], pages[1]: tentative outputs when partitions are lost next; nothing is lost now, or no driver runs"
    )
    assert run(["tentative", str(tmp_path), "pages[1]", "--off", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "directory": str(tmp_path),
        "queries": ["pages[1]"],
        "request": 1,
        "taken": False,
        "refused": [],
    }
    assert TentativeRequests(FileStorage(tmp_path / "run")).after(-1) == [(0, "pages", True), (1, "pages[1]", False)]


def test_bad_names_get_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tentative", str(tmp_path), "pages"]) == 2
    assert "no run began here" in capsys.readouterr().err
    _run(tmp_path)
    assert run(["tentative", str(tmp_path), "jams"]) == 2
    assert "the run has no query 'jams'; its queries are pages[0], pages[1]" in capsys.readouterr().err
