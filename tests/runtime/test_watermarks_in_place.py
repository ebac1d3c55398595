"""Watermarks of sources that are read in place: no row is late because another partition is ahead, whoever restarts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa

import holdfast as hf
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.file_ranges import HowRead, RangesRead
from holdfast.runtime.io.in_place import PartitionRows
from holdfast.runtime.io.in_place_readers import InPlaceReader, in_place_readers
from holdfast.runtime.io.intake import Intake
from holdfast.runtime.program import Program
from runtime.test_files_in_place import SCHEMA, application, started, write

WORDS = OperatorId("words")
YEAR = 1767225600_000_000


def counted(running: InProcess) -> int:
    return sum(running.rows("counts")["count"].to_pylist())


def stands(running: InProcess) -> int:
    """Where the log's watermark is, in seconds of the first minute."""
    last = running.batch_log.record(running.frontier)
    assert last is not None
    return ((last.sources[WORDS].watermark or 0) - YEAR) // 1_000_000


def intake_of(running: InProcess) -> tuple[Intake, list[InPlaceReader]]:
    """Return what makes batches, one at a time, and its readers, which have looked."""
    readers = in_place_readers(running.program.sources, running._storage, running.batch_log, fresh_seconds=0)
    ahead = running._coordinator.reads.is_ahead
    intake = Intake(running.batch_log, running.program.sources, in_place=readers, marks_ahead=ahead)
    for reader in readers.values():
        reader.look()
    return intake, list(readers.values())


def two_streams(folder: Path, files: int) -> None:
    """Files for two partitions, which get them in turns: those of the first are 40 seconds behind."""
    for number in range(files):
        write(folder, number, second=number if number % 2 == 0 else 40 + number)


def one_by_one(folder: Path, counts: int = 2) -> hf.Application:
    """An application with two partitions of the source, which takes one file a batch."""
    if counts == 2:
        return application(folder, parallelism=2, maxFilesPerTrigger=1)
    app, reader = hf.Application("words"), hf.files(str(folder), "csv", maxFilesPerTrigger=1)
    source = app.source("words", reader, schema=SCHEMA, event_time="at", parallelism=2)
    source.map(lambda rows: rows, schema=SCHEMA, id="all").output("all")
    source.key_by("word").window(hf.tumbling("1 second")).count(id="counts", parallelism=counts).output("counts")
    return app


def test_while_files_are_read_the_watermark_is_that_of_the_partition_furthest_behind(tmp_path: Path) -> None:
    two_streams(tmp_path / "in", 16)
    running = InProcess(one_by_one(tmp_path / "in"))
    running.read()
    assert stands(running) == 55, "when everything is read, it is that of the furthest"
    running.close()
    assert counted(running) == 64, "no row was late"


def test_the_watermark_of_a_single_batch_comes_out_behind_it(tmp_path: Path) -> None:
    """As in Structured Streaming, which runs a batch without data. Windows stayed open, and the output was empty."""
    write(tmp_path / "in", 0, second=10)
    running = InProcess(one_by_one(tmp_path / "in"))
    running.read()
    assert stands(running) == 10
    logged = running.frontier
    running.read()
    assert running.frontier == logged, "one batch is enough"


def test_another_driver_or_layout_does_not_forget_who_was_behind(tmp_path: Path) -> None:
    for counts in (2, 3):
        folder, place = tmp_path / f"in-{counts}", tmp_path / f"run-{counts}"
        two_streams(folder, 8)
        first = started(one_by_one(folder), place)
        intake, _ = intake_of(first)
        for _ in range(3):  # the last is the first partition's: the next one is the second's alone
            intake.make_batch()
            first.run()
        first.checkpoint()
        first.checkpoint()
        second = started(one_by_one(folder, counts), place)
        second.read()
        second.close()
        assert counted(second) == 32, "no row was late"


def test_files_that_are_about_to_be_read_count(tmp_path: Path) -> None:
    """After a restart files are listed that may still be written: not everything is read yet."""
    folder, place = tmp_path / "in", tmp_path / "run"
    write(folder, 0, second=0)
    write(folder, 1, second=50)
    first = started(one_by_one(folder), place)
    intake, readers = intake_of(first)
    while any(reader.pending for reader in readers):
        intake.make_batch()
        first.run()
    now = time.time()
    for number in (2, 3):
        os.utime(write(folder, number, second=number), (now, now))
    second = started(one_by_one(folder), place)
    second.read()
    second.close()
    assert counted(second) == 16, "no row was late"


