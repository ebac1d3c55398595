"""Versions in a directory of a node: immutable files, written beside each other, memory-mapped. Runs on a node.

    DIR/O3-0/pointer             which version the partition goes on from, and the epoch
    DIR/O3-0/12.3.commit         batch 12 completed in epoch 3: the record that makes the rest count
    DIR/O3-0/12.3.4f1-7.segments     what batch 12 added to the state, by attempt 4f1-7
    DIR/O3-0/12.3.4f1-7.blocks   what batch 12 sent

Files are written under a name of the attempt's own; the commit is linked to its name at once, and only if there is
none: of two attempts the first wins. Nothing is forced to disk: a process that dies loses nothing, and a machine that
dies is a node that failed; what it left half-written is found by its checksums. Memory holds a cache of opened files,
bounded by bytes; what falls out is mapped again when it is needed.
"""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import encode_blocks
from holdfast.runtime.state.opened_data import DEFAULT_CACHE_BYTES, OpenedData
from holdfast.runtime.state.store import (
    Addition,
    Sent,
    batch_of,
    check_epoch,
    next_pointer,
    reach,
    thin_files,
    with_file,
)
from holdfast.runtime.state.versions import (
    Commit,
    FileName,
    Pointer,
    VersionChain,
    VersionId,
    chain_of,
    decode_commit,
    decode_pointer,
    encode_record,
    encode_segments,
)

_POINTER = "pointer"


