"""What drivers of a simulated run have decided about rows, as the progress says that they wrote. Runs anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.quarantine import Quarantined, read_decisions


@dataclass(slots=True)
class Decided:
    """See the module."""

    last: int = -1
    """The number of the last record."""
    rows: dict[tuple[PartitionId, BatchId], Quarantined] = field(default_factory=dict)

    def written(self, number: int, machine: Mapping[str, Any] | None) -> str | None:
        """Take a record of progress; say what is wrong with it.

        One of a number that was dropped does not count: whoever wrote it must find out that it is over.
        """
        if number <= self.last:
            return None
        self.last = number
        for p, batches in read_decisions((machine or {}).get("quarantined", {})).items():
            for batch, one in batches.items():
                before = self.rows.get((p, batch))
                if before is not None and (before.at != one.at or not set(before.rows) <= set(one.rows)):
                    return f"{p}, batch {batch}: {before} was decided, and now {one} is"
                self.rows[p, batch] = one
        return None
