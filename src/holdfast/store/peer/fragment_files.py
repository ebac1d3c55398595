"""A peer's fragments on disk, with a memory tier in front. Runs in peers; also the disk behind `FolderStore`.

    DIR/peer.json                               the peer's name
    DIR/fences.json                             namespace -> lowest epoch that may still write
    DIR/incoming/*.part                         being written; removed at start
    DIR/fragments/ab/abcd…/VERSION-EPOCH-DIGEST-INDEX.fragment
    DIR/quarantine/                             failed a check; never served, counted as lost

A fragment is published by a rename after its contents are on disk, and its folder is synced before the peer
acknowledges it: a crash leaves it whole or absent. A state's folder is the hash of its names, so no name becomes a
path. Fragments are never changed. Data read from disk is checked block by block before it is served; a damaged fragment
is moved to quarantine, and the caller gets an error: the fragment counts as lost.

Thread-safe: one lock guards the index. It is held while a fence is written and a name removed, not while bytes move.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import itertools
import json
import logging
import os
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from holdfast.erasure.checksums import StateDigest
from holdfast.erasure.faults import DamagedFragment
from holdfast.erasure.fragment import LONGEST_HEADER, FragmentHeader, StateId, open_block
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch
from holdfast.store.peer.disk import Disk
from holdfast.store.peer.fragment_writer import FragmentTarget, FragmentWriter
from holdfast.store.peer.limits import Limits
from holdfast.store.peer.memory_tier import MemoryTier
from holdfast.store.wire.failures import BadRequest, Busy, Corrupt, NoRoom, StaleEpoch, StateMissing

log = logging.getLogger("holdfast.store.peer.fragment_files")
Piece = bytes | bytearray | memoryview
_SUFFIX = ".fragment"
_OF_THIS_PROCESS = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors that say nothing about a file: this process, or this machine, has no room to open it now."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What the folder holds, and what happened since it was opened."""

    fragments: int
    states: int
    bytes: int
    memory_bytes: int
    memory_hits: int
    memory_misses: int
    quarantined: int
    refused_stale: int


