"""What some sinks have beside the protocol: rows, their number, and outputs that expire, whatever their class."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.coordinator.expiry import expiry_of
from holdfast.runtime.coordinator.outputs import Outputs, as_sink
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.sinks import FunctionSink, OutputKey, Sink
from holdfast.runtime.program import Program
from holdfast.storage.memory import MemoryStorage

ROWS = pa.table({"n": [1, 2]})


class Given:
    """A sink of a user's with members of its own."""

    def __init__(self) -> None:
        self.expired: list[int] = []

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        return True

    def rows(self) -> pa.Table | None:
        return ROWS

    def count(self) -> int:
        return 7

    def expire(self, through: BatchId, most: int) -> int:
        self.expired.append(through)
        return 0


def outputs_of(sink: Sink) -> Outputs:
    app = hf.Application("numbers")
    app.source("s", schema="n bigint").map(lambda rows: rows, schema="n bigint", id="c").output()
    return Outputs(Program(app), {OperatorId("c"): sink}, lambda operator, feed: as_sink(None))


def test_a_run_gives_the_rows_of_a_delta_table(tmp_path: Path) -> None:
    sink = DeltaSink(tmp_path / "t")
    outputs = outputs_of(sink)
    assert (outputs.rows("c").num_rows, outputs.count("c")) == (0, 0)
    sink.publish(OutputKey(PartitionId.parse("c[0]"), BatchId(0)), ROWS, Epoch.of(1, 1))
    assert sorted(outputs.rows("c")["n"].to_pylist()) == [1, 2]
    assert outputs.count("c") == 2


def test_a_sink_of_a_user_s_may_have_them_too() -> None:
    given = Given()
    sink = as_sink(given)
    outputs = outputs_of(sink)
    assert outputs.rows("c").equals(ROWS)
    assert outputs.count("c") == 7, "it is asked, and its rows are not read"
    times = [0.0]
    expiry = expiry_of(MemoryStorage(), [sink], aside=None, outputs=60.0, now=lambda: times[0])
    expiry.covered(BatchId(4))
    times[0] = 1000.0
    expiry.covered(BatchId(9))
    assert given.expired == [4]


def test_a_sink_that_keeps_nothing_is_named() -> None:
    outputs = outputs_of(FunctionSink(lambda rows, key: None))
    for ask in (outputs.rows, outputs.count):
        with pytest.raises(BadInput, match="'c' has no sink that keeps rows"):
            ask("c")


def test_a_sink_that_is_grouped_and_gathers_is_refused() -> None:
    """Its outputs would be taken together and never be published: the end of its run would wait for ever."""

    class Both(Given):
        grouped = gathers = True

    class BothWhole(Sink):
        grouped = gathers = True

    for given in (Both(), BothWhole()):
        with pytest.raises(BadInput, match=r"is `grouped` and `gathers`.*leave one of the two False"):
            as_sink(given)
