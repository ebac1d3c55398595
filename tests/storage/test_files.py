"""Storage in a folder: the order of the steps, what a crash or an error leaves behind, and strange folders."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.storage import files
from holdfast.storage.files import FileStorage

# Stops for good at one of the steps of `create`, and says so.
STOPPED = """
import os, sys, time
from holdfast.storage.files import FileStorage

real = os.fsync

def stop(*args, **options):
    if args[1:] or not os.path.isdir(f"/proc/self/fd/{args[0]}"):
        print("stopped", flush=True)
        time.sleep(600)
    real(*args)

setattr(os, sys.argv[2], stop)
FileStorage(sys.argv[1]).create("a/b", b"x" * 20_000_000)
"""


def everything(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def failing(error: int) -> Any:
    def fail(*args: Any, **options: Any) -> None:
        raise OSError(error, os.strerror(error))

    return fail


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What is asked of the file system, in order; syncs name what they sync."""
    done: list[str] = []

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*args: Any, **options: Any) -> Any:
            if name == "fsync":
                synced = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
                done.append(f"sync {synced.relative_to(tmp_path)}" if synced.is_dir() else "sync part")
            else:
                done.append(name)
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)

    for name in ("fsync", "link"):
        watched(name)
    return done


def test_new_folders_contents_name_and_folder_are_synced_in_this_order(tmp_path: Path, steps: list[str]) -> None:
    storage = FileStorage(tmp_path / "new" / "top")
    assert storage.create("a/b", b"x")
    assert steps == ["sync new/top", "sync new", "sync .", "sync part", "link", "sync new/top/a"]
    steps.clear()
    assert storage.create("a/c", b"x")
    assert steps == ["sync part", "link", "sync new/top/a"]


def test_a_folder_that_somebody_else_made_is_synced_too(tmp_path: Path, steps: list[str]) -> None:
    (tmp_path / "top" / "a").mkdir(parents=True)
    assert FileStorage(tmp_path / "top").within("a").create("b", b"x")
    assert steps == ["sync top", "sync .", "sync part", "link", "sync top/a"]


def test_an_object_of_somebody_else_is_durable_when_create_returns_false(tmp_path: Path, steps: list[str]) -> None:
    storage = FileStorage(tmp_path / "top")
    storage.create("x", b"first")
    steps.clear()
    assert not storage.create("x", b"second")
    assert steps[-2:] == ["link", "sync top"]


@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_writer_that_is_killed_leaves_no_object(tmp_path: Path, step: str) -> None:
    storage = FileStorage(tmp_path)
    storage.create("a/a", b"there before")
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED, str(tmp_path), step], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "stopped\n"
        writer.send_signal(signal.SIGKILL)
    assert storage.read("a/b") is None
    assert storage.list() == ["a/a"]
    assert storage.create("a/b", b"another's")
    assert [name for name in everything(tmp_path) if name.startswith("a/.b.") and name.endswith(".part")]
    assert storage.sweep_parts(0) == 1
    assert everything(tmp_path) == ["a/a", "a/b"]


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("step", ["fsync", "link"])
def test_a_full_or_broken_disk_leaves_no_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, error: int
) -> None:
    storage = FileStorage(tmp_path)
    storage.create("a/a", b"there before")
    with monkeypatch.context() as patch:
        patch.setattr(os, step, failing(error))
        with pytest.raises(OSError, match=os.strerror(error)):
            storage.create("a/b", b"x")
    assert everything(tmp_path) == ["a/a"]
    assert storage.create("a/b", b"x")


