"""Tentative outputs in the recovery machine: who goes tentative, on what, with which fidelity, and when it is over."""

from __future__ import annotations

import pytest

from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.branches import branch_problems, read_tentative
from holdfast.recovery.checkpoints import Checkpoints, SavedSnapshot
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import BranchEnded, Corrected, Effect, Fence, WentTentative
from holdfast.recovery.events import Event, NodesArrived, NodesLost, PartitionsReported, Timer
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.states import LIVE_STATES
from holdfast.recovery.strategy import RecoverySettings
from holdfast.topology import Input, Operator, Partitioning, Topology


def p(name: str, index: int = 0) -> PartitionId:
    return PartitionId(OperatorId(name), index)


def topology() -> Topology:
    """Four sources, two counters, one sum; each counter reads two sources."""
    return Topology(
        "t",
        [
            Operator(OperatorId("s"), parallelism=4, rate=4.0, weights=(1, 1, 1, 1)),
            Operator(OperatorId("c"), parallelism=2, inputs=(Input(OperatorId("s"), Partitioning.MERGE),)),
            Operator(OperatorId("o"), parallelism=1, inputs=(Input(OperatorId("c"), Partitioning.MERGE),)),
        ],
    )


class Driven:
    """A machine whose partitions have what is reported for them."""

    def __init__(self, *, capacity: float | None = None, **settings: object) -> None:
        graph = PartitionGraph(topology())
        asked = {"tentative": frozenset({p("o")}), **settings}
        self.state = ClusterState(graph, RecoverySettings(level_lag=0, **asked))  # type: ignore[arg-type]
        self.machine = RecoveryMachine(self.state)
        self.seen: list[Effect] = []
        # Room for one partition each: those that are lost find none until a node comes.
        room = 1.0 / self.state.settings.bound if capacity is None else capacity
        self.handle(NodesArrived({NodeId(f"n{number}"): room for number in range(7)}))
        self.report(0)

    def handle(self, event: Event) -> list[Effect]:
        found = self.machine.handle(event)
        self.seen += found
        assert branch_problems(self.state) == []
        return found

    def report(self, batch: int, *, tentative: dict[PartitionId, int] | None = None, **more: object) -> list[Effect]:
        """All live partitions without a hole upstream complete a batch; outputs are out."""
        state = self.state
        frontiers: dict[PartitionId, BatchId] = {}
        for one in state.graph.order:
            mine = state.partitions[one]
            if mine.node is None:
                continue
            senders = [frontiers.get(s, state.partitions[s].frontier) for s in state.graph.senders(one)]
            frontiers[one] = BatchId(min([batch, *senders]))
        published = {p("o"): frontiers[p("o")]} if p("o") in frontiers else {}
        restored = frozenset(frontiers)
        given = {query: BatchId(at) for query, at in (tentative or {}).items()}
        return self.handle(
            PartitionsReported(
                state.epoch,
                BatchId(batch),
                frontiers,
                restored,
                published,
                0,
                tentative=given,
                **more,  # type: ignore[arg-type]
            )
        )

    def lose(self, *partitions: PartitionId) -> list[Effect]:
        nodes = tuple({self.state.placement[one] for one in partitions})
        also = [one for one, node in self.state.placement.items() if node in nodes]
        assert sorted(also) == sorted(partitions), "each is on a node of its own"
        return self.handle(NodesLost(nodes))


@pytest.fixture
def driven() -> Driven:
    found = Driven()
    assert len(set(found.state.placement.values())) == 7
    return found


def test_a_query_goes_tentative_with_the_fidelity_of_exactly_this_failure(driven: Driven) -> None:
    driven.report(5)
    found = driven.lose(p("s", 1))
    (went,) = [one for one in found if isinstance(one, WentTentative)]
    assert went == WentTentative(p("o"), BatchId(6), 0.75, (p("s", 1),))
    assert dict(driven.state.branches.now.members) == {p("c", 0): (p("s", 1),), p("o"): ()}
    (also,) = [one for one in driven.lose(p("s", 0)) if isinstance(one, WentTentative)]
    assert also.fidelity == pytest.approx(0.5)
    assert also.since == 6
    # c[0] has nothing left: it is a hole itself.
    assert dict(driven.state.branches.now.members) == {p("o"): (p("c", 0),)}


def test_nobody_rolls_back_and_senders_keep_what_the_waiting_ones_need(driven: Driven) -> None:
    driven.report(5)
    driven.lose(p("s", 1))
    driven.report(9)
    state = driven.state
    assert [one for one in state.graph.order if state.partitions[one].state not in LIVE_STATES] == [p("s", 1)]
    assert state.partitions[p("c", 0)].frontier == 5
    assert state.keep_from()[p("s", 0)] <= 6


