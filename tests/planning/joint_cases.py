"""Small topologies for the tests of joint plans, drawn by hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from holdfast.ids import OperatorId
from holdfast.planning.joint.targets import Targets, targets
from holdfast.topology import Input, Operator, Partitioning, Topology

KINDS = tuple(Partitioning)


def joined(n1: int, n2: int, kind: Partitioning) -> Partitioning:
    """The kind, where it fits the numbers of partitions; else full."""
    fits = {
        Partitioning.ONE_TO_ONE: n1 == n2,
        Partitioning.SPLIT: n2 > n1,
        Partitioning.MERGE: n1 > n2,
        Partitioning.FULL: True,
    }
    return kind if fits[kind] else Partitioning.FULL


@st.composite
def topologies(draw: st.DrawFn, most: int = 5, parallelism: int = 3) -> Topology:
    """A DAG: every operator but the first has inputs from earlier ones, or is a source."""
    size = draw(st.integers(2, most))
    many = [draw(st.integers(1, parallelism)) for _ in range(size)]
    operators = []
    for number in range(size):
        feeds = draw(st.lists(st.integers(0, number - 1), min_size=1, max_size=2, unique=True)) if number else []
        inputs = tuple(
            Input(OperatorId(f"o{one}"), joined(many[one], many[number], draw(st.sampled_from(KINDS)))) for one in feeds
        )
        known: dict[str, Any] = {"rate": draw(st.sampled_from([100.0, 2000.0]))} if not inputs else {}
        operators.append(
            Operator(
                OperatorId(f"o{number}"),
                parallelism=many[number],
                inputs=inputs,
                selectivity=draw(st.sampled_from([0.2, 1.0])),
                tuple_seconds=draw(st.sampled_from([1e-6, 5e-5, 3e-4])),
                tuple_bytes=draw(st.sampled_from([50.0, 1000.0])),
                state_bytes=draw(st.sampled_from([0.0, 1e6, 3e8])),
                failure_rate=draw(st.sampled_from([1e-7, 1e-5])),
                domain=draw(st.sampled_from([None, "r1", "r2"])),
                **known,
            )
        )
    made = Topology("drawn", operators)
    heads = made.operator_outputs
    priced = [
        Operator(
            **{name: getattr(one, name) for name in one.__slots__ if name != "priority"},
            priority=draw(st.sampled_from([1, 5])) if heads[number] else 1,
        )
        for number, one in enumerate(operators)
    ]
    return Topology("drawn", priced)


@st.composite
def asked(draw: st.DrawFn) -> Targets:
    """Targets, some of them hard."""
    recovery: dict[int, float | str] = {}
    for priority in draw(st.lists(st.sampled_from([1, 5]), unique=True)):
        recovery[priority] = draw(st.sampled_from([4.0, 8.0, 20.0, 100.0]))
    return targets(
        recovery=recovery,
        overhead=draw(st.sampled_from([None, 0.005, 0.3])),
        survive=draw(st.sampled_from([0, 0, 1, 2])),
        replicas=draw(st.sampled_from([0.0, 0.3, 2])),
    )
