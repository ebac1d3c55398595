"""Parked queries of a run, seen and resumed from outside as `holdfast resume` does. Runs beside the cluster."""

from __future__ import annotations

from holdfast.runtime.coordinator.progress import last_driver
from holdfast.runtime.coordinator.requests import ResumeRequests
from holdfast.storage.storage import Storage


def parked_queries(storage: Storage) -> tuple[str, ...]:
    """Return the queries that the run's progress names as parked."""
    last = last_driver(storage)
    machine = {} if last is None else last["machine"] or {}
    return tuple(machine.get("parked", {}))


def resume_queries(storage: Storage) -> tuple[str, ...]:
    """Ask for every parked query to go on; return them."""
    names = parked_queries(storage)
    for name in names:
        ResumeRequests(storage).add(name)
    return names
