"""Sinks that gather: what the outputs of many batches wait for, and when they are published. Runs on the driver.

An output is staged first: created under `_staged/`, only if absent, by the node that has its rows or by the driver. It
is out then, because the rows of a key never differ. From time to time what is staged is published, many outputs at a
time; how, and how often each comes to be there, is the matter of each sink (`gathered_parquet`, `gathered_delta`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io.gathered_folders import check_columns
from holdfast.runtime.io.parquet_names import STAGED, Stream, name_of
from holdfast.runtime.io.sinks import Gathered, OutputKey, Sink
from holdfast.storage.storage import Storage

EVERY_SECONDS = 60.0
"""The interval of files that are partitioned by columns, where none is given."""
MOST_OUTPUTS = 10_000
"""Outputs that are published together at most, of one query."""


@dataclass(slots=True)
class _Waiting:
    """What is staged of a query, as far as this driver has seen it, and is not published."""

    outputs: int = 0
    bytes: int = 0
    since: float | None = None
    """When somebody first looked after the first of them was staged."""


class GatheringSink(Sink):
    """Stages outputs, and publishes many of them together; see the module."""

    gathers = True

    def __init__(self, every: float, file_mb: float, partition_by: Sequence[str]) -> None:
        """Outputs are published once the first has waited for `every` seconds, or they have so many megabytes."""
        self._every, self._most_bytes, self.partition_by = every, file_mb * (1 << 20), tuple(partition_by)
        self._lock = threading.Lock()
        """Of what waits: the coordinator asks what is due while the publisher stages."""
        self._waiting: dict[PartitionId, _Waiting] = {}
        self._found = False
        """Whether an earlier driver has left something staged, or begun."""
        self._sizes: dict[str, int] = {}
        """The bytes of staged outputs, as far as they are known."""
        self._out: dict[PartitionId, BatchId] = {}
        """The last batch of each query that this driver has given."""
        self._round: Iterator[Stream] | None = None
        """Publishes what was due when it began, and has not published all of it."""

    @property
    def _kept(self) -> Storage:
        """Where outputs are staged."""
        raise NotImplementedError

    def check(self, schema: pa.Schema, where: str, output: str) -> None:
        """Refuse rows that cannot be partitioned by the columns."""
        check_columns(schema, self.partition_by, where, output)

    def _staged(self, key: OutputKey, size: int) -> None:
        with self._lock:
            waiting = self._waiting.setdefault(key.query, _Waiting())
            waiting.outputs += 1
            waiting.bytes += size
            self._sizes[f"{STAGED}{name_of(key)}"] = size
            self._out[key.query] = max(key.batch, self._out.get(key.query, key.batch))

    def due(self, now: float) -> bool:
        """See Sink."""
        with self._lock:
            for one in self._waiting.values():
                if one.since is None and math.isfinite(now):
                    one.since = now
            return self._found or self._round is not None or bool(self._due_queries(now))

    def _due_queries(self, now: float) -> set[PartitionId]:
        """Return the queries whose outputs are to be published now, of those of which some wait; under the lock."""
        return {query for query, one in self._waiting.items() if self._is_due(one, now)}

    def _is_due(self, one: _Waiting, now: float) -> bool:
        if one.bytes >= self._most_bytes or one.outputs >= MOST_OUTPUTS or now == math.inf:
            return True
        return one.since is not None and now - one.since >= self._every

    def flush(self, known: Gathered, epoch: Epoch) -> None:
        """See Sink: one group is published, and what is left stays due, so that outputs are taken in between."""
        going, self._round = self._round or self._publish_due(known), None  # where it fails, the next looks anew
        if next(going, None) is not None:
            self._round = going

    def _publish_due(self, known: Gathered) -> Iterator[Stream]:
        """Publish what is due now, group by group; yield before each but the first, whose it will be."""
        with self._lock:
            found, out = self._found, dict(self._out)
            due = set(self._waiting) if found else self._due_queries(known.now)
            taken = {query: self._waiting.pop(query) for query in due}
        try:
            is_first = True
            for stream, publish in self._groups(known, out, None if found else due):
                if not is_first:
                    yield stream
                is_first = False
                publish()
        except BaseException:
            with self._lock:
                for query, one in taken.items():
                    since = self._waiting.get(query, _Waiting())
                    self._waiting[query] = _Waiting(one.outputs + since.outputs, one.bytes + since.bytes, one.since)
            raise
        with self._lock:
            self._found = self._found and not found

    def _groups(
        self, known: Gathered, out: Mapping[PartitionId, BatchId], due: Collection[PartitionId] | None
    ) -> Iterator[tuple[Stream, Callable[[], object]]]:
        """Yield groups, and what publishes each: those of queries that are due; None: all that is there."""
        raise NotImplementedError

    def _through(
        self,
        stream: Stream,
        known: Gathered,
        out: Mapping[PartitionId, BatchId],
        due: Collection[PartitionId] | None,
    ) -> BatchId | float | None:
        """Return up to which batch what is staged of a query may be published; None: nothing of it now."""
        query, generation = stream
        if generation > known.generation or not (due is None or generation < known.generation or query in due):
            return None  # a driver of a later layout has the run, or the query's rows can wait
        if generation < known.generation:
            return math.inf  # it came to its end before the present one began: nothing is added to its outputs
        return max(known.published.get(query, BatchId(-1)), out.get(query, BatchId(-1)))

    def _as_many_as_fit(self, staged: Mapping[BatchId, str]) -> dict[BatchId, str]:
        found: dict[BatchId, str] = {}
        size = 0
        for batch, name in staged.items():
            if found and (size >= self._most_bytes or len(found) >= MOST_OUTPUTS):
                break
            if name not in self._sizes:
                data = self._kept.read(name)
                self._sizes[name] = 0 if data is None else data.size
            found[batch] = name
            size += self._sizes[name]
        return found

    def _delete(self, names: Sequence[str]) -> None:
        self._kept.delete(names)
        for name in names:
            self._sizes.pop(name, None)


def stage(storage: Storage, key: OutputKey, rows: pa.Table) -> tuple[bool, int]:
    """Create an output's staged copy; return whether it is new, and its bytes."""
    file = pa.BufferOutputStream()
    pq.write_table(rows, file)
    data = file.getvalue()
    return storage.create(f"{STAGED}{name_of(key)}", data), data.size
