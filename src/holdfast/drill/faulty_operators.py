"""Operators that raise or hang on command: the faults of a drill that are in the user's code. Runs on driver and nodes.

A drill decides by files in a folder that every node reaches; without a file, operators do nothing but their work.

| file | what the aimed partition does |
|---|---|
| `poison` | raises on every batch in which it has rows, until the file is removed |
| `hang` | takes the file away, and sleeps for the seconds in it without releasing Python's lock |
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.application import Application
from holdfast.ids import PartitionId
from holdfast.topology import Queries, Topology

if TYPE_CHECKING:
    from holdfast.drill.driver import DriverJob

POISON, HANG = "poison", "hang"


class PoisonRow(ValueError):
    """Raised by an operator on rows that a drill has poisoned."""


@dataclass(frozen=True, slots=True)
class FaultyStep:
    """What an operator does before every step: look for a fault in its partition."""

    partition: PartitionId
    folder: str

    def __call__(self, partition: Any, batch: int, inputs: list[Any]) -> None:
        """Raise or hang where the drill says so; rows must be there, for a fault is one of rows."""
        if partition != self.partition or not any(table is not None and table.num_rows for table in inputs):
            return
        place = Path(self.folder)
        with suppress(OSError, ValueError):
            taken = place / f"{HANG}-{os.getpid()}"
            (place / HANG).rename(taken)  # one attempt only gets it
            seconds = float(taken.read_text())
            # PyDLL keeps the lock: no other thread of the process runs meanwhile.
            ctypes.PyDLL(None).usleep(ctypes.c_uint(int(min(seconds, 3600.0) * 1e6)))
        if (place / POISON).exists():
            raise PoisonRow(f"a poisoned row in batch {batch}")


def is_hang_untaken(folder: Path) -> bool:
    """Whether a hang was asked for, and no operator has taken it: the aimed partition had no rows since."""
    return (folder / HANG).exists()


def aimed_query(topology: Topology) -> PartitionId:
    """Return the least valuable query of those that no other query needs: a fault in it is a fault of it alone.

    The topology is a DAG, so there is an output whose partitions nothing consumes.
    """
    queries = Queries(topology)
    names = topology.partitions()
    heads = [names[head] for head in queries.heads]
    members = [{str(names[one]) for one in queries.members(number)} for number in range(len(heads))]
    alone = [
        number for number, head in enumerate(heads) if sum(str(head) in its for its in members) == 1
    ]  # in its own query only
    found: PartitionId = heads[min(alone, key=lambda number: (int(queries.priority[number]), str(heads[number])))]
    return found


def with_faulty_operators(app: Application, job: DriverJob) -> Application:
    """Return the application with operators that do the drill's faults, where it has any; else as it is."""
    if not (job.settings.poison or job.settings.hang) or job.faults_folder is None:
        return app
    aimed = aimed_query(app.topology())
    faulty = copy(app)
    faulty.before_steps = {**app.before_steps, aimed.operator: FaultyStep(aimed, job.faults_folder)}
    return faulty
