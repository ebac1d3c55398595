"""Operators against plain pyarrow on the same rows: what the engine's generality and its bookkeeping cost.

Sides, all on one core with Arrow single-threaded, from rows in memory to rows in memory:

- plain: the query by hand, with pyarrow's group-by and nothing else;
- kernels: our operators alone, each on all rows at once;
- host: partitions, routing, blocks, outboxes and the coordinator, in memory;
- host in files: the same with batch log, state and outboxes in files.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import CheckFailed
from holdfast.examples.draws import SECOND
from holdfast.runtime import InProcess
from holdfast_lab.benches.limits.sides import Measured, take_turns
from holdfast_lab.benches.streaming.operators_alone import OperatorsAlone
from holdfast_lab.benches.streaming.sides import same_rows
from holdfast_lab.benches.streaming.workloads import tag_batches, windowed_count

Batch = Mapping[str, pa.Table]
OUTPUT = "counts"
PANES = 10
LATENESS = SECOND


class PlainCount:
    """A sliding count of 10 s every second by hand: a group-by for each second, and one over the last ten of them."""

    def __init__(self) -> None:
        self._panes: dict[int, list[pa.Table]] = {}
        self._closed: int | None = None
        self._latest = -1
        self.output: list[pa.Table] = []

    def step(self, batch: Batch) -> None:
        """Take a batch in, and give the windows that end with it."""
        rows = batch["tags"]
        at = rows["at"].cast(pa.int64())
        seconds = pa.array(at.to_numpy() // SECOND)
        keyed = pa.table({"tag": rows["tag"], "second": seconds})
        counted = keyed.group_by(["tag", "second"], use_threads=False).aggregate([([], "count_all")])
        for second in pc.unique(seconds).to_pylist():
            self._panes.setdefault(second, []).append(counted.filter(pc.equal(counted["second"], second)))
        self._latest = max(self._latest, pc.max(at).as_py())
        ends = (self._latest - LATENESS) // SECOND
        first = min(self._panes) + 1 if self._closed is None else self._closed + 1
        for end in range(first, ends + 1):
            last = [pane for second in range(end - PANES, end) for pane in self._panes.get(second, ())]
            if last:
                summed = pa.concat_tables(last).group_by("tag", use_threads=False).aggregate([("count_all", "sum")])
                stamp = pa.array(np.full(summed.num_rows, end * SECOND, np.int64)).cast(pa.timestamp("us"))
                names = {"tag": summed["tag"], "window_end": stamp, "count": summed["count_all_sum"]}
                self.output.append(pa.table(names))
            self._panes.pop(end - PANES, None)
            self._closed = end

    def rows(self) -> pa.Table:
        """Return all that was given."""
        return pa.concat_tables(self.output)


def measure_operators(rows: int, batches: int, turns: int, seed: int = 1) -> Measured:
    """Measure a windowed count over so many batches of so many rows; sides that give other rows fail."""
    made: Sequence[Batch] = list(tag_batches(seed, batches, rows))
    gave: dict[str, pa.Table] = {}

    def timed(name: str, step: Callable[[Batch], object], given: Callable[[], pa.Table]) -> float:
        began = time.process_time()
        for batch in made:
            step(batch)
        seconds = time.process_time() - began
        gave[name] = given()
        return seconds / batches

    def plain() -> float:
        one = PlainCount()
        return timed("plain", one.step, one.rows)

    def kernels() -> float:
        one, found = OperatorsAlone(windowed_count()), list[pa.Table]()

        def step(batch: Batch) -> None:
            if (rows := one.step(batch)[OUTPUT]) is not None:
                found.append(rows)

        return timed("kernels", step, lambda: pa.concat_tables(found))

    def host(folder: Path | None) -> float:
        one = InProcess(windowed_count(), directory=folder)
        return timed("host" if folder is None else "host in files", one.feed, lambda: one.rows(OUTPUT))

    def in_files() -> float:
        folder = Path(tempfile.mkdtemp(prefix="holdfast-limits-"))
        try:
            return host(folder)
        finally:
            shutil.rmtree(folder)

    sides = {"plain": plain, "kernels": kernels, "host": lambda: host(None), "host in files": in_files}
    found = take_turns(sides, turns)
    for name, table in gave.items():
        columns = table.select(["tag", "window_end", "count"])
        if (problem := same_rows(columns, gave["plain"])) is not None:
            raise CheckFailed(f"{name} gives other rows than plain pyarrow: {problem}", where="bench limits")
    return Measured("operators", f"a windowed count, batches of {rows:,} rows", "plain", "batch", found, rows=rows)
