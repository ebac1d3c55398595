"""Outputs of a Delta table that are gathered: many batches in one commit, and in one file. Runs on the driver.

An output is staged first (`gathering`), below `_holdfast/gathered/`, where neither readers of Delta nor VACUUM look. It
is out then. From time to time the outputs that wait, of each query those that follow what the table has, are written as
files, one for each query and each value of the columns by which the table is partitioned, and added in one commit. With
the files, the commit holds the last batch of each query: the application transaction that a commit of a single batch
has, too (`delta_sink`).

So the table's log says which batches have been added, and is what numbered records are to Parquet files: a driver reads
how far a query is, adds what is staged after that batch, and the table refuses a commit where another one has added to
one of its queries since. Staged copies are deleted after a commit that has their rows. A driver that was frozen before
its commit is refused; one that was frozen before it reads finds either all rows that the table does not have, or that
the table has them. What it, or its nodes, stage again is not after the last batch of the table: readers pass over it,
and the next look deletes it.

A group ends with the last output that is known to be out. Up to there all staged copies are there, because outputs of a
query are out in order, and listings that begin later show them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import BadInput, CheckFailed, one_line
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io.delta_files import DeltaFile, are_there, partition_text
from holdfast.runtime.io.delta_sink import (
    GATHERED,
    TRIES,
    WAIT_SECONDS,
    DeltaSink,
    gathered_folder,
    reached,
    transaction,
)
from holdfast.runtime.io.delta_types import delta_rows, plain_schema
from holdfast.runtime.io.gathered_files import NewFile, PieceGone, write_group
from holdfast.runtime.io.gathered_folders import check_rows
from holdfast.runtime.io.gathered_reading import read_staged
from holdfast.runtime.io.gathering import EVERY_SECONDS, GatheringSink, stage
from holdfast.runtime.io.parquet_names import STAGED, Group, Stream, key_of, name_of, staged_in
from holdfast.runtime.io.sinks import Gathered, Output, OutputKey, Sink, StagedRows
from holdfast.storage.storage import Storage

if TYPE_CHECKING:
    from deltalake import DeltaTable

_RUN = "run"
"""The name of the run whose outputs wait."""
_READ_TRIES = 10


@dataclass(frozen=True, slots=True)
class GatheredDeltaStager:
    """See Stager: stages outputs where this node reaches the table's folder of its driver."""

    url: str
    start: str
    partition_by: tuple[str, ...] = ()

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        try:
            storage = self.folder().within(gathered_folder(key.run).rstrip("/"))
            staged = _stage(storage, key, rows, self.partition_by, self.url)
        except Exception as error:
            # The driver can still take the rows; where it cannot write them either, it names the output.
            return one_line(f"{type(error).__name__}: {error}")
        return StagedRows(json.dumps([staged.schema, staged.there, staged.bytes]), rows.num_rows)

    def folder(self) -> Storage:
        """Return the table's folder, as this node reaches it."""
        return reached(self.url, self.start)


@dataclass(frozen=True, slots=True)
class _Staged:
    """An output that is staged."""

    schema: str
    """The columns of its rows, as they were given now."""
    there: str
    """Those of the staged copy: changed code may have given a batch others."""
    bytes: int
    new: bool = False


@dataclass(slots=True)
class _Group:
    """Staged outputs of a query that follow what the table has of it."""

    stream: Stream
    staged: dict[BatchId, str]
    files: list[DeltaFile] = field(default_factory=list)
    """Empty: they are not written yet."""

    @property
    def query(self) -> PartitionId:
        return self.stream[0]

    @property
    def through(self) -> BatchId:
        return max(self.staged)


