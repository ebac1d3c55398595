"""A Delta table in simulated runs: its log, and how sinks commit to it. Runs anywhere.

The library that commits to Delta tables does its own file operations. Here a table's log is what the protocol of Delta
makes of it: numbered objects, each created only if its number is free; who finds a number taken looks whether the
commit of that number has one of the same application transactions, which refuses its own, and else takes the next one.
A commit that removes files is refused by any other that comes between.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from holdfast.runtime.io.delta_files import DeltaFile
from holdfast.runtime.io.delta_sink import DeltaSink
from holdfast.runtime.io.delta_tentative import TentativeRows
from holdfast.runtime.io.delta_types import plain_schema
from holdfast.runtime.io.gathered_files import decoded_schema, encoded_schema
from holdfast.storage.storage import Storage

LOG = "_delta_log/"


class Refused(Exception):
    """Another commit came between a look at the table and a commit."""


@dataclass(slots=True)
class SimulatedTable:
    """A table as it was looked at."""

    columns: pa.Schema
    partition_by: list[str]
    number: int = 0
    """Of its last commit."""
    versions: dict[str, int] = field(default_factory=dict)
    files: dict[str, int] = field(default_factory=dict)
    """Rows by file."""

    def transaction_version(self, identity: str) -> int | None:
        """See deltalake.DeltaTable."""
        return self.versions.get(identity)

    def metadata(self) -> Any:
        """See deltalake.DeltaTable."""
        return SimpleNamespace(partition_columns=self.partition_by)

    def schema(self) -> Any:
        """See deltalake.DeltaTable."""
        return SimpleNamespace(fields=list(self.columns), to_arrow=lambda: self.columns)

    def take(self, commit: Mapping[str, Any]) -> None:
        """Take what the next commit says."""
        self.number += 1
        self.versions.update(commit["versions"])
        self.files.update(commit["files"])
        for name in commit.get("removed", ()):
            self.files.pop(name, None)

    def get_add_actions(self) -> pa.Table:
        """See deltalake.DeltaTable: without statistics."""
        return pa.table({"path": list(self.files), "size_bytes": [1] * len(self.files)})

    def protocol(self) -> Any:
        """See deltalake.DeltaTable."""
        return SimpleNamespace(reader_features=None)


def look_at(storage: Storage, known: SimulatedTable | None = None) -> SimulatedTable | None:
    """Return the table as it is now; None: there is none."""
    table = known
    if table is None:
        if (data := storage.read(_name(0))) is None:
            return None
        about = json.loads(data.to_pybytes())
        table = SimulatedTable(decoded_schema(about["schema"]), about["partition_by"])
    while (data := storage.read(_name(table.number + 1))) is not None:
        table.take(json.loads(data.to_pybytes()))
    return table


def _name(number: int) -> str:
    return f"{LOG}{number:020d}.json"


class _Files:
    """A table's folder as pyarrow.fs has it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def open_input_file(self, path: str) -> pa.BufferReader:
        """See pyarrow.fs.FileSystem."""
        if (data := self._storage.read(path)) is None:
            raise FileNotFoundError(path)
        return pa.BufferReader(data)


class OverSimulatedTable(DeltaSink):
    """A sink whose table has its log in the simulated storage."""

    _seen: SimulatedTable | None = None
    _numbers: Iterator[int]
    """Parts of names that no other file of the run has."""

    def _opened(self) -> Any:
        self._seen = look_at(self._storage, self._seen)
        return self._seen

    def _looked_at(self) -> Any:
        return look_at(self._storage)

    def _created(self, schema: pa.Schema) -> Any:
        about = {"schema": encoded_schema(plain_schema(schema)), "partition_by": list(self._partition_by)}
        self._storage.create(_name(0), json.dumps(about).encode())
        return self._opened()

    def _append(
        self,
        table: Any,
        added: Sequence[DeltaFile],
        versions: Mapping[str, int],
        removed: Mapping[str, int] | None = None,
    ) -> None:
        number = table.number
        fields = {"versions": dict(versions), "files": {one.name: one.rows for one in added}}
        commit = json.dumps(fields | ({"removed": list(removed)} if removed else {})).encode()
        while not self._storage.create(_name(number := number + 1), commit):
            if removed:
                raise Refused(_name(number))
            data = self._storage.read(_name(number))
            assert data is not None
            if json.loads(data.to_pybytes())["versions"].keys() & versions.keys():
                raise Refused(_name(number))

    def _tentative(self) -> TentativeRows:
        if self._tentative_rows is None:
            files: Any = _Files(self._storage)
            self._tentative_rows = TentativeRows("table", self._storage, files, lambda: f"{next(self._numbers):032x}")
        return self._tentative_rows

    @property
    def _refused(self) -> type[Exception]:
        return Refused

    def _pause(self, seconds: float) -> None:
        """See DeltaSink: the world goes on around every call."""
