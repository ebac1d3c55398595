"""Which files come next, by pure values: order, settling, what is seen, the low-water mark, ranges of partitions."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from threading import Event, Thread

import pytest

import holdfast as hf
from holdfast.application.readers import file_options
from holdfast.ids import OperatorId
from holdfast.runtime.io import file_tracker
from holdfast.runtime.io.file_reader import FileReader
from holdfast.runtime.io.file_tracker import (
    SMALL_RANGE,
    FilePosition,
    FileTracker,
    Taken,
    position_fields,
    position_of,
)
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.source_files import OpenFile, SourceFile

NS = 1_000_000_000
WALL = 1_000_000.0


def file(path: str, size: int = 10, *, at: float = 1.0) -> SourceFile:
    return SourceFile(path, size, round(at * NS))


def tracker(partitions: int = 1, *, atomic: bool = True, format_: str = "csv", **options: object) -> FileTracker:
    return FileTracker(format_, file_options(hf.files("x", format_, **options)), partitions, atomic)


def take(one: FileTracker, most: int = 1 << 30) -> Taken:
    taken = one.take(most)
    one.logged(taken)
    return taken


def paths(taken: Taken) -> list[str]:
    return [each.file.path for each in taken.ranges]


def test_files_come_in_the_order_of_their_times_and_once() -> None:
    one = tracker()
    listing = [file("b", at=1), file("a", at=2), file("c", at=1)]
    one.look(listing, now=0, wall=WALL)
    assert one.pending
    assert paths(take(one)) == ["b", "c", "a"]
    assert not one.pending
    one.look([*listing, file("early", at=0.5)], now=1, wall=WALL)
    assert paths(take(one)) == ["early"], "files may come out of order"


def test_what_comes_while_a_driver_runs_is_not_old_whatever_its_clock_says() -> None:
    """The clock was set forward, or is ahead of the file server's: a file that is being written was taken in part."""
    there, clock = list[SourceFile](), [0.0]

    class Files:
        url, atomic = "x", False

        def list(self) -> list[SourceFile]:
            return there

        def open(self, path: str) -> OpenFile:
            raise AssertionError(path)

    reader = FileReader(
        OperatorId("s"), hf.files("x", "csv", settle="2 seconds"), 1, Files(), MemoryStorage(), 1,
        clock=lambda: clock[0], wall=lambda: WALL + 3600 + clock[0],
    )  # fmt: skip
    reader.look()
    for seconds, size in ((1, 5), (2, 9), (3, 9)):
        clock[0], there[:] = seconds, [file("a", size, at=WALL + min(2, seconds))]
        if seconds == 3:
            reader.begin({})  # another driver has logged a batch
        reader.look()
        assert not reader.pending, "it may be half-written"
    clock[0] = 5
    reader.look()
    assert reader.pending


def test_reading_that_begins_anew_knows_since_when_files_are_as_they_are() -> None:
    """A batch could not be logged: what was left of a backlog waited for `settle` again."""
    there, clock = [file("old", at=WALL - 3600)], [0.0]

    class Files:
        url, atomic = "x", False

        def list(self) -> list[SourceFile]:
            return there

        def open(self, path: str) -> OpenFile:
            raise AssertionError(path)

    reader = FileReader(
        OperatorId("s"), hf.files("x", "csv", settle="10 minutes"), 1, Files(), MemoryStorage(), 1,
        clock=lambda: clock[0], wall=lambda: WALL + clock[0],
    )  # fmt: skip
    reader.look()
    there.append(file("new", at=WALL + 1))
    clock[0] = 1
    reader.look()
    reader.begin({})
    assert not reader.pending, "nothing is listed"
    reader.look()
    taken = reader.take(1 << 30)
    assert taken is not None
    assert paths(taken) == ["old"]
    reader.begin({})
    clock[0] = 601
    reader.look()
    taken = reader.take(1 << 30)
    assert taken is not None
    assert paths(taken) == ["old", "new"]


