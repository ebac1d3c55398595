"""Events of a run: as fields for whoever records them (logs, drills, displays), and as lines for people. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.ids import BatchId, NodeId, PartitionId, SegmentId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import (
    BranchEnded,
    BuffersFull,
    Changed,
    CopyDropped,
    CopyLeftOut,
    CopyLevel,
    CopyPlaced,
    Corrected,
    Effect,
    Fence,
    GlobalCheckpoint,
    IntermediateSnapshots,
    KeptNoMore,
    LeaveOut,
    NodesEvacuated,
    Parked,
    Place,
    PlanAwaited,
    PlanRejected,
    PlanTookEffect,
    Promoted,
    RecoveryEnded,
    Regenerated,
    ReplicasChanged,
    RequestNodes,
    Resumed,
    RollBack,
    Waiting,
    WentTentative,
)
from holdfast.recovery.events import Event
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.states import LIVE_STATES, PartitionState
from holdfast.runtime.fetches import CodeChosen, Fetched
from holdfast.runtime.messages import DriverSuspected, NodesAnswered
from holdfast.runtime.program import Program
from holdfast.topology import to_document
from holdfast.wording import counted


@dataclass(frozen=True, slots=True)
class Observation:
    """One event of a run."""

    at: float
    kind: str
    fields: Mapping[str, Any]


def event_kind(event: Event) -> str:
    """Name an event of nodes: `node-arrived`, `node-lost`, `node-silent`."""
    words = type(event).__name__
    return "".join(f"-{c.lower()}" if c.isupper() else c for c in words).strip("-").replace("nodes", "node")


def run_fields(program: Program, state: ClusterState) -> dict[str, Any]:
    """Return what a run is, for whoever begins to read its events: its topology, outputs, bound and parked queries."""
    return {
        "application": program.name,
        "claim": state.epoch.claim,
        "topology": to_document(program.topology),
        "outputs": {str(operator): name for operator, name in program.output_names.items()},
        "bound": state.settings.bound,
        "parked": {str(query): why.written() for query, why in state.parked.items()},
    }


def capacities(nodes: Mapping[NodeId, float]) -> dict[str, float | None]:
    """Return what nodes can carry, as JSON has it; None: no limit."""
    return {str(node): None if math.isinf(size) else size for node, size in nodes.items()}


def code_event(report: CodeChosen) -> tuple[dict[str, Any], str]:
    """Return the fields of the event `code-changed`, and a line for people."""
    choice = report.choice
    code = f"{choice['data']}+{choice['parity']}"
    before = None if report.before is None else f"{report.before[0]}+{report.before[1]}"
    fields = {"node": report.node, "before": before, "code": code, **choice, "weights": list(choice["weights"])}
    line = (
        f"{report.node} codes snapshots of up to {choice['state_bytes']:,.0f} bytes as {code}"
        f"{'' if before is None else f', before as {before}'}: {choice['reason']}; predicted: "
        f"restored in {choice['recovery_seconds']:.3g} s, found with probability {choice['success']:.6f}"
    )
    return fields, line


def fetched_fields(fetched: Fetched | None) -> dict[str, Any]:
    """Return what an event says of where restored state came from; None: nothing was fetched, or nothing says so."""
    if fetched is None:
        return {}
    return {
        "bytes_from_peers": fetched.peer_bytes,
        "bytes_from_folder": fetched.folder_bytes,
        "bytes_from_node": fetched.node_bytes,
        "fetch_seconds": round(fetched.seconds, 6),
        "predicted_seconds": None if fetched.predicted_seconds is None else round(fetched.predicted_seconds, 6),
    }


def detection_lines(report: NodesAnswered | DriverSuspected) -> list[tuple[str, dict[str, Any], str]]:
    """Return the events of the detection of lost nodes: kind, fields, and a line for people."""
    nodes = list(report.nodes)
    if isinstance(report, NodesAnswered):
        line = f"{', '.join(nodes)} answered after it was declared silent: a false alarm; it stays lost"
        return [("false-alarm", {"nodes": nodes}, line)]
    check = report.check
    fields = {"nodes": nodes, "storage": check.storage, "master": check.master, "cut_off": check.is_cut_off}
    wording = {True: "answers", False: "does not answer", None: "is not known"}
    found = f"the run's storage {wording[check.storage]}, Spark's master {wording[check.master]}"
    then = "no node is declared lost meanwhile" if check.is_cut_off else "the nodes are declared lost"
    return [("driver-suspected", fields, f"{counted(len(nodes), 'node')}, most of all, fell silent: {found}; {then}")]


def catching_up_lines(
    state: ClusterState, behind: Sequence[PartitionId], level: Sequence[PartitionId], logged: BatchId
) -> list[tuple[str, dict[str, Any], str]]:
    """Return the events of queries that fell behind, or are level again: kind, fields, and a line for people."""
    found: list[tuple[str, dict[str, Any], str]] = []
    for query in behind:
        lag = logged - state.partitions[query].frontier
        line = f"{query} is {lag:,} batches behind the log and catches up; sources follow the other queries"
        found.append(("catching-up", {"query": str(query), "lag_batches": lag}, line))
    for query in level:
        found.append(("caught-up", {"query": str(query)}, f"{query} has caught up with the other queries"))
    return found


def effect_line(effect: Effect) -> str | None:
    """Return a line for people about an effect; None where they need none."""
    match effect:
        case Place(placement, _, _, left) if left:
            return f"{counted(len(placement), 'lost partition')} in recovery, {len(left)} waiting for nodes"
        case PlanRejected(problems):
            return f"a recovery plan failed its check and does not run ({problems[0]}); please report it"
        case RollBack(partitions, batch):
            return f"rolled back to batch {batch}: {counted(len(partitions), 'live partition')}"
        case GlobalCheckpoint(batch, _, _, without, segments):
            whose = f" of {', '.join(segments)}" if segments else ""
            waiting = f" without {counted(len(without), 'partition')} that wait" if without else ""
            return f"checkpoint{whose} at batch {batch} is complete{waiting}"
        case Parked(query, why):
            return f"parked: {query}, by {why.partition} at batch {why.batch}: {why.error}"
        case Resumed(query):
            return f"resumed: {query}"
        case LeaveOut(partition, batch, rows):
            many = counted(len(rows), "row")
            return f"quarantined: {many} of {partition}, batch {batch}, from {rows[0].input}: {rows[0].error}"
        case CopyDropped(partition, node, why):
            return f"the replica of {partition} on {node} is dropped: {why}"
        case CopyLeftOut(partition, why):
            return f"{partition} has no replica yet: {why}"
        case ReplicasChanged(start, stop, why):
            return f"replicas follow measured rates: start {_replicas(start)}, then stop {_replicas(stop)}; {why}"
        case Promoted(partition, before, node, batch, _):
            return f"{partition} continues on {node} by its replica, after batch {batch}; it was on {before}"
        case NodesEvacuated(nodes):
            return f"{', '.join(nodes)}: nothing is left there, its task ends"
        case WentTentative(query, since, fidelity, without, stand_in):
            missing = counted(len(without), "partition")
            where = "" if stand_in is None else f", by a stand-in on {stand_in}"
            what = f"tentative outputs of {query} from batch {since} on{where}"
            return f"{what}, without {missing}: fidelity {fidelity:.2f}"
        case BranchEnded(query, problem) if problem is not None:
            return f"no more tentative outputs of {query} in this outage: {problem}"
        case Corrected(query, since, through) if through >= since:
            return f"final outputs have replaced the tentative ones of {query}, batches {since} to {through}"
        case PlanAwaited(plan):
            return f"plan {plan.number} was chosen, and takes effect at the next checkpoint of all partitions"
        case PlanTookEffect(plan, batch):
            return f"plan {plan.number} takes effect at batch {batch}: {plan_line(plan)}"
        case KeptNoMore(partitions, kept_bytes):
            return (
                f"outboxes hold {kept_bytes >> 20} MB: senders drop the blocks kept for waiting partitions "
                f"({_first_of(partitions)}), and these are regenerated from the batch log when the partitions return"
            )
        case BuffersFull((), kept_bytes):
            return (
                f"outboxes hold {kept_bytes >> 20} MB, beyond their bound, and grow: no query is left to pause that "
                "sends to what is lost or parked; add a node, or resume parked queries, before disks of nodes are full"
            )
        case BuffersFull(queries, kept_bytes):
            return (
                f"outboxes hold {kept_bytes >> 20} MB, their bound: {_first_of(queries)} paused until less is kept for "
                "what is lost or parked; add a node, resume parked queries, or raise spark.holdfast.recovery.bufferMb"
            )
        case Regenerated(partitions):
            return f"regenerated: waiting partitions have returned and caught up ({_first_of(partitions)})"
        case RecoveryEnded(batch):
            return f"recovery ended: the checkpoint at batch {batch} is complete and nothing is lost"
        case Waiting(missing, partitions):
            return f"waiting for {counted(missing, 'node')}: {counted(len(partitions), 'partition')}"
    return None


def effect_fields(
    state: ClusterState, effect: Effect, fetched: Fetched | None = None
) -> list[tuple[str, dict[str, Any]]]:
    """Return the events of an effect: kinds and fields. `fetched`: where a restored partition's state came from."""
    match effect:
        case Fence(epoch, why):
            return [("epoch", {"claim": epoch.claim, "epoch": epoch.number, "why": why})]
        case RequestNodes(count):
            return [("requested", {"count": count})]
        case Place():
            return [("planned", _planned_fields(effect))]
        case PlanRejected(problems):
            return [("plan-rejected", {"problems": list(problems)})]
        case RollBack(partitions, batch):
            return [("rolled-back", {"partitions": [str(p) for p in partitions], "to": batch})]
        case Changed():
            return _changed_fields(state, effect, fetched)
        case GlobalCheckpoint(batch, durable, _, without, segments):
            fields = {"batch": batch, "durable": durable, "without": [str(p) for p in without]}
            if segments:
                tail = state.unstored_tail()
                fields |= {"segments": list(segments), "unstored_batches": {name: tail[name] for name in sorted(tail)}}
            return [("checkpoint", fields)]
        case IntermediateSnapshots(batch, operators):
            return [("intermediate-snapshots", {"batch": batch, "operators": list(operators)})]
        case Parked(query, why):
            return [("parked", {"query": str(query), **why.written()})]
        case Resumed(query):
            return [("resumed", {"query": str(query)})]
        case LeaveOut(partition, batch, rows):
            fields = {"partition": str(partition), "batch": batch, "rows": len(rows), "error": rows[0].error}
            return [("quarantined", fields)]
        case CopyPlaced(partition, node, batch):
            return [("replica-building", {"partition": str(partition), "node": node, "batch": batch})]
        case CopyLevel(partition, node, batch):
            return [("replica-level", {"partition": str(partition), "node": node, "batch": batch})]
        case CopyDropped(partition, node, why):
            return [("replica-dropped", {"partition": str(partition), "node": node, "why": why})]
        case CopyLeftOut(partition, why):
            return [("replica-left-out", {"partition": str(partition), "why": why})]
        case ReplicasChanged(start, stop, why):
            fields = {"start": [str(p) for p in start], "stop": [str(p) for p in stop], "why": why}
            return [("replicas-changed", fields)]
        case Promoted(partition, before, node, batch, why):
            fields = {"partition": str(partition), "before": before, "node": node, "batch": batch, "why": why}
            return [("promoted", fields)]
        case NodesEvacuated(nodes):
            return [("node-evacuated", {"nodes": list(nodes)})]
        case WentTentative(query, since, fidelity, without, stand_in):
            fields = {"query": str(query), "since": since, "fidelity": fidelity, "without": [str(p) for p in without]}
            fields |= {} if stand_in is None else {"stand_in": stand_in}
            return [("tentative", fields)]
        case BranchEnded(query, problem):
            return [("tentative-ended", {"query": str(query), "problem": problem})]
        case Corrected(query, since, through):
            return [("corrected", {"query": str(query), "since": since, "through": through})]
        case PlanAwaited(plan):
            return [("plan-chosen", plan_fields(plan))]
        case PlanTookEffect(plan, batch):
            return [("plan-changed", {"batch": batch, **plan_fields(plan)})]
        case KeptNoMore(partitions, kept_bytes):
            return [("kept-no-more", {"partitions": [str(p) for p in partitions], "outbox_bytes": kept_bytes})]
        case BuffersFull(queries, kept_bytes):
            return [("buffers-full", {"queries": [str(q) for q in queries], "outbox_bytes": kept_bytes})]
        case Regenerated(partitions):
            return [("regenerated", {"partitions": [str(p) for p in partitions]})]
        case RecoveryEnded(batch):
            return [("recovery-ended", {"batch": batch})]
    return []


