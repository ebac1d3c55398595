"""Sinks: where the rows of an output partition's batch go, under the key (query, batch, revision). Runs anywhere.

| sink | how often a batch arrives |
|---|---|
| MemorySink, ConsoleSink | once (a console, within one process) |
| ParquetSink | once: files appear whole, and readers never see a batch twice |
| TransactionalSink | once, where `write` stores the key together with the rows |
| FunctionSink (any function) | at least once: the key tells the function when it has seen a batch |

A later revision of a batch takes the place of an earlier one. A write of an epoch that is over is refused.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.durable_files import sync_folder
from holdfast.runtime.stores import StaleEpoch


@dataclass(frozen=True, slots=True, order=True)
class OutputKey:
    """Which output: of which query (output partition), batch and revision."""

    query: PartitionId
    batch: BatchId
    revision: int = 0

    def __str__(self) -> str:
        return f"{self.query}, batch {self.batch}, revision {self.revision}"


class Sink(Protocol):
    """Takes outputs to the outside."""

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """Take a batch's rows; say whether they are new (False: this output was here already)."""
        ...


class _Fence:
    """The highest epoch a sink has seen."""

    def __init__(self) -> None:
        self._epoch = Epoch(0)

    def check(self, key: OutputKey, epoch: Epoch) -> None:
        if epoch < self._epoch:
            raise StaleEpoch(
                f"epoch {epoch} is over: the sink has seen {self._epoch}", where=str(key), remedy="nothing was written"
            )
        self._epoch = epoch


class MemorySink:
    """Keeps outputs in memory, for tests and a first try."""

    def __init__(self) -> None:
        self._held: dict[OutputKey, pa.Table] = {}
        self._fence = _Fence()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self._fence.check(key, epoch)
        if key in self._held:
            return False
        self._held[key] = rows
        return True

    def outputs(self) -> dict[OutputKey, pa.Table]:
        """Return the newest revision of every output, in the order of query and batch."""
        newest: dict[tuple[PartitionId, BatchId], OutputKey] = {}
        for key in sorted(self._held):
            newest[key.query, key.batch] = key
        return {key: self._held[key] for key in newest.values()}

    def rows(self) -> pa.Table | None:
        """Return all rows, by batch and then by partition; None where there are none."""
        found = self.outputs()
        ordered = sorted(found, key=lambda key: (key.batch, key.query))
        return pa.concat_tables([found[key] for key in ordered]).combine_chunks() if ordered else None


class ConsoleSink:
    """Writes outputs as text, for people."""

    def __init__(self, write: Callable[[str], object], most_rows: int = 20) -> None:
        """Take what writes a line (`print`, say), and how many rows of a batch are shown."""
        self._write, self._most = write, most_rows
        self._seen: set[OutputKey] = set()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        if key in self._seen:
            return False
        self._write(f"{key}: {rows.num_rows} rows")
        for row in rows.slice(0, self._most).to_pylist():
            self._write("  " + "  ".join(f"{name}={value}" for name, value in row.items()))
        if rows.num_rows > self._most:
            self._write(f"  and {rows.num_rows - self._most} more")
        self._seen.add(key)
        return True


