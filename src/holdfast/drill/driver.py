"""The driver of a drill, as a process of its own: it can be ended with `kill -9` and started again.

`python -m holdfast.drill.driver JOB` runs the drill's application on the cluster and emits every event through a pipe
as a line of JSON. It is started as a user's application is and reads files as they arrive (`front_door`), or takes
each batch from the drill when it is due (`driving`). It begins when a line on its standard input gives the moment of
the system's clock at which the first batch is due. Started again, it continues from the run's directory. A user's
application is loaded here again from the same argument, in the same working directory.

Batches are due by the clock, whatever the driver does: those it could not take while it was away, or busy, are taken
as soon as it can, and their latency counts from when they were due.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.drill.settings import DrillFeed, DrillSettings, DrillStrategy, read_settings
from holdfast.errors import HoldfastError
from holdfast.lab import lab_module


@dataclass(frozen=True, slots=True)
class DriverJob:
    """What a driver is to do; written as JSON by the drill."""

    settings: DrillSettings
    master: str
    directory: str
    """Of the run, a folder or a URL: logs, checkpoints, progress."""
    outputs: str
    """One folder of Parquet files for each output below it."""
    events: int
    """The file descriptor of the pipe to the drill."""
    nodes: int
    """Executors to begin with, where they come at once; the first driver waits for all of them."""
    admitted: str | None = None
    """A file with the hosts that may be used, where some stand by; they change while the drill runs."""
    secret_file: str | None = None
    """The secret of the nodes' agents."""
    warm: bool = True
    """Run a few batches first, apart from the drill, so that its first batches find everything started."""
    take_over: bool = False
    """Take the run over from a driver that is frozen."""
    input_folder: str | None = None
    """Where the files of every source arrive; a file there says when everything has."""
    faults_folder: str | None = None
    """Where the drill says which operators raise and hang."""
    brokers: str | None = None
    """The drill's Kafka broker, where a source reads a topic."""
    conf: dict[str, str] = field(default_factory=dict)
    """More settings of the run, `spark.holdfast.*`."""
    session: dict[str, str] = field(default_factory=dict)
    """More settings of the Spark session."""

    def write(self, path: Path) -> None:
        """Write it for the driver to read."""
        fields = {
            "settings": self.settings.document(),
            "master": self.master,
            "directory": self.directory,
            "outputs": self.outputs,
            "events": self.events,
            "nodes": self.nodes,
            "admitted": self.admitted,
            "secret_file": self.secret_file,
            "warm": self.warm,
            "take_over": self.take_over,
            "input_folder": self.input_folder,
            "faults_folder": self.faults_folder,
            "brokers": self.brokers,
            "conf": self.conf,
            "session": self.session,
        }
        path.write_text(json.dumps(fields))


def read_job(path: Path) -> DriverJob:
    """Read what `DriverJob.write` wrote."""
    given = json.loads(path.read_text())
    return DriverJob(
        read_settings(given["settings"]),
        given["master"],
        given["directory"],
        given["outputs"],
        given["events"],
        given["nodes"],
        given["admitted"],
        given["secret_file"],
        given["warm"],
        given["take_over"],
        given["input_folder"],
        given["faults_folder"],
        given["brokers"],
        given["conf"],
        given["session"],
    )


class EventPipe:
    """Sends events to the drill, each whole line at once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def emit(self, kind: str, at: float | None = None, **fields: Any) -> None:
        """Send one event; without a moment it is now."""
        line = json.dumps({"time": time.time() if at is None else at, "kind": kind, **_plain(fields)})
        data = line.encode() + b"\n"
        while data:
            data = data[os.write(self._descriptor, data) :]


def _plain(value: Any) -> Any:
    """Turn ids, tuples and numpy's numbers into what JSON knows."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(one) for one in value]
    return str(value)


def main(arguments: list[str]) -> int:
    """Run the driver; its status says whether the stream was processed to its end."""
    job = read_job(Path(arguments[0]))
    events = EventPipe(job.events)
    try:
        if job.settings.strategy is DrillStrategy.STRUCTURED_STREAMING:
            drive = lab_module("baselines.structured_drill", needed_by="strategy structured-streaming").drive
        elif job.settings.feed is DrillFeed.BATCHES:
            from holdfast.drill.driving import drive
        else:
            from holdfast.drill.front_door import drive
        drive(job, events, sys.stdin)
    except HoldfastError as error:
        events.emit("driver-failed", why=str(error))
        return error.status
    except Exception as error:
        events.emit("driver-failed", why=f"{type(error).__name__}: {error}")
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
