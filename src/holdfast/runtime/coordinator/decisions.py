"""What the recovery machine decides, carried out: it is on durable storage before any of it is done. On the driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.errors import CheckFailed
from holdfast.ids import PartitionId
from holdfast.recovery.checkpoints import snapshot_name
from holdfast.recovery.effects import (
    BranchChanged,
    Changed,
    CopyDropped,
    CopyPlaced,
    Corrected,
    Effect,
    Fence,
    Forget,
    GlobalCheckpoint,
    Keep,
    KeptNoMore,
    LeaveOut,
    NodesEvacuated,
    Parked,
    Place,
    PlanAwaited,
    PlanTookEffect,
    RequestNodes,
    Resumed,
    RollBack,
    WentTentative,
)
from holdfast.recovery.events import Event, PartitionsReported, QueriesResumed, TentativeChosen, Timer
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.machine import RecoveryMachine
from holdfast.runtime.backend import Backend
from holdfast.runtime.coordinator.event_log import effect_fields, effect_line
from holdfast.runtime.coordinator.expiry import Expiry
from holdfast.runtime.coordinator.measuring import Measuring
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.coordinator.reading import SourceReads
from holdfast.runtime.fetches import Fetched, Fetching
from holdfast.runtime.io.batch_log import BatchLog

WRITTEN_FIRST: tuple[type[Effect], ...] = (
    Fence,
    Place,
    GlobalCheckpoint,
    Keep,
    Parked,
    LeaveOut,
    WentTentative,
    Corrected,
    PlanAwaited,
    PlanTookEffect,
    KeptNoMore,
)
"""Effects that are in the progress before they are done."""


class Decisions:
    """See the module."""

    def __init__(
        self,
        machine: RecoveryMachine,
        progress: Progress,
        backend: Backend,
        batch_log: BatchLog,
        reads: SourceReads,
        measuring: Measuring,
        *,
        expiry: Expiry | None,
        measure_costs: bool,
        execute: Callable[[ExecutedPlan], None],
        emit: Callable[..., object],
        log: Callable[[str], object],
    ) -> None:
        """`measure_costs`: whether plans use measured costs; `execute` is called where another plan takes effect."""
        self._machine, self._state, self._progress = machine, machine.state, progress
        self._backend, self._batch_log, self._reads, self._measuring = backend, batch_log, reads, measuring
        self._expiry, self._measure_costs, self._execute = expiry, measure_costs, execute
        self._emit, self._log = emit, log
        self.rollbacks = 0
        """How often partitions rolled back, or were lost, after the start."""
        self.held_changed = False
        """Whether queries were parked or resumed, or held blocks may cross, since the desired state was handed out."""
        self.forget: list[str] = []
        """Snapshots that nodes are to delete: the progress that is written does not hold them any more."""
        self._dropped: list[str] = []
        """Those that the next progress will not hold."""
        self.fetched: dict[PartitionId, Fetched] = {}
        """Where the state of partitions that are being restored came from, as their nodes say."""
        self.fetching: dict[PartitionId, Fetching] = {}
        """How far the restore of each partition was when that was last said."""

    def handle(self, event: Event) -> None:
        """Give an event to the recovery machine, write down what it decided, then do it."""
        if isinstance(event, PartitionsReported | Timer):
            if self._measure_costs and (costs := self._measuring.costs_measured()) is not None:
                if costs.replan:
                    self.handle(costs)
                else:
                    self._machine.handle(costs)
            if (change := self._measuring.replicas_planned()) is not None:
                self.handle(change)
        try:
            effects = self._machine.handle(event)
        except CheckFailed:
            self.check_claim()  # what is gone may be gone because another driver has the run
            raise
        self._measuring.took_effect(effects)
        writes = isinstance(event, QueriesResumed | TentativeChosen) or any(
            isinstance(one, WRITTEN_FIRST) for one in effects
        )
        if writes:
            self.write()
        for effect in effects:
            self._do(effect)
        if writes:
            self.forget += self._dropped
            self._dropped.clear()

    def _do(self, effect: Effect) -> None:
        fetched = self.fetched.pop(effect.partition, None) if isinstance(effect, Changed) else None
        for kind, fields in effect_fields(self._state, effect, fetched):
            self._emit(kind, **fields)
        if isinstance(effect, Changed):
            self.fetching.pop(effect.partition, None)
        if fetched is not None:
            self._measuring.profiler.fetched(fetched)
        if (line := effect_line(effect)) is not None:
            self._log(line)
        match effect:
            case RequestNodes(count):
                if (problem := self._backend.request_nodes(count)) is not None:
                    self._log(f"{count} nodes were requested and cannot be had: {problem}")
            case RollBack():
                self.rollbacks += 1
            case Parked() | Resumed() | LeaveOut() | CopyPlaced() | CopyDropped() | BranchChanged() | KeptNoMore():
                self.held_changed = True
            case PlanTookEffect(plan):
                self._measuring.plan_changed(plan)
                self._execute(plan)
            case NodesEvacuated(nodes):
                self._backend.release_nodes(nodes)
            case GlobalCheckpoint():
                self.held_changed = self.held_changed or bool(self._state.held.edges)
                self._batch_log.trim(effect.inputs_from)
                self._reads.trim(effect.inputs_from)
                if self._expiry is not None:
                    self._expiry.covered(effect.inputs_from)
                self._measuring.checkpoint_moved()
                if effect.without:
                    self._emit_kept(effect.without)
                self._emit("measures", partitions=self._measuring.totals())
            case Forget():
                stored = [(p, one) for p, one in effect.snapshots if one.contents is None]
                self._dropped += [snapshot_name(self._progress.run, p, one) for p, one in stored]

    def _emit_kept(self, waiting: Sequence[PartitionId]) -> None:
        """Say what is kept for partitions that wait, while others checkpoint and trim without them."""
        self._emit(
            "kept-for-waiting",
            partitions=[str(p) for p in waiting],
            first_batch=self._state.kept_for(waiting),
            outbox_bytes=self._measuring.kept_bytes,
            logged_after=self._state.inputs_from,
        )

    def check_claim(self) -> None:
        """Refuse to go on where another driver has taken a claim: what is refused or gone may be so because of it."""
        self._progress.check()

    def write(self) -> None:
        """Write what the machine knows down, for a driver that starts again."""
        self._progress.write(self._state.epoch, self._state.written(), self._measuring.written())
