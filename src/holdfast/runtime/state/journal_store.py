"""Versions in a journal: one append-only file at a time, written by one process. Runs on a node whose task stays.

    DIR/000002.process           the second process of the node; it stays, and ends the first one's right to write
    DIR/000002-000001.journal    its first file
    DIR/000002-000002.journal    its second file, begun when the first was large enough, or could not be written

A commit is one frame (journal_frames.py) with its new segments and output blocks, appended by one call. The first frame
of a file is an index of all that counts in earlier files. So the newest file with a whole first frame says what there
is; of earlier ones only the data is read that it names, and what an earlier process appends later is never read.

A process that starts creates its number first and reads then; one that writes looks after every append whether there is
a higher number, and ends before it reports. So a new process sees all that an earlier one has reported.

Files of which nothing is needed are removed; where files are mostly dead, what is needed of the deadest is appended
again. Nothing is forced to disk: a process that dies loses nothing, and a machine that dies is a node that failed. An
append that fails may have left a part: the file gets nothing more, and the next record begins another one. Memory holds
a cache of opened data, bounded by bytes; what falls out is mapped again when it is needed.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.blocks import block_pieces
from holdfast.runtime.state.journal_frames import ALIGN, encode_frame, read_frames
from holdfast.runtime.state.journal_index import (
    BLOCKS,
    SEGMENTS,
    JournalIndex,
    forget_record,
    places,
    point_record,
)
from holdfast.runtime.state.opened_data import DEFAULT_CACHE_BYTES, OpenedData
from holdfast.runtime.state.state_files import FILES, AppendFile, Piece, StateFiles
from holdfast.runtime.state.store import Addition, Sent, check_epoch, next_pointer, thin_files, with_file
from holdfast.runtime.state.versions import (
    Commit,
    FileName,
    Pointer,
    VersionChain,
    VersionId,
    record_fields,
    segment_pieces,
)

FILE_BYTES = 32 * 2**20
"""A file that has grown to this gets no more records; those with a large index grow to eight times that one."""
_INDEX_SHARE = 8
_PROCESS, _JOURNAL = ".process", ".journal"


class Superseded(BaseException):
    """A later process of the node has taken its files over: this one ends, and reports nothing of what it did last.

    Not an `Exception`: code that catches those would report it as the failure of a batch.
    """


class JournalStore:
    """The versions of a node's partitions, in a directory of its own, for one process at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        files: StateFiles = FILES,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        """Take a directory over from the process before, whether that is dead or not."""
        self._directory, self._files, self._file_bytes = Path(directory), files, file_bytes
        self._opened = OpenedData(self._data, cache_bytes)
        self._names = itertools.count()
        self._numbers = itertools.count(1)
        self._mapped: dict[str, pa.Buffer] = {}
        files.make_folder(self._directory)
        self.process = self._take_number()
        """The number of this process among those of the node."""
        self._next_process = self._directory / f"{self.process + 1:06d}{_PROCESS}"
        self._newest = ""
        """The newest file with a whole index: all that it names may be needed by the next process."""
        self._index, self._sizes = self._recover()
        self._file: AppendFile | None = None
        """The file that is appended to; None: the next record begins one."""
        self._name, self._size, self._limit = "", 0, file_bytes

    @property
    def cached_bytes(self) -> int:
        """How many bytes of opened data memory holds."""
        return self._opened.bytes

    @property
    def file_bytes(self) -> int:
        """How many bytes all journal files have."""
        return self._size + sum(self._sizes.values())

    # -- the contract: see VersionStore --------------------------------------------------------------------------------

    def held_partitions(self) -> tuple[PartitionId, ...]:
        """See VersionStore."""
        return tuple(self._index.partitions)

    def chain(self, partition: PartitionId) -> VersionChain | None:
        """See VersionStore."""
        return self._index.chain(partition)

    def begin(self, partition: PartitionId, epoch: Epoch) -> None:
        """See VersionStore."""
        held = self._index.pointer(partition)
        check_epoch(partition, epoch, held)
        pointer = next_pointer(self.chain(partition), held, epoch)
        if pointer is not None:
            self._append(point_record(partition, pointer))

    def point(self, partition: PartitionId, pointer: Pointer) -> None:
        """See VersionStore."""
        check_epoch(partition, pointer.epoch, self._index.pointer(partition))
        if pointer.at is not None and self._index.commit(partition, pointer.at) is None:
            raise CheckFailed(f"{partition} has no version {pointer.at}", remedy="restore it from a checkpoint")
        self._append(point_record(partition, pointer))

    def commit(self, commit: Commit, added: Addition) -> Commit:
        """See VersionStore."""
        partition = commit.partition
        check_epoch(partition, commit.id.epoch, self._index.pointer(partition))
        earlier = self._index.commit(partition, commit.id)
        if earlier is not None:
            return earlier
        name = f"{commit.id.batch}.{commit.id.epoch}.{self.process:x}-{next(self._names):x}"
        segments_name, blocks_name = FileName(name + SEGMENTS), FileName(name + BLOCKS)
        kept = with_file(commit, segments_name, blocks_name if added.blocks else None)
        segments = [one for table in added.segments.values() for one in table]
        data: dict[FileName, Sequence[Piece]] = {}
        if segments:
            data[segments_name] = segment_pieces(added.segments)
        if added.blocks:
            data[blocks_name] = block_pieces(added.blocks)
        sizes = {name: sum(map(len, pieces)) for name, pieces in data.items()}
        record = {"do": "commit", "commit": record_fields(kept), "data": list(sizes.items())}
        file, at = self._write(record, list(data.values()))
        self._index.add(kept, places(file, at, sizes.items()))
        if segments:
            self._opened.put_segments(partition, segments_name, segments)
        if added.blocks:
            self._opened.put_blocks(partition, blocks_name, added.blocks, sizes[blocks_name])
        return kept

    def load(self, commit: Commit) -> dict[str, tuple[pa.Table, ...]] | None:
        """See VersionStore."""
        return self._opened.load(commit)

    def sent(self, commit: Commit) -> Sent | None:
        """See VersionStore."""
        return self._opened.sent(commit)

    def forget(self, partition: PartitionId, states: set[VersionId], blocks_from: BatchId) -> None:
        """See VersionStore."""
        chain = self.chain(partition)
        if chain is None or not chain.commits:
            return
        gone = self._index.forget(partition, states, blocks_from)
        self._note(forget_record(partition, states, blocks_from))
        for name in gone:
            self._opened.forget(partition, name)
        self._clean()

    def drop(self, partition: PartitionId) -> None:
        """See VersionStore."""
        if partition not in self._index.partitions:
            return
        gone = self._index.drop(partition)
        self._note({"do": "drop", "partition": str(partition)})
        for name in gone:
            self._opened.forget(partition, name)
        self._clean()

    def rewrite(self, commit: Commit) -> set[FileName]:
        """See VersionStore."""
        live = self._opened.live_bytes(commit)
        places = {name: self._index.place(commit.partition, name) for name in live}
        return thin_files(live, {name: place.size for name, place in places.items() if place is not None})

    def alone(self, partition: PartitionId) -> AbstractContextManager[None]:
        """See VersionStore: one process, one thread."""
        return nullcontext()

    def kept_bytes(self, partitions: Collection[PartitionId] | None = None) -> int:
        """See VersionStore."""
        return sum(
            place.size
            for partition, held in self._index.partitions.items()
            if partitions is None or partition in partitions
            for name, place in held.data.items()
            if name.endswith(BLOCKS)
        )

    # -- reading -------------------------------------------------------------------------------------------------------

    def _data(self, partition: PartitionId, name: FileName) -> pa.Buffer | None:
        """Map data; None where it is lost."""
        place = self._index.place(partition, name)
        if place is None:
            return None
        mapped = self._mapped.get(place.file)
        if mapped is None or mapped.size < place.at + place.size:
            try:
                mapped = self._mapped[place.file] = self._files.buffer(self._directory / place.file)
            except FileNotFoundError:
                return None
        return mapped.slice(place.at, place.size) if mapped.size >= place.at + place.size else None

    # -- writing -------------------------------------------------------------------------------------------------------

    def _append(self, record: Mapping[str, Any], body: Sequence[Sequence[Piece]] = ()) -> None:
        """Write a record, and do what it says; after an error nothing has happened."""
        name, body_at = self._write(record, body)
        self._index.apply(record, name, body_at)

    def _note(self, record: Mapping[str, Any]) -> None:
        """Write a record of what has been done already, and what a restart need not know.

        Where it cannot be written, the next file's index says it; what is wrong then is for the next commit to report.
        """
        with suppress(OSError):
            self._write(record)

    def _write(self, record: Mapping[str, Any], body: Sequence[Sequence[Piece]] = ()) -> tuple[str, int]:
        """Append a record; return the file's name, and where in it the record's body begins."""
        if self._file is None or self._size >= self._limit:
            self._begin_file()
        pieces: list[Piece] = []
        for part in body:
            pieces += [*part, bytes(-sum(map(len, part)) % ALIGN)]
        frame, body_at, length = encode_frame(record, pieces)
        at = self._size
        self._put(frame, length)
        return self._name, at + body_at

    def _begin_file(self) -> None:
        """Begin a file with an index of all that counts."""
        self._seal()
        name = f"{self.process:06d}-{next(self._numbers):06d}{_JOURNAL}"
        frame, _, length = encode_frame({"do": "index", "file": name, "partitions": self._index.fields()})
        path = self._directory / name
        self._file, self._name, self._size = self._files.begin(path), name, 0
        self._limit = max(self._file_bytes, _INDEX_SHARE * length)
        try:
            self._put(frame, length)
        except OSError:
            with suppress(OSError):
                self._files.remove(path)
                self._sizes.pop(name, None)
            raise
        self._newest = name

    def _put(self, frame: Sequence[Piece], length: int) -> None:
        assert self._file is not None, "a file has been begun"
        try:
            self._file.append(frame)
            self._size += length
            self._check_newest()
        except OSError:
            self._seal()  # a part may be there: behind it nothing would be read
            raise

    def _check_newest(self) -> None:
        """End where a later process has taken over."""
        if self._files.exists(self._next_process):
            raise Superseded(f"process {self.process + 1} of the node has taken over from process {self.process}")

    def _seal(self) -> None:
        """Append nothing more to the file that is written to."""
        if self._file is not None:
            file, self._file = self._file, None
            self._sizes[self._name], self._size = self._size, 0
            with suppress(OSError):
                file.close()

    # -- what is dead --------------------------------------------------------------------------------------------------

    def _clean(self) -> None:
        """Remove dead files; where files are mostly dead, move what is needed of one of them.

        On a full disk, this makes room before the record of what was forgotten can be written. A restart may then find
        versions whose data is gone; no recovery needs them.
        """
        self._check_newest()
        live = self._index.live
        for name in [name for name in self._sizes if name not in live and name != self._newest]:
            self._remove(name)
        needed = sum(live.get(name, 0) for name in self._sizes)
        if sum(self._sizes.values()) > 2 * needed + self._file_bytes:
            self._move(min(self._sizes, key=lambda name: live.get(name, 0) / max(1, self._sizes[name])))

    def _move(self, file: str) -> None:
        """Append what is needed of a file again, and remove the file."""
        moved: list[list[str | int]] = []
        body: list[Sequence[Piece]] = []
        try:
            for partition, name, place in list(self._index.in_file(file)):
                data = self._data(partition, name)
                if data is None:
                    self._index.lose(partition, name)
                    continue
                moved.append([str(partition), name, place.size])
                body.append([memoryview(data)])
            if moved:
                self._append({"do": "move", "data": moved}, body)
        except OSError:
            return  # it cannot be read, or there is no room now: the next commit reports it
        if file != self._newest:  # it says what there is, whether it has data or not
            self._remove(file)

    def _remove(self, name: str) -> None:
        self._mapped.pop(name, None)
        with suppress(OSError):  # it stays in the list, and is removed later
            self._files.remove(self._directory / name)
            del self._sizes[name]

    # -- taking over ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write nothing more."""
        self._seal()

    def remove(self) -> None:
        """Remove the directory: nothing of it is needed any more. Where a later process has taken over, end instead."""
        self._check_newest()
        self._seal()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _take_number(self) -> int:
        """Create the number after the last process's: from then on that one may not report any more."""
        numbers = [int(name[:6]) for name in self._files.names(self._directory) if name.endswith(_PROCESS)]
        for number in itertools.count(max(numbers, default=0) + 1):
            with suppress(FileExistsError):
                self._files.create(self._directory / f"{number:06d}{_PROCESS}")
                return number
        raise AssertionError("numbers do not end")

    def _recover(self) -> tuple[JournalIndex, dict[str, int]]:
        """Read what the newest file says; return it, with the sizes of the files that are there."""
        names = [name for name in self._files.names(self._directory) if name.endswith(_JOURNAL)]
        sizes: dict[str, int] = {}
        for name in names:
            with suppress(FileNotFoundError):  # a process that ends just now may still remove what is dead
                sizes[name] = self._files.size(self._directory / name)
        for name in newest_first(list(sizes)):
            try:
                frames = read_frames(self._files.read(self._directory / name))
            except FileNotFoundError:
                continue
            first = next(frames, None)
            if first is None or first.head.get("file") != name:
                continue  # its process died while it began the file
            index = JournalIndex.of_fields(first.head["partitions"])
            for frame in frames:
                index.apply(frame.head, name, frame.body_at)
            self._newest = name
            return index, sizes
        return JournalIndex(), sizes


def newest_first(names: Sequence[str]) -> list[str]:
    """Put journal files in order: those of a later process come first, and of one process those begun later."""
    return sorted(names, reverse=True)
