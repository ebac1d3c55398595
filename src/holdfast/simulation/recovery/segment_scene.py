"""Segments in simulated runs: who is an anchor, and how often each segment checkpoints. Drawn apart. Runs anywhere.

What other runs draw stays the same. Another driver may start with another plan: names decide with the driver's number.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.ids import PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.executed_plan import SegmentInterval
from holdfast.recovery.segments import ONE_SEGMENT, Segments, segments_of
from holdfast.recovery.states import PartitionState
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime.program import Program
from holdfast.simulation.recovery.checks import Violation


@dataclass(frozen=True, slots=True)
class SegmentScene:
    """Random segment plans."""

    seed: int
    share: float
    """Of the operators that are anchors."""
    changes: bool
    """Whether every driver starts with a plan of its own."""
    longest: int
    """Batches between the checkpoints of a segment, at most."""

    def segments(self, program: Program, driver: int) -> Segments:
        """Return the segments that a driver executes."""
        plan = f"{self.seed} {driver if self.changes else 0}"
        if self.changes and random.Random(f"{plan} one").random() < 0.2:
            return ONE_SEGMENT
        names = [str(operator.id) for operator in program.topology.operators]
        return segments_of(
            program.topology, [one for one in names if random.Random(f"{one} {plan} anchor").random() < self.share]
        )

    def intervals(self, segments: Segments, driver: int) -> tuple[SegmentInterval, ...]:
        """Return how often the segments checkpoint."""
        if not segments.many:
            return ()
        plan = f"{self.seed} {driver if self.changes else 0}"
        return tuple(
            SegmentInterval(name, random.Random(f"{name} {plan} interval").randint(1, self.longest))
            for name in segments.names
        )


def has_segments(seed: int) -> bool:
    """Whether a run has a random segment plan: a fifth of all do."""
    return seed // 36 % 5 == 3


def draw_segments(seed: int) -> SegmentScene:
    """Draw a plan."""
    draw = random.Random(f"{seed} segments")
    return SegmentScene(seed, draw.choice((0.3, 0.6, 1.0)), draw.random() < 0.4, draw.choice((2, 4, 6)))


def rolled_back_alone(
    state: ClusterState, rolled_back: tuple[PartitionId, ...], complain: Callable[[Violation], None]
) -> None:
    """See that what rolls back is in a segment of which something is lost; else what it sent was not kept.

    Not where everything starts again from a durable checkpoint, nor below what may make other rows.
    """
    segments, line = state.segments, state.checkpoints.line
    if (
        not segments.many
        or state.settings.strategy is RecoveryStrategy.SOURCE_REPLAY
        or line == state.checkpoints.durable_line
    ):
        return
    missing = state.in_state([PartitionState.LOST, PartitionState.RESTORING])
    hit = {segments.of(p) for p in missing if p not in rolled_back}
    nondeterministic: set[PartitionId] = set()
    for p in state.graph.order:
        if any(s in nondeterministic or not state.graph.deterministic(s) for s in state.graph.senders(p)):
            nondeterministic.add(p)
    for p in rolled_back:
        if segments.of(p) not in hit and p not in nondeterministic:
            # What makes other rows takes its consumers back, and those take back senders in their own segments.
            if any(segments.of(one) == segments.of(p) for one in nondeterministic & set(rolled_back)):
                continue
            what = f"{p} rolls back, and of its segment {segments.of(p)} nothing is lost"
            complain(Violation(what, (p,)))
