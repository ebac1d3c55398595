"""An application's operators without any engine: kernels one after the other, each on all rows at once. One core.

No log, no state files, no partitions, no exchange, no recovery: what rows cost at the least with these operators.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from holdfast.application import Application
from holdfast.ids import OperatorId
from holdfast.runtime.io.batch_records import watermark_after
from holdfast.runtime.io.source_pieces import cut_rows
from holdfast.runtime.program import Program
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import Watermark, highest, lowest


class OperatorsAlone:
    """Steps through batches."""

    def __init__(self, app: Application) -> None:
        self._program = Program(app)
        self._states: dict[OperatorId, Mapping[str, tuple[pa.Table, ...]]] = {}
        self._marks: dict[OperatorId, Watermark] = {}

    def step(self, batch: Mapping[str, pa.Table]) -> dict[str, pa.Table | None]:
        """Process a batch; return what every operator gives, None where that is nothing."""
        program = self._program
        made: dict[OperatorId, pa.Table | None] = {}
        for name in program.order:
            operator, before = program.operators[name], self._marks.get(name)
            source = program.sources.get(name)
            given: list[pa.Table | None]
            if source is not None:
                pieces, latest = cut_rows(source, batch[name])
                given = [one_chunk([piece for piece in pieces if piece is not None])]
                now = watermark_after(source, before, latest, last=False)
            else:
                given = [made[route.edge.source] for route in operator.inputs]
                now = highest(before, lowest([self._marks[route.edge.source] for route in operator.inputs]))
            stepped = operator.kernel.step(self._states.get(name, {}), given, before, now)
            self._states[name], self._marks[name] = stepped.state, now
            output = stepped.output
            made[name] = output if output is not None and output.num_rows else None
        return {str(name): rows for name, rows in made.items()}