def _first_of(partitions: Sequence[PartitionId]) -> str:
    """Return the first partition, and how many more there are."""
    return f"{partitions[0]}" + (f" and {len(partitions) - 1:,} more" if len(partitions) > 1 else "")


def _replicas(partitions: Sequence[PartitionId]) -> str:
    return ", ".join(map(str, partitions)) if partitions else "none"


def plan_fields(plan: ExecutedPlan) -> dict[str, Any]:
    """Describe a plan that is executed."""
    found = plan.written()
    intervals = [
        {"segment": name, "batches": batches, "seconds": seconds} for name, batches, seconds in found["intervals"]
    ]
    return {
        "number": plan.number,
        "segments": found["segments"],
        "anchors": found["anchors"],
        **({"multiples": found["multiples"]} if found["multiples"] else {}),
        "backups": found["backups"],
        "intervals": intervals,
        **plan.about,
    }


def executed_settings(plan: ExecutedPlan) -> dict[str, Any]:
    """Return what a profile says of the plan in force: `holdfast plan explain` predicts with it."""
    seconds = {one.segment: one.seconds for one in plan.intervals if math.isfinite(one.seconds)}
    members: dict[str, list[str]] = {}
    for operator, name in plan.segments.operators.items():
        members.setdefault(name, []).append(operator)
    found: dict[str, Any] = {
        "backups": sorted(map(str, plan.backups)),
        "segments": [
            {
                "segment": name,
                "operators": operators,
                "anchors": [one for one in operators if one in plan.segments.anchors],
                "interval_seconds": seconds[SegmentId(name)],
            }
            for name, operators in members.items()
            if plan.segments.many and SegmentId(name) in seconds
        ],
    }
    return found | ({"checkpoint_seconds": min(seconds.values())} if seconds else {})


