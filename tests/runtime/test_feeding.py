"""How far the log may be ahead: few batches where each takes all there is, many where rows are left behind."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

import holdfast as hf
from holdfast.ids import BatchId
from holdfast.runtime.coordinator.feeding import FEW_AHEAD, ahead
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.program import Program
from holdfast.spark.ingest import Ingestion
from holdfast.spark.settings import Settings
from holdfast.storage.memory import MemoryStorage


@pytest.mark.parametrize(("most", "took_all", "may"), [(16, False, 16), (16, True, FEW_AHEAD), (1, True, 1)])
def test_few_batches_are_ahead_where_the_next_one_only_grows(most: int, took_all: bool, may: int) -> None:
    assert ahead(most, took_all=took_all) == may


def test_ingestion_says_whether_a_batch_took_everything(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv", "c.csv"):
        (tmp_path / name).write_text("1\n")
        os.utime(tmp_path / name, (1000, 1000))
    app = hf.Application("files")
    app.source("rows", hf.files(str(tmp_path), "csv", maxFilesPerTrigger=2), schema="n int").output()
    program, storage = Program(app), MemoryStorage()
    run = SimpleNamespace(
        program=program,
        storage=storage,
        claim=1,
        batch_log=BatchLog(program.sources, "files", storage, claim=1),
        coordinator=SimpleNamespace(reads=SimpleNamespace(is_ahead=lambda: False)),
        leading_frontier=BatchId(-1),
        wake=lambda: None,
        reads_sources=lambda: None,
    )
    ingestion = Ingestion(app, None, run, settings=Settings())  # type: ignore[arg-type]
    ingestion.start(available_now=True)
    try:
        assert not ingestion.took_all, "nothing is known yet"
        assert ingestion.make_batch() == 0
        assert not ingestion.took_all, "a third file waits"
        assert ingestion.make_batch() == 1
        assert ingestion.took_all
    finally:
        ingestion.stop()
