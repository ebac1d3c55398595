"""The plan that a run executes, and how it gives way to another while the run goes on. Pure.

A plan says which operators checkpoint together and how often, whose inputs are stored, and which partitions keep
backups. Another one may be *chosen* at any time; it *takes effect* at a checkpoint that is complete under both: every
partition has its checkpoint at one batch, nothing is being recovered, and no partition was past that batch when the
plan was chosen. From the choice on, senders keep what either of the two plans wants kept. So at that batch every edge
of the new plan is kept back to its consumer's checkpoint, and the recovery line holds on every edge whatever the
segments are. Both steps are logged before anything else is done: a driver that starts again goes on from there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.ids import BatchId, OperatorId, PartitionId, SegmentId
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.segments import ONE_SEGMENT, Segments

_NO_BATCH = BatchId(-1)


@dataclass(frozen=True, slots=True)
class SegmentInterval:
    """How often a segment takes a checkpoint; the earlier of both counts."""

    segment: SegmentId
    batches: int
    seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class ExecutedPlan:
    """What a run executes of a plan."""

    segments: Segments = ONE_SEGMENT
    backups: frozenset[PartitionId] = frozenset()
    intervals: tuple[SegmentInterval, ...] = ()
    """Of segments that have an interval of their own; others have that of the settings."""
    number: int = 0
    """How many plans were chosen before it, since the one of `origin`."""
    origin: str = ""
    """Names what the start asked for: a restart that asks for the same goes on with the last plan made from it."""
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What it promises, as plain values; nothing is decided by it."""

    def keeps(self, sender: PartitionId, consumer: PartitionId) -> bool:
        """Whether a sender keeps the blocks of an edge back to the consumer's checkpoint."""
        return sender in self.backups or self.segments.keeps(sender, consumer)

    def senders_across(self, graph: PartitionGraph) -> frozenset[PartitionId]:
        """Return the partitions that send to another segment: their snapshots hold what it will need."""
        return frozenset(p for p in graph.order if any(self.segments.crosses(p, c) for c in graph.consumers(p)))

    def is_same_as(self, other: ExecutedPlan) -> bool:
        """Whether both have a run do the same."""
        return (self.segments, self.backups, frozenset(self.intervals)) == (
            other.segments,
            other.backups,
            frozenset(other.intervals),
        )

    def written(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "number": self.number,
            "origin": self.origin,
            "segments": {str(operator): str(name) for operator, name in self.segments.operators.items()},
            "anchors": sorted(self.segments.anchors),
            "multiples": {str(operator): multiple for operator, multiple in self.segments.multiples.items()},
            "holds": self.segments.holds,
            "backups": sorted(map(str, self.backups)),
            "intervals": [
                [one.segment, one.batches, None if math.isinf(one.seconds) else one.seconds] for one in self.intervals
            ],
            "about": dict(self.about),
        }

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> ExecutedPlan:
        """Read what was written."""
        return cls(
            Segments(
                {OperatorId(operator): SegmentId(name) for operator, name in fields["segments"].items()},
                frozenset(map(OperatorId, fields["anchors"])),
                {OperatorId(operator): int(multiple) for operator, multiple in fields.get("multiples", {}).items()},
                bool(fields.get("holds", False)),
            ),
            frozenset(map(PartitionId.parse, fields["backups"])),
            tuple(
                SegmentInterval(SegmentId(name), int(batches), math.inf if seconds is None else float(seconds))
                for name, batches, seconds in fields["intervals"]
            ),
            int(fields["number"]),
            str(fields["origin"]),
            fields["about"],
        )

    def fits(self, graph: PartitionGraph) -> bool:
        """Whether it is a plan for these operators and partitions."""
        operators = {p.operator for p in graph.order}
        named = set(self.segments.operators)
        known = (not named or named == operators) and self.segments.multiples.keys() <= operators
        return known and self.backups <= set(graph.order)


@dataclass(slots=True)
class PlanChange:
    """The plan in force, and the one that was chosen to follow it."""

    now: ExecutedPlan
    next: ExecutedPlan | None = None
    after: BatchId = _NO_BATCH
    """The next one takes effect at a checkpoint of this batch or a later one."""

    def choose(self, plan: ExecutedPlan, frontiers: Iterable[BatchId]) -> bool:
        """Choose the plan that is to follow; say whether it is news. Of two, the one that was chosen later counts."""
        if plan.number <= max(self.now.number, -1 if self.next is None else self.next.number):
            return False
        self.next, self.after = plan, max(frontiers, default=_NO_BATCH)
        return True

    def may_take_effect(self, line: Mapping[PartitionId, BatchId]) -> bool:
        """Whether the checkpoint is complete under both plans: all partitions have theirs at one late enough batch."""
        return self.next is not None and len(set(line.values())) == 1 and min(line.values()) >= self.after

    def keeps(self, sender: PartitionId, consumer: PartitionId) -> bool:
        """Whether a sender keeps the blocks of an edge back to the consumer's checkpoint, by either plan."""
        return self.now.keeps(sender, consumer) or (self.next is not None and self.next.keeps(sender, consumer))

    def written(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {"now": self.now.written(), "next": None if self.next is None else self.next.written()}


def resumed_plan(
    given: ExecutedPlan, written: Mapping[str, Any] | None, graph: PartitionGraph
) -> tuple[ExecutedPlan, ExecutedPlan | None]:
    """Return the plan that a driver begins with, and the one that was chosen to follow it.

    `given` is what the start asks for. Where the driver before was asked for the same, its plans hold: they were made
    later, from what was measured.
    """
    if written is None:
        return given, None
    now = ExecutedPlan.read(written["now"])
    if now.origin != given.origin or not now.fits(graph):
        return given, None
    if now.number == 0:
        now = given  # nothing was measured meanwhile that is not in this one too
    later = None if written["next"] is None else ExecutedPlan.read(written["next"])
    return now, later if later is not None and later.fits(graph) else None
