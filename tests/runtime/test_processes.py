"""The operator processes of a node: every partition in exactly one, where it stays; processes are evenly loaded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.examples import EXAMPLES
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.cluster_state import Start
from holdfast.runtime.messages import DesiredState, NodeReport, PartitionAssignment
from holdfast.runtime.processes import ProcessSpread, declared_costs, process_name
from holdfast.runtime.program import Program
from holdfast.runtime.resident_cycle import ResidentCycle

OPERATORS = {"a": 3, "b": 5, "c": 1, "d": 4}
PARTITIONS = [PartitionId(OperatorId(name), index) for name, many in OPERATORS.items() for index in range(many)]
NODES = [NodeId("n1"), NodeId("n2"), NodeId("x#3")]

placements = st.dictionaries(st.sampled_from(PARTITIONS), st.sampled_from(NODES))
costs = st.fixed_dictionaries({p: st.floats(0.1, 10) for p in PARTITIONS})


def desired(placement: Mapping[PartitionId, NodeId], number: int = 1) -> DesiredState:
    start = Start(BatchId(-1), Epoch(1), ())
    assignments = {
        p: PartitionAssignment(placement[p], start, BatchId(-1), BatchId(0), BatchId(9))
        for p in PARTITIONS
        if p in placement
    }
    return DesiredState("run", number, Epoch(1), assignments, {})


@given(st.integers(1, 4), st.lists(placements, max_size=6), costs)
def test_every_partition_is_in_one_process_of_its_node_and_stays_there(
    count: int, history: list[dict[PartitionId, NodeId]], weights: dict[PartitionId, float]
) -> None:
    """Also where it leaves the node and comes back: no other process of the node has an older state of it."""
    spread = ProcessSpread(count, weights)
    seen: dict[tuple[NodeId, PartitionId], NodeId] = {}
    for number, placement in enumerate(history):
        whole = desired(placement, number)
        divided = spread.divide(whole, NODES)
        assert set(divided.assignments) == set(placement)
        for p, one in divided.assignments.items():
            node = placement[p]
            assert one.node in spread.names(node)
            assert seen.setdefault((node, p), one.node) == one.node
            assert spread.names(node)[spread.index(node, p) or 0] == one.node
            assert replace(one, node=node) == whole.assignments[p], "nothing else is changed"
        assert replace(divided, assignments=whole.assignments) == whole


@given(st.integers(2, 4), st.sets(st.sampled_from(PARTITIONS)), costs)
def test_what_comes_to_a_node_together_is_spread_evenly(
    count: int, here: set[PartitionId], weights: dict[PartitionId, float]
) -> None:
    """No process has more to do than another by more than one partition's cost."""
    spread = ProcessSpread(count, weights)
    found = spread.divide(desired(dict.fromkeys(here, NODES[0])), NODES).assignments
    loads = dict.fromkeys(spread.names(NODES[0]), 0.0)
    for p, one in found.items():
        loads[one.node] += weights[p]
    assert max(loads.values()) - min(loads.values()) <= max((weights[p] for p in here), default=0.0) + 1e-9


@given(st.integers(2, 4), st.sets(st.sampled_from(PARTITIONS)))
def test_the_partitions_of_one_operator_are_spread(count: int, here: set[PartitionId]) -> None:
    spread = ProcessSpread(count, {})
    found = spread.divide(desired(dict.fromkeys(here, NODES[0])), NODES).assignments
    for operator in OPERATORS:
        many = Counter(one.node for p, one in found.items() if p.operator == operator)
        each = [many[name] for name in spread.names(NODES[0])]
        assert max(each) - min(each) <= 1


def test_partitions_that_come_later_go_where_there_is_least_to_do() -> None:
    one, two, three, four = PARTITIONS[:4]
    spread = ProcessSpread(2, {one: 5.0, two: 1.0, three: 1.0, four: 1.0})
    first = spread.divide(desired(dict.fromkeys((one, two), NODES[0])), NODES)
    later = spread.divide(desired(dict.fromkeys((one, two, three, four), NODES[0])), NODES)
    assert first.assignments[one].node == later.assignments[one].node != later.assignments[two].node
    assert {later.assignments[p].node for p in (two, three, four)} == {first.assignments[two].node}


def test_the_most_valuable_partitions_have_a_process_without_others_where_that_costs_little() -> None:
    """A step that hangs stops all partitions of its process."""
    valuable = frozenset(PARTITIONS[:2])
    spread = ProcessSpread(2, {}, valuable)
    found = spread.divide(desired(dict.fromkeys(PARTITIONS[:4], NODES[0])), NODES).assignments
    assert {one.node for p, one in found.items() if p in valuable} == {"n1#0"}
    assert {one.node for p, one in found.items() if p not in valuable} == {"n1#1"}
    later = spread.divide(desired(dict.fromkeys(PARTITIONS[:6], NODES[0])), NODES).assignments
    assert {p: later[p].node for p in found} == {p: one.node for p, one in found.items()}, "they stay"


