"""Segments in simulated runs: who is an anchor, and how often each segment checkpoints. Drawn apart. Runs anywhere.

What other runs draw stays the same. Another driver may start with another plan: names decide with the driver's number.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.executed_plan import SegmentInterval
from holdfast.recovery.segments import ONE_SEGMENT, Segments, segments_of
from holdfast.recovery.states import PLACED_STATES, PartitionState
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime.program import Program
from holdfast_lab.simulation.recovery.checks import Violation


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
    refined: bool = False
    """Whether operators save at multiples of their segment's frequency."""
    holds: bool = False
    """Whether blocks of what is not deterministic wait at the boundaries of most plans' segments."""

    def segments(self, program: Program, driver: int) -> Segments:
        """Return the segments that a driver executes."""
        plan = f"{self.seed} {driver if self.changes else 0}"
        if self.changes and random.Random(f"{plan} one").random() < 0.2:
            return ONE_SEGMENT
        names = [str(operator.id) for operator in program.topology.operators]
        found = segments_of(
            program.topology, [one for one in names if random.Random(f"{one} {plan} anchor").random() < self.share]
        )
        if self.holds:
            found = replace(found, holds=random.Random(f"{plan} holds").random() < 0.8)
        return with_multiples(program, found, plan) if self.refined else found

    def intervals(self, segments: Segments, driver: int) -> tuple[SegmentInterval, ...]:
        """Return how often the segments checkpoint."""
        if not segments.many:
            return ()
        plan = f"{self.seed} {driver if self.changes else 0}"
        return tuple(
            SegmentInterval(name, random.Random(f"{name} {plan} interval").randint(1, self.longest))
            for name in segments.names
        )


def with_multiples(program: Program, segments: Segments, plan: str) -> Segments:
    """Let operators save at random multiples: mostly of those they feed, as planners give them."""
    draw = random.Random(f"{plan} multiples")
    nested, topology = draw.random() < 0.8, program.topology
    multiples: dict[OperatorId, int] = {}
    for number in reversed(topology.operator_order):
        name = OperatorId(topology.operators[number].id)
        fed = [OperatorId(one.id) for one in topology.operators if name in [feed.source for feed in one.inputs]]
        own = [multiples[one] for one in fed if segments.operators[one] == segments.operators[name]]
        below = math.lcm(*own) if nested else 1
        multiples[name] = below * draw.choice((1, 1, 2) if nested else (1, 2, 3))
    return replace(segments, multiples=multiples)


def crosses(seed: int) -> bool:
    """Whether features meet that no other seeds have together: in every second range of seeds, not in the first.

    Second copies and tentative outputs; multiples of a segment's frequency and sources in place, or bounds of what is
    kept for those that wait.
    """
    return seed // 20736 % 2 == 1


def is_refined(seed: int) -> bool:
    """Whether operators of a segment save at multiples of its frequency: in a third of the runs with segments."""
    return has_segments(seed) and (seed % 3 == 0 or (crosses(seed) and seed % 3 == 1))


def has_segments(seed: int) -> bool:
    """Whether a run has a random segment plan: a fifth of all do."""
    return seed // 36 % 5 == 3


def holds_blocks(seed: int) -> bool:
    """Whether blocks of what is not deterministic wait at the boundaries of segments: in a fifth of such runs.

    In about a third of those whose plans change.
    """
    return has_segments(seed) and (seed % 5 == 1 or (seed % 5 == 4 and seed // 180 % 2 == 1 and seed // 10 % 2 == 1))


def draw_segments(seed: int) -> SegmentScene:
    """Draw a plan."""
    draw = random.Random(f"{seed} segments")
    found = SegmentScene(seed, draw.choice((0.3, 0.6, 1.0)), draw.random() < 0.4, draw.choice((2, 4, 6)))
    found = replace(found, holds=holds_blocks(seed))
    if not is_refined(seed):
        return found
    draw = random.Random(f"{seed} refined")
    return replace(found, share=draw.choice((0.0, 0.2, 0.4)), longest=draw.choice((4, 8, 12)), refined=True)


def draw_calm(seed: int) -> float:
    """Draw what is left of all faults in a run with multiples: recoveries leave no time for intermediate snapshots."""
    return random.Random(f"{seed} calm").choice((0.05, 0.2, 0.6))


@dataclass(slots=True)
class AimedLosses:
    """Nodes that die soon after operators have saved between two checkpoints: partitions start from there."""

    seed: int
    _draw: random.Random = field(init=False)
    _wait: int = -1
    """Turns until one dies; below 0: none does."""
    _operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._draw = random.Random(f"{self.seed} aimed")

    def saw(self, operators: Iterable[str]) -> None:
        """Operators have saved."""
        if self._wait < 0 and self._draw.random() < 0.6:
            self._wait, self._operators = self._draw.randint(0, 3), tuple(operators)

    def strike(self, placement: Mapping[PartitionId, NodeId], there: Collection[NodeId]) -> NodeId | None:
        """Return the node that dies now: of an operator that has saved, or of another one; now and then two follow."""
        if self._wait < 0:
            return None
        self._wait -= 1
        near = [p for p in placement if p.operator in self._operators]
        chosen = near if near and self._draw.random() < 0.5 else [*placement]
        if self._wait >= 0 or not chosen or len(there) < 2:
            return None
        self._wait = self._draw.choice((-1, -1, 0, 1))
        node = placement[self._draw.choice(chosen)]
        return node if node in there else None


def served(state: ClusterState, complain: Callable[[Violation], None]) -> None:
    """See that whatever partitions start from, or stand at, their senders have what they ask for next.

    Partitions that started later than their checkpoints hold nothing from before: not where a consumer needs it.
    """
    if not state.segments.multiples or state.settings.strategy is RecoveryStrategy.SOURCE_REPLAY:
        return
    for p in state.in_state(PLACED_STATES):
        for consumer in state.graph.consumers(p):
            first, next_one = state.partitions[p].kept_from, state.partitions[consumer].frontier + 1
            if first > next_one and consumer not in state.dropped:
                what = f"{consumer} goes on from batch {next_one}, and {p} has only {first} and later"
                complain(Violation(what, (p, consumer)))


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
        feeds = state.graph.senders(p)
        differing = [s for s in feeds if s in nondeterministic or s.operator in state.held.nondeterministic]
        if any(state.may_have_seen(s, p, line[s]) for s in differing):
            nondeterministic.add(p)
    for p in rolled_back:
        if segments.of(p) not in hit and p not in nondeterministic:
            # What makes other rows takes its consumers back, and those take back senders in their own segments.
            if any(segments.of(one) == segments.of(p) for one in nondeterministic & set(rolled_back)):
                continue
            what = f"{p} rolls back, and of its segment {segments.of(p)} nothing is lost"
            complain(Violation(what, (p,)))
