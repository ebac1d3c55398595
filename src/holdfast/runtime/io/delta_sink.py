"""Outputs as commits to a Delta table, each once. Runs on the driver; rows are written on nodes, with pyarrow alone.

A node writes an output's rows as Parquet files into the table's folder, where no reader sees them: what a table has
is what its log names. The driver adds the files of all outputs that it has to the log in one commit. With the files,
the commit holds how far each query is: an *application transaction* of Delta, whose id is the run and the query and
whose version is the batch. Before a commit the driver asks the table how far the query is, and of two commits with
the same id that do not know of each other the table refuses the second. So a driver that dies between its commit and
its progress, one that was frozen and wakes up late, and two at once add the rows of a batch once.

Files that are in no commit are left behind by nodes and drivers that die; `VACUUM` removes them, as it does after any
writer of Delta. Nothing of ours deletes a file: a late driver could still name it.

A revision above 0 replaces the rows of an output in one commit: it removes the files of lower ones and adds its own.

A table that takes tentative rows has the columns of `VERSION_COLUMNS`: who reads final rows only asks for `not
tentative`. Tentative rows are added by commits with a transaction of their own, and the commit with a batch's final
rows removes its tentative ones, also where `OPTIMIZE` has moved them into other files (`delta_tentative`). A commit
that removes files is made to the table as it was looked at: where another commit came between, it looks again. A
tentative commit also writes how far the query's final rows are, as it has read it: so of a tentative and a final
commit that do not know of each other, the table refuses the second.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import BadInput, CheckFailed, missing_extra, one_line
from holdfast.ids import Epoch, PartitionId
from holdfast.runtime.io.delta_files import DeltaFile, are_there, read_place, write_files
from holdfast.runtime.io.delta_tentative import FileWent, Replaced, TentativeRows, with_origin
from holdfast.runtime.io.delta_types import plain_schema
from holdfast.runtime.io.parquet_names import staged_in, staged_of
from holdfast.runtime.io.sinks import (
    FINAL,
    ORIGIN_COLUMNS,
    VERSION_COLUMNS,
    Output,
    OutputKey,
    Sink,
    StagedRows,
    with_version,
)
from holdfast.storage.storage import Storage, is_url, open_storage

if TYPE_CHECKING:
    from deltalake import DeltaTable

_STARTS = "_holdfast/starts/"
"""One object for each driver that runs: a node that reads it reaches the same folder. Readers of Delta pass over it."""
GATHERED = "_holdfast/gathered/"
"""Outputs that wait for their commit, run by run (`gathered_delta`)."""
TRIES = 20
"""How often a commit is tried that others came before."""
WAIT_SECONDS = 0.05
_TENTATIVE = "/tentative"
"""Ends the id of the transactions of a query's tentative rows."""
_NONE = -1
"""The batch before the first: how far a query is that has nothing in the table."""


@dataclass(frozen=True, slots=True)
class DeltaStager:
    """See Stager: writes files into the table's folder, where this node reaches the folder of its driver."""

    url: str
    start: str
    partition_by: tuple[str, ...]
    versioned: bool = False
    """Whether rows get the columns that say which version they are."""

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        try:
            rows = _final(rows, key) if self.versioned else rows
            written = write_files(self.folder(), key, rows, self.start, self.partition_by)
        except Exception as error:
            # The driver can still take the rows; where it cannot write them either, it names the output.
            return one_line(f"{type(error).__name__}: {error}")
        return StagedRows(written, rows.num_rows)

    def folder(self) -> Storage:
        """Return the table's folder, as this node reaches it."""
        return reached(self.url, self.start)


