"""Gathered Parquet outputs of simulated runs, and those who read their folders meanwhile. Runs anywhere.

Every driver has a sink of its own, as processes have. Random numbers are its own: other runs are what they were.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import BadInput
from holdfast.ids import Epoch, OperatorId
from holdfast.runtime.io.gathered_folders import check_columns
from holdfast.runtime.io.gathered_parquet import GatheredParquetSink
from holdfast.runtime.io.gathered_reading import see
from holdfast.runtime.io.parquet_names import Stream, file_group
from holdfast.runtime.io.sinks import OutputKey
from holdfast.runtime.program import Program
from holdfast.storage.storage import Storage
from holdfast_lab.simulation.recovery.checks import Violation


def gathers_outputs(seed: int) -> bool:
    """Whether outputs are gathered in a run; its seed is one of those whose outputs are Parquet."""
    return seed % 39 == 34


Given: TypeAlias = dict[tuple[OperatorId, OutputKey], list[pa.Table]]
"""What all drivers have given to sinks."""


class WatchedGatheredSink(GatheredParquetSink):
    """Gathers outputs, and remembers in which order their rows came: folders for values have another."""

    given: Given

    def publish(self, key: OutputKey, rows: pa.Table, epoch: Epoch) -> bool:
        """See Sink."""
        self.given.setdefault((key.query.operator, replace(key, run="")), []).append(rows)
        return super().publish(key, rows, epoch)

    def outputs(self) -> dict[OutputKey, pa.Table]:
        """Return what is there, as it was given where it has the same rows."""
        return {key: as_given(self.given, key, rows) for key, rows in super().outputs().items()}


def as_given(given: Given, key: OutputKey, rows: pa.Table) -> pa.Table:
    """Return the rows of an output in the order in which they were given, where they are the same."""
    mine = sorted(map(str, rows.to_pylist()))
    known = given.get((key.query.operator, key), [])
    return next((one for one in known if sorted(map(str, one.to_pylist())) == mine), rows)


def gathered_sink(seed: int, name: OperatorId, program: Program, storage: Storage, given: Given) -> GatheredParquetSink:
    """Return the sink of an output, as a driver makes it."""
    draw = random.Random(f"gathered {seed} {name}")
    every, file_mb = draw.choice((5.0, 60.0, 300.0)), draw.choice((0.004, 128.0))
    sink = WatchedGatheredSink(storage, every, file_mb, draw_columns(draw, program.operators[name].schema))
    sink.given = given
    return sink


def draw_columns(draw: random.Random, schema: pa.Schema | None) -> list[str]:
    """Return by which columns outputs are partitioned."""
    columns = [one for one in (() if schema is None else schema.names) if _names_folders(schema, one)]
    return [draw.choice(columns)] if columns and draw.random() < 0.5 else []


def _names_folders(schema: pa.Schema, column: str) -> bool:
    try:
        check_columns(schema, [column], "")
    except BadInput:
        return False
    return True


def twice_in_files(name: OperatorId, storage: Storage) -> Iterator[Violation]:
    """See that no two files that readers of Parquet see have rows of one batch."""
    through: dict[tuple[Stream, str], int] = {}
    for file in sorted(storage.list(), key=lambda one: one.rpartition("/")[2]):
        if (group := file_group(file)) is None:
            continue
        place = (group.query, group.generation), file.rpartition("/")[0]
        if group.first <= through.get(place, -1):
            yield Violation(f"{name}: two files have rows of batch {group.first}: {file} and another", (group.query,))
        through[place] = group.through
    seen = see(storage)
    for staged, key in seen.staged.items():
        mine = {group for group in seen.files.values() if group.query == key.query}
        if any(one.generation == key.generation and one.first <= key.batch <= one.through for one in mine):
            yield Violation(f"{name}: readers of everything see {staged}, which is in a file, too", (key.query,))


def closing_file_problems(name: OperatorId, sink: GatheredParquetSink, storage: Storage) -> Iterator[Violation]:
    """See that readers of Parquet get every row of a run that has ended, once."""
    yield from twice_in_files(name, storage)
    if waiting := see(storage).staged:
        yield Violation(f"{name}: {len(waiting)} outputs are in no file, and the run has ended: {min(waiting)}")
    many = 0
    for file in storage.list():
        if not file.startswith("_") and (data := storage.read(file)) is not None:
            many += pq.read_metadata(pa.BufferReader(data)).num_rows
    if many != (there := sum(rows.num_rows for rows in sink.outputs().values())):
        yield Violation(f"{name}: readers of Parquet see {many} rows, and {there} are out")
