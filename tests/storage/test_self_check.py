"""The check at every start: it passes every real storage and refuses those that break one promise."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.errors import CheckFailed
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.self_check import check_storage
from holdfast.storage.storage import Storage

Data = bytes | memoryview | pa.Buffer


class Overwriting(MemoryStorage):
    def create(self, name: str, data: Data) -> bool:
        self.delete([name])
        return super().create(name, data)


class OverwritingQuietly(MemoryStorage):
    """Returns what it should and keeps the last contents."""

    def create(self, name: str, data: Data) -> bool:
        created = super().create(name, data)
        if not created:
            self.delete([name])
            super().create(name, data)
        return created


class CheckingFirst(MemoryStorage):
    """Looks whether the name is free, and then writes; calls that overlap look before one has written."""

    def __init__(self) -> None:
        super().__init__()
        self._both_looked = threading.Barrier(2)

    def create(self, name: str, data: Data) -> bool:
        if self.list(name):
            return False
        self._both_looked.wait(30)
        super().create(name, data)
        return True


class Torn(MemoryStorage):
    def create(self, name: str, data: Data) -> bool:
        return super().create(name, bytes(memoryview(data)[:100]))


class Refusing(MemoryStorage):
    def create(self, name: str, data: Data) -> bool:
        return False


class StaleList(MemoryStorage):
    """Shows what was there one list ago."""

    def __init__(self) -> None:
        super().__init__()
        self._shown: list[str] = []

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        shown, self._shown = self._shown, super().list()
        return [name for name in shown if name.startswith(prefix) and name > after]


class ListWithoutAfter(MemoryStorage):
    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        return super().list(prefix)


class Unsorted(MemoryStorage):
    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        return super().list(prefix, after=after)[::-1]


class LateRead(MemoryStorage):
    """The first read of an object does not see it."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def read(self, name: str) -> pa.Buffer | None:
        late = name not in self._seen
        self._seen.add(name)
        return None if late else super().read(name)


class StaleRead(MemoryStorage):
    """Returns what it returned before, also when that is gone."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[str, pa.Buffer | None] = {}

    def read(self, name: str) -> pa.Buffer | None:
        return self._kept.setdefault(name, super().read(name))


class KeepingDeleted(MemoryStorage):
    def delete(self, names: object) -> None:
        pass


class Counting(MemoryStorage):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __getattribute__(self, name: str) -> object:
        if name in ("create", "read", "list", "delete"):
            self.calls += 1
        return super().__getattribute__(name)


def test_every_storage_passes_and_is_left_as_it_was(storage: Storage) -> None:
    storage.create("of-the-run", b"x")
    check_storage(storage)
    assert storage.list() == ["of-the-run"]
    check_storage(storage.within("folder"))
    assert storage.list() == ["of-the-run"]


@pytest.mark.parametrize(
    ("broken", "violation"),
    [
        (Overwriting, "created the same object"),
        (OverwritingQuietly, "did not keep its first contents"),
        (CheckingFirst, "created the same object"),
        (Torn, "did not keep its first contents"),
        (Refusing, "could not be read right after"),
        (StaleList, "did not show exactly"),
        (ListWithoutAfter, "after a name"),
        (Unsorted, "did not show exactly"),
        (LateRead, "could not be read right after"),
        (StaleRead, "read after it was deleted"),
        (KeepingDeleted, "read after it was deleted"),
    ],
)
def test_a_storage_that_breaks_a_promise_is_refused(broken: type[MemoryStorage], violation: str) -> None:
    storage = broken()
    with pytest.raises(CheckFailed, match=violation) as raised:
        check_storage(storage)
    assert str(raised.value).startswith(f"{storage.url}: ")
    assert "docs/operate/storage.md" in str(raised.value)
    if broken is not KeepingDeleted:
        assert MemoryStorage.list(storage) == []


def test_it_costs_few_calls() -> None:
    storage = Counting()
    check_storage(storage)
    assert storage.calls <= 14


def test_a_storage_that_is_out_of_reach_is_an_os_error() -> None:
    class Unreachable(MemoryStorage):
        def create(self, name: str, data: Data) -> bool:
            raise OSError("no route to the storage")

    with pytest.raises(OSError, match="no route"):
        check_storage(Unreachable())


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """It was a PermissionError, which the command took for a place without room."""

    def refuses(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuses)
    with pytest.raises(CheckFailed, match=r"has no hard links.*; choose a folder on a local disk") as caught:
        check_storage(FileStorage(tmp_path / "run"))
    assert str(tmp_path / "run" / "self-check") in str(caught.value)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()], "nothing is left behind"


def test_another_error_of_a_link_stays_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        check_storage(FileStorage(tmp_path / "run"))
