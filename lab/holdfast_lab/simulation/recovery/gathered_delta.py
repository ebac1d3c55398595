"""Gathered outputs of Delta tables in simulated runs. Runs anywhere.

Random numbers are its own: other runs are what they were.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.io.gathered_delta import GatheredDeltaSink, list_staged, waiting
from holdfast.runtime.io.gathered_files import rows_by_batch
from holdfast.runtime.io.gathered_reading import read_staged
from holdfast.runtime.io.parquet_names import STAGED, key_of
from holdfast.runtime.io.sinks import OutputKey
from holdfast.runtime.program import Program
from holdfast.storage.storage import Storage
from holdfast_lab.simulation.recovery.checks import Violation
from holdfast_lab.simulation.recovery.delta_table import OverSimulatedTable, look_at
from holdfast_lab.simulation.recovery.gathered import Given, as_given, draw_columns, gathers_outputs
from holdfast_lab.simulation.recovery.scene import has_branches

_FILE = re.compile(r"hf-start[0-9]+-(.+)-([0-9]{5,})-([0-9]{10,})-([0-9]{10,})-g([0-9]+)-([0-9a-f]{16})\.parquet")


def gathers_into_delta(seed: int) -> bool:
    """Whether the outputs that a run gathers go to Delta tables, which take no tentative rows then."""
    return gathers_outputs(seed) and seed // 39 % 3 == 2 and not has_branches(seed)


class WatchedGatheredDeltaSink(OverSimulatedTable, GatheredDeltaSink):
    """Gathers outputs into a table whose log is in the simulated storage; see WatchedGatheredSink."""

    given: Given

    def __init__(self, storage: Storage, start: int, every: float, file_mb: float, partition_by: Sequence[str]) -> None:
        """`start`: the number of the driver's start."""
        GatheredDeltaSink.__init__(self, "table", every, file_mb, partition_by)
        self._storage_of, self._start = storage, f"start{start}"

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self.given.setdefault((key.query.operator, replace(key, run="")), []).append(rows)
        return super().publish(key, rows, epoch)

    def stager(self, start: str) -> None:  # type: ignore[override]
        """See Sink: rows pass through the driver."""

    def outputs(self) -> dict[OutputKey, pa.Table]:
        """Return what is there, as it was given where it has the same rows."""
        return {key: as_given(self.given, key, rows) for key, rows in outputs_in(self._storage).items()}


def delta_sink(
    seed: int, start: int, name: OperatorId, program: Program, storage: Storage, given: Given
) -> WatchedGatheredDeltaSink:
    """Return the sink of an output, as a driver makes it."""
    draw = random.Random(f"gathered {seed} {name}")
    every, file_mb = draw.choice((5.0, 60.0, 300.0)), draw.choice((0.004, 128.0))
    sink = WatchedGatheredDeltaSink(storage, start, every, file_mb, draw_columns(draw, program.operators[name].schema))
    sink.given = given
    return sink


def outputs_in(storage: Storage) -> dict[OutputKey, pa.Table]:
    """Return every output that is in a table, or waits for its commit."""
    staged = list_staged(storage)
    table = look_at(storage)
    parts: dict[OutputKey, list[pa.Table]] = {}
    for name in table.files if table is not None else ():
        query, _, _, generation, _ = _parts(name)
        data = storage.read(name)
        assert data is not None, "a file that the table names is there"
        for batch, rows in rows_by_batch(data, name):
            parts.setdefault(OutputKey(query, batch, generation=generation), []).append(rows)
    for name in waiting(storage, staged, (lambda one: None) if table is None else table.transaction_version):
        key, rows = key_of(name.partition(STAGED)[2]), read_staged(storage, name)
        assert key is not None
        parts.setdefault(key, []).append(rows)
    ordered = sorted(parts, key=lambda key: (key.batch, key.query, key.generation))
    return {key: pa.concat_tables(parts[key]).combine_chunks() for key in ordered}


def _parts(name: str) -> tuple[PartitionId, BatchId, BatchId, int, str]:
    found = _FILE.fullmatch(name)
    assert found is not None, name
    operator, index, first, through, generation, folder = found.groups()
    query = PartitionId(OperatorId(operator), int(index))
    return query, BatchId(int(first)), BatchId(int(through)), int(generation), folder


def twice_in_table(name: OperatorId, storage: Storage) -> Iterator[Violation]:
    """See that no two files that the table names have rows of one batch, and that its files are there."""
    table = look_at(storage)
    reached: dict[tuple[PartitionId, int, str], BatchId] = {}
    for file in sorted(table.files if table is not None else (), key=lambda one: _parts(one)[1]):
        query, first, through, generation, folder = _parts(file)
        place = query, generation, folder
        if first <= reached.get(place, -1):
            yield Violation(f"{name}: two files of the table have rows of batch {first}: {file} and another", (query,))
        reached[place] = through
        if storage.read(file) is None:
            yield Violation(f"{name}: the table names {file}, which is not there", (query,))


def closing_table_problems(
    name: OperatorId,
    sink: WatchedGatheredDeltaSink,
    storage: Storage,
    is_given_up: Callable[[OperatorId, int], bool],
) -> Iterator[Violation]:
    """See that readers of a table get every row of a run that has ended, once; rows of what was given up may wait."""
    yield from twice_in_table(name, storage)
    table = look_at(storage)
    staged = list_staged(storage)
    left = waiting(storage, staged, (lambda one: None) if table is None else table.transaction_version)
    keys = [key for one in left if (key := key_of(one.partition(STAGED)[2])) is not None]
    if mine := [key for key in keys if not is_given_up(name, key.generation)]:
        yield Violation(f"{name}: {len(mine)} outputs are in no commit, and the run has ended: {min(mine)}")
    many = sum(table.files.values()) if table is not None else 0
    out = sink.outputs()
    if many != (there := sum(rows.num_rows for key, rows in out.items() if key not in keys)):
        yield Violation(f"{name}: readers of the table see {many} rows, and {there} are out")
