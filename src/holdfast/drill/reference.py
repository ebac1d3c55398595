"""What a drill's outputs must be: the same input without failures, in this process. Runs anywhere.

A user's application runs twice. An output whose rows differ between the two runs, or that depends on an operator with
`deterministic=False`, cannot be compared row by row: the drill names it and compares the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.application import Application
from holdfast.drill.checkers import compare_rows
from holdfast.drill.logged import LoggedBatch
from holdfast.drill.scenarios import Scenario
from holdfast.drill.settings import DrillSettings
from holdfast.ids import BatchId, OperatorId
from holdfast.runtime import InProcess
from holdfast.runtime.io.batch_records import Arrived
from holdfast.runtime.program import Program


@dataclass(frozen=True, slots=True)
class Reference:
    """The rows of every output that can be compared, and why others cannot."""

    rows: Mapping[str, pa.Table]
    not_compared: Mapping[str, str] = field(default_factory=dict)
    """Output -> why its rows are not compared."""


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
    scenario: Scenario, given: Sequence[dict[str, pa.Table]], batches: Sequence[LoggedBatch], found: Reference | None
) -> Reference:
    """Run the batches that a drill's run has logged, each of its files in the order of their arrival.

    So outputs that depend on where batches end can be compared too. `found`: a reference of the same input in other
    batches; what could not be compared there cannot be here.
    """
    app = scenario.application()
    program = Program(app)
    left = dict(found.not_compared) if found is not None else declared_nondeterministic(program)
    done = InProcess(app)
    log = done.batch_log
    for batch in batches:
        arrived = {
            OperatorId(source): Arrived(
                [
                    log.write_piece(OperatorId(source), given[number][source], str(number))
                    for number in files
                    if number < len(given)
                ]
            )
            for source, files in batch.files.items()
        }
        log.commit(BatchId(batch.number), arrived, last=batch.closes)
        done.run()
    return Reference({name: done.rows(name) for name in output_names(app) if name not in left}, left)


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
