"""An application that changes its layout over a restart, on a real cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import BadInput
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.spark.run import SparkRun
from holdfast.storage.files import FileStorage
from runtime.test_layout import app, batches, never_changed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.cluster
def test_a_run_that_was_cut_off_goes_on_with_another_parallelism(unhurried: SparkSession, tmp_path: Path) -> None:
    """The application as it was first processes what is logged; a second start without --take-over is refused."""
    given = batches(3, 12)
    sinks = {name: str(tmp_path / "out" / name) for name in ("totals", "threes")}
    told: list[str] = []
    first = SparkRun(app(4), unhurried, tmp_path / "run", sinks=sinks, checkpoint_every=4)
    for batch in given[:7]:
        first.log(batch)
    first.run()
    first.log(given[7])  # logged, and not processed: the driver is cut off here
    with pytest.raises(BadInput, match=r"another driver runs this application.*--take-over"):
        SparkRun(app(2), unhurried, tmp_path / "run", sinks=sinks)
    second = SparkRun(
        app(2, more=True),
        unhurried,
        tmp_path / "run",
        sinks={**sinks, "lanes": str(tmp_path / "out" / "lanes")},
        take_over=True,
        log=told.append,
    )
    assert any("totals: compatible: parallelism 4 -> 2" in line for line in told)
    assert any("the application as it was processes what is logged" in line for line in told)
    assert (last_driver(FileStorage(tmp_path / "run")) or {})["generation"] == 1
    for batch in given[8:]:
        second.log(batch)
    second.log({}, last=True)
    second.run()
    second.close()
    first.close()
    for name in ("totals", "threes"):
        found = ParquetSink(tmp_path / "out" / name).rows()
        assert found is not None
        assert sorted(map(str, found.to_pylist())) == never_changed(given, name)
    assert second.count("lanes") > 0
