"""Rows of simulated runs that operators cannot take, and that are quarantined. Runs anywhere.

Which rows are poison, and for which operators, is fixed with the seed: an operator is a pure function, and fails on the
same rows however often and wherever it is tried. Its code is repaired only with the start of a driver, for good. In
some runs with workers that stay, such a row ends the operator process in place of raising. What drivers decide is
collected from the progress that they write; the answer is then that of a run without failures in which exactly these
rows were never there. Random numbers are its own, so that runs without poison rows are what they were.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.recovery.quarantine import Quarantined
from holdfast.runtime.io.sinks import OutputKey
from holdfast.runtime.program import Program
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import Watermark
from holdfast.runtime.worker.blame import QUARANTINE_ROWS
from holdfast.runtime.worker.operators.kernel import Declaration, InputColumns, Kernel, Runs, Stepped
from holdfast.runtime.worker.step_guard import Death, SharedGuard, StepGuard
from holdfast_lab.simulation.recovery.checks import Violation
from holdfast_lab.simulation.recovery.faults import Fault, Mischief
from holdfast_lab.simulation.recovery.files import ProcessDied

SHARE = 0.35
"""Of all runs that have such rows."""
REPAIRED = 0.03
"""The chance that a driver starts with repaired operators."""


def has_poison_rows(seed: int) -> bool:
    """Whether a run has rows that operators cannot take."""
    return random.Random(f"poison rows {seed}").random() < SHARE


class PoisonRows:
    """Which rows are poison in a run, for whom, and since when no more."""

    def __init__(self, seed: int, mischief: Mischief, *, resident: bool) -> None:
        self._seed, self._mischief = seed, mischief
        self._draw = random.Random(f"poison rows {seed}")
        self.wanted = self._draw.random() < SHARE
        self._modulus = self._draw.choice((5, 9, 17))
        self._rest = self._draw.randrange(self._modulus)
        self.quarantine_rows = self._draw.choice((1, 2, QUARANTINE_ROWS, QUARANTINE_ROWS))
        self.dies = resident and self._draw.random() < 0.4
        """Whether a poison row ends the process."""
        self.batches_behind = self._draw.choice((None, 4, 50)) if self.wanted else None
        """How far queries may be behind others that are worth more."""
        self.dying = False
        """Whether a process is about to end."""
        self.repaired = False

    def is_poison(self, operator: OperatorId, row: Mapping[str, Any]) -> bool:
        """Whether an operator that is afflicted, as it was at first, cannot take a row."""
        return int(row["n"]) % self._modulus == self._rest

    def afflicts(self, program: Program, operator: OperatorId) -> bool:
        """Whether there are rows that an operator cannot take: all its rows have a column that decides it."""
        one = program.operators[operator]
        if not self.wanted or not one.deterministic or operator in program.sources:
            return False
        schemas = [program.operators[feed].schema for feed in one.feeds]
        return all(schema is not None and "n" in schema.names for schema in schemas) and (
            random.Random(f"poison rows {self._seed} {operator}").random() < 0.6
        )

    def _quarantines(self, operator: OperatorId) -> bool:
        return random.Random(f"on error {self._seed} {operator}").random() < 0.85

    def repair(self) -> None:
        """Drivers that start from now on have operators that take all rows."""
        if self.wanted and not self.repaired:
            self.repaired = True
            self._mischief.injected[Fault.REPAIRED] += 1

    def perhaps_repair(self) -> None:
        """A driver starts: perhaps with repaired operators."""
        if self.wanted and self._mischief.active and self._draw.random() < REPAIRED:
            self.repair()

    def program(self, program: Program) -> Program:
        """Return a program as a driver runs it that has the run now: with operators that fail, or repaired ones."""
        if not self.wanted:
            return program
        made = copy.copy(program)
        made.operators = {
            name: replace(
                one,
                kernel=one.kernel if self.repaired else PoisonedKernel(one.kernel, self, name),
                quarantines=self._quarantines(name),
            )
            if self.afflicts(program, name)
            else one
            for name, one in program.operators.items()
        }
        return made

    def strike(self, row: Mapping[str, Any]) -> None:
        """An operator meets a row that it cannot take."""
        self._mischief.injected[Fault.POISON_ROW] += 1
        if self.dies:
            self.dying = True
            raise ProcessDied("poison row")
        raise ValueError(f"poison row {row}")


class PoisonedKernel:
    """An operator that cannot take some rows."""

    def __init__(self, kernel: Kernel, poison: PoisonRows, operator: OperatorId) -> None:
        self._kernel, self._poison, self._operator = kernel, poison, operator

    def declare(self, inputs: Sequence[InputColumns]) -> Declaration:
        """See Kernel."""
        return self._kernel.declare(inputs)

    def step(self, state: Runs, inputs: Sequence[pa.Table | None], before: Watermark, now: Watermark) -> Stepped:
        """See Kernel."""
        for table in inputs:
            for row in [] if table is None else table.to_pylist():
                if self._poison.is_poison(self._operator, row):
                    self._poison.strike(row)
        return self._kernel.step(state, inputs, before, now)


class ProcessGuard:
    """The guard of the processes at one place of a node: what its supervisor remembers of those before."""

    def __init__(self, other: StepGuard | None, poison: PoisonRows) -> None:
        """`other` is asked first."""
        self._other, self._poison, self._guard = other, poison, SharedGuard()

    def begin(self, partition: PartitionId, batch: BatchId, attempt: int, piece: str = "") -> Death | None:
        """See StepGuard."""
        died = None if self._other is None else self._other.begin(partition, batch, attempt, piece)
        return died or self._guard.begin(partition, batch, attempt, piece)

    def end(self) -> None:
        """See StepGuard: a process that is about to end does nothing more."""
        if not self._poison.dying:
            self._guard.end()

    def turn(self) -> None:
        """See StepGuard."""

    def died(self) -> None:
        """Its process has died of what it was doing; where that was no poison, it had ended the step."""
        if self._poison.dying:
            self._guard.died(-11)
            self._poison.dying = False


# -- what was decided ----------------------------------------------------------------------------------------------


class Answer:
    """What is right: which rows every operator takes where exactly the decided ones were never there."""

    def __init__(self, poison: PoisonRows, decided: Mapping[tuple[PartitionId, BatchId], Quarantined]) -> None:
        self._poison, self._decided = poison, decided
        self.problems: list[Violation] = []
        self.letters: dict[tuple[PartitionId, BatchId], list[tuple[str, int, int]]] = {}
        """The rows that are left out: input, position, number."""

    def leave_out(
        self, program: Program, partition: PartitionId, batch: BatchId, inputs: list[pa.Table | None]
    ) -> list[pa.Table | None]:
        """Return the rows that a partition takes; see that those it does not take are poison, and the others not."""
        operator, one = partition.operator, self._decided.get((partition, batch))
        if not self._poison.afflicts(program, operator):
            if one is not None:
                self._complain(partition, batch, f"{one} was decided, and it fails on nothing")
            return inputs
        found: list[pa.Table | None] = []
        for feed, table in zip(program.operators[operator].feeds, inputs, strict=True):
            gone = set() if one is None else {row.position for row in one.rows if row.input == feed}
            rows = [] if table is None else table.to_pylist()
            for place, row in enumerate(rows):
                poison = self._poison.is_poison(operator, row)
                if place in gone and not poison:
                    self._complain(partition, batch, f"row {place} of {feed} was left out, and is no poison: {row}")
                elif place not in gone and poison and not self._poison.repaired:
                    self._complain(partition, batch, f"row {place} of {feed} is poison, and was not left out: {row}")
                if place in gone:
                    self.letters.setdefault((partition, batch), []).append((feed, place, row["n"]))
            if gone - set(range(len(rows))):
                self._complain(partition, batch, f"rows {sorted(gone)} of {feed} were left out, of {len(rows)}")
            kept = [place for place in range(len(rows)) if place not in gone]
            found.append(None if table is None or not kept else one_chunk([table.take(pa.array(kept))]))
        return found

    def _complain(self, partition: PartitionId, batch: BatchId, what: str) -> None:
        self.problems.append(Violation(f"{partition}, batch {batch}: {what}", (partition,)))

    def letter_problems(self, given: Sequence[Mapping[OutputKey, pa.Table]]) -> list[Violation]:
        """Compare dead letters with the rows that were left out: each is there once."""
        mine: dict[tuple[PartitionId, BatchId], list[tuple[str, int, int]]] = {}
        for outputs in given:
            for key, rows in outputs.items():
                mine.setdefault((key.query, key.batch), []).extend(
                    (row["input"], row["position"], json.loads(row["row"])["n"]) for row in rows.to_pylist()
                )
        found = []
        for place in sorted(set(mine) | set(self.letters)):
            wanted = self.letters.get(place, [])
            if sorted(mine.get(place, [])) != sorted(wanted):
                what = f"{place[0]}, batch {place[1]}: dead letters {mine.get(place)} were written, {wanted} are right"
                found.append(Violation(what, (place[0],)))
        return found
