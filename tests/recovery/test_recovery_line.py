"""Recovery lines: sets checkpoint without those that wait, and whatever is lost, its inputs can be had."""

from __future__ import annotations

import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId, SegmentId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState, ParkedQuery
from holdfast.recovery.effects import GlobalCheckpoint, RecoveryEnded
from holdfast.recovery.events import (
    CheckpointMarked,
    CheckpointStored,
    PartitionsReported,
    QueriesParked,
    QueriesResumed,
    RestoreFailed,
    StateMissing,
)
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.recovery_line import edge_holds, is_consistent, set_that_moves
from holdfast.recovery.segments import Segments
from holdfast.recovery.states import AT_WORK_STATES, LIVE_STATES, PartitionState
from holdfast.topology import Input, Operator, Partitioning, Topology
from recovery.machine_driving import Driven, chain, part, star

S, A, B, C = (part(one) for one in "sabc")


def line_of(driven: Driven, names: str) -> list[int]:
    return [driven.machine.state.checkpoints.line[part(one)] for one in names]


# -- edges and sets ----------------------------------------------------------------------------------------------------


def holds(at: int, consumer_at: int, first: int | None = None, *, unsure: bool = False) -> bool:
    graph = PartitionGraph(chain("ab"), {OperatorId("a"): not unsure})
    reach = None if first is None else BatchId(first)
    return edge_holds(graph, part("a"), BatchId(at), BatchId(consumer_at), lambda p, batch: reach)


def test_what_an_edge_needs_of_a_line() -> None:
    assert holds(4, 4)
    assert holds(2, 4), "it makes the same blocks again"
    assert not holds(2, 4, unsure=True), "it would make others, and the consumer has processed these"
    assert not holds(6, 4), "nobody has batches 5 and 6"
    assert not holds(6, 4, first=6)
    assert holds(6, 4, first=5)
    assert holds(6, 4, first=1)


def test_a_set_moves_without_the_one_that_waits_if_snapshots_hold_what_that_one_needs() -> None:
    graph = PartitionGraph(star([1, 1]))
    line = {p: BatchId(3) for p in graph.order}
    for first, wanted in ((4, {S: 8, A: 8}), (5, {A: 8}), (None, {A: 8})):
        reach = None if first is None else BatchId(first)
        found = set_that_moves(graph, line, {S: BatchId(8), A: BatchId(8)}, lambda p, batch, reach=reach: reach)  # type: ignore[misc]
        assert found == wanted


def test_several_move_together_where_none_could_alone() -> None:
    """A sender that is not deterministic, and a consumer that waits where it stands."""
    graph = PartitionGraph(chain("ab"), {OperatorId("a"): False, OperatorId("b"): False})
    line = {p: BatchId(3) for p in graph.order}
    targets = {part("a"): BatchId(9), part("b"): BatchId(6)}

    def reach(p: PartitionId, batch: BatchId) -> BatchId | None:
        return BatchId(7) if p == part("a") and batch == 9 else None

    assert set_that_moves(graph, line, targets, reach) == targets
    assert set_that_moves(graph, line, {part("a"): BatchId(9)}, reach) == {}
    assert set_that_moves(graph, line, {part("b"): BatchId(6)}, reach) == {}


# -- the machine -------------------------------------------------------------------------------------------------------


def waiting() -> Driven:
    """Source `s`, queries `a` and `b`; `b` is lost after a checkpoint at 3, and there is no node for it."""
    driven = Driven(star([1, 5]), nodes={"n1": 2.0, "n2": 2.0, "n3": 2.0})
    driven.cycle(3)
    driven.checkpoint(3, durable=True)
    driven.lose(str(driven.node("b")))
    assert driven.state("b") == "lost"
    driven.cycle(3)
    return driven


def test_live_partitions_checkpoint_and_trim_without_a_lost_one() -> None:
    driven = waiting()
    for batch in (5, 8):
        driven.cycle(batch)
        driven.checkpoint(batch)
        assert driven.of(GlobalCheckpoint) == [GlobalCheckpoint(BatchId(batch), BatchId(3), NOTHING, (B,))]
    assert line_of(driven, "sab") == [8, 8, 3]
    assert driven.machine.state.keep_from() == {S: 4, A: 9}, "for the one that waits, and nothing for the other"


