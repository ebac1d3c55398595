"""A recovery machine driven by hand: topologies in one line, nodes, cycles and checkpoints as events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import Effect
from holdfast.recovery.events import (
    CheckpointMarked,
    CheckpointStored,
    Event,
    NodesArrived,
    NodesLost,
    PartitionsReported,
)
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.pausing import paused_in_vain
from holdfast.recovery.states import LIVE_STATES, PLACED_STATES
from holdfast.recovery.strategy import RecoverySettings
from holdfast.topology import Input, Operator, Partitioning, Topology


def part(text: str) -> PartitionId:
    """`a` or `a1`: an operator of one letter, and the index."""
    return PartitionId(OperatorId(text[0]), int(text[1:] or 0))


def parts(text: str) -> list[PartitionId]:
    return [part(one) for one in text.split()]


def chain(letters: str = "abc", *, outputs: Mapping[str, int] | None = None) -> Topology:
    """Operators of one partition and cost 1, each reading the one before."""
    heads = outputs or {letters[-1]: 1}
    return Topology(
        "chain",
        [
            Operator(
                OperatorId(letter),
                1,
                (Input(OperatorId(letters[number - 1]), Partitioning.ONE_TO_ONE),) if number else (),
                cost=1.0,
                output=letter in heads,
                priority=heads.get(letter, 1),
            )
            for number, letter in enumerate(letters)
        ],
    )


def star(priorities: Sequence[int]) -> Topology:
    """One source `s`, and queries `a`, `b`, … of these priorities."""
    operators = [Operator(OperatorId("s"), 1, (), cost=1.0)]
    for number, priority in enumerate(priorities):
        operators.append(
            Operator(
                OperatorId(chr(ord("a") + number)),
                1,
                (Input(OperatorId("s"), Partitioning.ONE_TO_ONE),),
                cost=1.0,
                output=True,
                priority=priority,
            )
        )
    return Topology("star", operators)


class Driven:
    """A machine, and short words for what one tells it."""

    def __init__(
        self,
        topology: Topology,
        settings: RecoverySettings | None = None,
        *,
        unsure: str = "",
        alone: str | None = None,
        nodes: Mapping[str, float] | None = None,
    ) -> None:
        """`unsure`: operators that may give other rows; `alone`: those of them that do by themselves."""
        by_itself = None if alone is None else {OperatorId(one): False for one in alone}
        self.machine = RecoveryMachine(
            ClusterState(PartitionGraph(topology, {OperatorId(one): False for one in unsure}, by_itself), settings)
        )
        self.effects: list[Effect] = []
        self.logged = BatchId(-1)
        if nodes is not None:
            self.arrive(nodes)
            self.cycle()

    def tell(self, event: Event) -> list[Effect]:
        self.effects = self.machine.handle(event)
        assert not paused_in_vain(self.machine.state)
        return self.effects

    def arrive(self, nodes: Mapping[str, float]) -> list[Effect]:
        return self.tell(NodesArrived({NodeId(name): size for name, size in nodes.items()}))

    def lose(self, *nodes: str) -> list[Effect]:
        return self.tell(NodesLost(tuple(NodeId(node) for node in nodes)))

    def node(self, name: str) -> str | None:
        return self.machine.state.partitions[part(name)].node

    def state(self, name: str) -> str:
        return str(self.machine.state.partitions[part(name)].state)

    def cycle(self, through: int | None = None, *, kept_bytes: int = 0) -> list[Effect]:
        """A clean cycle: everybody placed takes what its senders have, up to a batch."""
        machine = self.machine
        if through is not None:
            self.logged = BatchId(through)
        machine.state.keep_from()
        machine.state.handed_out = max(machine.state.handed_out, self.logged)
        limits = machine.state.limits()
        for p, limit in limits.items():
            machine.state.partitions[p].given = max(machine.state.partitions[p].given, limit)
        frontiers: dict[PartitionId, BatchId] = {}
        for p in machine.state.in_state(PLACED_STATES):
            mine = machine.state.partitions[p]
            if mine.state in ("paused", "parked"):
                continue
            senders = machine.state.graph.senders(p)
            reach = min((frontiers.get(s, machine.state.partitions[s].frontier) for s in senders), default=self.logged)
            frontiers[p] = max(mine.frontier, min(reach, limits.get(p, reach)))
        out = {p: frontiers[p] for p in machine.state.graph.outputs if p in frontiers}
        return self.tell(
            PartitionsReported(
                machine.state.epoch, self.logged, frontiers, frozenset(frontiers), out, kept_bytes=kept_bytes
            )
        )

    def checkpoint(self, batch: int, *, durable: bool = False, without: str = "") -> list[Effect]:
        """Everybody live saves at a batch."""
        self.tell(CheckpointMarked(BatchId(batch), durable))
        found: list[Effect] = []
        for p in self.machine.state.in_state(LIVE_STATES):
            if str(p.operator) not in without.split():
                found += self.save(p, batch, durable=durable)
        self.effects = found
        return found

    def save(self, p: PartitionId, batch: int, *, durable: bool = False) -> list[Effect]:
        mine = self.machine.state.partitions[p]
        first = mine.kept_from if self.machine.state.with_outbox(p) else None
        return self.tell(CheckpointStored(p, SavedSnapshot(BatchId(batch), mine.start.epoch, None, first, durable)))

    def of(self, kind: type[Effect]) -> list[Effect]:
        """The last effects of one kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]
