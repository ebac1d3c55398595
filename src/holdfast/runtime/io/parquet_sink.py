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
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import BadInput, one_line
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.io.sinks import FINAL, OutputKey, Sink, StagedRows, with_version
from holdfast.storage.storage import Storage, open_storage

_RUN = "_holdfast/run.json"
"""Whose the directory is."""
_STARTS = "_holdfast/starts/"
"""One object for each driver that runs: a node that reads it reaches the same directory."""
_REVISED = "_holdfast/revised/"
"""One object for each output that has a revision above 0."""
TENTATIVE = "_tentative/"
"""Tentative outputs, and marks of those whose final version has no rows."""
_NO_ROWS = ".none"
_EARLIER = "_holdfast/claim"
"""What only directories of earlier versions have."""

_NAME = re.compile(r"=?([^/]+)-([0-9]{5,})-([0-9]{10,})-g([0-9]+)-r([0-9]+)\.parquet", re.ASCII)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ParquetStager:
    """See Stager: creates the outputs themselves, where this node reaches the directory of its driver."""

    url: str
    start: str

    def stage(self, key: OutputKey, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        try:
            _create(_reached(self.url, self.start), key, rows)
        except Exception as error:
            # The driver can still take the rows; where it cannot write them either, it names the output.
            return one_line(f"{type(error).__name__}: {error}")
        return StagedRows(f"{self.url}/{_name(key)}", rows.num_rows)


class ParquetSink(Sink):
    """Writes outputs as Parquet into a directory that any Parquet reader can read as one table.

    Readers pass over names that begin with `_` or `.`, so they see whole outputs and nothing else.
    """

    def __init__(self, directory: str | Path | Storage) -> None:
        """Take a folder, the URL of an object store, or storage; it is opened when it is first used."""
        self._directory = directory
        self._start: str | None = None

    @cached_property
    def _storage(self) -> Storage:
        return open_storage(self._directory) if isinstance(self._directory, str | Path) else self._directory

    def kept_in(self) -> Storage:
        """Return where it writes: a start checks it."""
        return self._storage

    def begin(self, run: str, epoch: Epoch) -> None:
        """See Sink: the directory is one run's; another one's rows would pass for written already."""
        held = self._storage.read(_RUN)
        if held is None:
            self._check_unused()
            if not self._storage.create(_RUN, json.dumps({"run": run}).encode()):
                held = self._storage.read(_RUN)  # of two that begin at once, one is the first
        if held is not None and (other := json.loads(held.to_pybytes())["run"]) != run:
            raise BadInput(
                f"has rows of another run ({other})",
                where=self._storage.url,
                remedy="give this run an output directory of its own, or continue the other run in its directory",
            )
        if self._start is not None:
            self._storage.create(_STARTS + self._start, run.encode())
        if self._storage.list(_REVISED):
            self._storage.delete(_superseded(self._storage.list()))

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        return _create(self._storage, key, rows)

    # -- tentative outputs -------------------------------------------------------------------------------------------

    corrects = True

    def publish_tentative(self, key: OutputKey, rows: pa.Table, fidelity: float, epoch: Epoch) -> bool:
        """See Sink: the first version of a batch counts."""
        file = pa.BufferOutputStream()
        pq.write_table(with_version(rows, fidelity=fidelity, revision=0), file)
        return self._storage.create(f"{TENTATIVE}{_stem(key)}-r0.parquet", file.getvalue())

    def retract(self, key: OutputKey, none: pa.Table, epoch: Epoch) -> None:
        """See Sink."""
        self._storage.create(f"{TENTATIVE}{_stem(key)}{_NO_ROWS}", b"")

    def versions(self) -> pa.Table | None:
        """Return all rows, of each batch the final ones, else the tentative ones, with the columns that say which."""
        found = versions_in(self._storage.list())
        shown: list[tuple[OutputKey, pa.Table]] = []
        for name, revision in {**found.final, **dict.fromkeys(found.tentative, 0)}.items():
            key, data = _key(name.removeprefix(TENTATIVE)), self._storage.read(name)
            if key is not None and data is not None:
                rows = pq.read_table(pa.BufferReader(data), use_threads=False)
                known = name.startswith(TENTATIVE)
                shown.append((key, rows if known else with_version(rows, fidelity=None, revision=revision)))
        shown.sort(key=lambda one: (one[0].batch, one[0].query, one[0].generation))
        return pa.concat_tables([rows for _, rows in shown]).combine_chunks() if shown else None

    # -- rows that nodes write ---------------------------------------------------------------------------------------

    def stager(self, start: str) -> ParquetStager | None:
        """See Sink. Where a subclass has a `publish` of its own, rows pass through the driver to it."""
        if type(self).publish is not ParquetSink.publish or self._storage.url.startswith(("memory:", "simulated:")):
            return None
        self._start = start
        return ParquetStager(self._storage.url, start)

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
        return sum(self._read(lambda file: pq.read_metadata(file).num_rows))

    def rows(self) -> pa.Table | None:
        """Return all rows, by batch and then by partition, of the highest revisions; None where there are none."""
        tables = self._read(lambda file: pq.read_table(file, use_threads=False))
        return pa.concat_tables(tables).combine_chunks() if tables else None

    def outputs(self) -> dict[OutputKey, pa.Table]:
        """Return the newest revision of every output, in the order of batch and query."""
        return dict(self._read_by_key(lambda file: pq.ParquetFile(file).read(use_threads=False)))

    def _read(self, read: Callable[[pa.BufferReader], _T]) -> list[_T]:
        """Return what `read` makes of every output that is there."""
        return [one for _, one in self._read_by_key(read)]

    def _read_by_key(self, read: Callable[[pa.BufferReader], _T]) -> list[tuple[OutputKey, _T]]:
        while True:
            names = self._storage.list()
            over = set(_superseded(names))
            keys = {name: key for name in names if name not in over and (key := _key(name)) is not None}
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
        if any(_key(name) is not None for name in names):
            raise BadInput(
                f"has outputs, and nothing says of which run ({_RUN} is missing)",
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


def versions_in(names: Iterable[str]) -> Versions:
    """Choose, of the objects in a directory of outputs, one version of each query and batch: the final one if any."""
    every = set(names)
    tentative = {
        _stem(key): name for name in every if name.startswith(TENTATIVE) and (key := _key(name[len(TENTATIVE) :]))
    }
    over = set(_superseded(every))
    final = {name: key for name in every if name not in over and (key := _key(name)) is not None}
    done = {_stem(key) for key in final.values()}
    empty = {name[len(TENTATIVE) : -len(_NO_ROWS)] for name in every if name.endswith(_NO_ROWS)}
    return Versions(
        {name: FINAL if _stem(key) in tentative else key.revision for name, key in sorted(final.items())},
        sorted(name for stem, name in tentative.items() if stem not in done and stem not in empty),
    )


def expire_outputs(storage: Storage, through: BatchId, most: int, *, folders: bool = False) -> int:
    """Delete the Parquet outputs in a storage of batches up to one; so many at most. Returns how many.

    With `folders` also those in its folders; without, what others keep in folders there is not looked at.
    """

    def is_over(name: str) -> bool:
        if name.startswith(_REVISED):
            key = _key(f"{name.removeprefix(_REVISED)}-r0.parquet")
        elif name.startswith(TENTATIVE):
            plain = name.removeprefix(TENTATIVE)
            key = _key(f"{plain.removesuffix(_NO_ROWS)}-r0.parquet" if plain.endswith(_NO_ROWS) else plain)
        else:
            key = _key(name.rpartition("/")[2] if folders else name)
        return key is not None and key.batch <= through

    over = [name for name in storage.list() if is_over(name)][:most]
    storage.delete(over)
    return len(over)


@cache
def _reached(url: str, start: str) -> Storage:
    """Return the storage, where its driver is seen from this process; what fails is tried again."""
    storage = open_storage(url)
    if storage.read(_STARTS + start) is None:
        raise FileNotFoundError(f"{url} is not shared with this node")
    return storage


def _create(storage: Storage, key: OutputKey, rows: pa.Table) -> bool:
    """Create an output; False: it was there already, or a higher revision is there."""
    name, stem = _name(key), _stem(key)
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
    keys = {name: key for name in names if (key := _key(name)) is not None}
    highest: dict[str, int] = {}
    for key in keys.values():
        highest[_stem(key)] = max(key.revision, highest.get(_stem(key), 0))
    return [name for name, key in keys.items() if key.revision < highest[_stem(key)]]


def _name(key: OutputKey) -> str:
    return f"{_stem(key)}-r{key.revision}.parquet"


def _stem(key: OutputKey) -> str:
    """Return what the names of all revisions of an output begin with."""
    operator, index = key.query
    # Readers pass over names that begin with `_`.
    hidden = "=" if operator.startswith("_") else ""
    return f"{hidden}{operator}-{index:05d}-{key.batch:010d}-g{key.generation}"


def _key(name: str) -> OutputKey | None:
    """Read a name; None where it is none of an output. An operator's id may look like all that follows it."""
    if (found := _NAME.fullmatch(name)) is None:
        return None
    operator, index, batch, generation, revision = found.groups()
    query = PartitionId(OperatorId(operator), int(index))
    return OutputKey(query, BatchId(int(batch)), int(revision), int(generation))
