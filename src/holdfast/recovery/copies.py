"""Second live copies of partitions: what the driver knows of them, and what may be done with them. Pure.

A *copy* is an assignment of its own: (partition, node, role replica). It starts from the partition's checkpoint, takes
the same blocks in the same order from the same primaries, and keeps what it makes to itself, in an outbox that is
trimmed as the primary's is. It completes no batch that its primary is not known to have completed: so it takes no row
before it is decided whether that row is left out, reads no file before the primary's checksum of it is known, and meets
no row that crashes an operator before its primary has passed it.

Copies never change what becomes of primaries. Senders keep for a copy what it has not completed, up to a lag behind the
checkpoint; a copy that falls further behind, fails, or needs what is not kept is dropped and built again. A node runs
one copy of a partition once in an epoch: by node and epoch alone everybody knows which one is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.planning.replicas.placement import Replica, ReplicaNode, place_replicas
from holdfast.recovery.states import AT_WORK_STATES, LIVE_STATES, PartitionState

if TYPE_CHECKING:
    from holdfast.recovery.cluster_state import ClusterState, Start

FIRST_PAUSE = 2
"""Batches that are logged before a copy that was dropped is built again; twice as many each time."""
LONGEST_PAUSE = 64
RETIRE_BATCHES = 64
"""Batches for which copies that a new plan no longer has stay at most while those of the plan are built."""
FIRST_STAY = 64
"""Batches for which a partition that has moved for load stays where it is; twice as many each time."""


class CopyState(StrEnum):
    """Where a copy stands."""

    BUILDING = "building"
    """Its state is on the way to its node."""
    RUNNING = "running"
    """It follows its primary."""


@dataclass(slots=True)
class Copy:
    """What the driver knows of one copy."""

    partition: PartitionId
    node: NodeId
    start: Start
    frontier: BatchId
    """The last batch that it surely has completed, or will have when its state is in place."""
    kept_from: BatchId
    """The first batch that its outbox surely has."""
    state: CopyState = CopyState.BUILDING


@dataclass(frozen=True, slots=True)
class _Pause:
    """After a copy was dropped: when it may be built again, and how long it waited for that."""

    until: BatchId
    batches: int


@dataclass(slots=True)
class Copies:
    """All copies of a run."""

    lag: int = 16
    """A copy may hold back outboxes by so many batches behind the checkpoint; beyond, it is dropped."""
    at: dict[PartitionId, Copy] = field(default_factory=dict)
    """The copy of each partition that has one."""
    leaving: set[NodeId] = field(default_factory=set)
    """Nodes that will go: nothing is placed there any more, and what is there moves."""
    evacuated: set[NodeId] = field(default_factory=set)
    """Those of them with nothing left on them."""
    moving: dict[PartitionId, NodeId] = field(default_factory=dict)
    """Partitions that move for load, and where to: together, once the copies of all of them are level."""
    replicas: tuple[PartitionId, ...] = ()
    """Partitions that the plan in place gives a copy, the most valuable first."""
    retiring: dict[PartitionId, BatchId] = field(default_factory=dict)
    """Partitions that the plan no longer has: their copies stay until those of the plan are level, at the latest until
    this batch is logged."""
    domain_of: Callable[[NodeId], str | None] = lambda node: None
    """The failure domain of a node, where it is known."""
    _had: dict[tuple[PartitionId, NodeId], Epoch] = field(default_factory=dict)
    """The last epoch in which a node had a copy of a partition."""
    _pauses: dict[PartitionId, _Pause] = field(default_factory=dict)
    _stays: dict[PartitionId, _Pause] = field(default_factory=dict)

    @property
    def placement(self) -> dict[PartitionId, NodeId]:
        """Who is where."""
        return {p: one.node for p, one in list(self.at.items())}

    def build(self, copy: Copy) -> None:
        """Begin to build a copy."""
        self.at[copy.partition] = copy
        self._had[copy.partition, copy.node] = copy.start.epoch

    def take(self, partition: PartitionId, epoch: Epoch) -> Copy:
        """Take a copy away: it is dropped, or becomes the primary."""
        copy = self.at.pop(partition)
        self._had[partition, copy.node] = epoch
        return copy

    def is_fresh(self, partition: PartitionId, node: NodeId, epoch: Epoch) -> bool:
        """Whether a node has had no copy of a partition in this epoch."""
        return self._had.get((partition, node), Epoch(-1)) < epoch

    def pause(self, partition: PartitionId, logged: BatchId) -> None:
        """Let some batches come before a copy is built again: one that keeps failing must not cost much."""
        before = self._pauses.get(partition)
        batches = FIRST_PAUSE if before is None else min(LONGEST_PAUSE, 2 * before.batches)
        self._pauses[partition] = _Pause(BatchId(logged + batches), batches)

    def is_due(self, partition: PartitionId, logged: BatchId) -> bool:
        """Whether a copy may be built now."""
        pause = self._pauses.get(partition)
        return pause is None or logged >= pause.until

    def moved(self, partition: PartitionId, logged: BatchId) -> None:
        """A partition has moved for load: it stays for a while, for longer each time."""
        before = self._stays.get(partition)
        batches = FIRST_STAY if before is None else 2 * before.batches
        self._stays[partition] = _Pause(BatchId(logged + batches), batches)

    def has_stayed(self, partition: PartitionId, logged: BatchId) -> bool:
        """Whether a partition may move for load."""
        stay = self._stays.get(partition)
        return stay is None or logged >= stay.until

    def levelled(self, partition: PartitionId) -> None:
        """A copy has caught up: earlier failures do not count any more."""
        self._pauses.pop(partition, None)


# -- who has copies ----------------------------------------------------------------------------------------------------


def to_move(state: ClusterState) -> list[PartitionId]:
    """Return the partitions that have to leave their node: it is going."""
    return [p for p, node in state.placement.items() if node in state.copies.leaving]


def wanted(state: ClusterState) -> list[PartitionId]:
    """Return the partitions that are to have a copy, the most pressing first: moves, then the plan's replicas."""
    if not state.settings.promotes:
        return []
    copies = state.copies
    stays = [p for p in copies.retiring if p in copies.at]  # none that is gone is built again
    found = dict.fromkeys([*to_move(state), *copies.moving, *copies.replicas, *stays])
    return [p for p in found if state.graph.deterministic(p)]


