"""What every node of a run needs beside the desired state. Made on the driver, used on nodes."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from holdfast.ids import NodeId
from holdfast.spark.settings import Settings
from holdfast.storage.storage import Storage


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every node of a run needs beside the desired state; the same for all jobs of a driver."""

    application: bytes
    """The application, without what only the driver needs."""
    start: str
    """Names this start of the driver: what nodes keep of one is apart from every other's."""
    storage: Storage
    """Where the run is: its batch log."""
    durable: Storage
    """Where durable snapshots are."""
    run: str
    """Names the run, over all its drivers: agents that outlive one are found by it."""
    settings: Settings
    stagers: bytes = b""
    """What nodes stage the rows of outputs with, by operator, pickled; empty: rows pass through the driver."""
    generation: int = 0
    """The layout of the run."""
    functions: bytes = b""
    """The sinks of outputs that are called on nodes, by operator, pickled; empty: there are none."""


def state_folder(start: str, node: NodeId) -> Path:
    """Return where a node keeps its partitions' files: on a disk that goes with the application."""
    places = os.environ.get("SPARK_EXECUTOR_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    return Path(places.split(",")[0]) / "holdfast" / start / node
