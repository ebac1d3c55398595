"""What can go wrong in a simulated recovery, and how often it does in one run. Runs anywhere."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum


class Fault(StrEnum):
    """A kind of fault. The value is what people read."""

    NODE_KILLED = "node killed"
    GROUP_KILLED = "group of nodes killed at once"
    NODE_FROZEN = "node frozen"
    ZOMBIE_WROTE = "frozen node thawed and wrote in an old epoch"
    NODE_CAME_BACK = "frozen node came back under its name, with old files"
    NODE_SLOW = "node slow: out of time within a level"
    ARRIVAL_KILLED = "node killed as it arrived"
    BLOCK_DROPPED = "block dropped"
    BLOCK_DUPLICATED = "block delivered twice"
    BLOCKS_REORDERED = "blocks out of order"
    OLD_BLOCKS = "blocks of an earlier cycle delivered"
    REPORTS_LATE = "reports late"
    REPORT_LOST = "report lost"
    CYCLE_BROKEN = "cycle broken half-way"
    LEVEL_REPEATED = "level run twice"
    STRAGGLER = "task of a broken cycle ran late"
    WORKER_RECYCLED = "worker recycled"
    SAVE_FAILED = "save failed"
    SAVE_LATE = "save finished late"
    SAVE_REFUSED = "save refused: its epoch was over"
    FETCH_LATE = "snapshot came late"
    SNAPSHOT_LOST = "snapshot lost: too few fragments"
    SNAPSHOT_DAMAGED = "snapshot damaged"
    DURABLE_LOST = "durable snapshot damaged"
    STAGING_FAILED = "node could not stage rows"
    STAGED_MISSING = "staged rows missing"
    STATE_MISSING = "state files missing"
    PARTITION_MISSING = "all files of a partition missing"
    OUTBOX_MISSING = "outbox file missing"
    DRIVER_KILLED = "driver killed"
    DRIVER_REPLACED = "driver replaced while the old one goes on"
    DRIVER_PAUSED = "driver frozen inside a step while another one took over"
    STORAGE_FAILED = "storage failed, with or without effect"
    OLD_DRIVER_WENT_ON = "old driver ran a cycle"
    REQUEST_REFUSED = "request for nodes refused"


USUAL: dict[Fault, float] = {
    Fault.NODE_KILLED: 0.015,
    Fault.GROUP_KILLED: 0.010,
    Fault.NODE_FROZEN: 0.012,
    Fault.ZOMBIE_WROTE: 0.9,
    Fault.NODE_CAME_BACK: 0.5,
    Fault.NODE_SLOW: 0.05,
    Fault.ARRIVAL_KILLED: 0.08,
    Fault.BLOCK_DROPPED: 0.03,
    Fault.BLOCK_DUPLICATED: 0.05,
    Fault.BLOCKS_REORDERED: 0.2,
    Fault.OLD_BLOCKS: 0.15,
    Fault.REPORT_LOST: 0.08,
    Fault.REPORTS_LATE: 0.04,
    Fault.CYCLE_BROKEN: 0.015,
    Fault.LEVEL_REPEATED: 0.04,
    Fault.STRAGGLER: 0.3,
    Fault.WORKER_RECYCLED: 0.05,
    Fault.SAVE_FAILED: 0.04,
    Fault.SAVE_LATE: 0.12,
    Fault.FETCH_LATE: 0.4,
    Fault.SNAPSHOT_LOST: 0.3,
    Fault.SNAPSHOT_DAMAGED: 0.1,
    Fault.DURABLE_LOST: 0.3,
    Fault.STAGING_FAILED: 0.05,
    Fault.STAGED_MISSING: 0.05,
    Fault.STATE_MISSING: 0.004,
    Fault.PARTITION_MISSING: 0.003,
    Fault.OUTBOX_MISSING: 0.04,
    Fault.DRIVER_KILLED: 0.0025,
    Fault.DRIVER_REPLACED: 0.02,
    Fault.DRIVER_PAUSED: 0.002,
    Fault.STORAGE_FAILED: 0.002,
    Fault.OLD_DRIVER_WENT_ON: 0.5,
    Fault.REQUEST_REFUSED: 0.1,
}
"""The chance of each at every point where it can happen; a run scales them."""


@dataclass(slots=True)
class Mischief:
    """Decides, from the run's random numbers, whether a fault happens; counts those that did."""

    draw: random.Random
    rates: dict[Fault, float]
    active: bool = True
    """Once the storm is over, nothing goes wrong any more."""
    injected: Counter[Fault] = field(default_factory=Counter)

    def strikes(self, fault: Fault) -> bool:
        """Say whether this fault happens here and now."""
        if not self.active or self.draw.random() >= self.rates[fault]:
            return False
        self.injected[fault] += 1
        return True

    def would(self, fault: Fault) -> bool:
        """Say whether this fault is to be tried here; whoever does it counts it."""
        return self.active and self.draw.random() < self.rates[fault]


def draw_mischief(draw: random.Random) -> Mischief:
    """Draw how a run goes wrong: some kinds not at all, others more than usual."""
    strength = draw.choice((0.5, 1.0, 1.0, 2.0))
    rates = {}
    for fault, usual in USUAL.items():
        factor = draw.choice((0.0, 0.5, 1.0, 1.0, 2.0))
        rates[fault] = min(0.9, usual * factor * strength)
    return Mischief(draw, rates)