def test_a_file_stays_as_it_is_for_as_long_as_asked_for() -> None:
    """A minute was enough, however long files were to settle."""
    one = tracker(atomic=False, settle="10 minutes")
    one.look([file("a", 5, at=WALL - 300), file("old", at=WALL - 601)], now=0, wall=WALL)
    assert paths(take(one)) == ["old"]
    one.look([file("a", 5, at=WALL - 300), file("old", at=WALL - 601)], now=599, wall=-math.inf)
    assert not one.pending
    one.look([file("a", 5, at=WALL - 300), file("old", at=WALL - 601)], now=600, wall=-math.inf)
    assert paths(take(one)) == ["a"]


def test_files_that_were_old_at_the_first_listing_stay_so() -> None:
    """A backlog is taken over many batches: the second listing held back what was left of it for `settle`."""
    one = tracker(atomic=False, settle="10 minutes", maxFilesPerTrigger=2)
    there = [file(name, 5, at=WALL - 3600) for name in "abcde"]
    one.look(there, now=0, wall=WALL)
    assert paths(take(one)) == ["a", "b"]
    one.look([*there, file("new", 5, at=WALL - 3600)], now=1, wall=-math.inf)
    assert paths(take(one)) == ["c", "d"]
    there[4] = file("e", 9, at=WALL - 3600)  # somebody writes it after all
    one.look(there, now=2, wall=-math.inf)
    assert not one.pending
    one.look(there, now=602, wall=-math.inf)
    assert paths(take(one)) == ["e"]


def test_a_file_that_comes_twice_is_read_once_and_reported_where_it_has_grown() -> None:
    one = tracker()
    one.look([file("a")], now=0, wall=WALL)
    take(one)
    assert one.look([file("a", at=9)], now=1, wall=WALL) == [], "the same content written again"
    assert not one.pending
    said = one.look([file("a", 15, at=9)], now=2, wall=WALL)
    assert [(each.kind, each.line) for each in said] == [
        ("changed", "a had 10 bytes when it was read, and has 15: what was added is not read")
    ]
    assert not one.pending
    assert one.look([file("a", 15, at=9)], now=3, wall=WALL) == [], "said once"


def test_a_file_that_may_be_half_written_waits_until_it_stays_as_it_is() -> None:
    one = tracker(atomic=False, settle="2 seconds")
    fresh = WALL - 1
    one.look([file("a", 5, at=fresh), file("old", at=WALL - 100)], now=0, wall=WALL)
    assert one.unsettled
    assert paths(take(one)) == ["old"], "nobody has written to it for long"
    one.look([file("a", 8, at=fresh + 1)], now=1.5, wall=WALL)
    assert not one.pending, "it has grown: it must stay as it is from now on"
    one.look([file("a", 8, at=fresh + 1)], now=3.0, wall=WALL)
    assert not one.pending
    one.look([file("a", 8, at=fresh + 1)], now=3.5, wall=WALL)
    assert paths(take(one)) == ["a"]
    assert not tracker(atomic=False, settle=0).unsettled


def test_a_driver_that_is_frozen_in_a_listing_does_not_take_a_half_written_file() -> None:
    """What it saw is as old as the listing, however late it goes on: the file has grown since."""

    class Frozen:
        url, atomic, clock = "x", False, 100.0

        def list(self) -> list[SourceFile]:
            found = [file("a", 5, at=WALL + self.clock - 1)]
            self.clock += 500
            return found

        def open(self, path: str) -> OpenFile:
            raise AssertionError(path)

    files = Frozen()
    reader = FileReader(
        OperatorId("s"), hf.files("x", "csv", settle="2 seconds"), 1, files, MemoryStorage(), 1,
        clock=lambda: files.clock, wall=lambda: WALL + files.clock,
    )  # fmt: skip
    reader.look()
    assert not reader.pending, "it was modified a second before the listing"
    one = tracker(atomic=False, settle="2 seconds")
    one.look([file("a", 5, at=WALL)], now=0, complete=500, wall=WALL)
    one.look([file("a", 5, at=WALL)], now=501, complete=501, wall=WALL)
    assert not one.pending, "it has stayed as it is for one second that is known of"
    one.look([file("a", 5, at=WALL)], now=502, complete=900, wall=WALL)
    assert paths(take(one)) == ["a"]


