"""Deliberate bugs of gathered Parquet outputs. The simulator must find each; see bugs.py."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from holdfast.ids import BatchId
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.io import gathered_parquet
from holdfast.runtime.io.gathered_files import PieceGone, batches_of, ranges_of
from holdfast.runtime.io.gathered_parquet import GatheredParquetSink
from holdfast.runtime.io.parquet_names import STAGED, Group, Seen, key_of, name_of
from holdfast.runtime.io.sinks import OutputKey
from holdfast.storage.memory import MemoryStorage
from simulation.bugs import Bug, Patch


class _Aside:
    """Reads what was kept aside, and creates in a storage."""

    def __init__(self, kept: MemoryStorage, storage: Any) -> None:
        self.read, self.create, self.url = kept.read, storage.create, storage.url


def staged_outputs_deleted_before_their_file(patch: Patch) -> None:
    """What is staged is deleted as soon as it was read; its file is created then."""
    right = gathered_parquet.write_group

    def write_group(storage: Any, group: Any, pieces: Any, partition_by: Any) -> Any:
        kept = MemoryStorage()
        for name in pieces.values():
            if (data := storage.read(name)) is None:
                raise PieceGone(name)
            kept.create(name, data)
        storage.delete(pieces.values())
        return right(_Aside(kept, storage), group, pieces, partition_by)  # type: ignore[arg-type]

    patch.setattr(gathered_parquet, "write_group", write_group)


def group_taken_from_memory(patch: Patch) -> None:
    """A driver writes the group that it would have made, where another one has taken the number before."""

    def take(self: Any, stream: Any, last: Any, outputs: Any) -> None:
        batches = list(outputs)
        group = Group(*stream, last.number + 1, batches[0], batches[-1])
        self._storage.create(group.record, json.dumps({"version": 1, "batches": ranges_of(batches)}).encode())
        try:
            written = gathered_parquet.write_group(self._storage, group, outputs, self.partition_by)
        except PieceGone:
            self._last.pop(stream)
            return
        self._storage.create(group.done, gathered_parquet._done(written))
        self._delete(list(outputs.values()))
        self._last[stream] = gathered_parquet._Last(group.number, group.through)

    patch.setattr(GatheredParquetSink, "_take", take)


def published_output_read_again(patch: Patch) -> None:
    """Readers take every staged output, those among them that are in a file."""
    right = Seen.of

    def of(staged: Any, groups: Any, names: Any) -> Seen:
        every = list(staged)
        keys = {name: key for name in every if (key := key_of(name.removeprefix(STAGED))) is not None}
        return Seen(right(every, groups, names).files, keys)

    patch.setattr(Seen, "of", of)


def published_output_gathered_again(patch: Patch) -> None:
    """A staged output that is in a file goes into the next one, too."""
    right = GatheredParquetSink._last_group

    def last_group(self: Any, stream: Any) -> Any:
        return gathered_parquet._Last(right(self, stream).number, BatchId(-1))

    patch.setattr(GatheredParquetSink, "_last_group", last_group)


def last_group_not_published_at_the_end(patch: Patch) -> None:
    """A run that ends leaves what waits for its interval."""
    patch.setattr(Coordinator, "publish_gathered", lambda self, **given: None)


def done_before_the_files(patch: Patch) -> None:
    """A group counts as done when its record is there."""
    right = GatheredParquetSink._complete

    def complete(self: Any, stream: Any, number: int) -> Any:
        folder = gathered_parquet.folder_of(stream)
        data = self._storage.read(f"{folder}{number:010d}")
        if data is not None:
            ranges = json.loads(data.to_pybytes())["batches"]
            group = Group(*stream, number, ranges[0][0], ranges[-1][1])
            if self._storage.read(group.done) is None:
                keys = [OutputKey(stream[0], batch, 0, stream[1]) for batch in batches_of(ranges)]
                names = {key.batch: f"{STAGED}{name_of(key)}" for key in keys}
                self._storage.create(group.done, b"{}")
                with suppress(PieceGone):
                    gathered_parquet.write_group(self._storage, group, names, self.partition_by)
                self._delete(list(names.values()))
        return right(self, stream, number)

    patch.setattr(GatheredParquetSink, "_complete", complete)


GATHERED_BUGS = tuple(
    Bug(put_in.__name__.replace("_", " "), put_in.__doc__ or "", put_in)
    for put_in in (
        staged_outputs_deleted_before_their_file,
        group_taken_from_memory,
        published_output_read_again,
        published_output_gathered_again,
        last_group_not_published_at_the_end,
        done_before_the_files,
    )
)
