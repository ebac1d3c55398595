"""Tentative outputs (PPA, sec. V): which queries may give them, on which partitions, and how good they are. Pure.

While partitions of a query are lost, or are back and behind, the live partitions downstream of them wait: their clean
line stands. A *branch* goes on in their place. Each of its members begins with the state of its partition where that
stands, takes the same blocks from those that are clean, takes the blocks of other members, and takes a forged barrier
without rows for every *hole*: a partition that gives nothing. The clean line stays as it is, waits, and is what
checkpoints and final outputs come from. So a branch is of its own line: its blocks carry it, its state is in no file,
it is never part of a snapshot, and it ends where the clean line is whole again. An output partition that is lost itself
may have a stand-in on another node (`stand_ins`).

A branch belongs to an epoch: its members begin anew in the next. What is out of it stays out until the clean line
brings the final rows of the same batches: these are the correction. Where a hole is back and others wait for nodes, the
branch lacks what it need not lack: when nothing more is on its way back, an epoch begins for it (`BranchLifecycle`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.ids import BatchId, NodeId, PartitionId
from holdfast.planning.replicas.fidelity import LossModel
from holdfast.recovery.stand_ins import can_have, place_stand_ins
from holdfast.recovery.states import LIVE_STATES
from holdfast.topology import Topology

if TYPE_CHECKING:
    from holdfast.recovery.cluster_state import ClusterState

_NOTHING_KEPT = 1e-12


@dataclass(slots=True)
class TentativeQuery:
    """A query of which tentative rows may be out that no final rows have replaced."""

    since: BatchId
    """The first batch that may be out as tentative."""
    fidelity: float
    """As predicted for what is missing now, or was when the branch ended."""
    through: BatchId
    """The last batch that may be out as tentative; before `since`: none is."""
    active: bool = True
    """Whether its branch runs; else final rows are awaited."""
    may_grow: bool = False
    """Whether an earlier driver may still log a batch, and publish tentative rows of it: `through` is not known yet."""

    def written(self) -> dict[str, object]:
        """Return it as plain values."""
        return {"since": self.since, "fidelity": self.fidelity}


@dataclass(frozen=True, slots=True)
class Branch:
    """What runs beside the clean line now."""

    members: Mapping[PartitionId, tuple[PartitionId, ...]] = field(default_factory=dict)
    """The partitions with a branch, senders first, and those of their senders whose barriers are forged."""
    queries: Mapping[PartitionId, float] = field(default_factory=dict)
    """The queries that give tentative outputs, and their predicted fidelity."""
    holes: tuple[PartitionId, ...] = ()
    """The partitions that give nothing."""
    stand_ins: Mapping[PartitionId, NodeId] = field(default_factory=dict)
    """Members that are lost themselves, and the nodes on which something stands in for them."""


@dataclass(slots=True)
class Branches:
    """What the driver knows of tentative outputs."""

    at: dict[PartitionId, TentativeQuery] = field(default_factory=dict)
    """By query."""
    now: Branch = field(default_factory=Branch)
    away: set[PartitionId] = field(default_factory=set)
    """Partitions that were lost or rolled back, and have not been level with their senders, or the log, since."""
    whole: set[PartitionId] = field(default_factory=set)
    """Queries that have been whole since the driver began: a start, where partitions come one by one, is no outage."""
    failed: dict[PartitionId, str] = field(default_factory=dict)
    """Queries whose branch failed in this outage, and why: they give no tentative outputs until it is over."""
    chosen: dict[PartitionId, bool] = field(default_factory=dict)
    """Queries of which people have said, while the run goes on, that they give tentative outputs, or none."""
    requests: int = -1
    """The number of the last such request that was taken."""
    lacked: set[PartitionId] = field(default_factory=set)
    """The holes of the branch since it began, with its epoch: what members have done without."""
    rates: Topology | None = None
    """The topology with measured rates, for predictions; None: as declared."""
    _models: dict[int, tuple[Topology, LossModel]] = field(default_factory=dict)

    def model(self, declared: Topology) -> LossModel:
        """Return the loss model of the rates that are known."""
        topology = self.rates or declared
        held = self._models.get(id(topology))
        if held is None or held[0] is not topology:
            held = (topology, LossModel(topology))
            self._models = {id(topology): held}
        return held[1]

    def may_be_out(self, query: PartitionId, batch: BatchId) -> bool:
        """Whether tentative rows of a batch may be out."""
        one = self.at.get(query)
        return one is not None and one.since <= batch <= one.through

    def written(self) -> dict[str, object]:
        """Return what a driver that starts again needs, as plain values."""
        return {str(query): one.written() for query, one in self.at.items()}

    def written_choices(self) -> dict[str, object]:
        """Return what people have chosen, as plain values."""
        return {"requests": self.requests, "queries": {str(query): on for query, on in self.chosen.items()}}

    def read_choices(self, fields: Mapping[str, Any]) -> None:
        """Take what people had chosen under a driver before."""
        self.requests = int(fields.get("requests", -1))
        self.chosen = {PartitionId.parse(query): bool(on) for query, on in fields.get("queries", {}).items()}


def read_tentative(fields: Mapping[str, Any], logged: BatchId) -> dict[PartitionId, TentativeQuery]:
    """Read what a driver before has written; it may have published tentative rows up to the last batch of the log.

    It may log one more, until this driver has logged a batch of its own.
    """
    return {
        PartitionId.parse(query): TentativeQuery(
            BatchId(int(one["since"])),
            float(one["fidelity"]),
            max(logged, BatchId(int(one["since"]) - 1)),
            active=False,
            may_grow=True,
        )
        for query, one in fields.items()
    }


def branch_of(state: ClusterState) -> Branch:
    """Return the branch that should run now; without members where no query asks for one, or none can have it."""
    asked = [q for q in asked_for(state) if _may_have(state, q)]
    if not asked or not state.settings.promotes:
        return Branch()
    gone, lost = gone_of(state), set(state.lost)
    torn = [
        q
        for q in asked
        if not gone.isdisjoint(state.graph.members(q))
        and (q in state.branches.whole or not lost.isdisjoint(state.graph.members(q)))
    ]
    if not torn:
        return Branch()
    stand_ins = place_stand_ins(state, torn)
    kept = what_is_kept(state, gone - stand_ins.keys())
    holes = {p for p in state.graph.order if kept[p] <= _NOTHING_KEPT}
    least = state.settings.tentative_fidelity
    # The state of members lacks what holes that are back would have given: they count until the branch begins anew.
    lacked = (gone | state.branches.lacked) - stand_ins.keys()
    fidelity = kept if lacked <= gone else what_is_kept(state, lacked)
    queries = {q: fidelity[q] for q in torn if q not in holes and fidelity[q] >= max(least, _NOTHING_KEPT)}
    serving = {p for q in queries for p in state.graph.members(q)}
    members: dict[PartitionId, tuple[PartitionId, ...]] = {}
    for p in state.graph.order:
        if p in holes or p not in serving:
            continue
        senders = state.graph.senders(p)
        forged = tuple(s for s in senders if s in holes)
        if forged or p in stand_ins or any(s in members for s in senders):
            members[p] = forged
    given = {q: node for q, node in stand_ins.items() if q in queries}
    return Branch(members, queries, tuple(p for p in state.graph.order if p in holes and p in serving), given)


def asked_for(state: ClusterState) -> list[PartitionId]:
    """Return the queries that are to give tentative outputs: as people have said since, else as the settings say."""
    chosen, settings = state.branches.chosen, state.settings.tentative
    return [q for q in state.graph.outputs if chosen.get(q, q in settings)]


def gone_of(state: ClusterState) -> set[PartitionId]:
    """Return the partitions that give nothing now: they are not live, or are back and behind."""
    away, partitions = state.branches.away, state.partitions
    return {p for p in state.graph.order if p in away or partitions[p].state not in LIVE_STATES}


def _may_have(state: ClusterState, query: PartitionId) -> bool:
    return query not in state.parked and query not in state.branches.failed


def what_is_kept(state: ClusterState, gone: Collection[PartitionId]) -> dict[PartitionId, float]:
    """Return what each partition still gives of its output when these give nothing, as the loss model says (0 to 1)."""
    topology = state.graph.topology
    model = state.branches.model(topology)
    alive = model.only([topology.index(p) for p in state.graph.order if p not in gone])
    kept = model.sweep(alive)[0]
    return {p: min(1.0, max(0.0, float(kept[topology.index(p)]))) for p in state.graph.order}


def branch_problems(state: ClusterState) -> list[str]:
    """Say what is wrong with the branch there is; nothing when all is right. For tests and checkers."""
    found = []
    now = state.branches.now
    for query in now.queries:
        one = state.branches.at.get(query)
        if one is None or not one.active:
            found.append(f"{query} has a branch, and that it is tentative is not known")
        if query not in now.members:
            found.append(f"{query} is tentative, and has no branch of its own")
    for p, node in now.stand_ins.items():
        if p not in now.members:
            found.append(f"{p} has a stand-in, and no branch")
        if not can_have(state, p):
            found.append(f"{p} has a stand-in on {node}, and is {state.partitions[p].state}")
        if node not in state.nodes:
            found.append(f"the stand-in of {p} is on {node}, which is not there")
    for p, forged in now.members.items():
        if p not in now.stand_ins and state.partitions[p].state not in LIVE_STATES:
            found.append(f"{p} has a branch, and is {state.partitions[p].state}")
        if p not in now.stand_ins and p in state.branches.away:
            found.append(f"{p} has a branch, and is behind")
        if not set(forged) <= set(state.graph.senders(p)):
            found.append(f"the branch of {p} has forged barriers of partitions that do not send to it")
    return found
