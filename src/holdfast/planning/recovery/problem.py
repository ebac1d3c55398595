"""What to bring back first: the problem, its answer, and the checker (incremental recovery, sec. 2.3). Pure.

A query is back when all of its failed partitions are. Given what has failed and how much may be used, choose the
partitions whose queries sum to the most priority. Partitions that are already back cost nothing: a problem is made
from what is still missing, so an incremental recovery poses one problem after the other.

Inside, failed partitions that belong to exactly the same failed queries are one **group**: no plan has a reason to take
a part of it to complete a query. Costs are whole units (`cost_units`).

Costs as whole numbers of one small unit, so that no rounding ever decides what fits. Pure; runs anywhere.

Costs may be fractional: 0.1 + 0.2 must fit a capacity of 0.3. Decimal fractions are scaled to whole numbers without
loss wherever the sum of all costs stays below 10^15 (then sums are exact in integers and in floating point alike).
Where the digits do not fit (costs drawn at random to the last bit), costs are rounded up and capacities down, at the
fifteenth significant digit of the sum: a plan that fits in units fits in truth.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.topology import Floats, Ints, Queries, Topology

LARGEST_SUM = 2**53


@dataclass(frozen=True, slots=True)
class CostUnits:
    """How many units one of the user's measure is: a power of ten."""

    per_one: Fraction
    exact: bool
    """Whether all costs it was made for are whole numbers of units."""

    @classmethod
    def for_values(cls, costs: Floats) -> CostUnits:
        """Choose the unit for these costs. Sums of costs are whole units, so capacities round down."""
        return _units_for(np.ascontiguousarray(costs, np.float64).tobytes())

    def costs(self, values: Floats) -> Ints:
        """Return costs in units, rounded up."""
        distinct, where = np.unique(values, return_inverse=True)
        units = [math.ceil(as_written(value) * self.per_one) for value in distinct.tolist()]
        return np.array(units, np.int64)[where].reshape(values.shape)

    def capacity(self, value: float | Fraction) -> int:
        """Return a capacity in units, rounded down; no more than any sum of costs can need."""
        if value == math.inf:
            return LARGEST_SUM
        return min(LARGEST_SUM, max(0, math.floor(as_written(value) * self.per_one)))

    def value(self, units: int) -> float:
        """Return units in the user's measure."""
        return float(Fraction(int(units)) / self.per_one)


def as_written(value: float | Fraction) -> Fraction:
    """Return the decimal fraction a number is written as: 0.1 is a tenth."""
    return value if isinstance(value, Fraction) else _as_written(float(value))


@lru_cache(maxsize=4096)
def _as_written(value: float) -> Fraction:
    return Fraction(Decimal(repr(value)))


@lru_cache(maxsize=16)
def _units_for(costs: bytes) -> CostUnits:
    """Return the unit for costs: one recovery poses many problems of the same topology."""
    values = np.frombuffer(costs, np.float64)
    distinct = [Decimal(repr(value)) for value in np.unique(values).tolist()]
    total = float(np.sum(values))
    largest = 15 - math.ceil(math.log10(total)) if total > 0 else 15
    wanted = max((_decimals(value) for value in distinct), default=0)
    return CostUnits(Fraction(10) ** max(min(wanted, largest), -18), wanted <= largest)


def _decimals(value: Decimal) -> int:
    """Return how many decimal digits after the point it takes to write a number; below zero for 1000."""
    exponent = value.normalize().as_tuple().exponent
    return -exponent if value and isinstance(exponent, int) else -(10**6)


# -- problem -----------------------------------------------------------------------------------------------------------


Mask = NDArray[np.bool_]
_PRODUCT_ENTRIES = 1 << 22


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Which partitions come back. `check_plan` returns whether it may be used."""

    algorithm: str
    recover: tuple[PartitionId, ...]
    """The partitions to bring back, upstream first."""
    queries: tuple[PartitionId, ...]
    """Output partitions whose queries are whole again with them."""
    priority: int
    """The sum of those queries' priorities."""
    cost: float
    optimal: bool
    """Whether no plan restores more priority."""
    bound: int
    """No plan restores more than this."""
    partial: tuple[PartitionId, ...] = ()
    """Those of `recover` that no query restored here needs: capacity left over, used for the next query."""
    seeds: int | None = None
    """Best-density: how many candidate plans it grew."""
    notes: tuple[str, ...] = ()


