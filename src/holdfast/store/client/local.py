"""Stores without peers: in memory, for tests and simulation, and in a folder, for the durable tier a user names.

`FolderStore` writes the same fragment files as a peer does, with one fragment per state, so that atomic writes, checks
and recovery are the same code. It is safe against crashes, not against the loss of the disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.erasure.decoding import StateDecoder
from holdfast.erasure.encoding import describe, encode_stripes
from holdfast.erasure.fragment import FragmentHeader, StateHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.states import Contents, Loaded, LoadedFile, Part, Saved, Version, chain_to
from holdfast.store.client.target_files import target_file
from holdfast.store.peer.disk import Disk
from holdfast.store.peer.fragment_files import FragmentFiles
from holdfast.store.peer.limits import Limits
from holdfast.store.wire.failures import StaleEpoch, StateMissing

ONE = Coding(1, 0)
"""One fragment: the state itself, checked but not coded."""


class MemoryStore:
    """States in this process's memory."""

    def __init__(self) -> None:
        self._states: dict[StateId, dict[StateHeader, bytes]] = {}
        self._fences: dict[str, Epoch] = {}
        self._lock = threading.Lock()

    def save(
        self, state: StateId, version: BatchId, epoch: Epoch, contents: Contents, *, follows: BatchId | None = None
    ) -> Saved:
        """Keep a copy."""
        header = describe(contents, state, version, epoch, ONE, follows=follows)
        with self._lock:
            self._check(state.namespace, epoch)
            self._fences[state.namespace] = epoch
            self._states.setdefault(state, {})[header] = bytes(contents)
        return Saved(state, version, epoch, len(contents), ONE, 1)

    def versions(self, state: StateId) -> list[Version]:
        """Return what can be read."""
        with self._lock:
            return readable_versions(list(self._states.get(state, ())), {})

    def load(self, state: StateId, version: BatchId | None = None) -> Loaded:
        """Return base and deltas."""
        with self._lock:
            held = self._states.get(state, {})
            chain = chain_to(list(held), state, version)
            return Loaded(state, tuple(Part(one.version, one.epoch, held[one]) for one in chain), used=len(chain))

    def load_into(self, state: StateId, path: Path, version: BatchId | None = None) -> LoadedFile:
        """Write base and deltas into a file."""
        loaded = self.load(state, version)
        with target_file(path) as file:
            file.writelines(part.contents for part in loaded.parts)
        sizes = tuple(len(part.contents) for part in loaded.parts)
        return LoadedFile(state, loaded.version, path, sizes, loaded.used)

    def release(self, state: StateId, before: BatchId, epoch: Epoch) -> None:
        """Forget old versions."""
        with self._lock:
            self._check(state.namespace, epoch)
            held = self._states.get(state, {})
            for header in [one for one in held if one.version < before]:
                del held[header]

    def fence(self, namespace: str, epoch: Epoch) -> Epoch:
        """Raise the fence."""
        with self._lock:
            self._fences[namespace] = max(epoch, self._fences.get(namespace, Epoch(0)))
            return self._fences[namespace]

    def close(self) -> None:
        """Nothing to let go of."""

    def _check(self, namespace: str, epoch: Epoch) -> None:
        standing = self._fences.get(namespace, Epoch(0))
        if epoch < standing:
            raise StaleEpoch(f"epoch {epoch} of {namespace!r} is fenced: epoch {standing} has started")


class FolderStore:
    """States in a folder."""

    def __init__(self, folder: Path, limits: Limits | None = None, disk: Disk | None = None) -> None:
        """Open the folder; several processes must not open the same one for writing."""
        self._files = FragmentFiles(folder, limits, disk)

    def save(
        self, state: StateId, version: BatchId, epoch: Epoch, contents: Contents, *, follows: BatchId | None = None
    ) -> Saved:
        """Write one fragment, synced before this returns."""
        began = time.monotonic()
        header = describe(contents, state, version, epoch, ONE, follows=follows)
        writer = self._files.begin(FragmentHeader(header, 0))
        try:
            for (block,) in encode_stripes(header, contents):
                writer.add(block.prefix)
                writer.add(block.payload)
            writer.publish()
        finally:
            writer.cancel()
        return Saved(state, version, epoch, len(contents), ONE, 1, time.monotonic() - began)

    def versions(self, state: StateId) -> list[Version]:
        """Return what can be read."""
        return readable_versions(self._headers(state), {})

    def load(self, state: StateId, version: BatchId | None = None) -> Loaded:
        """Read and verify base and deltas."""
        began = time.monotonic()
        chain = chain_to(self._headers(state), state, version)
        parts = tuple(Part(one.version, one.epoch, b"".join(self._stripes(one))) for one in chain)
        return Loaded(state, parts, used=len(chain), seconds=time.monotonic() - began)

    def load_into(self, state: StateId, path: Path, version: BatchId | None = None) -> LoadedFile:
        """Read base and deltas into a file, a stripe at a time."""
        began = time.monotonic()
        chain = chain_to(self._headers(state), state, version)
        with target_file(path) as file:
            for header in chain:
                file.writelines(self._stripes(header))
        sizes = tuple(one.state_bytes for one in chain)
        return LoadedFile(state, chain[-1].version, path, sizes, len(chain), seconds=time.monotonic() - began)

    def release(self, state: StateId, before: BatchId, epoch: Epoch) -> None:
        """Remove old versions."""
        self._files.release(state, before, epoch)

    def fence(self, namespace: str, epoch: Epoch) -> Epoch:
        """Raise the fence, durably."""
        return self._files.fence(namespace, epoch)

    def close(self) -> None:
        """Let another process have the folder."""
        self._files.close()

    def _headers(self, state: StateId) -> list[StateHeader]:
        return [held.state for held in self._files.held(state)]

    def _stripes(self, header: StateHeader) -> Iterator[Contents]:
        """Yield a state's stripes, each verified; the digest is checked behind the last."""
        decoder = StateDecoder(header)
        for stripe in range(header.layout.stripes):
            yield decoder.stripe({0: self._files.read(FragmentHeader(header, 0), stripe, 1)})
        decoder.finish()


def readable_versions(headers: Sequence[StateHeader], redundancy: dict[StateHeader, int]) -> list[Version]:
    """Return those of these whole encodings whose chain is whole, one per version: the highest epoch's."""
    best: dict[int, StateHeader] = {}
    for header in sorted(headers, key=lambda one: (one.epoch, one.digest)):
        best[header.version] = header
    found = []
    for version, header in best.items():
        try:
            chain = chain_to(headers, header.state, BatchId(version))
        except StateMissing:
            continue
        left = min(redundancy.get(one, 0) for one in chain)
        head = chain[-1]
        found.append(Version(head.epoch, head.version, sum(one.state_bytes for one in chain), head.follows, left))
    return sorted(found)
