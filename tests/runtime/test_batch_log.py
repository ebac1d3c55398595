"""The batch log and the intake: each row once, whoever is late."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, SegmentId
from holdfast.runtime.coordinator.future_rows import FutureRows
from holdfast.runtime.io.batch_log import RECORDS_KEPT, BatchLog
from holdfast.runtime.io.batch_records import FORMAT, Arrived, BatchRecord
from holdfast.runtime.io.intake import Intake, MicroBatch, ReaderOver
from holdfast.runtime.io.logged_marks import ALL_PARTITIONS, LoggedMark, LoggedMarks
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch
from holdfast.runtime.state.versions import NO_BATCH
from holdfast.runtime.times import END_OF_TIME, NOT_YET
from holdfast.storage.files import FileStorage
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.records import Records
from holdfast.storage.storage import Storage

S, T = OperatorId("s"), OperatorId("t")


def program(**options: object) -> Program:
    app = Application("x")
    schema = {"n": "int64", "at": "double"}
    app.source("s", schema=schema, event_time="at", lateness=1.0, parallelism=2, **options)  # type: ignore[arg-type]
    app.source("t", schema=schema, event_time="at")
    return Program(app)


def log(storage: Storage, claim: int = 1) -> BatchLog:
    return BatchLog(program().sources, "x", storage, claim=claim)


def rows(*at: float | None) -> pa.Table:
    return pa.table({"n": list(range(len(at))), "at": pa.array(at, pa.float64())})


def numbers(log: BatchLog, batch: int, source: OperatorId = S) -> list[list[int]]:
    blocks = log.blocks(source, BatchId(batch), Epoch(3))
    assert {block.header.epoch for block in blocks} == {3}
    return [[] if block.rows is None else block.rows["n"].to_pylist() for block in blocks]


def watermark(log: BatchLog, batch: int, source: OperatorId = S) -> int | None:
    record = log.record(BatchId(batch))
    assert record is not None
    return record.sources[source].watermark


def test_a_batch_has_the_watermark_that_it_was_logged_with() -> None:
    """The record decides: neither what a later driver would allow for lateness, nor when it reads, changes a replay."""
    storage = MemoryStorage()
    first = log(storage)
    first.append({"s": rows(3.0, 7.0), "t": rows(5.0)})
    first.append({"s": rows(4.0)})
    other = Application("x")
    other.source("s", schema={"n": "int64", "at": "double"}, event_time="at", lateness=5.0, parallelism=2)
    other.source("t", schema={"n": "int64", "at": "double"}, event_time="at")
    later = BatchLog(Program(other).sources, "x", storage, claim=2)
    for reader in (first, log(storage), later):
        for batch in (0, 1):
            marks = {
                block.header.watermark for name in (S, T) for block in reader.blocks(name, BatchId(batch), Epoch(9))
            }
            assert marks == {6_000_000, 5_000_000}


@pytest.mark.parametrize("anew", [False, True])
def test_a_log_keeps_batches_and_its_watermark_goes_on(tmp_path: Path, anew: bool) -> None:
    one = log(FileStorage(tmp_path))

    def at() -> BatchLog:
        return log(FileStorage(tmp_path)) if anew else one

    assert at().frontier == -1
    assert at().append({}) == 0
    assert watermark(at(), 0) == NOT_YET
    at().append({"s": rows(3.0, None, 5.5)})
    at().append({"s": rows(1.0), "t": rows(2.0)})
    assert [watermark(at(), batch) for batch in (1, 2)] == [4_500_000, 4_500_000], "never back"
    assert at().append({"s": rows(99.0)}, number=BatchId(1)) == 1
    assert numbers(at(), 1) == [[0], [1, 2]], "delivered again: what is logged holds"
    assert numbers(at(), 0) == [[], []]
    with pytest.raises(BadInput, match="batch 4 cannot follow batch 2"):
        at().append({}, number=BatchId(4))
    at().trim(BatchId(1))
    with pytest.raises(CheckFailed, match="is not there any more"):
        at().blocks(S, BatchId(1), Epoch(1))
    assert numbers(at(), 2) == [[], [0]]
    at().append({}, last=True)
    assert [watermark(at(), 3, name) for name in (S, T)] == [END_OF_TIME, END_OF_TIME], "all sources at once"
    with pytest.raises(BadInput, match=r"closed with batch 3.*begin in another directory"):
        at().append({"s": rows(2.0)})


def test_bad_input_is_refused_before_anything_is_written() -> None:
    storage = MemoryStorage()
    for given, problem in (
        ({"u": rows()}, "no source 'u'"),
        ({"s": [1]}, "are list"),
        ({"s": pa.table({"n": ["x"]})}, "n"),
    ):
        with pytest.raises(BadInput, match=problem):
            log(storage).append(given)  # type: ignore[arg-type]
    assert not storage.list()


def test_another_application_is_refused() -> None:
    storage = MemoryStorage()
    log(storage).append({})
    with pytest.raises(BadInput, match="belongs to application 'x', not 'y'"):
        BatchLog(program().sources, "y", storage)


def test_a_damaged_batch_is_named() -> None:
    storage = MemoryStorage()
    storage.create("batches/000000000000", b"{")
    with pytest.raises(CheckFailed, match=r"batches/000000000000: is damaged"):
        log(storage)


def test_rows_of_a_key_are_logged_for_its_partition() -> None:
    one = BatchLog(program(key="n").sources, "x")
    one.append({"s": pa.table({"n": [5, 6, 7, 5, 6, 7], "at": [1.0] * 6})})
    found = numbers(one, 0)
    assert sorted(n for part in found for n in part) == [5, 5, 6, 6, 7, 7]
    assert not set(found[0]) & set(found[1])


def test_records_of_long_trimmed_batches_go() -> None:
    storage = MemoryStorage()
    one = log(storage)
    for number in range(RECORDS_KEPT + 20):
        one.append({"s": rows(float(number))})
    one.trim(BatchId(RECORDS_KEPT + 15))
    assert len(storage.list("batches/")) == RECORDS_KEPT + 4
    assert len(storage.list("pieces/")) == 4, "the rows of trimmed batches are deleted"
    anew = log(storage, 2)
    assert anew.frontier == RECORDS_KEPT + 19
    anew.append({})
    assert watermark(anew, anew.frontier) == (RECORDS_KEPT + 18) * 1_000_000, "the watermark goes on"
    assert numbers(anew, RECORDS_KEPT + 17) == [[], [0]]


# -- two drivers -----------------------------------------------------------------------------------------------------


def test_a_batch_that_the_driver_before_logs_meanwhile_is_taken_as_it_is() -> None:
    storage = MemoryStorage()
    old = log(storage, 1)
    old.append({"s": rows(1.0)})
    new = log(storage, 2)
    old.append({"s": rows(2.0, 2.0)})  # it does not know that it is over
    assert new.append({"s": rows(3.0, 3.0, 3.0)}) == 2
    assert [sum(map(len, numbers(new, batch))) for batch in range(3)] == [1, 2, 3]
    with pytest.raises(StaleEpoch, match="claim 1 is over: batch 2 was logged under claim 2"):
        old.append({"s": rows(4.0)})
    assert numbers(log(storage, 3), 2) == [[0], [1, 2]]


def test_a_driver_that_was_frozen_for_long_finds_a_free_number_and_is_over_all_the_same() -> None:
    storage = MemoryStorage()
    old = log(storage, 1)
    new = log(storage, 2)
    for _ in range(2 * RECORDS_KEPT):
        new.append({"s": rows(1.0)})
    new.trim(new.frontier)
    with pytest.raises(StaleEpoch, match="batches after this one are logged"):
        old.append({"s": rows(9.0)})
    assert new.append({}) == 2 * RECORDS_KEPT


def test_a_driver_whose_directory_was_deleted_logs_nothing_in_the_run_that_has_begun_there() -> None:
    storage = MemoryStorage()
    frozen = log(storage, 1)
    for _ in range(4):
        frozen.append({"s": rows(1.0)})
    storage.delete(storage.list())
    new = log(storage, 1)
    new.append({"s": rows(7.0)})
    with pytest.raises(StaleEpoch):
        frozen.append({"s": rows(9.0)})
    assert new.append({"s": rows(8.0)}) == 1
    assert log(storage, 2).frontier == 1


def test_what_it_leaves_under_that_number_costs_the_next_driver_nothing() -> None:
    class Counting(MemoryStorage):
        reads = 0

        def read(self, name: str) -> pa.Buffer | None:
            Counting.reads += 1
            return super().read(name)

    storage = Counting()
    old, new = log(storage, 1), log(storage, 2)
    for _ in range(10 * RECORDS_KEPT):
        new.append({"s": rows(1.0)})
    new.trim(new.frontier)
    with pytest.raises(StaleEpoch):
        old.append({"s": rows(9.0)})
    assert storage.list("batches/")[0] == "batches/000000000000", "a record of a batch that was dropped"
    last = log(storage, 3)
    Counting.reads = 0
    last.append({"s": rows(1.0)})
    last.trim(last.frontier)
    assert Counting.reads <= 2 * RECORDS_KEPT, "what is between it and the others is not looked for"
    assert storage.list("batches/")[0] != "batches/000000000000"
    assert storage.list("pieces/s/00000001") == []


def test_batches_that_are_given_by_number_are_logged_once() -> None:
    """The driver before logs the same one while this one starts; a new layout has a batch of its own in between."""
    storage = MemoryStorage()
    old = log(storage, 1)
    assert old.append({"s": rows(1.0)}, given=0) == 0
    new = log(storage, 2)
    assert new.last_given == 0
    old.append({"s": rows(2.0)}, given=1)
    assert new.append({"s": rows(2.0)}, given=1) == 1
    assert (new.frontier, new.last_given) == (1, 1)
    assert new.append({}, given=2) == 2
    assert new.fence(program().sources)
    changed = BatchLog(program().sources, "x", storage, claim=3, generation=1)
    assert (changed.frontier, changed.last_given) == (3, 2)
    assert changed.append({"s": rows(3.0)}, given=3) == 4


def test_the_end_that_the_driver_before_has_logged_is_the_end() -> None:
    storage = MemoryStorage()
    old, new = log(storage, 1), log(storage, 2)
    assert old.append({}, last=True) == 0
    assert new.append({}, last=True) == 0
    assert new.closed
    with pytest.raises(BadInput, match="its sources were closed"):
        log(storage, 3).append({"s": rows(1.0)}, last=True)


def test_batches_that_the_driver_before_has_logged_are_adopted_when_asked_for() -> None:
    storage = MemoryStorage()
    old, new, last = log(storage, 1), log(storage, 2), log(storage, 3)
    assert not new.adopt()
    old.append({"s": rows(1.0)})
    old.append({"s": rows(1.0)})
    assert new.adopt()
    assert new.frontier == 1
    last.append({})
    with pytest.raises(StaleEpoch, match="claim 2 is over: batch 2 was logged under claim 3"):
        new.adopt()


def test_pieces_of_earlier_claims_go_once_their_driver_can_log_no_more() -> None:
    """Finding 2: a driver frozen in `foreachBatch` wakes and sweeps away what the new one has logged."""
    storage = MemoryStorage()
    old, new = log(storage, 1), log(storage, 2)
    before = old.write_piece(S, rows(1.0), "0")
    mine = new.write_piece(S, rows(2.0), "0")
    assert set(storage.list("pieces/")) == {before.file, mine.file}
    new.commit(BatchId(0), {S: Arrived([mine])})
    assert storage.list("pieces/") == [mine.file], "nobody can name the old driver's piece any more"
    with pytest.raises(StaleEpoch):
        old.commit(BatchId(0), {S: Arrived([before])})
    assert storage.list("pieces/") == [mine.file], "nor does it delete what is not its own"
    assert numbers(new, 0) == [[], [0]]


def test_rows_are_logged_once_where_what_follows_the_record_fails() -> None:
    """The record is there, and the sweep after it fails: the same rows again are the same batch."""
    storage = Breaking()
    log(storage, 1).write_piece(S, rows(9.0), "0")
    mine = log(storage, 2)
    piece = mine.write_piece(S, rows(1.0), "0")
    storage.unlisted = "readers/"
    for _ in range(2):
        with pytest.raises(OSError, match="not listed"):
            mine.commit(BatchId(0), {S: Arrived([piece])})
        assert mine.frontier == NO_BATCH
    storage.unlisted = None
    mine.commit(BatchId(0), {S: Arrived([piece])})
    assert mine.frontier == 0
    assert storage.list("pieces/") == [piece.file]
    assert storage.list("batches/") == ["batches/000000000000"]


def test_a_piece_that_the_driver_before_may_still_log_stays() -> None:
    storage = MemoryStorage()
    old = log(storage, 1)
    before = old.write_piece(S, rows(1.0), "0")
    new = log(storage, 2)
    new.write_piece(S, rows(2.0), "0")
    old.commit(BatchId(0), {S: Arrived([before])})
    assert new.append({}) == 1
    assert storage.list("pieces/") == [before.file, *storage.list("pieces/s/00000002")]
    assert numbers(new, 0) == [[], [0]]


# -- marks -----------------------------------------------------------------------------------------------------------


def test_a_record_says_which_segments_checkpoint_and_when_it_was_logged() -> None:
    storage, times = MemoryStorage(), iter((5.0, 6.5, 4.0))
    first = BatchLog(program().sources, "x", storage, claim=1, now=lambda: next(times))
    asked: list[BatchId] = []

    def decide(batch: BatchId) -> LoggedMarks:
        asked.append(batch)
        return {ALL_PARTITIONS: LoggedMark(durable=True), SegmentId("s"): LoggedMark(durable=False)} if batch else {}

    first.decide_marks(decide)
    first.append({"s": rows(1.0)})
    first.commit(BatchId(1), {})
    assert first.fence([S, T])
    assert asked == [0, 1], "the batch between two layouts is no mark"
    later = BatchLog(program().sources, "x", storage, claim=2, generation=1)
    found = [record for number in range(3) if (record := later.record(BatchId(number))) is not None]
    both = {ALL_PARTITIONS: LoggedMark(durable=True), SegmentId("s"): LoggedMark(durable=False)}
    assert [record.marks for record in found] == [{}, both, {}]
    assert [record.logged_at for record in found] == [5.0, 6.5, 4.0]


def test_a_record_of_an_earlier_version_has_no_marks() -> None:
    storage = MemoryStorage()
    log(storage).append({"s": rows(1.0)})
    held = storage.read("batches/000000000000")
    assert held is not None
    fields = json.loads(held.to_pybytes().partition(b"\n")[2])
    assert (fields.pop("marks"), isinstance(fields.pop("logged-at"), float)) == ({}, True)
    before = MemoryStorage()
    Records(before, "batches", version=FORMAT).create(0, fields)
    record = BatchLog(program().sources, "x", before, claim=2).record(BatchId(0))
    assert record is not None
    assert (record.marks, record.logged_at) == ({}, None)
    assert sum(record.sources[S].rows) == 1


def test_a_write_whose_answer_was_lost_is_repeated_with_the_same_bytes() -> None:
    """Otherwise the driver would find its own batch, and take it for that of another driver."""

    class Forgetful(MemoryStorage):
        silent = True

        def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
            created = super().create(name, data)
            if self.silent:
                self.silent = False
                raise OSError("the answer was lost")
            return created

    times = iter((1.0, 2.0, 3.0))
    one = BatchLog(program().sources, "x", Forgetful(), claim=1, now=lambda: next(times))
    marks = iter(({}, {ALL_PARTITIONS: LoggedMark(durable=True)}, {}))
    one.decide_marks(lambda batch: next(marks))
    with pytest.raises(OSError, match="the answer was lost"):
        one.commit(BatchId(0), {})
    record = one.commit(BatchId(0), {})
    assert (record.logged_at, record.marks) == (1.0, {})
    assert one.commit(BatchId(1), {}).logged_at == 3.0


# -- micro-batches ---------------------------------------------------------------------------------------------------


def arrive(intake: Intake, log: BatchLog, number: int, *at: float, source: OperatorId = S, offsets: str = "") -> bool:
    turn = intake.reader(source)[0]
    offsets = offsets or f"up to {number}"
    if intake.knows(source, number, offsets, turn=turn):
        return False
    piece = log.write_piece(source, rows(*at), str(number))
    return intake.arrived(source, MicroBatch(number, offsets, (piece,), {"next": number + 1}), turn=turn)


def test_a_micro_batch_that_comes_again_is_taken_once() -> None:
    storage = MemoryStorage()
    one = log(storage)
    intake = Intake(one, [S, T])
    assert intake.make_batch() is None
    assert arrive(intake, one, 0, 1.0, 2.0)
    assert not arrive(intake, one, 0, 9.0)
    assert arrive(intake, one, 0, 5.0, source=T)
    assert intake.make_batch() == 0
    assert not arrive(intake, one, 0, 9.0), "after it was logged"
    anew = log(storage, 2)
    again = Intake(anew, [S, T])
    assert again.reader(S)[1] == {"next": 1}, "another driver goes on after it"
    assert not arrive(again, anew, 0, 9.0)
    assert arrive(again, anew, 1, 4.0)
    assert again.make_batch() == 1
    assert (numbers(anew, 1), numbers(anew, 1, T)) == ([[], [0]], [[]])
    assert Intake(log(storage, 3), [T]).reader(T)[1] == {"next": 1}, "where nothing is new, the position stays"


def test_the_same_number_with_other_offsets_is_refused() -> None:
    """Finding 5: a micro-batch was known by its number alone; other contents were skipped."""
    one = log(MemoryStorage())
    intake = Intake(one, [S])
    arrive(intake, one, 0, 1.0)
    with pytest.raises(BadInput, match=r"source s: micro-batch 0 was read up to 'up to 0'.*'up to 77'"):
        arrive(intake, one, 0, 1.0, offsets="up to 77")
    intake.make_batch()
    with pytest.raises(BadInput, match="micro-batch 0"):
        arrive(intake, one, 0, 1.0, offsets="up to 77")
    with pytest.raises(CheckFailed, match="micro-batch 2 comes after 0"):
        arrive(intake, one, 2, 1.0)


def test_a_reader_begins_anew_where_the_driver_before_has_logged_a_batch() -> None:
    """What it has read meanwhile is in that batch, or comes again: it must not be logged a second time."""
    storage = MemoryStorage()
    old = log(storage, 1)
    first = Intake(old, [S])
    arrive(first, old, 0, 1.0)
    new = log(storage, 2)
    told: list[OperatorId] = []
    second = Intake(new, [S], go_back=told.append)
    turn = second.reader(S)[0]
    arrive(second, new, 0, 1.0)
    assert first.make_batch() == 0
    assert second.make_batch() == 0
    assert told == [S]
    assert not second.pending
    assert second.reader(S)[1] == {"next": 1}
    with pytest.raises(ReaderOver):
        second.arrived(S, MicroBatch(1, "", ()), turn=turn)
    arrive(second, new, 1, 2.0)
    assert second.make_batch() == 1
    assert [numbers(new, batch) for batch in (0, 1)] == [[[], [0]], [[], [0]]]
    arrive(first, old, 1, 2.0)
    with pytest.raises(StaleEpoch):
        first.make_batch()


def test_what_waits_is_counted_until_it_is_processed() -> None:
    one = log(MemoryStorage())
    intake = Intake(one, [S, T], most_arrivals=1)
    for number in range(2):
        arrive(intake, one, number, float(number))
    assert intake.make_batch() == 0
    assert intake.waiting(BatchId(-1)) == {S: 2, T: 0}, "one arrived, one logged and not processed"
    assert intake.waiting(BatchId(0)) == {S: 1, T: 0}
    assert intake.has_taken({S: 0})
    assert not intake.has_taken({S: 1})
    assert (intake.last(S), intake.last(T)) == (1, -1)


def test_an_idle_source_lets_the_watermark_go_where_asked_to() -> None:
    for idle, stands in ((None, [5.0] * 6), (25.0, [5.0, 5.0, 5.0, 29.0, 39.0, 49.0])):
        clock = [1000.0]
        one = BatchLog(program().sources, "x", MemoryStorage(), claim=1, now=partial(clock.__getitem__, 0), idle=idle)
        intake = Intake(one, [S, T])
        for batch in range(6):
            clock[0] += 10.0
            arrive(intake, one, batch, 10.0 * batch + 10)
            if batch == 0:
                arrive(intake, one, 0, 5.0, source=T)
            assert intake.make_batch() == batch
        assert [(watermark(one, batch, T) or 0) / 1e6 for batch in range(6)] == stands
        arrive(intake, one, 1, 100.0, source=T)
        assert intake.make_batch() == 6
        assert watermark(one, 6, T) == 100_000_000


def test_a_source_is_idle_in_time_though_the_clock_is_set_back() -> None:
    """Its last rows had a time in the future then, and until that came all windows would have stayed open."""
    clock = [1e9]
    one = BatchLog(program().sources, "x", MemoryStorage(), claim=1, now=partial(clock.__getitem__, 0), idle=25.0)
    intake = Intake(one, [S, T])
    for batch in range(6):
        clock[0] += 10.0
        arrive(intake, one, batch, 10.0 * batch + 10)
        if batch == 0:
            arrive(intake, one, 0, 5.0, source=T)
        assert intake.make_batch() == batch
        if batch == 0:
            clock[0] -= 86_400.0
    assert [(watermark(one, batch, T) or 0) / 1e6 for batch in range(6)] == [5.0, 5.0, 5.0, 5.0, 39.0, 49.0]


def records(log: BatchLog) -> list[BatchRecord]:
    return [record for batch in range(log.frontier + 1) if (record := log.record(BatchId(batch))) is not None]


class Breaking(MemoryStorage):
    """A storage of which the creation of one object fails, without effect or with, or lists of one prefix do."""

    broken = silent = ""
    unlisted: str | None = None

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        if prefix == self.unlisted:
            raise OSError("not listed")
        return super().list(prefix, after=after)

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        if name == self.broken:
            raise OSError("broken")
        done = super().create(name, data)
        if name == self.silent:
            raise OSError("no answer")
        return done


@pytest.mark.parametrize("how", ["broken", "silent"])
def test_a_batch_that_was_tried_is_tried_again_as_it_was(how: str) -> None:
    """What had come meanwhile was taken too: where the first try had worked, the driver ended itself."""
    storage = Breaking()
    one = log(storage)
    intake = Intake(one, [S, T])
    arrive(intake, one, 0, 1.0)
    setattr(storage, how, "batches/000000000000")
    with pytest.raises(OSError, match=r"broken|no answer"):
        intake.make_batch()
    setattr(storage, how, "")
    arrive(intake, one, 1, 2.0)
    arrive(intake, one, 0, 5.0, source=T)
    assert intake.make_batch() == 0
    assert intake.pending, "what came after the first try is in the next batch"
    assert intake.make_batch() == 1
    assert [numbers(one, batch) for batch in (0, 1)] == [[[], [0]], [[], [0]]]
    assert [numbers(one, batch, T) for batch in (0, 1)] == [[[]], [[0]]]
    assert not intake.pending


def test_a_batch_without_rows_that_was_tried_does_not_hold_back_later_ones() -> None:
    storage = Breaking()
    one = log(storage)
    ahead = [True]
    intake = Intake(one, [S, T], marks_ahead=lambda: ahead[0])
    storage.broken = "batches/000000000000"
    with pytest.raises(OSError, match="broken"):
        intake.make_batch()
    storage.broken, ahead[0] = "", False
    arrive(intake, one, 0, 1.0)
    assert intake.make_batch() == 0
    assert numbers(one, 0) == [[], []], "the batch as it was tried"
    assert intake.make_batch() == 1
    assert numbers(one, 1) == [[], [0]]


def only(*names: str) -> Program:
    app = Application("x")
    for name in names:
        app.source(name, schema={"n": "int64", "at": "double"}, event_time="at")
    return Program(app)


def test_a_fence_says_where_the_sources_of_the_layout_before_stand() -> None:
    """Its driver may die before the run has the next layout, and the next one may have them again."""
    storage = MemoryStorage()
    before = log(storage)
    position = {"through": 7, "offsets": "x", "reader": {"bundles": ["readers/t/00000001-7-x"]}}
    storage.create("readers/t/00000001-7-x", b"{}")
    pieces = [before.write_piece(T, rows(5.0), "0")]
    before.commit(BatchId(0), {T: Arrived(pieces, position)})
    fencing = BatchLog(only("s", "u").sources, "x", storage, claim=2)
    assert fencing.fence([S, T])
    assert fencing.frontier == 0
    record = fencing.record(BatchId(1))
    assert record is not None
    assert record.generation == 1
    assert record.sources[T].position == position, "the next layout is without it"
    assert record.sources[T].watermark == 5_000_000
    assert (record.sources[T].rows, record.sources[T].pieces) == ((0,), ())
    assert record.sources[OperatorId("u")].watermark == NOT_YET
    assert storage.list("readers/") == ["readers/t/00000001-7-x"]
    after = BatchLog(program().sources, "x", storage, claim=3, generation=1)
    after.append({"s": rows(9.0)})
    assert watermark(after, 2, T) == 5_000_000, "it never goes back"


def test_a_fence_of_a_driver_that_is_over_does_not_end_the_live_one() -> None:
    """It was frozen in a change of layout while the live driver took its claim; the run has the layout before."""
    storage = MemoryStorage()
    old, live = log(storage, 1), log(storage, 2)
    live.append({"s": rows(1.0)}, given=0)
    frozen = BatchLog(only("s", "u").sources, "x", storage, claim=1)
    assert frozen.fence([S, T])
    assert live.append({"s": rows(2.0)}, given=1) == 3, "after the fence, and what follows it"
    assert [record.generation for record in records(live)] == [0, 1, 0, 0]
    assert [numbers(live, batch) for batch in range(4)] == [[[], [0]], [[], []], [[], []], [[], [0]]]
    with pytest.raises(StaleEpoch, match="claim 1 is over"):
        old.append({"s": rows(9.0)})
    with pytest.raises(StaleEpoch, match="claim 1 is over"):
        frozen.fence([S, T])
    nodes = BatchLog(program().sources, "x", storage)
    assert [numbers(nodes, batch) for batch in range(4)] == [[[], [0]], [[], []], [[], []], [[], [0]]]
    assert log(storage, 3).frontier == 3


def test_batches_go_on_after_a_fence_only_when_one_follows_it() -> None:
    """A driver that dies in between leaves the log as it was: no partition has processed the fence."""
    storage = Breaking()
    live = log(storage, 2)
    assert log(storage, 1).fence([S, T])
    storage.broken = "batches/000000000001"
    with pytest.raises(OSError, match="broken"):
        live.append({"s": rows(1.0)})
    assert live.frontier == NO_BATCH
    assert log(storage, 3).frontier == NO_BATCH
    storage.broken, storage.silent = "", "batches/000000000001"
    with pytest.raises(OSError, match="no answer"):
        live.append({"s": rows(1.0)})
    storage.silent = ""
    assert live.append({"s": rows(1.0)}) == 2, "what was written without an answer is its own"
    assert log(storage, 3).frontier == 2


def test_fences_of_several_drivers_are_followed_at_once() -> None:
    storage = MemoryStorage()
    live = log(storage, 3)
    for claim in (1, 2):
        assert log(storage, claim).fence([S, T])
    assert live.adopt()
    assert live.frontier == 2
    assert not live.adopt()
    late = log(storage, 5)
    assert log(storage, 4).fence([S, T])
    assert late.adopt()
    assert [record.generation for record in records(late)] == [1, 1, 0, 1, 0]


def test_a_change_of_layout_has_a_fence_of_its_own() -> None:
    """The driver before may go on after a fence that both have found; one of the two is over."""
    storage = MemoryStorage()
    assert log(storage, 1).fence([S, T])
    before, changing = log(storage, 2), log(storage, 3)
    assert changing.fence([S, T])
    with pytest.raises(StaleEpoch, match="batch 1 was logged under claim 3"):
        before.append({"s": rows(1.0)})
    storage = MemoryStorage()
    assert log(storage, 1).fence([S, T])
    before, changing = log(storage, 2), log(storage, 3)
    before.append({"s": rows(1.0)})
    assert not changing.fence([S, T]), "batches to process first"
    assert changing.frontier == 1
    assert not changing.fence([S, T])
    assert changing.frontier == 2
    assert changing.fence([S, T])
    after = BatchLog(program().sources, "x", storage, claim=4, generation=1)
    assert after.append({"t": rows(2.0)}) == 4
    assert watermark(after, 4, S) == 0, "as in the batches before, less the lateness"


def test_a_source_that_was_removed_begins_anew_when_it_is_added() -> None:
    storage = MemoryStorage()
    log(storage).commit(BatchId(0), {T: Arrived([], {"through": 7})})
    assert BatchLog(only("s").sources, "x", storage, claim=2).fence([S, T])
    again = BatchLog(program().sources, "x", storage, claim=3, generation=1)
    assert again.fence([S]), "the layout that ends was without it"
    record = again.record(BatchId(2))
    assert record is not None
    assert (record.sources[T].position, record.sources[T].watermark) == ({}, NOT_YET)


def test_a_source_that_was_added_is_not_idle_before_it_began() -> None:
    storage = MemoryStorage()
    before = BatchLog(only("s").sources, "x", storage, claim=1)
    for at in (1.0, 2.0, 3.0):
        before.append({"s": rows(at)})
    clock = [1e12]
    after = BatchLog(program().sources, "x", storage, claim=2, now=partial(clock.__getitem__, 0), idle=20.0)
    intake = Intake(after, [S, T])
    clock[0] += 10.0
    intake.arrived(S, MicroBatch(0, "0", (after.write_piece(S, rows(9.0), "0"),)), turn=1)
    assert intake.make_batch() == 3
    assert watermark(after, 3, T) == NOT_YET


# -- events in the future ----------------------------------------------------------------------------------------------

FAR = 4e9
"""An event time decades ahead."""


def bounded(storage: Storage, now: float, *, ahead: float | None = 60.0, claim: int = 1) -> BatchLog:
    return BatchLog(program().sources, "x", storage, claim=claim, now=lambda: now, ahead=ahead)


def test_an_event_far_in_the_future_does_not_move_the_watermark() -> None:
    """One such row made every later row late, for ever."""
    storage = MemoryStorage()
    log = bounded(storage, 1000.0)
    log.append({"s": rows(990.0, FAR, 1060.0, None), "t": rows(FAR)})
    assert watermark(log, 0) == 1_059_000_000, "the latest within a minute of the batch's time, less the lateness"
    assert watermark(log, 0, T) == NOT_YET, "nothing else has come"
    record = log.record(BatchId(0))
    assert record is not None
    assert [record.sources[name].ahead for name in (S, T)] == [1, 1]
    assert sum(record.sources[S].rows) == 4, "its rows are processed like all others"
    log.append({"s": rows(1000.0)})
    record = log.record(BatchId(1))
    assert record is not None
    assert record.sources[S].ahead == 0


def test_the_bound_of_a_batch_is_decided_once() -> None:
    """Another driver, with another clock and another setting, and nodes without any, read the same watermarks."""
    storage = MemoryStorage()
    bounded(storage, 1000.0).append({"s": rows(990.0, FAR)})
    for log in (bounded(storage, 5e9, ahead=None, claim=2), bounded(storage, 0.0, ahead=1.0, claim=3)):
        assert watermark(log, 0) == 989_000_000
        assert {block.header.watermark for block in log.blocks(S, BatchId(0), Epoch(1))} == {989_000_000}


def test_without_a_bound_the_watermark_follows_every_event() -> None:
    log = bounded(MemoryStorage(), 1000.0, ahead=None)
    log.append({"s": rows(990.0, FAR)})
    assert watermark(log, 0) == int((FAR - 1) * 1e6)


def test_rows_are_judged_by_the_time_of_their_batch() -> None:
    """They may wait long for it, and the clock may be set back meanwhile."""
    storage, times = MemoryStorage(), [1000.0]
    log = BatchLog(program().sources, "x", storage, claim=1, now=lambda: times[0], ahead=60.0)
    piece = log.write_piece(S, rows(1050.0, 1100.0), "0")
    assert (piece.within, piece.ahead) == (1_050_000_000, 1)
    times[0] = 1050.0
    log.commit(BatchId(0), {S: Arrived([piece])})
    assert watermark(log, 0) == 1_099_000_000, "it is within a minute by now"
    again = log.write_piece(S, rows(1090.0, 1105.0), "1")
    assert again.ahead == 0
    times[0] = 900.0
    log.commit(BatchId(1), {S: Arrived([again])})
    assert watermark(log, 1) == 1_099_000_000, "a watermark never goes back, and nothing beyond the bound moves it"


def test_rows_in_the_future_are_reported_once() -> None:
    storage = MemoryStorage()
    bounded(storage, 1000.0).append({"s": rows(FAR)})
    log, events, lines = bounded(storage, 1000.0, claim=2), list[dict[str, object]](), list[str]()
    future = FutureRows(log, lambda kind, **fields: events.append({"kind": kind, **fields}), lines.append)
    future.look()
    assert not events, "the driver before has reported what it logged"
    for _ in range(5):
        log.append({"s": rows(FAR), "t": rows(1000.0)})
        future.look()
        future.look()
    assert [(one["kind"], one["source"], one["batch"], one["rows"]) for one in events] == [
        ("future-rows", "s", batch, 1) for batch in range(1, 6)
    ]
    assert len(lines) == 3, "at 1, 2 and 4 rows"
    assert "source s: 4 rows so far, the last in batch 4" in lines[-1]


# -- the size of a batch -----------------------------------------------------------------------------------------------


def test_a_batch_takes_micro_batches_of_so_many_bytes_and_one_at_least() -> None:
    """It took up to sixteen, whatever they held."""
    batch_log = log(MemoryStorage())
    pieces = [batch_log.write_piece(S, rows(*range(100 if number == 1 else 10)), str(number)) for number in range(5)]
    small = MicroBatch(0, "0", (pieces[0],)).bytes
    intake = Intake(batch_log, [S, T], arrived_bytes=2 * small)
    turn = intake.reader(S)[0]
    for number, piece in enumerate(pieces):
        intake.arrived(S, MicroBatch(number, str(number), (piece,)), turn=turn)
    taken = []
    while (batch := intake.make_batch()) is not None:
        record = batch_log.record(batch)
        assert record is not None
        taken.append(len(record.sources[S].pieces))
    assert taken == [1, 1, 2, 1], "the second alone is larger than the bound; of the others two fit"
    assert intake.reader(S)[1] == {}
    assert intake.last(S) == 4
