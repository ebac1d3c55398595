"""Removes spools that runs have left on a host: their agents ended long ago, and nothing will read them. In an agent.

Spools of a user's cluster are in one folder of the host, `holdfast-UID/RUN/HOST`, so that a run that starts again finds
its fragments. A run that never does leaves them behind. The agent that starts next on the host removes those whose
agent has ended, and whose heart has not beaten, for as long as is set. Durable checkpoints are elsewhere and stay.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_ROOT = re.compile(r"holdfast-\d+")
_RUN = re.compile(r"[0-9a-f]{16}")
_GONE = ".expired"


@dataclass(frozen=True, slots=True)
class SpoolState:
    """What is known of a spool."""

    path: Path
    beat_at: float
    """When its agent last showed that it lives."""


def expired_spools(spools: Iterable[SpoolState], own: Path, now: float, seconds: float) -> list[Path]:
    """Return the spools, other than one's own, whose agents have not shown themselves for so many seconds."""
    return [one.path for one in spools if one.path != own and now - one.beat_at >= seconds]


def sweep_spools(own: Path, now: float, seconds: float) -> list[Path]:
    """Remove the expired spools beside one's own; return them. One that is not among others removes nothing."""
    root = own.parent.parent
    if not _ROOT.fullmatch(root.name) or not _RUN.fullmatch(own.parent.name):
        return []
    runs = [run for run in root.iterdir() if _RUN.fullmatch(run.name) and run.is_dir() and not run.is_symlink()]
    spools = [_state(path) for run in runs for path in run.iterdir() if path.is_dir() and not path.is_symlink()]
    removed = [path for path in expired_spools(spools, own, now, seconds) if _remove(path)]
    for run in runs:
        with contextlib.suppress(OSError):
            run.rmdir()  # where nothing is left in it
    return removed


def _state(spool: Path) -> SpoolState:
    times = [spool.stat().st_mtime]
    for name in ("heartbeat", "started", "agent.json"):
        with contextlib.suppress(OSError):
            times.append((spool / name).stat().st_mtime)
    return SpoolState(spool, max(times))


def _remove(spool: Path) -> bool:
    """Remove a spool that no agent has; it is renamed first, so that one that starts now finds no half of it."""
    if not spool.name.endswith(_GONE):
        try:
            with (spool / "agent.lock").open("a") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                spool = spool.rename(spool.with_name(spool.name + _GONE))
        except OSError:
            return False  # an agent has it, or it is being removed
    shutil.rmtree(spool, ignore_errors=True)
    return True
