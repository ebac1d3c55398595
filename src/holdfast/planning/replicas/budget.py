"""How many partitions get a replica: a count, a share of all, or cores; and which, for a run. Runs anywhere; pure.

A budget is written as people say it: `12` (replicas), `0.5` (of all partitions; `1.0` is all of them), `4 cores` (their
summed costs). Settings, options, targets in a program and plan documents are all read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.planning.replicas.algorithms import ReplicaAlgorithm, plan_replicas
from holdfast.planning.replicas.plan import ReplicaPlan
from holdfast.topology import Topology, smallest_mc_tree_size

_CORES = ("cores", "core")
_ROUNDING = 1e-9
_Plan = TypeVar("_Plan")


@dataclass(frozen=True, slots=True)
class ReplicaBudget:
    """A budget; exactly one of the three is given."""

    count: int | None = None
    share: float | None = None
    cores: float | None = None

    @classmethod
    def parse(cls, text: str) -> ReplicaBudget:
        """Read `12`, `0.5` or `4 cores`; what is none of these is a ValueError."""
        given = text.strip().lower()
        for word in _CORES:
            if given.endswith(word):
                cores = float(given.removesuffix(word))
                if not 0 <= cores < float("inf"):
                    raise ValueError("must be 0 cores or more")
                return cls(cores=cores)
        if "." in given:
            share = float(given)
            if not 0 <= share <= 1:
                raise ValueError("must be a share from 0.0 to 1.0, a whole number, or cores")
            return cls(share=share)
        count = int(given)
        if count < 0:
            raise ValueError("must be 0 or more")
        return cls(count=count)

    @classmethod
    def of(cls, given: object) -> ReplicaBudget:
        """Read what a program gives: a whole number, a float that is a share, or a text; else a ValueError."""
        if isinstance(given, ReplicaBudget):
            return given
        if isinstance(given, str):
            return cls.parse(given)
        if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
            return cls(count=given)
        if isinstance(given, float) and 0 <= given <= 1:
            return cls(share=given)
        raise ValueError("must be a share from 0.0 to 1.0, a whole number, or cores")

    @classmethod
    def read(cls, given: object) -> ReplicaBudget:
        """Read what `document` wrote. Numbers are those of plans before texts: below 1 a share, else a count."""
        if isinstance(given, str):
            return cls.parse(given)
        if isinstance(given, bool) or not isinstance(given, int | float):
            raise ValueError(f"{given!r} is not a budget of replicas")
        if 0 < given < 1:
            return cls(share=float(given))
        if given < 0 or not float(given).is_integer():
            raise ValueError(f"{given!r} is not a budget of replicas")
        return cls(count=int(given))

    def document(self) -> float | str:
        """Return the budget as plan documents have it; what numbers cannot say there is a text."""
        if self.cores is not None:
            return f"{self.cores!r} cores"
        if self.share is not None:
            return self.share if self.share < 1 else "1.0"
        return float(self.count or 0)

    @property
    def any(self) -> bool:
        """Whether it allows anything at all."""
        return bool(self.count or self.share or self.cores)

    def __str__(self) -> str:
        if self.cores is not None:
            return f"{self.cores:g} cores"
        return f"{self.count}" if self.share is None else f"{self.share:g} of all partitions"

    def count_for(self, topology: Topology) -> int | None:
        """Return how many replicas that is; None: it is a matter of what they cost."""
        if self.cores is not None:
            return None
        return self.count if self.count is not None else int((self.share or 0.0) * len(topology) + _ROUNDING)

    def allows(self, topology: Topology, replicas: Sequence[int]) -> bool:
        """Whether replicas of these partitions are within it."""
        if self.cores is not None:
            return float(topology.cost[list(replicas)].sum()) <= self.cores + _ROUNDING
        count = self.count_for(topology)
        return count is None or len(replicas) <= count


def plan_within(
    topology: Topology, budget: ReplicaBudget, algorithm: ReplicaAlgorithm, *, clock: Callable[[], float]
) -> ReplicaPlan:
    """Choose replicas within a budget; one that keeps no output alive is refused with the least that would."""

    def plan(count: int) -> ReplicaPlan:
        return plan_replicas(topology, count, clock=clock, algorithm=algorithm, with_bound=False)

    count = budget.count_for(topology)
    if count is None:
        found = most_within_cores(len(topology), plan, lambda one: cost_of(topology, one.replicas), budget.cores or 0.0)
    else:
        found = plan(count)
    if not found.replicas and budget.any:
        raise BadInput(
            f"a budget of {budget} keeps no output alive",
            field="replicas",
            remedy=f"the smallest tree from sources to an output has {smallest_mc_tree_size(topology)} partitions",
        )
    return found


def cost_of(topology: Topology, replicas: Sequence[PartitionId]) -> float:
    """Return what replicas cost together: as much as their partitions."""
    return float(topology.cost[topology.indices(replicas)].sum()) if replicas else 0.0


def most_within_cores(most: int, plan: Callable[[int], _Plan], cost: Callable[[_Plan], float], cores: float) -> _Plan:
    """Return, of the plans for so many replicas at most, the one with the most whose costs fit."""
    low, high = 0, most
    best = plan(0)
    while low < high:
        middle = (low + high + 1) // 2
        found = plan(middle)
        if cost(found) <= cores + _ROUNDING:
            low, best = middle, found
        else:
            high = middle - 1
    return best
