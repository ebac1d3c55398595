"""What a ring of thousands of peers does: hops, balance, churn, correlated failures (A-FP4S, sec. 5.4, 5.5).

Every figure comes from the real ring and placement code under `SimulatedRing`; one seed gives one result. The functions
are steps on one ring, in this order: `grow`, `measure_routing` (also while growing), `place_states`, `run_churn`,
`survivors` (which failures the states would outlive: changes nothing), `crash_together` (which does).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from holdfast.erasure.layout import Coding
from holdfast.errors import CheckFailed
from holdfast.planning.fragments.choice import success_probability
from holdfast.store.ring.ids import BITS, RingId
from holdfast.store.ring.messages import Contact, Effect, LookupDone, PeerLost
from holdfast.store.ring.placement import choose_holders
from holdfast_lab.ring_simulation.ring import Found, SimulatedRing
from holdfast_lab.ring_simulation.states import SimulatedStates

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how much of it is done, and how much there is."""


def no_progress(what: str, done: int, total: int) -> None:
    """Ignore the progress."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Lookups of random keys from random peers."""

    peers: int
    lookups: int
    right: int
    """Ended at the live peer closest to the key."""
    wrong: int
    unanswered: int
    mean_hops: float
    most_hops: int
    logarithm: float
    """log16 of the number of peers: what the paper's O(log N) is for digits of four bits."""
    mean_seconds: float
    slow_seconds: float
    """95 of 100 took at most this long."""
    table_entries: float
    """Mean size of the routing tables."""


@dataclass(frozen=True, slots=True)
class Balance:
    """How the fragments of all states spread over the peers."""

    peers: int
    states: int
    coding: Coding
    fragments: int
    mean: float
    median: int
    p95: int
    """95 of 100 peers hold at most this many."""
    p99: int
    most: int
    holding_fewer: dict[int, float]
    """Share of peers with fewer than this many fragments."""
    histogram: tuple[int, ...]
    """Peers that hold 0, 1, 2, … fragments."""
    warnings: int
    """States whose placement could not be what it should."""


@dataclass(frozen=True, slots=True)
class Churn:
    """A stretch of time in which peers join, leave and crash."""

    seconds: float
    joins: int
    leaves: int
    crashes: int
    lookups: Routing
    messages_per_peer_second: float
    detection_mean: float
    """From a crash to the first neighbour that noticed."""
    detection_longest: float
    false_losses: int
    rebuilt_fragments: int
    repairs: int
    found_by_audit: int
    least_left: int
    """Fewest fragments any state had when it was repaired, or has now."""
    lost_states: int
    settled_after: float | None
    """From the end of churn until all leaf sets were right."""


@dataclass(frozen=True, slots=True)
class Survival:
    """States that are still there after a failure of many peers at once."""

    what: str
    failed_peers: int
    share: float
    """Of all peers."""
    coding: Coding
    states: int
    survived: int
    predicted: float | None
    """Share of states that eq. 3 expects to survive when each holder fails with this probability."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The ring after many peers crashed at once."""

    failed_peers: int
    share: float
    settled_after: float | None
    """Until all leaf sets of the survivors were right."""
    messages: int
    lookups: Routing
    survived: int
    """States that were repaired to full redundancy or at least kept m fragments."""
    states: int
    full_again: int
    """States that have all n fragments on live peers again."""


# Growing and routing ------------------------------------------------------------------------------------------------


def grow(
    ring: SimulatedRing, peers: int, domains: Sequence[str] = (), *, gap: float = 0.05, progress: Progress = no_progress
) -> None:
    """Let peers join one after the other, `gap` seconds apart, until there are this many; then let the ring settle.

    Domains are given out in turn. Raises `CheckFailed` with what is wrong if the ring does not settle.
    """
    while len(ring.peers) < peers:
        domain = domains[len(ring.peers) % len(domains)] if domains else None
        ring.add(ring.new_contact(domain))
        ring.run(gap)
        if len(ring.peers) % 50 == 0:
            progress("peers join", len(ring.peers), peers)
    if ring.settle(10 * ring.settings.detection) is None:
        raise CheckFailed(
            f"a ring of {len(ring.peers)} did not stabilise: {'; '.join(ring.check()[:3])}",
            remedy="lose fewer messages (--loss)",
        )


def measure_routing(
    ring: SimulatedRing, lookups: int, *, spread: float = 5.0, progress: Progress = no_progress
) -> Routing:
    """Look up random keys from random peers, over `spread` seconds."""
    before = len(ring.lookups)
    for number in range(lookups):
        address = ring.any_active()
        assert address is not None
        ring.lookup(address, RingId(ring.random.getrandbits(BITS)))
        ring.run(spread / lookups)
        if number % 500 == 0:
            progress("lookups", number, lookups)
    ring.answer_all()
    return routing_of(ring, ring.lookups[before:])


