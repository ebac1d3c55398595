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
    CUT_ONE_WAY = "network cut one way between the driver and a node"
    CUT_DRIVER = "driver cut off from nodes"
    CUT_AGENTS = "agents cut off from each other"
    CUT_HALVES = "nodes cut into halves"
    MACHINE_CRASHED = "machine crashed: files that were not synced are torn"
    DISK_FULL = "disk full for a while"
    READ_ERROR = "file could not be read"
    TASK_KILLED = "task killed between two calls to its files"
    AGENT_KILLED = "agent killed between two calls to its files"
    SAVE_FAILED = "save failed"
    SAVE_LATE = "save finished late"
    SAVE_REFUSED = "save refused: its epoch was over"
    FETCH_LATE = "snapshot came late"
    SNAPSHOT_LOST = "snapshot lost: too few fragments"
    SNAPSHOT_DAMAGED = "snapshot damaged"
    DURABLE_LOST = "durable snapshot damaged"
    FOLDER_AWAY = "durable folder not there for a while"
    FRAGMENTS_LOST = "fragments of a snapshot lost, up to n - m or more"
    CODE_CHANGED = "agent changed the code of its snapshots"
    STAGING_FAILED = "node could not stage rows"
    STAGED_MISSING = "staged rows missing"
    STATE_MISSING = "state files missing"
    PARTITION_MISSING = "all files of a partition missing"
    OUTBOX_MISSING = "outbox file missing"
    DRIVER_KILLED = "driver killed"
    DRIVER_REPLACED = "driver replaced while the old one goes on"
    DRIVER_PAUSED = "driver frozen inside a step while another one took over"
    STORAGE_FAILED = "storage failed, with or without effect"
    STORAGE_AWAY = "storage away, or full, for a while"
    STORAGE_READ_FAILED = "storage could not be read"
    LIST_SLOW = "list ran beside other calls"
    READER_CHANGED = "micro-batch came again with other contents"
    OUTPUTS_TAKEN = "outputs of another run in the way"
    SECOND_START = "second driver started while the first one lives"
    LAYOUT_CHANGED = "application restarted with another layout"
    OLD_DRIVER_WENT_ON = "old driver ran a cycle"
    REQUEST_REFUSED = "request for nodes refused"
    CONNECTION_CUT = "connection cut"
    CUT_IN_FRAME = "connection cut with a frame on its way"
    HALF_OPEN = "connection half-open: one side did not notice its end for long"
    LINK_DEAD = "connection dead: what was sent over it was lost, and neither side was told"
    FRAMES_CUT = "frames lost with their connection"
    FRAMES_LATE = "frames of an old connection late"
    FRAME_SLOW = "frame slow, and those behind it"
    FRAME_REPEATED = "frame repeated"
    DESIRED_LATE = "desired state reached one node long after others"
    PROCESS_RESTARTED = "operator process restarted"
    TWIN = "task restarted while its twin lived"
    WORK_LATE = "worker that stays slow"
    DRIVER_STOPPED = "driver stopped for a while; nobody took over"
    DRIVER_CUT_OFF = "driver cut off from nodes, storage and master for a while"
    FREEZE_SHORT = "frozen node thawed before it was declared silent, or as it was"
    GIVEN_UP = "layout changed without queries that are parked and removed"
    POISON = "operator failed from a batch on, for a while"
    SINK_BROKEN = "sink failed for a while"
    FILE_LOST = "file of a source not there for a while"
    FILE_CHANGED = "file of a source changed for a while"
    FILE_CHANGED_SILENTLY = "file of a source with other bytes, same size and time, for a while"
    FILE_TWICE = "file of a source written a second time"
    FILE_DELETED = "file of a source deleted, its needed ranges copied"
    TOPIC_AWAY = "brokers of a source away for a while"
    TOPIC_MOVED = "beginning of a topic moved on, its needed ranges copied"
    TOPIC_COMPACTED = "record of a topic compacted away, its range copied"
    TOPIC_ENDS_EARLY = "topic ended before what was logged, for a while"
    TOPIC_CHANGED = "topic with other records than were read, for a while"
    SINK_LATE = "sink returned late, or it was known late"
    SINK_CALLED_AFTER_THE_END = "sink called for a driver that was over"
    BROKERS_AWAY = "brokers of a sink away for a while"
    BROKER_ANSWER_LOST = "request to brokers lost, or its answer"
    RECORD_NOT_DELIVERED = "record not delivered, and its transaction aborted"
    TRANSACTION_LEFT_OPEN = "transaction left open, and ended by the next producer"
    TRANSACTION_TIMED_OUT = "transaction left open until the brokers aborted it"
    PRODUCER_FENCED = "producer fenced by another driver's"
    COMMIT_LATE = "commit reached the brokers after it was given up"
    ATTEMPT_LEFT_BEHIND = "attempt to write went on after it was given up"
    KILLED_AT_COMMIT = "driver killed around a sink's commit, before it could report it"
    COMMIT_REFUSED = "commit refused by a table: another one came between"
    TABLE_REWRITTEN = "table rewritten by OPTIMIZE, vacuumed then or not"
    RESUME_ASKED = "parked query resumed, its cause gone or not"
    TENTATIVE_CHOSEN = "tentative outputs chosen, or taken back, by a request"
    REPLICAS_PLANNED = "other partitions planned to have a replica"
    POISON_ROW = "operator failed on a row"
    NODE_LEAVES = "node announced that it would leave, and left"
    REPAIRED = "driver started with repaired operators"


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
    Fault.CUT_ONE_WAY: 0.006,
    Fault.CUT_DRIVER: 0.003,
    Fault.CUT_AGENTS: 0.006,
    Fault.CUT_HALVES: 0.003,
    Fault.DISK_FULL: 0.004,
    Fault.READ_ERROR: 0.003,
    Fault.TASK_KILLED: 0.0015,
    Fault.AGENT_KILLED: 0.004,
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
    Fault.STORAGE_AWAY: 0.0004,
    Fault.STORAGE_READ_FAILED: 0.001,
    Fault.READER_CHANGED: 0.02,
    Fault.LAYOUT_CHANGED: 0.05,
    Fault.OLD_DRIVER_WENT_ON: 0.5,
    Fault.REQUEST_REFUSED: 0.1,
}
"""The chance of each at every point where it can happen; a run scales them."""
TRANSPORT: dict[Fault, float] = {
    Fault.CONNECTION_CUT: 0.02,
    Fault.CUT_IN_FRAME: 0.01,
    Fault.HALF_OPEN: 0.3,
    Fault.FRAMES_CUT: 0.5,
    Fault.FRAMES_LATE: 0.3,
    Fault.FRAME_SLOW: 0.02,
    Fault.FRAME_REPEATED: 0.03,
    Fault.DESIRED_LATE: 0.02,
    Fault.PROCESS_RESTARTED: 0.01,
    Fault.TWIN: 0.006,
    Fault.WORK_LATE: 0.02,
    Fault.DRIVER_STOPPED: 0.006,
    Fault.DRIVER_CUT_OFF: 0.006,
    Fault.FREEZE_SHORT: 0.4,
}
"""The same, where workers stay."""


