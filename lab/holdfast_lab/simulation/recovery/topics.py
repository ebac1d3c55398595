"""Topics that simulated sources read in place: written in transactions, and lost, moved and changed. Runs anywhere.

Each source's rows are records of one topic of one to three partitions, which may come later. Some transactions are
aborted and made again, some stay open for a while: readers get what is committed, up to the first record of one that is
open. The beginning of a topic partition moves on by its retention, once what is needed of it is copied; what was copied
may be compacted away. For a while a partition may end before what was logged, or give other records than were first
read, and brokers may not answer; in the end everything is as it was. What was ever committed is kept apart, so that the
rows of a range are known whatever the brokers give.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import pyarrow as pa

from holdfast.application.kafka_topics import KafkaTopic
from holdfast.ids import OperatorId
from holdfast.runtime.io.file_ranges import HowRead
from holdfast.runtime.io.in_place import latest_event
from holdfast.runtime.io.kafka_client import BrokersAway
from holdfast.runtime.io.kafka_records import Records, record_rows
from holdfast.runtime.io.kafka_stream import OffsetsGone
from holdfast.runtime.io.offset_ranges import OffsetRange, SourceRange
from holdfast.runtime.io.offset_tracker import PartitionSeen, TopicSeen
from holdfast.runtime.io.topic_retention import TopicRetention
from holdfast.runtime.program import SourceProgram
from holdfast_lab.simulation.recovery.faults import Fault, Mischief

RETENTION = 60.0
"""Seconds that records stay."""


def is_from_topics(seed: int) -> bool:
    """Whether sources are read from topics in a run, and not from files, where its applications allow it."""
    return seed >= 2100 and seed % 3 == 1 and seed % 19 in (5, 7)


@dataclass(frozen=True, slots=True)
class _Record:
    """What is at an offset; markers and what was aborted are no records."""

    at: float
    stable: float
    """When its transaction ends."""
    value: bytes | None = None


@dataclass(slots=True)
class _Partition:
    """A topic partition."""

    log: list[_Record] = field(default_factory=list)
    earliest: int = 0
    taken: int = 0
    """How far the log of batches is."""
    compacted: set[int] = field(default_factory=set)
    """Offsets whose records are not there any more."""
    ends: int | None = None
    """Where it ends for a while, though more was logged."""
    other: tuple[int, int] | None = None
    """Offsets between which it gives other records for a while."""
    until: float = 0.0

    def end(self, now: float) -> int:
        """Return the last stable offset."""
        return next((n for n, one in enumerate(self.log) if one.at > now or one.stable > now), len(self.log))


class SimulatedTopic:
    """The topic of one source: what the driver asks about it, and what nodes fetch."""

    def __init__(
        self,
        source: OperatorId,
        tables: Sequence[pa.Table],
        seed: int,
        clock: Callable[[], float],
        mischief: Mischief,
        touch: Callable[[str], None],
    ) -> None:
        self.name = f"topic-{source}"
        self.reader = KafkaTopic("simulated:9092", self.name, "json", max_records=None)
        self._draw, self._clock, self._mischief, self._touch = (
            random.Random(f"topic {source} {seed}"), clock, mischief, touch,
        )  # fmt: skip
        draw, at = self._draw, 0.0
        self.partitions = [_Partition() for _ in range(draw.choice((1, 2, 3)))]
        self._retention = draw.choice((None, RETENTION, RETENTION))
        self._compacts = draw.random() < 0.3
        self._checked: dict[int, list[tuple[int, int]]] = {}
        self._away_until = -1.0
        self._known: dict[OffsetRange, pa.Table] = {}
        """Rows of ranges."""
        self.copied_through: Callable[[int, int], int] = lambda number, offset: 0
        """Returns up to where, and no further than an offset, a run can do without the records of a partition."""
        self.copied: Callable[[], Sequence[OffsetRange]] = lambda: ()
        """Returns the ranges that are copied."""
        self.alone: Callable[[], bool] = lambda: True
        """See SimulatedFolder."""
        for table in tables:
            at += draw.choice((0.0, 1.0, 30.0))
            self._write(draw.choice(self.partitions), table, at)

    def _write(self, to: _Partition, table: pa.Table, at: float) -> None:
        draw = self._draw
        values = [json.dumps(row, default=datetime.isoformat).encode() for row in table.to_pylist()]
        at = max(at, to.log[-1].stable if to.log else 0.0)
        if draw.random() < 0.2:
            to.log += [_Record(at, at + 10.0)] * (len(values) + 1)  # aborted, and its marker
            at += 10.0
        stable = at + draw.choice((0.0, 0.0, 20.0, 200.0))
        to.log += [_Record(at, stable, one) for one in values]
        if draw.random() < 0.7:
            to.log.append(_Record(at, stable))

    # -- as the driver asks --------------------------------------------------------------------------------------------

    def look(self, *, begun: bool = True) -> TopicSeen:
        """See SeenTopic: the driver may be frozen afterwards, with what it was told."""
        self._strike()
        now = self._clock()
        if self._is_away() or any(one.ends is not None for one in self.partitions):
            raise BrokersAway("the brokers do not answer")
        there = {n: one for n, one in enumerate(self.partitions) if not n or (one.log and one.log[0].at <= now)}
        seen = {n: PartitionSeen(one.earliest, one.end(now), one.earliest) for n, one in there.items()}
        self._touch(f"after looking at {self.name}")
        return TopicSeen("one", seen)

    def retention(self) -> TopicRetention:
        """See KeptTopic."""
        return TopicRetention(self._retention, compacted=self._compacts)

    def offsets_at(self, numbers: list[int], milliseconds: int) -> dict[int, int | None]:
        """See KeptTopic."""
        return {
            number: next(
                (n for n, one in enumerate(self.partitions[number].log) if one.at * 1000 >= milliseconds), None
            )
            for number in numbers
        }

    # -- as nodes, and who copies, fetch -------------------------------------------------------------------------------

    def fetch(self, reader: KafkaTopic, one: OffsetRange, how: HowRead) -> Records:
        """Return the records of a range, as the brokers have them now."""
        if self._is_away():
            raise BrokersAway("the brokers do not answer")
        held = self.partitions[one.topic_partition]
        end = held.end(self._clock()) if held.ends is None else held.ends
        if one.start < held.earliest or end < one.end:
            raise OffsetsGone(held.earliest, end)
        found = [
            (n, record)
            for n, record in enumerate(held.log[one.start : one.end], one.start)
            if record.value is not None and n not in held.compacted
        ]
        if held.other is not None:
            first, last = held.other
            found = [(n, record) for n, record in found if not first <= n < last or n % 2]
        return _records(found)

    def _is_away(self) -> bool:
        now, mischief = self._clock(), self._mischief
        if not mischief.active:
            return False
        if now >= self._away_until and self._draw.random() < 0.003:
            self._away_until = now + self._draw.uniform(2, 60)
            mischief.injected[Fault.TOPIC_AWAY] += 1
        return now < self._away_until

    # -- what happens to it --------------------------------------------------------------------------------------------

    def _strike(self) -> None:
        """Perhaps the beginning moves on, records are compacted, end early or are others; and that ends in time."""
        now, draw, injected = self._clock(), self._draw, self._mischief.injected
        for one in self.partitions:
            if now >= one.until or not self._mischief.active:
                one.ends = one.other = None
        if not self._mischief.active:
            return
        for number, one in enumerate(self.partitions):
            if self._retention is not None and draw.random() < 0.5:
                old = next((n for n, each in enumerate(one.log) if each.at + self._retention > now), len(one.log))
                to = self.copied_through(number, min(old, one.taken))
                if to > one.earliest:
                    one.earliest = draw.randint(one.earliest, to)
                    injected[Fault.TOPIC_MOVED] += 1
        if self._compacts and draw.random() < 0.3 and (copied := self.copied()):
            some = draw.choice(copied)
            self.partitions[some.topic_partition].compacted.add(draw.randrange(some.start, some.end))
            injected[Fault.TOPIC_COMPACTED] += 1
        number = draw.randrange(len(self.partitions))
        one, kind = self.partitions[number], draw.random()
        if kind < 0.02 and one.taken > one.earliest:
            self._end_early(one, draw.randrange(one.earliest, one.taken))
        elif kind < 0.12 and self.alone() and (checked := self._checked.get(number)):
            one.other, one.until = draw.choice(checked), now + draw.uniform(5, 120)
            injected[Fault.TOPIC_CHANGED] += 1

    def _end_early(self, one: _Partition, at: int) -> None:
        """Let a partition end before what was logged, for a while."""
        one.ends, one.until = max(at, one.earliest), self._clock() + self._draw.uniform(5, 120)
        self._mischief.injected[Fault.TOPIC_ENDS_EARLY] += 1

    def logged(self, ranges: Sequence[SourceRange]) -> None:
        """Ranges are in the log."""
        for one in ranges:
            assert isinstance(one, OffsetRange)
            held = self.partitions[one.topic_partition]
            held.taken = max(held.taken, one.end)
            if self._mischief.active and self._draw.random() < 0.06:  # before anybody has read it
                self._end_early(held, self._draw.randrange(one.start, one.end))

    def was_checked(self, ranges: Sequence[SourceRange]) -> None:
        """The log has the checksums of ranges."""
        for one in ranges:
            assert isinstance(one, OffsetRange)
            if self.alone():
                self._checked.setdefault(one.topic_partition, []).append((one.start, one.end))

    @property
    def ended(self) -> bool:
        """Whether the log has all of it."""
        return all(one.taken >= len(one.log) for one in self.partitions)

    def mend(self) -> None:
        """What is away, ends early or is other comes back."""
        for one in self.partitions:
            one.ends = one.other = None
        self._away_until = -1.0

    def calm(self) -> None:
        """Everything is there, and every transaction has ended."""
        self.mend()
        now = self._clock()
        for one in self.partitions:
            one.log = [_Record(min(each.at, now), min(each.stable, now), each.value) for each in one.log]

    # -- what is true --------------------------------------------------------------------------------------------------

    def rows(self, source: SourceProgram, ranges: Sequence[SourceRange], how: HowRead) -> pa.Table:
        """Return the rows of ranges as they were committed."""
        return pa.concat_tables([self._rows(source, one, how) for one in ranges])

    def _rows(self, source: SourceProgram, one: SourceRange, how: HowRead) -> pa.Table:
        assert isinstance(one, OffsetRange)
        if one not in self._known:
            log = self.partitions[one.topic_partition].log[one.start : one.end]
            found = [(n, each) for n, each in enumerate(log, one.start) if each.value is not None]
            self._known[one] = record_rows(_records(found), how, source.schema, one.topic_partition).rows
        return self._known[one]

    def latest(self, source: SourceProgram, ranges: Sequence[SourceRange], how: HowRead) -> int | None:
        """Return the event that the watermark follows: of the partition furthest behind; None: one has no rows."""
        by_partition: dict[int, list[pa.Table]] = {}
        for one in ranges:
            assert isinstance(one, OffsetRange)
            by_partition.setdefault(one.topic_partition, []).append(self._rows(source, one, how))
        latest = [latest_event(source, pa.concat_tables(rows)) for rows in by_partition.values()]
        known = [one for one in latest if one is not None]
        return min(known) if known and len(known) == len(latest) else None


def _records(found: Sequence[tuple[int, _Record]]) -> Records:
    nothing = [None] * len(found)
    return Records(
        np.array([n for n, _ in found], np.int64),
        np.array([round(one.at * 1000) for _, one in found], np.int64),
        list(nothing),
        [one.value for _, one in found],
        list(nothing),
    )


def fetch_of(topics: Mapping[OperatorId, SimulatedTopic]) -> Callable[[KafkaTopic, OffsetRange, HowRead], Records]:
    """Return what fetches ranges of any of these topics."""
    by_name = {one.name: one for one in topics.values()}
    return lambda reader, one, how: by_name[one.topic].fetch(reader, one, how)
