"""Outputs as Parquet objects that any reader can read as one table. Runs on the driver; rows may be written on nodes.

Each output is one object, and its name is its key. It is created only if the name is free: that is the commit. Who
finds the name taken has nothing to do. There is no claim to check, nothing to rename, and nothing is locked.

Why this is safe against a driver or a node that was frozen, is over and does not know: the rows of a key never differ.
Outputs that a replay could change go out once a durable checkpoint covers them, and all drivers read them out of that
one snapshot; all others are the same in every replay. So a late writer finds the name taken, or creates what the new
driver would create. It replaces nothing, and only a higher revision deletes anything.

A higher revision leaves a mark under `_holdfast/revised/`, is created, and then deletes the lower ones. A writer of
revision 0 looks for that mark after its create. Whichever create ends last, its writer sees both revisions and deletes
the lower one. A writer that dies in between leaves a lower revision behind: `rows` passes over it, and the next start
deletes it.

Tentative rows are apart, under `_tentative/`, which readers pass over: the plain directory has final rows only. They
have the columns of `VERSION_COLUMNS`. A reader who wants them takes of each query and batch the final output where it
is there, else the tentative one (`versions`): so creating the final output corrects, and nothing is deleted or changed.
Where the final output has no rows, and so no object, a mark beside the tentative one says so.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import BadInput, one_line
from holdfast.ids import BatchId, Epoch
from holdfast.runtime.io.gathered_reading import count_rows, gathers, read_outputs
from holdfast.runtime.io.parquet_names import RUN, file_group, key_of, name_of, stem_of
from holdfast.runtime.io.sinks import FINAL, OutputKey, Sink, StagedRows, with_version
from holdfast.storage.storage import Storage, open_storage

_STARTS = "_holdfast/starts/"
"""One object for each driver that runs: a node that reads it reaches the same directory."""
_REVISED = "_holdfast/revised/"
"""One object for each output that has a revision above 0."""
TENTATIVE = "_tentative/"
"""Tentative outputs, and marks of those whose final version has no rows."""
_NO_ROWS = ".none"
_EARLIER = "_holdfast/claim"
"""What only directories of earlier versions have."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ParquetStager:
    """See Stager: creates the outputs themselves, where this node reaches the directory of its driver."""

    url: str
    start: str

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        try:
            _create(reached(self.url, self.start), key, rows)
        except Exception as error:
            # The driver can still take the rows; where it cannot write them either, it names the output.
            return one_line(f"{type(error).__name__}: {error}")
        return StagedRows(f"{self.url}/{name_of(key)}", rows.num_rows)