DEAD_LINKS: dict[Fault, float] = {Fault.LINK_DEAD: 0.03}
"""The same, where connections die without an end."""
COPIES: dict[Fault, float] = {Fault.NODE_LEAVES: 0.01}
"""The same, where partitions have second copies."""
SELDOM_WITH_COPIES = (
    Fault.DRIVER_KILLED,
    Fault.DRIVER_REPLACED,
    Fault.DRIVER_PAUSED,
    Fault.LAYOUT_CHANGED,
    Fault.FETCH_LATE,
    Fault.GROUP_KILLED,
)
"""What leaves copies no time to be built: there it is seldom."""


SELDOM_WITH_MOVES = (
    Fault.NODE_KILLED,
    Fault.NODE_FROZEN,
    Fault.DISK_FULL,
    Fault.READ_ERROR,
    Fault.CUT_ONE_WAY,
    Fault.CUT_HALVES,
    Fault.STATE_MISSING,
    Fault.PARTITION_MISSING,
    Fault.NODE_LEAVES,
)
"""What leaves moves for load no time: there it is seldom."""
SELDOM_WITH_BRANCHES = (
    *SELDOM_WITH_COPIES,
    *(Fault.NODE_KILLED, Fault.NODE_FROZEN, Fault.STATE_MISSING, Fault.OUTBOX_MISSING, Fault.PARTITION_MISSING),
    *(Fault.ARRIVAL_KILLED, Fault.CUT_HALVES, Fault.CUT_DRIVER, Fault.CUT_ONE_WAY, Fault.TWIN),
)
"""What leaves queries without any input, or an outage no time: where there are tentative outputs it is seldom."""


