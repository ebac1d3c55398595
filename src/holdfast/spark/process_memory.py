"""How much memory an operator process may take, and how much one takes. Runs on the driver and on nodes.

Cluster managers give an executor's Python processes what `spark.executor.memoryOverhead` says (or, where it is set,
`spark.executor.pyspark.memory`), and end the whole executor where its processes take more. So the task that supervises
operator processes ends one before that. Memory counts that a process has for itself: pages of files that it maps, such
as partitions' state, are the system's to drop.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import BadInput

SHARE_OF_OVERHEAD = 0.8
"""Of the memory beside the JVM, for all operator processes of a node: its agent and Spark's own workers need some."""
SHARE_OF_MACHINE = 0.5
"""Of the machine's memory, or its container's, for all operator processes of a node, where nothing is set."""
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def megabytes_of(conf: Mapping[str, str], processes: int) -> int | None:
    """Return what Spark's settings leave to an operator process of a node with so many; None: they do not say."""
    for key in ("spark.executor.pyspark.memory", "spark.executor.memoryOverhead"):
        if text := conf.get(key):
            return max(1, int(spark_bytes(text, key) * SHARE_OF_OVERHEAD / processes) >> 20)
    return None


def spark_bytes(text: str, key: str) -> int:
    """Read a size as Spark writes it: `2g`, `512m`, `1024kb`; a number alone is of MiB."""
    word = text.strip().lower()
    if word[-1:] == "b" and word[-2:-1] in _UNITS:
        word = word[:-1]
    try:
        if word[-1:] in _UNITS:
            return int(word[:-1]) * _UNITS[word[-1]]
        return int(word) << 20
    except ValueError:
        raise BadInput(f"{text!r} is not a size", field=key, remedy="write it as Spark does: 2g, 512m") from None


def machine_share(processes: int) -> int:
    """Return the bytes that each of so many operator processes may take on this machine where nothing is set."""
    return int(machine_bytes() * SHARE_OF_MACHINE / processes)


def machine_bytes() -> int:
    """Return how much memory this machine has, or the container that this process runs in."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _CGROUPS:
        with contextlib.suppress(OSError, ValueError):
            most = min(most, int(path.read_text()))
    return most


def own_bytes(pid: int) -> int:
    """Return the memory that a process has for itself; 0 where nobody says."""
    try:
        fields = Path(f"/proc/{pid}/statm").read_text().split()
        return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def die_first() -> None:
    """Where the machine runs out of memory, let the kernel end this process before the executor."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
