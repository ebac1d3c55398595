"""Rows that an operator cannot take, and that are left out: the decision, as a run logs it. Pure.

A row is named by its partition, batch, input and position among the rows of that input. These are the same in every
replay, so a decision that is logged before the batch is tried again lets every later execution leave out the same rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.ids import BatchId, OperatorId, PartitionId

LONGEST_ERROR = 300
"""Characters of a row's error that are kept."""


@dataclass(frozen=True, slots=True, order=True)
class PoisonRow:
    """A row on which an operator fails."""

    input: OperatorId
    """The operator that it comes from."""
    position: int
    """Its place among the rows of this input and batch, from 0."""
    error: str
    """One line."""


@dataclass(frozen=True, slots=True)
class Quarantined:
    """The rows of one partition and batch that are left out."""

    rows: tuple[PoisonRow, ...]
    at: float
    """When it was first decided: seconds since 1970, by the driver's clock."""

    def plus(self, more: Iterable[PoisonRow]) -> Quarantined:
        """Return a decision with further rows; what is decided stays."""
        known = {(one.input, one.position): one for one in (*more, *self.rows)}
        return Quarantined(tuple(sorted(known.values())), self.at)

    def positions(self, source: OperatorId) -> list[int]:
        """Return the places of the rows of one input, in order."""
        return sorted(one.position for one in self.rows if one.input == source)

    def fields(self) -> list[Any]:
        """Return it as plain values: when, the errors, each once, and the rows with the numbers of their errors."""
        errors = list(dict.fromkeys(one.error for one in self.rows))
        numbers = {error: number for number, error in enumerate(errors)}
        return [self.at, errors, [[one.input, one.position, numbers[one.error]] for one in self.rows]]

    @classmethod
    def read(cls, fields: Sequence[Any]) -> Quarantined:
        """Read what `fields` gives; anything else is a ValueError, TypeError or LookupError."""
        at, errors, rows = fields
        if type(at) not in (int, float) or type(errors) is not list or type(rows) is not list:
            raise TypeError("fields of another type")
        if not all(type(error) is str for error in errors):
            raise TypeError("fields of another type")
        found = []
        for source, position, number in rows:
            if (type(source), type(position), type(number)) != (str, int, int):
                raise TypeError("fields of another type")
            if number < 0 or position < 0:
                raise ValueError("a number below 0")
            found.append(PoisonRow(OperatorId(source), position, errors[number]))
        return cls(tuple(found), float(at))


Decisions = Mapping[PartitionId, Mapping[BatchId, Quarantined]]
"""What is decided, by partition and batch."""


def decided_rows(decisions: Decisions) -> int:
    """Return how many rows are left out by what is decided."""
    return sum(len(one.rows) for batches in decisions.values() for one in batches.values())


def without_old(decisions: Decisions, safe: BatchId) -> dict[PartitionId, dict[BatchId, Quarantined]]:
    """Return the decisions about batches after one that is never processed again."""
    kept = {p: {batch: one for batch, one in found.items() if batch > safe} for p, found in decisions.items()}
    return {p: found for p, found in kept.items() if found}


def written_decisions(decisions: Decisions) -> dict[str, dict[str, list[Any]]]:
    """Return decisions as plain values."""
    return {
        str(p): {str(batch): one.fields() for batch, one in sorted(found.items())}
        for p, found in sorted(decisions.items())
    }


def read_decisions(fields: Mapping[str, Mapping[str, Any]]) -> dict[PartitionId, dict[BatchId, Quarantined]]:
    """Read what was written."""
    return {
        PartitionId.parse(name): {BatchId(int(batch)): Quarantined.read(one) for batch, one in found.items()}
        for name, found in fields.items()
    }
