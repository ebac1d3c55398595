"""Outputs as Parquet files that any reader can read as one table. Runs on the driver; rows may be written on nodes.

Where a node reaches the directory, it stages an output's rows in a folder of their own there and reports where; the
driver gives them their name and their manifest (`adopt`). So rows need not pass through the driver, and what a failed
job, a second attempt or a node of an epoch that is over has written is a file that nothing names, swept away in time.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.durable_files import sync_folder
from holdfast.errors import BadInput, one_line
from holdfast.ids import Epoch, PartitionId
from holdfast.runtime.io.sinks import OutputKey, StagedRows
from holdfast.runtime.state.store import StaleEpoch

_STAGED = ".staged"
"""How names of rows end that do not count yet: no reader takes them for Parquet files."""


@dataclass(frozen=True, slots=True)
class ParquetStager:
    """See Stager: writes into a folder of one start of a driver, which made it.

    Where the folder is not seen, the directory is not shared with this node.
    """

    folder: str

    def stage(self, cycle: int, rows: pa.Table) -> StagedRows | str:
        """See Stager."""
        path = f"{self.folder}/{cycle}-{uuid4().hex}{_STAGED}"
        try:
            _write_table(path, rows)
        except Exception as error:
            # The driver can still take the rows; where it cannot write them either, it names the output.
            return one_line(f"{type(error).__name__}: {error}")
        return StagedRows(path, cycle, rows.num_rows)


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
        self._staging: str | None = None
        self._run = ""
        """The run that writes here; empty where nobody has said."""
        self._cycle = -1
        """The last cycle whose staged rows have come: files of earlier ones are of no use any more."""

    def begin(self, run: str, epoch: Epoch) -> None:
        """See BeginningSink: the directory is one run's; another one's rows would pass for written already."""
        path = f"{self._directory}/_holdfast/claim"
        seen = _read_json(path)
        if seen is not None and seen["run"] != run:
            raise BadInput(
                f"has rows of another run ({seen['run']})",
                where=str(self._directory),
                remedy="give this run an output directory of its own, or continue the other run in its directory",
            )
        self._run = run
        self._check_claim(path, "", epoch)

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""

        def write() -> str:
            beside = f"{self._directory}/.{key.query}-{key.batch}.{self._attempt()}"
            _write_table(beside, rows)
            return beside

        return self._name(key, write, rows.num_rows, epoch)

    def adopt(self, key: OutputKey, staged: StagedRows, epoch: Epoch) -> bool:
        """As `publish`, of rows that a node has written."""
        self._cycle = max(self._cycle, staged.cycle)
        return self._name(key, lambda: staged.place, staged.rows, epoch)

    def _name(self, key: OutputKey, write: Callable[[], str], rows: int, epoch: Epoch) -> bool:
        """Let a file count that `write` returns; it is not asked where this output is here already.

        Every output of every batch goes through here, one after the other, on the driver: paths are plain texts.
        """
        folder, query = str(self._directory), key.query
        manifests = f"{folder}/_holdfast/{query.operator}-{query.index}"
        if query not in self._made:
            os.makedirs(manifests, exist_ok=True)
            self._made.add(query)
        self._check_claim(f"{folder}/_holdfast/claim", str(key), epoch)
        place = f"{manifests}/{key.batch}.json"
        held = _read_json(place)
        if held is not None and held["revision"] >= key.revision:
            return False
        name = f"{query.operator}-{query.index:05d}-{key.batch:010d}-r{key.revision}.parquet"
        beside = write()
        try:
            os.stat(beside)  # what a node wrote may have been swept away since
            if held is not None:
                # A reader sees the old revision or the new one, for a moment neither, never both.
                (self._directory / held["file"]).unlink(missing_ok=True)
            os.replace(beside, f"{folder}/{name}")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise
        written = {"query": str(query), "batch": key.batch, "revision": key.revision, "claim": epoch.claim}
        self._write_json(place, {**written, "file": name, "rows": rows})
        self._unsynced.add(query)
        return True

    # -- rows that nodes write ---------------------------------------------------------------------------------------

    def stager(self, start: str) -> ParquetStager | None:
        """See StagingSink. Where a subclass has a `publish` of its own, rows pass through the driver to it."""
        if type(self).publish is not ParquetSink.publish:
            return None
        self._staging, self._cycle = str(self._staged_in() / start), -1
        os.makedirs(self._staging, exist_ok=True)
        return ParquetStager(self._staging)

    def sweep_staged(self) -> None:
        """See StagingSink."""
        for other in self._staged_in().glob("*"):
            if str(other) != self._staging:
                shutil.rmtree(other, ignore_errors=True)

    def end_staging(self) -> None:
        """See StagingSink."""
        if self._staging is not None:
            shutil.rmtree(self._staging, ignore_errors=True)

    def _staged_in(self) -> Path:
        return self._directory.absolute() / "_holdfast" / "staged"

    def sync(self) -> None:
        """Have the names of what was published on the disk; until then a machine that dies may come back without.

        What nodes wrote in earlier cycles and nothing names goes.
        """
        for query in self._unsynced:
            sync_folder(self._directory / "_holdfast" / f"{query.operator}-{query.index}")
        if self._unsynced:
            sync_folder(self._directory)
        self._unsynced.clear()
        for path in [] if self._staging is None else Path(self._staging).glob(f"*{_STAGED}"):
            with contextlib.suppress(OSError, ValueError):  # this is only tidying
                if int(path.name.partition("-")[0]) < self._cycle:
                    path.unlink()

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

    def _check_claim(self, path: str, where: str, epoch: Epoch) -> None:
        """Refuse a driver that another one has followed, also one of another process."""
        seen = _read_json(path)
        if seen is not None and epoch.claim < seen["claim"]:
            raise StaleEpoch(
                f"claim {epoch.claim} is over: the sink has seen claim {seen['claim']}",
                where=where or str(self._directory),
                remedy="nothing was written; another driver runs this application: end this one",
            )
        if seen is None or epoch.claim > seen["claim"]:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._write_json(path, {"claim": epoch.claim, "run": self._run})

    def _write_json(self, path: str, value: dict[str, Any]) -> None:
        folder, _, name = path.rpartition("/")
        beside = f"{folder}/.{name}.{self._attempt()}"
        with open(beside, "wb") as file:
            file.write(json.dumps(value).encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)


def _write_table(path: str, rows: pa.Table) -> None:
    """Write a file of rows, whole on the disk; one that could not be written is not left behind."""
    try:
        with open(path, "wb") as file:
            pq.write_table(rows, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


def _read_json(path: str | Path) -> dict[str, Any] | None:
    try:
        with open(path, "rb") as file:
            found: dict[str, Any] = json.loads(file.read())
    except FileNotFoundError:
        return None
    return found
