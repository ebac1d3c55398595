"""Spark's own checkpoint of a streaming query that reads a source: on the driver's disk, copied with every batch.

Runs on the driver. Spark writes down in a folder what each micro-batch holds. Two drivers that shared such a folder
would disturb each other, and object storage is no place for it. So every driver has a folder of its own, filled at the
start with what the last batch of the log says; the files that are new with a micro-batch go into the run's storage
before a batch names it. The last batch decides where reading goes on, not Spark's folder. What a driver that was killed
left behind is removed by the next one on its host.

Spark's usual way of writing such files (through Hadoop's FileContext) starts some thirty processes for each micro-batch
on a local disk: `readlink` and `chmod`. Its other one starts eight, and is enough here: the folder has one writer, and
counts for nothing once this driver has ended (`through_file_system`).
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import OperatorId, folder_name
from holdfast.storage.storage import Storage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_BUNDLES = 32
"""So many objects hold the files of a checkpoint at most; then they are put together into one."""
_PREFIX = "holdfast-reader-"
_LOCK = "driver.lock"
_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_MANAGERS = [
    f"org.apache.spark.sql.execution.streaming.{name}"
    for name in ("checkpointing.FileSystemBasedCheckpointFileManager", "FileSystemBasedCheckpointFileManager")
]
"""Its name from Spark 4.1 on, and before."""


class ReaderCheckpoint:
    """The folder of one reader."""

    def __init__(self, storage: Storage, source: OperatorId, claim: int, state: Mapping[str, Any]) -> None:
        """Make the folder, with what the last batch says; with nothing, where reading begins."""
        self._storage, self._source, self._claim = storage, source, claim
        sweep_folders(Path(tempfile.gettempdir()))
        self._place, self._lock = _new_folder(folder_name(source))
        self.folder = self._place / "checkpoint"
        self.folder.mkdir()
        self._copied: set[str] = set()
        self._bundles: list[str] = list(state.get("bundles", []))
        self._replaced: list[str] = []
        self._guard = Lock()
        """Micro-batches come from a thread of Spark's, and batches are logged by the run's."""
        files: dict[str, str] = {}
        for bundle in self._bundles:
            held = storage.read(bundle)
            if held is None:
                raise CheckFailed(
                    "is not there any more",
                    where=f"{storage.url}/{bundle}",
                    remedy="bring it back: without it, the source cannot be read on from where it stood",
                )
            files.update(json.loads(held.to_pybytes()))
        for name, text in {**files, **state.get("files", {})}.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self._copied.update(files)

    def offsets(self, number: int) -> str:
        """Return what a micro-batch holds, as Spark wrote it down: one line for each of its inputs."""
        text = (self.folder / "offsets" / str(number)).read_text()
        # A version, a line about when and how it ran, then the offsets.
        return "\n".join(text.splitlines()[2:])

    def after(self, number: int) -> dict[str, Any]:
        """Return what a reader needs to go on after a micro-batch; files that are new are in the storage then."""
        if (self.folder / "state").exists():
            raise BadInput(
                "keeps state of Spark's own: it aggregates, joins or drops duplicates before Holdfast gets its rows",
                where=f"source {self._source}",
                remedy="do that in the application, with Holdfast's operators: their state is what Holdfast recovers",
            )
        new = self._files("sources", leave_out=self._copied)
        if new:
            if len(self._bundles) >= MOST_BUNDLES:
                new = self._files("sources")
                with self._guard:
                    self._replaced, self._bundles = [*self._replaced, *self._bundles], []
            name = f"readers/{self._source}/{self._claim:08d}-{number}-{uuid4().hex[:12]}"
            self._storage.create(name, json.dumps(new).encode())
            self._bundles.append(name)
            self._copied.update(new)
        wanted = ["metadata", f"offsets/{number - 1}", f"offsets/{number}", f"commits/{number - 1}"]
        return {"bundles": list(self._bundles), "files": {name: text for name in wanted if (text := self._text(name))}}

    def logged(self, state: Mapping[str, Any]) -> None:
        """Take the state that a batch was logged with: objects that it no longer names are deleted."""
        named, over = set(state.get("bundles", ())), list[str]()
        with self._guard:
            if named and named <= set(self._bundles):
                over, self._replaced = self._replaced, []
        self._storage.delete(over)

    def remove(self) -> None:
        """Remove the folder: the storage has what counts. Nothing happens the second time."""
        shutil.rmtree(self._place, ignore_errors=True)
        lock, self._lock = self._lock, -1
        if lock >= 0:  # its number may be that of another file, or of a connection, by the second time
            os.close(lock)

    def _files(self, folder: str, leave_out: set[str] = frozenset()) -> dict[str, str]:  # type: ignore[assignment]
        found = {}
        for path in sorted((self.folder / folder).rglob("*")):
            name = str(path.relative_to(self.folder))
            if not path.name.startswith(".") and not path.name.endswith(".tmp") and name not in leave_out:
                with suppress(FileNotFoundError, IsADirectoryError):
                    found[name] = path.read_text()
        return found

    def _text(self, name: str) -> str | None:
        with suppress(FileNotFoundError):
            return (self.folder / name).read_text()
        return None


@contextmanager
def through_file_system(spark: SparkSession) -> Iterator[None]:
    """Let a query that is started within write its checkpoint through Hadoop's FileSystem.

    A query takes its settings along when it starts, so that those that others start later have the session's. Where a
    user has chosen a way, and where Spark has no class of that name, it stays as it is.
    """
    manager = None if spark.conf.get(_MANAGER, None) is not None else _loadable(spark)
    if manager is None:
        yield
        return
    spark.conf.set(_MANAGER, manager)
    try:
        yield
    finally:
        spark.conf.unset(_MANAGER)


def _loadable(spark: SparkSession) -> str | None:
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    return next((name for name in _MANAGERS if jvm.org.apache.spark.util.Utils.classIsLoadable(name)), None)


def sweep_folders(temporary: Path) -> list[Path]:
    """Remove the folders of this user's drivers that live no more: the kernel has released their locks. Return them."""
    removed = []
    for place in temporary.glob(f"{_PREFIX}*"):
        with suppress(OSError):  # a driver has it, it is another user's, or somebody removes it too
            if place.is_symlink() or place.stat().st_uid != os.getuid():
                continue
            with (place / _LOCK).open("r+") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(place)
            removed.append(place)
    return removed


def _new_folder(name: str) -> tuple[Path, int]:
    """Make a folder that is this process's until it ends, or closes the lock's descriptor; return both."""
    while True:
        place = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{name}-"))
        with suppress(FileNotFoundError):
            lock = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if (place / _LOCK).exists():  # another start may have found it before it was locked
                return place, lock
            os.close(lock)
