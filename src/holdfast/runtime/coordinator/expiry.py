"""What expires: late rows, dead letters and outputs of a run, after a time that people set. Runs on the driver.

An object of a batch may go once the older durable checkpoint covers the batch: no recovery makes it again. How old a
batch is says an empty object that is created from time to time, `ages/BATCH-SECONDS`: at that time a batch was covered.
So the age survives restarts. An old driver may create or delete some of these: what it says is true all the same.

Nothing brings back what was deleted. So where the clock has leapt ahead since the last look, as a machine's does that
resumes with a wrong one, nothing is noted or deleted before it is time to look again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from holdfast.errors import one_line
from holdfast.ids import BatchId
from holdfast.runtime.coordinator.outputs import ASIDE_FOLDERS
from holdfast.runtime.io.parquet_sink import expire_outputs
from holdfast.runtime.io.sinks import Expires, Sink
from holdfast.storage.storage import Storage

_FOLDER = "ages/"
_MARKS = 20
"""So many marks fall into the time after which something expires: it goes that much too late at most."""
SHORTEST_SECONDS = 60.0
"""At least so long between two looks."""
MOST_AT_ONCE = 1000
"""So many objects of a kind are deleted at one checkpoint at most: the run must not wait long for it."""


@dataclass(frozen=True, slots=True)
class Age:
    """That a batch was covered by durable checkpoints at a time."""

    batch: BatchId
    at: float

    @property
    def name(self) -> str:
        """Its object."""
        return f"{_FOLDER}{self.batch:012d}-{int(self.at)}"

    @classmethod
    def read(cls, name: str) -> Age | None:
        """Read it from its name; None: something else wrote that object."""
        batch, _, at = name.removeprefix(_FOLDER).partition("-")
        if not (batch.isdecimal() and at.isdecimal()):
            return None
        return cls(BatchId(int(batch)), float(at))


def expired(ages: Iterable[Age], now: float, seconds: float) -> BatchId | None:
    """Return the last batch that was covered so many seconds ago; None: none was.

    >>> ages = [Age(BatchId(10), 100.0), Age(BatchId(20), 200.0)]
    >>> expired(ages, 250.0, 100.0), expired(ages, 350.0, 100.0), expired(ages, 150.0, 100.0)
    (10, 20, None)
    """
    return max((one.batch for one in ages if one.at <= now - seconds), default=None)


class Expiry:
    """Deletes what has expired, at checkpoints."""

    def __init__(
        self,
        storage: Storage,
        kept: Sequence[tuple[float, Callable[[BatchId, int], object]]],
        *,
        now: Callable[[], float],
        clock: Callable[[], float] | None = None,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """`kept`: how many seconds something stays, and what deletes it up to a batch, so many objects at most.

        `now` is the time that may be set, and `clock` one that nobody sets (None: `now` is believed).
        """
        self._storage, self._kept, self._now, self._log = storage, kept, now, log
        self._ages: list[Age] | None = None
        self._looked_at = -math.inf
        self._clock, self._ahead = clock, math.inf
        """The seconds from `clock` to `now`, at the last call."""

    def covered(self, through: BatchId) -> None:
        """Durable checkpoints cover a batch: note when, and delete what has expired. What fails is tried again."""
        now = self._now()
        if not self._kept or through < 0:
            return
        every = max(SHORTEST_SECONDS, min(seconds for seconds, _ in self._kept) / _MARKS)
        # A clock that was set back by more must not stop it.
        ahead, before = 0.0 if self._clock is None else now - self._clock(), self._ahead
        self._ahead = ahead
        if ahead - before > every:
            self._log("the clock has leapt ahead: what expires is deleted later")
            self._looked_at = now
        if abs(now - self._looked_at) < every:
            return
        self._looked_at = now
        try:
            self._look(through, now)
        except OSError as error:
            self._log(f"what has expired is deleted later: {one_line(str(error))}")

    def _look(self, through: BatchId, now: float) -> None:
        if self._ages is None:
            known = (Age.read(name) for name in self._storage.list(_FOLDER))
            self._ages = [one for one in known if one is not None]
        if not any(one.batch == through for one in self._ages):
            age = Age(through, now)
            self._storage.create(age.name, b"")
            self._ages.append(age)
        for seconds, expire in self._kept:
            last = expired(self._ages, now, seconds)
            if last is not None:
                expire(min(last, through), MOST_AT_ONCE)
        # The last one that everything has passed says as much as those before it.
        longest = expired(self._ages, now, max(seconds for seconds, _ in self._kept))
        over = [one for one in self._ages if longest is not None and one.batch < longest]
        self._storage.delete([one.name for one in over])
        self._ages = [one for one in self._ages if one not in over]


def expiry_of(
    storage: Storage,
    sinks: Iterable[Sink],
    *,
    aside: float | None,
    outputs: float | None,
    now: Callable[[], float] = time.time,
    clock: Callable[[], float] | None = None,
    log: Callable[[str], object] = lambda line: None,
) -> Expiry:
    """Return what deletes the late rows and dead letters of a run, and outputs of sinks that expire (Parquet).

    Each after so long. None: they stay. For the clocks see `Expiry`.
    """
    written = [sink for sink in sinks if isinstance(sink, Expires)]

    def expire_outputs_of_run(through: BatchId, most: int) -> None:
        for sink in written:
            sink.expire(through, most)

    def expire_aside(through: BatchId, most: int) -> None:
        for folder in ASIDE_FOLDERS:
            expire_outputs(storage.within(folder), through, most, folders=True)

    both = ((aside, expire_aside), (outputs, expire_outputs_of_run))
    return Expiry(storage, [(seconds, expire) for seconds, expire in both if seconds], now=now, clock=clock, log=log)
