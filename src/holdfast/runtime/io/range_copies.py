"""Copies of ranges that a source may soon be unable to give again, in the run's log. The driver writes, nodes read.

Brokers delete records by age and size, and compaction removes them. While a batch may still be needed by a recovery
(a parked query, a checkpoint that is not durable), its ranges must stay readable. So the driver copies those that are
about to go. A node reads a copy only where the brokers no longer give what was logged. For files see `file_retention`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from threading import Lock
from typing import Protocol

import pyarrow as pa

from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.file_ranges import HowRead
from holdfast.runtime.io.kafka_records import Records, decode_records
from holdfast.runtime.io.offset_ranges import OffsetRange
from holdfast.runtime.io.offset_tracker import FIRST_RECORD_BYTES, TopicSeen
from holdfast.runtime.io.topic_retention import TopicRetention, first_kept_by_size, moves_to, soon_gone
from holdfast.storage.storage import Storage

LOOK_SECONDS = 2.0
"""How often it is looked for ranges that are about to go."""
SAFE_SHARE = 0.75
"""Of the retention time: records that are older are copied where they are still needed."""
AGED_SHARE = 0.01
"""Of the retention time: so old may be what is known of the age of records. The brokers are asked by the thread that
looks for new records, and each question holds it up."""
MOST_AT_ONCE = 8
"""Ranges that one look copies; where more are due, the next look goes on with them."""
RETENTION_SECONDS = 60.0
"""How often the topic's settings are asked for."""


class CopyStore:
    """The copies of a run."""

    def __init__(self, storage: Storage) -> None:
        self._storage, self._guard = storage, Lock()
        self._names: set[str] | None = None

    def has(self, source: OperatorId, batch: BatchId, partition: int, number: int) -> bool:
        """Whether there is a copy of a range: the so-and-so-manieth of a partition in a batch."""
        name = copy_name(source, batch, partition, number)
        with self._guard:
            return name in self._listed()

    def add(self, source: OperatorId, batch: BatchId, partition: int, number: int, data: pa.Buffer) -> None:
        """Keep a copy; it is safe when this returns."""
        name = copy_name(source, batch, partition, number)
        self._storage.create(name, data)
        with self._guard:
            assert self._names is not None
            self._names.add(name)

    def read(self, source: OperatorId, batch: BatchId, partition: int, number: int) -> Records | None:
        """Return a copy of records; None: there is none."""
        held = self.data(source, batch, partition, number)
        return None if held is None else decode_records(held)

    def data(self, source: OperatorId, batch: BatchId, partition: int, number: int) -> pa.Buffer | None:
        """Return the bytes of a copy; None: there is none."""
        return self._storage.read(copy_name(source, batch, partition, number))

    def drop(self, through: BatchId) -> None:
        """Delete the copies of batches that no recovery can need."""
        with self._guard:
            over = [name for name in self._listed() if _batch_of(name) <= through]
        if over:
            self._storage.delete(over)
            with self._guard:
                assert self._names is not None
                self._names.difference_update(over)

    def _listed(self) -> set[str]:
        """Return the names of all copies, listed once; whoever calls has the guard. They are asked for one by one, and
        may be many: no copy of them is made."""
        if self._names is None:
            self._names = set(self._storage.list("copies/"))
        return self._names


def copy_name(source: OperatorId, batch: BatchId, partition: int, number: int) -> str:
    """Return the name under which a range is copied: the same for everybody."""
    return f"copies/{source}/{batch:010d}-{partition:05d}-{number:05d}"


def _batch_of(name: str) -> int:
    return int(name.rpartition("/")[2].partition("-")[0])


Needed = tuple[BatchId, int, int, OffsetRange, HowRead]
"""Batch, partition of the source, number among its ranges; the range, and how it is read."""


class KeptTopic(Protocol):
    """What is asked about a topic's retention."""

    def retention(self) -> TopicRetention:
        """Return what the topic's settings say about records that go."""
        ...

    def offsets_at(self, numbers: list[int], milliseconds: int) -> dict[int, int | None]:
        """Return the first offset of each topic partition that is not older than a time; None: there is none."""
        ...


