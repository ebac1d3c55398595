"""One reading of a budget of replicas: in settings, options, targets in a program, and plan documents old and new."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest

from holdfast.ids import OperatorId
from holdfast.planning.joint.checking import unsound
from holdfast.planning.joint.explaining import plan_document, read_plan
from holdfast.planning.joint.model import JointModel
from holdfast.planning.joint.replicas import replica_mask
from holdfast.planning.joint.search import plan_jointly
from holdfast.planning.joint.targets import Assumptions, Targets, targets
from holdfast.planning.replicas.budget import ReplicaBudget
from holdfast.topology import Input, Operator, Partitioning, Topology


def clock() -> float:
    return 0.0


def wide(cost: float = 1.0) -> Topology:
    """Six chains of two partitions."""
    one = Input(OperatorId("s"), Partitioning.ONE_TO_ONE)
    return Topology(
        "wide",
        [
            Operator(OperatorId("s"), parallelism=6, rate=100.0, tuple_seconds=1e-5, failure_rate=1e-6, cost=cost),
            Operator(OperatorId("a"), parallelism=6, inputs=(one,), tuple_seconds=1e-4, failure_rate=1e-6, cost=cost),
        ],
    )


@pytest.mark.parametrize(
    ("given", "text", "replicas"),
    [(4, "4", 4), (1, "1", 0), (0.5, "0.5", 6), (1.0, "1.0", 12), ("1.0", "1.0", 12), ("4 cores", "4 cores", 8)],
)
def test_a_program_an_option_and_a_setting_mean_the_same(given: object, text: str, replicas: int) -> None:
    topology = wide(cost=0.5)
    asked = targets(replicas=given)  # type: ignore[arg-type]
    assert asked.replicas == ReplicaBudget.parse(text)
    assert int(replica_mask(topology, asked.replicas).sum()) == replicas
    model = JointModel(topology, asked, Assumptions())
    found = plan_jointly(model, clock=clock).plan
    assert int(found.replicas.sum()) == replicas
    assert not unsound(model, found)
    document = json.loads(json.dumps(plan_document(model, found)))
    again, read, _ = read_plan(document, "plan.json")
    assert again.targets.replicas.document() == asked.replicas.document()
    assert np.array_equal(read.replicas, found.replicas)


def test_numbers_in_documents_mean_what_they_meant_when_there_were_only_numbers() -> None:
    found = [ReplicaBudget.read(one) for one in (0.0, 0, 0.2, 1.0, 3.0, 3)]
    assert found == [
        ReplicaBudget(count=0),
        ReplicaBudget(count=0),
        ReplicaBudget(share=0.2),
        ReplicaBudget(count=1),
        ReplicaBudget(count=3),
        ReplicaBudget(count=3),
    ]
    assert [one.document() for one in found] == [0.0, 0.0, 0.2, 1.0, 3.0, 3.0]
    assert Targets().document()["replicas"] == 0.0, "the name of what was asked for stays the same over versions"
    for budget in (ReplicaBudget(share=1.0), ReplicaBudget(cores=0.1 + 0.2)):
        assert ReplicaBudget.read(budget.document()) == budget
    for wrong in (1.5, -1, None, True, "some"):
        with pytest.raises(ValueError, match=r"."):
            ReplicaBudget.read(wrong)


def test_a_plan_with_more_replicas_than_the_budget_in_cores_is_not_executed() -> None:
    topology = wide(cost=2.0)
    model = JointModel(topology, targets(replicas="9 cores"), Assumptions())
    plan = plan_jointly(model, clock=clock).plan
    assert float(topology.cost[plan.replicas].sum()) == 8.0
    less = JointModel(topology, targets(replicas="7 cores"), Assumptions())
    assert unsound(less, plan) == ["there are more replicas than the budget allows"]


def test_late_partitions_get_their_replicas_within_a_budget_in_cores() -> None:
    operators = [Operator(OperatorId("o0"), rate=2e4, tuple_seconds=1e-6, failure_rate=1e-6)]
    for before, name in itertools.pairwise(("o0", "o1", "o2")):
        one = (Input(OperatorId(before), Partitioning.ONE_TO_ONE),)
        operators.append(Operator(OperatorId(name), inputs=one, tuple_seconds=2e-5, state_bytes=5e9, priority=5))
    slow = Topology("slow", operators)  # 100 s to restore
    wide_open = Assumptions(greatest_interval=5000.0, bandwidth=1e9)
    for budget, kept in (("3 cores", True), ("2 cores", False)):
        model = JointModel(slow, targets(recovery={5: 30}, replicas=budget, overhead=1.0), wide_open)
        assert plan_jointly(model, clock=clock).keeps_targets is kept, budget