def routing_of(ring: SimulatedRing, found: Sequence[Found]) -> Routing:
    """Sum up lookups that have ended."""
    answered = [one for one in found if one.root is not None]
    right = sum(one.root == one.expected for one in answered)
    times = sorted(one.seconds for one in answered)
    peers = len(ring.peers)
    return Routing(
        peers=peers,
        lookups=len(found),
        right=right,
        wrong=len(answered) - right,
        unanswered=len(found) - len(answered),
        mean_hops=sum(one.hops for one in answered) / max(1, len(answered)),
        most_hops=max((one.hops for one in answered), default=0),
        logarithm=math.log(max(1, peers), 16),
        mean_seconds=sum(times) / max(1, len(times)),
        slow_seconds=times[int(0.95 * (len(times) - 1))] if times else 0.0,
        table_entries=sum(len(peer.table) for peer in ring.peers.values()) / max(1, peers),
    )


# States ---------------------------------------------------------------------------------------------------------------


def place_states(
    ring: SimulatedRing, count: int, coding: Coding, *, progress: Progress = no_progress, **repair: float
) -> tuple[SimulatedStates, Balance]:
    """Save states under random keys, each found by a lookup from a random peer, and see how their fragments spread."""
    states = SimulatedStates(ring, coding, **repair)

    def place(peer: object, effect: Effect, now: float) -> None:
        if isinstance(effect, LookupDone):
            states.place(effect.key, (effect.root, *effect.members))

    ring.observers.append(place)
    for number in range(count):
        address = ring.any_active()
        assert address is not None
        ring.lookup(address, RingId(ring.random.getrandbits(BITS)))
        ring.run(0.01)
        if number % 100 == 0:
            progress("states are saved", number, count)
    ring.answer_all()
    ring.observers.remove(place)
    return states, balance_of(states)


