"""Random topologies towards one sink, by the generator of PPA, sec. VI-C. Runs anywhere.

Graph, parallelism, partitionings, weights and joins are drawn from streams of their own, so that the same seed with
another kind, other weights or another share of joins is the same topology otherwise, as the paper's Fig. 14 compares.
"""

from __future__ import annotations

from typing import Annotated, Literal

from holdfast.errors import BadInput
from holdfast.ids import OperatorId
from holdfast.topology.draws import Draws, zipf_shares
from holdfast.topology.model import Topology
from holdfast.topology.operators import Input, Operator, Partitioning
from holdfast_lab.random_topologies.settings import at_least, counts, ordered, share


def replication(
    seed: int,
    *,
    least_operators: Annotated[int, "fewest operators"] = 5,
    most_operators: Annotated[int, "most operators"] = 10,
    least_parallelism: Annotated[int, "fewest tasks of an operator"] = 1,
    most_parallelism: Annotated[int, "most tasks of an operator"] = 10,
    weights: Annotated[Literal["uniform", "zipf"], "how work is spread over the tasks of an operator"] = "uniform",
    skew: Annotated[float, "Zipf parameter s of the weights"] = 0.1,
    kind: Annotated[Literal["structured", "full", "general"], "which partitionings join operators"] = "structured",
    join_share: Annotated[float, "share of operators with several inputs that join (paper: 0 or 0.5)"] = 0.0,
    most_inputs: Annotated[int, "most inputs of an operator"] = 3,
    extra_consumers: Annotated[float, "chance that an operator feeds a second one"] = 0.2,
    rate: Annotated[float, "tuples per second of a source task"] = 1000.0,
) -> Topology:
    """Make operators that all lead to one sink."""
    counts(least_operators=least_operators, most_operators=most_operators, most_inputs=most_inputs)
    counts(least_parallelism=least_parallelism, most_parallelism=most_parallelism)
    ordered(least_operators=least_operators, most_operators=most_operators)
    ordered(least_parallelism=least_parallelism, most_parallelism=most_parallelism)
    at_least(0, skew=skew, rate=rate)
    share(join_share=join_share, extra_consumers=extra_consumers)
    if kind == "general" and least_operators < 3:
        raise BadInput(
            "a general topology has two partitionings, so three operators or more",
            field="least_operators",
            remedy="write least_operators=3",
        )
    draws = Draws(seed)
    count = draws.branch("operators").whole(least_operators, most_operators)
    links = _graph(count, most_inputs, extra_consumers, draws.branch("graph"))
    sizing = draws.branch("parallelism")
    sizes = [sizing.whole(least_parallelism, most_parallelism) for _ in range(count)]
    full = _full_links(kind, len(links), draws.branch("partitioning"))
    inputs: list[list[Input]] = [[] for _ in range(count)]
    for (up, down), is_full in zip(links, full, strict=True):
        partitioning = Partitioning.FULL if is_full else structured_partitioning(sizes[up], sizes[down])
        inputs[down].append(Input(OperatorId(f"O{up + 1}"), partitioning))
    several = [number for number, reads in enumerate(inputs) if len(reads) > 1]
    joins = set(draws.branch("joins").sample(several, round(join_share * len(several))))
    weighing = draws.branch("weights")
    return Topology(
        f"replication-seed-{seed}",
        [
            Operator(
                OperatorId(f"O{number + 1}"),
                sizes[number],
                tuple(inputs[number]),
                rate=None if inputs[number] else rate * sizes[number],
                weights=_weights(sizes[number], skew, weighing) if weights == "zipf" else None,
                joins=number in joins,
            )
            for number in range(count)
        ],
    )


def structured_partitioning(upstream: int, downstream: int) -> Partitioning:
    """Return the partitioning other than full that joins so many partitions to so many."""
    if upstream == downstream:
        return Partitioning.ONE_TO_ONE
    return Partitioning.SPLIT if upstream < downstream else Partitioning.MERGE


def _graph(count: int, most_inputs: int, extra_consumers: float, draws: Draws) -> list[tuple[int, int]]:
    """Let every operator but the last feed a later one, some a second one; return (upstream, downstream) pairs."""
    fan_in = [0] * count
    links: set[tuple[int, int]] = set()
    for up in range(count - 2, -1, -1):
        # There is always one: nothing feeds the next operator yet.
        later = [down for down in range(up + 1, count) if fan_in[down] < most_inputs]
        wanted = 2 if len(later) > 1 and draws.chance(extra_consumers) else 1
        for down in draws.sample(later, wanted):
            fan_in[down] += 1
            links.add((up, down))
    return sorted(links, key=lambda link: (link[1], link[0]))


def _full_links(kind: str, count: int, draws: Draws) -> list[bool]:
    if kind != "general":
        return [kind == "full"] * count
    full = [draws.chance(0.5) for _ in range(count)]
    if len(set(full)) < 2:
        changed = draws.whole(0, count - 1)
        full[changed] = not full[changed]
    return full


def _weights(count: int, skew: float, draws: Draws) -> tuple[float, ...]:
    shares = zipf_shares(count, skew)
    draws.shuffle(shares)
    return tuple(shares)
