"""Random chains and trees from one root, with the attributes of FastRecover, sec. 4.1. Runs anywhere.

The paper counts minutes and kilobytes, here they are seconds and bytes: 3,000 tuples a minute are 50 a second, 0.00001
minutes are 0.0006 s. A failure frequency is drawn from a normal distribution (mean 0.1 a minute, standard deviation
0.03) and made proportional to the operator's parallelism, so that its mean stays 0.1: docs/decisions/0022.
"""

from __future__ import annotations

from typing import Annotated

from holdfast.ids import OperatorId
from holdfast.topology.draws import Draws, rounded
from holdfast.topology.model import Topology
from holdfast.topology.operators import Input, Operator, Partitioning
from holdfast_lab.random_topologies.settings import at_least, counts, ordered

TUPLE_SECONDS = 0.0006
_LEAST_FAILURES = 0.01
"""Failures a minute; a draw below (once in a thousand) counts as this much, since a rate must be above zero."""


def chain(
    seed: int,
    *,
    operators: Annotated[int, "how many operators, n"] = 15,
    tuples_per_minute: Annotated[float, "input of the whole chain, Omega"] = 3000.0,
    least_parallelism: Annotated[int, "fewest partitions of an operator"] = 2,
    most_parallelism: Annotated[int, "most partitions of an operator"] = 6,
    least_selectivity: Annotated[float, "lowest s"] = 0.1,
    most_selectivity: Annotated[float, "highest s"] = 1.0,
    least_state_mb: Annotated[float, "smallest state, MB"] = 10.0,
    most_state_mb: Annotated[float, "largest state, MB"] = 20.0,
    failures_per_minute: Annotated[float, "mean failure frequency, rho"] = 0.1,
    failures_deviation: Annotated[float, "standard deviation of rho"] = 0.03,
    tuple_kb: Annotated[float, "size of an input tuple, theta, KB"] = 1.0,
) -> Topology:
    """Make operators in a row."""
    counts(operators=operators)
    parents = [number - 1 for number in range(operators)]
    return _with_attributes(
        f"chain-{operators}-seed-{seed}",
        parents,
        Draws(seed).branch("attributes"),
        rate=tuples_per_minute / 60,
        parallelism=(least_parallelism, most_parallelism),
        selectivity=(least_selectivity, most_selectivity),
        state_mb=(least_state_mb, most_state_mb),
        failures=(failures_per_minute, failures_deviation),
        tuple_kb=tuple_kb,
    )


def root_tree(
    seed: int,
    *,
    operators: Annotated[int, "how many operators, n"] = 15,
    most_children: Annotated[int, "largest fan-out"] = 3,
    tuples_per_minute: Annotated[float, "input of the root, Omega"] = 1000.0,
    least_parallelism: Annotated[int, "fewest partitions of an operator"] = 2,
    most_parallelism: Annotated[int, "most partitions of an operator"] = 6,
    least_selectivity: Annotated[float, "lowest s"] = 0.1,
    most_selectivity: Annotated[float, "highest s"] = 1.0,
    least_state_mb: Annotated[float, "smallest state, MB"] = 10.0,
    most_state_mb: Annotated[float, "largest state, MB"] = 20.0,
    failures_per_minute: Annotated[float, "mean failure frequency, rho"] = 0.1,
    failures_deviation: Annotated[float, "standard deviation of rho"] = 0.03,
    tuple_kb: Annotated[float, "size of an input tuple, theta, KB"] = 1.0,
) -> Topology:
    """Make a tree: every operator but the root reads one other, chosen from those that have room for a child."""
    counts(operators=operators, most_children=most_children)
    draws = Draws(seed)
    graph = draws.branch("graph")
    parents, room = [-1], [0] * most_children
    for number in range(1, operators):
        # `room` lists every free place for a child, so a parent with more free places is likelier.
        place = graph.whole(0, len(room) - 1)
        parents.append(room.pop(place))
        room += [number] * most_children
    # Number level by level, so that a file reads from the root down.
    depth = [0] * operators
    for number in range(1, operators):
        depth[number] = depth[parents[number]] + 1
    order = sorted(range(operators), key=lambda number: (depth[number], number))
    place_of = {number: place for place, number in enumerate(order)}
    return _with_attributes(
        f"tree-{operators}-seed-{seed}",
        [place_of[parents[number]] if number else -1 for number in order],
        draws.branch("attributes"),
        rate=tuples_per_minute / 60,
        parallelism=(least_parallelism, most_parallelism),
        selectivity=(least_selectivity, most_selectivity),
        state_mb=(least_state_mb, most_state_mb),
        failures=(failures_per_minute, failures_deviation),
        tuple_kb=tuple_kb,
    )


def _with_attributes(
    name: str,
    parents: list[int],
    draws: Draws,
    *,
    rate: float,
    parallelism: tuple[int, int],
    selectivity: tuple[float, float],
    state_mb: tuple[float, float],
    failures: tuple[float, float],
    tuple_kb: float,
) -> Topology:
    counts(least_parallelism=parallelism[0], most_parallelism=parallelism[1])
    at_least(
        0,
        tuples_per_minute=rate,
        least_selectivity=selectivity[0],
        least_state_mb=state_mb[0],
        failures_per_minute=failures[0],
        failures_deviation=failures[1],
        tuple_kb=tuple_kb,
    )
    ordered(least_parallelism=parallelism[0], most_parallelism=parallelism[1])
    ordered(least_selectivity=selectivity[0], most_selectivity=selectivity[1])
    ordered(least_state_mb=state_mb[0], most_state_mb=state_mb[1])
    usual = (parallelism[0] + parallelism[1]) / 2
    made = []
    for number, parent in enumerate(parents):
        partitions = draws.whole(*parallelism)
        s = draws.real(*selectivity)
        state = rounded(draws.real(*state_mb) * 1e6)
        frequency = max(draws.normal(*failures), min(_LEAST_FAILURES, failures[0]))
        inputs = () if parent < 0 else (Input(OperatorId(f"op{parent + 1}"), Partitioning.FULL),)
        made.append(
            Operator(
                OperatorId(f"op{number + 1}"),
                partitions,
                inputs,
                rate=rounded(rate) if parent < 0 else None,
                selectivity=s,
                tuple_seconds=TUPLE_SECONDS,
                state_bytes=state,
                tuple_bytes=tuple_kb * 1000,
                failure_rate=rounded(frequency * partitions / usual / 60),
            )
        )
    return Topology(name, made)
