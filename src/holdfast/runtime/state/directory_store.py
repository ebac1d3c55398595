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
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.blocks import decode_blocks, encode_blocks
from holdfast.runtime.state.store import Addition, Sent, by_receiver, check_epoch, next_pointer, reach, with_file
from holdfast.runtime.state.versions import (
    Commit,
    FileName,
    Pointer,
    VersionChain,
    VersionId,
    chain_of,
    decode_commit,
    decode_pointer,
    decode_segments,
    encode_record,
    encode_segments,
)

DEFAULT_CACHE_BYTES = 256 * 2**20
MOST_FILES = 256
"""A state in more files than this has the older half of them written again."""
_POINTER = "pointer"
_LEAST_LIVE = 4
"""A file of which less than the fourth part is still needed is written again, once it is worth it."""
_WORTH_BYTES = 2**20


class DirectoryStore:
    """The versions of a node's partitions, in a directory of its own."""

    def __init__(self, directory: Path, *, cache_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        """Use a directory, made if it is not there; several processes may use it at once."""
        self._directory = Path(directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._cache = _Cache(cache_bytes)
        self._commits: dict[Path, Commit] = {}
        self._folders: dict[PartitionId, Path] = {}
        self._attempts = itertools.count()

    @property
    def cached_bytes(self) -> int:
        """How many bytes of opened files memory holds."""
        return self._cache.bytes

    # -- the contract: see VersionStore ----------------------------------------------------------------------------

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
            if pointer.at is not None and self._commit(folder / _commit_name(pointer.at)) is None:
                raise CheckFailed(f"{partition} has no version {pointer.at}", remedy="restore it from a checkpoint")
            self._write(folder / _POINTER, encode_record(pointer))

    def commit(self, commit: Commit, added: Addition) -> Commit:
        """See VersionStore."""
        partition = commit.partition
        check_epoch(partition, commit.id.epoch, self._pointer(partition))
        folder = self._folder(partition)
        final = folder / _commit_name(commit.id)
        earlier = self._commit(final)
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
            winner = self._commit(final)
            if winner is None:
                raise CheckFailed(f"the commit {final.name} of {partition} cannot be read", remedy="restore it")
            return winner
        self._commits[final] = kept
        if segments:
            self._cache.put((partition, segments_name), segments, sum(run.nbytes for run in segments))
        if added.blocks:
            self._cache.put((partition, blocks_name), by_receiver(added.blocks), sent_bytes)
        return kept

    def load(self, commit: Commit) -> dict[str, tuple[pa.Table, ...]] | None:
        """See VersionStore."""
        files: dict[FileName, Sequence[pa.Table]] = {}
        for name in commit.files:
            segments = self._segments(commit.partition, name)
            if segments is None:
                return None
            files[name] = segments
        return {name: tuple(files[ref.file][ref.number] for ref in refs) for name, refs in commit.segments.items()}

    def sent(self, commit: Commit) -> Sent | None:
        """See VersionStore."""
        if commit.blocks is None:
            return {}
        key = (commit.partition, commit.blocks)
        cached: Sent | None = self._cache.get(key)
        if cached is not None:
            return cached
        data = _mapped(self._folder(commit.partition) / commit.blocks)
        try:
            found = None if data is None else by_receiver(decode_blocks(data))
        except CheckFailed:
            return None
        if data is not None and found is not None:
            self._cache.put(key, found, data.size)
        return found

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
            if path.name not in needed and _batch_of(path.name) <= chain.frontier:
                path.unlink(missing_ok=True)
                self._cache.forget((partition, FileName(path.name)))
                self._commits.pop(path, None)

    def drop(self, partition: PartitionId) -> None:
        """See VersionStore."""
        folder = self._folder(partition)
        if not folder.exists():
            return
        (folder / _POINTER).unlink(missing_ok=True)
        for path in folder.iterdir():
            path.unlink(missing_ok=True)
            self._cache.forget((partition, FileName(path.name)))
            self._commits.pop(path, None)
        with suppress(OSError):  # a task that was cancelled may still write; without a pointer it counts for nothing
            folder.rmdir()

    def rewrite(self, commit: Commit) -> set[FileName]:
        """See VersionStore."""
        folder = self._folder(commit.partition)
        live: dict[FileName, int] = {}
        for refs in commit.segments.values():
            for ref in refs:
                segments = self._segments(commit.partition, ref.file)
                live[ref.file] = live.get(ref.file, 0) + (0 if segments is None else segments[ref.number].nbytes)
        thin = set()
        for name, needed in live.items():
            try:
                size = (folder / name).stat().st_size
            except FileNotFoundError:
                continue
            if size > _WORTH_BYTES and needed * _LEAST_LIVE < size:
                thin.add(name)
        if len(live) > MOST_FILES:
            thin |= set(sorted(live, key=_batch_of)[: len(live) // 2])
        return thin

    @contextmanager
    def alone(self, partition: PartitionId) -> Iterator[None]:
        """See VersionStore: the lock is beside the partition's folder, which may be dropped and made anew."""
        with (self._directory / f".{partition.operator}-{partition.index}.lock").open("a") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def kept_bytes(self) -> int:
        """See VersionStore."""
        total = 0
        for path in self._directory.glob("*/*.blocks"):
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

    def _segments(self, partition: PartitionId, name: FileName) -> Sequence[pa.Table] | None:
        cached: Sequence[pa.Table] | None = self._cache.get((partition, name))
        if cached is not None:
            return cached
        data = _mapped(self._folder(partition) / name)
        try:
            segments = None if data is None else decode_segments(data)
        except CheckFailed:
            return None
        if segments is not None:
            self._cache.put((partition, name), segments, sum(run.nbytes for run in segments))
        return segments

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


class _Cache:
    """Opened files, the ones used last, within a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._held: OrderedDict[tuple[PartitionId, FileName], tuple[Any, int]] = OrderedDict()
        self.bytes = 0

    def get(self, key: tuple[PartitionId, FileName]) -> Any:
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def put(self, key: tuple[PartitionId, FileName], value: Any, size: int) -> None:
        self.forget(key)
        self._held[key] = (value, size)
        self.bytes += size
        while self.bytes > self._most and self._held:
            _, (_, gone) = self._held.popitem(last=False)
            self.bytes -= gone

    def forget(self, key: tuple[PartitionId, FileName]) -> None:
        if key in self._held:
            self.bytes -= self._held.pop(key)[1]


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Change a pointer alone: of two processes, the later sees what the earlier did. A dead one holds no lock."""
    with (folder / ".lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _commit_name(version: VersionId) -> str:
    return f"{version.batch}.{version.epoch}.commit"


def _batch_of(name: str) -> int:
    """The batch a file belongs to; one being written beside its place belongs to none yet."""
    head = name.partition(".")[0]
    return int(head) if head.isdigit() else 2**62


def _write_new(path: Path, data: bytes) -> None:
    """Write a file under a name of this process's own; what is there was left by a dead one with its number."""
    path.write_bytes(data)


def _mapped(path: Path) -> pa.Buffer | None:
    try:
        with pa.memory_map(str(path)) as file:
            return file.read_buffer()
    except FileNotFoundError:
        return None
