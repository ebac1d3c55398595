"""A start tries the storages that sinks write to: one that does not keep what it must is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import CheckFailed
from holdfast.runtime.coordinator.outputs import as_sink, check_places
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import MemorySink
from holdfast.storage import files
from holdfast.storage.memory import MemoryStorage


class Overwriting(MemoryStorage):
    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        self.delete([name])
        return super().create(name, data)

    def within(self, folder: str) -> Overwriting:
        assert folder == "_holdfast", "readers of outputs pass over it"
        return self


class Given:
    """A sink of a user's, that has only what it needs and says where it writes."""

    def publish(self, key: object, rows: pa.Table, epoch: object) -> bool:
        return True

    def kept_in(self) -> Overwriting:
        return Overwriting()


@pytest.mark.parametrize("sink", [ParquetSink(Overwriting()), as_sink(Given())], ids=["parquet", "a user's"])
def test_a_sink_on_a_storage_that_overwrites_is_refused(sink: ParquetSink) -> None:
    with pytest.raises(CheckFailed, match="does not keep what a run needs"):
        check_places([MemorySink(), sink])


def test_each_place_is_tried_once_and_nothing_is_left_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []
    monkeypatch.setattr("holdfast.runtime.coordinator.outputs.check_storage", lambda storage: tried.append(storage.url))
    out = tmp_path / "out"
    sinks = [ParquetSink(out / "a"), ParquetSink(out / "a"), DeltaSink(out / "b"), MemorySink()]
    check_places(sinks)
    assert tried == [str(out / "a" / "_holdfast"), str(out / "b" / "_holdfast")]
    monkeypatch.undo()
    check_places(sinks)
    assert not [path for path in out.rglob("*") if path.is_file()]
    assert files.FileStorage(out / "a").list() == []
