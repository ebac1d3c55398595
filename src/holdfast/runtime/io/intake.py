"""Micro-batches of sources become batches of the log. Runs on the driver; pure apart from the log it writes to.

A source's reader delivers numbered micro-batches; their rows are written as pieces first. A micro-batch counts when a
batch of the log names it, and the batch says where the reader is after it. What has arrived and is in no batch yet
dies with the driver: the next one goes on where the last batch says, and reads it again.

A micro-batch is known by its number and its offsets. The same number again is passed over, with other offsets it is
refused: something has changed under the reader, and rows would be lost or come twice.

Sources that are read in place deliver nothing: their readers know which files or offsets come next, and a batch takes
ranges of them, with the position after it in the same record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from types import MappingProxyType
from typing import Any

from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.batch_log import BatchLog, last_positions
from holdfast.runtime.io.batch_records import Arrived
from holdfast.runtime.io.in_place_readers import InPlaceReader, TakenRanges
from holdfast.runtime.io.source_pieces import Piece
from holdfast.runtime.times import Watermark, lowest, microseconds

MOST_ARRIVALS = 16
"""Micro-batches of one source that one batch takes at most, unless told otherwise."""
MOST_BYTES = 32 << 20
"""Bytes of files of one source that one batch takes at most, unless told otherwise."""
NOTHING_READ = -1
IDLE_BATCHES = 3
"""Batches without rows, at least, after which a source can be idle."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows that a reader has delivered, and that are written."""

    number: int
    offsets: str
    """What it holds, in the words of its reader."""
    pieces: tuple[Piece, ...]
    reader: Mapping[str, Any] = field(default_factory=dict)
    """What a reader needs to go on after it."""

    @property
    def bytes(self) -> int:
        """How many bytes its rows have, as they are written."""
        return sum(section.bytes for piece in self.pieces for section in piece.sections)


@dataclass(slots=True)
class _Source:
    through: int = NOTHING_READ
    """The last micro-batch that is in a batch."""
    offsets: str = ""
    reader: Mapping[str, Any] = field(default_factory=dict)
    turn: int = 0
    """Counts the readers: what an earlier one delivers does not count."""
    arrived: list[MicroBatch] = field(default_factory=list)
    """Those that are in no batch yet."""

    @property
    def last(self) -> int:
        return self.arrived[-1].number if self.arrived else self.through


class ReaderOver(HoldfastError):
    """Raised for what a reader delivers after it was told to begin anew: it was not taken."""