class ParquetSink(Sink):
    """Writes outputs as Parquet into a directory that any Parquet reader can read as one table.

    Readers pass over names that begin with `_` or `.`, so they see whole outputs and nothing else.
    """

    def __init__(self, directory: str | Path | Storage) -> None:
        """Take a folder, the URL of an object store, or storage; it is opened when it is first used."""
        self._directory = directory
        self._start: str | None = None

    @property
    def folder(self) -> str | Path | None:
        """The folder or URL that it was given; None: it was given storage."""
        return self._directory if isinstance(self._directory, str | Path) else None

    @cached_property
    def _storage(self) -> Storage:
        return open_storage(self._directory) if isinstance(self._directory, str | Path) else self._directory

    def kept_in(self) -> Storage:
        """Return where it writes: a start checks it."""
        return self._storage

    def begin(self, run: str, epoch: Epoch) -> None:
        """See Sink: the directory is one run's; another one's rows would pass for written already."""
        held = self._storage.read(RUN)
        if held is None:
            self._check_unused()
            if not self._storage.create(RUN, json.dumps({"run": run, **self._form}).encode()):
                held = self._storage.read(RUN)  # of two that begin at once, one is the first
        about = {"run": run, **self._form} if held is None else json.loads(held.to_pybytes())
        if (other := about.pop("run")) != run:
            raise BadInput(
                f"has rows of another run ({other})",
                where=self._storage.url,
                remedy="give this run an output directory of its own, or continue the other run in its directory",
            )
        self._check_form(about)
        if self._start is not None:
            self._storage.create(_STARTS + self._start, run.encode())
        if self._storage.list(_REVISED):
            self._storage.delete(_superseded(self._storage.list()))

    _form: Mapping[str, object] = {}
    """How outputs are written; a folder has one form."""

    def _check_form(self, there: Mapping[str, object]) -> None:
        """Refuse a folder whose outputs are in another form: a batch could come to be there in both."""
        if "gathered" in there:
            raise BadInput(
                "has outputs that were gathered (hf.parquet(…, every=…)), and would get one file for each batch",
                where=self._storage.url,
                remedy="name `every` as before, or give the output a folder of its own",
            )

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        return _create(self._storage, key, rows)

    # -- tentative outputs -------------------------------------------------------------------------------------------

    corrects = True

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """See Sink: the first version of a batch counts."""
        file = pa.BufferOutputStream()
        pq.write_table(with_version(rows, fidelity=fidelity, revision=0), file)
        return self._storage.create(f"{TENTATIVE}{stem_of(key)}-r0.parquet", file.getvalue())

    def retract(self, key: OutputKey, none: pa.Table, epoch: Epoch) -> None:
        """See Sink."""
        self._storage.create(f"{TENTATIVE}{stem_of(key)}{_NO_ROWS}", b"")

    def versions(self) -> pa.Table | None:
        """Return all rows, of each batch the final ones, else the tentative ones, with the columns that say which."""
        names = self._storage.list()
        found = versions_in(names)
        shown: list[tuple[OutputKey, pa.Table]] = []
        if gathers(self._storage):
            final = read_outputs(self._storage)
            shown += [
                (key, with_version(rows, fidelity=None, revision=found.revision(key))) for key, rows in final.items()
            ]
            over = {f"{TENTATIVE}{name_of(key)}" for key in final}
            found = Versions({}, [name for name in found.tentative if name not in over])
        for name, revision in {**found.final, **dict.fromkeys(found.tentative, 0)}.items():
            key, data = key_of(name.removeprefix(TENTATIVE)), self._storage.read(name)
            if key is not None and data is not None:
                rows = pq.read_table(pa.BufferReader(data), use_threads=False)
                known = name.startswith(TENTATIVE)
                shown.append((key, rows if known else with_version(rows, fidelity=None, revision=revision)))
        shown.sort(key=lambda one: (one[0].batch, one[0].query, one[0].generation))
        return pa.concat_tables([rows for _, rows in shown]).combine_chunks() if shown else None

    # -- rows that nodes write ---------------------------------------------------------------------------------------

    def stager(self, start: str) -> ParquetStager | None:
        """See Sink. Where a subclass has a `publish` of its own, rows pass through the driver to it."""
        if type(self).publish is not ParquetSink.publish or not self._nodes_reach:
            return None
        self._start = start
        return ParquetStager(self._storage.url, start)

    @property
    def _nodes_reach(self) -> bool:
        return not self._storage.url.startswith(("memory:", "simulated:"))

    def adopt(self, key: OutputKey, staged: StagedRows, epoch: Epoch) -> bool:
        """See Sink: it is published already."""
        return True

    def sweep_staged(self) -> None:
        """See Sink: only marks of earlier starts are left over."""
        with contextlib.suppress(OSError):  # this is only tidying
            self._storage.delete([name for name in self._storage.list(_STARTS) if name != f"{_STARTS}{self._start}"])

    def end_staging(self) -> None:
        """See Sink."""
        if self._start is not None:
            with contextlib.suppress(OSError):
                self._storage.delete([_STARTS + self._start])

    def expire(self, through: BatchId, most: int) -> int:
        """Delete outputs of batches up to one, which no recovery makes again; so many at most. Returns how many."""
        return expire_outputs(self._storage, through, most)

    # -- what is there -----------------------------------------------------------------------------------------------

    def count(self) -> int:
        """Return how many rows are there, as the footers say."""
        if gathers(self._storage):
            return count_rows(self._storage)
        return sum(self._read(lambda file: pq.read_metadata(file).num_rows))

    def rows(self) -> pa.Table | None:
        """Return all rows, by batch and then by partition, of the highest revisions; None where there are none."""
        if gathers(self._storage):
            tables = list(read_outputs(self._storage).values())
        else:
            tables = self._read(lambda file: pq.read_table(file, use_threads=False))
        # Batches of changed code, or of a function that declares no columns, may have others.
        return pa.concat_tables(tables, promote_options="permissive").combine_chunks() if tables else None

    def outputs(self) -> dict[OutputKey, pa.Table]:
        """Return the newest revision of every output, in the order of batch and query."""
        if gathers(self._storage):
            return read_outputs(self._storage)
        return dict(self._read_by_key(lambda file: pq.ParquetFile(file).read(use_threads=False)))

    def _read(self, read: Callable[[pa.BufferReader], _T]) -> list[_T]:
        """Return what `read` makes of every output that is there."""
        return [one for _, one in self._read_by_key(read)]

    def _read_by_key(self, read: Callable[[pa.BufferReader], _T]) -> list[tuple[OutputKey, _T]]:
        while True:
            names = self._storage.list()
            over = set(_superseded(names))
            keys = {name: key for name in names if name not in over and (key := key_of(name)) is not None}
            found: list[tuple[OutputKey, _T]] = []
            for name in sorted(keys, key=lambda one: (keys[one].batch, keys[one].query, keys[one].generation)):
                if (data := self._storage.read(name)) is None:
                    break  # a higher revision has just replaced it
                found.append((keys[name], read(pa.BufferReader(data))))
            else:
                return found

    def _check_unused(self) -> None:
        """Refuse a directory that has rows, and does not say whose."""
        names = self._storage.list()
        if _EARLIER in names:
            raise BadInput(
                "has outputs in the format of an earlier version of Holdfast",
                where=self._storage.url,
                remedy="give this run an output directory of its own, or continue the earlier run with its version",
            )
        if any(key_of(name) is not None or file_group(name) is not None for name in names):
            raise BadInput(
                f"has outputs, and nothing says of which run ({RUN} is missing)",
                where=self._storage.url,
                remedy="give this run an output directory of its own",
            )
        strange = [name for name in names if name.endswith(".parquet") and "/" not in name and name[0] not in "._"]
        if strange:
            raise BadInput(
                f"has Parquet files that no run of Holdfast has written ({min(strange)}): readers would take both",
                where=self._storage.url,
                remedy="give this run an output directory of its own",
            )


