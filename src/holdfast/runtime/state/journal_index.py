"""What a node's journal holds: pointers, commits, and where their data is. Pure; runs on a node.

Every change of it is one record. A store appends the record and then applies it; a process that starts applies the
records that it finds. So both come to the same, and what a record means is said once, here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.state.journal_frames import padded
from holdfast.runtime.state.store import reach
from holdfast.runtime.state.versions import (
    Commit,
    FileName,
    Pointer,
    VersionChain,
    VersionId,
    chain_of,
    commit_of_fields,
    pointer_of_fields,
    record_fields,
)

BLOCKS = ".blocks"
SEGMENTS = ".segments"


class Place(NamedTuple):
    """Where data is: a journal file, and the bytes in it."""

    file: str
    at: int
    size: int


@dataclass(slots=True)
class Held:
    """What there is of one partition."""

    pointer: Pointer | None = None
    commits: dict[VersionId, Commit] = field(default_factory=dict)
    data: dict[FileName, Place] = field(default_factory=dict)


class JournalIndex:
    """What the records so far come to."""

    def __init__(self) -> None:
        self.partitions: dict[PartitionId, Held] = {}
        self.live: dict[str, int] = {}
        """How many bytes of each file are still needed."""

    # -- looking -------------------------------------------------------------------------------------------------------

    def pointer(self, partition: PartitionId) -> Pointer | None:
        """Return a partition's pointer."""
        held = self.partitions.get(partition)
        return None if held is None else held.pointer

    def commit(self, partition: PartitionId, version: VersionId) -> Commit | None:
        """Return a commit, if it is there."""
        held = self.partitions.get(partition)
        return None if held is None else held.commits.get(version)

    def place(self, partition: PartitionId, name: FileName) -> Place | None:
        """Return where data is."""
        held = self.partitions.get(partition)
        return None if held is None else held.data.get(name)

    def chain(self, partition: PartitionId) -> VersionChain | None:
        """Return a partition's chain."""
        held = self.partitions.get(partition)
        return None if held is None or held.pointer is None else chain_of(held.pointer, held.commits)

    def in_file(self, file: str) -> Iterator[tuple[PartitionId, FileName, Place]]:
        """Name the data in a file that is still needed."""
        for partition, held in self.partitions.items():
            for name, place in held.data.items():
                if place.file == file:
                    yield partition, name, place

    # -- changes -------------------------------------------------------------------------------------------------------

    def point(self, partition: PartitionId, pointer: Pointer) -> None:
        """Let a partition go on from a version."""
        self._held(partition).pointer = pointer

    def add(self, commit: Commit, data: Mapping[FileName, Place]) -> None:
        """Add a commit with the data that it brings."""
        held = self._held(commit.partition)
        held.commits[commit.id] = commit
        for name, place in data.items():
            self._put(held, name, place)

    def move(self, partition: PartitionId, name: FileName, place: Place) -> None:
        """Say that data is somewhere else now."""
        held = self.partitions.get(partition)
        if held is not None and name in held.data:
            self._put(held, name, place)

    def lose(self, partition: PartitionId, name: FileName) -> None:
        """Say that data is gone: who asks for it is told so."""
        held = self.partitions.get(partition)
        if held is not None:
            self._remove(held, name)

    def forget(self, partition: PartitionId, states: set[VersionId], blocks_from: BatchId) -> list[FileName]:
        """See VersionStore; return the names of the data that went."""
        chain = self.chain(partition)
        if chain is None or not chain.commits:
            return []
        held = self.partitions[partition]
        held.pointer, kept, with_state = reach(chain, blocks_from, states)
        needed = {name for one in with_state for name in held.commits[one].files}
        needed |= {name for one in kept if one.batch >= blocks_from and (name := held.commits[one].blocks) is not None}
        held.commits = {one: commit for one, commit in held.commits.items() if one in kept}
        gone = [name for name in held.data if name not in needed]
        for name in gone:
            self._remove(held, name)
        return gone

    def drop(self, partition: PartitionId) -> list[FileName]:
        """Lose everything of a partition; return the names of its data."""
        held = self.partitions.pop(partition, None)
        if held is None:
            return []
        gone = list(held.data)
        for name in gone:
            self._remove(held, name)
        return gone

    def _held(self, partition: PartitionId) -> Held:
        return self.partitions.setdefault(partition, Held())

    def _put(self, held: Held, name: FileName, place: Place) -> None:
        self._remove(held, name)
        held.data[name] = place
        self.live[place.file] = self.live.get(place.file, 0) + place.size

    def _remove(self, held: Held, name: FileName) -> None:
        place = held.data.pop(name, None)
        if place is not None:
            self.live[place.file] -= place.size
            if not self.live[place.file]:
                del self.live[place.file]

    # -- records -------------------------------------------------------------------------------------------------------

    def apply(self, record: Mapping[str, Any], file: str, body_at: int) -> None:
        """Do what a record of a file says; its body begins there."""
        do = record["do"]
        if do == "commit":
            self.add(commit_of_fields(record["commit"]), places(file, body_at, record["data"]))
            return
        if do == "move":
            for partition, name, place in _moves(record, file, body_at):
                self.move(partition, name, place)
            return
        partition = PartitionId.parse(record["partition"])
        if do == "point":
            self.point(partition, pointer_of_fields(record["pointer"]))
        elif do == "forget":
            self.forget(partition, {_version(one) for one in record["states"]}, BatchId(record["from"]))
        elif do == "drop":
            self.drop(partition)

    def fields(self) -> list[dict[str, Any]]:
        """Return all of it, for the first record of a file."""
        return [
            {
                "partition": str(partition),
                "pointer": None if held.pointer is None else record_fields(held.pointer),
                "commits": [record_fields(one) for one in held.commits.values()],
                "data": [[name, *place] for name, place in held.data.items()],
            }
            for partition, held in self.partitions.items()
        ]

    @classmethod
    def of_fields(cls, fields: list[dict[str, Any]]) -> JournalIndex:
        """Return what `fields` gave."""
        index = cls()
        for one in fields:
            held = index._held(PartitionId.parse(one["partition"]))
            held.pointer = None if one["pointer"] is None else pointer_of_fields(one["pointer"])
            for commit in map(commit_of_fields, one["commits"]):
                held.commits[commit.id] = commit
            for name, file, at, size in one["data"]:
                index._put(held, FileName(name), Place(file, at, size))
        return index


def places(file: str, at: int, sizes: Iterable[tuple[str, int]]) -> dict[FileName, Place]:
    """Return where the parts of a record's body are, which begins there."""
    found = {}
    for name, size in sizes:
        found[FileName(name)] = Place(file, at, size)
        at += padded(size)
    return found


def _moves(record: Mapping[str, Any], file: str, at: int) -> Iterator[tuple[PartitionId, FileName, Place]]:
    for partition, name, size in record["data"]:
        yield PartitionId.parse(partition), FileName(name), Place(file, at, size)
        at += padded(size)


def point_record(partition: PartitionId, pointer: Pointer) -> dict[str, Any]:
    """Say in a record that a partition goes on from a version."""
    return {"do": "point", "partition": str(partition), "pointer": record_fields(pointer)}


def forget_record(partition: PartitionId, states: set[VersionId], blocks_from: BatchId) -> dict[str, Any]:
    """Say in a record what is kept of a partition."""
    pairs = [[one.batch, one.epoch] for one in sorted(states)]
    return {"do": "forget", "partition": str(partition), "states": pairs, "from": blocks_from}


def _version(pair: list[int]) -> VersionId:
    return VersionId(BatchId(pair[0]), Epoch(pair[1]))