class RecoveryProblem:
    """Failed queries, the failed partitions they need, and a capacity. Read-only."""

    def __init__(
        self,
        topology: Topology,
        failed: Ints | Mask,
        capacity: float,
        *,
        queries: Queries | None = None,
        units: CostUnits | None = None,
    ) -> None:
        """Pose the problem for these failed partitions; hand in `queries` and `units` when posing many."""
        if not capacity >= 0:
            raise BadInput(f"{capacity} is not a capacity", field="capacity", remedy="give zero or more")
        self.topology = topology
        self.all_queries = queries or Queries(topology)
        self.missing: Mask = _as_mask(len(topology), failed)
        """Which partitions are not back."""
        self.units = units or CostUnits.for_values(topology.cost)
        self.capacity = self.units.capacity(capacity)
        self.partitions: Ints = np.flatnonzero(self.missing)
        """The failed partitions; all arrays over partitions below are in this order."""
        self.cost: Ints = self.units.costs(topology.cost[self.partitions])
        member = self.all_queries.matrix()[:, self.partitions]
        self.queries: Ints = np.flatnonzero(member.any(axis=1))
        """The failed queries, as numbers among all; arrays over queries below are in this order."""
        self.priority: Ints = self.all_queries.priority[self.queries]
        self._needs: Mask | None = member[self.queries]
        """Which failed partitions each failed query needs, until they are grouped."""

    @property
    def group_of(self) -> Ints:
        """The group of each failed partition; -1 where no query needs it."""
        return self._groups[0]

    @property
    def member(self) -> Mask:
        """Whether a query (row) needs a group (column)."""
        return self._groups[1]

    @property
    def group_cost(self) -> Ints:
        """What each group costs."""
        return self._groups[2]

    @cached_property
    def _groups(self) -> tuple[Ints, Mask, Ints]:
        """The group of each failed partition, who needs a group, and what it costs; who checks a plan needs none."""
        if not len(self.queries) or not len(self.partitions):
            nobody = np.full(len(self.partitions), -1)
            return nobody, np.zeros((len(self.queries), 0), bool), np.zeros(0, np.int64)
        member, self._needs = self._needs, None
        assert member is not None
        packed = np.ascontiguousarray(np.packbits(member, axis=0).T)
        rows = packed.view([("", np.void, packed.shape[1])]).ravel() if packed.shape[1] else packed.ravel()
        _, first, group = np.unique(rows, return_index=True, return_inverse=True)
        # Groups in the order of their first partition, so that answers do not depend on how bits sort.
        place = np.argsort(np.argsort(first))
        group = place[group.ravel()]
        first = np.sort(first)
        useful = member[:, first].any(axis=0)
        number = np.where(useful, np.cumsum(useful) - 1, -1)
        group_of, needs = number[group], np.ascontiguousarray(member[:, first[useful]])
        needed = group_of >= 0
        cost = np.bincount(group_of[needed], self.cost[needed].astype(float), minlength=needs.shape[1])
        return group_of, needs, cost.astype(np.int64)

    @cached_property
    def query_cost(self) -> Ints:
        """What each query costs alone."""
        # Sums of units are below 2^53: exact in floating point, where the product is fast.
        return self.per_query(self.group_cost.astype(float)).astype(np.int64)

    @cached_property
    def sharing(self) -> Ints:
        """How many failed queries need each group: f of incremental recovery, eq. for the profit density."""
        return np.asarray(self.member.sum(axis=0, dtype=np.int64))

    @cached_property
    def share_cost(self) -> Floats:
        """Each query's cost with shared partitions divided among their queries: the denominator of its density."""
        return self.per_query(self.group_cost / np.maximum(1, self.sharing))

    @property
    def total_priority(self) -> int:
        """The priority of all failed queries."""
        return int(self.priority.sum())

    def with_capacity(self, capacity: float) -> RecoveryProblem:
        """Return the same problem with another capacity, in the same units, nothing computed again."""
        other, _ = object.__new__(RecoveryProblem), self._groups
        other.__dict__.update(self.__dict__)
        other.capacity = self.units.capacity(capacity)
        return other

    def per_query(self, value: Floats) -> Floats:
        """Return, for each failed query, the sum of a value over the groups it needs; a few rows at a time."""
        rows = max(1, _PRODUCT_ENTRIES // max(1, self.member.shape[1]))
        found = np.zeros(len(self.queries))
        for start in range(0, len(found), rows):
            found[start : start + rows] = self.member[start : start + rows].astype(float) @ value
        return found

    # -- from sets of queries to partitions and back --------------------------------------------------------------

    def groups_of(self, chosen: Iterable[int] | Ints | Mask) -> Mask:
        """Return the groups that these queries (numbers of failed ones, or a mask) need."""
        rows = chosen if isinstance(chosen, np.ndarray) else np.fromiter(chosen, np.int64)
        return np.asarray(self.member[rows].any(axis=0))

    def partitions_of(self, groups: Mask) -> Mask:
        """Return the failed partitions (a mask over `partitions`) of groups."""
        found = np.zeros(len(self.partitions), bool)
        needed = self.group_of >= 0
        found[needed] = groups[self.group_of[needed]]
        return found

    def restored_by(self, taken: Mask) -> Mask:
        """Return which failed queries are whole again when these failed partitions (a mask) are back."""
        if not len(self.queries):
            return np.zeros(0, bool)
        complete = np.ones(self.member.shape[1], bool)
        needed = (self.group_of >= 0) & ~taken
        complete[self.group_of[needed]] = False
        return np.asarray(~(self.member & ~complete).any(axis=1))

    def cost_of(self, taken: Mask) -> int:
        """Return what failed partitions (a mask) cost, in units."""
        return int(self.cost[taken].sum())

    def plan(
        self,
        algorithm: str,
        taken: Mask,
        *,
        bound: int | None = None,
        seeds: int | None = None,
        notes: tuple[str, ...] = (),
    ) -> RecoveryPlan:
        """Name a set of failed partitions as a plan; it is optimal where it reaches a bound."""
        restored = self.restored_by(taken)
        priority = int(self.priority[restored].sum())
        if bound is None and priority == self.total_priority:
            bound = priority  # no plan restores more than everything
        limit = share_bound(self) if bound is None else bound
        needed = self.partitions_of(self.groups_of(restored)) if len(self.queries) else np.zeros_like(taken)
        return RecoveryPlan(
            algorithm=algorithm,
            recover=self.names(taken),
            queries=tuple(self.topology.partitions(self.all_queries.heads[self.queries[restored]])),
            priority=priority,
            cost=self.units.value(self.cost_of(taken)),
            optimal=priority >= limit,
            bound=max(limit, priority),
            partial=self.names(taken & ~needed),
            seeds=seeds,
            notes=notes,
        )

    def names(self, taken: Mask) -> tuple[PartitionId, ...]:
        """Name failed partitions (a mask), upstream first."""
        chosen = self.partitions[taken]
        return tuple(self.topology.partitions(chosen[np.lexsort((chosen, self.topology.level[chosen]))]))


def share_bound(problem: RecoveryProblem) -> int:
    """Return a priority that no plan exceeds, quickly.

    A set of queries costs at least the sum of its queries' shares, because a partition that f failed queries need is
    divided by f and at most f of them are in the set. So the fractional knapsack over shares is a bound.
    """
    if not len(problem.queries):
        return 0
    fits = problem.query_cost <= problem.capacity
    share, priority = problem.share_cost[fits], problem.priority[fits].astype(float)
    order = np.argsort(-priority / np.maximum(share, 1e-12), kind="stable")
    used = np.cumsum(share[order])
    whole = int(np.searchsorted(used, problem.capacity * (1 + 1e-12) + 1e-9, side="right"))
    bound = float(priority[order[:whole]].sum())
    if whole < len(order):
        left = problem.capacity - (used[whole - 1] if whole else 0.0)
        bound += priority[order[whole]] * left / share[order[whole]]
    return int(np.floor(bound + 1e-6))


def plan_problems(problem: RecoveryProblem, plan: RecoveryPlan) -> list[str]:
    """Return what is wrong with a plan; nothing when it may be used. Serves the run and the tests."""
    found = []
    numbers = problem.topology.indices(plan.recover)
    if len(set(numbers.tolist())) < len(numbers):
        found.append("a partition is brought back twice")
    wrong = numbers[~problem.missing[numbers]]
    if len(wrong):
        found.append(f"{problem.topology.partition(int(wrong[0]))} has not failed")
        return found
    back = ~problem.missing
    back[numbers] = True
    # From the topology itself, not from groups: an independent look at what is whole.
    needs = problem.all_queries.matrix()
    again = (needs & problem.missing).any(axis=1) & ~(needs & ~back).any(axis=1)
    whole = set(problem.topology.partitions(problem.all_queries.heads[again]))
    if whole != set(plan.queries):
        odd = sorted(whole ^ set(plan.queries))[0]
        found.append(f"the query of {odd} is {'whole but not named' if odd in whole else 'named but not whole'}")
    index = problem.topology.indices(plan.queries)
    if int(problem.topology.priority[index].sum()) != plan.priority:
        found.append("the priority is not the sum of the queries'")
    units = int(problem.units.costs(problem.topology.cost[numbers]).sum())
    if units > problem.capacity:
        found.append(f"costs {problem.units.value(units):g}, over {problem.units.value(problem.capacity):g}")
    if abs(problem.units.value(units) - plan.cost) > 1e-9 * max(1.0, plan.cost):
        found.append("the cost is not the sum of the partitions'")
    if plan.priority > plan.bound or (plan.optimal and plan.priority != plan.bound):
        found.append(f"a priority of {plan.priority} and a bound of {plan.bound} contradict each other")
    if not set(plan.partial) <= set(plan.recover):
        found.append("a partition is counted as partial but not brought back")
    return found


def _as_mask(size: int, failed: Ints | Mask) -> Mask:
    mask = np.zeros(size, bool)
    mask[np.asarray(failed)] = True
    return mask
