"""Which executor this Python worker belongs to. Runs on nodes.

Spark tells Python tasks neither the executor's id nor its process. Cluster managers start executors with the id on the
command line, and the worker is below that process.
"""

from __future__ import annotations

import os
from itertools import pairwise
from pathlib import Path

_OPTION = b"--executor-id"
_ASSIGNED_LATER = "EXECID"
"""What Spark has in the id's place where a stateful set starts executors: each is alone in its pod then."""


def own_executor_process() -> int:
    """Return the executor's process: the nearest Java above this Python worker, else its parent."""
    process = parent = os.getppid()
    while process > 1:
        try:
            if Path(f"/proc/{process}/comm").read_text().strip() == "java":
                return process
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
    return parent


def own_executor_id() -> str | None:
    """Return the id under which Spark knows the executor of this process; None: it cannot be had here."""
    try:
        return executor_id_of(Path(f"/proc/{own_executor_process()}/cmdline").read_bytes())
    except OSError:
        return None


def executor_id_of(command: bytes) -> str | None:
    """Return the executor's id in a command line as /proc has it; None: it has none."""
    words = command.split(b"\0")
    found = [after for word, after in pairwise(words) if word == _OPTION]
    name = found[-1].decode(errors="replace") if found else ""
    return name if name and name != _ASSIGNED_LATER else None
