"""Sources that read files in place, in one process: exactly once through restarts, failures and changes of layout."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.application.readers import Files
from holdfast.application.steps import Source
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.feeding import feed_until_end
from holdfast.runtime.in_process import InProcess, run_in_process
from holdfast.runtime.io import file_reader, file_retention
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.file_columns import with_file_columns
from holdfast.runtime.io.file_copies import CopiedFile, copy_range, encode_copy
from holdfast.runtime.io.file_ranges import FileRange, HowRead
from holdfast.runtime.io.file_reader import FileReader, folder_of
from holdfast.runtime.io.in_place import read_checked
from holdfast.runtime.io.in_place_readers import InPlaceReader, in_place_readers
from holdfast.runtime.io.intake import Intake
from holdfast.runtime.program import Program, SourceProgram
from holdfast.runtime.times import NOT_YET
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.source_files import SourceFile, open_source_files

SCHEMA = "id long, word string, at timestamp"


def write(folder: Path, number: int, *, rows: int = 4, format_: str = "csv", second: int | None = None) -> Path:
    """Write a file whose rows have the ids from 100 times its number on; its modification time is its number."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:03d}.{format_}"
    at = f"2026-01-01T00:00:{number if second is None else second:02d}"
    found = [{"id": 100 * number + n, "word": "ab"[n % 2], "at": at} for n in range(rows)]
    if format_ == "csv":
        path.write_text("".join(f"{one['id']},{one['word']},{one['at']}\n" for one in found))
    elif format_ == "json":
        path.write_text("\n".join(map(json.dumps, found)))
    else:
        table = pa.Table.from_pylist(found)
        pq.write_table(table.set_column(2, "at", table["at"].cast(pa.timestamp("us"))), path)
    os.utime(path, (1000 + number, 1000 + number))
    return path


def ids(numbers: Iterable[int], rows: int = 4) -> list[int]:
    return [100 * number + n for number in numbers for n in range(rows)]


def application(
    folder: Path, *, parallelism: int = 1, key: str | None = None, format_: str = "csv", **options: object
) -> hf.Application:
    app = hf.Application("words")
    source = app.source(
        "words",
        hf.files(str(folder), format_, **options),
        schema=SCHEMA,
        event_time="at",
        parallelism=parallelism,
        key=key,
    )
    source.map(lambda rows: rows, schema=SCHEMA, id="all").output("all")
    source.key_by("word").window(hf.tumbling("1 second")).count(id="counts", parallelism=2).output("counts")
    return app


def found_ids(running: InProcess) -> list[int]:
    return sorted(running.rows("all")["id"].to_pylist())


def started(app: hf.Application, place: Path) -> InProcess:
    """Start a run in a directory, with outputs that outlive it."""
    sinks = {name: place / "out" / name for name in ("all", "counts")}
    return InProcess(app, directory=place, checkpoint_every=2, sinks=sinks)


@pytest.mark.parametrize("format_", ["csv", "json", "parquet"])
def test_files_of_each_format_are_read_once(tmp_path: Path, format_: str) -> None:
    for number in range(3):
        write(tmp_path / "in", number, format_=format_)
    running = run_in_process(application(tmp_path / "in", format_=format_), close=False)
    assert found_ids(running) == ids(range(3))
    assert sum(running.rows("counts")["count"].to_pylist()) == 8, "the last second's window is open"
    write(tmp_path / "in", 3, format_=format_)
    running.read()
    running.close()
    assert found_ids(running) == ids(range(4))
    assert sum(running.rows("counts")["count"].to_pylist()) == 16


def test_columns_come_from_parquet_files_nested_ones_too(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    counts = pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64()))
    table = pa.table({"id": [1, 2], "tags": [["a"], []], "where": [{"x": 1.5, "y": "z"}, None], "counts": counts})
    pq.write_table(table, tmp_path / "in" / "a.parquet")
    app = hf.Application("nested")
    app.source("rows", hf.files(str(tmp_path / "in"), settle=0)).output("all")
    running = run_in_process(with_file_columns(app))
    assert running.rows("all").to_pylist() == table.to_pylist()


def test_a_run_goes_on_after_the_files_that_it_has_read(tmp_path: Path) -> None:
    folder, place = tmp_path / "in", tmp_path / "run"
    for number in range(3):
        write(folder, number)
    first = started(application(folder, maxFilesPerTrigger=1), place)
    first.read()
    write(folder, 3)
    again = started(application(folder), place)
    again.read()
    again.close()
    assert found_ids(again) == ids(range(4))
    assert again.frontier == BatchId(4)