def retired(state: ClusterState, without: Collection[PartitionId]) -> list[PartitionId]:
    """Return the partitions whose copies, which the plan no longer has, may go now.

    That is when all copies of the plan are level, one of them finds no place (`without`), or it has taken too long: a
    change of plan leaves no time with less than the plan before, and what it costs meanwhile has an end.
    """
    copies = state.copies
    ready = level(state)
    planned = [p for p in copies.replicas if state.graph.deterministic(p)]
    done = all(p in ready for p in planned) or any(p in without for p in planned)
    return [p for p, until in copies.retiring.items() if done or p not in copies.at or state.logged >= until]


def to_build(
    state: ClusterState, start_of: Callable[[PartitionId], tuple[BatchId, BatchId]]
) -> tuple[dict[PartitionId, NodeId], dict[PartitionId, str]]:
    """Return the copies to build now, and where: on other nodes than their primaries, in other domains if possible.

    And those for which there is no place, with the reason.

    `start_of` gives the batch that a partition would start from, and the first batch of its outbox then. Lost
    partitions come first: while one waits for room, or is on its way, no copy is built but of what has to leave its
    node, which would be lost next; and none in the room of a lost partition that fits.
    """
    copies, missing = state.copies, (PartitionState.LOST, PartitionState.RESTORING)
    going = set(to_move(state)) if state.in_state(missing) else None
    chosen = []
    for p in wanted(state) if going is None else [p for p in wanted(state) if p in going]:
        if p in copies.at or state.partitions[p].state not in AT_WORK_STATES or not copies.is_due(p, state.logged):
            continue
        start, outbox_from = start_of(p)
        if inputs_kept(state, p, start) and outbox_from <= min(needs(state, p), default=outbox_from):
            chosen.append(p)
    decided = {p: copies.moving[p] for p in chosen if p in copies.moving and copies.moving[p] in state.nodes}
    found, without = _placed(state, [p for p in chosen if p not in decided], decided)
    return {**decided, **found}, without


