"""Watermarks of the barriers that a branch forges for partitions that are lost. Runs on a node; pure.

A forged barrier carries what the hole's own barrier would have had: the lowest watermark of the sources that it reads,
as the batch log has them. The driver hands out those of recent batches. A branch that begins anew repeats the outage,
and reads those of earlier batches from the log: so windows close in the batches in which they closed before.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.messages import SourceWatermarks
from holdfast.runtime.program import Program
from holdfast.runtime.times import Watermark, lowest


class ForgedWatermarks:
    """The sources that holes read, or are, and where their watermarks stand after each batch."""

    def __init__(self, program: Program, logged: Callable[[OperatorId, BatchId], Watermark]) -> None:
        """`logged` reads from the log where a source's watermark stood after a batch; OSError: it cannot now."""
        self._program, self._logged = program, logged
        self._sources: dict[PartitionId, tuple[OperatorId, ...]] = {}

    def at(self, hole: PartitionId, batch: BatchId, watermarks: SourceWatermarks) -> Watermark:
        """Return the watermark that a hole's barrier would carry: the lowest of its sources, as far as that is known.

        Of a batch in between, that of the one before: a watermark never goes back, and what comes later moves it on.
        """
        sources = self._sources.get(hole)
        if sources is None:
            above = dict.fromkeys(p.operator for p in (*self._program.graph.upstream(hole), hole))
            sources = self._sources[hole] = tuple(name for name in above if name in self._program.sources)
        found: list[Watermark] = []
        for source in sources:
            marks = watermarks.get(source, ())
            place = bisect_right(marks, batch, key=lambda one: one[0])
            if place:
                found.append(marks[place - 1][1])
            elif marks:  # of a source that is left out nothing is to be known
                found.append(self._logged(source, batch))
        return lowest(found)
