"""What a drill's outputs must be: the same input without failures, in this process. Runs anywhere.

A user's application runs twice. An output whose rows differ between the two runs, or that depends on an operator with
`deterministic=False`, cannot be compared row by row: the drill names it and compares the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.application import Application
from holdfast.drill.checkers import compare_rows
from holdfast.drill.scenarios import Scenario
from holdfast.drill.settings import DrillSettings
from holdfast.runtime import InProcess
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
    declared = {
        name: "it depends on an operator with deterministic=False"
        for operator, name in program.output_names.items()
        if not program.operators[operator].deterministic
    }
    first = _run(scenario, asked)
    not_compared = {name: declared[name] for name in first if name in declared}
    if twice:
        second = _run(scenario, asked)
        for name, rows in first.items():
            if name not in not_compared and not compare_rows(rows, second[name]).holds:
                not_compared[name] = "two runs without failures gave different rows"
    return Reference({name: rows for name, rows in first.items() if name not in not_compared}, not_compared)


def _run(scenario: Scenario, asked: DrillSettings) -> dict[str, pa.Table]:
    app = scenario.application()
    done = InProcess(app)
    for batch in scenario.batches(asked.seed, asked.batches, asked.rows):
        done.feed(batch)
    done.close()
    return {name: done.rows(name) for name in output_names(app)}
