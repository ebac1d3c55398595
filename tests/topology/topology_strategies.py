"""Random topologies for property tests: any operators, any of the four partitionings that fit, any values."""

from __future__ import annotations

from hypothesis import strategies as st

from holdfast.ids import OperatorId
from holdfast.topology import Input, Operator, Partitioning, Topology
from holdfast.topology.checks import fit_problem

numbers = st.one_of(st.integers(0, 10**6), st.floats(0, 1e6, allow_subnormal=False))
domains = st.sampled_from(["a", "b", "zone ü"])
positive = st.one_of(st.integers(1, 100), st.floats(0.001, 100))


@st.composite
def topologies(draw: st.DrawFn, most_operators: int = 6, most_partitions: int = 5) -> Topology:
    count = draw(st.integers(1, most_operators))
    sizes = [draw(st.integers(1, most_partitions)) for _ in range(count)]
    operators = []
    for number in range(count):
        feeds = draw(st.lists(st.integers(0, number - 1), unique=True, max_size=3)) if number else []
        inputs = []
        for feed in feeds:
            kinds = [kind for kind in Partitioning if fit_problem(kind, sizes[feed], sizes[number]) is None]
            inputs.append(Input(OperatorId(f"o{feed}"), draw(st.sampled_from(kinds))))
        operators.append(draw(_operators(f"o{number}", sizes[number], tuple(inputs))))
    return Topology("random", operators)


@st.composite
def _operators(draw: st.DrawFn, name: str, size: int, inputs: tuple[Input, ...]) -> Operator:
    def maybe_list(values: st.SearchStrategy[object]) -> object:
        return draw(st.one_of(values, st.tuples(*[values] * size)))

    return Operator(
        OperatorId(name),
        size,
        inputs,
        rate=None if inputs else draw(st.one_of(st.none(), positive)),
        weights=draw(st.one_of(st.none(), st.tuples(*[positive] * size))),
        selectivity=draw(positive),
        joins=draw(st.booleans()),
        output=draw(st.sampled_from([None, True])),
        priority=maybe_list(st.integers(1, 10)),  # type: ignore[arg-type]
        cost=maybe_list(numbers),  # type: ignore[arg-type]
        reprocess_seconds=maybe_list(numbers),  # type: ignore[arg-type]
        state_bytes=draw(numbers),
        failure_rate=draw(numbers),
        domain=draw(
            st.one_of(st.none(), st.just("rack-1"), st.tuples(*[st.sampled_from(["a", "b", "zone ü"])] * size))
        ),
    )
