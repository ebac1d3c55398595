"""Plans that change while a simulated run goes on: other segments, intervals and backups. Drawn apart. Runs anywhere.

What other runs draw stays the same. Plans are chosen at any moment of a storm, in recoveries too, and now and then
several before one takes effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.executed_plan import ExecutedPlan, SegmentInterval
from holdfast.recovery.segments import ONE_SEGMENT, segments_of
from holdfast.recovery.states import AT_WORK_STATES
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.program import Program
from holdfast_lab.simulation.recovery.scene import has_branches
from holdfast_lab.simulation.recovery.segment_scene import has_segments, holds_blocks, is_refined, with_multiples


def changes_plans(seed: int) -> bool:
    """Whether plans change while a run goes on: in every second range of those with segments."""
    return has_segments(seed) and seed // 180 % 2 == 1


@dataclass(slots=True)
class PlanScene:
    """Random plans, one after the other."""

    seed: int
    complain: Callable[[str], None]
    chosen: int = 0
    changed: int = 0
    last: tuple[int, str, int] = (0, "", 0)
    """The last plan that a driver has chosen and logged: its layout, what its start asked for, and its number."""
    _draw: random.Random = field(init=False)
    _rate: float = field(init=False)

    def __post_init__(self) -> None:
        self._draw = random.Random(f"{self.seed} plans")
        self._rate = self._draw.choice((0.05, 0.15, 0.3)) if changes_plans(self.seed) else 0.0

    def strikes(self) -> bool:
        """Whether another plan is chosen now."""
        return self._rate > 0 and self._draw.random() < self._rate

    def choose(self, coordinator: Coordinator, program: Program) -> None:
        """Have another plan executed."""
        self.chosen += coordinator.choose_plan(self._plan(program))

    def _plan(self, program: Program) -> ExecutedPlan:
        draw, topology = self._draw, program.topology
        share = draw.choice((0.0, 0.3, 0.6, 1.0))
        anchors = [str(operator.id) for operator in topology.operators if draw.random() < share]
        segments = segments_of(topology, anchors)
        if is_refined(self.seed):
            segments = with_multiples(program, segments, f"{self.seed} {self.chosen} chosen")
        elif not segments.many:
            segments = ONE_SEGMENT
        if holds_blocks(self.seed) and not has_branches(self.seed) and segments.many:
            segments = replace(segments, holds=draw.random() < 0.7)
        kept = draw.choice((0.0, 0.0, 0.3))
        return ExecutedPlan(
            segments,
            frozenset(p for p in program.partitions if draw.random() < kept),
            tuple(SegmentInterval(name, draw.randint(1, 4)) for name in segments.names),
        )

    def took_effect(self, state: ClusterState, number: int) -> None:
        """See that a plan takes effect where everything is kept that it wants kept, and that its segments hold."""
        self.changed += 1
        line, plan = state.checkpoints.line, state.plan.now
        if plan.number != number or state.segments != plan.segments or state.checkpoints.segments != plan.segments:
            self.complain(f"plan {number} takes effect, and {plan.number} is executed")
        if state.recovering or len(set(line.values())) != 1:
            self.complain(f"plan {number} takes effect, and no checkpoint is complete under it and the one before")
        for p in state.graph.order:
            mine = state.partitions[p]
            if mine.state not in AT_WORK_STATES:
                continue
            for consumer in state.graph.consumers(p):
                if plan.keeps(p, consumer) and mine.kept_from > line[consumer] + 1:
                    self.complain(
                        f"plan {number} takes effect at batch {line[consumer]}, and {p} has dropped what it sent to "
                        f"{consumer} before batch {mine.kept_from}"
                    )

    def awaited(self, state: ClusterState, generation: int, number: int) -> None:
        """A plan was chosen, and that is logged."""
        self.last = generation, state.plan.now.origin, number

    def same_after_start(self, written: Mapping[str, Any] | None, state: ClusterState, generation: int) -> None:
        """See that a driver that was asked for the same goes on with the plans of the one before."""
        if written is None or written["now"]["origin"] != state.plan.now.origin:
            return
        known = max(state.plan.now.number, 0 if state.plan.next is None else state.plan.next.number)
        if self.last[:2] == (generation, state.plan.now.origin) and known < self.last[2]:
            self.complain(f"plan {self.last[2]} was chosen and logged, and the next driver knows {known} at most")
        following = None if written["next"] is None else written["next"]["number"]
        found = None if state.plan.next is None else state.plan.next.number
        if written["now"]["number"] != state.plan.now.number or following != found:
            self.complain(
                f"plan {written['now']['number']} was executed and {following} chosen, and with the next driver "
                f"{state.plan.now.number} and {found} are"
            )