def _placed(
    state: ClusterState, chosen: Sequence[PartitionId], decided: Mapping[PartitionId, NodeId]
) -> tuple[dict[PartitionId, NodeId], dict[PartitionId, str]]:
    """Place copies where there is room beside primaries, the copies there are, and those whose place is decided."""
    copies = state.copies
    cost = costs(state)
    room = {node: state.settings.bound * capacity for node, capacity in state.nodes.items()}
    for p, node in [*state.placement.items(), *copies.placement.items(), *decided.items()]:
        if node in room:
            room[node] -= cost[p]
    nodes = [node for node in sorted(room) if node not in copies.leaving]
    _reserve(room, nodes, [cost[p] for p in state.lost])
    found: dict[PartitionId, NodeId] = {}
    for domains in (True, False):
        left = [p for p in chosen if p not in found]
        places = [ReplicaNode(node, room[node], copies.domain_of(node) if domains else None) for node in nodes]
        replicas = [
            Replica(p, at, copies.domain_of(at) if domains and at is not None else None, cost[p])
            for p in left
            if (at := state.partitions[p].node) is not None
        ]
        placed = place_replicas(replicas, places)
        for p, node in placed.nodes.items():
            found[p] = node
            room[node] -= cost[p]
    return found, {one.partition: one.reason for one in placed.left_out}


def _reserve(room: dict[NodeId, float], nodes: Sequence[NodeId], lost: Iterable[float]) -> None:
    """Take the room of lost partitions off the nodes that have it; those that fit nowhere wait for another node."""
    for cost in sorted(lost):
        node = max(nodes, key=lambda one: room[one], default=None)
        if node is not None and room[node] + 1e-9 >= cost:
            room[node] -= cost


def costs(state: ClusterState) -> dict[PartitionId, float]:
    """Return what partitions cost, a copy as much as its primary: as measured, else as declared."""
    topology = state.graph.topology
    declared = {topology.partition(number): float(cost) for number, cost in enumerate(topology.cost)}
    return {p: state.costs.get(p, one) for p, one in declared.items()}


def to_yield(state: ClusterState) -> list[PartitionId]:
    """Return the copies that give way because their node is above its bound, or has their primary: least worth first.

    Copies yield first: a plan for lost partitions does not count them.
    """
    cost, copies = costs(state), state.copies
    found = [p for p, copy in copies.at.items() if copy.node == state.partitions[p].node]
    load: dict[NodeId, float] = dict.fromkeys(state.nodes, 0.0)
    for p, node in state.placement.items():
        load[node] = load.get(node, 0.0) + cost[p]
    for p, copy in copies.at.items():
        load[copy.node] = load.get(copy.node, 0.0) + cost[p]
    order = {p: number for number, p in enumerate(wanted(state))}
    for p in sorted(copies.at, key=lambda one: order.get(one, len(order)), reverse=True):
        node = copies.at[p].node
        if p not in found and load[node] > state.settings.bound * state.nodes.get(node, 0.0) + 1e-9:
            found.append(p)
            load[node] -= cost[p]
    return found


# -- what copies need, and what is needed of them ----------------------------------------------------------------------


def inputs_kept(state: ClusterState, partition: PartitionId, frontier: BatchId) -> bool:
    """Whether all senders of a partition have, or will make again, what comes after a batch."""
    return all(state.partitions[s].kept_from <= frontier + 1 for s in state.graph.senders(partition))


def needs(state: ClusterState, partition: PartitionId) -> list[BatchId]:
    """Return the first batches of a partition's output that consumers and its sink still need."""
    consumers = [c for c in state.graph.consumers(partition) if c not in state.dropped]
    found = [BatchId(state.partitions[c].frontier + 1) for c in consumers]
    if partition in state.published:
        found.append(BatchId(state.published[partition] + 1))
    return found