def balance_of(states: SimulatedStates) -> Balance:
    """Sum up how many fragments the peers hold."""
    load = sorted(states.fragments_per_peer())
    histogram = [0] * (load[-1] + 1)
    for held in load:
        histogram[held] += 1
    return Balance(
        peers=len(load),
        states=len(states.states),
        coding=states.coding,
        fragments=sum(load),
        mean=sum(load) / len(load),
        median=load[len(load) // 2],
        p95=load[math.ceil(0.95 * len(load)) - 1],
        p99=load[math.ceil(0.99 * len(load)) - 1],
        most=load[-1],
        holding_fewer={limit: sum(held < limit for held in load) / len(load) for limit in (10, 15, 20, 25, 30)},
        histogram=tuple(histogram),
        warnings=sum(state.warning is not None for state in states.states),
    )


# Failures -------------------------------------------------------------------------------------------------------------


def run_churn(
    states: SimulatedStates,
    seconds: float,
    turnover: float,
    domains: Sequence[str] = (),
    *,
    lookups: int = 500,
    progress: Progress = no_progress,
) -> Churn:
    """Let `turnover` of all peers go in the given time, half of them by crashing, and as many new ones come.

    Lookups run all the while; their answers are compared with who was closest when they arrived.
    """
    ring = states.ring
    began, messages, false_before = ring.now, ring.counts.messages, ring.counts.false_losses
    found_before = len(ring.lookups)
    crashed: dict[RingId, float] = {}
    noticed: dict[RingId, float] = {}

    def watch(peer: object, effect: Effect, now: float) -> None:
        if isinstance(effect, PeerLost) and effect.contact.id in crashed:
            noticed.setdefault(effect.contact.id, now - crashed[effect.contact.id])

    ring.observers.append(watch)
    going = round(turnover * len(ring.peers))
    events = sorted(
        [(ring.random.uniform(0, seconds), "go") for _ in range(going)]
        + [(ring.random.uniform(0, seconds), "come") for _ in range(going)]
        + [(ring.random.uniform(0, seconds), "look up") for _ in range(lookups)]
    )
    joins = leaves = 0
    for number, (when, what) in enumerate(events):
        states.run(max(0.0, began + when - ring.now))
        address = ring.any_active()
        assert address is not None
        if what == "look up":
            ring.lookup(address, RingId(ring.random.getrandbits(BITS)))
        elif what == "come":
            joins += 1
            ring.add(ring.new_contact(domains[joins % len(domains)] if domains else None))
        elif ring.random.random() < 0.5:
            leaves += 1
            ring.leave(address)
        else:
            crashed[ring.peers[address].id] = ring.now
            ring.crash(address)
        if number % 20 == 0:
            progress("churn", number, len(events))
    states.run(max(0.0, began + seconds - ring.now))
    sent = (ring.counts.messages - messages) / len(ring.peers) / seconds
    ended = ring.now
    settled = ring.settle(10 * ring.settings.detection)
    states.run(ring.settings.detection + 2 * states.repair_seconds)
    ring.observers.remove(watch)
    return Churn(
        seconds=ended - began,
        joins=joins,
        leaves=leaves,
        crashes=len(crashed),
        lookups=routing_of(ring, ring.lookups[found_before:]),
        messages_per_peer_second=sent,
        detection_mean=sum(noticed.values()) / max(1, len(noticed)),
        detection_longest=max(noticed.values(), default=0.0),
        false_losses=ring.counts.false_losses - false_before,
        rebuilt_fragments=states.counts.rebuilt,
        repairs=states.counts.repairs,
        found_by_audit=states.counts.found_by_audit,
        least_left=min([*states.counts.least_left, *(states.alive(state) for state in states.states)]),
        lost_states=states.counts.lost_states,
        settled_after=settled,
    )


def survivors(
    ring: SimulatedRing, keys: Iterable[RingId], codings: Iterable[Coding], shares: Iterable[float], seed: int
) -> list[Survival]:
    """Return how many states would outlive the loss of a share of all peers, or of any one failure domain.

    Each coding is placed anew, with domains known and, for comparison, as if they were not. Nothing is changed.
    """
    chance = Random(seed)
    contacts = [peer.contact for peer in ring.peers.values()]
    roots = [(key, root) for key in keys if (root := ring.root_peer(key)) is not None]
    around = {key: (root.contact, *root.leaves.members) for key, root in roots}
    failures: list[tuple[str, set[RingId], float]] = []
    for share in shares:
        failed = {contact.id for contact in chance.sample(contacts, round(share * len(contacts)))}
        failures.append(("peers at random", failed, share))
    domains = sorted({contact.domain for contact in contacts if contact.domain is not None})
    found = []
    for coding in codings:
        aware = {key: choose_holders(key, candidates, coding).holders for key, candidates in around.items()}
        for what, failed, failed_share in failures:
            expected = success_probability(coding, failed_share)
            found.append(_survival(what, failed, len(contacts), coding, aware, expected))
        if not domains:
            continue
        blind = {
            key: choose_holders(key, [Contact(c.id, c.address) for c in candidates], coding).holders
            for key, candidates in around.items()
        }
        worst = max(domains, key=lambda domain: sum(contact.domain == domain for contact in contacts))
        for what, placed in ((f"a whole domain of {len(domains)}", aware), ("the same, placed blindly", blind)):
            lost = {contact.id for contact in contacts if contact.domain == worst}
            found.append(_survival(what, lost, len(contacts), coding, placed, None))
    return found


def _survival(
    what: str,
    failed: set[RingId],
    peers: int,
    coding: Coding,
    placed: dict[RingId, tuple[Contact, ...]],
    predicted: float | None,
) -> Survival:
    survived = sum(sum(holder.id not in failed for holder in holders) >= coding.data for holders in placed.values())
    return Survival(what, len(failed), len(failed) / peers, coding, len(placed), survived, predicted)


def crash_together(
    states: SimulatedStates, share: float, *, lookups: int = 500, progress: Progress = no_progress
) -> Recovery:
    """Let a share of all peers crash in the same moment, and see the rest find together and repair the states."""
    ring = states.ring
    doomed = ring.random.sample(sorted(ring.peers), round(share * len(ring.peers)))
    before, messages = len(ring.peers), ring.counts.messages
    for address in doomed:
        ring.crash(address)
    progress("after the crash", 0, 2)
    began = ring.now
    settled = None
    while ring.now - began < 10 * ring.settings.detection:
        states.run(ring.settings.keep_alive / 4)
        if ring.settled:
            settled = ring.now - began
            break
    progress("after the crash", 1, 2)
    routing = measure_routing(ring, lookups)
    states.run(states.audit + 2 * states.repair_seconds)
    left = [states.alive(state) for state in states.states]
    return Recovery(
        failed_peers=len(doomed),
        share=len(doomed) / before,
        settled_after=settled,
        messages=ring.counts.messages - messages,
        lookups=routing,
        survived=sum(alive >= states.coding.data for alive in left),
        states=len(left),
        full_again=sum(alive == states.coding.total for alive in left),
    )
