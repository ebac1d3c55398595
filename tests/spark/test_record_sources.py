"""What a drill records of a source, on a stand-in for Spark's streams: bounds, idle sources, what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pyarrow as pa
import pytest

from holdfast.application import Application
from holdfast.errors import HoldfastError
from holdfast.spark import record_sources as recording
from holdfast.spark.record_sources import record_sources


class Rows:
    """The DataFrame of one micro-batch."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def limit(self, many: int) -> Rows:
        return Rows(self.table.slice(0, many))

    def toArrow(self) -> pa.Table:  # noqa: N802
        return self.table


class Stream:
    """A streaming DataFrame, its writer and its query: micro-batches there are at once, and ones that come later."""

    isStreaming = True  # noqa: N815
    sparkSession = SimpleNamespace(conf=SimpleNamespace(get=lambda name, default: "a way that was chosen"))  # noqa: N815

    def __init__(self, now: Iterable[pa.Table], later: Iterable[pa.Table] = (), problem: str | None = None) -> None:
        self._now, self._later, self._problem = list(now), list(later), problem
        self.columns = ["n", "other"]
        self.taken = 0

    def select(self, *names: str) -> Self:
        self.columns = [name.strip("`") for name in names]
        return self

    @property
    def writeStream(self) -> Self:  # noqa: N802
        self._batches, self._available_now = [*self._now, *self._later], False
        return self

    def option(self, name: str, value: str) -> Self:
        return self

    def foreachBatch(self, function: Callable[[Any, int], object]) -> Self:  # noqa: N802
        self._function = function
        return self

    def trigger(self, *, availableNow: bool) -> Self:  # noqa: N803
        self._batches, self._available_now = list(self._now), availableNow
        return self

    def start(self) -> Self:
        return self

    @property
    def isActive(self) -> bool:  # noqa: N802
        if self._batches:
            self._function(Rows(self._batches.pop(0).select(self.columns)), 0)
            self.taken += 1
            return True
        return not self._available_now and self._problem is None

    def exception(self) -> str | None:
        return self._problem

    def stop(self) -> None:
        self._batches = []


def table(first: int, last: int) -> pa.Table:
    return pa.table({"n": list(range(first, last)), "other": [""] * (last - first)})


def application(stream: object) -> Application:
    app = Application("a")
    app.source("s", lambda spark: stream, schema={"n": "int32"}).output()
    return app


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "_LOOK_AGAIN", 0.0)
    monkeypatch.setattr(recording, "IDLE_SECONDS", 0.3)


def recorded(stream: object, limit: int, tmp_path: Path) -> pa.Table:
    return record_sources(application(stream), object(), tmp_path, limit)["s"]  # type: ignore[arg-type]


def test_all_there_is_in_the_declared_columns(tmp_path: Path) -> None:
    found = recorded(Stream([table(0, 5), table(5, 9)]), 100, tmp_path)
    assert found.schema == pa.schema([("n", pa.int32())])
    assert found["n"].to_pylist() == list(range(9))


def test_reading_ends_with_enough_rows(tmp_path: Path) -> None:
    stream = Stream([table(0, 5), table(5, 10), table(10, 15)])
    assert recorded(stream, 7, tmp_path)["n"].to_pylist() == list(range(7))
    assert stream.taken == 2


def test_a_source_with_nothing_at_once_is_read_on(tmp_path: Path) -> None:
    assert recorded(Stream([], [table(0, 4), table(4, 8)]), 6, tmp_path)["n"].to_pylist() == list(range(6))
    assert recorded(Stream([]), 6, tmp_path).num_rows == 0


@pytest.mark.parametrize(
    ("stream", "said"),
    [
        (object(), "s.reader: is not a streaming DataFrame"),
        (Stream([], problem="no such topic\nat x.y.z"), "source s: reading it failed: no such topic"),
    ],
)
def test_what_is_refused(stream: object, said: str, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError) as caught:
        recorded(stream, 5, tmp_path)
    assert said in str(caught.value)


def test_a_reader_that_fails_and_one_that_is_missing(tmp_path: Path) -> None:
    app = Application("a")
    app.source("s", lambda spark: spark.nothing, schema={"n": "int32"}).output()
    with pytest.raises(HoldfastError, match=r"s\.reader: its reader failed: 'object' object has no"):
        record_sources(app, object(), tmp_path, 5)  # type: ignore[arg-type]
    bare = Application("b")
    bare.source("s", schema={"n": "int32"}).output()
    with pytest.raises(HoldfastError, match=r"s\.reader: has no streaming DataFrame"):
        record_sources(bare, object(), tmp_path, 5)  # type: ignore[arg-type]
