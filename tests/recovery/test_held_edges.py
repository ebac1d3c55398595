"""Held edges: which they are, how far consumers get, and who rolls back with what is not deterministic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from holdfast.ids import BatchId, OperatorId
from holdfast.recovery.effects import RollBack
from holdfast.recovery.events import CheckpointMarked, PlanChosen, RestoreFailed
from holdfast.recovery.executed_plan import ExecutedPlan
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.held_edges import HeldEdges, held_edges
from holdfast.recovery.segments import segments_of
from holdfast.recovery.strategy import RecoverySettings
from holdfast.topology import Input, Operator, Partitioning, Topology
from recovery.machine_driving import Driven, chain, part


def topology_of(inputs: Mapping[str, str]) -> Topology:
    """Operators of one partition, each with those that it reads."""
    read = "".join(inputs.values())
    return Topology(
        "drawn",
        [
            Operator(
                OperatorId(name),
                1,
                tuple(Input(OperatorId(one), Partitioning.ONE_TO_ONE) for one in feeds),
                cost=1.0,
                output=name not in read,
            )
            for name, feeds in inputs.items()
        ],
    )


def found(topology: Topology, unsure: str, alone: str, anchors: str, *, holds: bool = True) -> HeldEdges:
    graph = PartitionGraph(
        topology, {OperatorId(one): False for one in unsure}, {OperatorId(one): False for one in alone}
    )
    return held_edges(graph, replace(segments_of(topology, anchors), holds=holds))


def pairs(edges: frozenset[tuple[OperatorId, OperatorId]]) -> set[str]:
    return {f"{sender}{consumer}" for sender, consumer in edges}


def test_the_first_boundary_after_what_is_not_deterministic_is_held_and_no_later_one() -> None:
    held = found(chain("asbcd"), "sbcd", "s", "cd")
    assert pairs(held.edges) == {"bc"}, "b is in the segment of s; d takes in what is made of covered blocks"
    assert set(held.nondeterministic) == {"s", "b"}
    assert set(held.consumers) == {"c"}


def test_after_the_boundary_another_that_is_not_deterministic_is_held_again() -> None:
    held = found(chain("asctd"), "sctd", "st", "cd")
    assert pairs(held.edges) == {"sc", "td"}


def test_without_being_asked_for_nothing_is_held() -> None:
    held = found(chain("asc"), "sc", "s", "c", holds=False)
    assert not held.edges
    assert pairs(held.unheld) == {"sc"}
    assert set(held.nondeterministic) == {"s", "c"}


def test_with_one_segment_nothing_is_held() -> None:
    held = found(chain("asc"), "sc", "s", "")
    assert not held.edges
    assert not held.unheld


def test_a_segment_whose_checkpoint_would_wait_for_itself_is_not_held() -> None:
    """`m` joins what `s` sends with what came of it by another segment: it is in the segment of `s`, and after it."""
    held = found(topology_of({"a": "", "s": "a", "c": "s", "j": "c", "m": "sj"}), "scjm", "s", "cj")
    assert not held.edges
    assert pairs(held.unheld) == {"sc", "cj"}


# -- how far consumers get ---------------------------------------------------------------------------------------------


def settings(anchors: str, topology: Topology) -> RecoverySettings:
    return RecoverySettings(segments=replace(segments_of(topology, anchors), holds=True))


def running(*, holds: bool = True) -> Driven:
    """A source, what is not deterministic, and two after the boundary; one node each."""
    topology = chain("ascd")
    driven = Driven(
        topology,
        RecoverySettings(segments=replace(segments_of(topology, "c"), holds=holds)),
        unsure="scd",
        alone="s",
        nodes={f"n{number}": 1.3 for number in range(4)},
    )
    driven.cycle(5)
    return driven


def frontiers(driven: Driven) -> list[int]:
    return [int(driven.machine.state.partitions[part(one)].frontier) for one in "ascd"]


def move(driven: Driven, letters: str, batch: int) -> None:
    """The segment of these operators saves at a batch."""
    name = driven.machine.state.segments.of(part(letters[0]))
    driven.tell(CheckpointMarked(BatchId(batch), durable=False, segments=[name]))
    for one in letters:
        driven.save(part(one), batch)


def test_nothing_crosses_before_the_checkpoint_of_the_sender_s_segment_is_complete() -> None:
    driven = running()
    assert frontiers(driven) == [5, 5, -1, -1]
    driven.tell(CheckpointMarked(BatchId(4), durable=False, segments=[driven.machine.state.segments.of(part("a"))]))
    driven.save(part("s"), 4)
    driven.cycle(6)
    assert frontiers(driven) == [6, 6, -1, -1], "the snapshot of s is safe, that of a is not"
    driven.save(part("a"), 4)
    driven.cycle(7)
    assert frontiers(driven) == [7, 7, 4, 4]


def test_what_waits_for_a_checkpoint_is_level() -> None:
    driven = running()
    driven.cycle(40)
    assert [driven.state(one) for one in "ascd"] == ["running"] * 4
    move(driven, "as", 40)
    driven.machine.state.limits()
    assert driven.machine.state.expected(BatchId(40))[part("c")] == -1, "it has an interval to process what comes"
    driven.cycle(45)
    move(driven, "as", 45)
    assert driven.machine.state.expected(BatchId(45))[part("c")] == 40


def test_the_segment_after_the_boundary_goes_on_while_the_other_rolls_back() -> None:
    driven = running()
    move(driven, "as", 4)
    driven.cycle(8)
    driven.lose(str(driven.node("s")))
    assert driven.state("s") == "lost"
    rolled_back = [p for one in driven.of(RollBack) if isinstance(one, RollBack) for p in one.partitions]
    assert set(rolled_back) <= {part("a")}
    assert (driven.state("c"), driven.state("d")) == ("running", "running")
    driven.arrive({"n9": 1.3})
    driven.cycle(8)
    assert frontiers(driven) == [8, 8, 4, 4]


def test_without_holding_it_rolls_back_too() -> None:
    driven = running(holds=False)
    driven.cycle(8)
    driven.lose(str(driven.node("s")))
    rolled_back = [p for one in driven.of(RollBack) if isinstance(one, RollBack) for p in one.partitions]
    assert {part("c"), part("d")} <= set(rolled_back)


def test_the_segment_after_the_boundary_rolls_back_alone() -> None:
    driven = running()
    move(driven, "as", 4)
    driven.cycle(8)
    driven.cycle(8)
    driven.lose(str(driven.node("d")))
    rolled_back = [p for one in driven.of(RollBack) if isinstance(one, RollBack) for p in one.partitions]
    assert rolled_back == [part("c")]
    assert driven.state("s") == "running"


def test_the_sender_keeps_what_has_crossed_back_to_the_checkpoint_of_the_consumer() -> None:
    driven = running()
    move(driven, "as", 4)
    driven.cycle(8)
    assert driven.machine.state.keep_from()[part("s")] == 0
    move(driven, "cd", 3)
    assert driven.machine.state.keep_from()[part("s")] == 4


def test_where_a_checkpoint_is_lost_everything_goes_back_and_less_may_cross() -> None:
    driven = running()
    move(driven, "as", 4)
    driven.cycle(8)
    driven.lose(str(driven.node("s")))
    driven.arrive({"n9": 1.3})
    state = driven.machine.state
    driven.tell(RestoreFailed(part("s"), state.partitions[part("s")].start.snapshots[-1].id, state.epoch, "gone"))
    assert state.limits()[part("c")] == -1
    assert state.partitions[part("c")].given == -1
    assert state.partitions[part("c")].frontier == -1


@pytest.mark.parametrize("seen", [False, True])
def test_what_had_come_further_before_the_edge_was_held_goes_back_with_its_sender(seen: bool) -> None:
    """A plan that holds takes effect at a checkpoint, and the consumer may be past it."""
    driven = running(holds=False)
    topology = driven.machine.state.graph.topology
    plan = ExecutedPlan(replace(segments_of(topology, "c"), holds=True), number=1)
    driven.tell(PlanChosen(plan))
    driven.cycle(8 if seen else 6)
    driven.checkpoint(6)
    assert driven.machine.state.segments.holds
    driven.lose(str(driven.node("s")))
    rolled_back = [p for one in driven.of(RollBack) if isinstance(one, RollBack) for p in one.partitions]
    assert set(rolled_back) - {part("a")} == ({part("c"), part("d")} if seen else set()), "and d, which has it from c"
    driven.arrive({"n9": 1.3})
    driven.cycle(9)
    driven.cycle(9)
    move(driven, "as", 9)
    driven.lose(str(driven.node("s")))
    rolled_back = [p for one in driven.of(RollBack) if isinstance(one, RollBack) for p in one.partitions]
    assert part("c") not in rolled_back, "all that it may have seen is covered by now"
