"""Random lines, trees towards a sink, and DAGs with T(v) for each task, in the manner of FTC. Runs anywhere.

The paper tests fixed topologies with T(v) = 1 or from 1 to 10 (sec. V-B); these are random ones of the same shapes.
Graph and times come from streams of their own: the same seed with other times is the same graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from holdfast.ids import OperatorId
from holdfast.topology.draws import Draws
from holdfast.topology.model import Topology
from holdfast.topology.operators import Input, Operator, Partitioning
from holdfast_lab.random_topologies.ppa import structured_partitioning
from holdfast_lab.random_topologies.settings import at_least, counts, ordered, share

Times = Annotated[Literal["uniform", "unequal"], "T(v): 1 second everywhere, or whole seconds from 1 to longest_time"]
LongestTime = Annotated[int, "longest T(v) in seconds, where they are unequal"]


def lines(
    seed: int,
    *,
    lines: Annotated[int, "how many lines"] = 3,
    shortest: Annotated[int, "fewest tasks of a line, without the sink"] = 3,
    longest: Annotated[int, "most tasks of a line, without the sink"] = 8,
    times: Times = "uniform",
    longest_time: LongestTime = 10,
) -> Topology:
    """Make lines of different lengths that meet in one sink."""
    counts(lines=lines, shortest=shortest, longest=longest, longest_time=longest_time)
    ordered(shortest=shortest, longest=longest)
    draws = Draws(seed)
    graph, time = draws.branch("graph"), _times(times, longest_time, draws)
    made, ends = [], []
    for line in range(1, lines + 1):
        length = graph.whole(shortest, longest)
        for step in range(1, length + 1):
            inputs = _one_to_one([f"line{line}-{step - 1}"] if step > 1 else [])
            made.append(Operator(OperatorId(f"line{line}-{step}"), 1, inputs, reprocess_seconds=time()))
        ends.append(f"line{line}-{length}")
    made.append(Operator(OperatorId("sink"), 1, _one_to_one(ends), reprocess_seconds=time()))
    return Topology(f"lines-seed-{seed}", made)


def tree(
    seed: int,
    *,
    tasks: Annotated[int, "how many tasks"] = 20,
    most_inputs: Annotated[int, "most upstream neighbours of a task"] = 3,
    times: Times = "uniform",
    longest_time: LongestTime = 10,
) -> Topology:
    """Make a tree of tasks towards the sink v1; tasks are numbered from it, level by level."""
    counts(tasks=tasks, most_inputs=most_inputs, longest_time=longest_time)
    draws = Draws(seed)
    graph, time = draws.branch("graph"), _times(times, longest_time, draws)
    downstream, room = [-1], [0] * most_inputs
    for number in range(1, tasks):
        downstream.append(room.pop(graph.whole(0, len(room) - 1)))
        room += [number] * most_inputs
    depth = [0] * tasks
    for number in range(1, tasks):
        depth[number] = depth[downstream[number]] + 1
    order = sorted(range(tasks), key=lambda number: (depth[number], number))
    name = {number: f"v{place}" for place, number in enumerate(order, start=1)}
    feeds: dict[int, list[str]] = {number: [] for number in range(tasks)}
    for number in order[1:]:
        feeds[downstream[number]].append(name[number])
    seconds = [time() for _ in order]
    made = [
        Operator(OperatorId(name[number]), 1, _one_to_one(feeds[number]), reprocess_seconds=seconds[place])
        for place, number in enumerate(order)
    ]
    return Topology(f"tree-to-sink-seed-{seed}", reversed(made))


def dag(
    seed: int,
    *,
    steps: Annotated[int, "operators on the longest path"] = 9,
    most_operators: Annotated[int, "most operators side by side in a step"] = 2,
    least_parallelism: Annotated[int, "fewest tasks of an operator"] = 1,
    most_parallelism: Annotated[int, "most tasks of an operator"] = 8,
    full_share: Annotated[float, "chance that a partitioning is full, 0 to 1"] = 0.3,
    skips: Annotated[float, "chance that an operator also reads one from an earlier step, 0 to 1"] = 0.2,
    times: Times = "uniform",
    longest_time: LongestTime = 10,
) -> Topology:
    """Make operators in steps, each reading operators of the step before, the last a single sink task."""
    counts(steps=steps, most_operators=most_operators, longest_time=longest_time)
    counts(least_parallelism=least_parallelism, most_parallelism=most_parallelism)
    ordered(least_parallelism=least_parallelism, most_parallelism=most_parallelism)
    share(full_share=full_share, skips=skips)
    at_least(1, steps=steps)
    draws = Draws(seed)
    graph, time = draws.branch("graph"), _times(times, longest_time, draws)
    by_step = [[f"s{step}"] if step == steps else _names(step, graph, most_operators) for step in range(1, steps + 1)]
    sizes = {name: graph.whole(least_parallelism, most_parallelism) for names in by_step for name in names}
    sizes[by_step[-1][0]] = 1
    reads: dict[str, list[str]] = {name: [] for names in by_step for name in names}
    for step in range(1, steps):
        before, here = by_step[step - 1], by_step[step]
        for name in here:
            reads[name] = sorted(graph.sample(before, graph.whole(1, len(before))))
        for unread in [name for name in before if not any(name in reads[reader] for reader in here)]:
            reads[graph.pick(here)].append(unread)
        for name in here:
            if step > 1 and graph.chance(skips):
                reads[name].append(graph.pick(graph.pick(by_step[: step - 1])))
    made = []
    for name, sources in reads.items():
        inputs = []
        for source in sources:
            is_full = graph.chance(full_share)
            kind = Partitioning.FULL if is_full else structured_partitioning(sizes[source], sizes[name])
            inputs.append(Input(OperatorId(source), kind))
        seconds = tuple(time() for _ in range(sizes[name]))
        same = len(set(seconds)) == 1
        made.append(
            Operator(OperatorId(name), sizes[name], tuple(inputs), reprocess_seconds=seconds[0] if same else seconds)
        )
    return Topology(f"dag-seed-{seed}", made)


def _names(step: int, graph: Draws, most_operators: int) -> list[str]:
    count = graph.whole(1, most_operators)
    return [f"s{step}"] if count == 1 else [f"s{step}-{number}" for number in range(1, count + 1)]


def _times(times: str, longest_time: int, draws: Draws) -> Callable[[], float]:
    stream = draws.branch("times")
    return lambda: float(stream.whole(1, longest_time)) if times == "unequal" else 1.0


def _one_to_one(names: list[str]) -> tuple[Input, ...]:
    return tuple(Input(OperatorId(name), Partitioning.ONE_TO_ONE) for name in names)