class DirectoryStore:
    """The versions of a node's partitions, in a directory of its own."""

    def __init__(self, directory: Path, *, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        """Use a directory, made if it is not there; several processes may use it at once."""
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._opened = OpenedData(self._data, cache_bytes)
        self._commits: dict[Path, Commit] = {}
        self._folders: dict[PartitionId, Path] = {}
        self._attempts = itertools.count()

    @property
    def cached_bytes(self) -> int:
        """How many bytes of opened files memory holds."""
        return self._opened.bytes

    # -- the contract: see VersionStore ----------------------------------------------------------------------------

    def held_partitions(self) -> tuple[PartitionId, ...]:
        """See VersionStore."""
        names = [one.name.rpartition("-") for one in self._directory.iterdir() if one.is_dir()]
        return tuple(PartitionId(OperatorId(operator), int(index)) for operator, _, index in names if index.isdigit())

    def chain(self, partition: PartitionId) -> VersionChain | None:
        """See VersionStore."""
        pointer = self._pointer(partition)
        if pointer is None:
            return None
        commits = {}
        for path in self._folder(partition).glob("*.commit"):
            commit = self._commit(path)
            if commit is not None:
                commits[commit.id] = commit
        return chain_of(pointer, commits)

    def begin(self, partition: PartitionId, epoch: Epoch) -> None:
        """See VersionStore."""
        folder = self._folder(partition)
        folder.mkdir(exist_ok=True)
        with _locked(folder):
            held = self._pointer(partition)
            check_epoch(partition, epoch, held)
            pointer = next_pointer(self.chain(partition), held, epoch)
            if pointer is not None:
                self._write(folder / _POINTER, encode_record(pointer))

    def point(self, partition: PartitionId, pointer: Pointer) -> None:
        """See VersionStore."""
        folder = self._folder(partition)
        folder.mkdir(exist_ok=True)
        with _locked(folder):
            check_epoch(partition, pointer.epoch, self._pointer(partition))
            if pointer.at is not None and self._there(folder / _commit_name(pointer.at)) is None:
                raise CheckFailed(f"{partition} has no version {pointer.at}", remedy="restore it from a checkpoint")
            self._write(folder / _POINTER, encode_record(pointer))

    def commit(self, commit: Commit, added: Addition) -> Commit:
        """See VersionStore."""
        partition = commit.partition
        check_epoch(partition, commit.id.epoch, self._pointer(partition))
        folder = self._folder(partition)
        final = folder / _commit_name(commit.id)
        earlier = self._there(final)
        if earlier is not None:
            return earlier
        attempt = self._attempt(folder, commit.id)
        segments_name, blocks_name = FileName(f"{attempt}.segments"), FileName(f"{attempt}.blocks")
        kept = with_file(commit, segments_name, blocks_name if added.blocks else None)
        written, sent_bytes = [], 0
        segments = [one for table in added.segments.values() for one in table]
        try:
            if segments:
                written.append(folder / segments_name)
                _write_new(folder / segments_name, encode_segments(added.segments))
            if added.blocks:
                written.append(folder / blocks_name)
                data = encode_blocks(added.blocks)
                sent_bytes = len(data)
                _write_new(folder / blocks_name, data)
            first = self._link(final, encode_record(kept))
        except BaseException:
            for path in written:
                path.unlink(missing_ok=True)
            raise
        if not first:
            for path in written:
                path.unlink(missing_ok=True)
            winner = self._there(final)
            if winner is None:
                raise CheckFailed(f"the commit {final.name} of {partition} cannot be read", remedy="restore it")
            return winner
        self._commits[final] = kept
        if segments:
            self._opened.put_segments(partition, segments_name, segments)
        if added.blocks:
            self._opened.put_blocks(partition, blocks_name, added.blocks, sent_bytes)
        return kept

    def load(self, commit: Commit) -> dict[str, tuple[pa.Table, ...]] | None:
        """See VersionStore."""
        return self._opened.load(commit)

    def sent(self, commit: Commit) -> Sent | None:
        """See VersionStore."""
        return self._opened.sent(commit)

    def forget(self, partition: PartitionId, states: set[VersionId], blocks_from: BatchId) -> None:
        """See VersionStore."""
        folder = self._folder(partition)
        if folder.exists():
            with _locked(folder):
                self._forget(folder, partition, states, blocks_from)

    def _forget(self, folder: Path, partition: PartitionId, states: set[VersionId], blocks_from: BatchId) -> None:
        chain = self.chain(partition)
        if chain is None or not chain.commits:
            return
        pointer, kept, with_state = reach(chain, blocks_from, states)
        by_id = {commit.id: commit for commit in chain.commits.values()}
        needed: set[str] = {_POINTER} | {_commit_name(one) for one in kept}
        needed |= {name for one in with_state for name in by_id[one].files}
        needed |= {name for one in kept if one.batch >= blocks_from and (name := by_id[one].blocks) is not None}
        if pointer != chain.pointer:
            self._write(folder / _POINTER, encode_record(pointer))
        for path in folder.iterdir():
            # What belongs to a later batch may be an attempt that is still being made.
            if path.name not in needed and batch_of(path.name) <= chain.frontier:
                path.unlink(missing_ok=True)
                self._opened.forget(partition, FileName(path.name))
                self._commits.pop(path, None)

    def drop(self, partition: PartitionId) -> None:
        """See VersionStore."""
        folder = self._folder(partition)
        if not folder.exists():
            return
        (folder / _POINTER).unlink(missing_ok=True)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
            self._opened.forget(partition, FileName(path.name))
            self._commits.pop(path, None)
        with suppress(OSError):  # a task that was cancelled may still write; without a pointer it counts for nothing
            folder.rmdir()

    def rewrite(self, commit: Commit) -> set[FileName]:
        """See VersionStore."""
        folder = self._folder(commit.partition)
        live = self._opened.live_bytes(commit)
        sizes: dict[FileName, int] = {}
        for name in live:
            with suppress(FileNotFoundError):
                sizes[name] = (folder / name).stat().st_size
        return thin_files(live, sizes)

    @contextmanager
    def alone(self, partition: PartitionId) -> Iterator[None]:
        """See VersionStore: the lock is beside the partition's folder, which may be dropped and made anew."""
        with (self._directory / f".{partition.operator}-{partition.index}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def kept_bytes(self, partitions: Collection[PartitionId] | None = None) -> int:
        """See VersionStore."""
        folders = self._directory.glob("*") if partitions is None else map(self._folder, partitions)
        total = 0
        for path in (path for folder in folders for path in folder.glob("*.blocks")):
            with suppress(FileNotFoundError):  # another attempt has trimmed it
                total += path.stat().st_size
        return total

    # -- files -----------------------------------------------------------------------------------------------------

    def _folder(self, partition: PartitionId) -> Path:
        folder = self._folders.get(partition)
        if folder is None:
            folder = self._folders[partition] = self._directory / f"{partition.operator}-{partition.index}"
        return folder

    def _pointer(self, partition: PartitionId) -> Pointer | None:
        try:
            return decode_pointer((self._folder(partition) / _POINTER).read_bytes())
        except (FileNotFoundError, CheckFailed):
            return None

    def _commit(self, path: Path) -> Commit | None:
        cached = self._commits.get(path)
        if cached is not None:
            return cached
        try:
            commit = decode_commit(path.read_bytes())
        except (FileNotFoundError, CheckFailed):
            return None
        self._commits[path] = commit
        return commit

    def _there(self, path: Path) -> Commit | None:
        """As `_commit`, of a file that another process may have dropped since, or made anew with other segments."""
        self._commits.pop(path, None)
        return self._commit(path)

    def _data(self, partition: PartitionId, name: FileName) -> pa.Buffer | None:
        return _mapped(self._folder(partition) / name)

    def _attempt(self, folder: Path, version: VersionId) -> str:
        """Name the files of an attempt; a process of another time may have had this one's number."""
        while True:
            name = f"{version.batch}.{version.epoch}.{os.getpid():x}-{next(self._attempts):x}"
            if not any((folder / f"{name}.{kind}").exists() for kind in ("segments", "blocks")):
                return name

    def _write(self, path: Path, data: bytes) -> None:
        """Put a file in the place of another, at once."""
        beside = path.with_name(f".{path.name}.{os.getpid():x}-{next(self._attempts):x}")
        _write_new(beside, data)
        beside.replace(path)

    def _link(self, path: Path, data: bytes) -> bool:
        """Put a file where none is, at once; say whether this was the first."""
        beside = path.with_name(f".{path.name}.{os.getpid():x}-{next(self._attempts):x}")
        _write_new(beside, data)
        try:
            os.link(beside, path)
        except FileExistsError:
            return False
        finally:
            beside.unlink(missing_ok=True)
        return True


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Change a pointer alone: of two processes, the later sees what the earlier did. A dead one holds no lock."""
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _commit_name(version: VersionId) -> str:
    return f"{version.batch}.{version.epoch}.commit"


def _write_new(path: Path, data: bytes) -> None:
    """Write a file under a name of this process's own; what is there was left by a dead one with its number."""
    path.write_bytes(data)


def _mapped(path: Path) -> pa.Buffer | None:
    try:
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()
    except FileNotFoundError:
        return None