class FragmentFiles:
    """The fragments of one peer."""

    def __init__(self, folder: Path, limits: Limits | None = None, disk: Disk | None = None) -> None:
        """Open a folder, finish or undo what a crash interrupted, and index what is there."""
        self.folder = folder
        self.limits = limits or Limits()
        self._disk = disk or Disk()
        self._lock = threading.RLock()
        self._memory = MemoryTier(self.limits.memory_bytes)
        self._index: dict[StateId, dict[FragmentHeader, Path]] = {}
        self._stored: Counter[str] = Counter()
        self._incoming_bytes: Counter[str] = Counter()
        self._numbers = itertools.count()
        self._quarantined = self._stale = 0
        self._folders = [folder / name for name in ("incoming", "fragments", "quarantine")]
        for path in (folder, *self._folders):
            self._disk.make_folder(path)
        self._incoming, self._fragments, self._quarantine = self._folders
        self._owner = _own(folder)
        try:
            self._fences = self._read_fences()
            self._recover()
        except BaseException:
            self.close()  # whoever tries again, in this process too, is not kept away by this attempt
            raise

    # Epochs

    def fence(self, namespace: str, epoch: Epoch) -> Epoch:
        """Refuse from now on, also after a restart, every write of a lower epoch; return the fence that stands."""
        with self._lock:
            standing = self._fences.get(namespace, Epoch(0))
            if epoch <= standing:
                return standing
            fences = {**self._fences, namespace: epoch}
            try:
                self._disk.replace(self.folder / "fences.json", json.dumps(fences).encode())
            except OSError as error:
                raise NoRoom(f"writing the fence failed: {error.strerror or error}") from None
            self._fences = fences
            return epoch

    def fences(self) -> dict[str, Epoch]:
        """Return the lowest epoch that may write, by namespace; absent means zero."""
        return dict(self._fences)

    def check_epoch(self, namespace: str, epoch: Epoch) -> None:
        """Refuse a write of an epoch below the fence."""
        standing = self._fences.get(namespace, Epoch(0))
        if epoch < standing:
            with self._lock:
                self._stale += 1
            raise StaleEpoch(
                f"epoch {epoch} of {namespace!r} is fenced: epoch {standing} has started",
                remedy="stop this writer; a newer driver has taken over",
            )

    # Writing

    def begin(self, header: FragmentHeader, *, repairing: bool = False) -> FragmentWriter:
        """Start to take a fragment in; its epoch fences lower ones at once.

        Repair brings back what was acknowledged in its time: the fence does not stand in its way.
        """
        state = header.state
        if not repairing:
            self.check_epoch(state.state.namespace, state.epoch)
        self.fence(state.state.namespace, state.epoch)
        size = state.fragment_length
        if size > self.limits.fragment_bytes:
            raise BadRequest(f"a fragment of {size} bytes exceeds the limit of {self.limits.fragment_bytes} bytes")
        with self._lock:
            if header in self._index.get(state.state, ()):
                return FragmentWriter(header, None)
            self._make_room(state.state.namespace, size)
            self._incoming_bytes[state.state.namespace] += size
        part = self._incoming / f"{os.getpid()}-{next(self._numbers)}.part"
        place = self.place(header)

        def last_look() -> None:
            if not repairing:
                self.check_epoch(state.state.namespace, state.epoch)

        return FragmentWriter(
            header,
            FragmentTarget(
                disk=self._disk,
                part=part,
                place=place,
                keep=self._memory.takes(size),
                last_look=last_look,
                published=lambda contents: self._published(header, place, contents),
                cancelled=lambda: self._settle(header),
            ),
        )

    def _make_room(self, namespace: str, size: int) -> None:
        arriving = self._incoming_bytes.total()
        for used, quota, whose in (
            (self._stored.total() + arriving, self.limits.quota_bytes, "the peer's quota"),
            (
                self._stored[namespace] + self._incoming_bytes[namespace],
                self.limits.namespace_quota_bytes,
                f"the quota of {namespace!r}",
            ),
        ):
            if used + size > quota:
                raise NoRoom(f"{whose} of {quota} bytes is full: {used} used, {size} requested")
        free = self._disk.free(self.folder)
        if free - arriving - size < self.limits.reserve_bytes:
            raise NoRoom(f"the disk is full: {free} bytes free, {size} requested, {self.limits.reserve_bytes} reserved")

    def _published(self, header: FragmentHeader, path: Path, contents: bytes | None) -> None:
        with self._lock:
            state = header.state.state
            self._settle(header)
            fragments = self._index.setdefault(state, {})
            if header not in fragments:  # else the same fragment came twice at once: the same bytes in the same place
                fragments[header] = path
                self._stored[state.namespace] += header.state.fragment_length
            if contents is not None:
                self._memory.put(header, contents)

    def _settle(self, header: FragmentHeader) -> None:
        with self._lock:
            self._incoming_bytes[header.state.state.namespace] -= header.state.fragment_length

    # Reading

    def held(self, state: StateId) -> list[FragmentHeader]:
        """Return which fragments of a state are here."""
        with self._lock:
            return sorted(self._index.get(state, ()), key=_order)

    def states(self) -> list[StateId]:
        """Return which states have fragments here."""
        with self._lock:
            return sorted(self._index)

    def read(self, header: FragmentHeader, first: int, count: int) -> Piece:
        """Return blocks `first` to `first + count` of a fragment, as they lie in it, checked."""
        path = self._path(header)
        layout = header.state.layout
        last = min(first + count, layout.stripes)
        if not 0 <= first < last:
            raise BadRequest(f"blocks {first} to {first + count} requested; the fragment has {layout.stripes}")
        start, end = header.state.block_span(first)[0], header.state.block_span(last - 1)[1]
        with self._lock:
            cached = self._memory.get(header)
        if cached is not None:
            return memoryview(cached)[start:end]
        size = header.state.fragment_length
        whole = self._memory.takes(size) and size <= 4 * (end - start)
        data = self._from_disk(header, path, 0 if whole else start, size if whole else end - start)
        stripes = range(layout.stripes) if whole else range(first, last)
        self._check(header, data, stripes, 0 if whole else start)
        if not whole:
            return data
        with self._lock:
            if header in self._index.get(header.state.state, ()):
                self._memory.put(header, data)
        return memoryview(data)[start:end]

    def verify(self, header: FragmentHeader) -> bool:
        """Read a whole fragment from disk and check it; a bad one is put in quarantine. False when it is not good."""
        try:
            path = self._path(header)
            digest = StateDigest(header.state.state_bytes, header.state.layout.stripe_bytes)
            packed = header.pack()
            if self._from_disk(header, path, 0, len(packed)) != packed:
                raise DamagedFragment("the header changed on disk")
            for stripe in range(header.state.layout.stripes):
                start, end = header.state.block_span(stripe)
                check, _ = open_block(header, stripe, self._from_disk(header, path, start, end - start))
                digest.add(check)
            if digest.value() != header.state.digest:
                raise DamagedFragment("the fragment holds blocks of other states")
        except (Corrupt, StateMissing, Busy):
            return False
        except DamagedFragment as damage:
            self.quarantine(header, str(damage))
            return False
        return True

    def _path(self, header: FragmentHeader) -> Path:
        with self._lock:
            path = self._index.get(header.state.state, {}).get(header)
        if path is None:
            raise StateMissing(f"fragment {header.index} of {header.state} is not stored on this peer")
        return path

    def _from_disk(self, header: FragmentHeader, path: Path, start: int, length: int) -> bytes:
        try:
            data = self._disk.read(path, start, length)
        except OSError as error:
            if error.errno in _OF_THIS_PROCESS:
                raise Busy(f"fragment {header.index} of {header.state} cannot be read now: {error.strerror}") from None
            self.quarantine(header, f"cannot be read: {error.strerror}")
            raise Corrupt(f"fragment {header.index} of {header.state} cannot be read") from None
        return data

    def _check(self, header: FragmentHeader, data: bytes, stripes: range, offset: int) -> None:
        view = memoryview(data)
        try:
            for stripe in stripes:
                start, end = header.state.block_span(stripe)
                open_block(header, stripe, view[start - offset : end - offset])
        except DamagedFragment as damage:
            self.quarantine(header, str(damage))
            raise Corrupt(f"fragment {header.index} of {header.state} is damaged on disk") from None

    # Removing

    def release(self, state: StateId, before: BatchId, epoch: Epoch) -> int:
        """Remove a state's versions before `before`; return how many fragments went."""
        self.check_epoch(state.namespace, epoch)
        with self._lock:
            gone = [header for header in self._index.get(state, ()) if header.state.version < before]
        for header in gone:
            self.drop(header)
        return len(gone)

    def drop(self, header: FragmentHeader) -> None:
        """Remove one fragment; fine when it is not there."""
        with self._lock:  # a fragment that is put again now is published after that, and not removed with this one
            path = self._forget(header)
            if path is not None:
                self._disk.remove(path)
        if path is not None:
            self._disk.remove_empty(path.parent)  # states that are saved once and dropped would leave a folder each

    def quarantine(self, header: FragmentHeader, reason: str) -> None:
        """Move a damaged fragment to quarantine; its bytes are kept for analysis."""
        with self._lock:  # as in `drop`
            path = self._forget(header)
            if path is None:
                return
            self._quarantined += 1
            self._put_away(path)
        log.warning("fragment %d of %s is lost: %s", header.index, header.state, reason)

    def _forget(self, header: FragmentHeader) -> Path | None:
        with self._lock:
            fragments = self._index.get(header.state.state, {})
            path = fragments.pop(header, None)
            if path is None:
                return None
            if not fragments:
                self._index.pop(header.state.state, None)
            self._stored[header.state.state.namespace] -= header.state.fragment_length
            self._memory.drop(header)
            return path

    def _put_away(self, path: Path) -> None:
        try:
            self._disk.rename(path, self._quarantine / f"{path.parent.name}-{path.name}")
        except OSError as error:
            log.warning("could not move %s to quarantine: %s", path.name, error.strerror)

    # Everything

    def close(self) -> None:
        """Let another process have the folder."""
        if self._owner >= 0:
            os.close(self._owner)
            self._owner = -1

    def usage(self) -> Usage:
        """Count."""
        with self._lock:
            return Usage(
                fragments=sum(map(len, self._index.values())),
                states=len(self._index),
                bytes=self._stored.total(),
                memory_bytes=self._memory.used,
                memory_hits=self._memory.hits,
                memory_misses=self._memory.misses,
                quarantined=self._quarantined,
                refused_stale=self._stale,
            )

    def all_held(self) -> Iterator[FragmentHeader]:
        """Go through every fragment, as the index was at each state."""
        for state in self.states():
            yield from self.held(state)

    def _read_fences(self) -> dict[str, Epoch]:
        path = self.folder / "fences.json"
        if not path.exists():
            return {}
        try:
            read = json.loads(path.read_bytes())
            return {str(namespace): Epoch(int(epoch)) for namespace, epoch in read.items()}
        except (ValueError, AttributeError, TypeError):
            # Fences are written atomically, so this is damage from outside: serving without them could let an old
            # driver overwrite a newer one's state.
            raise Corrupt(
                "the file of fenced epochs is damaged",
                where=str(path),
                remedy="move this peer's folder away and start it empty",
            ) from None

    def _recover(self) -> None:
        for part in self._incoming.glob("*.part"):
            self._disk.remove(part)
        for path in self._fragments.glob("*/*/*"):
            try:
                if path.suffix != _SUFFIX:
                    raise DamagedFragment("the file name is not that of a fragment")
                header = FragmentHeader.unpack(self._disk.read(path, 0, LONGEST_HEADER))
                if self.place(header) != path:
                    raise DamagedFragment("the file is not in the folder of the state in its header")
                if path.stat().st_size != header.state.fragment_length:
                    raise DamagedFragment(
                        f"the file has {path.stat().st_size} bytes, not {header.state.fragment_length}"
                    )
            except (DamagedFragment, OSError) as damage:
                if isinstance(damage, OSError) and damage.errno in _OF_THIS_PROCESS:
                    raise
                log.warning("%s is lost: %s", path.name, damage)
                self._quarantined += 1
                self._put_away(path)
                continue
            self._index.setdefault(header.state.state, {})[header] = path
            self._stored[header.state.state.namespace] += header.state.fragment_length

    def place(self, header: FragmentHeader) -> Path:
        """Return where a fragment lies: made from hashes and numbers alone."""
        state = header.state
        key = hashlib.blake2b(f"{state.state.namespace}\0{state.state.name}".encode(), digest_size=16).hexdigest()
        name = f"{state.version}-{state.epoch}-{_identity(header)}-{header.index}{_SUFFIX}"
        return self._fragments / key[:2] / key / name


def _own(folder: Path) -> int:
    """Keep other processes away from the folder for as long as the returned handle is open."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise BadInput(
            "another process uses this data folder", where=str(folder), remedy="stop it, or give each peer a folder"
        ) from None
    return handle


def _identity(header: FragmentHeader) -> str:
    """Return a name that distinguishes this encoding from others of the same version and epoch."""
    packed = FragmentHeader(header.state, 0).pack()
    return hashlib.blake2b(packed, digest_size=12).hexdigest()


def _order(header: FragmentHeader) -> tuple[int, int, bytes, int]:
    return header.state.epoch, header.state.version, header.state.digest, header.index
