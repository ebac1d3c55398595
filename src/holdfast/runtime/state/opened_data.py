"""State and output blocks of a node's partitions, opened: what was used last, within a number of bytes. Runs on a node.

A store says where the bytes of a name are; which segments a version consists of, what was sent with it, and what is
still open in memory is the same for all stores on disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import PartitionId
from holdfast.runtime.blocks import Block, decode_blocks
from holdfast.runtime.state.store import Sent, by_receiver
from holdfast.runtime.state.versions import Commit, FileName, decode_segments

DEFAULT_CACHE_BYTES = 256 * 2**20

Key = tuple[PartitionId, FileName]


class OpenedData:
    """Segments and blocks by partition and name, read where they are not in memory."""

    def __init__(self, read: Callable[[PartitionId, FileName], pa.Buffer | None], most_bytes: int) -> None:
        """`read` maps the bytes of a name; None where they are lost."""
        self._read, self._most = read, most_bytes
        self._held: OrderedDict[Key, tuple[Any, int]] = OrderedDict()
        self.bytes = 0
        """How many bytes memory holds."""

    def load(self, commit: Commit) -> dict[str, tuple[pa.Table, ...]] | None:
        """See VersionStore."""
        found: dict[FileName, Sequence[pa.Table]] = {}
        for name in commit.files:
            segments = self.segments(commit.partition, name)
            if segments is None:
                return None
            found[name] = segments
        return {name: tuple(found[ref.file][ref.number] for ref in refs) for name, refs in commit.segments.items()}

    def sent(self, commit: Commit) -> Sent | None:
        """See VersionStore."""
        if commit.blocks is None:
            return {}
        key = (commit.partition, commit.blocks)
        held: Sent | None = self._get(key)
        if held is not None:
            return held
        data = self._read(*key)
        try:
            found = None if data is None else by_receiver(decode_blocks(data))
        except CheckFailed:
            return None
        if data is not None and found is not None:
            self._put(key, found, data.size)
        return found

    def segments(self, partition: PartitionId, name: FileName) -> Sequence[pa.Table] | None:
        """Return the segments under a name; None where they are lost or damaged."""
        held: Sequence[pa.Table] | None = self._get((partition, name))
        if held is not None:
            return held
        data = self._read(partition, name)
        try:
            found = None if data is None else decode_segments(data)
        except CheckFailed:
            return None
        if found is not None:
            self.put_segments(partition, name, found)
        return found

    def live_bytes(self, commit: Commit) -> dict[FileName, int]:
        """Return how many bytes under each name a version needs."""
        live: dict[FileName, int] = {}
        for refs in commit.segments.values():
            for ref in refs:
                segments = self.segments(commit.partition, ref.file)
                live[ref.file] = live.get(ref.file, 0) + (0 if segments is None else segments[ref.number].nbytes)
        return live

    def put_segments(self, partition: PartitionId, name: FileName, segments: Sequence[pa.Table]) -> None:
        """Hold segments that were written now."""
        self._put((partition, name), segments, sum(one.nbytes for one in segments))

    def put_blocks(self, partition: PartitionId, name: FileName, blocks: Iterable[Block], size: int) -> None:
        """Hold blocks that were written now."""
        self._put((partition, name), by_receiver(blocks), size)

    def forget(self, partition: PartitionId, name: FileName) -> None:
        """Hold it no more."""
        if (partition, name) in self._held:
            self.bytes -= self._held.pop((partition, name))[1]

    def _get(self, key: Key) -> Any:
        if key not in self._held:
            return None
        self._held.move_to_end(key)
        return self._held[key][0]

    def _put(self, key: Key, value: Any, size: int) -> None:
        """Hold something; what was used longest ago goes where there is no room."""
        self.forget(*key)
        self._held[key] = (value, size)
        self.bytes += size
        while self.bytes > self._most and self._held:
            _, (_, gone) = self._held.popitem(last=False)
            self.bytes -= gone
