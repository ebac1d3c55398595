"""A run's replica plan as measurements come: budgets of every kind, fixed replicas, partitions that have none."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.ids import OperatorId, PartitionId
from holdfast.planning.replicas.adaptation import AdaptationSettings
from holdfast.planning.replicas.budget import ReplicaBudget, cost_of
from holdfast.planning.replicas.following import Planned, ReplicaRules, follow
from holdfast.topology import Input, Operator, Partitioning, Topology

FULL, ONE = Partitioning.FULL, Partitioning.ONE_TO_ONE


def topology(*rates: float, cost: float = 1.0) -> Topology:
    """Sources with these rates, a filter behind each, and one operator that takes all."""
    many = len(rates)
    return Topology(
        "fan",
        [
            Operator(OperatorId("s"), many, (), rate=sum(rates), weights=rates, cost=cost),
            Operator(OperatorId("f"), many, (Input(OperatorId("s"), ONE),), cost=cost),
            Operator(OperatorId("c"), 1, (Input(OperatorId("f"), FULL),), cost=cost),
        ],
    )


def parts(text: str) -> tuple[PartitionId, ...]:
    return tuple(PartitionId(OperatorId(one[0]), int(one[1:])) for one in text.split())


def clock() -> float:
    return 0.0


EAGER = AdaptationSettings(patience=1)


@pytest.mark.parametrize("budget", ["3", "0.43", "3 cores"])
def test_a_lasting_change_of_rates_is_followed_by_every_kind_of_budget(budget: str) -> None:
    rules = ReplicaRules(ReplicaBudget.parse(budget))
    planned = Planned(parts("s0 f0 c0"))
    for observation in range(1, 4):
        found = follow(rules, planned, topology(1, 1, 9), clock=clock)
        planned = found.planned
        changed = set(planned.replicas(rules)) != set(parts("s0 f0 c0"))
        assert changed == (observation == 3), "patience is three"
    assert set(planned.replicas(rules)) == set(parts("s2 f2 c0"))
    assert not found.exceeded


def test_a_plan_that_is_about_as_good_stays() -> None:
    rules = ReplicaRules(ReplicaBudget(count=3), settings=EAGER)
    found = follow(rules, Planned(parts("s0 f0 c0")), topology(10, 10.5, 1), clock=clock)
    assert found.planned.chosen == parts("s0 f0 c0")


def test_costs_that_vary_within_the_tolerance_stop_nothing() -> None:
    rules = ReplicaRules(ReplicaBudget(cores=5.0), settings=EAGER)
    before = Planned(parts("s0 f0 s1 f1 c0"))
    assert follow(rules, before, topology(9, 8, 1, cost=1.05), clock=clock).planned.chosen == before.chosen
    dear = topology(9, 8, 1, cost=1.3)
    found = follow(rules, before, dear, clock=clock)
    assert found.exceeded
    assert cost_of(dear, found.planned.chosen) <= 5.0
    assert set(found.planned.chosen) == set(parts("s0 f0 c0")), "the less valuable tree goes, and no half of one stays"


def test_a_smaller_budget_stops_at_once() -> None:
    rules = ReplicaRules(ReplicaBudget(count=3))
    found = follow(rules, Planned(parts("s0 f0 s1 f1 c0")), topology(9, 8, 1), clock=clock)
    assert found.exceeded
    assert set(found.planned.chosen) == set(parts("s0 f0 c0"))


def test_fixed_replicas_stay_and_what_cannot_have_one_is_left_out() -> None:
    rules = ReplicaRules(ReplicaBudget(count=3), fixed=parts("s1"), refused=frozenset(parts("c0")), settings=EAGER)
    found = follow(rules, Planned(parts("s0 f0 c0")), topology(1, 1, 9), clock=clock)
    assert found.planned.replicas(rules) == (*parts("s1"), *(p for p in found.planned.chosen if p not in parts("c0")))
    assert set(found.planned.replicas(rules)) == set(parts("s1 s2 f2"))
    again = follow(rules, found.planned, topology(1, 1, 9), clock=clock)
    assert again.planned == replace(found.planned, lacking=0)


def test_a_budget_that_keeps_nothing_alive_any_more_starts_nothing() -> None:
    rules = ReplicaRules(ReplicaBudget(cores=3.0), settings=EAGER)
    found = follow(rules, Planned(parts("s0 f0 c0")), topology(1, 1, 9, cost=2.0), clock=clock)
    assert found.planned.chosen == ()
    assert found.exceeded
