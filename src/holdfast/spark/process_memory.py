"""How much memory an operator process may take, and how much one takes. Runs on the driver and on nodes.

Cluster managers give an executor's Python processes what `spark.executor.memoryOverhead` says, by default a share of
`spark.executor.memory` (or, where it is set, `spark.executor.pyspark.memory`), and end the whole executor where its
processes take more. So the task that supervises
operator processes ends one before that. Memory counts that a process has for itself: pages of files that it maps, such
as partitions' state, are the system's to drop.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Mapping
from pathlib import Path

from holdfast.errors import BadInput

SHARE_OF_OVERHEAD = 0.8
"""Of the memory beside the JVM, for all operator processes of a node: its agent and Spark's own workers need some."""
SHARE_OF_MACHINE = 0.5
"""Of the machine's memory, or its container's, for all operator processes of a node, where nothing is set."""
_OVERHEAD, _MEMORY = "spark.executor.memoryOverhead", "spark.executor.memory"
_FACTOR, _LEAST = "spark.executor.memoryOverheadFactor", "spark.executor.minMemoryOverhead"
_KUBERNETES_FACTOR = "spark.kubernetes.memoryOverheadFactor"
"""Counts where the executors' own factor is not set; Spark sets it to 0.4 for Python applications in cluster mode."""
_UNITS = {"b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "p": 1 << 50}
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def megabytes_of(conf: Mapping[str, str], processes: int) -> int | None:
    """Return what Spark's settings leave to an operator process of a node with so many; None: they do not say."""
    given = _python_bytes(conf)
    return None if given is None else max(1, int(given * SHARE_OF_OVERHEAD / processes) >> 20)


def _python_bytes(conf: Mapping[str, str]) -> int | None:
    """Return the memory that an executor has beside its JVM, reckoned as Spark reckons its containers.

    Standalone clusters have no containers: there, only what is set counts.
    """
    for key in ("spark.executor.pyspark.memory", _OVERHEAD):
        if text := conf.get(key):
            return spark_bytes(text, key)
    master = conf.get("spark.master", "")
    on_kubernetes = master.startswith("k8s://")
    if not (on_kubernetes or master == "yarn" or conf.get(_FACTOR) or conf.get(_LEAST)):
        return None
    keys = [_FACTOR, _KUBERNETES_FACTOR] if on_kubernetes else [_FACTOR]
    key = next((one for one in keys if conf.get(one)), _FACTOR)
    share = _factor(conf.get(key) or "0.1", key) * spark_bytes(conf.get(_MEMORY) or "1g", _MEMORY)
    return max(int(share), spark_bytes(conf.get(_LEAST) or "384m", _LEAST))


def _factor(text: str, key: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:
        raise BadInput(f"{text!r} is not a factor", field=key, remedy="give a number above 0, as 0.4")
    return found


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