def promotable(state: ClusterState, lost: Collection[PartitionId], gone: Collection[NodeId] = ()) -> set[PartitionId]:
    """Return the lost partitions whose copies can take their place, given that all the others start again.

    A copy can where it is running, not behind the checkpoint, all that comes after its frontier is kept by its senders
    or made again, and its outbox reaches back to what every consumer needs. Those that are lost and not promoted stand
    where they will start from, in `state`; each that drops out changes what is needed of the others, until none does.
    """
    copies = state.copies
    line = state.checkpoints.line
    found = {
        p
        for p in lost
        if (copy := copies.at.get(p)) is not None
        and copy.state is CopyState.RUNNING
        and copy.frontier >= line[p]
        and copy.node not in gone
    }

    def frontier(p: PartitionId) -> BatchId:
        return copies.at[p].frontier if p in found else state.partitions[p].frontier

    def kept_from(p: PartitionId) -> BatchId:
        return copies.at[p].kept_from if p in found else state.partitions[p].kept_from

    def can(p: PartitionId) -> bool:
        out = state.published.get(p)
        return (
            all(kept_from(s) <= frontier(p) + 1 for s in state.graph.senders(p))
            and all(kept_from(p) <= frontier(c) + 1 for c in state.graph.consumers(p) if c not in state.dropped)
            and (out is None or kept_from(p) <= out + 1)
        )

    while unable := [p for p in found if not can(p)]:
        found.difference_update(unable)
    return found


def useless(state: ClusterState) -> dict[PartitionId, str]:
    """Return the copies that nothing can come of any more, and why: they are built again."""
    found = {}
    inputs_from = state.inputs_from
    targets = set(wanted(state))
    for p, copy in state.copies.at.items():
        primary, safe = state.partitions[p], state.checkpoints.line[p]
        if p not in targets:
            found[p] = "it is not wanted any more"
        elif copy.node not in state.nodes:
            found[p] = f"{copy.node} is lost"
        elif copy.node in state.copies.leaving:
            found[p] = f"{copy.node} is leaving"
        elif primary.state not in LIVE_STATES or copy.frontier > primary.frontier:
            found[p] = "its primary has started again"
        elif not inputs_kept(state, p, copy.frontier):
            found[p] = "its senders no longer keep what it needs"
        elif copy.kept_from > min(needs(state, p), default=copy.kept_from):
            found[p] = "its outbox does not reach back to what its consumers need"
        elif copy.frontier < safe - state.copies.lag or copy.frontier < inputs_from:
            found[p] = f"it is at batch {copy.frontier}, too far behind the checkpoint at batch {safe}"
    return found


def held_back_by(state: ClusterState, consumers: Iterable[PartitionId]) -> list[BatchId]:
    """Return the first batches that copies of these consumers still need."""
    return [
        BatchId(copy.frontier + 1)
        for c in consumers
        if c not in state.dropped and (copy := state.copies.at.get(c)) is not None
    ]


def keep_from(state: ClusterState) -> dict[PartitionId, BatchId]:
    """Return how far back each copy's outbox is kept: as its primary's, and not beyond where it stands itself."""
    found = {}
    for p, copy in state.copies.at.items():
        primary = state.partitions[p]
        reach = min(primary.kept_from, BatchId(copy.frontier + 1), BatchId(primary.frontier + 1))
        copy.kept_from = max(copy.kept_from, reach)
        found[p] = copy.kept_from
    return found


def level(state: ClusterState) -> dict[PartitionId, Copy]:
    """Return the copies that are level with their primaries."""
    slack = state.settings.level_lag
    return {
        p: copy
        for p, copy in list(state.copies.at.items())  # those who watch a run do so from other threads
        if copy.state is CopyState.RUNNING and copy.frontier >= state.partitions[p].frontier - slack
    }


def refused(deterministic: Callable[[PartitionId], bool], named: Iterable[PartitionId]) -> list[PartitionId]:
    """Return the partitions that cannot have a copy: it might make other rows than its primary."""
    return [p for p in named if not deterministic(p)]


def copy_problems(state: ClusterState) -> list[str]:
    """Say what is wrong with the copies there are; nothing when all is right. For tests and checkers."""
    found = []
    for p, copy in state.copies.at.items():
        primary = state.partitions[p]
        if not state.graph.deterministic(p):
            found.append(f"{p} is not deterministic, and has a copy")
        if copy.node == primary.node:
            found.append(f"the copy of {p} is on {copy.node} with its primary")
        if copy.node not in state.nodes:
            found.append(f"the copy of {p} is on {copy.node}, which is not there")
        if copy.frontier > primary.frontier:
            found.append(f"the copy of {p} is at batch {copy.frontier}, its primary at {primary.frontier}")
        if primary.state not in LIVE_STATES:
            found.append(f"{p} is {primary.state}, and has a copy")
    return found