def timed(folder: Path, idle: float) -> tuple[InProcess, list[float]]:
    """A run in which partitions are idle after some seconds, and its clock."""
    clock = [time.time()]
    running = InProcess(one_by_one(folder))
    running.batch_log.idle, running.batch_log._now = idle, partial(clock.__getitem__, 0)
    return running, clock


def test_a_partition_that_has_read_everything_holds_the_watermark_back_until_it_is_idle(tmp_path: Path) -> None:
    for number in range(2):
        write(tmp_path / "in", number, second=30 * number)
    running, clock = timed(tmp_path / "in", 60.0)
    running.read()
    assert stands(running) <= 0, "that of the partition with the older file"
    assert running._coordinator.reads.marks_logged()(), "there is nothing to wait for"
    clock[0] += 61.0
    running.read()
    assert stands(running) == 30, "no rows for a minute: that of the other"


def test_a_partition_is_idle_in_time_though_the_clock_is_set_back(tmp_path: Path) -> None:
    """By NTP, or because another machine has the run: its last rows had a time in the future then."""
    for number in range(2):
        write(tmp_path / "in", number, second=30 * number)
    running, clock = timed(tmp_path / "in", 60.0)
    running.read()
    clock[0] -= 86_400.0
    running.read()
    assert stands(running) <= 0, "it is idle after a minute"
    clock[0] += 61.0
    running.read()
    assert stands(running) == 30


def test_batches_that_take_longer_than_partitions_may_be_idle_make_no_row_late(tmp_path: Path) -> None:
    two_streams(tmp_path / "in", 8)
    running, clock = timed(tmp_path / "in", 5.0)
    intake, _ = intake_of(running)
    while intake.make_batch() is not None:
        running.run()
        clock[0] += 6.0
    running.close()
    assert counted(running) == 32, "no row was late"


def test_a_range_without_a_record_says_nothing_of_its_topic_partition() -> None:
    """A marker of a transaction: the records after it may be old."""
    app = hf.Application("words")
    app.source("words", hf.files("/nowhere", "csv"), schema=SCHEMA, event_time="at").output("all")
    source = Program(app).sources[WORDS]
    at = pa.array([36_000_000_000, 7_200_000_000], pa.timestamp("us"))
    rows = pa.table({"id": [1, 2], "word": ["a", "b"], "at": at})
    how = HowRead("json", (), 1_000_000, None, by_stream=True)
    with_marker = PartitionRows(rows, (), RangesRead(2, (0, 0, 0)), (("t-0", 0), ("t-1", 1), ("t-2", 1)))
    assert with_marker.followed(source, how) == (None, RangesRead(2, (0, 0, 0), 0, 35_999_000_000))
    without = PartitionRows(rows, (), RangesRead(2, (0, 0)), (("t-1", 1), ("t-2", 1)))
    assert without.followed(source, how) == (7_200_000_000, RangesRead(2, (0, 0), 0, 35_999_000_000))


def test_the_log_is_read_by_one_thread_at_a_time(tmp_path: Path) -> None:
    """A user's thread asks for the status while the run's thread logs a batch."""
    for number in range(3):
        write(tmp_path / "in", number)
    running = started(one_by_one(tmp_path / "in"), tmp_path / "run")
    intake, _ = intake_of(running)
    intake.make_batch()
    running.run()
    intake.make_batch()  # it is logged, and not read
    reads = running._coordinator.reads
    real: Callable[[BatchId], None] = reads._take_logged
    inside, go_on = threading.Event(), threading.Event()

    def slow(number: BatchId) -> None:
        if threading.current_thread() is not threading.main_thread():
            inside.set()
            threading.Timer(0.2, go_on.set).start()
            assert go_on.wait(60)
        real(number)

    reads._take_logged = slow  # type: ignore[method-assign]
    user = threading.Thread(target=reads.is_ahead)
    user.start()
    assert inside.wait(60)
    reads._was_read(WORDS, frozenset())
    seen = dict(reads._given)
    user.join()
    assert seen == reads._given
