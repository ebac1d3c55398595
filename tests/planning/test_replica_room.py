"""Replicas count in a joint plan where they find room beside the primaries, and are named where they do not."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import NoPlan
from holdfast.ids import NodeId, OperatorId
from holdfast.planning.joint import replicas as replicas_module
from holdfast.planning.joint.conflicts import refuse
from holdfast.planning.joint.explaining import plan_document
from holdfast.planning.joint.model import JointModel
from holdfast.planning.joint.replicas import replica_mask, replicas_with_room
from holdfast.planning.joint.search import plan_jointly
from holdfast.planning.joint.targets import Assumptions, targets
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.planning.replicas.placement import Replica, ReplicaNode, place_replicas
from holdfast.topology import Input, Operator, Partitioning, Topology


def clock() -> float:
    return 0.0


def nine() -> Topology:
    """Nine partitions that cost 1 each; what a partition holds takes 20 s to restore."""
    one = Partitioning.ONE_TO_ONE

    def operator(name: str, *before: str) -> Operator:
        inputs = tuple(Input(OperatorId(each), one) for each in before)
        rate = {} if before else {"rate": 1000.0}
        return Operator(
            OperatorId(name), 3, inputs, tuple_seconds=1e-5, state_bytes=3e9, failure_rate=1e-6, priority=5, **rate
        )

    return Topology("nine", [operator("s"), operator("a", "s"), operator("b", "a")])


def promised(cores: float, nodes: int = 3, **asked: object) -> dict[str, object]:
    wanted = targets(**{"replicas": 9, "overhead": 1.0, "survive": 1} | asked)  # type: ignore[arg-type]
    model = JointModel(nine(), wanted, Assumptions(bandwidth=1e10).given(nodes=nodes, cores=cores))
    plan = plan_jointly(model, clock=clock).plan
    evaluated = model.evaluate(plan)
    document = plan_document(model, plan)
    return {
        "over": int(model.placed(plan.replicas).sum()),
        "sooner": int((evaluated.promised < 5).sum()),
        "cannot": [line for line in document["cannot_promise"] if "replica" in line],
        "fidelity": next(one["predicted"] for one in document["promises"] if one["what"] == "fidelity"),
        "replicas": len(document["replicas"]),
    }


def test_replicas_without_room_promise_no_take_over_and_are_named() -> None:
    full = promised(4.0)  # 9.6 within the bound, the primaries cost 9
    assert (full["over"], full["sooner"], full["fidelity"], full["replicas"]) == (0, 0, 0.0, 9)
    assert full["cannot"] == [
        "take-over by 9 replicas without room: s[0], s[1], s[2], a[0], a[1], a[2] and 3 more; "
        "besides the primaries 3 nodes of 4 cores have 0.6 within the bound of 0.8"
    ]
    half = promised(5.0)  # each node has room for one more
    assert (half["over"], half["sooner"]) == (3, 3)
    assert len(half["cannot"]) == 1  # type: ignore[arg-type]
    roomy = promised(8.0)
    assert (roomy["over"], roomy["sooner"], roomy["cannot"]) == (9, 9, [])
    assert roomy["fidelity"] == 1.0


def test_room_counts_for_a_partition_that_fails_alone_too() -> None:
    assert promised(4.0, survive=0)["sooner"] == 0
    assert promised(8.0, survive=0)["sooner"] == 9


def test_where_nodes_are_not_known_a_line_says_so() -> None:
    model = JointModel(nine(), targets(replicas=9, overhead=1.0), Assumptions(bandwidth=1e10))
    plan = plan_jointly(model, clock=clock).plan
    assert model.placed(plan.replicas).all()
    assert any(line.startswith("room for replicas: ") for line in plan_document(model, plan)["cannot_promise"])


def test_one_node_has_room_for_no_replica() -> None:
    topology = nine()
    every = np.ones(len(topology), bool)
    assert not replicas_with_room(topology, every, Assumptions(nodes=1)).any()
    assert replicas_with_room(topology, every, Assumptions(nodes=2)).all()


def test_targets_that_need_replicas_without_room_are_refused_and_the_line_says_so() -> None:
    assumed = Assumptions(bandwidth=1e10).given(nodes=3, cores=4.0)
    wanted = targets(recovery={5: 8}, replicas=9, overhead=1.0)
    model = JointModel(nine(), wanted, assumed)
    assert not plan_jointly(model, clock=clock).keeps_targets
    error = refuse(model, clock)
    assert isinstance(error, NoPlan)
    assert "9 of 9 replicas find no room on 3 nodes" in str(error)
    with_room = JointModel(nine(), wanted, assumed.given(cores=8.0))
    assert plan_jointly(with_room, clock=clock).keeps_targets


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.sampled_from([0.25, 0.5, 1.0, 1.5])), min_size=1, max_size=4),
    st.integers(2, 5),
    st.floats(0.5, 3.0),
    st.sampled_from([0.3, 0.6, 1.0]),
)
def test_what_is_counted_can_be_placed(shape: list[tuple[int, float]], nodes: int, fill: float, share: float) -> None:
    operators, before = [], None
    for number, (parallelism, cost) in enumerate(shape):
        inputs = () if before is None else (Input(before, Partitioning.FULL),)
        before = OperatorId(f"o{number}")
        operators.append(Operator(before, parallelism, inputs, cost=cost, **({} if inputs else {"rate": 1.0})))
    topology = Topology("drawn", operators)
    assumed = Assumptions(nodes=nodes, cores=max(0.1, fill * float(topology.cost.sum()) / nodes / 0.8))
    wanted = replica_mask(topology, ReplicaBudget(share=share))
    found = replicas_with_room(topology, wanted, assumed)
    assert not (found & ~wanted).any()
    at, room = replicas_module._primaries(topology, assumed)
    counted = [
        Replica(topology.partition(one), NodeId(f"n{at[one]}"), cost=float(topology.cost[one]))
        for one in np.flatnonzero(found).tolist()
    ]
    total = sum(max(0.0, one) for one in room)
    assert sum(one.cost for one in counted) <= total + 1e-6
    greedy = replicas_module._one_by_one(topology, wanted, at, np.array(room))
    nodes_there = [ReplicaNode(NodeId(f"n{number}"), left) for number, left in enumerate(room)]
    for mask in (found, greedy):
        for one in np.flatnonzero(mask).tolist():
            single = Replica(topology.partition(one), NodeId(f"n{at[one]}"), cost=float(topology.cost[one]))
            assert not place_replicas([single], nodes_there).left_out
    assert sum(float(topology.cost[one]) for one in np.flatnonzero(greedy)) <= total + 1e-6


@pytest.mark.parametrize("fill", [1.05, 1.3, 2.5])
def test_many_replicas_are_placed_one_by_one_and_no_more_than_fit(fill: float) -> None:
    topology = Topology("many", [Operator(OperatorId("s"), 300, rate=1.0), Operator(OperatorId("t"), 300, rate=1.0)])
    every = np.ones(len(topology), bool)
    assumed = Assumptions(nodes=50, cores=12 * fill / 0.8)
    found = int(replicas_with_room(topology, every, assumed).sum())
    assert found == min(600, 50 * int(12 * fill - 12 + 1e-9))
