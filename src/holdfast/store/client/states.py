"""The interface of a state store, implemented in memory, in a folder and by the ring of peers. Runs anywhere.

A state has versions (batches). A version is a base, or a delta that follows an earlier version; reading one gives the
base and the deltas up to it, in order. Every write carries an epoch; once a namespace has seen a
higher one, lower ones are refused. Of two writes of the same version the one with the higher epoch counts. `tests/` has
one conformance suite for every implementation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.erasure.fragment import StateHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.wire.failures import StateMissing

Contents = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Saved:
    """A save that was acknowledged."""

    state: StateId
    version: BatchId
    epoch: Epoch
    bytes: int
    coding: Coding
    stored: int
    """Fragments acknowledged."""
    seconds: float = 0.0
    holders: tuple[str, ...] = ()
    """Who holds each of them; a holder of several is named for each."""
    peers: int = 0
    """Peers that there were to choose from."""
    notes: tuple[str, ...] = ()
    """What went wrong on the way without doing harm, and warnings about placement."""


@dataclass(frozen=True, slots=True, order=True)
class Version:
    """A version that can be read."""

    epoch: Epoch
    version: BatchId
    bytes: int
    follows: BatchId | None
    redundancy: int
    """How many more fragments may be lost."""


@dataclass(frozen=True, slots=True)
class Part:
    """A base or a delta, as it was saved."""

    version: BatchId
    epoch: Epoch
    contents: Contents


@dataclass(frozen=True, slots=True)
class Loaded:
    """A state read back: the base, then the deltas in order."""

    state: StateId
    parts: tuple[Part, ...]
    used: int = 0
    """Fragments used, over all parts."""
    lost: tuple[str, ...] = ()
    """Fragments met that were missing, damaged or stale, each with where and why."""
    seconds: float = 0.0

    @property
    def version(self) -> BatchId:
        """The version that was read."""
        return self.parts[-1].version

    @property
    def bytes(self) -> int:
        """Bytes of all parts."""
        return sum(len(part.contents) for part in self.parts)

    def joined(self) -> Contents:
        """Return the parts behind each other."""
        return self.parts[0].contents if len(self.parts) == 1 else b"".join(part.contents for part in self.parts)


@dataclass(frozen=True, slots=True)
class LoadedFile:
    """A state read back into a file: where each part ends in it."""

    state: StateId
    version: BatchId
    path: Path
    part_bytes: tuple[int, ...]
    used: int
    lost: tuple[str, ...] = ()
    seconds: float = 0.0
    decode_seconds: float = 0.0
    """Of these, spent in checking and rebuilding rather than in waiting for peers."""
    received_bytes: int = 0
    """Bytes that peers sent, those of doubled requests included."""
    retrieve_seconds: float = 0.0
    """From the first request for a block to the verified file: what the model predicts."""
    predicted_seconds: float | None = None
    """The same by the model, before the first request; None: nothing predicts it."""
    coding: Coding | None = None
    """The code of the last part."""

    @property
    def bytes(self) -> int:
        """Bytes of the file."""
        return sum(self.part_bytes)


class StateStore(Protocol):
    """Keeps states. Implementations: `MemoryStore`, `FolderStore`, `PeerStore`."""

    def save(
        self, state: StateId, version: BatchId, epoch: Epoch, contents: Contents, *, follows: BatchId | None = None
    ) -> Saved:
        """Save a version; return when it is safe. `follows` makes it a delta on that version."""
        ...

    def versions(self, state: StateId) -> list[Version]:
        """Return the versions that can be read, oldest first; none is an answer."""
        ...

    def load(self, state: StateId, version: BatchId | None = None) -> Loaded:
        """Read a version (default: the newest) with the deltas before it; `StateMissing` if it is incomplete."""
        ...

    def load_into(self, state: StateId, path: Path, version: BatchId | None = None) -> LoadedFile:
        """Read a version into a file that appears only when it is whole and verified."""
        ...

    def release(self, state: StateId, before: BatchId, epoch: Epoch) -> None:
        """Delete the versions before this one: they are no longer needed."""
        ...

    def fence(self, namespace: str, epoch: Epoch) -> Epoch:
        """Refuse every write of a lower epoch from now on; return the epoch that stands."""
        ...

    def close(self) -> None:
        """Let go of connections and files."""
        ...


def chain_to(readable: Sequence[StateHeader], state: StateId, version: BatchId | None) -> list[StateHeader]:
    """Return base and deltas, in order, that give `version` (or the newest); one oracle for all implementations.

    The newest is the highest version of the highest epoch. A delta stands on the version it follows as written in its
    own epoch or, failing that, in the highest epoch below. A chain with a gap is no state.
    """
    known = sorted(readable, key=lambda header: (header.epoch, header.version, header.digest), reverse=True)
    heads = [header for header in known if version is None or header.version == version]
    for head in heads:
        chain = [head]
        while chain[-1].follows is not None:
            last = chain[-1]
            below = [one for one in known if one.version == last.follows and one.epoch <= last.epoch]
            if not below:
                break
            chain.append(below[0])
        if chain[-1].follows is None:
            return chain[::-1]
    asked = "" if version is None else f" at version {version}"
    found = sorted({header.version for header in readable})
    raise StateMissing(
        f"{state}: no complete state{asked}" + (f"; stored versions: {found}" if found else "; no version is stored"),
        remedy="check the name with `holdfast store status`",
    )