class ParquetSink:
    """Writes outputs as Parquet files into a directory that any Parquet reader can read as one table.

    Each output is one file, written beside and renamed; its manifest, `_holdfast/<query>/<batch>.json`, is what makes
    it count and says which revision holds. Readers pass over names that begin with `_` or `.`, so they see whole files.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self._attempts = itertools.count()
        self._made: set[PartitionId] = set()
        self._unsynced: set[PartitionId] = set()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink.

        Every output of every batch goes through here, one after the other, on the driver: paths are plain texts.
        """
        folder, query = str(self._directory), key.query
        manifests = f"{folder}/_holdfast/{query.operator}-{query.index}"
        if query not in self._made:
            os.makedirs(manifests, exist_ok=True)
            self._made.add(query)
        self._check_epoch(f"{folder}/_holdfast/epoch", key, epoch)
        place = f"{manifests}/{key.batch}.json"
        held = _read_json(place)
        if held is not None and held["revision"] >= key.revision:
            return False
        name = f"{query.operator}-{query.index:05d}-{key.batch:010d}-r{key.revision}.parquet"
        beside = f"{folder}/.{name}.{self._attempt()}"
        try:
            with open(beside, "wb") as file:
                pq.write_table(rows, file)
                file.flush()
                os.fsync(file.fileno())
            if held is not None:
                # A reader sees the old revision or the new one, for a moment neither, never both.
                (self._directory / held["file"]).unlink(missing_ok=True)
            os.replace(beside, f"{folder}/{name}")
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(beside)
            raise
        written = {"query": str(query), "batch": key.batch, "revision": key.revision, "epoch": epoch}
        self._write_json(place, {**written, "file": name, "rows": rows.num_rows})
        self._unsynced.add(query)
        return True

    def sync(self) -> None:
        """Have the names of what was published on the disk; until then a machine that dies may come back without."""
        for query in self._unsynced:
            sync_folder(self._directory / "_holdfast" / f"{query.operator}-{query.index}")
        if self._unsynced:
            sync_folder(self._directory)
        self._unsynced.clear()

    def _attempt(self) -> str:
        return f"{os.getpid():x}-{next(self._attempts):x}"

    def count(self) -> int:
        """Return how many rows count, as the manifests say."""
        return sum(held["rows"] for held in self._manifests())

    def _manifests(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self._directory.glob("_holdfast/*/*.json")):
            if (held := _read_json(path)) is not None:
                yield held

    def rows(self) -> pa.Table | None:
        """Return all rows that count, by batch and then by partition; None where there are none."""
        found = [(held["batch"], held["query"], held["file"]) for held in self._manifests()]
        tables = [pq.read_table(self._directory / file, use_threads=False) for _, _, file in sorted(found)]
        return pa.concat_tables(tables).combine_chunks() if tables else None

    def _check_epoch(self, path: str, key: OutputKey, epoch: Epoch) -> None:
        seen = _read_json(path)
        if seen is not None and epoch < seen["epoch"]:
            raise StaleEpoch(
                f"epoch {epoch} is over: the sink has seen {seen['epoch']}",
                where=str(key),
                remedy="nothing was written",
            )
        if seen is None or epoch > seen["epoch"]:
            self._write_json(path, {"epoch": epoch})

    def _write_json(self, path: str, value: dict[str, Any]) -> None:
        folder, _, name = path.rpartition("/")
        beside = f"{folder}/.{name}.{self._attempt()}"
        with open(beside, "wb") as file:
            file.write(json.dumps(value).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)


class TransactionalSink:
    """Two functions of yours: does this output exist already, and write it with its key in one transaction."""

    def __init__(self, exists: Callable[[OutputKey], bool], write: Callable[[pa.Table, OutputKey], object]) -> None:
        self._exists, self._write = exists, write
        self._fence = _Fence()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self._fence.check(key, epoch)
        if self._exists(key):
            return False
        self._write(rows, key)
        return True


class FunctionSink:
    """A plain function of rows and key. It is called at least once for every output: again after a failure."""

    def __init__(self, function: Callable[[pa.Table, OutputKey], object]) -> None:
        self._function = function
        self._fence = _Fence()

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self._fence.check(key, epoch)
        self._function(rows, key)
        return True


def as_sink(given: object) -> Sink:
    """Take what an application names as a sink: a sink, a directory for Parquet, or a function."""
    if given is None:
        return MemorySink()
    if hasattr(given, "publish"):
        return given
    if isinstance(given, str | Path):
        return ParquetSink(given)
    if callable(given):
        return FunctionSink(given)
    raise BadInput(f"{given!r} is not a sink", remedy="give a sink, a directory for Parquet files, or a function")


def _read_json(path: str | Path) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            found: dict[str, Any] = json.loads(file.read())
    except FileNotFoundError:
        return None
    return found
