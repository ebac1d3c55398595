"""Atomic and durable writes: the order of the steps, and what an error leaves behind."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.durable_files import replace_atomically, replace_durably, replacing_durably, write_durably


def replace_by_block(path: Path, data: bytes) -> None:
    with replacing_durably(path) as file:
        file.write(data)


WRITERS: list[Callable[[Path, bytes], object]] = [replace_durably, replace_by_block]


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the file system, in order; a sync names what it syncs."""
    done: list[str] = []

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            folder = name == "fsync" and os.path.isdir(f"/proc/self/fd/{args[0]}")
            done.append("fsync folder" if folder else name)
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "replace"):
        watched(name)
    return done


@pytest.mark.parametrize("write", WRITERS)
def test_contents_are_synced_before_the_name_and_the_folder_after(
    write: Callable[[Path, bytes], object], tmp_path: Path, steps: list[str]
) -> None:
    write(tmp_path / "file", b"new")
    assert steps == ["fsync", "replace", "fsync folder"]
    assert (tmp_path / "file").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


def test_an_atomic_write_that_need_not_be_durable_syncs_nothing(tmp_path: Path, steps: list[str]) -> None:
    replace_atomically(tmp_path / "file", b"new")
    assert steps == ["replace"]
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("write", [replace_durably, replace_by_block, replace_atomically])
def test_a_replaced_file_holds_the_new_contents(write: Callable[[Path, bytes], object], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old, and longer")
    write(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_new_file_is_never_written_over(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", [b"a", memoryview(b"b")])
    with pytest.raises(FileExistsError):
        write_durably(tmp_path / "file", [b"c"])
    assert (tmp_path / "file").read_bytes() == b"ab"


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_an_error_keeps_the_old_file_and_leaves_nothing_else(
    write: Callable[[Path, bytes], object], failing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, failing, full)
        with pytest.raises(OSError, match="No space left"):
            write(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_a_block_that_raises_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def half() -> None:
        with replacing_durably(tmp_path / "file") as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        half()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]
