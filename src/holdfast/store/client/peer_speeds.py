"""How fast each peer takes its fragments, and what it weighs because of that. Runs wherever a client does.

A-FP4S takes all peers for equal; peers that differ are its future work. The client measures the rate of every fragment
it sends. A peer weighs 1, unless it is slower than half of the usual rate (the median): then its share of that. The
step keeps noise out of placement, which draws holders by weight and gives the heaviest the data fragments. The weight
that a peer announces itself (0: it takes nothing) multiplies.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from statistics import median

from holdfast.planning.fragments.measurement_filters import RateFilter
from holdfast.store.ring.messages import Contact

SLOW = 0.5
"""Below this share of the median rate a peer weighs less than others."""
LEAST_WEIGHT = 0.02
MOST_PEERS = 256
"""Addresses that are remembered, at most: the oldest are forgotten."""


class PeerSpeeds:
    """The rates of peers, by address. Safe in threads."""

    def __init__(self) -> None:
        self._rates: dict[str, RateFilter] = {}
        self._lock = threading.Lock()

    def measured(self, address: str, sent: float, seconds: float) -> None:
        """Learn from a fragment of so many bytes that a peer has stored."""
        if sent <= 0 or seconds <= 0:
            return
        with self._lock:
            self._rates[address] = self._rates.pop(address, RateFilter()).with_rate(sent / seconds)
            while len(self._rates) > MOST_PEERS:
                del self._rates[next(iter(self._rates))]

    def usual(self, addresses: Iterable[str]) -> float | None:
        """Return the median rate of these peers; None: none was measured."""
        with self._lock:
            rates = [self._rates[one].rate for one in addresses if one in self._rates]
        known = [rate for rate in rates if rate is not None]
        return median(known) if known else None

    def weighed(self, peers: Iterable[Contact]) -> list[Contact]:
        """Return the peers with their weights: as announced, less where they are slow."""
        there = list(peers)
        usual = self.usual(one.address for one in there)
        return there if usual is None else [replace(one, weight=one.weight * self._share(one, usual)) for one in there]

    def _share(self, peer: Contact, usual: float) -> float:
        with self._lock:
            known = self._rates.get(peer.address)
        rate = None if known is None else known.rate
        if rate is None or rate >= SLOW * usual:
            return 1.0
        return max(LEAST_WEIGHT, rate / usual)


def model_weights(peers: Iterable[Contact]) -> tuple[float, ...]:
    """Return the weights of peers that may hold anything, as the recovery-time model takes them."""
    return tuple(sorted((one.weight for one in peers if one.weight > 0), reverse=True))