class Intake:
    """What has arrived from the sources of a run, and the batches made of it. Readers call from their own threads."""

    def __init__(
        self,
        log: BatchLog,
        sources: Iterable[OperatorId],
        *,
        most_arrivals: int = MOST_ARRIVALS,
        go_back: Callable[[OperatorId], object] = lambda source: None,
        in_place: Mapping[OperatorId, InPlaceReader] = MappingProxyType({}),
        most_bytes: Callable[[], int] = lambda: MOST_BYTES,
        arrived_bytes: int = MOST_BYTES,
        marks_ahead: Callable[[], bool] = lambda: False,
    ) -> None:
        """Go on where the last batch says.

        `most_arrivals`: micro-batches that one batch takes at most. `go_back` is called for each source whose reader
        must begin anew, as `reader` says: the driver before has logged a batch after this one had read the log.
        `in_place`: the readers of sources that are read in place; of each a batch takes `most_bytes` at most. Of the
        others it takes micro-batches of `arrived_bytes` at most, and one however large it is.
        `marks_ahead`: whether what was read moves watermarks further than the last batch says.
        """
        self._log, self._most, self._go_back = log, most_arrivals, go_back
        self._guard, self._arrived_bytes = Lock(), arrived_bytes
        self._sources = {name: _Source() for name in sources}
        self._rows_at = dict.fromkeys(self._sources, (log.frontier, log.time()))
        """The last batch with rows of each source, and its time; of a source that has had none, where this began."""
        self._in_place, self._most_bytes, self._marks_ahead = dict(in_place), most_bytes, marks_ahead
        self._taken: dict[OperatorId, TakenRanges | None] = {}
        """What the next batch has of sources that are read in place, where logging it was tried and failed."""
        self._tried: dict[OperatorId, int] | None = None
        """How many micro-batches of each source it has then; None: it was not tried.

        After a failed write the batch may be in the log or not. Writing the same batch again is right in both cases.
        """
        self._in_work: dict[BatchId, Mapping[OperatorId, int]] = {}
        """How many micro-batches of each source are in batches that may not be processed yet."""
        self._take_positions()

    def reader(self, source: OperatorId) -> tuple[int, Mapping[str, Any]]:
        """Return the turn of the source's reader, and what it goes on from; empty: it begins."""
        mine = self._sources[source]
        return mine.turn, mine.reader

    def adopt(self) -> bool:
        """Take batches that the driver before has logged since; say whether there were any. Readers then begin anew."""
        found = self._log.adopt()
        if found:
            self._go_on_after_another()
        return found

    def knows(self, source: OperatorId, number: int, offsets: str, *, turn: int) -> bool:
        """Whether a micro-batch has been delivered; False: it is the next one. One with other offsets is refused."""
        with self._guard:
            return self._knows(source, number, offsets, turn)

    def _knows(self, source: OperatorId, number: int, offsets: str, turn: int) -> bool:
        mine = self._sources[source]
        if turn != mine.turn:
            raise ReaderOver(
                "another driver has logged a batch: reading begins anew after it", where=f"source {source}"
            )
        known = {mine.through: mine.offsets} | {one.number: one.offsets for one in mine.arrived}
        if number in known and known[number] != offsets:
            raise BadInput(
                f"micro-batch {number} was read up to {known[number]!r}, and comes again up to {offsets!r}",
                where=f"source {source}",
                remedy="something else has changed what is read; begin in another directory",
            )
        if number > mine.last + 1:
            raise CheckFailed(
                f"micro-batch {number} comes after {mine.last}",
                where=f"source {source}",
                remedy="start the run again: it reads what is missing",
            )
        return number <= mine.last

    def arrived(self, source: OperatorId, micro_batch: MicroBatch, *, turn: int) -> bool:
        """Take a micro-batch whose rows are written; False where it has been delivered meanwhile."""
        with self._guard:
            if self._knows(source, micro_batch.number, micro_batch.offsets, turn):
                return False
            self._sources[source].arrived.append(micro_batch)
        return True

    def last(self, source: OperatorId) -> int:
        """Return the last micro-batch that has arrived."""
        with self._guard:
            return self._sources[source].last

    def has_taken(self, through: Mapping[OperatorId, int]) -> bool:
        """Whether batches hold the micro-batches up to these."""
        with self._guard:
            return all(self._sources[name].through >= number for name, number in through.items())

    @property
    def pending(self) -> bool:
        """Whether there is something for a batch: micro-batches that have arrived, or files."""
        if any(reader.pending for reader in self._in_place.values()) or self._moves_marks():
            return True
        with self._guard:
            return any(one.arrived for one in self._sources.values())

    def waiting(self, processed: BatchId) -> dict[OperatorId, int]:
        """Count the micro-batches of each source that are not processed, given the last batch that is."""
        with self._guard:
            for batch in [batch for batch in self._in_work if batch <= processed]:
                del self._in_work[batch]
            return {
                name: len(one.arrived) + sum(taken.get(name, 0) for taken in self._in_work.values())
                for name, one in self._sources.items()
            }

    def make_batch(self) -> BatchId | None:
        """Make the next batch of what has arrived, and log it; None where nothing has."""
        with self._guard:
            counts = self._tried
            if counts is None:
                counts = {
                    name: len(_first(one.arrived[: self._most], self._arrived_bytes))
                    for name, one in self._sources.items()
                }
            taken = {name: self._sources[name].arrived[:count] for name, count in counts.items()}
        if self._tried is None:
            self._taken = {name: reader.take(self._most_bytes()) for name, reader in self._in_place.items()}
        files = {name: some for name, some in self._taken.items() if some is not None}
        if self._tried is None and not any(taken.values()) and not files and not self._moves_marks():
            return None
        batch = BatchId(self._log.frontier + 1)
        arrived = {
            name: Arrived(
                [piece for one in some for piece in one.pieces],
                {} if not some else _position(some[-1]),
                self._idle_watermark(name, batch) if not some and name not in files else None,
            )
            for name, some in taken.items()
        }
        for name, ranges in files.items():
            reader, source = self._in_place[name], self._log.sources[name]
            lateness = microseconds(source.lateness) if source.lateness else 0
            arrived[name] = Arrived((), reader.fields(ranges), None, ranges.ranges, reader.how(lateness))
        self._tried = counts
        record = self._log.commit(batch, arrived)
        if not self._log.is_own(record):
            self._go_on_after_another()
            return batch
        self._taken, self._tried = {}, None
        for name in self._sources:
            if arrived[name].pieces or arrived[name].ranges:
                self._rows_at[name] = batch, record.logged_at or self._log.time()
        for name, ranges in files.items():
            self._in_place[name].logged(ranges)
        with self._guard:
            for name, some in taken.items():
                if some:
                    mine, last = self._sources[name], some[-1]
                    mine.through, mine.offsets, mine.reader = last.number, last.offsets, last.reader
                    del mine.arrived[: len(some)]
            self._in_work[batch] = {name: len(some) for name, some in taken.items()}
        return batch

    def _go_on_after_another(self) -> None:
        """The driver before has logged a batch: its readers' positions hold, and what has arrived here does not."""
        self._take_positions()
        for name in self._sources:
            self._go_back(name)

    def _take_positions(self) -> None:
        while True:
            positions = last_positions(self._log, self._sources)
            with self._guard:
                self._taken, self._tried = {}, None
                for name, at in positions.items():
                    turn = self._sources[name].turn + 1
                    self._sources[name] = _Source(
                        at.get("through", NOTHING_READ), at.get("offsets", ""), at.get("reader", {}), turn
                    )
            try:
                for name, reader in self._in_place.items():
                    reader.begin(positions[name])
                break
            except CheckFailed:
                # The driver before may have put its lists of files together into another object, and logged that.
                if not self._log.adopt():
                    raise
        for name, at in positions.items():
            if name not in self._in_place and (held := {"files", "kafka"} & set(at)):
                raise BadInput(
                    f"was read in place, from {min(held)}, in this run",
                    where=f"source {name}",
                    remedy=f"read it as before: app.source(…, hf.{min(held)}(…)); or begin in another directory",
                )

    def _moves_marks(self) -> bool:
        """Whether a batch without rows is to bring watermarks on: everything is read, as far as readers have looked."""
        readers = self._in_place.values()
        return all(one.listed and not one.unsettled for one in readers) and self._marks_ahead()

    # -- sources without rows ----------------------------------------------------------------------------------------

    def _idle_watermark(self, name: OperatorId, batch: BatchId) -> Watermark:
        """Return where an idle source's watermark must stand: with those of the sources that have rows.

        What it brings later may be late. The batch's record has it, so replays and other drivers agree.
        """
        if not self._is_idle(name, batch):
            return None
        before = self._log.record(BatchId(batch - 1))
        marks = [
            before.sources[other].watermark
            for other in self._sources
            if before is not None and other in before.sources and other != name and not self._is_idle(other, batch)
        ]
        return lowest(marks) if marks else None

    def _is_idle(self, name: OperatorId, batch: BatchId) -> bool:
        if self._log.idle is None:
            return False
        last, at = self._rows_at[name]
        if (now := self._log.time()) < at:  # the clock was set back: time without rows counts from now on
            at = now
            self._rows_at[name] = last, at
        # Some batches, too: where the run itself has paused, a source had no time to bring anything.
        return batch - last >= IDLE_BATCHES and now - at > self._log.idle


def _first(arrived: list[MicroBatch], most_bytes: int) -> list[MicroBatch]:
    """Return the micro-batches that one batch takes: so many bytes at most, and one at least, for none is divided."""
    total = 0
    for number, one in enumerate(arrived):
        total += one.bytes
        if number and total > most_bytes:
            return arrived[:number]
    return arrived


def _position(last: MicroBatch) -> dict[str, Any]:
    return {"through": last.number, "offsets": last.offsets, "reader": dict(last.reader)}