def test_files_out_of_order_twice_and_half_written_are_read_once(tmp_path: Path) -> None:
    folder, place = tmp_path / "in", tmp_path / "run"
    app = application(folder, parallelism=2, settle=60)
    running, step = _stepped(app, place)
    write(folder, 5)
    step()
    write(folder, 3)  # older than what was read
    (folder / "007.csv.tmp").write_text("700,a,2026-01-01T00:00:07\n")
    half = folder / "009.csv"
    half.write_text("900,a,2026-01-01T00:00:09\n901,b,2026-01-")
    step(lambda: half.write_text(half.read_text() + "01"))
    assert found_ids(running) == ids([3, 5]), "whoever writes the others is still at it"
    write(folder, 5)  # the same once more, and then with other rows
    step(lambda: half.write_text(half.read_text() + "T"))
    write(folder, 5, rows=9)
    step(lambda: half.write_text(half.read_text() + "00"))
    assert found_ids(running) == ids([3, 5])
    running, step = _stepped(app, place)  # a driver that knows what it finds in the log
    write(folder, 9, rows=2)
    (folder / "007.csv.tmp").unlink()
    write(folder, 7)
    write(folder, 1)
    step()
    step()
    running.fail("words[0]", "words[1]", "all[0]")
    write(folder, 5)  # as it was when it was logged
    running.recover()
    running.close()
    assert found_ids(running) == sorted([*ids([1, 3, 5, 7]), *ids([9], rows=2)])


def _nothing() -> None:
    pass


def _stepped(app: hf.Application, place: Path) -> tuple[InProcess, Callable[..., None]]:
    """Start a run, and return what looks at its folder twice, a minute apart, and processes what can be taken."""
    running, clock = started(app, place), [0.0]
    readers = in_place_readers(running.program.sources, running._storage, running.batch_log)
    intake = Intake(running.batch_log, running.program.sources, in_place=readers)

    def step(meanwhile: Callable[[], object] = _nothing) -> None:
        for reader in readers.values():
            assert isinstance(reader, FileReader)
            reader._clock = partial(clock.__getitem__, 0)
            reader.look()
            meanwhile()
            clock[0] += 60.0
            reader.look()
        while intake.make_batch() is not None:
            running.run()

    return running, step