class DeltaSink(Sink):
    """Adds outputs to a Delta table, exactly once; several outputs and several runs may write to one table."""

    grouped: bool = True

    def __init__(self, table: str | Path, partition_by: Sequence[str] = (), *, tentative: bool = False) -> None:
        """Take the table's folder, or its URL in an object store; it is created with the first rows.

        With `tentative` the table takes tentative rows too, and has columns that say which rows are.
        """
        self._place, self._partition_by = str(table), tuple(partition_by)
        self.corrects = tentative
        self._start = "driver"
        self._table: DeltaTable | None = None
        self._corrected: dict[str, int] = {}
        """The last batch with tentative rows, by query, where none of them is left in the table."""
        self._storage_of: Storage | None = None
        self._tentative_rows: TentativeRows | None = None
        self._looked_for_staged: set[PartitionId] = set()
        """Queries of which no rows wait that an earlier start has gathered."""

    @property
    def _storage(self) -> Storage:
        if self._storage_of is None:
            self._storage_of = open_storage(self._place)
        return self._storage_of

    def kept_in(self) -> Storage:
        """Return where it writes: a start checks it."""
        return self._storage

    def begin(self, run: str, epoch: Epoch) -> None:
        """See Sink. A table that is there must be one that this output can be added to."""
        table = self._opened()
        if table is not None and (there := tuple(table.metadata().partition_columns)) != self._partition_by:
            mine = ", ".join(self._partition_by) or "nothing"
            raise BadInput(
                f"is partitioned by {', '.join(there) or 'nothing'}, not by {mine}",
                where=self._place,
                remedy=f"name the table's columns: hf.delta(…, partition_by={list(there)!r})",
            )
        columns = [] if table is None else [one.name for one in table.schema().fields]
        if table is not None and self.corrects and not set(VERSION_COLUMNS) <= set(columns):
            raise BadInput(
                f"has no columns {', '.join(VERSION_COLUMNS)}: readers could not tell tentative rows from final ones",
                where=self._place,
                remedy="give the output a table of its own, or leave out hf.delta(…, tentative=True)",
            )
        if table is not None and self.corrects and not set(ORIGIN_COLUMNS) <= set(columns):
            raise BadInput(
                f"has no columns {', '.join(ORIGIN_COLUMNS)}, by which tentative rows are found after OPTIMIZE: an "
                "earlier version has made it",
                where=self._place,
                remedy="delete its tentative rows and add the columns: `from deltalake import DeltaTable, Field; "
                f"table = DeltaTable({self._place!r}); table.delete('tentative'); table.alter.add_columns(["
                f"Field({ORIGIN_COLUMNS[0]!r}, 'string'), Field({ORIGIN_COLUMNS[1]!r}, 'long')])`; or give the output "
                "a table of its own",
            )
        if self._start != "driver":
            self._storage.create(_STARTS + self._start, run.encode())

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        return self._commit([Output(key, rows)]) > 0

    def adopt(self, key: OutputKey, staged: StagedRows, epoch: Epoch) -> bool:
        """See Sink."""
        if not self._are_there(staged):
            raise FileNotFoundError(staged.place)
        return self._commit([Output(key, None, staged)]) > 0

    def publish_all(self, outputs: Sequence[Output], epoch: Epoch) -> list[OutputKey]:
        """See Sink: one commit for all of them. Of each query, nothing after an output whose files are gone is out."""
        gone = set()
        whole = []
        for output in outputs:
            query = output.key.query
            if query in gone:
                continue
            if output.staged is not None and not self._are_there(output.staged):
                gone.add(query)
                continue
            whole.append(output)
        self._commit(whole)
        return [output.key for output in whole]

    # -- tentative outputs -------------------------------------------------------------------------------------------

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """See Sink: the first version of a batch counts."""
        return self._commit([Output(key, rows, fidelity=fidelity)]) > 0

    def retract(self, key: OutputKey, none: pa.Table, epoch: Epoch) -> None:
        """See Sink."""
        self._commit([Output(key, none, retracts=True)])

    # -- rows that nodes write ---------------------------------------------------------------------------------------

    def stager(self, start: str) -> DeltaStager | None:
        """See Sink."""
        self._start = re.sub(r"[^A-Za-z0-9_-]", "-", start)
        return DeltaStager(self._storage.url, self._start, self._partition_by, self.corrects)

    def end_staging(self) -> None:
        """See Sink: files that no commit names stay until VACUUM, because a late driver could still commit them."""
        if self._start != "driver":
            with contextlib.suppress(OSError):  # this is only tidying
                self._storage.delete([_STARTS + self._start])

    # -- what is there -----------------------------------------------------------------------------------------------

    def rows(self) -> pa.Table | None:
        """Return all rows of the table, in no order; None where there is no table."""
        table = self._looked_at()
        return None if table is None else pa.table(table.to_pyarrow_table())

    def count(self) -> int:
        """Return how many rows the table has, of whatever writer."""
        table = self._looked_at()
        return 0 if table is None else int(table.count())

    # -- commits -----------------------------------------------------------------------------------------------------

    def _commit(self, outputs: Sequence[Output]) -> int:
        """Add to the table what it does not have; return how many outputs that were."""
        for output in outputs:
            self._check_none_staged(output.key)
        written = {output.key: _files_of(output, self._write) for output in outputs}
        schemas = [schema for schema, files in written.values() if files]
        if not schemas and (self._opened() is None or not any(one.retracts for one in outputs)):
            return 0
        last: Exception | None = None
        for attempt in range(TRIES):
            table = self._opened() or self._created(schemas[0])
            for schema in schemas:
                self._check_schema(table, schema)
            new = [one for one in outputs if (written[one.key][1] or one.retracts) and not _is_in(table, one)]
            if not new:
                return 0
            try:
                self._add(table, new, {output.key: written[output.key][1] for output in new})
                return len(new)
            except (self._refused, FileWent) as error:
                # Another writer was faster: of this output (a driver that is over), or of this table.
                last = error
                self._pause(WAIT_SECONDS * min(attempt, 10))
        raise CheckFailed(
            f"could not be committed in {TRIES} attempts: {one_line(str(last))}",
            where=self._place,
            remedy="let other writers of the table pause, or give this output a table of its own",
        )

    def _check_none_staged(self, key: OutputKey) -> None:
        """Refuse a query of which rows wait that were gathered: a commit after them would pass over them.

        Only rows between what the table has and this output wait: outputs of a query are out in order, so what is
        staged of this batch and later ones is not out, and comes again.
        """
        if key.query in self._looked_for_staged:
            return
        folder = gathered_folder(key.run)
        if names := self._storage.list(folder + staged_of(key.query)):
            table = self._opened()
            held = None if table is None else table.transaction_version(transaction(replace(key, revision=0))[0])
            staged = staged_in(name.removeprefix(folder) for name in names)
        else:
            held, staged = None, {}
        if any((held is None or batch > held) and batch < key.batch for one in staged.values() for batch in one):
            raise BadInput(
                "has rows that wait for their commit (hf.delta(…, every=…)), and would get a commit for each batch",
                where=f"{self._place}, {key.query}",
                remedy="name `every` as before, or stop the run with it once: then nothing waits",
            )
        self._looked_for_staged.add(key.query)

    def _add(
        self, table: DeltaTable, outputs: Sequence[Output], files: Mapping[OutputKey, Sequence[DeltaFile]]
    ) -> None:
        versions: dict[str, int] = {}
        replacing = []
        for output in outputs:
            key = output.key
            identity, version = transaction(key)
            if output.tentative:
                # With what it has read of the final rows: a commit of these that it does not know of refuses it.
                held = table.transaction_version(identity)
                versions.setdefault(identity, _NONE if held is None else held)
                identity = f"{identity}{_TENTATIVE}"
            versions[identity] = max(version, versions.get(identity, _NONE))
            if key.revision or (not output.tentative and self._may_have_tentative(table, key)):
                replacing.append(key)
        replaced = self._tentative().replaced(table, replacing, self._start) if replacing else Replaced()
        added = [*(one for output in outputs for one in files[output.key]), *replaced.added]
        self._append(table, added, versions, replaced.removed)
        if replacing:
            self._tentative().committed()
        for output in outputs:
            identity = transaction(output.key)[0]
            last = table.transaction_version(f"{identity}{_TENTATIVE}")
            if last is not None and not output.tentative and output.key.batch > last:
                self._corrected[identity] = last

    def _append(
        self,
        table: DeltaTable,
        added: Sequence[DeltaFile],
        versions: Mapping[str, int],
        removed: Mapping[str, int] | None = None,
    ) -> None:
        """Commit files to the table as it was looked at, with application transactions; `commit_failed()` where not."""
        from deltalake import CommitProperties, Transaction
        from deltalake.transaction import AddAction, RemoveAction

        now = int(time.time() * 1000)
        actions: list[Any] = [
            AddAction(one.name, one.size, one.values, now, True, json.dumps({"numRecords": one.rows})) for one in added
        ]
        actions += [RemoveAction(path, True, now, size) for path, size in (removed or {}).items()]
        table.create_write_transaction(
            actions,
            "append",
            table.schema(),
            partition_by=list(self._partition_by),
            commit_properties=CommitProperties(
                # The library does not notice that another commit has removed the same file: its rows may be in another
                # one since. Without attempts of its own, it refuses a commit that is not the next one.
                max_commit_retries=0 if removed else None,
                app_transactions=[Transaction(identity, version, now) for identity, version in versions.items()],
            ),
        )

    @property
    def _refused(self) -> type[Exception]:
        """What a commit raises where another one came between."""
        return commit_failed()

    def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def _tentative(self) -> TentativeRows:
        if self._tentative_rows is None:
            import pyarrow.fs as pa_fs
            from deltalake.fs import DeltaStorageHandler

            files = pa_fs.PyFileSystem(DeltaStorageHandler(self._uri()))
            self._tentative_rows = TentativeRows(self._place, self._storage, files)
        return self._tentative_rows

    def _may_have_tentative(self, table: DeltaTable, key: OutputKey) -> bool:
        """Whether the table may have tentative rows of a query, of this batch or an earlier one."""
        identity = transaction(key)[0]
        last = table.transaction_version(f"{identity}{_TENTATIVE}")
        return last is not None and self._corrected.get(identity) != last

    def _opened(self) -> DeltaTable | None:
        """Return the table as it is now; None where there is none yet."""
        from_deltalake = _deltalake()
        try:
            if self._table is None:
                self._table = from_deltalake.DeltaTable(self._uri())
            else:
                self._table.update_incremental()
        except from_deltalake.exceptions.TableNotFoundError:
            self._table = None
        return self._table

    def _looked_at(self) -> DeltaTable | None:
        """Return the table as it is now, for readers: they are beside a commit, which is to what it has looked at."""
        from_deltalake = _deltalake()
        try:
            table: DeltaTable = from_deltalake.DeltaTable(self._uri())
        except from_deltalake.exceptions.TableNotFoundError:
            return None
        return table

    def _created(self, schema: pa.Schema) -> DeltaTable:
        table = _deltalake().DeltaTable.create(
            self._uri(), schema, mode="ignore", partition_by=list(self._partition_by) or None
        )
        self._table = table
        return table

    def _uri(self) -> str:
        if is_url(self._place):
            return self._place
        Path(self._place).mkdir(parents=True, exist_ok=True)
        return str(Path(self._place).resolve())

    def _check_schema(self, table: DeltaTable, schema: pa.Schema) -> None:
        there = plain_schema(pa.schema(table.schema().to_arrow()))
        mine = plain_schema(schema)
        if [(one.name, one.type) for one in there] != [(one.name, one.type) for one in mine]:
            raise BadInput(
                f"has the columns {_columns(there)}, and the output has {_columns(mine)}",
                where=self._place,
                remedy="give the output a table of its own, or select and name its columns as the table has them",
            )

    def _write(self, output: Output, rows: pa.Table) -> str:
        if self.corrects:
            if output.fidelity is None:
                rows = _final(rows, output.key)
            else:
                rows = with_origin(with_version(rows, fidelity=output.fidelity, revision=0), output.key)
        return write_files(self._storage, output.key, rows, self._start, self._partition_by, tentative=output.tentative)

    def _are_there(self, staged: StagedRows) -> bool:
        """Whether what a node has written days ago is still there."""
        return are_there(self._storage, read_place(staged.place)[1])


