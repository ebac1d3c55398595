"""Who holds the n fragments of a state: a pure function of the key, the code and the peers there are. Runs anywhere.

Candidates are the root of the state's key and its leaf set (A-FP4S, sec. 3.3, step 3). Each peer is ranked for each
state by weighted rendezvous hashing, so that every participant comes to the same choice, load follows weights, and a
peer that comes or goes moves few fragments. Failure domains come first: no domain holds more than n - m fragments of a
state where that is possible, so that losing a whole rack loses no state; where it is not, the placement reports it and
spreads as evenly as can be.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.erasure.layout import Coding
from holdfast.errors import NoPlan
from holdfast.store.ring.ids import RingId
from holdfast.store.ring.messages import Contact


@dataclass(frozen=True, slots=True)
class Placement:
    """Fragment i goes to `holders[i]`."""

    holders: tuple[Contact, ...]
    coding: Coding
    most_in_domain: int
    """The largest number of fragments in one failure domain."""
    most_on_peer: int

    @property
    def survives_any_domain(self) -> bool:
        """Return whether any one failure domain may be lost without losing the state."""
        return self.most_in_domain <= self.coding.parity

    @property
    def losses_survived(self) -> int:
        """How many peers may be lost, whichever they are."""
        held = sorted(Counter(holder.id for holder in self.holders).values(), reverse=True)
        lost = 0
        for count, fragments in enumerate(held):
            lost += fragments
            if lost > self.coding.parity:
                return count
        return len(held)

    @property
    def warning(self) -> str | None:
        """What is not as it should be, in one line; None when all is well."""
        parts = []
        if self.most_on_peer > 1:
            peers = len({holder.id for holder in self.holders})
            parts.append(
                f"{self.coding.total} fragments on {peers} peers: one holds {self.most_on_peer}, "
                f"and only {self.losses_survived} peers may be lost instead of {self.coding.parity}"
            )
        if not self.survives_any_domain:
            parts.append(
                f"one failure domain holds {self.most_in_domain} of {self.coding.total} fragments, more than the "
                f"{self.coding.parity} that may be lost"
            )
        return "; ".join(parts) if parts else None


def choose_holders(
    key: RingId, candidates: Iterable[Contact], coding: Coding, *, keep: Mapping[int, Contact] | None = None
) -> Placement:
    """Choose a holder for every fragment.

    `keep` are fragments that are safe where they are (fragment index -> holder): only the others are placed, so that
    repair moves no more than it must. Peers of weight 0 are given nothing new. Raises `NoPlan` when no peer may hold
    anything.
    """
    kept = dict(keep or {})
    ranked = rank(key, candidates)
    wanted = [index for index in range(coding.total) if index not in kept]
    if wanted and not ranked:
        raise NoPlan("no peer is available to store a fragment", remedy="start peers, or give one a weight above 0")
    on_peer = Counter(holder.id for holder in kept.values())
    in_domain = Counter(domain_of(holder) for holder in kept.values())
    chosen: list[Contact] = []
    allowed_in_domain, allowed_on_peer = coding.parity, 1
    while len(chosen) < len(wanted):
        before = len(chosen)
        for contact in ranked:
            if len(chosen) == len(wanted):
                break
            if on_peer[contact.id] < allowed_on_peer and in_domain[domain_of(contact)] < allowed_in_domain:
                chosen.append(contact)
                on_peer[contact.id] += 1
                in_domain[domain_of(contact)] += 1
        if len(chosen) == before:
            allowed_in_domain, allowed_on_peer = _relaxed(
                ranked, on_peer, in_domain, allowed_in_domain, allowed_on_peer
            )
    # Data fragments are read first and need no decoding: the heaviest peers get them. Equal ones stay in rank order.
    chosen.sort(key=lambda contact: -contact.weight)
    places = dict(zip(wanted, chosen, strict=True)) | kept
    return Placement(
        holders=tuple(places[index] for index in range(coding.total)),
        coding=coding,
        most_in_domain=max(in_domain.values()),
        most_on_peer=max(on_peer.values()),
    )


def spread_copies(
    key: RingId,
    holders: Mapping[int, Sequence[Contact]],
    candidates: Iterable[Contact],
    coding: Coding,
    *,
    refused: Container[RingId] = (),
) -> dict[int, Contact] | None:
    """Choose the one peer for every fragment, given the peers that have copies of it: fragment index -> peer.

    What is chosen is spread over peers and domains at least as well as a new placement would be: a peer that took over
    a second fragment gives it back to the peer that has returned with it, and where the copies there are cannot be
    spread so, as few as possible go to another peer, not to those that have `refused`. None: that is not possible.
    """
    ranked = rank(key, candidates)
    if not ranked:
        return None
    new = choose_holders(key, ranked, coding)
    places = {contact.id: place for place, contact in enumerate(ranked)}
    chosen: dict[int, Contact] = {}
    on_peer: dict[RingId, set[int]] = defaultdict(set)
    in_domain: dict[object, set[int]] = defaultdict(set)
    best_first = {
        index: sorted(some, key=lambda one: places.get(one.id, len(places))) for index, some in holders.items()
    }

    def choose(index: int, contact: Contact) -> None:
        before = chosen.get(index)
        if before is not None:
            on_peer[before.id].discard(index)
            in_domain[domain_of(before)].discard(index)
        chosen[index] = contact
        on_peer[contact.id].add(index)
        in_domain[domain_of(contact)].add(index)

    def keep(index: int, asked: set[object]) -> bool:
        """Find a holder with room for a fragment, moving others to their other holders where that makes room."""
        if ("fragment", index) in asked:
            return False
        asked.add(("fragment", index))
        for contact in best_first[index]:
            if contact.id in asked:
                continue
            asked.add(contact.id)
            domain = ("domain", domain_of(contact))
            fits = True
            if len(on_peer[contact.id]) >= new.most_on_peer:
                fits = any(keep(one, asked) for one in sorted(on_peer[contact.id]))
            elif len(in_domain[domain[1]]) >= new.most_in_domain:
                fits = domain not in asked
                asked.add(domain)
                fits = fits and any(keep(one, asked) for one in sorted(in_domain[domain[1]]))
            if fits:
                choose(index, contact)
                return True
        return False

    moving = [index for index in sorted(holders) if not keep(index, set())]
    for index in moving:
        fitting = (
            contact
            for contact in ranked
            if contact.id not in refused
            and len(on_peer[contact.id]) < new.most_on_peer
            and len(in_domain[domain_of(contact)]) < new.most_in_domain
        )
        contact = next(fitting, None)
        if contact is None:
            return None
        choose(index, contact)
    return chosen


def rank(key: RingId, candidates: Iterable[Contact]) -> list[Contact]:
    """Order candidates for this key by weighted rendezvous hashing, the same wherever it is computed."""
    known = {contact.id: contact for contact in candidates if contact.weight > 0}
    return sorted(known.values(), key=lambda contact: (_score(key, contact), contact.id))


def domain_of(contact: Contact) -> str | RingId:
    """Return what fails together with this peer: its domain, or itself where none is named."""
    return contact.id if contact.domain is None else contact.domain


def _score(key: RingId, contact: Contact) -> float:
    """Lower is better: an exponential draw whose rate is the weight, so that the lowest of many falls by weight."""
    name = key.to_bytes(16, "big") + contact.id.to_bytes(16, "big")
    drawn = int.from_bytes(hashlib.blake2b(name, digest_size=8).digest(), "big")
    return -math.log((drawn + 1) / (2**64 + 1)) / contact.weight


def _relaxed(
    ranked: list[Contact],
    on_peer: Counter[RingId],
    in_domain: Counter[str | RingId],
    allowed_in_domain: int,
    allowed_on_peer: int,
) -> tuple[int, int]:
    """Return the next bounds that let at least one more fragment be placed.

    A second fragment on one peer is worse than one more in its domain: peers fail more often than domains.
    """
    room = [contact for contact in ranked if on_peer[contact.id] < allowed_on_peer]
    if room:
        return max(allowed_in_domain, min(in_domain[domain_of(contact)] for contact in room)) + 1, allowed_on_peer
    return allowed_in_domain, allowed_on_peer + 1