class GatheredDeltaSink(GatheringSink, DeltaSink):
    """Adds outputs to a Delta table, those of many batches in one commit; see the module."""

    grouped = False

    def __init__(
        self,
        table: str | Path,
        every: float = EVERY_SECONDS,
        file_mb: float = 128,
        partition_by: Sequence[str] = (),
    ) -> None:
        """Commit once the first rows have waited for `every` seconds, or what waits has so many megabytes."""
        DeltaSink.__init__(self, table, partition_by)
        GatheringSink.__init__(self, every, file_mb, partition_by)
        self._run = ""
        self._fitting: set[str] = set()
        """Columns of outputs that the table has, as far as they were looked at."""

    @property
    def _kept(self) -> Storage:
        return self._storage.within(gathered_folder(self._run).rstrip("/"))

    def begin(self, run: str, epoch: Epoch) -> None:
        """See Sink: what an earlier driver has left staged is committed with the next look."""
        super().begin(run, epoch)
        self._run = run
        self._kept.create(_RUN, run.encode())
        with self._lock:
            self._found = bool(self._kept.list(STAGED))

    def has_staged(self, run: str) -> bool:
        """Whether outputs of a run are staged beside the table."""
        return bool(self._storage.list(gathered_folder(run) + STAGED))

    def publish_all(self, outputs: Sequence[Output], epoch: Epoch) -> list[OutputKey]:
        """See Sink."""
        return list(Sink.publish_all(self, outputs, epoch))

    # -- staging -----------------------------------------------------------------------------------------------------

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink: an output that is staged is out."""
        if key.revision:
            raise BadInput("gathered outputs have no revisions", where=str(key), remedy="use hf.delta(…, every=None)")
        self._see_that_it_fits(_hex(delta_rows(rows).schema))
        staged = _stage(self._kept, key, rows, self.partition_by, self._place)
        self._take(key, staged)
        return staged.new

    def stager(self, start: str) -> GatheredDeltaStager:  # type: ignore[override]
        """See Sink."""
        DeltaSink.stager(self, start)
        return GatheredDeltaStager(self._storage.url, self._start, self.partition_by)

    def adopt(self, key: OutputKey, staged: StagedRows, epoch: Epoch) -> bool:
        """See Sink."""
        self._take(key, _Staged(*json.loads(staged.place)))
        return True

    def _take(self, key: OutputKey, staged: _Staged) -> None:
        self._see_that_it_fits(staged.schema)
        if staged.there != staged.schema:
            try:
                self._see_that_it_fits(staged.there)
            except BadInput as error:
                # A table of other columns has refused it before: so it was never out.
                name = f"{self._kept.url}/{STAGED}{name_of(key)}"
                raise BadInput(
                    "was staged with columns that the table does not have",
                    where=f"{self._place}, {key}",
                    remedy=f"delete {name}, then run `holdfast resume`",
                ) from error
        self._staged(key, staged.bytes)

    def _see_that_it_fits(self, schema: str) -> None:
        """Refuse rows with other columns than the table's before they are out; create the table with the first."""
        if schema not in self._fitting:
            columns = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(schema)))
            self._check_schema(self._opened() or self._created(columns), columns)
            self._fitting.add(schema)

    # -- commits -----------------------------------------------------------------------------------------------------

    def _due_queries(self, now: float) -> set[PartitionId]:
        """See GatheringSink: a commit costs the same for all queries as for one, so all that wait are in it."""
        waits = self._waiting.values()
        is_due = sum(one.bytes for one in waits) >= self._most_bytes or any(self._is_due(one, now) for one in waits)
        return set(self._waiting) if is_due else set()

    def _groups(
        self, known: Gathered, out: Mapping[PartitionId, BatchId], due: Collection[PartitionId] | None
    ) -> Iterator[tuple[Stream, Callable[[], object]]]:
        """See GatheringSink: groups of several queries are in one commit, as long as they are small together."""
        while True:
            whole: list[_Group] = []
            size = 0
            is_done = True
            for stream, staged in staged_in(self._kept.list(STAGED)).items():
                through = self._through(stream, known, out, due)
                if through is None or any(one.query == stream[0] for one in whole):
                    is_done = is_done and through is None  # another layout's rows of the query go first
                    continue
                last = self._has(stream[0])
                self._delete([name for batch, name in staged.items() if batch <= last])
                left = {batch: name for batch, name in staged.items() if last < batch <= through}
                if not left:
                    continue
                is_done = False
                chosen = self._as_many_as_fit(left)
                more = sum(self._sizes[name] for name in chosen.values())
                if whole and size + more > self._most_bytes:
                    break
                whole.append(_Group(stream, chosen))
                size += more
            if is_done:
                return
            yield whole[0].stream, partial(self._commit_groups, whole)

    def _has(self, query: PartitionId) -> BatchId:
        """Return the last batch of a query that the table has."""
        table = self._opened()
        held = None if table is None else self._version(table, query)
        return BatchId(-1 if held is None else held)

    def _version(self, table: DeltaTable, query: PartitionId) -> int | None:
        found: int | None = table.transaction_version(self._identity(query))
        return found

    def _commit_groups(self, groups: Sequence[_Group]) -> None:
        """Add the rows of groups to the table in one commit, but for what it has by now; then drop what was staged."""
        last: Exception | None = None
        for attempt in range(TRIES):
            there = [one for one in groups if self._write_files(one)]
            # From here on, this driver does not look at the table again: what comes after this look refuses the commit.
            table = self._present()
            new = [one for one in there if not self._has_begun(table, one)]
            if not new:
                return
            versions = {self._identity(one.query): int(one.through) for one in new}
            try:
                self._append(table, [file for one in new for file in one.files], versions)
            except self._refused as error:
                # Another writer was faster: of these queries (a driver that is over), or of this table.
                last = error
                self._pause(WAIT_SECONDS * min(attempt, 10))
                continue
            self._delete([name for one in new for name in one.staged.values()])
            return
        raise CheckFailed(
            f"could not be committed in {TRIES} attempts: {one_line(str(last))}",
            where=self._place,
            remedy="let other writers of the table pause, or give this output a table of its own",
        )

    def _present(self) -> DeltaTable:
        if (table := self._opened()) is None:
            raise CheckFailed(
                "is gone, and rows wait that were to be added to it",
                where=self._place,
                remedy="restore the table, then run `holdfast resume`",
            )
        return table

    def _has_begun(self, table: DeltaTable, group: _Group) -> bool:
        """Whether another driver has added some of a group, or all: the next look begins after that."""
        held = self._version(table, group.query)
        return held is not None and held >= min(group.staged)

    def _identity(self, query: PartitionId) -> str:
        return transaction(OutputKey(query, BatchId(0), run=self._run))[0]

    def _write_files(self, group: _Group) -> bool:
        """Write the files of a group, where they are not there; False: another driver has added its rows meanwhile."""
        if group.files and are_there(self._storage, group.files):
            return True
        files: list[DeltaFile] = []
        columns = {one.name: one.type for one in plain_schema(pa.schema(self._present().schema().to_arrow()))}
        (query, generation), batches = group.stream, list(group.staged)
        about = Group(query, generation, 0, batches[0], batches[-1])
        try:
            write_group(self._kept, about, group.staged, self.partition_by, partial(self._new_file, columns, files))
        except PieceGone as gone:
            if self._has(query) >= batches[0]:
                return False
            raise CheckFailed(
                "is gone, and in no commit yet",
                where=f"{self._kept.url}/{gone}",
                remedy="nothing but Holdfast may delete objects under _holdfast/; restore it",
            ) from None
        group.files = files
        return True

    def _new_file(self, columns: Mapping[str, pa.DataType], files: list[DeltaFile], new: NewFile) -> str:
        if strange := [one for one in plain_schema(new.schema) if columns.get(one.name) != one.type]:
            raise BadInput(
                f"has no column {strange[0].name} {strange[0].type}, which rows have that wait for their commit",
                where=self._place,
                remedy="give the table the column again, then run `holdfast resume`",
            )
        # Neither the run's name nor a folder's tells files apart without doubt.
        digest = hashlib.blake2b(f"{self._run}\0{new.place}".encode(), digest_size=8).hexdigest()
        name = f"hf-{self._start}-{new.name.removesuffix('.parquet').lstrip('=')}-{digest}.parquet"
        size = new.data.size
        if not self._storage.create(name, new.data):
            # This driver has written it before, with the same rows.
            if (held := self._storage.read(name)) is None:
                raise FileNotFoundError(name)
            size = held.size
        values = {} if new.values is None else new.values.to_pylist()[0]
        texts = {column: partition_text(value) for column, value in values.items()}
        files.append(DeltaFile(name, size, new.rows, texts))
        return name

    # -- what is there -----------------------------------------------------------------------------------------------

    def rows(self) -> pa.Table | None:
        """Return all rows of the table, and those that wait for their commit; None where there is no table."""
        for _ in range(_READ_TRIES):
            names = list_staged(self._storage)
            if (table := self._looked_at()) is None:
                return None
            there = pa.table(table.to_pyarrow_table())
            found = [there]
            for name in waiting(self._storage, names, table.transaction_version):
                try:
                    rows = read_staged(self._storage, name)
                except FileNotFoundError:
                    break  # it has just been committed
                found.append(rows.select(there.schema.names).cast(there.schema))
            else:
                return pa.concat_tables(found)
        raise _too_fast(self._place)

    def count(self) -> int:
        """Return how many rows the table has, of whatever writer, and wait for their commit."""
        for _ in range(_READ_TRIES):
            names = list_staged(self._storage)
            if (table := self._looked_at()) is None:
                return 0
            many = int(table.count())
            for name in waiting(self._storage, names, table.transaction_version):
                if (data := self._storage.read(name)) is None:
                    break
                many += pq.read_metadata(pa.BufferReader(data)).num_rows
            else:
                return many
        raise _too_fast(self._place)


