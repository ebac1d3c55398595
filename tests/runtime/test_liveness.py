"""A second start against a driver that is alive is refused; against one that is gone it is not."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from holdfast.errors import BadInput
from holdfast.runtime.coordinator import liveness
from holdfast.runtime.coordinator.liveness import DriverSigns, SignWriter, refuse_if_alive, this_driver
from holdfast.runtime.coordinator.progress import Progress
from holdfast.storage.memory import MemoryStorage


class Time:
    """Time that moves when somebody sleeps; then something may happen."""

    def __init__(self, then: object = None) -> None:
        self.now, self._then = 0.0, then

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if callable(self._then):
            self._then()


def refuse(storage: MemoryStorage, then: object = None) -> Time:
    time = Time(then)
    refuse_if_alive(storage, seconds=3.0, clock=time.clock, sleep=time.sleep)
    return time


def elsewhere() -> dict[str, object]:
    return {**this_driver(), "host": "elsewhere"}


def test_a_new_run_and_one_that_ended_are_free() -> None:
    storage = MemoryStorage()
    assert refuse(storage).now == 0
    Progress(storage, "app", driver=this_driver()).end()
    assert refuse(storage).now == 0


def test_a_driver_that_gives_signs_is_alive() -> None:
    storage, count = MemoryStorage(), iter(range(100))
    progress = Progress(storage, "app", driver=elsewhere())

    def sign() -> None:
        storage.create(f"alive/{progress.claim:010d}-{next(count):010d}", b"")

    sign()
    with pytest.raises(BadInput, match=rf"process {os.getpid()} on elsewhere.*--take-over"):
        refuse(storage, sign)


def test_one_that_gives_none_is_gone() -> None:
    storage = MemoryStorage()
    Progress(storage, "app", driver=elsewhere())
    storage.create("alive/0000000001-0000000000", b"")
    assert refuse(storage).now >= 9.0, "three signs are waited for"


def test_one_that_ends_meanwhile_is_not_waited_for() -> None:
    storage = MemoryStorage()
    progress = Progress(storage, "app", driver=elsewhere())
    assert refuse(storage, progress.end).now < 3.0


def test_another_driver_that_starts_meanwhile_is_alive() -> None:
    storage = MemoryStorage()
    Progress(storage, "app", driver=elsewhere())
    with pytest.raises(BadInput, match="another driver runs"):
        refuse(storage, lambda: Progress(storage, "app", driver=elsewhere()))


def test_a_process_of_this_machine_that_is_gone_is_seen_at_once() -> None:
    storage = MemoryStorage()
    ended = subprocess.Popen([sys.executable, "-c", ""])
    there = {**this_driver(), "pid": ended.pid, "started": liveness._started(ended.pid)}
    ended.wait()
    Progress(storage, "app", driver=there)
    assert refuse(storage).now == 0
    Progress(storage, "app", driver={**this_driver(), "started": -1})
    assert refuse(storage).now == 0, "another process has its number now"


def test_a_process_of_another_container_is_not_looked_for_here() -> None:
    storage = MemoryStorage()
    there = {**this_driver(), "processes": "pid:[1]", "pid": 2**22, "started": 1}
    Progress(storage, "app", driver=there)
    number = iter(range(100))
    with pytest.raises(BadInput, match="another driver runs this application"):
        refuse(storage, lambda: storage.create(f"alive/0000000001-{next(number):010d}", b""))


def test_signs_are_written_while_a_driver_runs_and_removed_at_its_end() -> None:
    storage = MemoryStorage()
    storage.create("alive/0000000001-0000000007", b"")
    signs = DriverSigns(storage, 2, seconds=0.01)
    seen: set[str] = set()
    while len(seen) < 3:
        seen.update(storage.list("alive/"))
    signs.stop()
    assert storage.list("alive/") == []


def test_a_driver_finds_the_signs_of_one_that_has_followed_it() -> None:
    storage = MemoryStorage()
    first = SignWriter(storage, Progress(storage, "app", driver=elsewhere()).claim)
    first.write()
    assert first.follower() is None
    storage.create("alive/0000000009-0000000000", b"")
    assert first.follower() is None, "a sign that the progress does not know ends nobody"
    second = SignWriter(storage, Progress(storage, "app", driver=elsewhere()).claim)
    second.begin()
    second.write()
    assert (first.follower(), second.follower()) == (2, None)
    storage.create(f"progress/{99:012d}", b"damaged")
    assert first.follower() is None, "what cannot be read now is read later"


def test_signs_say_that_a_driver_is_followed() -> None:
    storage = MemoryStorage()
    claim = Progress(storage, "app", driver=elsewhere()).claim
    signs = DriverSigns(storage, claim, seconds=0.01)
    other = SignWriter(storage, Progress(storage, "app", driver=elsewhere()).claim)
    deadline = time.monotonic() + 60
    while signs.follower is None and time.monotonic() < deadline:
        other.write()
        time.sleep(0.01)
    signs.stop()
    assert signs.follower == 2