def test_lost_partitions_read_the_same_ranges_again(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    for number in range(4):
        write(folder, number)
    running = InProcess(application(folder, parallelism=2, maxFilesPerTrigger=1), nodes=2)
    running.read()
    running.fail("words[0]", "words[1]", "counts[0]", "all[1]")
    running.recover()
    running.close()
    assert found_ids(running) == ids(range(4))
    assert Counter(running.rows("counts")["count"].to_pylist()) == {2: 8}


def test_a_file_that_has_grown_gives_the_bytes_that_were_logged(tmp_path: Path) -> None:
    path = write(tmp_path / "in", 1)
    running = InProcess(application(tmp_path / "in"))
    running.read()
    path.write_text(path.read_text() + "9,a,2026-01-01T00:00:00\n")
    running.fail("words[0]", "all[0]")
    running.recover()
    running.read()
    assert found_ids(running) == ids([1])


@pytest.mark.parametrize("change", ["silently", "cut off", "gone"])
def test_a_file_that_changed_is_an_error_that_names_it(tmp_path: Path, change: str) -> None:
    folder = tmp_path / "in"
    path = write(folder, 1)
    running = InProcess(application(folder))
    running.read()
    stat = path.stat()
    before = running.rows("all")
    if change == "gone":
        path.unlink()
    else:
        path.write_text("7" + path.read_text()[1:] if change == "silently" else path.read_text()[:30])
    if change == "silently":
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    running.fail("words[0]", "all[0]")
    with pytest.raises(HoldfastError, match=r"001\.csv.*bytes 0 to \d+.*(lost|bytes)"):
        running.recover()
    assert running.rows("all").equals(before), "nothing is published from it"
    write(folder, 1)
    running.run()
    assert found_ids(running) == ids([1]), "brought back, with another modification time or the same"


def test_checksums_are_in_the_log_for_the_next_driver(tmp_path: Path) -> None:
    folder, place = tmp_path / "in", tmp_path / "run"
    path = write(folder, 0)
    first = InProcess(application(folder), directory=place, checkpoint_every=1000)
    first.read()
    write(folder, 1)
    first.read()
    path.write_text("7" + path.read_text()[1:])
    os.utime(path, (1000, 1000))
    for node in place.glob("node-*"):
        shutil.rmtree(node)
    with pytest.raises(HoldfastError, match=r"000\.csv.*has other bytes than when it was first read"):
        InProcess(application(folder), directory=place)


def test_a_partition_without_files_does_not_hold_the_watermark_back(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "in", number)
    running = InProcess(application(tmp_path / "in", parallelism=3))
    running.read()
    assert sum(running.rows("counts")["count"].to_pylist()) == 8, "windows before the last second are closed"
    last = running.batch_log.record(running.frontier)
    assert last is not None
    assert last.sources[OperatorId("words")].watermark == 1767225602_000_000
    running.read()
    assert running.frontier == last.batch, "nothing new, no batch"


def test_a_row_far_in_the_future_does_not_move_the_watermark_of_files(tmp_path: Path) -> None:
    """The bound is in the batch's record: nodes have no clock and no setting of it."""
    folder, words = tmp_path / "in", OperatorId("words")
    write(folder, 1)
    with (folder / "001.csv").open("a") as file:
        file.write("199,z,2099-01-01T00:00:00\n")
    os.utime(folder / "001.csv", (1001, 1001))
    running = InProcess(application(folder), directory=tmp_path / "run", checkpoint_every=1000)
    running.batch_log.ahead = 3600.0
    running.read()
    reader = BatchLog(running.program.sources, "words", running.batch_log._storage)
    assert reader.block(words, BatchId(0), 0, running.epoch).header.watermark == 1767225601_000_000
    assert reader.reads_of(PartitionId(words, 0), BatchId(-1), BatchId(0))[BatchId(0)].ahead == 1
    write(folder, 2)
    running.read()
    assert found_ids(running) == sorted([*ids([1, 2]), 199])
    assert sum(running.rows("counts")["count"].to_pylist()) == 4, (
        "the second of the first file is closed, not the other"
    )
    assert running._coordinator._future.rows == {words: 1}


def test_a_keyed_source_brings_rows_to_the_partitions_of_their_keys(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / "in", number)
    app = application(tmp_path / "in", parallelism=2, key="word", maxFilesPerTrigger=1)
    assert "words-by-key" in app.steps
    running = run_in_process(app)
    assert found_ids(running) == ids(range(3))
    assert sum(running.rows("counts")["count"].to_pylist()) == 12


def test_records_that_do_not_parse_are_aside_and_the_stream_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    write(folder, 0).write_text("1,a,2026-01-01T00:00:00\nx,b,2026-01-01T00:00:00\n2,b,2026-01-01T00:00:01\n")
    seen: list[Observation] = []
    running = InProcess(application(folder, settle=0), emit=seen.append)
    running.read()
    running.close()
    assert found_ids(running) == [1, 2]
    (told,) = [one.fields for one in seen if one.kind == "unread-records"]
    assert told == {"source": "words", "batch": 0, "rows": 1, "error": "column 'id': 'x' is not int64"}
    aside = running.dead_letters("words")
    assert aside is not None
    (row,) = aside.to_pylist()
    assert (row["operator"], row["position"], row["row"]) == ("words", 1, "x,b,2026-01-01T00:00:00")
    assert row["error"] == "column 'id': 'x' is not int64"
    assert row["input"].startswith("bytes 0 to 72 of ")


def test_an_older_layout_s_files_stay_read_when_parallelism_changes(tmp_path: Path) -> None:
    folder, place = tmp_path / "in", tmp_path / "run"
    for number in range(3):
        write(folder, number)
    first = started(application(folder), place)
    first.read()
    first.checkpoint()
    write(folder, 3)
    again = started(application(folder, parallelism=3), place)
    again.read()
    again.close()
    assert found_ids(again) == ids(range(4))


def test_a_batch_is_replayed_as_it_was_logged_with_other_options(tmp_path: Path) -> None:
    """Header and lateness are those of the batch's record."""
    folder, place = tmp_path / "in", tmp_path / "run"
    for number in range(2):
        write(folder, number)
    first = InProcess(application(folder), directory=place, checkpoint_every=1000)
    first.read()
    changed = application(folder, header=True)
    log = BatchLog(InProcess(changed).program.sources, "words", first.batch_log._storage)
    block = log.block(OperatorId("words"), BatchId(0), 0, first.epoch)
    assert block.row_count == 8
    assert block.header.watermark == 1767225601_000_000
    record = log.record(BatchId(0))
    assert record is not None
    assert record.sources[OperatorId("words")].watermark == NOT_YET, "nobody had read it"


def test_a_source_whose_partitions_must_get_their_keys_is_not_read_in_place(tmp_path: Path) -> None:
    """A reader that takes the place of another in an application whose source has a key: there is no exchange."""
    app = hf.Application("keyed")
    app.source("words", schema=SCHEMA, key="word", parallelism=2).output("all")
    step = app.steps[OperatorId("words")]
    assert isinstance(step, Source)
    app.steps[OperatorId("words")] = replace(step, reader=hf.files(str(tmp_path)))
    assert Program(app).sources[OperatorId("words")].reader is None
    assert not replace(hf.files(str(tmp_path)), by_spark=True).in_place


# -- files that are deleted --------------------------------------------------------------------------------------------


def test_a_run_that_reads_what_is_there_reads_on_after_a_batch_of_the_driver_before(tmp_path: Path) -> None:
    folder, storage = tmp_path / "in", MemoryStorage()
    for number in range(3):
        write(folder, number)
    program = Program(application(folder, maxFilesPerTrigger=1))
    name = OperatorId("words")

    def driver(claim: int) -> tuple[BatchLog, InPlaceReader, Intake]:
        log = BatchLog(program.sources, "words", storage, claim=claim)
        readers = in_place_readers(program.sources, storage, log)
        intake = Intake(log, program.sources, in_place=readers)
        readers[name].look()
        return log, readers[name], intake

    _, _, late = driver(1)
    log, reader, intake = driver(2)
    reader.fix_end()  # as with --available-now
    taken = reader.taken_now()
    assert late.make_batch() == 0, "the driver before was frozen as it logged its batch"

    class Feed:
        pending = property(lambda self: intake.pending)
        reading = property(lambda self: not reader.ended)

        def log_batches(self) -> bool:
            return intake.make_batch() is not None

    turns, taken_at = list[bool](), list[BatchId]()

    def turned(worked: bool) -> None:
        turns.append(worked)
        if not taken_at and taken():
            taken_at.append(log.frontier)
        if len(turns) % 3 == 0:
            reader.look()  # as its thread does: a listing takes longer than a turn

    feed_until_end(Feed(), lambda: False, rest=lambda: None, stopped=lambda: False, turned=turned)
    read = [
        Path(one.file.path).name
        for number in range(log.frontier + 1)
        if (record := log.record(BatchId(number))) is not None
        for one in record.sources[name].ranges
        if isinstance(one, FileRange)
    ]
    assert read == ["000.csv", "001.csv", "002.csv"], "where the run is closed now, the others would never be read"
    assert taken_at == [2], "processAllAvailable waits for them, too"


def test_a_start_goes_on_after_a_batch_with_which_the_driver_before_put_lists_of_files_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reader, "MOST_BUNDLES", 1)
    folder, storage = tmp_path / "in", MemoryStorage()
    for number in range(3):
        write(folder, number)
    program = Program(application(folder, maxFilesPerTrigger=1))
    (source,) = program.sources.values()
    assert isinstance(source.reader, Files)

    def driver(log: BatchLog) -> tuple[FileReader, Intake]:
        assert isinstance(source.reader, Files)
        reader = FileReader(source.id, source.reader, 1, folder_of(source), storage, log.claim, inline=0)
        intake = Intake(log, [source.id], in_place={source.id: reader})
        reader.look()
        return reader, intake

    _, late = driver(BatchLog(program.sources, "words", storage, claim=1))
    assert late.make_batch() == 0
    log = BatchLog(program.sources, "words", storage, claim=2)
    assert late.make_batch() == 1, "and the list of files that batch 0 names is deleted"
    _, intake = driver(log)
    assert log.frontier == 1
    assert intake.make_batch() == 2
    record = log.record(BatchId(2))
    assert record is not None
    assert [str(one) for one in record.sources[source.id].ranges if "002.csv" in str(one)], "each file once"


