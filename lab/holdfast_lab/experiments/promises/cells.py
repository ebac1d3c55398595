"""What the experiment keeps on disk, kill by kill: so that it goes on where it stood. Runs on the driver's machine.

`calibration-T.json` has what another run of topology T measured. `T--PLAN--OPERATOR.prediction.json` is written before
a kill, `T--PLAN--OPERATOR.json` after it, `T--PLAN.json` at the end of every run of a plan (a list), and
`T--PLAN.plan.json` is the plan.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.cli.result_files import write_json
from holdfast.topology import Topology, from_document, rates_of, to_document

FAILURE_RATE = 1e-6
"""Of every operator: plans weigh them alike."""


def read(path: Path) -> Any:
    """Return what is there; None: nothing is."""
    return json.loads(path.read_text()) if path.exists() else None


class Cells:
    """The files of one experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def calibration(self, topology: str) -> Any:
        """Return what was measured of a topology; None: nothing yet."""
        return read(self.folder / f"calibration-{topology}.json")

    def keep_calibration(self, topology: str, document: Mapping[str, Any]) -> None:
        """Keep what was measured of a topology."""
        write_json(self.folder / f"calibration-{topology}.json", document)

    def plan_file(self, topology: str, plan: str, document: Mapping[str, Any]) -> Path:
        """Write a plan where a run reads it."""
        path = self.folder / f"{topology}--{plan}.plan.json"
        write_json(path, document)
        return path.absolute()

    def cell(self, topology: str, plan: str, operator: str) -> Any:
        """Return what a kill took; None: it was not done yet."""
        return read(self.folder / f"{topology}--{plan}--{operator}.json")

    def predicted(self, topology: str, plan: str, operator: str, document: Mapping[str, Any]) -> None:
        """Write a prediction; it is on disk when this returns."""
        path = self.folder / f"{topology}--{plan}--{operator}.prediction.json"
        write_json(path, document)
        with path.open("rb") as file:
            os.fsync(file.fileno())

    def measured(self, topology: str, plan: str, operator: str, document: Mapping[str, Any]) -> None:
        """Keep what a kill took."""
        write_json(self.folder / f"{topology}--{plan}--{operator}.json", document)

    def ran(self, topology: str, plan: str, document: Mapping[str, Any]) -> None:
        """Keep what a run cost, beside those before it."""
        path = self.folder / f"{topology}--{plan}.json"
        write_json(path, [*(read(path) or []), document])

    def runs(self, topology: str, plan: str) -> list[Any]:
        """Return what the runs of a plan cost."""
        return read(self.folder / f"{topology}--{plan}.json") or []

    def all_cells(self, topologies: Iterable[str], plans: Iterable[str], operators: Mapping[str, Any]) -> Iterator[Any]:
        """Return the kills that were done, in the order of the table."""
        names = list(plans)
        for topology in topologies:
            for plan in names:
                for operator in operators[topology]:
                    if (found := self.cell(topology, plan, operator)) is not None:
                        yield found


def measured_topology(topology: Topology, measures: list[Any]) -> Topology:
    """Return a topology with what a run measured between two checkpoints, without failures between them.

    The rates of sources stay as declared: the experiment feeds them, at that pace, and a run that has just begun works
    off a backlog.
    """
    (_, first), (_, last) = measures
    operators = []
    for operator in topology.operators:
        one, other = first[f"{operator.id}[0]"], last[f"{operator.id}[0]"]
        rows, busy = other["rows_in"] - one["rows_in"], other["seconds"] - one["seconds"]
        values = {
            "selectivity": (other["rows_out"] - one["rows_out"]) / rows,
            "tuple_seconds": busy / rows,
            "tuple_bytes": (other["bytes_in"] - one["bytes_in"]) / rows,
            "state_bytes": float(other["state_bytes"]),
            "failure_rate": FAILURE_RATE,
        }
        operators.append(replace(operator, **values))
    return Topology(topology.name, operators)


def work_of(topology: Topology) -> dict[str, float]:
    """Return the seconds of work per second of input, by operator."""
    rates = rates_of(topology).input
    found: dict[str, float] = {}
    for v, partition in enumerate(topology.partitions()):
        operator = topology.operators[int(topology.operator_of[v])]
        found[str(partition.operator)] = found.get(str(partition.operator), 0.0) + float(rates[v]) * float(
            operator.tuple_seconds
        )
    return found


def calibration_document(topology: Topology, fixed: float, kills: list[Any], load: float) -> dict[str, Any]:
    """Return what a calibrating run leaves."""
    return {
        "topology": to_document(topology),
        "work": work_of(topology),
        "fixed": fixed,
        "kills": kills,
        "load": load,
    }


def calibrated_topology(document: Mapping[str, Any]) -> Topology:
    """Return the topology of a calibration."""
    return from_document(document["topology"])