def list_staged(storage: Storage) -> list[str]:
    """Return the staged outputs of all runs in a table's folder: before the table is looked at."""
    return [name for name in storage.list(GATHERED) if f"/{STAGED}" in name]


def waiting(storage: Storage, staged: Sequence[str], version: Callable[[str], int | None]) -> list[str]:
    """Return those of staged outputs that are not in a table, in their order, by its application transactions."""
    runs: dict[str, str] = {}
    found: list[tuple[OutputKey, str]] = []
    for name in staged:
        folder, _, own = name.partition(STAGED)
        if folder not in runs:
            data = storage.read(folder + _RUN)
            runs[folder] = "" if data is None else data.to_pybytes().decode()
        if (key := key_of(own)) is None:
            continue
        held = version(transaction(OutputKey(key.query, key.batch, run=runs[folder]))[0])
        if held is None or key.batch > held:
            found.append((key, name))
    return [name for _, name in sorted(found, key=lambda one: (one[0].batch, one[0].query, one[0].generation))]


def _too_fast(place: str) -> CheckFailed:
    return CheckFailed("is committed faster than it can be read", where=place, remedy="set a longer `every`")


def _stage(storage: Storage, key: OutputKey, rows: pa.Table, partition_by: Sequence[str], where: str) -> _Staged:
    """Create an output's staged copy, as the table has rows."""
    check_rows(rows, partition_by, key.batch, where)
    rows = delta_rows(rows)
    new, size = stage(storage, key, rows)
    there = rows.schema
    if not new and (held := storage.read(f"{STAGED}{name_of(key)}")) is not None:
        there, size = pq.read_schema(pa.BufferReader(held)), held.size
    return _Staged(_hex(rows.schema), _hex(there), size, new)


def _hex(schema: pa.Schema) -> str:
    return str(schema.remove_metadata().serialize().to_pybytes().hex())