def test_a_second_loss_goes_back_to_the_checkpoint_of_its_set() -> None:
    driven = waiting()
    driven.cycle(8)
    driven.checkpoint(8)
    driven.cycle(9)
    driven.lose(str(driven.node("s")))
    driven.arrive({"n4": 2.0})
    status = driven.machine.state.partitions[S]
    assert (status.start.batch, status.kept_from) == (8, 4), "with what the waiting one needs"


def test_the_one_that_waited_comes_back_and_the_next_checkpoint_is_of_all() -> None:
    driven = waiting()
    driven.cycle(8)
    driven.checkpoint(8)
    driven.arrive({"n4": 2.0})
    assert driven.machine.state.partitions[B].start.batch == 3
    for _ in range(3):
        driven.cycle(9)
    driven.checkpoint(9)
    assert line_of(driven, "sab") == [9, 9, 9]
    assert driven.of(RecoveryEnded)
    assert driven.machine.state.keep_from()[S] == 10


def test_a_partition_behind_a_lost_one_saves_where_it_stands() -> None:
    """Its sender has trimmed what it has processed since the checkpoint, and could not move past it otherwise."""
    topology = Topology(
        "join",
        [
            Operator(OperatorId("s"), 1, (), cost=1.0),
            Operator(OperatorId("t"), 1, (), cost=1.0),
            Operator(OperatorId("a"), 1, (Input(OperatorId("s"), Partitioning.ONE_TO_ONE),), cost=1.0, output=True),
            Operator(
                OperatorId("b"),
                1,
                (Input(OperatorId("s"), Partitioning.ONE_TO_ONE), Input(OperatorId("t"), Partitioning.ONE_TO_ONE)),
                cost=1.0,
                output=True,
            ),
        ],
    )
    driven = Driven(topology, nodes={f"n{number}": 1.3 for number in range(4)})
    driven.cycle(3)
    driven.checkpoint(3)
    driven.cycle(5)
    driven.lose(str(driven.node("t")))
    driven.cycle(6)
    state = driven.machine.state
    assert driven.state("t") == "lost"
    assert state.marks_for(B) == (5,), "it waits for `t`, which is lost"
    driven.save(B, 5)
    driven.cycle(8)
    driven.checkpoint(8, without="b")
    assert line_of(driven, "stab") == [8, 3, 8, 5]
    assert state.keep_from()[S] == 6


def test_rows_kept_aside_beyond_the_acknowledged_frontier_are_made_again() -> None:
    """A snapshot may be saved of a batch whose late rows are not written: nobody starts from it, and it is no mark."""
    for durable in (False, True):
        driven = Driven(star([1, 5]), nodes={"n1": 2.0, "n2": 2.0, "n3": 2.0})
        driven.cycle(3)
        driven.checkpoint(3, durable=durable)
        driven.tell(QueriesParked({A: ParkedQuery(A, BatchId(4), "wrong", 0.0, 1)}))  # outboxes are in the snapshots
        driven.cycle(3)
        driven.tell(CheckpointMarked(BatchId(5), durable))
        # Up to 5 everything is processed and out; what `b` kept aside is not written, so its frontier does not count.
        live, out = {S: BatchId(5)}, {B: BatchId(5)}
        driven.tell(PartitionsReported(driven.machine.state.epoch, BatchId(5), live, frozenset(live), out))
        for p in (S, B):
            driven.save(p, 5, durable=durable)
        driven.lose(str(driven.node("b")))
        driven.cycle(5)
        assert line_of(driven, "b") == [3]
        assert driven.machine.state.partitions[B].start.batch == 3
        assert driven.machine.state.partitions[B].frontier == 3


# -- two versions of a batch -------------------------------------------------------------------------------------------


def save_twice(driven: Driven, p: PartitionId, batch: int, outbox_from: int, *, durable: bool = False) -> SavedSnapshot:
    """Save two versions of a batch, as after a restore: the later one alone holds outputs. Returns the later."""
    epoch = driven.machine.state.partitions[p].start.epoch
    earlier = SavedSnapshot(BatchId(batch), Epoch(epoch - 1), None, None, saved=(1, 1))
    later = SavedSnapshot(BatchId(batch), epoch, None, BatchId(outbox_from), durable, saved=(1, 2))
    for one in (earlier, later):
        driven.tell(CheckpointStored(p, one))
    assert driven.machine.state.checkpoints.snapshots(p)[-2:] == [earlier, later]
    return later


