"""Whether a run's driver is alive: signs of life in the run's storage. Runs on the driver.

Claims keep two drivers apart whatever happens; this only keeps people from ending a run by accident. A driver writes a
small object every few seconds. A second one that finds the run without an end looks for new ones, by its own clock: two
machines' clocks are never compared. On the same machine a process that is gone is seen at once.

A driver that another one has followed looks for that one's signs as it writes its own. It finds out by its next write
to the run's storage as well; where its sources are idle, its queries are parked or it waits for nodes, there is none
for good, and it would hold its executors, which the other one may wait for.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.errors import BadInput, HoldfastError
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.storage.storage import Storage

SIGNS_MISSED = 3
"""A driver that writes no sign for so many turns is taken for gone."""


def this_driver() -> dict[str, Any]:
    """Say who this process is, for the next driver."""
    return {
        "host": socket.gethostname(),
        "boot": _boot(),
        "processes": _processes(),
        "pid": os.getpid(),
        "started": _started(os.getpid()),
    }


def refuse_if_alive(
    storage: Storage,
    *,
    seconds: float,
    missed: float = SIGNS_MISSED,
    log: Callable[[str], object] = lambda line: None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], object] = time.sleep,
) -> None:
    """Refuse to go on where the run's driver shows that it is alive; wait for its next sign where that is unclear.

    `missed`: for so many turns. Who looks for fewer than the default does not know that it is gone.
    """
    last = last_driver(storage)
    if last is None or last["ended"] or _is_gone(last["driver"]):
        return
    prefix = _prefix(last["claim"])
    seen, deadline = storage.list(prefix), clock() + missed * seconds
    log(f"looking whether the driver before is alive, for {missed * seconds:.0f} s")
    while clock() < deadline:
        sleep(min(seconds / 2, 1.0))
        now = last_driver(storage)
        if set(storage.list(prefix)) - set(seen) or (now is not None and now["claim"] != last["claim"]):
            who = last["driver"]
            raise BadInput(
                f"another driver runs this application: process {who.get('pid', '?')} on {who.get('host', '?')}",
                where=storage.url,
                remedy="stop it first; or end it by starting with --take-over (take_over=True)",
            )
        if now is not None and now["ended"]:
            return


def driver_state(storage: Storage) -> str | None:
    """Say of a run's last driver that it has `ended`, is `gone` or `alive`; None where that is not known from here.

    A process of this machine is looked for; of one elsewhere only its end is known.
    """
    last = last_driver(storage)
    if last is None:
        return None
    if last["ended"]:
        return "ended"
    if _is_gone(last["driver"]):
        return "gone"
    return "alive" if _is_here(last["driver"]) else None


class SignWriter:
    """Writes a driver's signs of life, each under a name of its own; one is there at a time."""

    def __init__(self, storage: Storage, claim: int) -> None:
        self._storage, self._claim = storage, claim
        self._number = 0
        self._last: str | None = None

    def begin(self) -> None:
        """Remove the signs that earlier drivers left."""
        with suppress(OSError):
            self._storage.delete([one for one in self._storage.list("alive/") if one < _prefix(self._claim)])

    def write(self) -> None:
        """Write the next sign, then remove the one before; a store that is away for a moment does not end a run."""
        name = f"{_prefix(self._claim)}{self._number:010d}"
        with suppress(OSError):
            self._storage.create(name, b"")
            self._storage.delete([] if self._last is None else [self._last])
            self._last, self._number = name, self._number + 1

    def follower(self) -> int | None:
        """Return the claim of a driver that has followed this one and shows that it is alive; None: none does.

        A sign alone ends nobody: the progress must say so. What cannot be read now is read after the next sign.
        """
        with suppress(OSError, HoldfastError):
            if self._storage.list("alive/", after=f"{_prefix(self._claim)}~"):
                last = last_driver(self._storage)
                if last is not None and int(last["claim"]) > self._claim:
                    return int(last["claim"])
        return None

    def end(self) -> None:
        """Remove the last sign."""
        with suppress(OSError):
            self._storage.delete([] if self._last is None else [self._last])


class DriverSigns:
    """Writes signs of life, in a thread of its own."""

    def __init__(self, storage: Storage, claim: int, *, seconds: float) -> None:
        self._writer, self._seconds = SignWriter(storage, claim), seconds
        self.follower: int | None = None
        """The claim of a driver that has followed this one; None: none has, as far as signs say."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, name="holdfast-signs", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write no more."""
        self._stop.set()
        self._thread.join(5.0)

    def _main(self) -> None:
        self._writer.begin()
        while not self._stop.is_set():
            self._writer.write()
            self.follower = self.follower or self._writer.follower()
            self._stop.wait(self._seconds)
        self._writer.end()


def _prefix(claim: int) -> str:
    return f"alive/{claim:010d}-"


def _is_gone(driver: Mapping[str, Any]) -> bool:
    """Whether a process of this machine does not exist any more; of another machine that is not known here."""
    if not _is_here(driver):
        return False
    started = _started(int(driver["pid"]))
    return started is None or started != driver.get("started")


def _is_here(driver: Mapping[str, Any]) -> bool:
    """Whether a driver is, or was, a process that this one would see."""
    here = {"host": socket.gethostname(), "boot": _boot(), "processes": _processes()}
    return None not in here.values() and all(driver.get(name) == value for name, value in here.items())


def _boot() -> str | None:
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return None


def _processes() -> str | None:
    """Name the processes that this one sees: a container may have the host's name, and numbers of its own."""
    with suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return None


def _started(pid: int) -> int | None:
    """Return when a process began, in the kernel's ticks; None: there is none, or it has ended."""
    with suppress(OSError, ValueError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else int(fields[19])
    return None
