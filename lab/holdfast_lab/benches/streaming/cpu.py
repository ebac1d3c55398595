"""CPU seconds of everything a cluster and its driver run: a figure that other work on the machine does not change.

Reads /proc: processes of the nodes' sessions (workers, executors, Python, agents), this process and all it has started.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(sessions: Collection[int]) -> float:
    """Return the CPU seconds used so far by these sessions' processes and by this process with its descendants."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    of_session: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        pid = int(entry.name)
        parents[pid], of_session[pid] = int(fields[1]), int(fields[3])
        used[pid] = sum(int(field) for field in fields[11:15])  # its own, and that of children that have ended
    ours = os.getpid()
    return (
        sum(ticks for pid, ticks in used.items() if of_session[pid] in sessions or _under(pid, ours, parents)) / _TICKS
    )


def _under(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid:
        if pid == ancestor:
            return True
        pid = parents.get(pid, 0)
    return False
