"""Which files of a drill's input are in which batch, as the run has logged them. Runs anywhere; pure.

Each driver emits every batch record that it finds or writes (`logged`): how far each source has been read after it, and
how many rows it has. A driver that died after a batch was logged could not emit it; the next one does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.drill.history import Event


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """One batch of the run: the files of each source that it holds."""

    number: int
    files: Mapping[str, range]
    rows: Mapping[str, int]
    closes: bool
    """Whether it closes all windows: nothing follows."""

    @property
    def due(self) -> int:
        """The interval in which its last file was due."""
        return max((one.stop - 1 for one in self.files.values()), default=0) + self.closes


@dataclass(frozen=True, slots=True)
class LoggedInput:
    """All batches of a run, and what is wrong with them."""

    batches: tuple[LoggedBatch, ...]
    problems: tuple[str, ...]


def logged_input(history: Sequence[Event], rows: Mapping[str, Sequence[int]]) -> LoggedInput:
    """Read the batches of a history; `rows` says how many rows each file of each source has.

    Every file must be in exactly one batch, in its order and with all its rows.
    """
    records: dict[int, Mapping[str, object]] = {}
    problems: list[str] = []
    for event in history:
        if event.kind == "logged":
            number = int(event.fields["batch"])
            fields = {name: event.fields[name] for name in ("through", "rows", "closes")}
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
    if not found:
        problems.append("no batch was logged")
    return LoggedInput(tuple(found), tuple(problems))


def due_intervals(history: Sequence[Event]) -> dict[int, int]:
    """Return in which interval each logged batch was due; empty where the drill itself fed batches."""
    found: dict[int, int] = {}
    for event in history:
        if event.kind == "logged":
            through = event.fields["through"].values()
            found.setdefault(
                int(event.fields["batch"]), max(map(int, through), default=0) + bool(event.fields["closes"])
            )
    return found


def _batch(number: int, fields: Mapping[str, object], before: Mapping[str, int]) -> LoggedBatch:
    through, rows = fields["through"], fields["rows"]
    assert isinstance(through, Mapping)
    assert isinstance(rows, Mapping)
    files = {source: range(last + 1, max(last, int(through.get(source, -1))) + 1) for source, last in before.items()}
    counted = {str(source): int(count) for source, count in rows.items()}
    return LoggedBatch(number, files, counted, bool(fields["closes"]))