class RetentionWatch:
    """Copies what a source still needs before it goes."""

    def __init__(
        self,
        source: OperatorId,
        topic: KeptTopic,
        needed: Callable[[], Iterable[Needed]],
        copies: CopyStore,
        read: Callable[[OffsetRange, HowRead], Records],
        *,
        check: Callable[[BatchId, int, int], int | None] = lambda batch, partition, number: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`needed`: the ranges that recoveries may need. `read` fetches a range; `LookupError` where it is gone.

        `check` says what the first reading of a range found, where that is known.
        """
        self._source, self._topic, self._needed, self._copies, self._read = source, topic, needed, copies, read
        self._check, self._clock, self._wall = check, clock, wall
        self._looked = self._asked = -1e9
        self._kept = TopicRetention()
        self._aged_at: float | None = None
        self._first_safe: dict[int, int | None] = {}
        """Of each topic partition, the first record that was younger than that."""
        self._began: dict[int, int] = {}
        """Where topic partitions began at the look before."""
        self._reach: dict[int, int] = {}
        """Up to where their beginnings may move on next, by how far they did before."""
        self._lost: set[tuple[BatchId, int, int]] = set()
        self._others: dict[tuple[BatchId, int, int], float] = {}
        """Ranges that had other records than were first read, and when that was seen."""
        self._failing: set[int] = set()
        """Topic partitions that could not be read last: their ranges come after all others."""

    def look(self, seen: TopicSeen, record_bytes: float = FIRST_RECORD_BYTES) -> list[str]:
        """Copy ranges that may go soon; return lines about it. Every few seconds, and while more of them are due.

        `record_bytes`: what the source knows of the size of a record.
        """
        now = self._clock()
        if now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        for number, there in seen.partitions.items():
            before = self._began.get(number, there.earliest)
            self._reach[number] = moves_to(there.earliest, before, self._reach.get(number, 0))
            self._began[number] = there.earliest
        needed = [one for one in self._needed() if not self._is_over(one)]
        if not needed:
            return []
        aged = self._aged(seen)
        due = [one for one in needed if self._goes(one[3], seen, record_bytes, aged=aged)]
        due.sort(key=lambda one: self._turn(one[3], seen))
        lines = self._copy(due[:MOST_AT_ONCE])
        if len(due) > MOST_AT_ONCE and all(map(self._is_over, due[:MOST_AT_ONCE])):
            self._looked = -1e9  # brokers that do not answer are asked again in a few seconds
        return lines

    def _turn(self, one: OffsetRange, seen: TopicSeen) -> tuple[bool, bool, int]:
        """Return when a range has its turn: the oldest that can still be copied first, those that are gone last."""
        number = one.topic_partition
        earliest = seen.partitions[number].earliest
        return number in self._failing, one.end <= earliest, one.start - earliest

    def _is_over(self, one: Needed) -> bool:
        """Whether there is a copy of a range, or none can be had, or not now."""
        if one[:3] in self._lost or self._copies.has(self._source, *one[:3]):
            return True
        seen = self._others.get(one[:3])
        return seen is not None and self._clock() - seen < RETENTION_SECONDS

    def _aged(self, seen: TopicSeen) -> dict[int, int | None]:
        """Return the first offset of each topic partition that is not about to go by its age."""
        if self._clock() - self._asked >= RETENTION_SECONDS:
            self._kept, self._asked = self._topic.retention(), self._clock()
        if (seconds := self._kept.seconds) is None:
            return {}
        at = self._wall() - SAFE_SHARE * seconds
        if self._aged_at is None or not 0 <= at - self._aged_at < min(RETENTION_SECONDS, AGED_SHARE * seconds):
            safe = self._topic.offsets_at(list(seen.partitions), round(1000 * at))
            # Where no record is young enough, all are about to go.
            self._first_safe = {n: seen.partitions[n].end if found is None else found for n, found in safe.items()}
            self._aged_at = at
        return self._first_safe

    def _goes(self, one: OffsetRange, seen: TopicSeen, record_bytes: float, *, aged: dict[int, int | None]) -> bool:
        number = one.topic_partition
        if (there := seen.partitions.get(number)) is None:
            return False
        size = max(record_bytes, one.bytes / max(1, one.end - one.start))  # the log remembers what was known then
        return soon_gone(
            one.start,
            there.earliest,
            reach=self._reach.get(number, 0),
            aged=aged.get(number),
            sized=first_kept_by_size(there, self._kept, size),
            compacted=self._kept.compacted,
        )

    def _copy(self, due: list[Needed]) -> list[str]:
        lines, copied = list[str](), list[Needed]()
        for batch, partition, number, one, how in due:
            try:
                records = self._read(one, how)
            except HoldfastError as error:
                self._failing.add(one.topic_partition)
                lines.append(f"{one} (batch {batch}) cannot be copied, and is tried again: {error}")
                break
            except LookupError:
                self._lost.add((batch, partition, number))
                lines.append(f"{one} (batch {batch}) went before a copy was made: a recovery that reads it again fails")
                continue
            self._failing.discard(one.topic_partition)
            known = self._check(batch, partition, number)
            if known is not None and records.gone_to is None and records.check() != known:
                # A copy of it would stand for the range for good, also where the brokers have the right records again.
                if (batch, partition, number) not in self._others:
                    lines.append(f"{one} (batch {batch}) does not have the records that were first read: not copied")
                self._others[batch, partition, number] = self._clock()
                continue
            self._copies.add(self._source, batch, partition, number, records.encode())
            if records.gone_to is not None:
                lost = replace(one, end=min(records.gone_to, one.end))
                lines.append(f"{lost} (batch {batch}) went before a copy was made: a recovery passes over them")
            copied.append((batch, partition, number, one, how))
        if copied:
            first = copied[0][3]
            more = "" if len(copied) == 1 else f" and {len(copied) - 1} more ranges"
            lines.append(f"{first}{more} may go soon and are still needed: copied into the run's log")
        return lines