def test_corrected_when_the_clean_line_has_passed_what_was_tentative(driven: Driven) -> None:
    driven.report(5)
    driven.lose(p("s", 1))
    driven.report(8, tentative={p("o"): 8})
    assert driven.state.branches.may_be_out(p("o"), BatchId(8))
    assert not driven.state.branches.may_be_out(p("o"), BatchId(5))
    driven.handle(NodesArrived({NodeId("m"): 1.25}))
    assert driven.state.branches.now.members, "it is placed, and behind"
    found = driven.report(9)
    assert [one for one in found if isinstance(one, BranchEnded)] == [BranchEnded(p("o"), None)]
    assert [one for one in found if isinstance(one, Corrected)] == [Corrected(p("o"), BatchId(6), BatchId(8))]
    assert driven.state.branches.at == {}
    assert driven.state.written()["tentative"] == {}


def test_a_query_whose_output_is_lost_or_that_has_no_input_left_gives_none(driven: Driven) -> None:
    driven.report(5)
    driven.lose(p("o"))
    assert driven.state.branches.now.queries == {}
    other = Driven(tentative_fidelity=0.8)
    other.report(5)
    other.lose(p("s", 1))
    assert other.state.branches.now.queries == {}, "0.75 is below what is asked for"


def roomy(**settings: object) -> Driven:
    """Nodes whose bound leaves room for one partition, and whose capacity is enough for two."""
    found = Driven(capacity=2.0, **settings)
    assert len(set(found.state.placement.values())) == 7
    found.report(5)
    return found


def test_a_lost_output_has_a_stand_in_where_a_node_has_room_above_its_bound() -> None:
    driven = roomy()
    (went,) = [one for one in driven.lose(p("o")) if isinstance(one, WentTentative)]
    assert (went.since, went.fidelity, went.without) == (6, 1.0, ()), "all that it reads is there"
    state = driven.state
    assert went.stand_in in state.nodes
    assert state.branches.now.stand_ins == {p("o"): went.stand_in}
    assert dict(state.branches.now.members) == {p("o"): ()}
    driven.lose(p("s", 1))
    assert state.branches.now.queries == {p("o"): 0.75}, "the fidelity of exactly what is missing"
    assert dict(state.branches.now.members) == {p("c", 0): (p("s", 1),), p("o"): ()}
    where = state.branches.now.stand_ins[p("o")]
    driven.report(8, tentative={p("o"): 8})
    assert state.branches.now.stand_ins == {p("o"): where}, "it stays where it is"


def test_a_stand_in_is_over_when_its_partition_has_a_node_and_the_final_rows_correct_it() -> None:
    driven = roomy()
    driven.lose(p("o"))
    driven.report(8, tentative={p("o"): 8})
    found = driven.handle(NodesArrived({NodeId("m"): 1.25}))
    assert driven.state.branches.now.stand_ins == {}
    assert BranchEnded(p("o"), None) in found
    found = driven.report(9)
    assert Corrected(p("o"), BatchId(6), BatchId(8)) in found


def test_stand_ins_begin_when_nothing_is_being_restored() -> None:
    driven = roomy()
    driven.handle(NodesArrived({NodeId("m"): 1.25}))
    gone = (driven.state.placement[p("o")], driven.state.placement[p("s", 1)])
    driven.handle(NodesLost(gone))
    state = driven.state
    assert state.partitions[p("s", 1)].state == "restoring", "there is room for one, and no query without its source"
    assert state.partitions[p("o")].state == "lost"
    assert state.branches.now.stand_ins == {}, "its snapshots would be fetched beside those of what comes back"
    driven.report(6)
    assert set(state.branches.now.stand_ins) == {p("o")}


def test_no_stand_in_where_nothing_is_kept_for_it_or_at_a_start() -> None:
    driven = roomy()
    driven.lose(p("o"))
    driven.state.dropped.add(p("o"))
    driven.handle(Timer())
    assert driven.state.branches.now.stand_ins == {}, "it would wait for blocks that no sender has"
    started = Driven(capacity=2.0)
    started.state.branches.whole.clear()
    started.lose(p("o"))
    assert started.state.branches.now.stand_ins == {}


