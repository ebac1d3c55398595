"""The processes of a cluster and its driver by what they are, with their CPU time and memory. Reads /proc."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
KINDS = (
    "driver's Python",
    "driver's JVM",
    "operator processes",
    "executors' JVMs",
    "Python workers",
    "agents",
    "masters and workers",
    "Kafka broker",
)
_DAEMONS = ("pyspark.daemon", "holdfast.spark.python_daemon")
"""What forks Python workers on an executor."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process."""

    pid: int
    kind: str
    cpu_seconds: float
    """Its own, and that of children that have ended."""
    resident_bytes: int
    """RSS: pages that it shares with others, such as mapped files and what a fork has not changed, count too."""


@dataclass(frozen=True, slots=True)
class _Seen:
    parent: int
    session: int
    ticks: int
    pages: int
    command: str


def processes(sessions: Collection[int], *, in_their_sessions: bool = False) -> list[Process]:
    """Return this process, all it has started, and those of the nodes' sessions.

    `in_their_sessions`: and those of the sessions that descendants have begun, whoever is their parent now.
    """
    seen: dict[int, _Seen] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        ticks = sum(int(field) for field in fields[11:15])
        seen[int(entry.name)] = _Seen(int(fields[1]), int(fields[3]), ticks, int(fields[21]), command)
    ours = os.getpid()
    if in_their_sessions:
        sessions = {
            *sessions,
            *(one.session for pid, one in seen.items() if one.session == pid and _under(pid, ours, seen)),
        }
    return [
        Process(pid, _kind(pid, ours, seen), one.ticks / _TICKS, one.pages * _PAGE)
        for pid, one in seen.items()
        if one.session in sessions or _under(pid, ours, seen)
    ]


def by_kind(found: Collection[Process]) -> dict[str, tuple[float, int]]:
    """Return CPU seconds and resident bytes of every kind that is there."""
    sums: dict[str, tuple[float, int]] = {}
    for kind in KINDS:
        mine = [one for one in found if one.kind == kind]
        if mine:
            sums[kind] = sum(one.cpu_seconds for one in mine), sum(one.resident_bytes for one in mine)
    return sums


def _kind(pid: int, ours: int, seen: dict[int, _Seen]) -> str:
    one = seen[pid]
    if pid == ours:
        return "driver's Python"
    if "CoarseGrainedExecutorBackend" in one.command:
        return "executors' JVMs"
    if "org.apache.spark.deploy." in one.command and "SparkSubmit" not in one.command:
        return "masters and workers"
    if "SparkSubmit" in one.command:
        return "driver's JVM"
    if " kafka.Kafka " in one.command:
        return "Kafka broker"
    if "store.agent" in one.command:
        return "agents"
    if _is_forked(one):
        # The daemon forks workers; a worker whose task stays forks the operator process.
        depth, at = 0, pid
        while at in seen and _is_forked(seen[at]):
            depth, at = depth + 1, seen[at].parent
        return "operator processes" if depth >= 3 else "Python workers"
    return "driver's Python" if _under(pid, ours, seen) else "agents"


def _is_forked(one: _Seen) -> bool:
    return any(daemon in one.command for daemon in _DAEMONS)


def _under(pid: int, ancestor: int, seen: dict[int, _Seen]) -> bool:
    while pid:
        if pid == ancestor:
            return True
        pid = seen[pid].parent if pid in seen else 0
    return False
