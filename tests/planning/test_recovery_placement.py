"""Placement on nodes and schedules over arrivals."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.planning.recovery.algorithms import RecoveryAlgorithm, planner_of
from holdfast.planning.recovery.best_density import best_density
from holdfast.planning.recovery.placement import (
    PlacedPlan,
    RecoveryNode,
    node_ids,
    place_plan,
    placement_problems,
    rooms_of,
)
from holdfast.planning.recovery.problem import RecoveryProblem
from holdfast.planning.recovery.schedule import Arrival, RecoverySchedule, Strategy, make_schedule
from holdfast.topology import Operator, Queries, Topology
from holdfast_lab.topologies import named_topology
from planning.recovery_cases import problems


def nodes_of(*capacities: float) -> list[RecoveryNode]:
    return [RecoveryNode(name, capacity) for name, capacity in zip(node_ids(len(capacities)), capacities, strict=True)]


def packs(costs: list[int], rooms: list[int]) -> bool:
    """Whether costs fit rooms, by trying everything."""
    if not costs:
        return True
    for node in {room: place for place, room in enumerate(rooms)}.values():
        if costs[0] <= rooms[node] and packs(costs[1:], [*rooms[:node], rooms[node] - costs[0], *rooms[node + 1 :]]):
            return True
    return False


def best_placeable(problem: RecoveryProblem, rooms: list[int]) -> int:
    """The most priority that fits the nodes, by trying every set of queries and every packing."""
    best = 0
    for size in range(len(problem.queries) + 1):
        for chosen in itertools.combinations(range(len(problem.queries)), size):
            taken = problem.partitions_of(problem.groups_of(np.array(chosen, np.int64)))
            value = int(problem.priority[list(chosen)].sum())
            if value <= best or problem.cost_of(taken) > problem.capacity:
                continue
            if packs(sorted(problem.cost[taken].tolist(), reverse=True), rooms):
                best = value
    return best


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    problem=problems(5),
    parts=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    algorithm=st.sampled_from(list(RecoveryAlgorithm)),
)
def test_placed_plans_pass_the_checker_and_are_the_best_that_fits(
    problem: RecoveryProblem, parts: list[int], algorithm: RecoveryAlgorithm
) -> None:
    # The capacity in pieces, so that costs meet walls.
    total = problem.units.value(problem.capacity) / 0.8
    nodes = nodes_of(*(round(total * part / sum(parts), 3) for part in parts))
    placed = place_plan(problem, planner_of(algorithm)(problem), nodes)
    assert not placement_problems(problem, placed, nodes)
    best = best_placeable(problem, rooms_of(problem, nodes, 0.8))
    assert placed.plan.priority <= best
    if algorithm in (RecoveryAlgorithm.DP, RecoveryAlgorithm.EXACT):
        assert placed.plan.priority == best
    if placed.left_out and algorithm is not RecoveryAlgorithm.OPERATOR_CENTRIC:
        assert placed.plan.priority == best


def test_each_goes_to_the_node_with_most_room() -> None:
    operators = [Operator(OperatorId(f"A{n}"), cost=float(cost)) for n, cost in enumerate((5, 4, 3, 2))]
    problem = RecoveryProblem(Topology("four", operators), np.arange(4), 100)
    placed = place_plan(problem, best_density(problem), nodes_of(10, 20), bound=0.8)
    where = {str(partition): node for partition, node in placed.placement.items()}
    # Rooms 8 and 16: 5 to N2 (11 left), 4 to N2 (7), 3 to N1 (8 to 5), 2 to N2.
    assert where == {"A0[0]": "N2", "A1[0]": "N2", "A2[0]": "N1", "A3[0]": "N2"}
    assert placed.left_out == ()


def test_fragmentation_is_said_and_the_best_that_fits_is_taken() -> None:
    operators = [
        Operator(OperatorId("A"), cost=3.0, priority=5),
        Operator(OperatorId("B"), cost=3.0, priority=4),
        Operator(OperatorId("C"), cost=2.0, priority=1),
    ]
    problem = RecoveryProblem(Topology("three", operators), np.arange(3), 6)
    plan = best_density(problem)
    assert plan.priority == 9
    nodes = nodes_of(4, 2)
    placed = place_plan(problem, plan, nodes, bound=1)
    assert not placement_problems(problem, placed, nodes, 1)
    assert {str(one) for one in placed.plan.recover} == {"A[0]", "C[0]"}
    assert placed.plan.priority == 6
    assert placed.plan.optimal
    (left,) = placed.left_out
    assert str(left.partition) == "B[0]"
    assert left.reason == "costs 3, and no node has so much room left"


def test_a_partition_too_large_for_every_node_is_said() -> None:
    operators = [Operator(OperatorId("A"), cost=5.0, priority=9), Operator(OperatorId("B"), cost=1.0)]
    problem = RecoveryProblem(Topology("large", operators), np.arange(2), 6)
    placed = place_plan(problem, best_density(problem), nodes_of(3, 3), bound=1)
    assert [str(one) for one in placed.plan.recover] == ["B[0]"]
    assert placed.left_out[0].reason == "costs 5, more than the room of any node"


def test_packing_tighter_when_the_rule_leaves_something_out() -> None:
    # Rooms 6 and 4; costs 4, 3, 3: most room first would put 4 onto the 6 and strand a 3.
    operators = [Operator(OperatorId(f"A{n}"), cost=float(cost)) for n, cost in enumerate((4, 3, 3))]
    problem = RecoveryProblem(Topology("tight", operators), np.arange(3), 10)
    nodes = nodes_of(6, 4)
    placed = place_plan(problem, best_density(problem), nodes, bound=1)
    assert placed.plan.priority == 3
    assert not placement_problems(problem, placed, nodes, 1)


def test_rooms_are_exact() -> None:
    problem = RecoveryProblem(Topology("one", [Operator(OperatorId("A"), cost=0.1)]), np.arange(1), 1)
    assert rooms_of(problem, [RecoveryNode(NodeId("N1"), 3, used=0.3)], 0.8) == [21]
    with pytest.raises(BadInput, match="bound"):
        rooms_of(problem, nodes_of(1), 1.2)


def test_the_checker_finds_overfull_nodes_and_strange_ones() -> None:
    operators = [Operator(OperatorId("A"), cost=3.0), Operator(OperatorId("B"), cost=1.0)]
    topology = Topology("pair", operators)
    problem = RecoveryProblem(topology, np.arange(2), 4)
    plan = best_density(problem)
    a, b = PartitionId(OperatorId("A"), 0), PartitionId(OperatorId("B"), 0)
    nodes = nodes_of(3, 3)
    wrong = PlacedPlan(plan, {a: NodeId("N1"), b: NodeId("N1")}, ())
    assert any("above its bound" in one for one in placement_problems(problem, wrong, nodes, 1))
    wrong = PlacedPlan(plan, {a: NodeId("N1"), b: NodeId("N7")}, ())
    assert any("not there" in one for one in placement_problems(problem, wrong, nodes, 1))
    assert any(
        "not what" in one for one in placement_problems(problem, PlacedPlan(plan, {a: NodeId("N1")}, ()), nodes, 1)
    )


# -- schedules ---------------------------------------------------------------------------------------------------------


def figure_2(strategy: Strategy, algorithm: RecoveryAlgorithm = RecoveryAlgorithm.BEST_DENSITY) -> RecoverySchedule:
    topology = named_topology("incremental-fig2")
    failed = topology.indices([f"p{n}[0]" for n in range(3, 13)])
    arrivals = [Arrival(120.0 + 60 * n, node) for n, node in enumerate(nodes_of(*[2.5] * 5))]
    return make_schedule(topology, failed, arrivals, planner_of(algorithm), strategy=strategy)


def rows(schedule: RecoverySchedule) -> list[tuple[str, set[str], set[str]]]:
    return [
        (
            "+".join(step.nodes),
            {str(one.operator) for one in step.placed.plan.recover},
            {str(one.operator) for one in step.placed.plan.queries},
        )
        for step in schedule.steps
    ]


@pytest.mark.parametrize("algorithm", [a for a in RecoveryAlgorithm if a is not RecoveryAlgorithm.OPERATOR_CENTRIC])
def test_figure_2_query_centric(algorithm: RecoveryAlgorithm) -> None:
    schedule = figure_2(Strategy.INCREMENTAL, algorithm)
    assert rows(schedule) == [
        ("N1", {"p3", "p5"}, set()),
        ("N2", {"p7", "p9"}, {"p9"}),
        ("N3", {"p4", "p10"}, {"p10"}),
        ("N4", {"p6", "p8"}, set()),
        ("N5", {"p11", "p12"}, {"p11", "p12"}),
    ]
    assert schedule.unavailability == 180 + 240 + 2 * 360
    for step in schedule.steps:
        assert step.placed.plan.cost == 2


def test_figure_2_operator_centric_blocking_and_best_case() -> None:
    assert rows(figure_2(Strategy.OPERATOR_CENTRIC)) == [
        ("N1", {"p3", "p4"}, set()),
        ("N2", {"p5", "p6"}, set()),
        ("N3", {"p7", "p8"}, set()),
        ("N4", {"p9", "p10"}, {"p9", "p10"}),
        ("N5", {"p11", "p12"}, {"p11", "p12"}),
    ]
    assert figure_2(Strategy.OPERATOR_CENTRIC).unavailability == 2 * 300 + 2 * 360
    assert figure_2(Strategy.BLOCKING).unavailability == 4 * 360
    assert figure_2(Strategy.BEST_CASE).unavailability == 4 * 180


@settings(max_examples=25, deadline=None, derandomize=True)
@given(problem=problems(7), count=st.integers(1, 5), seed=st.integers(0, 100), enough=st.sampled_from([0.5, 2.0]))
def test_schedules_are_made_of_checked_plans_that_cost_what_is_left(
    problem: RecoveryProblem, count: int, seed: int, enough: float
) -> None:
    topology = problem.topology
    failed = np.flatnonzero(problem.missing)
    rng = np.random.default_rng(seed)
    total = float(topology.cost[failed].sum()) * enough / 0.8
    capacities = [round(total / count * float(rng.uniform(0.5, 1.5)), 3) for _ in range(count)]
    arrivals = [
        Arrival(float(at), node) for at, node in zip(rng.integers(120, 360, count), nodes_of(*capacities), strict=True)
    ]
    found = {
        strategy: make_schedule(topology, failed, arrivals, best_density, strategy=strategy, queries=Queries(topology))
        for strategy in Strategy
    }
    for schedule in found.values():
        back: set[PartitionId] = set()
        spent = dict.fromkeys(node_ids(count), 0.0)
        for step in schedule.steps:
            assert not placement_problems(step.problem, step.placed, step.places)
            assert not back & set(step.placed.plan.recover)
            here = [arrival.node for arrival in arrivals if arrival.node.id in step.placed.placement.values()]
            for node in here:
                assert schedule.strategy is not Strategy.INCREMENTAL or any(
                    arrival.at <= step.at for arrival in arrivals if arrival.node is node
                )
            back |= set(step.placed.plan.recover)
            for partition, node_id in step.placed.placement.items():
                spent[node_id] += float(topology.cost[topology.index(partition)])
        for arrival in arrivals:
            assert spent[arrival.node.id] <= 0.8 * arrival.node.capacity + 1e-9
        assert len(schedule.back_at) + len(schedule.never) == len(problem.queries)
    assert found[Strategy.INCREMENTAL].unavailability <= found[Strategy.BLOCKING].unavailability + 1e-9


def test_capacity_limits_what_is_used_in_all() -> None:
    topology = named_topology("incremental-fig2")
    failed = topology.indices([f"p{n}[0]" for n in range(3, 13)])
    arrivals = [Arrival(60.0 * n, node) for n, node in enumerate(nodes_of(*[2.5] * 5))]
    schedule = make_schedule(topology, failed, arrivals, best_density, capacity=6)
    assert sum(len(step.placed.plan.recover) for step in schedule.steps) == 6
    assert [str(one) for one in schedule.never] == ["p11[0]", "p12[0]"]


def test_nodes_that_come_together_make_one_plan_and_bad_arrivals_are_refused() -> None:
    topology = named_topology("incremental-fig2")
    failed = topology.indices([f"p{n}[0]" for n in range(3, 13)])
    arrivals = [Arrival(60.0, node) for node in nodes_of(2.5, 2.5)]
    assert rows(make_schedule(topology, failed, arrivals, best_density))[0][0] == "N1+N2"
    with pytest.raises(BadInput, match="no node arrivals"):
        make_schedule(topology, failed, [], best_density)
    with pytest.raises(BadInput, match="same name"):
        make_schedule(topology, failed, [arrivals[0], arrivals[0]], best_density)
    with pytest.raises(BadInput, match="not a time"):
        make_schedule(topology, failed, [Arrival(-1, arrivals[0].node)], best_density)
