"""Small states saved together, at intervals (A-FP4S, sec. 3.3 and 3.5). Runs wherever a client does.

Coding a state of some kilobytes into thirty fragments costs thirty small files and as many round trips. A `Gatherer`
collects the latest contents of an owner's small states in a few bundles of at most `threshold` bytes and saves the
bundles that changed when `interval` has passed (30 s by default) or when a bundle's worth of changes has come together.
A state that outgrows half a bundle is saved by itself.

A bundle always holds the latest contents of all its members, so the newest version of a bundle is enough and older ones
are released. **A state is safe when `flush` has returned, not when it was added.** `load_gathered` finds a state by its
name wherever its latest contents are: in one of the owner's bundles, or saved by itself.

    "HFBUNDL1"  index length (4, big-endian)  index (JSON: [[name, version, epoch, length], …])  contents
"""

from __future__ import annotations

import json
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.erasure.fragment import StateId
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.states import Contents, Part, Saved, StateStore
from holdfast.store.wire.failures import Corrupt, StateMissing

GATHER_BYTES = 1 << 20
SAVE_INTERVAL_SECONDS = 30.0
_MAGIC = b"HFBUNDL1"
_LENGTH = struct.Struct("!I")


@dataclass(frozen=True, slots=True)
class Member:
    """One state in a bundle."""

    name: str
    version: BatchId
    epoch: Epoch
    contents: bytes


def pack_bundle(members: list[Member]) -> bytes:
    """Write states behind each other, with an index in front."""
    index = json.dumps([[one.name, one.version, one.epoch, len(one.contents)] for one in members]).encode()
    return b"".join((_MAGIC, _LENGTH.pack(len(index)), index, *(one.contents for one in members)))


def unpack_bundle(bundle: Contents) -> list[Member]:
    """Read what `pack_bundle` wrote; anything else is refused."""
    view = memoryview(bundle)
    try:
        if bytes(view[:8]) != _MAGIC:
            raise ValueError("it does not begin like one")
        (length,) = _LENGTH.unpack(view[8:12])
        place = 12 + length
        members = []
        for name, version, epoch, size in json.loads(bytes(view[12:place])):
            if place + size > len(view) or size < 0:
                raise ValueError("it is cut short")
            members.append(Member(str(name), BatchId(version), Epoch(epoch), bytes(view[place : place + size])))
            place += size
        if place != len(view):
            raise ValueError("bytes are left over")
    except (ValueError, TypeError, struct.error) as error:
        raise Corrupt(f"this is no bundle of states: {error}") from None
    return members


@dataclass(slots=True)
class _Bundle:
    members: dict[str, Member] = field(default_factory=dict)
    size: int = 0
    changed: int = 0
    """Bytes added since it was last saved."""
    version: int = -1


class Gatherer:
    """Collects one owner's small states (a node's, say) and saves them together. Safe in threads."""

    def __init__(
        self,
        store: StateStore,
        namespace: str,
        owner: str,
        *,
        threshold: int = GATHER_BYTES,
        interval: float = SAVE_INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Save into `store`; bundles are named after the owner."""
        self._store, self._namespace, self._owner = store, namespace, owner
        self._threshold, self._interval, self._clock = threshold, interval, clock
        self._bundles: list[_Bundle] = []
        self._place: dict[str, int] = {}
        self._last = clock()
        self._epoch = Epoch(0)
        self._lock = threading.RLock()

    def add(self, name: str, version: BatchId, epoch: Epoch, contents: Contents) -> list[Saved]:
        """Take a state's latest contents; returns what was saved on this occasion, often nothing."""
        with self._lock:
            StateId(self._namespace, name)
            # Bundles are written in the owner's present epoch, whatever epochs their members are of.
            self._epoch = max(self._epoch, epoch)
            self._remove(name)
            if 2 * len(contents) > self._threshold:
                state = StateId(self._namespace, name)
                saved = self._store.save(state, version, epoch, contents)
                self._store.release(state, version, epoch)
                return [saved]
            number = self._room_for(len(contents))
            bundle = self._bundles[number]
            bundle.members[name] = Member(name, version, epoch, bytes(contents))
            bundle.size += len(contents)
            bundle.changed += max(1, len(contents))
            self._place[name] = number
            return self.flush() if self.due() else []

    def due(self) -> bool:
        """Say whether it is time to save: the interval is over, or a bundle's worth of changes is waiting."""
        changed = sum(bundle.changed for bundle in self._bundles)
        return changed > 0 and (changed >= self._threshold or self._clock() - self._last >= self._interval)

    def flush(self) -> list[Saved]:
        """Save every bundle that changed; when this returns its members are safe."""
        with self._lock:
            saved = []
            for number, bundle in enumerate(self._bundles):
                if not bundle.changed:
                    continue
                members = list(bundle.members.values())
                newest = max((one.version for one in members), default=BatchId(0))
                version = BatchId(max(newest, bundle.version + 1))
                state = bundle_id(self._namespace, self._owner, number)
                saved.append(self._store.save(state, version, self._epoch, pack_bundle(members)))
                bundle.version, bundle.changed = version, 0
                self._store.release(state, version, self._epoch)
            self._last = self._clock()
            return saved

    def _remove(self, name: str) -> None:
        number = self._place.pop(name, None)
        if number is not None:
            bundle = self._bundles[number]
            bundle.size -= len(bundle.members.pop(name).contents)
            bundle.changed += 1

    def _room_for(self, size: int) -> int:
        for number, bundle in enumerate(self._bundles):
            if bundle.size + size <= self._threshold:
                return number
        self._bundles.append(_Bundle())
        return len(self._bundles) - 1


def bundle_id(namespace: str, owner: str, number: int) -> StateId:
    """Return the name of an owner's bundle."""
    return StateId(namespace, f"gathered.{owner}.{number}")


def load_gathered(store: StateStore, namespace: str, owner: str, name: str) -> Part:
    """Return the latest contents of a state that a `Gatherer` of this owner took, wherever they are."""
    found: list[Part] = []
    number = 0
    while True:
        try:
            bundle = store.load(bundle_id(namespace, owner, number))
        except StateMissing:
            break
        members = unpack_bundle(bundle.joined())
        found += [Part(one.version, one.epoch, one.contents) for one in members if one.name == name]
        number += 1
    try:
        alone = store.load(StateId(namespace, name))
        found.append(Part(alone.version, alone.parts[-1].epoch, alone.joined()))
    except StateMissing:
        if not found:
            raise
    return max(found, key=lambda part: (part.epoch, part.version))