def plan_line(plan: ExecutedPlan) -> str:
    """Return a plan in a few words."""
    seconds = [one.seconds for one in plan.intervals if not math.isinf(one.seconds)]
    often = ""
    if seconds:
        upper = f" to {max(seconds):.3g}" if max(seconds) > min(seconds) else ""
        often = f", a checkpoint every {min(seconds):.3g}{upper} s"
    return f"{counted(len(plan.segments.names), 'segment')}{often}, {counted(len(plan.backups), 'backup')}"


def _planned_fields(effect: Place) -> dict[str, Any]:
    """Describe a plan: what comes back where, and what waits."""
    return {
        "recover": [str(p) for p, _ in effect.placement],
        "placement": {str(p): node for p, node in effect.placement},
        "left_out": [str(p) for p in effect.left],
        "queries": [str(p) for p in effect.queries],
        "priority": effect.priority,
    }


def _changed_fields(state: ClusterState, effect: Changed, fetched: Fetched | None) -> list[tuple[str, dict[str, Any]]]:
    """Describe a partition that has changed its state; a restore has a beginning and an end."""
    fields: dict[str, Any] = {"partition": str(effect.partition), "node": effect.node}
    batch = state.partitions[effect.partition].start.batch
    found = []
    if effect.after is PartitionState.RESTORING:
        found.append(("restoring", {**fields, "batch": batch}))
    if effect.before is PartitionState.RESTORING and effect.after in LIVE_STATES:
        found.append(("restored", {**fields, "batch": batch, **fetched_fields(fetched)}))
    states = {"before": str(effect.before), "after": str(effect.after), "cause": str(effect.cause)}
    return [*found, ("state", {**fields, **states})]