def test_a_listing_that_is_late_does_not_make_a_file_pass_for_taken() -> None:
    """The thread that lists was slow, and one who waits for all that is there has listed meanwhile."""
    asked, answered = Event(), Event()

    class Slow:
        url, atomic = "x", True

        def __init__(self) -> None:
            self.there = list[SourceFile]()

        def list(self) -> list[SourceFile]:
            found = [*self.there]
            if not asked.is_set():
                asked.set()
                assert answered.wait(60)
            return found

        def open(self, path: str) -> OpenFile:
            raise AssertionError(path)

    files, done = Slow(), list[Callable[[], bool]]()
    reader = FileReader(OperatorId("s"), hf.files("x", "csv"), 1, files, MemoryStorage(), 1)

    def wait_for_all() -> None:
        reader.look()
        done.append(reader.taken_now())

    first, second = Thread(target=reader.look), Thread(target=wait_for_all)
    first.start()
    assert asked.wait(60)
    files.there.append(file("a", 5))
    second.start()
    second.join(0.2)  # it is over by then, where it does not wait for the listing that is under way
    answered.set()
    first.join()
    second.join()
    assert not done[0](), "no batch has the file"


def test_what_is_seen_is_bounded_by_age_and_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    one = tracker(maxFileAge="10 seconds")
    for number in range(40):
        one.look([file(f"f{number}", at=number)], now=number, wall=WALL)
        take(one)
    assert len(one.seen) == 11
    assert len(one.position.recent) == 11
    said = one.look([file("late", at=5), file("f39", at=39)], now=50, wall=WALL)
    assert [each.kind for each in said] == ["too-old"]
    assert not one.pending
    monkeypatch.setattr(file_tracker, "MOST_SEEN", 5)
    many = tracker()
    for number in range(40):
        many.look([file(f"f{number}", at=number), file("f39", at=39)], now=number, wall=WALL)
        take(many)
        assert len(many.seen) <= 6
    assert many.position.low > 0


def test_files_too_old_that_came_while_no_driver_ran_are_named_once() -> None:
    one = tracker(maxFileAge="10 seconds")
    one.look([file("new", at=40)], now=0, wall=WALL)
    again = FileTracker(one.format, one.options, 1, True, take(one).position, dict(one.seen), True)
    listing = [file("old", at=5), file("older", at=4), file("new", at=40)]
    (said,) = again.look(listing, now=0, wall=WALL)
    assert said.kind == "too-old"
    assert said.line.startswith("2 files, old the newest of them, are older than maxFileAge allows")
    assert not again.pending
    assert again.look(listing, now=1, wall=WALL) == []


def test_only_files_that_come_later_are_read_where_reading_starts_with_the_latest() -> None:
    one = tracker(start="latest")
    one.look([file("a"), file("b")], now=0, wall=WALL)
    assert one.pending, "where reading starts is logged"
    taken = take(one)
    assert taken.ranges == ()
    again = FileTracker(one.format, one.options, 1, True, taken.position, dict(one.seen), True)
    again.look([file("a"), file("b"), file("c")], now=0, wall=WALL)
    assert paths(take(again)) == ["c"]


def test_files_that_come_into_an_empty_folder_are_read_where_reading_starts_with_the_latest() -> None:
    one = tracker(start="latest")
    one.look([], now=0, wall=WALL)
    one.look([file("a")], now=1, wall=WALL)
    assert paths(take(one)) == ["a"], "it came after the first listing"
    assert not one.pending
    logged = tracker(start="latest")
    logged.look([], now=0, wall=WALL)
    assert logged.pending, "that reading starts with an empty folder is logged, too"
    taken = take(logged)
    assert taken.ranges == ()
    again = FileTracker(one.format, one.options, 1, True, taken.position, dict(logged.seen), True)
    again.look([file("b")], now=0, wall=WALL)
    assert paths(take(again)) == ["b"], "a driver that starts then does not begin anew"


