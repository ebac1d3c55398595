"""A Delta table as the sink of a run on a real cluster: nodes write the files, the driver commits them."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import holdfast as hf
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.sinks import OutputKey

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster

EPOCH = datetime.datetime(1970, 1, 1)


def application(table: Path) -> hf.Application:
    app = hf.Application("lake")
    visits = app.source("visits", schema="page string, at double", event_time="at", parallelism=2)
    counts = visits.key_by("page").window(hf.tumbling(10)).count(id="counts", parallelism=2)
    counts.output("pages", sink=hf.delta(table, partition_by="page"))
    return app


def test_nodes_write_and_the_driver_commits_over_two_starts(unhurried: SparkSession, tmp_path: Path) -> None:
    rows = pa.table({"page": [f"p{n % 4}" for n in range(200)], "at": [float(n) for n in range(200)]})
    batches = [{"visits": rows.slice(first, 20)} for first in range(0, 200, 20)]
    for upto in (6, 10):
        run = hf.start(
            application(tmp_path / "lake"),
            unhurried,
            directory=tmp_path / "run",
            batches=batches[:upto],
            close=upto == 10,
        )
        run.awaitTermination()
        assert run.exception() is None
    table = DeltaTable(str(tmp_path / "lake"))
    found = hf.read(unhurried, tmp_path / "lake")
    assert sorted(
        (row["page"], (row["window_start"] - EPOCH).total_seconds(), row["count"]) for row in found.collect()
    ) == sorted(
        (f"p{page}", float(start), sum(n % 4 == page for n in range(start, start + 10)))
        for start in range(0, 200, 10)
        for page in range(4)
    )
    assert found.count() == table.count() == 80
    assert not any("hf-driver-" in path for path in table.file_uris()), "no rows passed through the driver"


def test_readers_of_final_rows_do_not_see_the_columns_of_tentative_ones(
    unhurried: SparkSession, tmp_path: Path
) -> None:
    sink = DeltaSink(tmp_path / "lake", tentative=True)
    for batch in range(2):
        key = OutputKey(PartitionId.parse("all[0]"), BatchId(batch), run="lake-1")
        sink.publish_tentative(key, pa.table({"n": [10 + batch]}), 0.5, Epoch.of(1, 1))
    DeltaTable(str(tmp_path / "lake")).optimize.compact()
    sink.publish(OutputKey(PartitionId.parse("all[0]"), BatchId(0), run="lake-1"), pa.table({"n": [1]}), Epoch.of(1, 1))
    assert [row.asDict() for row in hf.read(unhurried, tmp_path / "lake").collect()] == [{"n": 1}]
    both = hf.read(unhurried, tmp_path / "lake", tentative=True)
    assert both.columns == ["n", "tentative", "fidelity", "revision"]
    assert sorted((row["n"], row["tentative"]) for row in both.collect()) == [(1, False), (11, True)]