def aged(path: Path, seconds: float) -> Path:
    """Let a file be so old."""
    at = time.time() - seconds
    os.utime(path, (at, at))
    return path


@pytest.mark.parametrize("format_", ["csv", "json", "parquet"])
def test_ranges_of_files_that_will_be_deleted_are_copied_and_read_from_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_: str
) -> None:
    monkeypatch.setattr(file_retention, "LOOK_SECONDS", 0.0)
    folder = tmp_path / "in"
    old = aged(write(folder, 1, rows=40, format_=format_), 3000)
    young = aged(write(folder, 2, rows=40, format_=format_), 100)
    app = application(folder, parallelism=2, format_=format_, retention="1 hour", maxBytesPerTrigger=400)
    running = InProcess(app, nodes=2, checkpoint_every=1000)
    running.read()
    running.read()  # the next look finds what was logged
    copied = running._storage.list("copies/")
    assert copied, "three quarters of the hour are over"
    ranges = [
        (number, one.file.path)
        for number in range(running.frontier + 1)
        if (record := running.batch_log.record(BatchId(number))) is not None
        for one in record.sources[OperatorId("words")].ranges
        if isinstance(one, FileRange)
    ]
    assert len(copied) == sum(path == str(old) for _, path in ranges), "each range of the old file, none of the other"
    old.unlink()
    running.fail("words[0]", "words[1]", "counts[0]", "all[0]", "all[1]")
    running.recover()
    assert found_ids(running) == ids([1, 2], rows=40)
    young.unlink()
    running.fail("words[0]", "words[1]", "counts[0]", "all[0]", "all[1]")
    with pytest.raises(HoldfastError, match=r"002\.\w+.*is not there any more.*are lost to its batch"):
        running.recover()


