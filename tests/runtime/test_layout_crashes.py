"""A driver that dies at any call of its storage while a run changes its layout: every row comes out once.

The queries, layouts and checks are those of `tools/change_the_layout.py`; drivers live in this process, and die by an
exception that nothing in Holdfast catches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from holdfast.runtime import in_process
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.storage import Storage
from holdfast_lab.changing_queries import Input
from holdfast_lab.driver_in_process import DriverInProcess
from holdfast_lab.layout_changes import PATHS, LayoutHistory, LayoutPlan
from sizes import share

DRIVERS, FILES, ROWS = 5, 3, 6


class Died(BaseException):
    """The driver is gone."""


class Fuse:
    """Lets a driver die at one of its next calls; None: it lives."""

    def __init__(self, calls: int | None) -> None:
        self._left = calls

    def burn(self) -> None:
        if self._left is not None:
            if self._left <= 0:
                raise Died  # and at every call after it
            self._left -= 1


class FusedStorage:
    """See Storage: before and after every write and delete, its driver may die."""

    def __init__(self, inner: Storage, fuse: Fuse) -> None:
        self._inner, self._fuse, self.url = inner, fuse, inner.url

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        self._fuse.burn()
        created = self._inner.create(name, data)
        self._fuse.burn()
        return created

    def read(self, name: str) -> pa.Buffer | None:
        return self._inner.read(name)

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        return self._inner.list(prefix, after=after)

    def delete(self, names: Iterable[str]) -> None:
        self._fuse.burn()
        self._inner.delete(names)
        self._fuse.burn()

    def within(self, folder: str) -> Storage:
        return FusedStorage(self._inner.within(folder), self._fuse)


def changing_run(seed: int, place: Path, patch: pytest.MonkeyPatch) -> Counter[str]:
    """Let drivers of one run die and change its layout; return what was counted, refuse what is wrong."""
    draw, given, inner = Random(seed), Input(seed, ROWS), MemoryStorage()
    plan, history = LayoutPlan(draw, PATHS[seed % len(PATHS)]), LayoutHistory(inner, given)
    layout, counts, files = plan.first(), Counter[str](), 0
    for number in range(DRIVERS):
        last, files = number == DRIVERS - 1, files + FILES
        fuse = Fuse(None if last else draw.randrange(draw.choice((20, 60, 200))))
        storage = FusedStorage(inner, fuse)
        with patch.context() as patched:
            patched.setattr(in_process, "FileStorage", lambda path, storage=storage: storage)
            try:
                driver = DriverInProcess(place / str(number), storage, given, layout, storage.within("out"))
                driver.read(files)
                if last:
                    driver.close()
            except Died:
                counts["died"] += 1
        history.see()
        layout = plan.changed(number + 1, layout)
    counts["layouts"] += history.changes
    wrong = [*history.problems([*plan.always, *plan.sometimes], files, lambda n: _rows(inner, n), counts)]
    assert not wrong, f"seed {seed}: {wrong}"
    assert not [*place.rglob("late/**/*.parquet")], "no row is late"
    return counts


def _rows(storage: Storage, name: str) -> pa.Table | None:
    return ParquetSink(storage.within(f"out/{name}")).rows()


@pytest.mark.parametrize("seed", range(share(12)))
def test_drivers_that_die_while_the_layout_changes(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = changing_run(seed, tmp_path, monkeypatch)
    assert counts["rows"] > 100
