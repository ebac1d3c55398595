"""Listing the folder of a source: when there is something to take, and when nothing more comes. No Spark."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import cast

import pytest

import holdfast as hf
from holdfast.errors import CheckFailed
from holdfast.ids import OperatorId
from holdfast.runtime.io.file_reader import FileReader
from holdfast.runtime.io.file_tracker import Notice
from holdfast.runtime.io.in_place_readers import InPlaceReader
from holdfast.runtime.io.kafka_client import BrokersAway
from holdfast.spark.file_listing import FolderWatch
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.source_files import open_source_files


def write(folder: Path, name: str) -> None:
    (folder / name).write_text("1\n")
    os.utime(folder / name, (1000, 1000))


def reader_of(folder: Path) -> FileReader:
    files = open_source_files(str(folder))
    return FileReader(OperatorId("s"), hf.files(str(folder), "csv"), 1, files, MemoryStorage(), 1)


def await_that(reached: threading.Event) -> None:
    assert reached.wait(120)


def test_files_that_come_later_are_seen(tmp_path: Path) -> None:
    reader, woke = reader_of(tmp_path), threading.Event()
    watch = FolderWatch(reader, woke=woke.set, log=lambda line: None)
    assert not watch.reading, "it was not begun"
    watch.start(available_now=False)
    try:
        assert watch.reading
        write(tmp_path, "a.csv")
        await_that(woke)
        assert reader.pending
    finally:
        watch.stop()


def test_with_available_now_what_comes_later_is_left_for_the_next_run(tmp_path: Path) -> None:
    write(tmp_path, "a.csv")
    reader = reader_of(tmp_path)
    watch = FolderWatch(reader, woke=lambda: None, log=lambda line: None)
    watch.start(available_now=True)
    try:
        write(tmp_path, "b.csv")
        watch.look()
        assert watch.reading
        taken = reader.take(1 << 20)
        assert taken is not None
        assert [one.file.path for one in taken.ranges] == [str(tmp_path / "a.csv")]
        reader.logged(taken)
        assert not watch.reading
        assert not reader.pending
    finally:
        watch.stop()


def test_a_folder_that_cannot_be_listed_is_refused_at_the_start_and_tried_again_later(tmp_path: Path) -> None:
    with pytest.raises(CheckFailed, match="source s: cannot be listed"):
        FolderWatch(reader_of(tmp_path / "none"), woke=lambda: None, log=lambda line: None).start(available_now=False)
    folder, lines = tmp_path / "in", list[str]()
    folder.mkdir()
    watch = FolderWatch(reader_of(folder), woke=lambda: None, log=lines.append)
    watch.start(available_now=False)
    try:
        folder.rmdir()
        deadline = time.monotonic() + 120
        while not lines and time.monotonic() < deadline:
            time.sleep(0.01)
        assert "cannot be listed, and is tried again" in lines[0]
        folder.mkdir()
        while len(lines) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert lines[1] == "source s: its folder can be listed again"
    finally:
        watch.stop()


class TopicWithoutBrokers:
    """A source whose brokers do not answer for a while."""

    source, what, look_seconds, pause_factor = OperatorId("s"), "its topic", 0.01, 0.0
    ended, unsettled, pending = False, False, True

    def __init__(self, failures: int) -> None:
        self._left, self.listed = failures, 0

    def look(self) -> list[Notice]:
        if self._left:
            self._left -= 1
            raise BrokersAway("topic s cannot be looked at: no answer", where="brokers b:9092")
        self.listed += 1
        return []


def watch_of(reader: TopicWithoutBrokers, woke: threading.Event, lines: list[str]) -> FolderWatch:
    return FolderWatch(cast(InPlaceReader, reader), woke=woke.set, log=lines.append)


def test_a_driver_that_goes_on_waits_for_brokers_and_one_that_begins_does_not() -> None:
    """A driver that ended in an outage of the brokers could not start again before they were back."""
    lines, woke = list[str](), threading.Event()
    with pytest.raises(BrokersAway):
        watch_of(TopicWithoutBrokers(1), woke, lines).start(available_now=False)
    with pytest.raises(BrokersAway):
        watch_of(TopicWithoutBrokers(1), woke, lines).start(available_now=True, begun=True)
    assert not lines
    watch = watch_of(TopicWithoutBrokers(2), woke, lines)
    watch.start(available_now=False, begun=True)
    try:
        assert watch.reading
        assert "cannot be listed, and is tried again" in lines[0]
        await_that(woke)
    finally:
        watch.stop()
    assert lines[1] == "source s: its topic can be listed again"
