"""Second copies of partitions: built, promoted, dropped, moved; by hand, and in storms with modelled outboxes."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest

from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.recovery.copies import RETIRE_BATCHES, copy_problems, keep_from, wanted
from holdfast.recovery.copying import PARTING_BATCHES
from holdfast.recovery.effects import (
    CopyDropped,
    CopyLeftOut,
    CopyPlaced,
    Fence,
    NodesEvacuated,
    Promoted,
    ReplicasChanged,
    RequestNodes,
    RollBack,
)
from holdfast.recovery.events import NodesLeaving, PartitionsReported, ReplicasPlanned
from holdfast.recovery.states import LIVE_STATES, PLACED_STATES, PartitionState
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.topology import Input, Operator, Partitioning, Topology
from recovery.machine_driving import Driven, chain, part, parts


@dataclass(slots=True)
class Files:
    """What a node really has of a partition."""

    frontier: int
    kept_from: int


class Stored(Driven):
    """A machine whose nodes have files: what is trimmed is gone, and nobody gets a batch that is not there."""

    def begin(self) -> None:
        self.files: dict[tuple[PartitionId, str], Files] = {}

    def turn(self, draw: random.Random, most: int = 3) -> None:
        """Everybody trims as it is told, takes some batches, and reports; copies too."""
        state = self.machine.state
        self.settle()
        for p, first in state.keep_from().items():
            mine = self.files[p, state.partitions[p].node]
            mine.kept_from = max(mine.kept_from, first)
        told = {p: state.partitions[p].frontier for p in state.copies.at}
        for p, first in keep_from(state).items():
            mine = self.files[p, state.copies.at[p].node]
            mine.kept_from = max(mine.kept_from, first)
        frontiers: dict[PartitionId, BatchId] = {}
        for p in state.in_state(PLACED_STATES):
            if state.partitions[p].state in (PartitionState.PAUSED, PartitionState.PARKED):
                continue
            frontiers[p] = BatchId(self.take(p, state.partitions[p].node, self.logged, draw.randint(0, most)))
        copies = {}
        for p, copy in state.copies.at.items():
            if draw.random() < 0.8:
                copies[p] = BatchId(self.take(p, copy.node, told[p], draw.randint(0, most)))
        out = {p: frontiers[p] for p in state.graph.outputs if p in frontiers and draw.random() < 0.8}
        self.tell(
            PartitionsReported(
                state.epoch, self.logged, frontiers, frozenset(frontiers), out, copies=copies, copy_problems={}
            )
        )
        assert copy_problems(state) == []

    def settle(self) -> None:
        """Put in place what is new: a start, a rollback, a copy; check what is said of the others."""
        state = self.machine.state
        for p in state.in_state(PLACED_STATES):
            mine = state.partitions[p]
            if mine.state is PartitionState.RESTORING:
                self.files[p, mine.node] = Files(mine.start.batch, mine.kept_from)
            have = self.files[p, mine.node]
            assert have.frontier >= mine.frontier, f"{p} is taken to have what it has not"
            assert have.kept_from <= mine.kept_from, f"{p} is taken to keep what it has not"
        for p, copy in state.copies.at.items():
            key = p, copy.node
            have = self.files.get(key)
            if copy.state == "building" and (have is None or not copy.frontier == have.frontier >= copy.start.batch):
                self.files[key] = Files(copy.start.batch, copy.kept_from)
            assert self.files[key].frontier >= copy.frontier
            assert self.files[key].kept_from <= copy.kept_from

    def take(self, p: PartitionId, node: str, logged: int, most: int) -> int:
        """Take batches that senders have; one that has dropped the next one is a fault."""
        state, mine = self.machine.state, self.files[p, node]
        for _ in range(most):
            if mine.frontier >= logged:
                break
            senders = [
                (s, self.files.get((s, state.partitions[s].node)))
                for s in state.graph.senders(p)
                if state.partitions[s].state in LIVE_STATES or state.partitions[s].state is PartitionState.RESTORING
            ]
            if len(senders) < len(state.graph.senders(p)):
                break
            if any(one is None or one.frontier <= mine.frontier for _, one in senders):
                break
            for s, one in senders:
                assert one is not None
                what = f"{p} on {node} needs batch {mine.frontier + 1} of {s}, which has {one}"
                assert one.kept_from <= mine.frontier + 1, what
            mine.frontier += 1
        return mine.frontier


def replicated(names: str, **more: object) -> RecoverySettings:
    return RecoverySettings(replicas=tuple(parts(names)), **more)  # type: ignore[arg-type]


def copy_nodes(driven: Driven) -> dict[str, str]:
    return {str(p.operator): copy.node for p, copy in driven.machine.state.copies.at.items()}


def follow(driven: Driven, through: int) -> None:
    """A clean cycle in which copies get as far as their primaries were before it."""
    state = driven.machine.state
    told = {p: state.partitions[p].frontier for p in state.copies.at}
    driven.cycle(through)
    state.keep_from()
    keep_from(state)
    driven.tell(PartitionsReported(state.epoch, driven.logged, {}, copies=told))


class TestByHand:
    def started(self, settings: RecoverySettings, *, unsure: str = "", nodes: int = 3) -> Driven:
        driven = Driven(chain("abc"), settings, unsure=unsure, nodes={f"n{i}": 10.0 for i in range(nodes)})
        for batch in range(3):
            follow(driven, batch)
        return driven

    def test_a_copy_is_built_beside_its_primary_without_an_epoch(self) -> None:
        driven = Driven(chain("abc"), replicated("b"), nodes={"n0": 10.0, "n1": 10.0})
        epoch = driven.machine.state.epoch
        driven.cycle(0)
        assert copy_nodes(driven)["b"] != driven.node("b")
        assert driven.machine.state.epoch == epoch
        assert not driven.of(Fence)

    def test_another_plan_starts_its_copies_before_it_stops_others(self) -> None:
        driven = self.started(replicated("b"))
        epoch = driven.machine.state.epoch
        effects = driven.tell(ReplicasPlanned(tuple(parts("c")), "c is busier"))
        assert [(one.start, one.stop) for one in effects if isinstance(one, ReplicasChanged)] == [
            (tuple(parts("c")), tuple(parts("b")))
        ]
        assert set(copy_nodes(driven)) == {"b", "c"}, "the copy of b stays until that of c is level"
        follow(driven, 3)
        follow(driven, 4)
        assert set(copy_nodes(driven)) == {"c"}
        assert driven.machine.state.epoch == epoch, "without an epoch nothing pauses"

    def test_what_a_plan_no_longer_has_goes_at_once_where_it_must(self) -> None:
        driven = self.started(replicated("b"))
        driven.tell(ReplicasPlanned(tuple(parts("c")), "less room", at_once=True))
        assert set(copy_nodes(driven)) == {"c"}
        driven.tell(ReplicasPlanned((), "no budget"))
        assert copy_nodes(driven) == {}
        assert driven.machine.state.copies.retiring == {}

    def test_copies_that_retire_make_room_for_those_of_the_plan(self) -> None:
        driven = Driven(chain("abc"), replicated(""), nodes={"n0": 2.5, "n1": 2.5})
        full = max({"n0", "n1"}, key=[driven.node(p) for p in "abc"].count)
        first, second = [p for p in "abc" if driven.node(p) == full]  # the other node has room for one more
        driven.tell(ReplicasPlanned(tuple(parts(first)), "it is busier"))
        for batch in range(3):
            follow(driven, batch)
        driven.checkpoint(2)
        follow(driven, 3)
        assert set(copy_nodes(driven)) == {first}
        driven.tell(ReplicasPlanned(tuple(parts(second)), "it is busier"))
        for batch in range(4, 8):
            follow(driven, batch)
        assert set(copy_nodes(driven)) == {second}

    def test_copies_retire_after_a_while_where_those_of_the_plan_never_come_level(self) -> None:
        driven = self.started(replicated("b"))
        driven.tell(ReplicasPlanned(tuple(parts("c")), "c is busier"))
        for batch in range(3, 3 + RETIRE_BATCHES + 2):
            driven.cycle(batch)  # copies report nothing
        assert part("b") not in driven.machine.state.copies.at
        assert driven.machine.state.copies.retiring == {}

    def test_a_copy_that_retires_still_takes_over(self) -> None:
        driven = self.started(replicated("b"))
        driven.tell(ReplicasPlanned(tuple(parts("c")), "c is busier"))
        effects = driven.lose(str(driven.node("b")))
        assert part("b") in [one.partition for one in effects if isinstance(one, Promoted)]
        assert part("b") not in wanted(driven.machine.state)

    def test_a_plan_of_what_is_not_deterministic_or_not_there_starts_nothing(self) -> None:
        driven = self.started(replicated("a"), unsure="b")
        effects = driven.tell(ReplicasPlanned((*parts("a b"), PartitionId(OperatorId("z"), 0)), "drawn"))
        assert not [one for one in effects if isinstance(one, ReplicasChanged)]
        assert set(copy_nodes(driven)) == {"a"}

    def test_a_replica_is_never_on_its_primarys_node_and_a_line_says_so(self) -> None:
        driven = Driven(chain("abc"), replicated("b"))
        seen = {}
        for effects in (driven.arrive({"n0": 10.0}), driven.cycle(0), driven.cycle(1)):
            seen |= {one.partition: one.why for one in effects if isinstance(one, CopyLeftOut)}
        assert seen == {part("b"): "the only node is n0, where its primary runs"}

    def test_a_level_copy_takes_over_and_nothing_rolls_back(self) -> None:
        driven = self.started(replicated("a b c"))
        where, copy = driven.node("b"), copy_nodes(driven)["b"]
        effects = driven.lose(str(where))
        promoted = [one for one in effects if isinstance(one, Promoted)]
        assert part("b") in [one.partition for one in promoted]
        assert driven.node("b") == copy
        assert driven.state("b") == "catching-up"
        assert not driven.of(RollBack)
        assert not driven.machine.state.lost
        assert not driven.machine.state.recovering

    def test_a_copy_whose_node_is_lost_with_the_primary_is_no_help(self) -> None:
        driven = self.started(replicated("b"), nodes=4)
        driven.lose(str(driven.node("b")), copy_nodes(driven)["b"])
        assert not driven.of(Promoted)
        assert driven.machine.state.recovering
        assert part("b") not in driven.machine.state.copies.at

    def test_a_lost_copy_costs_no_epoch_and_is_built_again(self) -> None:
        driven = Driven(chain("b"), replicated("b"), nodes={"n0": 10.0, "n1": 10.0, "n2": 10.0})
        follow(driven, 0)
        at = copy_nodes(driven)["b"]
        epoch = driven.machine.state.epoch
        driven.lose(at)
        assert driven.of(CopyDropped)
        assert driven.machine.state.epoch == epoch
        follow(driven, 1)
        assert copy_nodes(driven)["b"] not in (at, driven.node("b"))

    def test_a_node_has_one_copy_of_a_partition_in_an_epoch(self) -> None:
        driven = Driven(chain("ab"), replicated("b"), nodes={"n0": 10.0, "n1": 10.0})
        follow(driven, 0)
        state = driven.machine.state
        epoch = state.epoch
        driven.tell(PartitionsReported(epoch, driven.logged, {}, copy_problems={part("b"): "its operator has failed"}))
        assert driven.of(CopyDropped)
        assert not state.copies.at
        follow(driven, 1)
        assert not state.copies.at, "it waits a while"
        for batch in range(2, 5):
            follow(driven, batch)
        assert state.copies.at
        assert state.epoch > epoch, "by node and epoch everybody knows which copy is meant"

    def test_what_is_not_deterministic_has_no_copy(self) -> None:
        driven = self.started(replicated("a b c"), unsure="bc")
        assert set(copy_nodes(driven)) == {"a"}

    def test_a_copy_yields_where_a_lost_partition_needs_the_room(self) -> None:
        driven = Driven(chain("ab"), replicated("a b", bound=1.0), nodes={"n0": 2.0, "n1": 2.0})
        follow(driven, 0)
        assert len(driven.machine.state.copies.at) == 2
        driven.lose(str(driven.node("b")))
        follow(driven, 1)
        state = driven.machine.state
        assert state.placement.keys() == set(parts("a b"))
        assert len(set(state.placement.values())) == 1
        assert not state.copies.at

    def test_copies_need_room(self) -> None:
        driven = Driven(chain("ab"), replicated("a b", bound=1.0), nodes={"n0": 1.0, "n1": 1.0})
        follow(driven, 0)
        assert not driven.machine.state.copies.at

    def test_one_that_finds_no_place_is_named_once(self) -> None:
        driven = Driven(chain("ab"), replicated("a", bound=1.0))
        driven.arrive({"n0": 2.0})
        driven.cycle()
        assert [one.partition for one in driven.effects if isinstance(one, CopyLeftOut)] == parts("a")
        driven.cycle(0)
        assert not driven.of(CopyLeftOut)
        driven.arrive({"n1": 2.0})
        driven.cycle(1)
        assert copy_nodes(driven) == {"a": "n1"}

    def test_a_copy_that_falls_behind_the_checkpoint_is_dropped(self) -> None:
        driven = Driven(chain("ab"), replicated("b", replica_lag=2), nodes={"n0": 9.0, "n1": 9.0, "n2": 9.0})
        follow(driven, 0)
        state = driven.machine.state
        held = state.copies.at[part("b")]
        driven.tell(PartitionsReported(state.epoch, driven.logged, {}, copies={part("b"): BatchId(0)}))
        for batch in range(1, 6):
            driven.cycle(batch)
            driven.checkpoint(batch)
            driven.cycle(batch)
            if state.copies.at.get(part("b")) is not held:
                break
        assert batch == 3, "at batch 0 it holds its senders back by two batches, and not by more"

    def test_with_source_replay_there_are_none(self) -> None:
        driven = self.started(replicated("b", strategy=RecoveryStrategy.SOURCE_REPLAY))
        assert not driven.machine.state.copies.at

    def test_failure_domains_are_kept_apart_where_that_is_possible(self) -> None:
        driven = Driven(chain("a"), replicated("a"))
        driven.machine.state.copies.domain_of = {"n0": "r1", "n1": "r1", "n2": "r2"}.get  # type: ignore[assignment]
        driven.arrive({"n0": 9.0})
        driven.cycle(0)
        driven.arrive({"n1": 9.0})
        driven.arrive({"n2": 9.0})
        driven.cycle(1)
        assert copy_nodes(driven)["a"] == "n2"


def test_a_copy_that_began_with_an_earlier_snapshot_than_is_counted_on_is_dropped() -> None:
    """Seed 355199880609: it was promoted at the batch of the later snapshot, and stood before it."""
    driven = Driven(chain("ab"), replicated("b", replica_lag=0), nodes={"n0": 9.0, "n1": 9.0})
    driven.cycle(0)
    state = driven.machine.state
    copy = state.copies.at[part("b")]
    began = copy.frontier
    for batch in (1, 2):
        driven.cycle(batch)
        driven.checkpoint(batch)
    assert copy.frontier > began, "a later snapshot is counted on"
    driven.tell(PartitionsReported(state.epoch, driven.logged, {}, copies={part("b"): began}))
    assert state.copies.at.get(part("b")) is not copy
    assert [one for one in driven.effects if isinstance(one, CopyDropped)]


class TestMoves:
    def test_a_leaving_node_is_evacuated_in_one_epoch(self) -> None:
        driven = Driven(chain("abc"), RecoverySettings(), nodes={"n0": 9.0, "n1": 9.0, "n2": 9.0})
        for batch in range(3):
            follow(driven, batch)
        state, leaving = driven.machine.state, str(driven.node("b"))
        assert driven.tell(NodesLeaving((NodeId(leaving),)))
        assert driven.of(RequestNodes)
        seen: list[object] = []
        for batch in range(3, 9):
            driven.checkpoint(batch - 1)
            seen += driven.effects
            follow(driven, batch)
            seen += driven.effects
            if leaving not in state.placement.values():
                break
        assert leaving not in state.placement.values()
        assert not any(isinstance(one, RollBack) for one in seen)
        driven.cycle(batch)
        driven.lose(leaving)
        assert not driven.of(RequestNodes), "one was requested when it said that it would go"
        assert not state.lost

    def test_a_leaving_node_is_evacuated_while_a_costly_partition_waits_for_room(self) -> None:
        """As in a wave of spot notices: what is left on the node would be lost next."""
        driven = self.hole()
        driven.tell(NodesLeaving((NodeId("going"),)))
        state = driven.machine.state
        assert state.lost == parts("a")
        assert state.copies.placement == {part("b"): NodeId("stays")}
        for batch in range(3, 7):
            follow(driven, batch)
        assert driven.node("b") == "stays"

    def test_a_leaving_node_takes_no_room_of_a_lost_partition_that_fits(self) -> None:
        driven = self.hole()
        state = driven.machine.state
        state.nodes[NodeId("stays")] = 4.0  # the plan for the lost is not made yet
        state.copies.leaving.add(NodeId("going"))
        follow(driven, 3)
        assert not state.copies.at
        state.nodes[NodeId("stays")] = 5.0
        follow(driven, 4)
        assert state.copies.placement == {part("b"): NodeId("stays")}

    def test_one_partition_without_a_copy_does_not_keep_the_others_on_a_leaving_node(self) -> None:
        """One that is not deterministic has none; the others move at once."""
        driven = Driven(chain("abc"), RecoverySettings(), unsure="c", nodes={"n0": 9.0})
        for batch in range(3):
            follow(driven, batch)
        driven.arrive({"n1": 9.0})
        driven.tell(NodesLeaving((NodeId("n0"),)))
        driven.checkpoint(2)
        for batch in range(3, 6):
            follow(driven, batch)
        assert [driven.node(p) for p in "abc"] == ["n1", "n1", "n0"]
        assert not driven.machine.state.copies.evacuated

    def test_partitions_of_a_leaving_node_wait_for_a_copy_that_comes_late_and_not_for_long(self) -> None:
        driven = Driven(chain("abc"), RecoverySettings(), nodes={"n0": 9.0})
        for batch in range(3):
            follow(driven, batch)
        driven.arrive({"n1": 9.0})
        driven.tell(NodesLeaving((NodeId("n0"),)))
        state = driven.machine.state
        at = {}
        for batch in range(3, 20):
            told = {p: state.partitions[p].frontier for p in state.copies.at if p != part("b")}
            driven.checkpoint(batch - 1)
            driven.cycle(batch)
            state.keep_from()
            keep_from(state)
            driven.tell(PartitionsReported(state.epoch, driven.logged, {}, copies=told))
            for p in "abc":
                if driven.node(p) == "n1":
                    at.setdefault(p, batch)
        assert at["a"] == at["c"] >= 3 + PARTING_BATCHES
        assert driven.node("b") == "n0"

    def hole(self) -> Driven:
        """`a`, of cost 4, is lost and finds no room; `b`, of cost 1, is on another node than one that stays."""
        two = [Operator(OperatorId(name), 1, (), cost=cost, output=True) for name, cost in (("a", 4.0), ("b", 1.0))]
        driven = Driven(Topology("two", two), RecoverySettings(bound=1.0), nodes={"big": 4.0, "going": 1.0})
        for batch in range(3):
            follow(driven, batch)
        assert (driven.node("a"), driven.node("b")) == ("big", "going")
        driven.arrive({"stays": 2.0})
        driven.lose("big")
        assert driven.state("a") == "lost"
        return driven

    def test_nothing_is_placed_on_a_leaving_node(self) -> None:
        driven = Driven(chain("ab"), RecoverySettings(), nodes={"n0": 9.0, "n1": 9.0})
        follow(driven, 0)
        leaving = "n0" if driven.node("a") != "n0" else "n1"
        driven.tell(NodesLeaving((NodeId(leaving),)))
        driven.lose("n0" if leaving == "n1" else "n1")
        assert NodeId(leaving) not in [driven.node(p) for p in "ab" if driven.state(p) == "restoring"]

    def test_an_empty_node_may_go_at_once(self) -> None:
        driven = Driven(chain("a"), RecoverySettings(), nodes={"n0": 9.0})
        driven.arrive({"n1": 9.0})
        driven.tell(NodesLeaving((NodeId("n1"),)))
        assert driven.of(NodesEvacuated)


def tree() -> Topology:
    """Two sources of two partitions, a join of two, and two queries."""

    def op(name: str, many: int, inputs: tuple[tuple[str, Partitioning], ...], **more: object) -> Operator:
        links = tuple(Input(OperatorId(source), kind) for source, kind in inputs)
        return Operator(OperatorId(name), many, links, cost=1.0, **more)  # type: ignore[arg-type]

    full = Partitioning.FULL
    return Topology(
        "tree",
        [
            op("s", 2, ()),
            op("t", 2, ()),
            op("j", 2, (("s", full), ("t", full))),
            op("q", 1, (("j", full),), output=True, priority=2),
            op("r", 1, (("s", full),), output=True, priority=1),
        ],
    )


@pytest.mark.parametrize("first", range(0, 120, 40))
def test_in_random_storms_nobody_needs_what_is_gone(first: int) -> None:
    promotions = moves = for_load = 0
    for seed in range(first, first + 40):
        draw = random.Random(seed)
        topology = tree() if seed % 2 else chain("abcd")
        names = [p for p in topology.partitions() if draw.random() < draw.choice((0.5, 1.0))]
        settings = RecoverySettings(
            replicas=tuple(names), replica_lag=draw.choice((0, 1, 4)), level_lag=draw.choice((0, 1)), bound=1.0
        )
        if seed % 4 > 1:  # without replicas there are more that may move
            settings = replace(settings, move_above=0.2, replicas=settings.replicas if seed % 8 > 5 else ())
        driven = Stored(topology, settings)
        driven.begin()
        count = draw.randint(3, 5)
        driven.arrive({f"n{i}": draw.choice((4.0, 9.0)) for i in range(count)})
        for _ in range(60):
            state, roll = driven.machine.state, draw.random()
            driven.effects = []
            if roll < 0.55:
                if draw.random() < 0.7:
                    driven.logged = BatchId(driven.logged + 1)
                driven.turn(draw)
            elif roll < 0.75 and state.in_state(LIVE_STATES):
                at = min(state.partitions[p].frontier for p in state.in_state(LIVE_STATES))
                if at > state.checkpoints.global_batch:
                    driven.settle()
                    driven.checkpoint(at)
            elif roll < 0.9 and settings.move_above < 1 and draw.random() < 0.8:
                continue  # moves for load need some peace
            elif roll < 0.85 and len(state.nodes) > 1:
                gone = draw.sample(sorted(state.nodes), draw.choice((1, 1, 2)) if len(state.nodes) > 2 else 1)
                driven.lose(*gone)
                promotions += len(driven.of(Promoted))
                driven.files = {key: one for key, one in driven.files.items() if key[1] not in gone}
            elif roll < 0.9 and len(state.nodes) > 2:
                driven.tell(NodesLeaving((draw.choice(sorted(state.nodes)),)))
            elif roll >= 0.9:
                count += 1
                driven.arrive({f"n{count}": 9.0})
            moves += sum(one.why == "moved" for one in driven.effects if isinstance(one, Promoted))
            for_load += sum(one.why == "moved for load" for one in driven.effects if isinstance(one, Promoted))
            assert copy_problems(state) == [], (seed, copy_problems(state))
            driven.settle()
    assert promotions > 20
    assert moves > 5
    assert for_load >= 3


def test_a_copy_that_is_placed_is_a_value_for_those_who_watch() -> None:
    driven = Driven(chain("ab"), replicated("b"), nodes={"n0": 9.0, "n1": 9.0})
    driven.cycle(0)
    placed = [one for one in (*driven.effects,) if isinstance(one, CopyPlaced)]
    held = driven.machine.state.copies.at[part("b")]
    assert held.node != driven.node("b")
    assert not placed or replace(placed[0], batch=held.start.batch) == placed[0]
