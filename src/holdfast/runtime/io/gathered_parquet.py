"""Outputs that are gathered: many batches of a query in one Parquet file, published once. Runs on the driver.

An output is staged first: created under `_staged/`, where readers of Parquet do not look, by the node that has its rows
or by the driver. It is out then, as an output is that is one file (`parquet_sink`): the rows of a key never differ.
From time to time what is staged is published: a *group*, of outputs of a query that follow each other, becomes a file,
or one file for each value of the columns by which the table is partitioned. Nothing is locked, replaced or renamed:

1. A numbered record, created only if its number is free, says which outputs a group has. Whoever finds the number
   taken goes on with the group of the record, so all drivers write the same groups.
2. The group's files are created under names that follow from the record, each only when all its rows have been read.
3. An object says that all files are there.
4. The staged copies are deleted.

Group N + 1 begins when group N has come to 3, so a driver that starts has one group to complete at most. A driver that
was frozen at any point, and is over, finds numbers and names taken: staged copies of a group are deleted after all its
names are taken, so what is missing to it cannot get into a file. A staged copy that it, or its nodes, create again is
one of a group that is done: readers pass over it, and the next look deletes it.

A group ends with the last output that is known to be out. Up to there all staged copies are there, because outputs of a
query are out in order, and listings that begin later show them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pyarrow as pa

from holdfast.errors import BadInput, CheckFailed, one_line
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io.gathered_files import (
    PieceGone,
    Written,
    batches_of,
    encoded_schema,
    ranges_of,
    write_group,
)
from holdfast.runtime.io.gathered_folders import check_rows
from holdfast.runtime.io.gathering import EVERY_SECONDS, GatheringSink, stage
from holdfast.runtime.io.parquet_names import (
    GROUPS,
    STAGED,
    Group,
    Stream,
    done_in,
    file_group,
    folder_of,
    last_numbers,
    name_of,
    staged_in,
)
from holdfast.runtime.io.parquet_sink import ParquetSink, reached
from holdfast.runtime.io.sinks import Gathered, OutputKey, StagedRows
from holdfast.storage.storage import Storage

VERSION = 1
_OVER = "over"
"""The record of a query's first group was deleted."""


@dataclass(frozen=True, slots=True)
class GatheredStager:
    """See Stager: stages outputs where this node reaches the directory of its driver."""

    url: str
    start: str
    partition_by: tuple[str, ...] = ()

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        try:
            check_rows(rows, self.partition_by, key.batch, self.url)
            size = stage(reached(self.url, self.start), key, rows)[1]
        except Exception as error:
            # The driver can still take the rows; where it cannot write them either, it names the output.
            return one_line(f"{type(error).__name__}: {error}")
        return StagedRows(f"{self.url}/{STAGED}{name_of(key)}#{size}", rows.num_rows)


@dataclass(slots=True)
class _Last:
    """How far the groups of a query are."""

    number: int = -1
    through: BatchId = field(default_factory=lambda: BatchId(-1))