FRAGMENTS: dict[Fault, float] = {
    Fault.FOLDER_AWAY: 0.02,
    Fault.FRAGMENTS_LOST: 0.15,
    Fault.CODE_CHANGED: 0.2,
}
"""The same, where machines have agents."""


MOST = 1500
"""So many faults of one run are enough; most have about a hundred. Where a change of the layout must come to its end
while nodes fail, a run had fifteen thousand, and took as long as fifty others."""


@dataclass(slots=True)
class Mischief:
    """Decides, from the run's random numbers, whether a fault happens; counts those that did."""

    draw: random.Random
    rates: dict[Fault, float]
    active: bool = True
    """Once the storm is over, nothing goes wrong any more."""
    injected: Counter[Fault] = field(default_factory=Counter)
    struck: int = 0

    def strikes(self, fault: Fault) -> bool:
        """Say whether this fault happens here and now."""
        if not self.active or self.struck >= MOST or self.draw.random() >= self.rates[fault]:
            return False
        self.injected[fault] += 1
        self.struck += 1
        return True

    def would(self, fault: Fault) -> bool:
        """Say whether this fault is to be tried here; whoever does it counts it."""
        return self.active and self.struck < MOST and self.draw.random() < self.rates[fault]


def draw_mischief(draw: random.Random) -> Mischief:
    """Draw how a run goes wrong: some kinds not at all, others more than usual."""
    strength = draw.choice((0.5, 1.0, 1.0, 2.0))
    rates = {}
    for fault, usual in USUAL.items():
        factor = draw.choice((0.0, 0.5, 1.0, 1.0, 2.0))
        rates[fault] = min(0.9, usual * factor * strength)
    return Mischief(draw, rates)


def draw_transport(seed: int) -> dict[Fault, float]:
    """Draw how connections go wrong; of its own numbers, so that runs in cycles are what they were before these."""
    draw = random.Random(f"transport {seed}")
    strength = draw.choice((0.5, 1.0, 1.0, 2.0))
    return {
        fault: min(0.9, usual * draw.choice((0.0, 0.5, 1.0, 1.0, 2.0)) * strength) for fault, usual in TRANSPORT.items()
    }


def draw_leaving(seed: int, rates: dict[Fault, float]) -> dict[Fault, float]:
    """Draw how nodes leave in order, and let what leaves copies no time be seldom."""
    draw = random.Random(f"leaving {seed}")
    found = {fault: usual * draw.choice((0.0, 1.0, 2.0)) for fault, usual in COPIES.items()}
    return found | {fault: 0.3 * rates[fault] for fault in SELDOM_WITH_COPIES}


def calmer_for_branches(rates: dict[Fault, float]) -> dict[Fault, float]:
    """Let outages be seldom enough that queries are whole before each."""
    return {fault: 0.2 * rates[fault] for fault in SELDOM_WITH_BRANCHES if fault in rates}


def draw_fragment_faults(seed: int, main: Mischief) -> Mischief:
    """Draw how fragments and the durable folder go wrong; of its own numbers, and counted with the others."""
    draw = random.Random(f"fragments {seed}")
    rates = {fault: min(0.9, usual * draw.choice((0.0, 0.5, 1.0, 1.0, 2.0))) for fault, usual in FRAGMENTS.items()}
    return Mischief(draw, rates, injected=main.injected)
