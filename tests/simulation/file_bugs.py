"""Deliberate bugs of sources that are read in place: files seen, half-written, changed, taken twice. Each is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from holdfast.ids import BatchId
from holdfast.runtime.coordinator.reading import SourceReads
from holdfast.runtime.io import file_retention as retention
from holdfast.runtime.io import in_place as reading
from holdfast.runtime.io.event_bound import LatestEvents
from holdfast.runtime.io.file_copies import CopiedFile, copy_range, encode_copy
from holdfast.runtime.io.file_ranges import FileRange, HowRead
from holdfast.runtime.io.file_reader import FileReader
from holdfast.runtime.io.file_tracker import FileTracker, Taken
from holdfast.runtime.io.intake import Intake
from holdfast.runtime.io.range_copies import CopyStore
from holdfast.runtime.io.source_blocks import SourceBlocks
from holdfast.runtime.program import SourceProgram
from holdfast.storage.source_files import OpenFile
from simulation.bugs import Bug, Patch


def seen_files_forgotten(patch: Patch) -> None:
    """A new driver knows only the files that the last record itself names, and none of a bundle."""
    patch.setattr(FileReader, "_contents", lambda self, name: [])


def half_written_file_taken(patch: Patch) -> None:
    """A file is taken when it is first seen, whether or not somebody is still writing it."""

    def settle(self: FileTracker, now: float) -> None:
        self._settled = sorted((one for one, _ in self._waiting.values()), key=lambda one: (one.modified, one.path))

    patch.setattr(FileTracker, "_settle", settle)


def files_old_by_a_clock_that_was_set(patch: Patch) -> None:
    """At every listing a file counts as whole that is old by the driver's clock, which may have been set forward."""
    right = FileReader._look

    def look(self: FileReader) -> Any:
        self._has_looked = False
        return right(self)

    patch.setattr(FileReader, "_look", look)


def other_bytes_accepted(patch: Patch) -> None:
    """A range is read again, and nobody compares it with what was read first."""
    right = reading.read_checked

    def checked(source: SourceProgram, one: FileRange, how: HowRead, expected: int | None, file: OpenFile) -> Any:
        return right(source, replace(one, file=file.look()), how, None, file)

    patch.setattr(reading, "read_checked", checked)


def files_taken_by_two_drivers(patch: Patch) -> None:
    """A driver that finds a batch of the driver before takes its own files for the next one all the same."""
    right = FileReader.begin

    def begin(self: FileReader, position: Mapping[str, Any]) -> None:
        if not self.listed:
            right(self, position)

    patch.setattr(FileReader, "begin", begin)


def open_file_forgotten(patch: Patch) -> None:
    """The rest of a file that is larger than a batch is not read."""
    right = FileTracker.take

    def take(self: FileTracker, most_bytes: int) -> Taken:
        taken = right(self, most_bytes)
        return replace(taken, position=replace(taken.position, open=None))

    patch.setattr(FileTracker, "take", take)


def checksums_before_a_start_not_read(patch: Patch) -> None:
    """A new driver does not read the checksums that are in the log."""
    patch.setattr(SourceReads, "_take_logged", lambda self, number: None)


def events_of_ranges_not_counted(patch: Patch) -> None:
    """A partition takes the watermark of the record, and adds nothing for the rows that it reads."""
    patch.setattr(reading, "latest_events", lambda source, rows, bound: LatestEvents(None, None, 0))


def ranges_overlap(patch: Patch) -> None:
    """A line that begins before a range and ends in it is read with it, too."""
    right = FileTracker._spread

    def spread(self: FileTracker, parts: Sequence[Any], turn: int) -> Any:
        ranges, after = right(self, parts, turn)
        return [replace(one, start=max(0, one.start - 1)) for one in ranges], after

    patch.setattr(FileTracker, "_spread", spread)


def copies_dropped_early(patch: Patch) -> None:
    """A copy goes when a range of a later batch is copied, while a recovery may read it."""
    right = CopyStore.add

    def add(self: CopyStore, source: Any, batch: int, partition: int, number: int, data: Any) -> None:
        right(self, source, BatchId(batch), partition, number, data)
        self.drop(BatchId(batch - 1))

    patch.setattr(CopyStore, "add", add)


def copies_of_whatever_is_there(patch: Patch) -> None:
    """A range is copied without a look whether its file is still the one that was logged."""

    def copied(source: Any, one: FileRange, how: Any, expected: int | None, files: Any) -> Any:
        file = files(one.file.path).open(one.file.path)
        return encode_copy([(0, file.read(0, one.file.size))])

    patch.setattr(retention, "copy_range", copied)


def copies_end_with_their_range(patch: Patch) -> None:
    """A copy has the bytes of the range, and not the rest of its last line."""
    right = copy_range

    def copied(source: Any, one: FileRange, how: Any, expected: int | None, files: Any) -> Any:
        held = CopiedFile(right(source, one, how, expected, files), one.file)
        begin = max(0, one.start - 1)
        return encode_copy([(begin, held.read(begin, one.end - begin))])

    patch.setattr(retention, "copy_range", copied)


def copies_mistaken(patch: Patch) -> None:
    """All ranges of a partition in a batch are copied under one number."""
    right = CopyStore.add

    def add(self: CopyStore, source: Any, batch: Any, partition: int, number: int, data: Any) -> None:
        right(self, source, batch, partition, 0, data)
        right(self, source, batch, partition, number, data)

    patch.setattr(CopyStore, "add", add)


def copies_not_read(patch: Patch) -> None:
    """A node whose file is gone does not look for a copy."""
    patch.setattr(SourceBlocks, "_copied_file", lambda self, *place: None)


def no_batch_behind_the_last_rows(patch: Patch) -> None:
    """No empty batch brings watermarks on that the last rows move: the input ends with windows open."""
    patch.setattr(Intake, "_moves_marks", lambda self: False)


RETENTION_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        copies_dropped_early,
        copies_of_whatever_is_there,
        copies_end_with_their_range,
        copies_mistaken,
        copies_not_read,
    )
)

FILE_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        seen_files_forgotten,
        half_written_file_taken,
        files_old_by_a_clock_that_was_set,
        other_bytes_accepted,
        files_taken_by_two_drivers,
        open_file_forgotten,
        checksums_before_a_start_not_read,
        events_of_ranges_not_counted,
        ranges_overlap,
        no_batch_behind_the_last_rows,
    )
)
