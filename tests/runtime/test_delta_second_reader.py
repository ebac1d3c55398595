"""Delta tables that we write are read by Delta Kernel, Delta's own Java library, as delta-rs reads them."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
from deltalake import DeltaTable

from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.gathered_delta import GatheredDeltaSink
from holdfast.runtime.io.sinks import Gathered, Output, OutputKey

Read: TypeAlias = Callable[..., tuple[list[dict[str, Any]], dict[str, int]]]
AT = Epoch.of(1, 1)
S, U = PartitionId.parse("s[0]"), PartitionId.parse("s[1]")
ORIGIN = datetime.datetime(1970, 1, 1)


def key(batch: int, query: PartitionId = S, run: str = "web-1") -> OutputKey:
    return OutputKey(query, BatchId(batch), run=run)


def rows_of(batch: int) -> pa.Table:
    at = [ORIGIN + datetime.timedelta(days=20_000, microseconds=10 * batch + n) for n in range(3)]
    return pa.table(
        {
            "day": pa.array([datetime.date(2026, 11, 17), None, datetime.date(2026, 11, 18)], pa.date32()),
            "page": ["a/b c%25", "Zürich", None],
            "n": [10 * batch, 10 * batch + 1, None],
            "small": pa.array([1, 2, 255], pa.uint8()),
            "share": [0.5, math.pi, None],
            "right": [True, None, False],
            "at": pa.array(at, pa.timestamp("ns")),
            "utc": pa.array(at, pa.timestamp("us", "UTC")),
        }
    )


def plain(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows as Kernel has them: days, and microseconds."""
    found = []
    for row in rows.to_pylist():
        for name, value in row.items():
            if isinstance(value, datetime.datetime):
                row[name] = (value.replace(tzinfo=None) - ORIGIN) // datetime.timedelta(microseconds=1)
            elif isinstance(value, datetime.date):
                row[name] = (value - ORIGIN.date()).days
        found.append(row)
    return sorted(found, key=str)


def both(place: Path, kernel: Read, *transactions: str) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Return what both readers see."""
    rows, versions = kernel(place, transactions)
    table = DeltaTable(str(place))
    assert sorted(rows, key=str) == plain(pa.table(table.to_pyarrow_table()))
    assert versions == {name: held for name in transactions if (held := table.transaction_version(name)) is not None}
    return sorted(rows, key=str), versions


def test_outputs_of_every_type_with_a_commit_for_each_batch(tmp_path: Path, kernel: Read) -> None:
    sink = DeltaSink(tmp_path / "t", ["day", "page"])
    outputs = [Output(key(batch, query), rows_of(batch)) for batch in range(3) for query in (S, U)]
    sink.publish_all(outputs[:4], AT)
    sink.publish_all(outputs, AT)
    rows, versions = both(tmp_path / "t", kernel, "holdfast/web-1/s[0]", "holdfast/web-1/s[1]", "holdfast/other/s[0]")
    assert len(rows) == 18
    assert versions == {"holdfast/web-1/s[0]": 2, "holdfast/web-1/s[1]": 2}


def test_gathered_outputs_and_a_driver_that_was_late(tmp_path: Path, kernel: Read) -> None:
    sinks = [GatheredDeltaSink(tmp_path / "t", 60, partition_by=["day"]) for _ in range(2)]
    for sink in sinks:
        sink.begin("web-1", AT)
        for batch in range(4):
            for query in (S, U):
                sink.publish(key(batch, query), rows_of(batch), AT)
    late, commit = sinks[0], sinks[0]._append

    def frozen(*given: Any) -> None:
        sinks[1].flush(Gathered({S: BatchId(2), U: BatchId(3)}, 0, math.inf), AT)
        commit(*given)

    late._append = frozen  # type: ignore[method-assign]
    late.flush(Gathered({S: BatchId(3), U: BatchId(3)}, 0, math.inf), AT)
    rows, versions = both(tmp_path / "t", kernel, "holdfast/web-1/s[0]", "holdfast/web-1/s[1]")
    assert len(rows) == 24
    assert versions == {"holdfast/web-1/s[0]": 3, "holdfast/web-1/s[1]": 3}
    assert rows == sorted((row for batch in range(4) for row in plain(rows_of(batch)) * 2), key=str)


def test_tentative_rows_that_final_ones_have_replaced_also_after_optimize(tmp_path: Path, kernel: Read) -> None:
    sink = DeltaSink(tmp_path / "t", tentative=True)
    for batch in range(3):
        sink.publish_tentative(key(batch), pa.table({"n": [100 + batch]}), 0.5, AT)
    DeltaTable(str(tmp_path / "t")).optimize.compact()
    sink.publish_all([Output(key(batch), pa.table({"n": [batch]})) for batch in range(2)], AT)
    rows, _ = both(tmp_path / "t", kernel)
    assert sorted((row["n"], row["tentative"]) for row in rows) == [(0, False), (1, False), (102, True)]
