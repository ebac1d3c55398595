"""An application and its sinks as bytes for the nodes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from holdfast.application import Application, steps
from holdfast.errors import BadInput
from holdfast.ids import OperatorId
from holdfast.runtime.io.sinks import Sink
from holdfast.spark.user_modules import pickled


def portable(app: Application) -> bytes:
    """Return the application as bytes for the nodes, without what only the driver needs: frames and sinks."""
    stripped = copy(app)
    stripped.steps = {
        # Files and topics are plain values, and nodes read them.
        name: replace(step, reader=None) if isinstance(step, steps.Source) and callable(step.reader) else step
        for name, step in app.steps.items()
    }
    stripped.sinks = {}
    try:
        return pickled(stripped)
    except Exception as error:
        raise BadInput(
            f"cannot be sent to the nodes: {first_line(error)}",
            where=f"application {app.name}",
            remedy="keep sessions, connections and open files out of operators' functions",
        ) from None


def portable_sinks(called: Mapping[OperatorId, Sink]) -> bytes:
    """Return the sinks that are called on nodes as bytes for these."""
    for name, sink in called.items():
        try:
            pickled(sink)
        except Exception as error:
            raise BadInput(
                f"its function cannot be sent to the nodes: {first_line(error)}",
                where=f"output {name}",
                field="foreach_batch",
                remedy='open connections inside the function, or call it on the driver: where="driver"',
            ) from None
    return pickled(called) if called else b""


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
