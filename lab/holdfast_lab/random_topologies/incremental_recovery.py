"""Random queries that share partitions, by the query generator of incremental recovery, sec. 6.3. Runs anywhere.

What the generator fixes is which partitions belong to which queries: how many queries, how large each is, and how often
partitions are shared. Each partition is an operator with one partition, and edges are laid so that the upstream closure
of every output is exactly its query: docs/decisions/0022.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Literal

from holdfast.errors import BadInput
from holdfast.ids import OperatorId
from holdfast.topology.draws import Draws, zipf_shares
from holdfast.topology.model import Topology
from holdfast.topology.operators import Input, Operator, Partitioning
from holdfast_lab.random_topologies.settings import at_least, counts, ordered, share

_HIGHEST_PRIORITY = 10


@dataclass(frozen=True, slots=True)
class _Shared:
    """One partition that is no output: the queries it belongs to."""

    queries: set[int]


def queries(
    seed: int,
    *,
    queries: Annotated[int, "how many queries"] = 18,
    smallest: Annotated[int, "fewest partitions of a query, its output among them"] = 4,
    largest: Annotated[int, "most partitions of a query"] = 12,
    most_shared: Annotated[int, "how many queries the most shared partition is in (paper: 3 or 6)"] = 3,
    skew: Annotated[float, "Zipf skew of the share frequencies (paper: 0.2 or 0.5)"] = 0.2,
    priority: Annotated[Literal["random", "linear"], "priorities 1 to 10, drawn or growing with workload"] = "random",
    most_cost: Annotated[int, "costs of partitions are drawn from 1 to this"] = 10,
    depth: Annotated[float, "chance that a partition feeds another one rather than the outputs, 0 to 1"] = 0.75,
) -> Topology:
    """Make queries with these sizes, share frequencies, costs and priorities."""
    counts(queries=queries, smallest=smallest, largest=largest, most_shared=most_shared, most_cost=most_cost)
    ordered(smallest=smallest, largest=largest)
    at_least(0, skew=skew)
    share(depth=depth)
    if most_shared > queries:
        raise BadInput(
            f"{most_shared} is above the number of queries, {queries}",
            field="most_shared",
            remedy="a partition is shared by all queries at most",
        )
    if smallest < 2 <= most_shared:
        raise BadInput("a query of one partition shares none", field="smallest", remedy="write smallest=2")
    draws = Draws(seed)
    sizing = draws.branch("sizes")
    sizes = [sizing.whole(smallest, largest) for _ in range(queries)]
    shared = _share(sizes, most_shared, skew, draws.branch("sharing"))
    consumers, heads = _lay_edges(shared, depth, draws.branch("edges"))
    costing = draws.branch("costs")
    costs = [costing.whole(1, most_cost) for _ in shared]
    head_costs = [costing.whole(1, most_cost) for _ in sizes]
    workload = [
        head_costs[query] + sum(cost for cost, one in zip(costs, shared, strict=True) if query in one.queries)
        for query in range(queries)
    ]
    inputs: list[list[int]] = [[] for _ in shared]
    for number, targets in enumerate(consumers):
        for target in targets:
            inputs[target].append(number)
    made = [
        Operator(OperatorId(f"P{number + 1}"), 1, _reads(inputs[number]), output=False, cost=float(costs[number]))
        for number in range(len(shared))
    ]
    made += [
        Operator(
            OperatorId(f"Q{query + 1}"),
            1,
            _reads(heads[query]),
            output=True,
            cost=float(head_costs[query]),
            priority=level,
        )
        for query, level in enumerate(_priorities(priority, workload, draws.branch("priorities")))
    ]
    return Topology(f"queries-seed-{seed}", made)


def _reads(numbers: list[int]) -> tuple[Input, ...]:
    return tuple(Input(OperatorId(f"P{number + 1}"), Partitioning.ONE_TO_ONE) for number in numbers)


def _share(sizes: list[int], most_shared: int, skew: float, draws: Draws) -> list[_Shared]:
    """Fill every query up to its size; a partition is in k of them with a probability proportional to k^-skew.

    The first is in `most_shared` of them, so that this is the largest share frequency and not only its limit. Near the
    end a partition may get less than it drew: it cannot be in more queries than still have room.
    """
    ends = list(accumulate(zipf_shares(most_shared, skew)))
    room = [size - 1 for size in sizes]
    found: list[_Shared] = []
    while any(room):
        open_queries = [query for query, left in enumerate(room) if left]
        wanted = most_shared if not found else 1 + bisect(ends, draws.fraction() * ends[-1], hi=most_shared - 1)
        # The roomiest first: then the last queries fill up together, and frequencies come out as wanted.
        draws.shuffle(open_queries)
        open_queries.sort(key=lambda query: -room[query])
        members = open_queries[:wanted]
        for query in members:
            room[query] -= 1
        found.append(_Shared(set(members)))
    _mix(found, draws)
    # Widely shared partitions come first: those are upstream.
    draws.shuffle(found)
    found.sort(key=lambda one: -len(one.queries))
    return found


def _mix(shared: list[_Shared], draws: Draws) -> None:
    """Swap members between partitions at random; sizes and share frequencies stay as they are."""
    if len(shared) < 2:
        return
    for _ in range(10 * sum(len(one.queries) for one in shared)):
        a, b = draws.pick(shared).queries, draws.pick(shared).queries
        one, other = draws.pick(sorted(a)), draws.pick(sorted(b))
        if one not in b and other not in a:
            a.remove(one)
            b.remove(other)
            a.add(other)
            b.add(one)


def _lay_edges(shared: list[_Shared], depth: float, draws: Draws) -> tuple[list[list[int]], dict[int, list[int]]]:
    """Return each partition's consumers among the shared ones, and what each output reads.

    A partition may feed a later one whose queries are all its own, and feeds the output of every query that is left:
    so the queries it reaches are exactly those it belongs to.
    """
    later_of: dict[int, list[int]] = {}
    consumers: list[list[int]] = [[] for _ in shared]
    heads: dict[int, list[int]] = {query: [] for one in shared for query in one.queries}
    for number in range(len(shared) - 1, -1, -1):
        mine = shared[number].queries
        left = sorted(mine)
        draws.shuffle(left)
        reached: set[int] = set()
        for query in left:
            if query in reached:
                continue
            fitting = [later for later in later_of.get(query, ()) if shared[later].queries <= mine]
            if fitting and draws.chance(depth):
                target = draws.pick(fitting)
                consumers[number].append(target)
                reached |= shared[target].queries
            else:
                heads[query].append(number)
                reached.add(query)
        for query in mine:
            later_of.setdefault(query, []).append(number)
    return consumers, {query: sorted(numbers) for query, numbers in heads.items()}


def _priorities(kind: str, workload: list[int], draws: Draws) -> list[int]:
    if kind == "random":
        return [draws.whole(1, _HIGHEST_PRIORITY) for _ in workload]
    low, high = min(workload), max(workload)
    if low == high:
        return [1] * len(workload)
    span, steps = high - low, _HIGHEST_PRIORITY - 1
    return [1 + (2 * steps * (one - low) + span) // (2 * span) for one in workload]