def test_a_batch_has_so_many_bytes_and_files_at_most() -> None:
    one = tracker(maxFilesPerTrigger=2)
    one.look([file(name) for name in "abcde"], now=0, wall=WALL)
    assert [paths(take(one)) for _ in range(3)] == [["a", "b"], ["c", "d"], ["e"]]
    cut = tracker()
    cut.look([file("a", 25), file("b", 10)], now=0, wall=WALL)
    found = [take(cut, 10).ranges for _ in range(4)]
    assert [[(one.file.path, one.start, one.end) for one in some] for some in found] == [
        [("a", 0, 10)],
        [("a", 10, 20)],
        [("a", 20, 25), ("b", 0, 5)],
        [("b", 5, 10)],
    ]
    assert not cut.pending
    whole = tracker()
    whole.look([file("a.gz", 25), file("b", 10), file("empty", 0, at=3)], now=0, wall=WALL)
    found_whole = [paths(take(whole, 10)) for _ in range(3)]
    assert found_whole == [["a.gz"], ["b"], []], "what cannot be cut is taken whole"
    assert not whole.pending
    assert "empty" in whole.seen


@pytest.mark.parametrize("seed", range(20))
def test_ranges_cover_every_byte_once_whatever_is_taken(seed: int) -> None:
    draw = random.Random(seed)
    one = tracker(draw.choice((1, 2, 3, 5)), maxFilesPerTrigger=draw.choice((1, 3, 100)))
    files = [
        file(f"f{number}" + draw.choice(("", ".gz")), draw.choice((0, 7, SMALL_RANGE, 5 * SMALL_RANGE + 3)), at=number)
        for number in range(12)
    ]
    found: dict[str, list[tuple[int, int]]] = {}
    while True:
        one.look(files, now=0, wall=WALL)
        if not one.pending:
            break
        if draw.random() < 0.3:  # a driver that dies before it logs has taken nothing
            one.take(draw.choice((1000, 3 * SMALL_RANGE)))
            fields = position_fields(one.position)
            one = replace_position(one, position_of(fields, ()))
            continue
        taken = take(one, draw.choice((1000_000, 3 * SMALL_RANGE)))
        for each in taken.ranges:
            assert 0 <= each.partition < one.partitions
            found.setdefault(each.file.path, []).append((each.start, each.end))
    for each in files:
        at = 0
        for start, end in found.get(each.path, []):
            assert start == at
            at = end
        assert at == each.size


def replace_position(one: FileTracker, position: FilePosition) -> FileTracker:
    seen = {path: (modified, size) for path, modified, size in position.recent}
    return FileTracker(one.format, one.options, one.partitions, one.atomic, position, seen, one.begun)


def test_partitions_take_turns_with_small_ranges_and_share_large_ones() -> None:
    one = tracker(3)
    turns = []
    for number in range(4):
        one.look([file(f"f{number}", 100, at=number)], now=0, wall=WALL)
        turns += [each.partition for each in take(one).ranges]
    assert turns == [0, 1, 2, 0]
    one.look([file("large", 30 * SMALL_RANGE, at=9)], now=0, wall=WALL)
    assert sorted(each.bytes for each in take(one).ranges) == [10 * SMALL_RANGE] * 3


def test_a_position_is_the_same_after_it_was_written() -> None:
    one = tracker()
    one.look([file("a", 25), SourceFile("b", 3, 7, "tag")], now=0, wall=WALL)
    position = replace(take(one, 10).position, turn=2)
    assert position.open is not None
    assert position_of(position_fields(position), ()) == position
