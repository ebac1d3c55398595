"""Deliberate bugs of parking and resuming. The simulator must find each; see bugs.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import Changed
from holdfast.recovery.holding_back import HoldingBack
from holdfast.recovery.states import Cause, PartitionState
from holdfast.runtime.blocks import SINK
from holdfast.runtime.coordinator import resumed_state as resumed
from holdfast.runtime.coordinator.outputs import Outputs, Published
from holdfast.runtime.coordinator.parking import Parking
from holdfast.runtime.coordinator.requests import ResumeRequests
from holdfast.runtime.coordinator.status import RunStatus
from simulation.bugs import Bug, Patch


def park_loses_a_batch(patch: Patch) -> None:
    """What comes for a sink that has just failed counts as out."""
    right = Outputs.publish

    def publish(self: Outputs, blocks: Any, before: Any, *rest: Any) -> Published:
        done = right(self, blocks, before, *rest)
        for p in rest[-1]:
            heads = [one.header for one in blocks if one.header.sender == p]
            mine = [one.batch for one in heads if one.receiver.operator == SINK]
            if mine:
                done.reached[p] = max([*mine, before[p]])
        return done

    patch.setattr(Outputs, "publish", publish)


def published_out_of_order_after_resume(patch: Patch) -> None:
    """A query that was resumed goes on with whatever comes first."""
    resumed: set[PartitionId] = set()
    right_resumed, right = HoldingBack.resume, Outputs.publish

    def queries_resumed(self: HoldingBack, event: Any) -> None:
        resumed.update(event.queries)
        right_resumed(self, event)

    def publish(self: Outputs, blocks: Any, before: Any, *rest: Any) -> Published:
        mine = [one for one in blocks if one.header.receiver.operator == SINK and one.header.sender in resumed]
        last = {one.header.sender: one.header.batch for one in mine}
        resumed.difference_update(last)
        return right(self, blocks, {**before, **{p: BatchId(batch - 1) for p, batch in last.items()}}, *rest)

    patch.setattr(HoldingBack, "resume", queries_resumed)
    patch.setattr(Outputs, "publish", publish)


def resume_forgotten_over_a_restart(patch: Patch) -> None:
    """A driver that starts takes the requests that are there for taken."""
    right = Parking.__init__

    def init(self: Parking, state: ClusterState, *rest: Any, requests: ResumeRequests | None, **named: Any) -> None:
        if requests is not None:
            state.requests = max([state.requests, *(number for number, _ in requests.after(-1))])
        right(self, state, *rest, requests=requests, **named)

    patch.setattr(Parking, "__init__", init)


def parked_forgotten_over_a_restart(patch: Patch) -> None:
    """A driver that starts lets everything go on."""
    right = resumed.ClusterState

    def known(*given: Any, **named: Any) -> ClusterState:
        return right(*given, **{**named, "parked": {}})

    patch.setattr(resumed, "ClusterState", known)


def everything_is_parked(patch: Patch) -> None:
    """A failure parks queries that do not need what failed."""
    right = Parking.failed

    def failed(self: Parking, failures: Iterable[Any]) -> Any:
        counted, event = right(self, failures)
        if event is not None:
            why = next(iter(event.queries.values()))
            event = replace(event, queries=dict.fromkeys(self._state.graph.outputs, why))
        return counted, event

    patch.setattr(Parking, "failed", failed)


def parked_partition_goes_on(patch: Patch) -> None:
    """A restored partition of a parked query is not held back."""
    right = HoldingBack.hold_parked

    def hold(self: HoldingBack) -> None:
        if not any(isinstance(one, Changed) and one.cause is Cause.RESTORED for one in self._changes.effects):
            right(self)

    patch.setattr(HoldingBack, "hold_parked", hold)


def log_waits_for_parked(patch: Patch) -> None:
    """No batch is logged while a parked partition is far behind."""
    waits = property(
        lambda self: min(
            (one.frontier for one in self._state.partitions.values() if one.state is not PartitionState.LOST),
            default=self.frontier,
        )
    )
    patch.setattr(RunStatus, "live_frontier", waits)
    patch.setattr(RunStatus, "leading_frontier", waits)


PARKING_BUGS = [
    Bug(put_in.__name__, put_in.__doc__ or "", put_in)
    for put_in in (
        park_loses_a_batch,
        published_out_of_order_after_resume,
        resume_forgotten_over_a_restart,
        parked_forgotten_over_a_restart,
        everything_is_parked,
        parked_partition_goes_on,
        log_waits_for_parked,
    )
]
