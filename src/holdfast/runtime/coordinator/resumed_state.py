"""The state that a driver begins with: of a new run, or as the driver before left it in the progress. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.recovery.branches import read_tentative
from holdfast.recovery.checkpoints import Checkpoints
from holdfast.recovery.cluster_state import ClusterState, ParkedQuery
from holdfast.recovery.executed_plan import ExecutedPlan, resumed_plan
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.quarantine import read_decisions
from holdfast.recovery.strategy import RecoverySettings


def resumed_state(
    graph: PartitionGraph,
    recovery: RecoverySettings | None,
    asked: ExecutedPlan,
    claim: int,
    saved: Mapping[str, Any] | None,
    logged: BatchId,
    deterministic: Callable[[PartitionId], bool],
) -> ClusterState:
    """Return the state of a run whose progress says `saved`; None: it begins.

    `asked` is the plan that this start asks for, `logged` the last batch in the log; `deterministic` says whether an
    output is made the same again.
    """
    checkpoints = None if saved is None else Checkpoints.read(graph.order, saved["checkpoints"])
    parked: Mapping[str, Any] = {} if saved is None else saved.get("parked", {})
    plan, next_plan = resumed_plan(asked, None if saved is None else saved.get("plan"), graph)
    state = ClusterState(
        graph,
        recovery,
        epoch=Epoch.of(claim, 1),
        checkpoints=checkpoints,
        parked={PartitionId.parse(query): ParkedQuery.read(why) for query, why in parked.items()},
        requests=-1 if saved is None else saved.get("requests", -1),
        quarantined={} if saved is None else read_decisions(saved.get("quarantined", {})),
        tentative={} if saved is None else read_tentative(saved.get("tentative", {}), logged),
        plan=plan,
        next_plan=next_plan,
        dropped=[] if saved is None else map(PartitionId.parse, saved.get("dropped", [])),
    )
    state.branches.read_choices({} if saved is None else saved.get("tentative_choices", {}))
    published: Mapping[str, int] = {} if saved is None else saved.get("published", {})
    for partition in graph.outputs:
        # It may be behind its checkpoint, where it waits for a durable one or its sink fails: snapshots hold it.
        known_out = BatchId(published.get(str(partition), -1))
        if not deterministic(partition) or known_out < state.published[partition]:
            state.published[partition] = known_out
    return state
