"""Fragments for peers that differ in bandwidth, storage and failure domain. Pure; runs anywhere.

Past A-FP4S, which leaves heterogeneous clusters to future work. A peer's share is how many of a state's n fragments
it holds: a fast peer may hold several, a slow or full one none. No peer and no failure domain holds more than k, so
that losing any one of them loses no state.

For a given (m, k) the shares that make the slowest upload end first are found greedily: the j-th fragment on peer i
ends at j / bandwidth_i, limits per peer and per domain nest (they form a laminar matroid), and taking the earliest
ending that is still allowed gives the least makespan. Success is not eq. 3 any more, which takes holders for equal and
independent: `loss_of_shares` computes the exact probability from each peer's own, and from whole domains that fail.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput, NoPlan
from holdfast.planning.fragments.choice import USUAL_OVERHEAD, Preference, all_codings, sharing_seconds
from holdfast.planning.fragments.code_rates import CodeRates

MOST_FRAGMENTS_PER_PEER = 8
"""However fast a peer is: its disk and its link serve others too."""


@dataclass(frozen=True, slots=True)
class Peer:
    """What is known of one peer. Bytes, bytes per second, a probability."""

    id: str
    bandwidth: float
    storage: float = math.inf
    """Bytes free for fragments."""
    failure: float = 0.01
    """Probability that it alone is down when it is needed."""
    domain: str | None = None
    """Rack, zone; None: it fails alone."""

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth < math.inf:
            raise BadInput(f"peer {self.id} has no bandwidth", field="bandwidth", remedy="give bytes per second")
        if not self.storage >= 0:
            raise BadInput(
                f"peer {self.id}: {self.storage} is not a number of free bytes",
                field="storage",
                remedy="give 0 or more",
            )
        if not 0 <= self.failure < 1:
            raise BadInput(
                f"peer {self.id}: {self.failure} is not a probability below 1", field="failure", remedy="like 0.01"
            )


@dataclass(frozen=True, slots=True)
class SharesRequest:
    """What is asked for."""

    state_bytes: float
    peers: tuple[Peer, ...]
    reliability: float
    bandwidth: float
    """What the recovering node receives."""
    rates: CodeRates
    domain_failure: float = 0.0
    """Probability that a whole named domain is down when it is needed."""
    prefer: Preference = Preference.SPEED
    max_overhead: float | None = None

    def __post_init__(self) -> None:
        repeated = [name for name, times in Counter(peer.id for peer in self.peers).items() if times > 1]
        if repeated:
            raise BadInput(
                f"peer {repeated[0]} is named twice", field="peers", remedy="give each peer an id of its own"
            )
        if not self.peers:
            raise BadInput("no peers are given", field="peers", remedy="give at least one")
        if not 0 <= self.domain_failure < 1:
            raise BadInput(
                f"{self.domain_failure} is not a probability below 1", field="domain_failure", remedy="like 0.001"
            )


@dataclass(frozen=True, slots=True)
class SharesPlan:
    """A coding and who holds how many of its fragments."""

    coding: Coding
    shares: Mapping[str, int]
    """Fragments per peer that holds any."""
    fragment_bytes: float
    success: float
    loss: float
    storage_overhead: float
    save_seconds: float
    """When the slowest peer has its fragments."""
    retrieval_seconds: float
    """When m fragments' worth has come back with every holder alive, each giving at its own rate."""
    recompute_seconds: float

    @property
    def recovery_seconds(self) -> float:
        """Retrieving, then recomputing."""
        return self.retrieval_seconds + self.recompute_seconds


def domain_of(peer: Peer) -> str:
    """Return what fails together with a peer: its domain, or itself alone."""
    return f"domain {peer.domain}" if peer.domain is not None else f"peer {peer.id}"


def assign_fragments(peers: Sequence[Peer], coding: Coding, fragment_bytes: float) -> dict[str, int] | None:
    """Return the shares whose slowest upload ends first; None where the limits leave no room for n fragments."""
    most_here = [
        min(MOST_FRAGMENTS_PER_PEER, coding.parity, _whole(peer.storage / fragment_bytes, coding.total))
        for peer in peers
    ]
    in_domain: Counter[str] = Counter()
    shares: Counter[str] = Counter()
    # Ends of the next fragment on each peer; among equals the steadier peer, then the roomier, then the name.
    ends = [
        (1 / peer.bandwidth, peer.failure, -min(peer.storage, 1e300), peer.id, number)
        for number, peer in enumerate(peers)
        if most_here[number] > 0
    ]
    heapq.heapify(ends)
    left = coding.total
    while left and ends:
        _, failure, room, name, number = heapq.heappop(ends)
        peer = peers[number]
        if in_domain[domain_of(peer)] >= coding.parity:
            continue
        shares[name] += 1
        in_domain[domain_of(peer)] += 1
        left -= 1
        if shares[name] < most_here[number]:
            heapq.heappush(ends, ((shares[name] + 1) / peer.bandwidth, failure, room, name, number))
    return None if left else dict(sorted(shares.items()))


