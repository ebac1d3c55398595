"""Lets the replica plan of a run follow what is measured (PPA, sec. V-C). Runs on the driver.

Every so often, while all is well, the topology with its measured rates is one observation. What follows from it is pure
(`planning.replicas.following`) and takes a second or more on a large topology: it runs beside the driver's loop, which
takes the answer when it is there. Nothing here decides about durability: an observation that is lost is made again.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from holdfast.errors import one_line
from holdfast.ids import PartitionId
from holdfast.planning.replicas.following import Followed, Planned, ReplicaRules, follow
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.events import ReplicasPlanned
from holdfast.recovery.states import AT_WORK_STATES
from holdfast.topology import Topology

RATES_SECONDS = 30.0
"""How often predictions of fidelity take the rates of now."""


class ReplicaPlans(Protocol):
    """Says which partitions are to have a replica, as measurements come."""

    def due(self, now: float) -> bool:
        """Whether the next observation is due."""
        ...

    def observe(self, now: float, topology: Topology, standing: tuple[PartitionId, ...]) -> None:
        """Take an observation; `standing` are the replicas of the plan in place."""
        ...

    def decided(self) -> ReplicasPlanned | None:
        """Return the change of plan that follows from the last observation, once; None: there is none, or not yet."""
        ...

    def close(self) -> None:
        """Observe no more."""
        ...


class RateFollower:
    """Passes measured rates on, while all is well: to predictions of fidelity, and to the plan of replicas."""

    def __init__(self, state: ClusterState, plans: ReplicaPlans | None, is_measured: Callable[[], bool]) -> None:
        """`is_measured` says whether every partition was measured for long enough."""
        self._state, self._plans, self._is_measured = state, plans, is_measured
        self._rates_at: float | None = None

    def look(self, now: float, measured: Callable[[], Topology]) -> ReplicasPlanned | None:
        """Take an observation where one is due; return a change of the replica plan where one is decided.

        In an outage rates stay those before it: what is lost has none, and what is left is in a hurry.
        """
        state, plans = self._state, self._plans
        event = None if plans is None else plans.decided()
        for_plan = plans is not None and plans.due(now)
        tentative = bool(state.settings.tentative or state.branches.chosen)
        for_rates = tentative and (self._rates_at is None or now - self._rates_at >= RATES_SECONDS)
        if not (for_plan or for_rates) or not self._is_calm() or not self._is_measured():
            return event
        topology = measured()
        if for_rates:
            self._rates_at, state.branches.rates = now, topology
        if plans is not None and for_plan:
            plans.observe(now, topology, state.copies.replicas if event is None else event.replicas)
        return event

    def _is_calm(self) -> bool:
        state = self._state
        at_work = all(one.state in AT_WORK_STATES for one in state.partitions.values())
        return at_work and not state.recovering and not state.branches.now.members

    def close(self) -> None:
        """Observe no more."""
        if self._plans is not None:
            self._plans.close()


class FollowingPlans:
    """The plans of a run with a budget."""

    def __init__(
        self,
        rules: ReplicaRules,
        planned: Planned,
        *,
        seconds: float,
        clock: Callable[[], float],
        beside: bool = False,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """`planned` is the plan at the start; `beside`: whether planning runs on a thread of its own."""
        self._rules, self._planned, self._seconds, self._clock, self._log = rules, planned, seconds, clock, log
        self._pool = ThreadPoolExecutor(1, "holdfast-replica-plan") if beside else None
        self._at: float | None = None
        self._answer: Future[Followed] | None = None

    def due(self, now: float) -> bool:
        """See ReplicaPlans."""
        if self._answer is not None:
            return False
        if self._at is None:
            self._at = now  # the start has just planned
        return now - self._at >= self._seconds

    def observe(self, now: float, topology: Topology, standing: tuple[PartitionId, ...]) -> None:
        """See ReplicaPlans."""
        self._at = now
        if set(standing) != set(self._planned.replicas(self._rules)):
            self._planned = Planned(standing)  # somebody else has changed the plan: it is followed from there
        before = self._planned

        def work() -> Followed:
            return follow(self._rules, before, topology, clock=self._clock)

        self._answer = Future()
        try:
            if self._pool is not None:
                self._answer = self._pool.submit(work)  # raises where no thread can be started
                return
            self._answer.set_result(work())
        except Exception as error:  # as a pool would: an observation that fails changes nothing
            self._answer.set_exception(error)

    def decided(self) -> ReplicasPlanned | None:
        """See ReplicaPlans."""
        answer = self._answer
        if answer is None or not answer.done():
            return None
        self._answer = None
        if (error := answer.exception()) is not None:
            self._log(f"the replica plan stays as it is: {one_line(str(error) or type(error).__name__)}")
            return None
        found = answer.result()
        before = self._planned.replicas(self._rules)
        self._planned = found.planned
        after = found.planned.replicas(self._rules)
        if set(after) == set(before):
            return None
        return ReplicasPlanned(after, found.reason, at_once=found.exceeded)

    def close(self) -> None:
        """See ReplicaPlans."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