class GatheredParquetSink(GatheringSink, ParquetSink):
    """Writes outputs as Parquet, those of many batches into one file; see the module."""

    def __init__(
        self,
        directory: str | Path | Storage,
        every: float = EVERY_SECONDS,
        file_mb: float = 128,
        partition_by: Sequence[str] = (),
    ) -> None:
        """A file is published once its first rows have waited for `every` seconds, or it has so many megabytes."""
        ParquetSink.__init__(self, directory)
        GatheringSink.__init__(self, every, file_mb, partition_by)
        self._form = {"gathered": VERSION, "partition_by": list(self.partition_by)}
        self._last: dict[Stream, _Last] = {}

    @property
    def _kept(self) -> Storage:
        return self._storage

    def begin(self, run: str, epoch: Epoch) -> None:
        """See Sink: what an earlier driver has left staged is published with the next look."""
        super().begin(run, epoch)
        with self._lock:
            self._found = bool(self._storage.list(STAGED) or self._storage.list(GROUPS))

    def has_staged(self, run: str) -> bool:
        """Whether outputs are staged in the folder."""
        return bool(self._storage.list(STAGED))

    def _check_form(self, there: Mapping[str, object]) -> None:
        if "gathered" not in there:
            raise BadInput(
                "has one file for each batch, and would get files of many batches (hf.parquet(…, every=…))",
                where=self._storage.url,
                remedy="leave out `every` and `partition_by` as before, or give the output a folder of its own",
            )
        if there != self._form:
            mine, other = (_columns(one["partition_by"]) for one in (self._form, there))  # type: ignore[arg-type]
            raise BadInput(
                f"is partitioned by {other}, not by {mine}",
                where=self._storage.url,
                remedy=f"name its columns, hf.parquet(…, partition_by={there['partition_by']!r}), or another folder",
            )

    # -- staging -----------------------------------------------------------------------------------------------------

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink: an output that is staged is out."""
        if key.revision:
            raise BadInput("gathered outputs have no revisions", where=str(key), remedy="use hf.parquet(…, every=None)")
        check_rows(rows, self.partition_by, key.batch, self._storage.url)
        new, size = stage(self._storage, key, rows)
        self._staged(key, size)
        return new

    def stager(self, start: str) -> GatheredStager | None:  # type: ignore[override]
        """See Sink."""
        if type(self).publish is not GatheredParquetSink.publish or not self._nodes_reach:
            return None
        self._start = start
        return GatheredStager(self._storage.url, start, self.partition_by)

    def adopt(self, key: OutputKey, staged: StagedRows, epoch: Epoch) -> bool:
        """See Sink."""
        size = staged.place.rpartition("#")[2]
        self._staged(key, int(size) if size.isdecimal() else 0)
        return True

    # -- publishing --------------------------------------------------------------------------------------------------

    def _groups(
        self, known: Gathered, out: Mapping[PartitionId, BatchId], due: Collection[PartitionId] | None
    ) -> Iterator[tuple[Stream, Callable[[], object]]]:
        """Yield groups, and what publishes each: those of queries that are due; None: all that is there."""
        staged = staged_in(self._storage.list(STAGED))
        if due is None:  # also groups that were begun, and whose staged outputs are deleted in part
            names = self._storage.list(GROUPS)
            done = {(one.query, one.generation, one.number) for one in done_in(names)}
            for stream, number in last_numbers(names).items():
                if stream[1] > known.generation:
                    continue
                if (*stream, number) in done:
                    self._complete_last(stream, number)
                else:
                    yield stream, partial(self._complete_last, stream, number)
        for stream, outputs_there in staged.items():
            through = self._through(stream, known, out, due)
            if through is not None:
                yield from self._groups_of(stream, outputs_there, through)

    def _groups_of(
        self, stream: Stream, staged: Mapping[BatchId, str], through: float
    ) -> Iterator[tuple[Stream, Callable[[], object]]]:
        """Yield the groups of what is staged of a query, up to a batch."""
        while True:
            last = self._last_group(stream)
            self._delete([name for batch, name in staged.items() if batch <= last.through])
            left = {batch: name for batch, name in staged.items() if last.through < batch <= through}
            if not left:
                return
            yield stream, partial(self._take, stream, last, self._as_many_as_fit(left))

    def _complete_last(self, stream: Stream, number: int) -> None:
        self._last[stream] = self._complete(stream, number)

    def _last_group(self, stream: Stream) -> _Last:
        """Return how far the groups of a query are, the last one of which is done."""
        if stream not in self._last:
            folder = folder_of(stream)
            number = last_numbers(self._storage.list(folder)).get(stream)
            self._last[stream] = _Last() if number is None else self._complete(stream, number)
        return self._last[stream]

    def _take(self, stream: Stream, last: _Last, outputs: Mapping[BatchId, str]) -> None:
        """Make outputs the next group, or go on with the one that another driver has made."""
        batches = list(outputs)
        group = Group(*stream, last.number + 1, batches[0], batches[-1])
        record = json.dumps({"version": VERSION, "batches": ranges_of(batches)}).encode()
        if self._storage.create(group.record, record) and self._is_stale(group):
            self._storage.delete([group.record])
            del self._last[stream]
            return
        self._last[stream] = self._complete(stream, group.number)

    def _is_stale(self, group: Group) -> bool:
        """Whether the number was free only because the record of that number has expired; see `expire`."""
        if group.number == 0:
            return self._storage.read(folder_of((group.query, group.generation)) + _OVER) is not None
        before = f"{folder_of((group.query, group.generation))}{group.number - 1:010d}"
        return self._storage.read(before) is None

    def _complete(self, stream: Stream, number: int) -> _Last:
        """See that a group, as its record says, is done."""
        record = f"{folder_of(stream)}{number:010d}"
        data = self._storage.read(record)
        if data is None:
            raise CheckFailed(
                "is gone while it is needed: it says which rows a file has",
                where=f"{self._storage.url}/{record}",
                remedy="nothing but Holdfast may delete objects under _holdfast/; restore it, or use another folder",
            )
        about = json.loads(data.to_pybytes())
        if about.get("version") != VERSION:
            raise BadInput(
                f"has version {about.get('version')!r}, and this version of Holdfast reads {VERSION}",
                where=f"{self._storage.url}/{record}",
                remedy="continue the run with the version that wrote it",
            )
        batches = batches_of(about["batches"])
        group = Group(*stream, number, batches[0], batches[-1])
        staged = {batch: f"{STAGED}{name_of(OutputKey(stream[0], batch, 0, stream[1]))}" for batch in batches}
        if self._storage.read(group.done) is None:
            try:
                written = write_group(self._storage, group, staged, self.partition_by)
            except PieceGone as gone:
                if self._storage.read(group.done) is None:
                    raise CheckFailed(
                        "is gone, and in no file yet",
                        where=f"{self._storage.url}/{gone}",
                        remedy="nothing but Holdfast may delete objects under _staged/; restore it",
                    ) from None
            else:
                self._storage.create(group.done, _done(written))
                self._delete(list(staged.values()))
        return _Last(number, group.through)

    # -- what goes -----------------------------------------------------------------------------------------------------

    def expire(self, through: BatchId, most: int) -> int:
        """See ParquetSink: files go when all their batches may; of each query, records of the last two groups stay.

        The records of a query go one after the other, and the first leaves a mark. So whoever creates a record of a
        number that was deleted finds that the one before it is gone, too.
        """
        count = super().expire(through, most)
        names = self._storage.list()
        files = [name for name in names if (one := file_group(name)) is not None and one.through <= through]
        files = files[: most - count]
        self._storage.delete(files)
        count += len(files)
        done: dict[Stream, list[Group]] = {}
        for one in done_in(names):
            done.setdefault((one.query, one.generation), []).append(one)
        for stream, groups in done.items():
            for one in sorted(groups, key=lambda one: one.number)[:-2]:
                if one.through > through or count >= most:
                    break
                if one.number == 0:
                    self._storage.create(folder_of(stream) + _OVER, b"")
                self._storage.delete([one.record])
                self._storage.delete([one.done])
                count += 1
        return count


def _done(written: Written) -> bytes:
    about = {"version": VERSION, "files": list(written.names), "schema": encoded_schema(written.schema)}
    return json.dumps(about).encode()


def _columns(names: Sequence[str]) -> str:
    return ", ".join(names) or "nothing"