def loss_of_shares(
    peers: Sequence[Peer], shares: Mapping[str, int], coding: Coding, domain_failure: float = 0.0
) -> float:
    """Return the exact probability that fewer than m fragments are on living peers."""
    domains: dict[str, list[Peer]] = {}
    for peer in peers:
        if shares.get(peer.id):
            domains.setdefault(domain_of(peer), []).append(peer)
    alive = np.ones(1)
    for members in domains.values():
        here = np.ones(1)
        for peer in members:
            one = np.zeros(shares[peer.id] + 1)
            one[0] += peer.failure
            one[-1] += 1 - peer.failure
            here = np.convolve(here, one)
        if members[0].domain is not None:
            here = here * (1 - domain_failure)
            here[0] += domain_failure
        alive = np.convolve(alive, here)
    return float(math.fsum(alive[: coding.data]))


def share_problems(request: SharesRequest, plan: SharesPlan) -> list[str]:
    """Return what is wrong with shares: the oracle for the planner and its tests."""
    known = {peer.id: peer for peer in request.peers}
    found = []
    if sum(plan.shares.values()) != plan.coding.total:
        found.append(f"{sum(plan.shares.values())} fragments are placed, not {plan.coding.total}")
    in_domain: Counter[str] = Counter()
    for name, count in plan.shares.items():
        if name not in known:
            found.append(f"{name} is not a peer")
            continue
        in_domain[domain_of(known[name])] += count
        if count * plan.fragment_bytes > known[name].storage * (1 + 1e-12):
            found.append(f"{name} has no room for {count} fragments")
    found += [f"{place} holds {n} fragments, over k" for place, n in in_domain.items() if n > plan.coding.parity]
    if plan.loss > 1.0 - request.reliability:
        found.append(f"{plan.coding} succeeds with {plan.success:.10g}, below {request.reliability:.10g}")
    if request.max_overhead is not None and plan.storage_overhead > request.max_overhead * (1 + 1e-12):
        found.append(f"{plan.coding} stores {plan.storage_overhead:.4g} times the state more")
    return found


def plan_shares(request: SharesRequest) -> SharesPlan:
    """Return the best coding with its shares within the limits; raise `NoPlan` with the reason where there is none."""
    # A peer may hold several fragments, so n is bounded by the code and not by the number of peers.
    plans = [plan for coding in all_codings(10**6) if (plan := _shares_for(request, coding)) is not None]
    if not plans:
        raise NoPlan(
            f"no coding fits on these {len(request.peers)} peers: no peer and no domain may hold more than k fragments",
            remedy="use more peers, more domains or more storage",
        )
    allowed = [plan for plan in plans if not share_problems(request, plan)]
    if request.max_overhead is None and request.prefer is not Preference.STORAGE:
        allowed = [plan for plan in allowed if plan.storage_overhead <= USUAL_OVERHEAD] or allowed
    if not allowed:
        best = min(plans, key=lambda plan: plan.loss)
        raise NoPlan(
            f"no shares within the limits reach a reliability of {request.reliability:.10g}: "
            f"the best, {best.coding}, succeeds with {best.success:.10g}",
            remedy="use more peers, more domains, more overhead or a lower reliability",
        )
    return min(allowed, key=lambda plan: _rank(request.prefer, plan))


def _shares_for(request: SharesRequest, coding: Coding) -> SharesPlan | None:
    fragment = request.state_bytes / coding.data
    shares = assign_fragments(request.peers, coding, fragment)
    if shares is None:
        return None
    loss = loss_of_shares(request.peers, shares, coding, request.domain_failure)
    bandwidth = {peer.id: peer.bandwidth for peer in request.peers}
    return SharesPlan(
        coding=coding,
        shares=shares,
        fragment_bytes=fragment,
        success=1.0 - loss,
        loss=loss,
        storage_overhead=coding.parity / coding.data,
        save_seconds=max(count * fragment / bandwidth[name] for name, count in shares.items()),
        retrieval_seconds=max(
            request.state_bytes / request.bandwidth,
            sharing_seconds(request.state_bytes, [(n * fragment, bandwidth[name]) for name, n in shares.items()]),
        ),
        recompute_seconds=request.state_bytes / request.rates.of(coding).decode,
    )


def _rank(prefer: Preference, plan: SharesPlan) -> tuple[float, ...]:
    if prefer is Preference.STORAGE:
        return (plan.storage_overhead, plan.recovery_seconds, plan.loss)
    if prefer is Preference.RELIABILITY:
        return (plan.loss, plan.storage_overhead, plan.recovery_seconds)
    return (plan.recovery_seconds, plan.save_seconds, plan.storage_overhead, plan.loss)


def _whole(value: float, most: int) -> int:
    return most if value >= most else int(value)
