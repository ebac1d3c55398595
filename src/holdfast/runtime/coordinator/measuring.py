"""What a run measures of itself, and who goes by it: plans of recoveries, of replicas, and the plan that is kept true.

Runs on the driver. Nothing here is needed for correctness: what is lost of it is measured again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import Any

from holdfast.errors import HoldfastError, one_line
from holdfast.ids import BatchId, NodeId, PartitionId
from holdfast.planning.profiles.run_profile import RunProfile, profiled
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import Effect
from holdfast.recovery.events import CostsMeasured, ReplicasPlanned
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.states import PartitionState
from holdfast.runtime.coordinator.adapting import RateFollower, ReplicaPlans
from holdfast.runtime.coordinator.event_log import executed_settings
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.plan_keeping import Finding, PlanKeeping
from holdfast.runtime.coordinator.profile_records import ProfileRecords
from holdfast.runtime.coordinator.profiling import LEAST_COST, Profiler
from holdfast.runtime.messages import CycleResult, Measures, SnapshotStored
from holdfast.runtime.program import Program
from holdfast.topology import Topology, to_document

COST_SECONDS = 1.0
"""How often measured costs are passed to the recovery machine."""


class Measuring:
    """See the module."""

    def __init__(
        self,
        program: Program,
        state: ClusterState,
        pace: CycleSettings,
        began: float,
        before: Mapping[str, Any],
        *,
        profiles: ProfileRecords | None,
        replica_plans: ReplicaPlans | None,
        keeping: PlanKeeping | None,
        settings: Mapping[str, Any] | None,
        clock: Callable[[], float],
        now: Callable[[], float],
        emit: Callable[..., object],
        log: Callable[[str], object],
    ) -> None:
        """`before` is what the driver before measured, as the progress has it; see Coordinator for the others."""
        self._program, self._state = program, state
        self._clock, self._now, self._emit, self._log = clock, now, emit, log
        self._bound_seconds = pace.bound_seconds
        self.measures: dict[PartitionId, Measures] = dict.fromkeys(program.partitions, Measures())
        """What every partition has taken in this run."""
        self.outbox_bytes: dict[NodeId, int] = {}
        self.known_costs = {p: float(before.get(str(p), {}).get("cost", LEAST_COST)) for p in program.partitions}
        """What partitions cost as the driver before measured it."""
        self.profiler = Profiler(
            program.partitions, began, costs=self.known_costs, before=None if profiles is None else profiles.before
        )
        """What planners need, measured over a sliding period."""
        self._rates = RateFollower(state, replica_plans, self.profiler.is_measured)
        self._profiles, self._settings, self._keeping = profiles, dict(settings or {}), keeping
        self._executed = state.plan.now
        """The plan in force, as far as its effects are done."""
        self._costs_at = self._lost_since = -math.inf
        """When costs were last passed on; since when partitions find no room (-inf: none waits)."""

    # -- what happens --------------------------------------------------------------------------------------------------

    def reported(self, result: CycleResult) -> None:
        """Count what partitions did: level with the log, or as fast as they could."""
        now, counted = self._clock(), set[PartitionId]()
        for partition, measures in result.measures:
            self.measures[partition] = self.measures[partition].plus(measures)
            one = self._state.partitions[partition]
            reached = max(one.frontier, result.frontiers.get(partition, one.frontier))
            batches = 0 if partition in counted else reached - one.frontier
            counted.add(partition)
            steady = one.state is PartitionState.RUNNING
            self.profiler.reported(now, partition, measures, batches, steady=steady)
            if self._keeping is not None:
                self._keeping.reported(now, partition, measures, batches, steady=steady)

    @property
    def kept_bytes(self) -> int:
        """What outboxes hold, on nodes that have partitions."""
        return sum(self.outbox_bytes.get(node, 0) for node in set(self._state.placement.values()))

    def marked(self, batch: BatchId) -> None:
        """A checkpoint is marked at a batch."""
        self.profiler.marked(self._clock(), batch)
        if self._keeping is not None:
            self._keeping.marked(self._clock(), batch)

    def saved(self, stored: SnapshotStored) -> None:
        """Count what a snapshot took."""
        self.profiler.took_snapshot(stored)
        if self._keeping is not None:
            self._keeping.saved(self._clock(), stored)

    def took_effect(self, effects: Iterable[Effect]) -> None:
        """Take what the recovery machine decided."""
        self.profiler.took_effect(self._clock(), effects)
        if self._keeping is not None:
            self._keeping.took_effect(self._clock(), effects)

    def plan_changed(self, plan: ExecutedPlan) -> None:
        """Another plan has taken effect."""
        if self._keeping is not None:
            self._keeping.changed(self._clock(), self._executed, plan)
        self._executed = plan
        self._settings |= executed_settings(plan)

    def checkpoint_moved(self) -> None:
        """Keep the profile current, and compare the plan with what is measured."""
        self.write_profile()
        if self._keeping is not None:
            self._emit_findings(self._keeping.look(self._clock(), self._now(), self._state))

    # -- who goes by it ------------------------------------------------------------------------------------------------

    def plan_found(self) -> ExecutedPlan | None:
        """Return the plan that was found beside the stream, where one was."""
        if self._keeping is None:
            return None
        plan, findings = self._keeping.taken(self._clock(), self._state)
        self._emit_findings(findings)
        return plan

    def replicas_planned(self) -> ReplicasPlanned | None:
        """Return another plan of replicas, where what is measured asks for one."""
        return self._rates.look(self._clock(), self._measured_topology)

    def costs_measured(self) -> CostsMeasured | None:
        """Return the costs that plans use, from time to time; None: not now.

        Where partitions have found no room for long, they are put in place all the same.

        A bound that no setting gives may delay a query, until nodes have had time to come, and never leave it down.
        """
        now, state = self._clock(), self._state
        if now - self._costs_at < COST_SECONDS:
            return None
        self._costs_at = now
        waiting = bool(state.nodes) and bool(state.lost)
        self._lost_since = -math.inf if not waiting else now if math.isinf(self._lost_since) else self._lost_since
        costs = self.profiler.costs(state.placement, state.nodes, state.settings.bound)
        if waiting and now - self._lost_since >= self._bound_seconds:
            left = [str(p) for p in state.lost]
            self._log(
                f"no node had room for {left[0]} and {len(left) - 1} more for {self._bound_seconds:g} s: "
                "they are restored above the bound"
            )
            self._emit("bound-lifted", partitions=left, seconds=now - self._lost_since)
            self._lost_since = now
            return CostsMeasured(dict.fromkeys(costs, LEAST_COST), replan=True)
        return CostsMeasured(costs)

    def _measured_topology(self) -> Topology:
        return profiled(self._program.topology, self.profile())[0]

    def _emit_findings(self, findings: Iterable[Finding]) -> None:
        for kind, fields, line in findings:
            self._emit(kind, **fields)
            if line is not None:
                self._log(line)

    def profile(self) -> RunProfile:
        """Return what was measured of this run, over a sliding period."""
        state = self._state
        return self.profiler.profile(self._clock(), self._now(), state.placement, state.nodes, self._settings)

    def write_profile(self, *, at_once: bool = False) -> None:
        """Keep the profile in the run's storage current; where that fails, a later checkpoint tries again."""
        now = self._clock()
        if self._profiles is None or not (at_once or self._profiles.due(now)):
            return
        try:
            self._profiles.write(now, to_document(*profiled(self._program.topology, self.profile())))
        except (OSError, HoldfastError) as error:
            self._log(f"the run's profile cannot be written: {one_line(str(error))}")

    def totals(self) -> dict[str, dict[str, Any]]:
        """Return what every partition has taken in this run, and costs, as plain values."""
        return {str(p): {**asdict(one), "cost": self.profiler.cost(p)} for p, one in self.measures.items()}

    def written(self) -> dict[str, dict[str, float]]:
        """Return what the next driver is to know, as plain values."""
        return {
            str(p): {"cpu_seconds": one.cpu_seconds, "rows_in": one.rows_in, "cost": self.profiler.cost(p)}
            for p, one in self.measures.items()
        }

    def close(self) -> None:
        """End plans that follow rates."""
        self._rates.close()
