"""A clock that is set back: what was found lost before is asked for again."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.store.agent.snapshot_names import key_of
from holdfast.store.agent.spool import Spool, publish
from holdfast.store.agent.spool_files import SpoolFiles

NAME = "run-1/O1-0/c1.0-5.1"


class SetBack(SpoolFiles):
    """The clock, so many seconds behind that of the files."""

    seconds = 0.0

    def now(self) -> float:
        return time.time() - self.seconds


def test_a_lost_snapshot_is_asked_for_again_although_the_clock_was_set_back(tmp_path: Path) -> None:
    files = SetBack()
    spool = Spool(tmp_path, files=files)
    order = tmp_path / "orders" / f"{key_of(NAME)}.fetch"
    spool.fetch(NAME)
    order.unlink()
    publish(tmp_path, tmp_path / "answers" / f"{key_of(NAME)}.lost", b"too few fragments")
    spool.fetch(NAME)
    assert not order.exists(), "it has just been found lost"
    files.seconds = 86400
    spool.fetch(NAME)
    assert order.exists(), "its peers may be back long before the clock is"
    assert spool.lost(NAME) is None
