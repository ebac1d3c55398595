"""What a drill's outputs must be: the same input without failures, in this process. Runs anywhere.

A user's application runs twice. An output whose rows differ between the two runs, or that depends on an operator with
`deterministic=False`, cannot be compared row by row: the drill names it and compares the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from holdfast.application import Application
from holdfast.drill.checkers import compare_rows
from holdfast.drill.logged import LoggedBatch
from holdfast.drill.scenarios import Scenario
from holdfast.drill.settings import DrillSettings
from holdfast.drill.watermarks import LoggedWatermarks
from holdfast.ids import BatchId, Epoch, OperatorId
from holdfast.runtime import InProcess
from holdfast.runtime.io.batch_records import Arrived, SourceBatch
from holdfast.runtime.io.source_pieces import Piece
from holdfast.runtime.program import Program
from holdfast.runtime.times import event_times


@dataclass(frozen=True, slots=True)
class Reference:
    """The rows of every output that can be compared, and why others cannot."""

    rows: Mapping[str, pa.Table]
    not_compared: Mapping[str, str] = field(default_factory=dict)
    """Output -> why its rows are not compared."""
    read: Mapping[str, pa.Table] = field(default_factory=dict)
    """The rows that the ranges of sources hold that are read in place."""
    problems: tuple[str, ...] = ()
    """What is wrong with the watermarks that the run has logged."""


def output_names(app: Application) -> list[str]:
    """Return the names of the outputs."""
    return list(app.output_names().values())


def make_reference(scenario: Scenario, asked: DrillSettings, *, twice: bool) -> Reference:
    """Run the drill's input without failures; `twice` finds outputs that differ from run to run."""
    app = scenario.application()
    program = Program(app)
    declared = declared_nondeterministic(program)
    first = _run(scenario, asked)
    not_compared = {name: declared[name] for name in first if name in declared}
    if twice:
        second = _run(scenario, asked)
        for name, rows in first.items():
            if name not in not_compared and not compare_rows(rows, second[name]).holds:
                not_compared[name] = "two runs without failures gave different rows"
    return Reference({name: rows for name, rows in first.items() if name not in not_compared}, not_compared)


def reference_of_batches(
    app: Application, given: Sequence[dict[str, pa.Table]], batches: Sequence[LoggedBatch], found: Reference | None
) -> Reference:
    """Run the batches that a drill's run has logged: the same ranges, and files in the order of their arrival.

    So outputs that depend on where batches end can be compared too. Where the batches have the manifest's watermarks,
    these hold: a late row is late here as it was there, and `problems` names watermarks that do not follow from the
    rows. `app` has the readers that the run had. `found`: a reference of the same input in other batches; what could
    not be compared there cannot be here.
    """
    program = Program(app)
    left = dict(found.not_compared) if found is not None else declared_nondeterministic(program)
    done = InProcess(app)
    log = done.batch_log
    read: dict[str, list[pa.Table]] = {}
    marks = LoggedWatermarks()
    for batch in batches:
        pieces = {
            OperatorId(source): [
                log.write_piece(OperatorId(source), given[number][source], str(number))
                for number in files
                if number < len(given)
            ]
            for source, files in batch.files.items()
        }
        number = BatchId(batch.number)
        if batch.sources:
            log.repeat(number, {name: _with_pieces(one, pieces.get(name, [])) for name, one in batch.sources.items()})
            for name, one in batch.sources.items():
                held = [block.rows for block in log.blocks(name, number, Epoch(0)) if block.rows is not None]
                marks.see(
                    number, program.sources[name], one.watermark, _newest(program, name, held), closes=batch.closes
                )
                if one.ranges:
                    read.setdefault(str(name), []).extend(held)
        else:
            log.commit(number, {name: Arrived(some) for name, some in pieces.items()}, last=batch.closes)
        done.run()
    rows = {name: done.rows(name) for name in output_names(app) if name not in left}
    ranges = {name: pa.concat_tables(tables) for name, tables in read.items() if tables}
    return Reference(rows, left, ranges, tuple(marks.problems))


def _newest(program: Program, source: OperatorId, tables: Sequence[pa.Table]) -> int | None:
    """Return the latest event time of a source's rows, in microseconds; None: there is none."""
    if (column := program.sources[source].event_time) is None:
        return None
    found = [times[known].max() for times, known in (event_times(rows, column) for rows in tables) if known.any()]
    return int(max(found)) if found else None


def _with_pieces(one: SourceBatch, pieces: Sequence[Piece]) -> SourceBatch:
    found = [piece for piece in pieces if piece.rows]
    partitions = 1 + max((section.partition for piece in found for section in piece.sections), default=-1)
    counts = [0] * partitions
    for piece in found:
        for section in piece.sections:
            counts[section.partition] += section.rows
    return replace(one, pieces=tuple(found), rows=tuple(counts))


def declared_nondeterministic(program: Program) -> dict[str, str]:
    """Return the outputs that depend on an operator which is declared not to be deterministic."""
    return {
        name: "it depends on an operator with deterministic=False"
        for operator, name in program.output_names.items()
        if not program.operators[operator].deterministic
    }


def _run(scenario: Scenario, asked: DrillSettings) -> dict[str, pa.Table]:
    app = scenario.application()
    done = InProcess(app)
    for batch in scenario.batches(asked.seed, asked.batches, asked.rows):
        done.feed(batch)
    done.close()
    return {name: done.rows(name) for name in output_names(app)}