def lose_snapshot(driven: Driven, p: PartitionId, snapshot: SavedSnapshot) -> None:
    """Lose the node of a partition, and find that the snapshot it starts from is damaged."""
    node = driven.machine.state.partitions[p].node
    assert node is not None
    driven.lose(node)
    driven.arrive({f"instead of {node}": 2.0})
    assert driven.machine.state.partitions[p].start.snapshots[-1] == snapshot
    driven.tell(RestoreFailed(p, snapshot.id, driven.machine.state.epoch, "3 of 4 fragments are gone"))


def test_a_version_that_lacks_what_a_consumer_needs_does_not_stand_for_a_lost_one() -> None:
    """Seed 1034263644060: the consumer asked for batches that its sender did not have, and nothing moved any more."""
    driven = waiting()
    driven.cycle(8)
    driven.tell(CheckpointMarked(BatchId(8), durable=False))
    later = save_twice(driven, S, 8, 4)
    driven.save(A, 8)
    assert line_of(driven, "sab") == [8, 8, 3], "the later snapshot of `s` holds what `b` needs"
    lose_snapshot(driven, S, later)
    state = driven.machine.state
    assert is_consistent(state.graph, state.checkpoints.line, state.checkpoints.outbox_from)
    assert line_of(driven, "sab") == [3, 3, 3]
    assert state.partitions[S].kept_from <= state.partitions[B].start.batch + 1


def test_a_version_of_a_batch_stands_for_a_lost_one_where_nobody_needs_more() -> None:
    driven = waiting()
    driven.arrive({"n4": 2.0})
    driven.cycle(8)
    driven.tell(CheckpointMarked(BatchId(8), durable=False))
    later = save_twice(driven, S, 8, 4)
    for p in (A, B):
        driven.save(p, 8)
    assert line_of(driven, "sab") == [8, 8, 8]
    lose_snapshot(driven, S, later)
    assert line_of(driven, "sab") == [8, 8, 8]
    assert driven.machine.state.partitions[S].start.batch == 8


@pytest.mark.parametrize("durable", [False, True])
def test_a_version_that_lacks_rows_that_are_not_out_does_not_stand_for_a_lost_one(durable: bool) -> None:
    """Its sink failed: the later snapshot holds the outputs of batches 6 to 8, the earlier one does not."""
    driven = Driven(star([1, 5]), nodes={"n1": 2.0, "n2": 2.0, "n3": 2.0})
    for batch in (1, 3):
        driven.cycle(batch)
        driven.checkpoint(batch, durable=True)
    driven.cycle(5)
    state = driven.machine.state
    driven.logged = BatchId(8)
    state.keep_from()
    frontiers = dict.fromkeys((S, A, B), BatchId(8))
    driven.tell(PartitionsReported(state.epoch, BatchId(8), frontiers, frozenset(frontiers), {A: BatchId(8)}))
    driven.tell(CheckpointMarked(BatchId(8), durable))
    for p in (S, A):
        driven.save(p, 8, durable=durable)
    later = save_twice(driven, B, 8, 6, durable=durable)
    assert line_of(driven, "sab") == [8, 8, 8]
    lose_snapshot(driven, B, later)
    assert line_of(driven, "sab") == [3, 3, 3]
    assert state.partitions[B].kept_from <= state.published[B] + 1


# -- anything in any order ---------------------------------------------------------------------------------------------


def drawn_topology(draw: random.Random) -> tuple[Topology, dict[OperatorId, bool]]:
    """Operators of one partition, each reading some of those before; nondeterminism passes on downstream."""
    operators: list[Operator] = []
    sure: dict[OperatorId, bool] = {}
    for number in range(draw.randint(2, 6)):
        name = OperatorId("abcdef"[number])
        before = (
            [] if number == 0 or draw.random() < 0.15 else draw.sample(range(number), min(number, draw.randint(1, 2)))
        )
        sure[name] = draw.random() < 0.85 and all(sure[OperatorId("abcdef"[one])] for one in before)
        inputs = tuple(Input(OperatorId("abcdef"[one]), Partitioning.ONE_TO_ONE) for one in sorted(before))
        operators.append(Operator(name, 1, inputs, cost=1.0, priority=draw.randint(1, 3)))
    return Topology("drawn", operators), sure


