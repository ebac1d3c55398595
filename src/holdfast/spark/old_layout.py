"""The application that a run had before: where its layout changes, it first processes what is logged."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping

import pyarrow as pa

from holdfast.application import Application
from holdfast.errors import BadInput
from holdfast.ids import OperatorId
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.runtime.io.sinks import FunctionSink, OutputKey, Sink
from holdfast.runtime.program import Program
from holdfast.spark.portable import first_line
from holdfast.storage.storage import Storage


def old_application(storage: Storage) -> Application:
    """Return the application of a run's present layout, as its last driver kept it."""
    last = last_driver(storage)
    kept = None if last is None or last["program"] is None else storage.read(last["program"])
    try:
        if kept is None:
            raise FileNotFoundError("it was not kept")
        found: Application = pickle.loads(kept)
        return found
    except Exception as error:
        raise BadInput(
            f"the application as it was cannot be loaded: {first_line(error)}",
            where=storage.url,
            remedy="start it as it was before, stop it, then change it: a stopped run needs the old one no more",
        ) from None


def old_sinks(
    old: Application, program: Program, sinks: Mapping[OperatorId, Sink], old_sink: Callable[[str], object]
) -> dict[str, object]:
    """Return the sinks of an application that was before: those of the same outputs now, else what is given."""
    now: dict[str, object] = {name: sinks[operator] for operator, name in program.output_names.items()}
    return {name: now.get(name) or old_sink(name) or FunctionSink(_drop) for name in old.output_names().values()}


def _drop(rows: pa.Table, key: OutputKey) -> None:
    """Take rows of an output that is no more, and whose sink nobody knows."""
