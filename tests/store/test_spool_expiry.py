"""Spools that runs have left on a host go after a time; those in use, and what is no spool, stay."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from holdfast.store.agent.spool_expiry import SpoolState, expired_spools, sweep_spools

WEEK, NOW = 7 * 86400.0, 1e9


def spool(root: Path, run: str, host: str, beat_at: float) -> Path:
    path = root / run / host
    (path / "peer").mkdir(parents=True)
    (path / "peer" / "fragment").write_bytes(b"rows")
    for name in ("agent.lock", "heartbeat"):
        (path / name).touch()
    for one in (path / "heartbeat", path):
        os.utime(one, (beat_at, beat_at))
    return path


def test_a_spool_expires_after_its_last_heartbeat() -> None:
    own, old, young = Path("a/own"), Path("b/old"), Path("c/young")
    states = [SpoolState(own, 0.0), SpoolState(old, NOW - WEEK), SpoolState(young, NOW - WEEK + 1)]
    assert expired_spools(states, own, NOW, WEEK) == [old]


def test_old_spools_go_and_others_stay(tmp_path: Path) -> None:
    root = tmp_path / "holdfast-1000"
    own = spool(root, "0" * 16, "host", 0.0)
    old = spool(root, "1" * 16, "host", NOW - WEEK)
    young = spool(root, "2" * 16, "host", NOW - 60)
    used = spool(root, "3" * 16, "host", NOW - WEEK)
    strange = root / "notes"
    strange.mkdir()
    os.utime(strange, (0, 0))
    (root / ("4" * 16)).symlink_to(young.parent)
    with (used / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert sweep_spools(own, NOW, WEEK) == [old]
    assert not old.parent.exists(), "nothing of the run is left on this host"
    assert all(one.exists() for one in (own, young, used, strange, used / "peer" / "fragment"))
    assert sweep_spools(own, NOW, WEEK) == [used], "its agent has ended meanwhile"


def test_half_of_a_removal_is_ended_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "holdfast-1000"
    own = spool(root, "0" * 16, "host", NOW)
    half = spool(root, "1" * 16, "host.expired", NOW - WEEK)
    assert sweep_spools(own, NOW, WEEK) == [half]
    assert not half.parent.exists()


def test_a_spool_that_is_elsewhere_removes_nothing(tmp_path: Path) -> None:
    """The embedded cluster's are in a folder of their own, and a stranger's folder is not looked at."""
    own = tmp_path / "some" / "where" / "spool"
    own.mkdir(parents=True)
    other = spool(tmp_path / "some", "1" * 16, "host", 0.0)
    assert sweep_spools(own, NOW, WEEK) == []
    assert other.exists()
