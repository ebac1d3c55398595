"""How right tentative outputs were, by their values."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.drill.accuracy import accuracy, compare_tentative, equal_rows, fields_of
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import OutputKey

QUERY = PartitionId(OperatorId("counts"), 0)


def application() -> hf.Application:
    app = hf.Application("web")
    visits = app.source("visits", schema="ts double, page string", event_time="ts", parallelism=2)
    by_page = visits.key_by("page").window(hf.tumbling("10 seconds"))
    by_page.count(id="counts", parallelism=1).output("pages", sink=hf.parquet("out"), tentative=True)
    return app


def counts(*numbers: int) -> pa.Table:
    pages = [f"page {number}" for number in range(len(numbers))]
    return pa.table({"page": pages, "window_end": [10.0] * len(pages), "count": list(numbers)})


def test_half_of_the_counts_is_half_right_though_every_row_is_there(tmp_path: Path) -> None:
    sink, epoch = ParquetSink(tmp_path / "pages"), Epoch(1)
    sink.begin("run", epoch)
    for batch, (had, right) in enumerate([(counts(5, 10), counts(10, 20)), (counts(4, 4), counts(8, 8))]):
        sink.publish_tentative(OutputKey(QUERY, BatchId(batch)), had, 0.5, epoch)
        sink.publish(OutputKey(QUERY, BatchId(batch)), right, epoch)
    sink.publish_tentative(OutputKey(QUERY, BatchId(2)), counts(1), 0.5, epoch)  # its final version has no rows
    found = compare_tentative(str(tmp_path), application())
    assert fields_of("counts[0]", found) == {"fidelity_measured": 0.0, "accuracy": 0.5}
    assert fields_of("counts[1]", found) == {"fidelity_measured": None, "accuracy": None}


@pytest.mark.parametrize(
    ("given", "equal", "right"),
    [
        (counts(10, 20, 30), 1.0, 1.0),
        (counts(10, 20), 2 / 3, 2 / 3),
        (counts(10, 30, 15), 1 / 3, (1 + 0.5 + 0.5) / 3),
        (counts(10, 20, 90), 2 / 3, 2 / 3),
        (counts(), 0.0, 0.0),
    ],
)
def test_rows_count_where_they_are_equal_and_answers_as_much_as_their_numbers_are_right(
    given: pa.Table, equal: float, right: float
) -> None:
    final = counts(10, 20, 30)
    assert equal_rows(given, final) == pytest.approx(equal)
    assert accuracy(given, final, {"page"}) == pytest.approx(right)


def test_of_answers_without_numbers_the_share_that_is_found_counts_as_in_the_paper() -> None:
    found, final = pa.table({"incident": [1, 2, 9]}), pa.table({"incident": [1, 2, 3, 4]})
    assert accuracy(found, final, {"incident"}) == accuracy(found, final, ()) == 0.5
    assert equal_rows(found, final) == 0.5
