"""Reports records of a source that do not parse, beside keeping them. Runs on the driver.

They are dead letters, and the stream goes on without them: where a schema or an option of the source is wrong, that can
be all there is. A line is logged at the first, and whenever their number has grown tenfold.
"""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from holdfast.errors import one_line
from holdfast.ids import Epoch, OperatorId
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import OutputKey
from holdfast.storage.storage import Storage
from holdfast.wording import counted


class UnreadRecords(ParquetSink):
    """The dead letters of a source: rows with `error`, as Parquet."""

    def __init__(self, storage: Storage, source: OperatorId, log_line: Callable[[str], object]) -> None:
        super().__init__(storage)
        self._source, self._log_line, self._place = source, log_line, storage.url
        self._total, self._next = 0, 1

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink: those that are new are counted."""
        new = super().publish(key, rows, epoch)
        self._total += rows.num_rows if new else 0
        if self._total >= self._next:
            self._next = 10 * self._total
            error = one_line(str(rows["error"][0].as_py()), 200)
            self._log_line(
                f"source {self._source}: {counted(self._total, 'record')} so far cannot be read and are left out, one "
                f"of them because {error}; they are in {self._place}; correct the files, or the source's schema and "
                "options"
            )
        return new
