"""What of a drill's input is in which batch, as the run has logged it. Runs anywhere; pure.

Each driver emits every batch record that it finds or writes (`logged`): of each source its watermark and, where it is
read in place, the ranges and how they are read; of one that Spark's file stream feeds, how far that has been read and
how many rows the batch has. A driver that died after a batch was logged could not emit it; the next one does.

`arrived` events say what arrived: files with their bytes, or where topic partitions ended then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.drill.history import Event
from holdfast.drill.logged_ranges import due_of, ranges_of, uncovered
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.batch_records import SourceBatch, record_of


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """One batch of the run: what it holds of each source."""

    number: int
    files: Mapping[str, range]
    """Of sources that Spark's file stream feeds."""
    rows: Mapping[str, int]
    closes: bool
    """Whether it closes all windows: nothing follows."""
    sources: Mapping[OperatorId, SourceBatch] = field(default_factory=dict)
    """Watermarks of all sources as the manifest has them, and the ranges of those that are read in place; empty: the
    history does not say, and watermarks follow the rows."""

    @property
    def due(self) -> int:
        """The interval in which its last file was due."""
        return max((one.stop - 1 for one in self.files.values()), default=0) + self.closes


@dataclass(frozen=True, slots=True)
class LoggedInput:
    """All batches of a run, and what is wrong with them."""

    batches: tuple[LoggedBatch, ...]
    problems: tuple[str, ...]
    in_place: Mapping[str, int] = field(default_factory=dict)
    """How many rows the ranges of a source hold, where they were read."""


def logged_input(history: Sequence[Event], rows: Mapping[str, Sequence[int]]) -> LoggedInput:
    """Read the batches of a history; `rows`: of sources that Spark's file stream feeds, how many rows each file has.

    Every file must be in exactly one batch, in its order and with all its rows; of what is read in place, every byte
    and every offset in exactly one range.
    """
    records: dict[int, Mapping[str, Any]] = {}
    problems: list[str] = []
    for event in history:
        if event.kind == "logged":
            number = int(event.fields["batch"])
            fields = {name: event.fields[name] for name in _WHAT if name in event.fields}
            if records.setdefault(number, fields) != fields:
                problems.append(f"batch {number} was logged twice, with other contents")
    found: list[LoggedBatch] = []
    through = dict.fromkeys(rows, -1)
    for number in range(max(records, default=-1) + 1):
        if number not in records:
            problems.append(f"batch {number} is not in the history")
            break
        batch = _batch(number, records[number], through)
        for source, held in batch.files.items():
            expected = sum(rows[source][held.start : held.stop])
            if held.stop > len(rows[source]) or batch.rows.get(source, 0) != expected:
                there = f"{batch.rows.get(source, 0)} rows of {source}"
                problems.append(f"batch {number} has {there}; files {held.start} to {held.stop - 1} have {expected}")
            through[source] = held.stop - 1
        found.append(batch)
    for source, last in through.items():
        if found and last != len(rows[source]) - 1:
            problems.append(f"{source}: {last + 1} of {len(rows[source])} files are in batches")
    problems += uncovered(history, [ranges_of(batch.sources) for batch in found])
    if not found:
        problems.append("no batch was logged")
    return LoggedInput(tuple(found), tuple(problems))


def due_intervals(history: Sequence[Event]) -> dict[int, int]:
    """Return in which interval each logged batch was due; empty where the drill itself fed batches."""
    found: dict[int, int] = {}
    due = due_of(history)
    for event in history:
        if event.kind == "logged":
            through = [*map(int, event.fields["through"].values())]
            closes, number = bool(event.fields["closes"]), int(event.fields["batch"])
            held = ranges_of(_sources(number, event.fields))
            through += [due(source, one) for source, ranges in held.items() for one in ranges]
            found.setdefault(number, max([0, *through, found.get(number - 1, 0)]) + closes)
    return found


_WHAT = ("through", "rows", "closes", "sources")


def _sources(number: int, fields: Mapping[str, Any]) -> dict[OperatorId, SourceBatch]:
    """Read what the manifest says of sources."""
    empty: dict[str, Any] = {"rows": (), "pieces": (), "position": {}}
    given = {name: {**empty, **one} for name, one in fields.get("sources", {}).items()}
    record = record_of(BatchId(number), {"claim": 0, "driver": "", "generation": 0, "sources": given})
    return dict(record.sources)


def _batch(number: int, fields: Mapping[str, Any], before: Mapping[str, int]) -> LoggedBatch:
    through, rows = fields["through"], fields["rows"]
    files = {source: range(last + 1, max(last, int(through.get(source, -1))) + 1) for source, last in before.items()}
    counted = {str(source): int(count) for source, count in rows.items()}
    return LoggedBatch(number, files, counted, bool(fields["closes"]), _sources(number, fields))
