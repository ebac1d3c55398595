"""What `holdfast run` shows and refuses without a cluster."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as hf
from holdfast.cli.main import run
from holdfast.cli.run_display import RunDisplay
from holdfast.runtime.coordinator.event_log import Observation

APP = """
import holdfast as hf

app = hf.Application("numbers")
app.source("bare", schema="n long").output("rows")
read = hf.Application("read")
read.source("files", hf.files("folder/"), schema="n long").output("rows")
"""


@pytest.fixture
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the start of a cluster fail the test; a session of the suite may be active in this process."""

    def started(*given: object, **named: object) -> None:
        raise AssertionError("a cluster was started")

    monkeypatch.setattr("holdfast.spark.start.EmbeddedCluster", started)
    monkeypatch.setattr("holdfast.spark.session.start_session", started)
    monkeypatch.setattr("holdfast.spark.start._refuse_active_session", lambda: None)
    monkeypatch.chdir(tmp_path)
    Path("numbers_app.py").write_text(APP)


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["numbers_app.py"], "application numbers: bare.reader: has no streaming DataFrame; give the source one"),
        (
            ["numbers_app.py:read", "--conf", "spark.holdfast.cycle.batch=2"],
            "the nearest is spark.holdfast.cycle.batches",
        ),
        (["numbers_app.py:read", "--conf", "spark.holdfast.cycle.batches=no"], "spark.holdfast.cycle.batches: 'no'"),
        (["numbers_app.py:read"], "read: files.files: there is no folder"),
        (["numbers_app.py:read", "--conf", "spark.speculation=true"], "spark.speculation: true does not do"),
        (["numbers_app.py:read", "--master", "local[2]"], "spark.master: local[2] has no executors"),
        (["numbers_app.py:read", "--master", "spark://h:1", "--conf", "spark.holdfast.x=1"], "no such setting"),
        (["numbers_app.py:read", "--master", "spark://h:1"], "read: files.files: there is no folder"),
        (["traffic", "--directory", "numbers_app.py/run1"], "numbers_app.py is not a folder; name a folder"),
        (["traffic", "--conf", "spark.holdfast.retention=al"], "spark.holdfast.retention: there is no file al; give "),
        (["traffic", "--rows", "many"], "Invalid value for '--rows': 'many' is not a whole number; see "),
        (["traffic", "--conf", "spark.holdfast.directory=ftp://h/run1"], "a run cannot be kept on ftp:"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else "",
)
def test_what_cannot_run_is_refused_before_a_cluster_starts(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", *arguments]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert line in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.usefixtures("no_cluster")
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs a file system that takes no files, from root either")
def test_a_directory_that_may_not_be_written_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "traffic", "--directory", "/proc/run1/deep"]) == 2
    assert "directory: no file can be made in /proc: " in (line := capsys.readouterr().err)
    assert line.endswith("; name a folder that you may write, or change its permissions\n")
    Path("lake.py").write_text(
        'import holdfast as hf\napp = hf.Application("lake")\ns = app.source("s", hf.files("."), schema="n long")\n'
        's.map(lambda rows: rows, id="m").output("rows", sink=hf.parquet("/proc/lake"))\n'
    )
    assert run(["run", "lake.py"]) == 2
    assert "m.output.sink: no file can be made in /proc: " in capsys.readouterr().err


@pytest.mark.usefixtures("no_cluster")
def test_a_spark_that_is_too_old_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.1")
    assert run(["run", "traffic"]) == 2
    assert "Spark 3.5.1 is not supported; use Spark 4.0 to 4.x" in capsys.readouterr().err


@pytest.mark.usefixtures("no_cluster")
def test_batches_stand_in_for_readers() -> None:
    app = hf.Application("bare")
    app.source("s", schema="a bigint").output("rows")
    with pytest.raises(AssertionError, match="a cluster was started"):
        hf.start(app, batches=[])


def shown(display: RunDisplay, checkpoint: int, capsys: pytest.CaptureFixture[str], frontier: int = 1) -> str:
    state = SimpleNamespace(partitions={}, parked={}, checkpoints=SimpleNamespace(global_batch=checkpoint))
    running: Any = SimpleNamespace(frontier=frontier, coordinator=SimpleNamespace(state=state))
    display.watch(running)
    display.advanced({})
    return capsys.readouterr().err.strip()


def test_a_line_shows_whether_there_is_a_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    display = RunDisplay(quiet=False, last=None)
    assert shown(display, -1, capsys).endswith("no checkpoint yet")
    assert shown(display, -1, capsys).startswith("batch 1 · ")
    assert shown(display, -1, capsys, frontier=-1).startswith("no batch done yet · "), "batches are counted from 0"
    assert shown(display, 7, capsys).endswith("checkpoint 7"), "one of an earlier start has no age here"
    display.observe(Observation(0.0, "checkpoint", {"batch": 8}))
    assert " checkpoint 8 (" in shown(display, 8, capsys)
