"""Whether the watermarks that a run has logged follow from its rows. Runs anywhere; pure.

The expected outputs of a drill take the run's watermarks over: which rows were late depends on what had been read by
then. So the watermarks are checked by themselves: that of a source never falls, and is never above its newest event
so far less the allowed lateness. It may be below: it follows what nodes have read, and reported.
"""

from __future__ import annotations

from holdfast.ids import OperatorId
from holdfast.runtime.io.batch_records import watermark_after
from holdfast.runtime.program import SourceProgram
from holdfast.runtime.times import END_OF_TIME, Watermark, highest


class LoggedWatermarks:
    """Looks at the batches of a run, one after the other."""

    def __init__(self) -> None:
        self._logged: dict[OperatorId, Watermark] = {}
        self._highest: dict[OperatorId, Watermark] = {}
        self.problems: list[str] = []
        """What is wrong, for people."""

    def see(self, batch: int, source: SourceProgram, mark: Watermark, newest: int | None, *, closes: bool) -> None:
        """Look at what a batch says of a source; `newest`: the latest event time of its rows in this batch."""
        most = watermark_after(source, self._highest.get(source.id), newest, last=False)
        self._highest[source.id] = most
        before = self._logged.get(source.id)
        self._logged[source.id] = highest(before, mark)
        what = f"batch {batch}: the watermark of {source.id}"
        if before is not None and (mark is None or mark < before):
            self.problems.append(f"{what} fell from {_shown(before)} to {_shown(mark)}")
        elif mark is not None and not (closes and mark == END_OF_TIME) and (most is None or mark > most):
            self.problems.append(f"{what} is {_shown(mark)}, and its rows so far allow {_shown(most)}")


def _shown(mark: Watermark) -> str:
    return "none" if mark is None else f"{mark / 1_000_000:.6f} s"