@given(st.integers(2, 4), st.sets(st.sampled_from(PARTITIONS)), st.sets(st.sampled_from(PARTITIONS)), costs)
def test_to_keep_partitions_apart_no_process_gets_much_more_to_do(
    count: int, here: set[PartitionId], valuable: set[PartitionId], weights: dict[PartitionId, float]
) -> None:
    spread = ProcessSpread(count, weights, valuable)
    found = spread.divide(desired(dict.fromkeys(here, NODES[0])), NODES).assignments
    loads = dict.fromkeys(spread.names(NODES[0]), 0.0)
    for p, one in found.items():
        loads[one.node] += weights[p]
    share = sum(loads.values()) / count
    assert max(loads.values()) <= 1.25 * share + max((weights[p] for p in here), default=0.0) + 1e-9


def test_a_node_with_one_process_is_its_process() -> None:
    spread = ProcessSpread(1, {})
    whole = desired(dict.fromkeys(PARTITIONS, NODES[0]))
    report = NodeReport(NODES[0], Epoch(1), frontiers={PARTITIONS[0]: BatchId(3)})
    assert spread.divide(whole, NODES) is whole
    assert spread.report_of(NODES[0], 0, report) is report
    assert spread.names(NODES[0]) == (process_name(NODES[0], 0, 1),) == (NODES[0],)


def test_a_node_that_is_lost_is_forgotten_and_one_that_is_not_held_is_not_remembered() -> None:
    spread = ProcessSpread(2, {})
    spread.divide(desired(dict.fromkeys(PARTITIONS, NODES[0])), NODES)
    assert spread.index(NODES[0], PARTITIONS[0]) is not None
    spread.lose(NODES[0])
    assert spread.index(NODES[0], PARTITIONS[0]) is None
    found = spread.divide(desired({PARTITIONS[0]: NODES[0]}), [])
    assert found.assignments[PARTITIONS[0]].node in spread.names(NODES[0])
    assert spread.index(NODES[0], PARTITIONS[0]) is None


def test_a_report_of_a_process_says_of_its_node_what_is_that_process_s_to_say() -> None:
    spread = ProcessSpread(2, {})
    divided = spread.divide(desired(dict.fromkeys(PARTITIONS[:2], NODES[0])), NODES)
    mine, other = PARTITIONS[:2]
    assert divided.assignments[mine].node == "n1#0"
    assert divided.assignments[other].node == "n1#1"
    frontiers = {mine: BatchId(4), other: BatchId(7)}
    first = NodeReport(NodeId("n1#0"), Epoch(1), frontiers=frontiers, kept_from=frontiers, outbox_bytes=100)
    found = spread.report_of(NODES[0], 0, first)
    assert found.node == NODES[0]
    assert found.frontiers == found.kept_from == {mine: 4}, "the other process has the other one's state"
    assert found.outbox_bytes == 100
    second = spread.report_of(NODES[0], 1, replace(first, node=NodeId("n1#1"), outbox_bytes=30))
    assert second.frontiers == {other: 7}
    assert second.outbox_bytes == 130, "of the node: what its processes hold together"
    third = spread.report_of(NODES[0], 0, replace(first, outbox_bytes=0))
    assert third.outbox_bytes == 30


def test_a_cycle_waits_for_every_process_and_again_for_one_that_was_started_again() -> None:
    divided = ProcessSpread(2, {}).divide(desired(dict.fromkeys(PARTITIONS[:2], NODES[0]), 5), NODES)
    cycle, one, other = ResidentCycle(divided), NodeId("n1#0"), NodeId("n1#1")
    cycle.reported(one, 5, idle=True)
    assert cycle.end() is None, "the other process of the node has not said anything"
    cycle.left(one)
    cycle.left(NodeId("n9#0"))
    cycle.reported(other, 5, idle=True)
    assert cycle.end() is None, "what it said before its connection ended is over"
    assert cycle.waits_for == {one}, "and one without partitions is not waited for"
    cycle.reported(one, 5, idle=True)
    assert cycle.end() is not None


@pytest.mark.parametrize("name", ["hashtags", "traffic"])
def test_costs_are_those_of_the_topology(name: str) -> None:
    program = Program(EXAMPLES[name].application())
    found = declared_costs(program)
    assert set(found) == set(program.partitions)
    assert sum(found.values()) == pytest.approx(float(program.topology.cost.sum()))