def test_ranges_are_copied_in_time_though_the_clock_is_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files went while the driver's clock had not come to three quarters of their time; a recovery then failed."""
    folder, now, wall = tmp_path / "in", [0.0], [0.0]
    path = aged(write(folder, 1), 100)
    running = InProcess(application(folder, retention="1 hour"), checkpoint_every=1000)
    reader = in_place_readers(running.program.sources, running._storage, running.batch_log)[OperatorId("words")]
    assert isinstance(reader, FileReader)
    assert reader._watch is not None
    reader._watch._clock, reader._watch._wall = partial(now.__getitem__, 0), partial(wall.__getitem__, 0)
    wall[0] = time.time()
    intake = Intake(running.batch_log, running.program.sources, in_place={OperatorId("words"): reader})
    reader.look()
    intake.make_batch()
    running.run()
    wall[0] -= 86_400
    for seconds, copies in ((2000, 0), (3000, 1)):
        now[0] = seconds
        reader.look()
        assert len(running._storage.list("copies/")) == copies
    path.unlink()
    running.fail("words[0]", "counts[0]", "all[0]")
    running.recover()
    assert found_ids(running) == ids([1])


def test_copies_go_when_no_recovery_needs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_retention, "LOOK_SECONDS", 0.0)
    folder = tmp_path / "in"
    running = InProcess(application(folder, retention=0, settle=0), checkpoint_every=1000)
    for number in range(6):
        write(folder, number)
        running.read()
    assert len(running._storage.list("copies/")) == 5, "of the last file with the next look"
    running.checkpoint()
    write(folder, 6)
    running.read()
    running.checkpoint()
    assert len(running._storage.list("copies/")) <= 1, "two checkpoints cover the others"


def test_a_needed_file_that_is_gone_is_reported_before_a_recovery_meets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_retention, "LOOK_SECONDS", 0.0)
    path, other = write(tmp_path / "in", 1), write(tmp_path / "in", 2)
    app = application(tmp_path / "in")
    program = Program(app)
    source, log = program.sources[OperatorId("words")], BatchLog(program.sources, "words", MemoryStorage())
    reader = in_place_readers({source.id: source}, MemoryStorage(), log)[source.id]
    intake = Intake(log, [source.id], in_place={source.id: reader})
    lines: list[str] = []

    def look() -> list[str]:
        lines[:] = [one.line for one in reader.look()]
        return lines

    reader.begin({})
    look()
    assert intake.make_batch() is not None
    assert look() == [], "both are there"
    path.unlink()
    assert len(look()) == 1
    assert lines[0].startswith(f"{path} is gone, and batch 0 may be read again: a recovery that reads it fails.")
    assert look() == [], "once"
    write(tmp_path / "in", 1)
    assert look() == []
    path.unlink()
    assert len(look()) == 1, "it came back, and went again"
    other.write_text("other bytes")
    assert not any("002" in line and "gone" in line for line in look())


