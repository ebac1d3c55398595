"""Topics whose offsets vanish at any moment: within a read, in the middle of a copy, between two looks of the driver.

A model of brokers under the real reader, tracker, copies and readers of ranges, from seeds; drivers die between taking
and logging. Whatever vanishes, each record is in one batch, or somebody has said that it is lost; and a replay gives
the rows that were first read, or an error before any row. Deliberate bugs see that the model finds what it is for.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.application.kafka_topics import KafkaTopic
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io import kafka_reading
from holdfast.runtime.io.file_ranges import HowRead
from holdfast.runtime.io.kafka_reader import KafkaReader
from holdfast.runtime.io.kafka_reading import read_offsets, records_to_copy
from holdfast.runtime.io.kafka_records import Records
from holdfast.runtime.io.kafka_stream import OffsetsGone
from holdfast.runtime.io.offset_ranges import OffsetRange
from holdfast.runtime.io.offset_tracker import OffsetTracker, PartitionSeen, TopicSeen
from holdfast.runtime.io.range_copies import CopyStore, Needed, RetentionWatch
from holdfast.runtime.io.topic_retention import TopicRetention
from holdfast.runtime.program import SourceProgram
from holdfast.storage.memory import MemoryStorage
from sizes import share

NAME = OperatorId("s")
SCHEMA = pa.schema([("n", pa.int64()), ("p", pa.int32()), ("o", pa.int64())])
PARTITIONS = 2


class Wrong(AssertionError):
    """What must hold does not."""


class Brokers:
    """Two topic partitions; whenever somebody asks, what is at their beginning may go, and compaction may go on."""

    def __init__(self, draw: random.Random, *, compacted: bool) -> None:
        self.draw, self.compacted = draw, compacted
        self.values: list[list[bytes | None]] = [[] for _ in range(PARTITIONS)]
        self.earliest = [0] * PARTITIONS
        self.gone: set[tuple[int, int]] = set()
        """Records that compaction has removed."""
        self.calm = False

    def produce(self) -> None:
        for number, values in enumerate(self.values):
            for _ in range(self.draw.randrange(12)):
                value = b'{"n": %d}' % (1000 * number + len(values))
                values.append(None if self.draw.random() < 0.1 else value)  # a tombstone is a record, too

    def strike(self) -> None:
        """Let something vanish."""
        if self.calm or self.draw.random() > 0.12:
            return
        number = self.draw.randrange(PARTITIONS)
        first, end = self.earliest[number], len(self.values[number])
        if self.compacted:
            self.gone |= {(number, at) for at in range(first, max(first, end - 3)) if self.draw.random() < 0.3}
        else:
            self.earliest[number] = min(end, first + self.draw.choice((1, 3, 8, 30)))

    def look(self, *, begun: bool) -> TopicSeen:
        self.strike()
        both = enumerate(zip(self.earliest, self.values, strict=True))
        return TopicSeen("id", {at: PartitionSeen(first, len(of), first) for at, (first, of) in both})

    def retention(self) -> TopicRetention:
        return TopicRetention(compacted=self.compacted)

    def offsets_at(self, numbers: list[int], milliseconds: int) -> dict[int, int | None]:
        raise AssertionError("nothing goes by age")

    def fetch(self, reader: KafkaTopic, one: OffsetRange, how: HowRead) -> Records:
        """Return a range as a consumer reads it, a few records with each request."""
        number, at = one.topic_partition, one.start
        found: list[int] = []
        while at < one.end:
            self.strike()
            if at < self.earliest[number]:
                raise OffsetsGone(self.earliest[number], len(self.values[number]))
            upto = min(one.end, at + self.draw.randint(1, 5))
            found += [offset for offset in range(at, upto) if (number, offset) not in self.gone]
            at = upto
        values = [self.values[number][offset] for offset in found]
        none: list[None] = [None] * len(found)
        return Records(np.array(found, np.int64), np.array(found, np.int64), list(none), values, list(none))


@dataclass
class Logged:
    """A range of a batch, and what has become of it."""

    batch: BatchId
    number: int
    range: OffsetRange
    check: int | None = None
    """The checksum of its first read, once the driver knows it."""
    rows: list[tuple[int | None, int, int]] | None = None
    rejected: list[str] = field(default_factory=list)
    failed: bool = False


class Run:
    """A run that reads the topic, with a driver that may die."""

    def __init__(self, seed: int, *, lenient: bool, compacted: bool) -> None:
        self.draw = random.Random(seed)
        self.brokers = Brokers(self.draw, compacted=compacted)
        reader = hf.kafka(
            "a", "t", partition="p", offset="o", max_records=10, **({"fail_on_data_loss": False} if lenient else {})
        )
        assert isinstance(reader, KafkaTopic)
        self.reader, self.how = reader, HowRead(reader.format, reader.options, 0, by_stream=True)
        self.source = SourceProgram(NAME, PARTITIONS, SCHEMA, (), None, 0.0, reader)
        self.copies = CopyStore(MemoryStorage())
        self.log: list[Logged] = []
        self.position: dict[str, Any] = {}
        self.lines: list[str] = []
        self.begins: dict[int, int] = {}
        self.now = 0.0
        self.start()

    def start(self) -> None:
        """Let the next driver begin where the log ends."""
        watch = RetentionWatch(
            NAME, self.brokers, self.needed, self.copies,
            lambda one, how: kafka_reading.records_to_copy(self.reader, one, how, fetch=self.brokers.fetch),
            clock=self.time,
        )  # fmt: skip
        self.driver = KafkaReader(NAME, self.reader, PARTITIONS, self.brokers, watch=watch, clock=self.time)
        self.driver.begin(self.position)

    def time(self) -> float:
        self.now += 10.0
        return self.now

    def needed(self) -> list[Needed]:
        return [(one.batch, one.range.partition, one.number, one.range, self.how) for one in self.log[-40:]]

    def step(self) -> None:
        self.brokers.produce()
        self.lines += [notice.line for notice in self.driver.look()]
        taken = self.driver.take(10**6)
        if self.draw.random() < 0.1:
            self.start()  # it dies before it has logged that
        elif taken is not None:
            batch = BatchId(len({one.batch for one in self.log}))
            numbers = [0] * PARTITIONS
            if not self.log:  # until then reading starts at the earliest offset that there is
                self.begins = dict(taken.position.next) | {one.topic_partition: one.start for one in taken.ranges}
            for one in taken.ranges:
                self.log.append(Logged(batch, numbers[one.partition], one))
                numbers[one.partition] += 1
            self.position = self.driver.fields(taken)
            self.driver.logged(taken)
        for _ in range(3):
            if self.log:
                self.read(self.draw.choice(self.log[-40:]))

    def read(self, one: Logged) -> None:
        """Let a node read a range, for the first time or again; the driver may die before it knows the checksum."""
        held = self.copies.read(NAME, one.batch, one.range.partition, one.number)
        try:
            found = read_offsets(
                self.source,
                one.range,
                self.how,
                one.check,
                lambda: self.copies.read(NAME, one.batch, one.range.partition, one.number),
                fetch=self.brokers.fetch,
            )
        except CheckFailed as error:
            if held is not None and one.check is not None and held.check() == one.check:
                raise Wrong(f"{one.range} cannot be read, and there is a copy of it: {error}") from error
            if "records of" not in str(error) and "lost" not in str(error):
                raise Wrong(f"the error does not say what is lost: {error}") from error
            one.failed = True
            return
        rows = [(row["n"], row["p"], row["o"]) for row in found.rows.to_pylist()]
        said = [rejected.reason for rejected in found.rejected]
        if one.check is None:
            if self.brokers.calm or self.draw.random() < 0.8:
                one.check, one.rows, one.rejected = found.check, rows, said
        elif (rows, said) != (one.rows, one.rejected):
            raise Wrong(f"a replay of {one.range} gives {rows} and {said}, not {one.rows} and {one.rejected}")

    def end(self) -> None:
        """See that each record is in one batch, or is said to be lost."""
        self.brokers.calm = True
        for one in self.log:
            self.read(one)
        for number in range(PARTITIONS):
            at = self.begins.get(number, 0)
            for one in (one for one in self.log if one.range.topic_partition == number):
                if not set(range(at, one.range.start)) <= self._passed_over(number):
                    raise Wrong(f"offsets {at} to {one.range.start} of t-{number} are in no batch, and nobody says it")
                if one.range.start < at:
                    raise Wrong(f"{one.range} was taken twice")
                at = one.range.end
                self._check_rows(one, number)

    def _passed_over(self, number: int) -> set[int]:
        said = (re.match(rf"offsets (\d+) to (\d+) of t-{number} are not there any more", line) for line in self.lines)
        return {at for one in said if one is not None for at in range(int(one[1]), int(one[2]))}

    def _check_rows(self, one: Logged, number: int) -> None:
        if one.rows is None:
            if not one.failed:
                raise Wrong(f"{one.range} was never read, and nothing says why")
            return
        there = {row[2] for row in one.rows}
        lost = {at for at in range(one.range.start, one.range.end) if at not in there}
        lost -= {at for part, at in self.brokers.gone if part == number}
        begins = [int(text.rpartition(" to ")[2].split()[0]) for text in one.rejected if " to " in text]
        said = {at for first in begins for at in range(one.range.start, first)}
        if lost - said:
            raise Wrong(f"{sorted(lost - said)} of {one.range} are in no row, and nobody says it")
        if said and self.reader.fail_on_data_loss:
            raise Wrong(f"rows of {one.range} came out without {sorted(said)}")
        for value, part, offset in one.rows:
            record = self.brokers.values[number][offset]
            if part != number or value != (None if record is None else 1000 * number + offset):
                raise Wrong(f"offset {offset} of t-{number} has another row: {value}")


KINDS = [(lenient, compacted) for lenient in (False, True) for compacted in (False, True)]


def simulate(seed: int) -> Run:
    lenient, compacted = KINDS[seed % len(KINDS)]
    run = Run(seed, lenient=lenient, compacted=compacted)
    for _ in range(25):
        run.step()
    run.end()
    return run


def simulate_all(seeds: int) -> list[Run]:
    return [simulate(seed) for seed in range(seeds)]


def test_whatever_vanishes_each_record_is_in_one_batch_or_is_said_to_be_lost() -> None:
    copies, failed, dead = 0, 0, 0
    for run in simulate_all(share(60)):
        copies += len(run.copies._listed())
        failed += sum(one.failed for one in run.log)
        dead += sum(len(one.rejected) for one in run.log)
    assert min(copies, failed, dead) > 0, "the seeds have all of it"


def _reader_goes_on_at_the_beginning(patch: pytest.MonkeyPatch) -> None:
    """A consumer whose offset is gone begins anew at the earliest, as `auto.offset.reset` has it."""
    right = Brokers.fetch

    def fetch(self: Brokers, reader: KafkaTopic, one: OffsetRange, how: HowRead) -> Records:
        try:
            return right(self, reader, one, how)
        except OffsetsGone as gone:
            return fetch(self, reader, replace(one, start=min(gone.earliest, one.end)), how)

    patch.setattr(Brokers, "fetch", fetch)


def _rest_of_a_range_passes_for_all_of_it(patch: pytest.MonkeyPatch) -> None:
    """What is left of a range does not say what is missing."""
    right = kafka_reading._rest
    patch.setattr(kafka_reading, "_rest", lambda *given: replace(right(*given), gone_to=None))


def _copy_of_what_is_left_of_a_range(patch: pytest.MonkeyPatch) -> None:
    """A copy in the middle of which the beginning has gone is kept as a whole one."""

    def copied(reader: KafkaTopic, one: OffsetRange, how: HowRead, *, fetch: Callable[..., Records]) -> Records:
        try:
            return records_to_copy(reader, one, how, fetch=fetch)
        except LookupError:
            start = one.start
            while True:
                try:
                    return fetch(reader, replace(one, start=start), how)
                except OffsetsGone as gone:
                    start = min(gone.earliest, one.end)

    patch.setattr(kafka_reading, "records_to_copy", copied)


def _replay_not_compared(patch: pytest.MonkeyPatch) -> None:
    """A replay takes what the brokers give now."""
    patch.setattr(Records, "check", lambda self: 1)


def _lost_offsets_passed_over_in_silence(patch: pytest.MonkeyPatch) -> None:
    """The driver begins at what is there, and says nothing."""
    right = OffsetTracker.look

    def look(self: OffsetTracker, seen: TopicSeen) -> list[str]:
        self.skip_lost = True
        return [line for line in right(self, seen) if "passed over" not in line]

    patch.setattr(OffsetTracker, "look", look)


def _taken_twice_after_a_crash(patch: pytest.MonkeyPatch) -> None:
    """The position in a record is that before the batch."""
    right = KafkaReader.fields

    def fields(self: KafkaReader, taken: Any) -> dict[str, Any]:
        return right(self, replace(taken, position=self._tracker.position))

    patch.setattr(KafkaReader, "fields", fields)


def _copies_not_read(patch: pytest.MonkeyPatch) -> None:
    """Nodes do not look for a copy."""
    patch.setitem(globals(), "read_offsets", partial(_without_copies, read_offsets))


def _without_copies(
    right: Callable[..., Any], source: Any, one: Any, how: Any, check: Any, copy: Any, **given: Any
) -> Any:
    return right(source, one, how, check, lambda: None, **given)


@pytest.mark.parametrize(
    "bug",
    [
        _reader_goes_on_at_the_beginning,
        _rest_of_a_range_passes_for_all_of_it,
        _copy_of_what_is_left_of_a_range,
        _replay_not_compared,
        _lost_offsets_passed_over_in_silence,
        _taken_twice_after_a_crash,
        _copies_not_read,
    ],
    ids=lambda bug: bug.__name__.strip("_").replace("_", " "),
)
def test_a_deliberate_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(Wrong):
        simulate_all(60)
