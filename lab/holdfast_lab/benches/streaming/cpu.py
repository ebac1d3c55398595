"""CPU seconds of everything a cluster and its driver run: a figure that other work on the machine does not change.

Reads /proc: processes of the nodes' sessions (workers, executors, Python, agents), this process and all it has started.
"""

from __future__ import annotations

from collections.abc import Collection

from holdfast_lab.benches.streaming.processes import processes


def cpu_seconds(sessions: Collection[int]) -> float:
    """Return the CPU seconds used so far by these sessions' processes and by this process with its descendants."""
    return sum(one.cpu_seconds for one in processes(sessions))
