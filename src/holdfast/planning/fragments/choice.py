"""How many data and parity fragments a state gets (A-FP4S, sec. 4 and 5.4). Pure; runs anywhere.

The model, with the paper's names: a state of s bytes becomes n = m + k fragments on n peers; any m rebuild it.

- success (eq. 3): at least m of n holders are alive when each is down with probability p;
- recovery time (eq. 2): R_f = s / eta + s / c, with c taken per (m, k) from measured rates;
- storage overhead: k / m;
- fragments beat a remote file system of h bytes per second (eq. 4) when h < c eta / (c + eta), that is s / h > R_f;
- a restore needs the state because a node is gone, and with it `gone` of the holders: then at least m of the n - gone
  others must be alive (`gone` 0: eq. 3 as printed);
- speed (sec. 5.4): m B / (m + k - 1). B is what one providing peer uploads, a fragment of s / m bytes; m of them are
  needed and m + k - 1 peers (the failed one is gone) share the work, so each uploads s / (n - 1) when all do their
  part. Eq. 2 knows neither m nor k, so `speed` ranks by this time plus the recompute time at the measured rate;
- peers that differ (the paper's future work): holder i uploads at w_i times the bandwidth of a peer, and no more than
  its fragment. Holders are the n heaviest peers, and the heaviest of them is the one that failed.

`choose_coding` looks at every (m, k) with n at most 32 and at most the number of peers: there are 496, and the best
is the best. `problems_of` is the one oracle for whether a coding meets the limits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from holdfast.erasure.layout import MOST_FRAGMENTS, Coding
from holdfast.errors import BadInput, NoPlan
from holdfast.planning.fragments.code_rates import CodeRates

SMALLEST_LEAF_SET = 24
"""A-FP4S, sec. 5.1; larger where n asks for it, because the leaf set must be larger than n."""

USUAL_OVERHEAD = 1.0
"""A-FP4S looks at n from m to 2 m (sec. 4.2): the default limit of the overhead for speed and reliability."""


class Preference(StrEnum):
    """What to make best within the other limits."""

    SPEED = "speed"
    STORAGE = "storage"
    RELIABILITY = "reliability"


@dataclass(frozen=True, slots=True)
class FragmentRequest:
    """What is known and what is asked for. Bytes and bytes per second; probabilities between 0 and 1."""

    state_bytes: float
    peers: int
    """Peers that can hold a fragment; the node the state lives on is not one of them."""
    node_failure: float
    """p: the probability that a holder is down when it is needed."""
    reliability: float
    """The least success probability."""
    bandwidth: float
    """eta: what the recovering node receives."""
    rates: CodeRates
    peer_bandwidth: float | None = None
    """What one peer uploads; None: as much as `bandwidth`."""
    file_bandwidth: float | None = None
    """h: the remote file system's; None: unknown."""
    prefer: Preference = Preference.SPEED
    max_overhead: float | None = None
    """Largest k / m. None: up to 1 for speed and reliability, beyond only where nothing else reaches `reliability`."""
    gone: int = 0
    """Holders that are lost with the node whose state is restored."""
    weights: tuple[float, ...] = ()
    """Speeds of the peers as shares of `peer_bandwidth`, the heaviest first; peers beyond the list weigh 1."""

    def __post_init__(self) -> None:
        for name in ("state_bytes", "bandwidth", "peer_bandwidth", "file_bandwidth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadInput(f"{value:g} is not a size above zero", field=name, remedy="give a number above 0")
        if self.peers < 2:
            raise BadInput(
                f"{self.peers} peers cannot hold a data and a parity fragment", field="peers", remedy="give 2 or more"
            )
        if not 0 <= self.node_failure < 1:
            raise BadInput(
                f"{self.node_failure:g} is not a probability below 1", field="node_failure", remedy="like 0.01"
            )
        if not 0 <= self.reliability <= 1:
            raise BadInput(f"{self.reliability:g} is not a probability", field="reliability", remedy="like 0.9999")
        if self.gone < 0:
            raise BadInput(f"{self.gone} is not a number of holders", field="gone", remedy="give 0 or more")
        if any(not 0 < weight < math.inf for weight in self.weights):
            raise BadInput("a weight is a number above 0", field="weights", remedy="leave out peers that hold nothing")
        if self.max_overhead is not None and not 0 < self.max_overhead < math.inf:
            raise BadInput(
                f"{self.max_overhead:g} is not a storage overhead", field="max_overhead", remedy="like 1 for n = 2 m"
            )


@dataclass(frozen=True, slots=True)
class FragmentPlan:
    """One (m, k) with its properties by the model."""

    coding: Coding
    success: float
    """Eq. 3."""
    loss: float
    """1 - success, exact where success rounds to 1."""
    storage_overhead: float
    """k / m: bytes stored beyond the state's own, per byte of state."""
    retrieval_seconds: float
    recompute_seconds: float
    recovery_seconds: float
    """Eq. 2: the two above."""
    upload_bytes: float
    """m B / (m + k - 1): what each of the other holders uploads when all share the work (sec. 5.4)."""
    spread_seconds: float
    """The time of that upload, plus recomputing: what `speed` ranks by."""
    save_seconds: float
    """Coding, then sending all n fragments over one link."""
    file_seconds: float | None
    """Eq. 1."""
    beats_file: bool | None
    """Eq. 4; None when no file system was named."""
    file_bandwidth_limit: float
    """The file system bandwidth up to which fragments are faster: c eta / (c + eta)."""
    leaf_set: int
    """Least size of the leaf set the fragments go to."""


def loss_probability(coding: Coding, node_failure: float, gone: int = 0) -> float:
    """Return the probability that more than k of n holders are down: 1 - eq. 3, summed from the small end.

    `gone` of them are down for certain: the restore is needed because of it.
    """
    if gone > coding.parity:
        return 1.0
    return _tails(coding.total - gone, node_failure)[coding.parity - gone + 1]


@lru_cache(maxsize=1024)
def _tails(n: int, p: float) -> tuple[float, ...]:
    """Return, for i = 0 to n + 1, the probability that i or more of n are down."""
    chances = [math.comb(n, i) * p**i * (1 - p) ** (n - i) for i in range(n + 1)]
    tails = [0.0]
    for chance in reversed(chances):
        tails.append(tails[-1] + chance)
    return tuple(reversed(tails))


def success_probability(coding: Coding, node_failure: float, gone: int = 0) -> float:
    """Return the probability that at least m of n holders are alive (eq. 3)."""
    return 1.0 - loss_probability(coding, node_failure, gone)


def file_seconds(state_bytes: float, file_bandwidth: float) -> float:
    """Return how long a recovery from a remote file system takes: R_c = s / h (eq. 1)."""
    return state_bytes / file_bandwidth


def recovery_seconds(state_bytes: float, bandwidth: float, recompute_rate: float) -> float:
    """Return how long a recovery from fragments takes: R_f = s / eta + s / c (eq. 2)."""
    return state_bytes / bandwidth + state_bytes / recompute_rate


def file_bandwidth_limit(bandwidth: float, recompute_rate: float) -> float:
    """Return the file system bandwidth below which fragments are faster: c eta / (c + eta) (eq. 4)."""
    return bandwidth * recompute_rate / (bandwidth + recompute_rate)


def upload_bytes(coding: Coding, fragment_bytes: float) -> float:
    """Return m B / (m + k - 1): each providing peer's part when all that are left share the work (sec. 5.4)."""
    return coding.data * fragment_bytes / max(1, coding.total - 1)


def sharing_seconds(needed: float, holders: Sequence[tuple[float, float]]) -> float:
    """Return the time at which holders (bytes held, bytes per second) have sent the needed bytes between them."""
    sent, rate, now = 0.0, sum(speed for _, speed in holders), 0.0
    for end, speed in sorted((held / speed, speed) for held, speed in holders):
        if sent + rate * (end - now) >= needed:
            break
        sent, now, rate = sent + rate * (end - now), end, rate - speed
    return now + (needed - sent) / rate if rate > 0 else now


def _uploading_seconds(request: FragmentRequest, coding: Coding) -> float:
    """Return how long the holders that are left take between them, all at once."""
    bandwidth = request.peer_bandwidth or request.bandwidth
    if not request.weights:
        return upload_bytes(coding, request.state_bytes / coding.data) / bandwidth
    speeds = (*request.weights, *[1.0] * (coding.total - len(request.weights)))
    left = sorted(speeds, reverse=True)[: coding.total][1:] or [speeds[0]]
    held = request.state_bytes / coding.data
    return sharing_seconds(min(request.state_bytes, held * len(left)), [(held, one * bandwidth) for one in left])


def leaf_set_size(coding: Coding) -> int:
    """Return the least leaf set for n fragments: even, larger than n, at least 24."""
    return max(SMALLEST_LEAF_SET, (coding.total // 2 + 1) * 2)


def evaluate(request: FragmentRequest, coding: Coding) -> FragmentPlan:
    """Return the model's properties of one (m, k), whether or not it meets the limits."""
    size, rate = request.state_bytes, request.rates.of(coding)
    uploaded = upload_bytes(coding, size / coding.data)
    uploading = _uploading_seconds(request, coding)
    retrieval = size / request.bandwidth
    if request.peer_bandwidth is not None:
        # Slow peers: the link into the recovering node waits for them.
        retrieval = max(retrieval, uploading)
    recompute = size / rate.decode
    recovery = retrieval + recompute
    remote = None if request.file_bandwidth is None else file_seconds(size, request.file_bandwidth)
    loss = loss_probability(coding, request.node_failure, request.gone)
    return FragmentPlan(
        coding=coding,
        success=1.0 - loss,
        loss=loss,
        storage_overhead=coding.parity / coding.data,
        retrieval_seconds=retrieval,
        recompute_seconds=recompute,
        recovery_seconds=recovery,
        upload_bytes=uploaded,
        spread_seconds=uploading + recompute,
        save_seconds=size / rate.encode + size * coding.total / coding.data / request.bandwidth,
        file_seconds=remote,
        beats_file=None if remote is None else remote > recovery,
        file_bandwidth_limit=size / recovery,
        leaf_set=leaf_set_size(coding),
    )


def problems_of(request: FragmentRequest, plan: FragmentPlan) -> list[str]:
    """Return which limits a coding breaks; nothing when it may be used."""
    coding, found = plan.coding, []
    if coding.parity < 1:
        found.append(f"{coding} has no parity: nothing may be lost")
    if coding.total > request.peers:
        found.append(f"{coding} needs {coding.total} peers, there are {request.peers}")
    # 1 - reliability is exact from 0.5 up, and the loss is summed from its small end: no rounding decides.
    if plan.loss > 1.0 - request.reliability:
        found.append(f"{coding} succeeds with {plan.success:.10g}, below {request.reliability:.10g}")
    if request.max_overhead is not None and coding.parity > request.max_overhead * coding.data * (1 + 1e-12):
        found.append(f"{coding} stores {plan.storage_overhead:.4g} times the state more, over {request.max_overhead:g}")
    return found


def rank(prefer: Preference, plan: FragmentPlan) -> tuple[float, ...]:
    """Return what is compared, smallest first: the preference, then the others in turn."""
    size = plan.coding.total
    if prefer is Preference.STORAGE:
        return (plan.storage_overhead, plan.spread_seconds, plan.loss, size)
    if prefer is Preference.RELIABILITY:
        return (plan.loss, plan.storage_overhead, plan.spread_seconds, size)
    return (plan.spread_seconds, plan.storage_overhead, plan.loss, size)


def all_codings(peers: int) -> tuple[Coding, ...]:
    """Return every (m, k) with a data and a parity fragment that the code and the peers allow."""
    return _codings(min(MOST_FRAGMENTS, peers))


@lru_cache(maxsize=MOST_FRAGMENTS)
def _codings(most: int) -> tuple[Coding, ...]:
    return tuple(Coding(data, total - data) for total in range(2, most + 1) for data in range(1, total))


def allowed_plans(request: FragmentRequest) -> list[FragmentPlan]:
    """Return all codings that meet the limits, best first."""
    # The loss is quick to know and settles most codings: only the others are looked at in full.
    reliable = [
        coding
        for coding in all_codings(request.peers)
        if loss_probability(coding, request.node_failure, request.gone) <= 1.0 - request.reliability
    ]
    plans = [evaluate(request, coding) for coding in reliable]
    allowed = [plan for plan in plans if not problems_of(request, plan)]
    if request.max_overhead is None and request.prefer is not Preference.STORAGE:
        usual = [plan for plan in allowed if plan.storage_overhead <= USUAL_OVERHEAD]
        allowed = usual or allowed
    return sorted(allowed, key=lambda plan: rank(request.prefer, plan))


def choose_coding(request: FragmentRequest) -> FragmentPlan:
    """Return the best (m, k) within the limits; raise `NoPlan` with the reason where there is none."""
    allowed = allowed_plans(request)
    if allowed:
        return allowed[0]
    most = min(MOST_FRAGMENTS, request.peers)
    within = [
        plan
        for plan in (evaluate(request, coding) for coding in all_codings(request.peers))
        if request.max_overhead is None or plan.coding.parity <= request.max_overhead * plan.coding.data
    ]
    limit = "" if request.max_overhead is None else f" and a storage overhead of at most {request.max_overhead:g}"
    if not within:
        raise NoPlan(
            f"no coding of at most {most} fragments has a storage overhead of at most {request.max_overhead:g}",
            remedy=f"allow at least {1 / (most - 1):.4g}, or more peers",
        )
    best = min(within, key=lambda plan: plan.loss)
    raise NoPlan(
        f"no coding of at most {most} fragments{limit} reaches a reliability of {request.reliability:.10g}: "
        f"the best, {best.coding}, succeeds with {best.success:.10g}",
        remedy="use more peers, steadier nodes or a lower reliability",
    )