class Storm:
    """A machine, and events in an order that a seed draws."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        topology, sure = drawn_topology(self.draw)
        self.driven = Driven(topology)
        self.driven.machine = RecoveryMachine(ClusterState(PartitionGraph(topology, sure)))
        self.nodes = 0
        self.arrive(self.draw.randint(1, 4))

    @property
    def state(self) -> ClusterState:
        return self.driven.machine.state

    def arrive(self, count: int = 1) -> None:
        self.driven.arrive({f"n{self.nodes + number}": 2.6 for number in range(count)})
        self.nodes += count

    def step(self) -> None:
        action = self.draw.choice(
            ("cycle", "cycle", "cycle", "mark", "save", "save", "save", "lose", "arrive", "park", "resume", "missing")
        )
        getattr(self, action)()
        self.check()

    def cycle(self, *, everybody: bool = False) -> None:
        state = self.state
        state.keep_from()
        if self.draw.random() < 0.7:
            self.driven.logged = BatchId(self.driven.logged + self.draw.randint(0, 3))
        frontiers: dict[PartitionId, BatchId] = {}
        for p in state.in_state([*AT_WORK_STATES, PartitionState.RESTORING]):
            if not everybody and self.draw.random() < 0.3:
                continue
            mine = state.partitions[p]
            senders = [state.partitions[one].frontier for one in state.graph.senders(p)]
            most = min(senders, default=self.driven.logged)
            frontiers[p] = max(mine.frontier, most if everybody else BatchId(self.draw.randint(-1, max(most, -1))))
        out = {}
        for p in state.graph.outputs:
            late = state.checkpoints.durable_line[p] if not state.graph.deterministic(p) else frontiers.get(p, NOTHING)
            if p in frontiers and p not in state.parked and (everybody or self.draw.random() < 0.8):
                out[p] = min(late, frontiers[p])
        self.driven.tell(PartitionsReported(state.epoch, self.driven.logged, frontiers, frozenset(frontiers), out))

    def mark(self, durable: bool | None = None) -> BatchId:
        self.driven.logged = BatchId(self.driven.logged + 1)
        durable = self.draw.random() < 0.4 if durable is None else durable
        self.driven.tell(CheckpointMarked(self.driven.logged, durable))
        return self.driven.logged

    def save(self, *, everybody: bool = False) -> None:
        state = self.state
        state.keep_from()
        for p in state.in_state(LIVE_STATES):
            mine = state.partitions[p]
            for mark in state.marks_for(p):
                if mark <= mine.frontier and (everybody or self.draw.random() < 0.5):
                    first = min(mine.kept_from, BatchId(mark + 1)) if state.with_outbox(p) else None
                    saved = (self.draw.getrandbits(30), 0)
                    durable = state.checkpoints.is_durable(mark)
                    self.driven.tell(
                        CheckpointStored(p, SavedSnapshot(mark, mine.start.epoch, None, first, durable, saved))
                    )
                    self.check()

    def lose(self) -> None:
        if self.state.nodes:
            self.driven.lose(*self.draw.sample(sorted(self.state.nodes), self.draw.randint(1, len(self.state.nodes))))

    def missing(self) -> None:
        placed = self.state.placement
        if placed:
            p = self.draw.choice(sorted(placed))
            self.driven.tell(StateMissing(p, NodeId(placed[p]), self.state.epoch))

    def park(self) -> None:
        query = self.draw.choice(self.state.graph.outputs)
        self.driven.tell(QueriesParked({query: ParkedQuery(query, BatchId(0), "wrong", 0.0, 1)}))

    def resume(self) -> None:
        self.driven.tell(QueriesResumed(tuple(self.state.parked)))

    def check(self) -> None:
        """Whatever is lost next, its inputs can be had, and nothing that was not published is gone."""
        state, checkpoints = self.state, self.state.checkpoints
        for line in (checkpoints.line, checkpoints.durable_line, checkpoints.oldest_line):
            assert is_consistent(state.graph, line, checkpoints.outbox_from)
            for p, at in line.items():
                assert at == NOTHING or checkpoints.at(p, at) is not None, (p, at)
        for p, mine in state.partitions.items():
            at = checkpoints.line[p]
            assert mine.acknowledged >= at, "what it kept aside is written"
            held = checkpoints.outbox_from(p, at)
            if p in state.published:
                assert state.published[p] >= at or (held is not None and held <= state.published[p] + 1)
                assert mine.kept_from <= state.published[p] + 1
            for consumer in state.graph.consumers(p):
                assert mine.kept_from <= state.partitions[consumer].frontier + 1, (p, consumer)
            if not state.graph.senders(p):
                assert state.inputs_from <= min(mine.frontier, at)
        assert len(checkpoints.marks) < 30


@given(st.integers(0, 2**32))
def test_whatever_is_lost_its_inputs_can_be_had(seed: int) -> None:
    storm = Storm(seed)
    for _ in range(40):
        storm.step()


class DamagingStorm(Storm):
    """A storm in which nodes have more than one version of a batch, and snapshots are damaged."""

    def step(self) -> None:
        super().step()
        if self.draw.random() < 0.3:
            self.damage()
            self.check()

    def save(self, *, everybody: bool = False) -> None:
        for p in self.state.in_state(LIVE_STATES):
            mine = self.state.partitions[p]
            for mark in self.state.marks_for(p):
                if mark <= mine.frontier and self.state.graph.deterministic(p) and self.draw.random() < 0.4:
                    before = Epoch(mine.start.epoch - 1)
                    saved = (self.draw.getrandbits(30), 0)
                    self.driven.tell(CheckpointStored(p, SavedSnapshot(mark, before, saved=saved)))
                    self.check()
        super().save(everybody=everybody)

    def damage(self) -> None:
        """Damage what a partition restores; not where only durable checkpoints are left."""
        state = self.state
        found = [
            (p, one)
            for p in state.in_state([PartitionState.RESTORING])
            for one in state.partitions[p].start.snapshots
            if not one.durable
        ]
        if found:
            p, one = self.draw.choice(found)
            self.driven.tell(RestoreFailed(p, one.id, state.epoch, "3 of 4 fragments are gone"))


@given(st.integers(0, 2**32))
def test_whatever_snapshot_is_damaged_inputs_can_be_had(seed: int) -> None:
    storm = DamagingStorm(seed)
    for _ in range(40):
        storm.step()


@given(st.integers(0, 2**32))
def test_what_waits_holds_nobody_back(seed: int) -> None:
    """After any storm those that go on checkpoint at the next marks, whatever the others wait for."""
    storm = Storm(seed)
    for _ in range(25):
        storm.step()
    for _ in range(3):
        mark = storm.mark()
        for _ in range(len(storm.state.partitions) + 2):
            storm.cycle(everybody=True)
            storm.check()
        storm.save(everybody=True)
        storm.cycle(everybody=True)
    able = storm.state.able()
    assert {p: storm.state.checkpoints.line[p] for p in able} == dict.fromkeys(able, mark)


@given(st.integers(0, 2**32))
def test_once_everything_is_back_the_line_is_one_batch_and_recovery_ends(seed: int) -> None:
    storm = Storm(seed)
    for _ in range(25):
        storm.step()
    storm.resume()
    for _ in range(3):
        storm.arrive(len(storm.state.partitions))
        mark = storm.mark(durable=True)
        for _ in range(len(storm.state.partitions) + 2):
            storm.cycle(everybody=True)
            storm.check()
        storm.save(everybody=True)
        storm.cycle(everybody=True)
    lines: list[Mapping[PartitionId, BatchId]] = [storm.state.checkpoints.line, storm.state.checkpoints.durable_line]
    assert all(set(line.values()) == {mark} for line in lines)
    assert not storm.state.recovering
    assert not storm.state.buffering


@pytest.mark.parametrize("many", [False, True])
def test_those_that_come_to_a_checkpoint_move_though_that_of_others_is_not_durable_yet(many: bool) -> None:
    """These have trimmed what the first have completed since: a durable snapshot that holds it cannot be had."""
    driven = waiting()
    if many:
        names = {OperatorId(one): SegmentId(segment) for one, segment in zip("sab", "sas", strict=True)}
        driven.machine.state.segments = driven.machine.state.checkpoints.segments = Segments(names)
    driven.cycle(8)
    driven.checkpoint(8)
    assert line_of(driven, "sab") == [8, 8, 3]
    driven.arrive({"n4": 2.0})
    driven.cycle(8)
    assert driven.machine.state.partitions[B].frontier == 8
    driven.tell(CheckpointMarked(BatchId(8), durable=True))

    for number, p in enumerate((S, A, B, S)):  # nodes have trimmed what all consumers have completed
        epoch = driven.machine.state.partitions[p].start.epoch
        snapshot = SavedSnapshot(BatchId(8), epoch, None, None, durable=True, saved=(1, number))
        driven.tell(CheckpointStored(p, snapshot))
    assert line_of(driven, "sab") == [8, 8, 8]
    assert set(driven.machine.state.checkpoints.durable_line.values()) == {8}
