"""A power cut after any call to the file system loses what was not synced: an object is whole or not there, and stays.

The calls are real, in a temporary folder; what would be left of them is followed beside. Contents are safe once their
file is synced; a name, of a file or of a folder, once the folder that it is in is synced after that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage.files import FileStorage


class PowerCuts:
    """Follows what a power cut would leave below a folder, and looks at it after every call."""

    def __init__(self, top: Path, patch: pytest.MonkeyPatch) -> None:
        self._top = top
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {top.stat().st_ino: {}}
        self.look: Callable[[], object] = lambda: None
        self.calls = 0
        for call in ("fsync", "link", "unlink", "mkdir"):
            self._follow(call, patch)

    def _follow(self, name: str, patch: pytest.MonkeyPatch) -> None:
        real = getattr(os, name)

        def call(*given: Any, **named: Any) -> Any:
            try:
                return real(*given, **named)
            finally:
                if name == "fsync":
                    self._synced(Path(os.readlink(f"/proc/self/fd/{given[0]}")))
                self.calls += 1
                self.look()

        patch.setattr(os, name, call)

    def _synced(self, path: Path) -> None:
        number = path.stat().st_ino
        if path.is_dir():
            self._names[number] = {one.name: one.stat().st_ino for one in path.iterdir()}
            for one in path.iterdir():
                if one.is_dir():
                    self._names.setdefault(one.stat().st_ino, {})  # a folder, with nothing in it so far
        else:
            self._contents[number] = path.read_bytes()

    def left(self) -> dict[str, bytes]:
        """Return the objects that would be there after a power cut now; what was not synced of a file is gone."""
        found: dict[str, bytes] = {}

        def walk(number: int, place: str) -> None:
            for name, inside in self._names.get(number, {}).items():
                if inside in self._names:
                    walk(inside, f"{place}{name}/")
                elif not name.startswith("."):
                    found[f"{place}{name}"] = self._contents.get(inside, b"")

        walk(self._top.stat().st_ino, "")
        return found


@pytest.fixture
def cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PowerCuts:
    return PowerCuts(tmp_path, monkeypatch)


def test_an_object_is_whole_or_not_there_and_there_once_it_was_created(tmp_path: Path, cuts: PowerCuts) -> None:
    storage, given, created = FileStorage(tmp_path / "run"), dict[str, bytes](), set[str]()

    def look() -> None:
        left = cuts.left()
        assert all(given[name] == data for name, data in left.items()), "torn"
        assert created <= set(left), "lost"

    cuts.look = look
    for number in range(4):
        for name in (f"batches/{number:03d}", f"pieces/in/{number}-a", "progress/0"):
            given.setdefault(f"run/{name}", b"%d of %s" % (number, name.encode()))
            storage.create(name, b"%d of %s" % (number, name.encode()))
            created.add(f"run/{name}")
            look()
    assert cuts.calls > 30
    assert len(cuts.left()) == 9


def test_a_name_that_is_found_taken_is_safe_though_its_creator_died(
    tmp_path: Path, cuts: PowerCuts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who is told that a number is taken acts on it: it must not be free again after a power cut."""
    from holdfast.storage import files

    first, second = FileStorage(tmp_path / "run"), FileStorage(tmp_path / "run")
    first.create("progress/0", b"first")

    class Died(BaseException):
        pass

    def dies(folder: Path) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_folder", dies)
        with pytest.raises(Died):
            first.create("progress/1", b"of the first")
    assert "run/progress/1" not in cuts.left()
    assert not second.create("progress/1", b"of the second")
    assert cuts.left()["run/progress/1"] == b"of the first"