def test_a_branch_begins_anew_when_nothing_more_comes_back_and_counts_what_it_lacks_until_then() -> None:
    """Of two sources one is back: members have done without it, and their state lacks its rows."""
    driven = Driven()
    driven.report(5)
    driven.lose(p("s", 1))
    driven.lose(p("s", 2))
    state, branches = driven.state, driven.state.branches
    driven.report(8)
    assert branches.now.queries[p("o")] == pytest.approx(0.5)
    driven.handle(NodesArrived({NodeId("m"): 1.25}))
    (coming,) = [one for one in (p("s", 1), p("s", 2)) if state.partitions[one].node == "m"]
    (waits,) = {p("s", 1), p("s", 2)} - {coming}
    placed = state.epoch
    assert branches.now.queries[p("o")] == pytest.approx(0.5), "it is placed, and gives nothing yet"
    found = driven.report(9)
    fences = [one for one in found if isinstance(one, Fence)]
    assert [one.why for one in fences] == [f"tentative outputs begin anew with {coming}"]
    assert state.epoch > placed
    assert branches.now.holes == (waits,)
    assert branches.now.queries[p("o")] == pytest.approx(0.75)
    assert [one for one in driven.report(10) if isinstance(one, Fence)] == [], "once"


def test_while_more_is_on_its_way_back_a_branch_goes_on_with_what_it_lacks() -> None:
    driven = Driven()
    driven.report(5)
    driven.lose(p("s", 1))
    driven.lose(p("s", 2))
    driven.lose(p("s", 3))
    state, branches = driven.state, driven.state.branches
    driven.report(8)
    driven.handle(NodesArrived({NodeId("m"): 2.5}))
    back, late = [one for one in state.graph.order if state.partitions[one].node == "m"]
    frontiers = {one: BatchId(9) for one in state.graph.order if one.operator == "s" and state.partitions[one].node}
    del frontiers[late]
    found = driven.handle(PartitionsReported(state.epoch, BatchId(9), frontiers, frozenset(frontiers), {}, 0))
    assert back not in branches.now.holes
    assert [one for one in found if isinstance(one, Fence)] == []
    assert branches.now.queries[p("o")] == pytest.approx(0.25), "the rows of three sources are missing in its state"
    found = driven.report(10)
    whys = [one.why for one in found if isinstance(one, Fence)]
    assert whys == [f"tentative outputs begin anew with {back}, {late}, c[1]"], "for all of them at once"
    assert branches.now.queries[p("o")] == pytest.approx(0.75)


def test_a_branch_that_fails_is_given_up_for_this_outage_alone(driven: Driven) -> None:
    driven.report(5)
    driven.lose(p("s", 1))
    found = driven.report(6, branch_problems={p("c", 0): "it raised"})
    assert BranchEnded(p("o"), "it raised") in found
    driven.report(7)
    assert driven.state.branches.now.members == {}
    driven.handle(NodesArrived({NodeId("m"): 1.25}))
    driven.report(9)
    assert driven.state.branches.failed == {}
    assert any(isinstance(one, WentTentative) for one in driven.lose(p("s", 2)))


def test_what_a_driver_wrote_is_awaited_by_the_next_up_to_the_last_batch_of_the_log(driven: Driven) -> None:
    driven.report(5)
    driven.lose(p("s", 1))
    written = driven.state.written()["tentative"]
    assert isinstance(written, dict)
    read = read_tentative(written, BatchId(11))
    graph = PartitionGraph(topology())
    state = ClusterState(graph, RecoverySettings(), epoch=Epoch.of(2, 1), tentative=read)
    assert state.branches.may_be_out(p("o"), BatchId(11))
    assert not state.branches.at[p("o")].active


def test_a_start_where_partitions_come_one_by_one_is_no_outage() -> None:
    state = ClusterState(PartitionGraph(topology()), RecoverySettings(level_lag=0, tentative=frozenset({p("o")})))
    machine = RecoveryMachine(state)
    seen = machine.handle(NodesArrived({NodeId(f"n{number}"): 1.25 for number in range(7)}))
    for late in (p("s", 0), p("s", 1)):
        there = {one: BatchId(-1) for one in state.graph.order if one != late}
        seen += machine.handle(PartitionsReported(state.epoch, BatchId(3), there, frozenset(there), {}, 0))
        assert not [one for one in seen if isinstance(one, WentTentative)]


def test_without_being_asked_for_there_is_none() -> None:
    driven = Driven(tentative=frozenset())
    driven.report(5)
    driven.lose(p("s", 1))
    assert driven.state.branches.now.members == {}
    assert not [one for one in driven.seen if isinstance(one, WentTentative)]


def test_under_a_new_driver_a_lost_output_starts_from_its_checkpoint_before_it_was_ever_placed() -> None:
    """A stand-in begins with what its partition would, also right after a start (seed 302753254019)."""
    graph = PartitionGraph(topology())
    found = {one: SavedSnapshot(BatchId(3), Epoch.of(1, 1), durable=True) for one in graph.order}
    state = ClusterState(graph, RecoverySettings(), checkpoints=Checkpoints.at_batch(found, BatchId(3)))
    assert {one.start.snapshots for one in state.partitions.values()} == {(found[p("o")],)}
    assert {one.start.batch for one in state.partitions.values()} == {3}