def test_a_disk_that_fills_while_the_object_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def half(path: Path, parts: list[memoryview]) -> None:
        path.write_bytes(parts[0][: len(parts[0]) // 2])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "write_durably", half)
    with pytest.raises(OSError, match="No space left"):
        FileStorage(tmp_path).create("a", b"x" * 1000)
    assert everything(tmp_path) == []


def test_an_error_after_the_link_is_raised_and_the_next_call_finds_the_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = FileStorage(tmp_path)
    storage.create("a", b"there before")
    with monkeypatch.context() as patch:
        patch.setattr(files, "sync_folder", failing(errno.EIO))
        with pytest.raises(OSError, match="Input/output"):
            storage.create("b", b"x")
    assert not storage.create("b", b"x")
    assert everything(tmp_path) == ["a", "b"]


def test_a_link_whose_answer_was_lost_is_recognised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def twice(*args: Any, **options: Any) -> None:
        real(*args, **options)
        real(*args, **options)

    monkeypatch.setattr(os, "link", twice)
    assert FileStorage(tmp_path).create("a", b"x")
    assert everything(tmp_path) == ["a"]


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FileStorage(tmp_path / "top")
    storage.create("a/b", b"x")
    shutil.rmtree(tmp_path / "top")
    assert storage.create("a/b", b"y")
    real = files.write_durably
    left = [1, 1]

    def vanish(path: Path, parts: list[memoryview]) -> None:
        if left:
            left.pop()
            shutil.rmtree(path.parent)
        real(path, parts)

    monkeypatch.setattr(files, "write_durably", vanish)
    assert storage.create("c/d", b"x")
    assert storage.list() == ["a/b", "c/d"]


def test_folders_that_vanish_during_a_list_are_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FileStorage(tmp_path)
    for name in ("a/x", "b/x", "c"):
        storage.create(name, b"")
    real = os.scandir

    def vanish(path: Path) -> Any:
        if path == tmp_path / "b":
            (tmp_path / "b").rename(tmp_path / ".gone")
        return real(path)

    monkeypatch.setattr(os, "scandir", vanish)
    assert storage.list() == ["a/x", "c"]


def test_a_list_reads_only_the_folders_of_its_prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = FileStorage(tmp_path)
    for name in ("a/b/c/x", "a/bb/x", "a/d/x", "e/x"):
        storage.create(name, b"")
    read: list[str] = []
    real = os.scandir

    def watched(path: Path) -> Any:
        read.append(str(Path(path).relative_to(tmp_path)))
        return real(path)

    monkeypatch.setattr(os, "scandir", watched)
    assert storage.list("a/b") == ["a/b/c/x", "a/bb/x"]
    assert sorted(read) == ["a", "a/b", "a/b/c", "a/bb"]


def test_files_of_others_are_not_objects(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    storage.create("a/b", b"")
    for other in (".hidden", "a/.b.0123.part", "with space", ".git/config"):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).write_bytes(b"")
    assert storage.list() == ["a/b"]
    assert storage.list("a/") == ["a/b"]


def test_an_object_cannot_be_a_folder_as_well(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    storage.create("a/b", b"")
    with pytest.raises(IsADirectoryError):
        storage.create("a", b"x")
    with pytest.raises(OSError, match="a/b"):
        storage.create("a/b/c", b"x")
    assert storage.read("a") is None
    assert storage.read("a/b/c") is None
    storage.delete(["a", "a/b/c"])
    assert storage.list() == ["a/b"]


def test_only_old_parts_are_swept(tmp_path: Path) -> None:
    storage = FileStorage(tmp_path)
    storage.create("a/b.part", b"an object")
    old, new, other = (tmp_path / "a" / name for name in (".b.0.part", ".b.1.part", ".other"))
    for path in (old, new, other):
        path.write_bytes(b"")
    for path in (old, other):
        os.utime(path, (time.time() - 90_000,) * 2)
    assert storage.sweep_parts() == 1
    assert everything(tmp_path) == ["a/.b.1.part", "a/.other", "a/b.part"]


@pytest.mark.parametrize("mapped", [True, False])
def test_an_object_is_mapped_only_where_mappings_outlive_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped: bool
) -> None:
    monkeypatch.setattr(files, "_keeps_mappings", lambda file: mapped)
    storage = FileStorage(tmp_path)
    storage.create("x", b"x" * 10_000)
    found = storage.read("x")
    assert found is not None
    assert found.to_pybytes() == b"x" * 10_000
    assert (str(tmp_path / "x") in Path("/proc/self/maps").read_text()) == mapped


def test_a_relative_folder_is_the_one_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    storage = FileStorage("top")
    monkeypatch.chdir("/")
    storage.create("a", b"")
    assert everything(tmp_path) == ["top/a"]