def test_a_file_that_has_changed_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_retention, "LOOK_SECONDS", 0.0)
    path = write(tmp_path / "in", 1)
    running = InProcess(application(tmp_path / "in", retention="1 hour"), checkpoint_every=1000)
    monkeypatch.setattr(file_retention, "goes_soon", lambda *about: False)
    running.read()
    write(tmp_path / "in", 2)
    running.read()  # the checksum of the first file's range is in the log now
    path.write_text("7" + path.read_text()[1:])
    monkeypatch.setattr(file_retention, "goes_soon", lambda *about: True)
    running.read()
    assert running._storage.list("copies/") == ["copies/words/0000000001-00000-00000"]


@pytest.mark.parametrize("problem", ["changed", "unreadable"])
def test_a_file_that_cannot_be_copied_does_not_keep_others_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: str
) -> None:
    """The oldest are copied first: one that stays as it is was the first of every look, and the others went."""
    monkeypatch.setattr(file_retention, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(file_retention, "MOST_AT_ONCE", 1)
    old, young = write(tmp_path / "in", 1), write(tmp_path / "in", 2)
    running = InProcess(application(tmp_path / "in", retention="1 hour"), checkpoint_every=1000)
    monkeypatch.setattr(file_retention, "goes_soon", lambda *about: False)
    running.read()
    monkeypatch.setattr(file_retention, "goes_soon", lambda *about: True)
    right, tried = file_retention.copy_range, list[str]()

    def copy(source: SourceProgram, one: FileRange, *about: Any) -> pa.Buffer:
        tried.append(one.file.path)
        if problem == "unreadable" and one.file.path == str(old):
            raise PermissionError(13, "may not be read", one.file.path)
        return right(source, one, *about)

    monkeypatch.setattr(file_retention, "copy_range", copy)
    if problem == "changed":
        old.write_text("7,z,2026-01-01T00:00:01\n" * 4)
    for _ in range(3):
        running.read()
    assert len(running._storage.list("copies/")) == 1
    assert tried[:2] == [str(old), str(young)], "and it is tried again after them"
    assert tried[2:] == [str(old)] * len(tried[2:])


def test_a_copy_of_a_file_that_was_cut_gives_the_ranges_that_it_still_has(tmp_path: Path) -> None:
    """A range reads on behind its end, for the end of its last line: in the file that was cut it found less."""
    path = write(tmp_path / "in", 1, rows=5)
    whole = path.read_bytes()
    app, files = Program(application(tmp_path / "in")), open_source_files("/")
    source, how = app.sources[OperatorId("words")], HowRead("csv", (), 0)
    one = FileRange(0, files.open(str(path)).seen, 0, 10)
    first = read_checked(source, one, how, None, files.open(str(path)))
    path.write_bytes(whole[: len(whole) - 30])
    data = copy_range(source, one, how, first.check, lambda place: files)
    path.unlink()
    again = read_checked(source, one, how, first.check, CopiedFile(data, one.file))
    assert again.rows.equals(first.rows)
    assert first.rows.num_rows == 1
    with pytest.raises(HoldfastError, match="the copy in the run's log has not bytes"):
        read_checked(
            source, replace(one, start=whole.index(b"104"), end=len(whole)), how, None, CopiedFile(data, one.file)
        )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), min_size=1, max_size=8), st.integers(0, 60))
def test_a_copy_gives_every_byte_that_was_read(reads: list[tuple[int, int]], size: int) -> None:
    whole = bytes(random.Random(size).randrange(256) for _ in range(size))
    parts = [(start, pa.py_buffer(whole[start : start + count])) for start, count in reads]
    copied = CopiedFile(encode_copy(parts), SourceFile("p", size, 1))
    for start, count in reads:
        assert copied.read(start, count).to_pybytes() == whole[start : start + count]
    data = bytearray(encode_copy([(0, pa.py_buffer(b"abc"))]).to_pybytes())
    data[-1] ^= 1
    with pytest.raises(HoldfastError, match="the copy of it in the run's log is damaged"):
        CopiedFile(pa.py_buffer(bytes(data)), SourceFile("p", 3, 1))