@dataclass(frozen=True, slots=True)
class Versions:
    """The objects that make up one version of each query and batch."""

    final: dict[str, int]
    """Final outputs, and the revision of each: 1 where it has replaced a tentative one."""
    tentative: list[str]
    """Tentative outputs whose final version is not there yet."""

    def revision(self, key: OutputKey) -> int:
        """Return the revision of a final output that is not among these: it is in a file with others, or staged."""
        return FINAL if f"{TENTATIVE}{name_of(key)}" in self.tentative else key.revision


def versions_in(names: Iterable[str]) -> Versions:
    """Choose, of the objects in a directory of outputs, one version of each query and batch: the final one if any."""
    every = set(names)
    tentative = {
        stem_of(key): name for name in every if name.startswith(TENTATIVE) and (key := key_of(name[len(TENTATIVE) :]))
    }
    over = set(_superseded(every))
    final = {name: key for name in every if name not in over and (key := key_of(name)) is not None}
    done = {stem_of(key) for key in final.values()}
    empty = {name[len(TENTATIVE) : -len(_NO_ROWS)] for name in every if name.endswith(_NO_ROWS)}
    return Versions(
        {name: FINAL if stem_of(key) in tentative else key.revision for name, key in sorted(final.items())},
        sorted(name for stem, name in tentative.items() if stem not in done and stem not in empty),
    )


def tentative_and_final(storage: Storage) -> Iterator[tuple[OutputKey, pa.Table, pa.Table | None]]:
    """Return every tentative output in a directory of outputs, and what has replaced it; None: nothing has, so far.

    What was corrected stays: so one can see afterwards how right it was.
    """
    names = storage.list()
    over = set(_superseded(names))
    final = {stem_of(key): name for name in names if name not in over and (key := key_of(name)) is not None}
    for name in sorted(name for name in names if name.startswith(TENTATIVE)):
        key = key_of(name.removeprefix(TENTATIVE))
        data = None if key is None else storage.read(name)
        if key is None or data is None:
            continue
        right = storage.read(final[stem_of(key)]) if stem_of(key) in final else None
        yield key, _rows_in(data), None if right is None else _rows_in(right)


def _rows_in(data: pa.Buffer) -> pa.Table:
    return pq.read_table(pa.BufferReader(data), use_threads=False)


def expire_outputs(storage: Storage, through: BatchId, most: int, *, folders: bool = False) -> int:
    """Delete the Parquet outputs in a storage of batches up to one; so many at most. Returns how many.

    With `folders` also those in its folders; without, what others keep in folders there is not looked at.
    """

    def is_over(name: str) -> bool:
        if name.startswith(_REVISED):
            key = key_of(f"{name.removeprefix(_REVISED)}-r0.parquet")
        elif name.startswith(TENTATIVE):
            plain = name.removeprefix(TENTATIVE)
            key = key_of(f"{plain.removesuffix(_NO_ROWS)}-r0.parquet" if plain.endswith(_NO_ROWS) else plain)
        else:
            key = key_of(name.rpartition("/")[2] if folders else name)
        return key is not None and key.batch <= through

    over = [name for name in storage.list() if is_over(name)][:most]
    storage.delete(over)
    return len(over)


@cache
def reached(url: str, start: str) -> Storage:
    """Return the storage, where its driver is seen from this process; what fails is tried again."""
    storage = open_storage(url)
    if storage.read(_STARTS + start) is None:
        raise FileNotFoundError(f"{url} is not shared with this node")
    return storage


def _create(storage: Storage, key: OutputKey, rows: pa.Table) -> bool:
    """Create an output; False: it was there already, or a higher revision is there."""
    name, stem = name_of(key), stem_of(key)
    if key.revision:
        storage.create(_REVISED + stem, name.encode())
    file = pa.BufferOutputStream()
    pq.write_table(rows, file)
    created = storage.create(name, file.getvalue())
    if not key.revision and storage.read(_REVISED + stem) is None:
        return created
    over = _superseded(storage.list(f"{stem}-r"))
    storage.delete(over)
    return created and name not in over


def _superseded(names: Iterable[str]) -> list[str]:
    """Return the names of outputs of which a higher revision is among them."""
    keys = {name: key for name in names if (key := key_of(name)) is not None}
    highest: dict[str, int] = {}
    for key in keys.values():
        highest[stem_of(key)] = max(key.revision, highest.get(stem_of(key), 0))
    return [name for name, key in keys.items() if key.revision < highest[stem_of(key)]]