def gathered_folder(run: str) -> str:
    """Return where in a table's folder the gathered outputs of a run wait; readers of Delta and VACUUM pass over it."""
    digest = hashlib.blake2b(run.encode(), digest_size=8).hexdigest()
    return f"{GATHERED}{re.sub(r'[^A-Za-z0-9_-]', '-', run)}-{digest}/"


def transaction(key: OutputKey) -> tuple[str, int]:
    """Return under which id and version the table remembers an output."""
    base = f"holdfast/{key.run}/{key.query}"
    return (base, key.batch) if not key.revision else (f"{base}/{key.batch}", key.revision)


def _final(rows: pa.Table, key: OutputKey) -> pa.Table:
    """Return final rows with the columns of a table that takes tentative ones."""
    return with_origin(with_version(rows, fidelity=None, revision=FINAL), key)


def _is_in(table: DeltaTable, output: Output) -> bool:
    """Whether the table has an output; of tentative rows, also whether it has those, or the final ones, already."""
    key = output.key
    identity, version = transaction(key)
    held = table.transaction_version(identity)
    if held is not None and held >= version:
        return True
    if output.tentative:
        return _has_tentative(table, key)
    # Revision 0 that comes after a correction of it is over.
    later = None if key.revision else table.transaction_version(f"{identity}/{key.batch}")
    return later is not None


def _has_tentative(table: DeltaTable, key: OutputKey) -> bool:
    """Whether tentative rows of an output, or of a later batch of its query, have been added."""
    held = table.transaction_version(f"{transaction(key)[0]}{_TENTATIVE}")
    return held is not None and held >= key.batch


def _files_of(output: Output, write: Callable[[Output, pa.Table], str]) -> tuple[pa.Schema, list[DeltaFile]]:
    """Return the files of an output, which are written now where no node has."""
    if output.staged is not None:
        return read_place(output.staged.place)
    if output.rows is None or output.retracts:
        return pa.schema([]), []
    return read_place(write(output, output.rows))


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{one.name} {one.type}" for one in schema)


def _deltalake() -> Any:
    try:
        import deltalake
        import deltalake.exceptions
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    return deltalake


def commit_failed() -> type[Exception]:
    """Return what a commit raises where another one came between."""
    failed: type[Exception] = _deltalake().exceptions.CommitFailedError
    return failed


@cache
def reached(url: str, start: str) -> Storage:
    """Return the storage, where its driver is seen from this process; what fails is tried again."""
    storage = open_storage(url)
    if storage.read(_STARTS + start) is None:
        raise FileNotFoundError(f"{url} is not shared with this node")
    return storage
