"""How long a recovery takes on a cluster of any size: the real machine, driven by a cost model. Runs anywhere.

No rows are processed: partitions are counters that follow their senders, cycles and restores take what the constants
say. The constants come from measured runs. Everything that decides (what is rolled back, which plan, what is placed
where and when) is the recovery machine itself, the same as in those runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from holdfast.errors import BadInput
from holdfast.ids import BatchId, NodeId, PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import Changed, Effect, Place
from holdfast.recovery.events import Event, NodesArrived, NodesLost, PartitionsReported
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.states import LIVE_STATES, PLACED_STATES, PartitionState
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.topology import Topology

MOST_CYCLES = 100_000


@dataclass(frozen=True, slots=True)
class TimeConstants:
    """What things take, in seconds; measure them, then simulate what cannot be measured."""

    detect_seconds: float = 1.0
    """From a node's death to the driver's knowing."""
    plan_seconds: float = 0.1
    """From knowing, or from an arrival, to the first cycle of the new plan."""
    cycle_seconds: float = 0.5
    """A cycle with nothing to do."""
    work_seconds: float = 0.05
    """One batch on a node that is used to its whole capacity; less on others in proportion."""
    batch_seconds: float = 1.0
    """Between two batches of the sources."""
    restore_seconds: float = 0.5
    """To bring a state back, however small."""
    restore_seconds_per_byte: float = 2e-9
    most_batches: int = 8
    """Batches that a partition takes in one cycle."""
    checkpoint_age: int = 10
    """Batches between the last global checkpoint and the failure."""


@dataclass(frozen=True, slots=True)
class QueryTimes:
    """When one query was back; seconds after the failure, None: never."""

    query: PartitionId
    priority: int
    lost: bool
    """Whether it had lost partitions; else it was live all the time."""
    back: float | None
    """Its first output after what had been out before the failure."""
    level: float | None
    """It is level with the sources again."""


@dataclass(frozen=True, slots=True)
class RecoveryTimes:
    """What a simulated recovery took."""

    strategy: str
    queries: tuple[QueryTimes, ...]
    plans: int
    rolled_back: int
    """Live partitions that rolled back."""
    seconds: float
    """When everything was level, or the simulation ended."""

    @property
    def unavailability(self) -> float:
        """Sum over queries that had lost partitions of priority x seconds until back."""
        return sum(one.priority * (self.seconds if one.back is None else one.back) for one in self.queries if one.lost)

    @property
    def disturbance(self) -> float:
        """The same sum over queries that had lost nothing: what rolling back cost them."""
        return sum(
            one.priority * (self.seconds if one.back is None else one.back) for one in self.queries if not one.lost
        )


def simulate_times(
    topology: Topology,
    placement: Mapping[PartitionId, NodeId],
    capacity: Mapping[NodeId, float],
    failed: Sequence[NodeId],
    arrivals: Sequence[tuple[float, NodeId, float]],
    settings: RecoverySettings,
    constants: TimeConstants,
) -> RecoveryTimes:
    """Let nodes fail at time zero and others arrive (seconds, name, capacity); say when every query is back and level.

    `placement` and `capacity` say what runs where before the failure.
    """
    if missing := [p for p in topology.partitions() if p not in placement]:
        raise BadInput(f"{missing[0]} is on no node", field="placement", remedy="place every partition")
    return _Simulation(topology, placement, capacity, failed, arrivals, settings, constants).run()


class _Simulation:
    def __init__(
        self,
        topology: Topology,
        placement: Mapping[PartitionId, NodeId],
        capacity: Mapping[NodeId, float],
        failed: Sequence[NodeId],
        arrivals: Sequence[tuple[float, NodeId, float]],
        settings: RecoverySettings,
        constants: TimeConstants,
    ) -> None:
        self.topology, self.constants, self.settings = topology, constants, settings
        self.machine = RecoveryMachine(ClusterState(PartitionGraph(topology), settings))
        self.graph = self.machine.state.graph
        numbers = {p: topology.index(p) for p in self.graph.order}
        self.cost = {p: float(topology.cost[number]) for p, number in numbers.items()}
        self.restore = {
            p: constants.restore_seconds
            + constants.restore_seconds_per_byte * topology.operator(p.operator).state_bytes
            for p in numbers
        }
        self.priority = {p: int(topology.priority[numbers[p]]) for p in self.graph.outputs}
        self.failed = tuple(failed)
        self.arrivals = sorted(arrivals)
        self.capacity = dict(capacity)
        self.ready: dict[PartitionId, float] = {}
        self.now = 0.0
        self.plans = self.rolled_back = 0
        self._begin(placement)

    def _begin(self, placement: Mapping[PartitionId, NodeId]) -> None:
        """Bring the machine to where everything runs, some batches past its checkpoint."""
        machine = self.machine
        machine.state.wanted = dict(placement)
        machine.handle(NodesArrived(self.capacity))
        age = BatchId(self.constants.checkpoint_age - 1)
        frontiers = dict.fromkeys(machine.state.partitions, age)
        outputs = dict.fromkeys(self.graph.outputs, age)
        machine.handle(PartitionsReported(machine.state.epoch, age, frontiers, frozenset(frontiers), outputs))
        machine.state.keep_from()
        if lost := machine.state.lost:
            raise BadInput(
                f"{lost[0]} has no room before the failure", field="capacity", remedy="give nodes more capacity"
            )
        for p, node in placement.items():
            machine.state.partitions[p].node = node
        self.out_before = age

    def _logged(self) -> BatchId:
        return BatchId(self.out_before + math.floor(self.now / self.constants.batch_seconds))

    def run(self) -> RecoveryTimes:
        machine, constants = self.machine, self.constants
        hit = set(self.failed)
        members = {query: self.graph.members(query) for query in self.graph.outputs}
        lost = {query for query, mine in members.items() if any(machine.state.partitions[p].node in hit for p in mine)}
        back: dict[PartitionId, float] = {}
        level: dict[PartitionId, float] = {}
        self.now = constants.detect_seconds
        self._handle(NodesLost(self.failed))
        for _ in range(MOST_CYCLES):
            self._arrive()
            self._cycle()
            logged = self._logged()
            for query in self.graph.outputs:
                mine = machine.state.partitions[query]
                if query not in back and mine.state in LIVE_STATES and mine.frontier > self.out_before:
                    back[query] = self.now
                if query in back and query not in level and mine.frontier >= logged - max(1, self.settings.level_lag):
                    level[query] = self.now
            if len(level) == len(self.graph.outputs):
                break
            if not self.arrivals and machine.state.lost and not self._can_move():
                break
        times = tuple(
            QueryTimes(query, self.priority[query], query in lost, back.get(query), level.get(query))
            for query in self.graph.outputs
        )
        return RecoveryTimes(str(self.settings.strategy), times, self.plans, self.rolled_back, self.now)

    def _can_move(self) -> bool:
        """Whether what is placed still has something to catch up with."""
        logged = self._logged()
        return any(
            one.state is PartitionState.RESTORING
            or one.frontier
            < min((self.machine.state.partitions[s].frontier for s in self.graph.senders(p)), default=logged - 2)
            for p, one in self.machine.state.partitions.items()
            if one.state in PLACED_STATES
        )

    def _arrive(self) -> None:
        """Let nodes come whose time it is; where nothing else can be done, go on to the next."""
        come = {}
        while self.arrivals and self.arrivals[0][0] <= self.now:
            _, name, capacity = self.arrivals.pop(0)
            come[name] = capacity
        if come:
            self._handle(NodesArrived(come))

    def _handle(self, event: Event) -> None:
        effects = self.machine.handle(event)
        if any(isinstance(effect, Place) for effect in effects):
            self.plans += 1
            self.now += self.constants.plan_seconds
        self._follow(effects)

    def _follow(self, effects: Sequence[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Changed) and effect.after is PartitionState.RESTORING:
                # What rolls back has its old versions at hand: a change of pointer.
                near = effect.before in PLACED_STATES
                self.rolled_back += near
                self.ready[effect.partition] = self.now + (0.0 if near else self.restore[effect.partition])

    def _cycle(self) -> None:
        """Run one cycle: restored partitions come in, everybody takes what senders have, time passes."""
        machine, constants = self.machine, self.constants
        machine.state.keep_from()
        logged = self._logged()
        frontiers: dict[PartitionId, BatchId] = {}
        work: dict[NodeId, float] = {}
        for p in self.graph.order:
            mine = machine.state.partitions[p]
            if mine.node is None or mine.state is PartitionState.PAUSED:
                continue
            if mine.state is PartitionState.RESTORING and self.ready[p] > self.now:
                continue
            senders = self.graph.senders(p)
            reach = min((frontiers.get(s, machine.state.partitions[s].frontier) for s in senders), default=logged)
            done = max(0, min(reach, mine.frontier + constants.most_batches) - mine.frontier)
            frontiers[p] = BatchId(mine.frontier + done)
            work[mine.node] = work.get(mine.node, 0.0) + done * self.cost[p]
        busiest = max((used / self._size(node) for node, used in work.items()), default=0.0)
        self.now += constants.cycle_seconds + constants.work_seconds * busiest
        outputs = {p: frontiers[p] for p in self.graph.outputs if p in frontiers}
        self._follow(
            machine.handle(
                PartitionsReported(machine.state.epoch, self._logged(), frontiers, frozenset(frontiers), outputs)
            )
        )

    def _size(self, node: NodeId) -> float:
        return max(1e-9, self.machine.state.nodes.get(node, 1.0))


def best_case(arrivals: Sequence[tuple[float, NodeId, float]]) -> list[tuple[float, NodeId, float]]:
    """Return the arrivals of the paper's best case: all at half of the last."""
    half = max((at for at, _, _ in arrivals), default=0.0) / 2
    return [(half, name, capacity) for _, name, capacity in arrivals]


STRATEGY_OF: Mapping[str, RecoveryStrategy] = {
    "incremental": RecoveryStrategy.INCREMENTAL,
    "operator-centric": RecoveryStrategy.OPERATOR_CENTRIC,
    "blocking": RecoveryStrategy.BLOCKING,
    "source-replay": RecoveryStrategy.SOURCE_REPLAY,
    "best-case": RecoveryStrategy.INCREMENTAL,
}


def read_constants(document: object, where: str) -> TimeConstants:
    """Read constants that an experiment wrote; what is not named keeps its default."""
    if not isinstance(document, Mapping):
        raise BadInput("is no JSON object", where=where, remedy="take constants.json of an experiment")
    names = {one.name: one.type for one in fields(TimeConstants)}
    for name, value in document.items():
        if name not in names:
            raise BadInput(f"there is no constant {name!r}", where=where, remedy=f"name some of {', '.join(names)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise BadInput(f"is {value!r}", where=where, field=str(name), remedy="give a number of at least 0")
    return TimeConstants(**{name: int(one) if names[name] == "int" else one for name, one in document.items()})
