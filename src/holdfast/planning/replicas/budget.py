"""How many partitions get a replica: a count, a share of all, or cores; and which, for a run. Runs anywhere; pure.

A budget is written as people say it: `12` (replicas), `0.5` (of all partitions), `4 cores` (their summed costs).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.errors import BadInput
from holdfast.ids import PartitionId
from holdfast.planning.replicas.algorithms import ReplicaAlgorithm, plan_replicas
from holdfast.planning.replicas.plan import ReplicaPlan
from holdfast.topology import Topology, smallest_mc_tree_size

_CORES = ("cores", "core")


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

    def __str__(self) -> str:
        if self.cores is not None:
            return f"{self.cores:g} cores"
        return f"{self.count}" if self.share is None else f"{self.share:g} of all partitions"

    def count_for(self, topology: Topology) -> int | None:
        """Return how many replicas that is; None: it is a matter of what they cost."""
        if self.cores is not None:
            return None
        return self.count if self.count is not None else int((self.share or 0.0) * len(topology) + 1e-9)


def plan_within(
    topology: Topology, budget: ReplicaBudget, algorithm: ReplicaAlgorithm, *, clock: Callable[[], float]
) -> ReplicaPlan:
    """Choose replicas within a budget; one that keeps no output alive is refused with the least that would."""

    def plan(count: int) -> ReplicaPlan:
        return plan_replicas(topology, count, clock=clock, algorithm=algorithm, with_bound=False)

    count = budget.count_for(topology)
    found = _within_cores(topology, plan, budget.cores or 0.0) if count is None else plan(count)
    if not found.replicas and any((budget.count, budget.share, budget.cores)):
        raise BadInput(
            f"a budget of {budget} keeps no output alive",
            field="replicas",
            remedy=f"the smallest tree from sources to an output has {smallest_mc_tree_size(topology)} partitions",
        )
    return found


def cost_of(topology: Topology, replicas: Sequence[PartitionId]) -> float:
    """Return what replicas cost together: as much as their partitions."""
    return float(topology.cost[topology.indices(replicas)].sum()) if replicas else 0.0


def _within_cores(topology: Topology, plan: Callable[[int], ReplicaPlan], cores: float) -> ReplicaPlan:
    """Return the plan with the most replicas whose costs fit."""
    low, high = 0, len(topology)
    best = plan(0)
    while low < high:
        middle = (low + high + 1) // 2
        found = plan(middle)
        if cost_of(topology, found.replicas) <= cores + 1e-9:
            low, best = middle, found
        else:
            high = middle - 1
    return best
