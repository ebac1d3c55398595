"""The feeding loop: batches are logged while those who can go on are not far behind, until the input ends.

Runs on the driver; pure apart from what it calls. The same loop runs on a cluster and under the simulator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from holdfast.ids import BatchId
from holdfast.runtime.coordinator.status import RunStatus, has_room

FEW_AHEAD = 3
"""Batches that are logged ahead of the live partitions where the last one took everything that was there."""


class Feeding(Protocol):
    """What brings batches into a run."""

    @property
    def reading(self) -> bool:
        """Whether more may come; raises what a source failed with."""
        ...

    @property
    def pending(self) -> bool:
        """Whether rows are there that are in no batch yet."""
        ...

    def log_batches(self) -> bool:
        """Log batches of what has come, not too many at once; say whether there was one."""
        ...


def ahead(most_ahead: int, *, took_all: bool) -> int:
    """Return how many batches may be logged ahead of the live partitions.

    Where the last one took everything that was there, few: rows that come meanwhile go into one larger batch, instead
    of waiting in a row of small ones. Where rows are left, as many as may be: the batches are as large as they get.
    """
    return min(most_ahead, FEW_AHEAD) if took_all else most_ahead


def log_batches(
    status: RunStatus, most_ahead: int, make_batch: Callable[[], BatchId | None], most_behind: int | None = None
) -> bool:
    """Make batches of what has come for as long as there is room; say whether there was one."""
    made = False
    while has_room(status, most_ahead, most_behind) and make_batch() is not None:
        made = True
    return made


def feed_until_end(
    feed: Feeding,
    advance: Callable[[], bool],
    *,
    rest: Callable[[], object],
    stopped: Callable[[], bool],
    turned: Callable[[bool], object],
) -> bool:
    """Log batches and process them until the input has ended, or a stop is requested; say whether the input has ended.

    `rest` processes everything that is logged, also where `advance` has nothing to do: partitions that wait for nodes,
    and while a sink is at work. Then all rows have been read, and an empty batch brings the watermarks on that they
    move: windows come out that end before them, as of the batch without data in Structured Streaming.
    `turned` is called after every turn, with whether `advance` had anything to do.
    """
    while not stopped():
        reading = feed.reading
        made = feed.log_batches()
        worked = advance()
        turned(worked)
        # Where too much waits for lost partitions, no batch is made: what has come must still go into one.
        if not reading and not made and not worked and not feed.pending:
            rest()
            if not feed.pending:
                return not stopped()
    return False
