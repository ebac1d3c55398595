"""Names with types, so that a batch is never passed for a node. Runs anywhere."""

from __future__ import annotations

import re
from typing import NamedTuple, NewType

from holdfast.errors import BadInput

OperatorId = NewType("OperatorId", str)
"""An operator of a topology: letters, digits, `_` and `-`."""

NodeId = NewType("NodeId", str)
"""A host with one executor, its local state files and its store peer."""

BatchId = NewType("BatchId", int)
"""What the sources emit between two barriers, counted from zero."""

SegmentId = NewType("SegmentId", str)
"""Operators that checkpoint together at their own frequency."""

LONGEST_ID = 100
_OPERATOR = re.compile(r"[A-Za-z0-9_-]{1,100}", re.ASCII)
_PARTITION = re.compile(r"([A-Za-z0-9_-]{1,100})\[(0|[1-9][0-9]{0,8})\]", re.ASCII)


class Epoch(int):
    """When something was decided: under which claim, and after how many rollbacks and placements under it.

    The claim is a driver's number for a run: only a higher claim ends a driver. The number counts within the claim.
    Both are one integer, the claim in front: epochs are ordered by it, and it is what files and the wire carry.

    >>> Epoch.of(2, 7) > Epoch.of(1, 9)
    True
    >>> print(Epoch.of(2, 7), Epoch.of(2, 7).next.number)
    2.7 8
    """

    __slots__ = ()

    @classmethod
    def of(cls, claim: int, number: int) -> Epoch:
        """Return the epoch of this number under a claim."""
        return cls(claim << _NUMBER_BITS | number)

    @property
    def claim(self) -> int:
        """The driver's number for the run."""
        return self >> _NUMBER_BITS

    @property
    def number(self) -> int:
        """Counts rollbacks and placements under the claim."""
        return self & (1 << _NUMBER_BITS) - 1

    @property
    def next(self) -> Epoch:
        """The epoch that follows under the same claim."""
        return Epoch(self + 1)

    def __str__(self) -> str:
        # Where nobody takes claims (a store that is used by itself), an epoch is a number.
        return f"{self.claim}.{self.number}" if self.claim else str(self.number)


_NUMBER_BITS = 32


def folder_name(text: str) -> str:
    """Return what people would know a text by, as the name of one folder wherever it may come to stand."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", text)[:LONGEST_ID]


def is_operator_id(text: object) -> bool:
    """Say whether this may name an operator."""
    return isinstance(text, str) and _OPERATOR.fullmatch(text) is not None


class PartitionId(NamedTuple):
    """One slice of an operator, written `O3[0]`: the unit of state, placement, failure and recovery."""

    operator: OperatorId
    index: int  # type: ignore[assignment]  # what a tuple calls so is not used; equality and hash are fast

    def __str__(self) -> str:
        return f"{self.operator}[{self.index}]"

    @classmethod
    def parse(cls, text: str) -> PartitionId:
        """Read `O3[0]`; anything else is refused with what would be right."""
        found = _PARTITION.fullmatch(text.strip())
        if not found:
            raise BadInput(
                f"{text.strip()!r} is not a partition",
                remedy="write an operator's id and an index from zero, like O3[0]",
            )
        return cls(OperatorId(found.group(1)), int(found.group(2)))
