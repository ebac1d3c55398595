"""m and k chosen from what the client measures (A-FP4S, sec. 4.1). Runs wherever a client does.

`planning.fragments.tuner` decides; this module feeds it. There is one tuner per range of state sizes (powers of
four), because a coding that is right for a gigabyte is wrong for a kilobyte. After each save the tuner gets the
encode rate, the bandwidth to the peers and how many peers refused; after each load the decode rate and lost fragments.
The same client therefore moves to more parity when peers begin to fail, and to fewer, larger fragments when the network
is faster than the code.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from holdfast.erasure.fragment import StateHeader
from holdfast.erasure.layout import MOST_FRAGMENTS, Coding
from holdfast.planning.fragments.choice import Preference
from holdfast.planning.fragments.code_rates import CodeRate, CodeRates
from holdfast.planning.fragments.tuner import FragmentMeasurement, FragmentTuner, TunerDecision, TunerGoals

FIRST_RATES = CodeRates(
    {
        Coding(1, 1): CodeRate(7.7e8, 1.4e9),
        Coding(2, 1): CodeRate(1.4e9, 1.3e9),
        Coding(4, 2): CodeRate(1.8e9, 1.6e9),
        Coding(10, 4): CodeRate(1.1e9, 1.8e9),
        Coding(10, 20): CodeRate(4.2e8, 1.1e9),
        Coding(16, 16): CodeRate(5.9e8, 7.4e8),
        Coding(28, 4): CodeRate(1.0e9, 1.0e9),
    }
)
"""One core of the machine this was written on. Only the shape matters: the tuner learns the scale."""


@dataclass(frozen=True, slots=True)
class TuningGoals:
    """The application's goals for its saves."""

    reliability: float = 0.9999
    """Least probability that a state survives until it is needed (eq. 3)."""
    prefer: Preference = Preference.SPEED
    max_overhead: float | None = None
    """Most extra storage, k / m; None: up to 1, more only where the reliability asks for it."""
    node_failure: float = 0.01
    """First guess of the probability that a holder is down; measured from then on."""


@dataclass(frozen=True, slots=True)
class SaveMeasurement:
    """What one save showed."""

    encode_seconds: float
    send_seconds: float
    holders: int
    lost: int


class CodingTuner:
    """Chooses m and k for a client. Safe in threads."""

    def __init__(self, goals: TuningGoals | None = None) -> None:
        self._goals = goals or TuningGoals()
        self._tuners: dict[int, FragmentTuner] = {}
        self._lock = threading.Lock()

    def choose(self, state_bytes: int, peers: int) -> Coding:
        """Return m and k for a state of this size on so many peers."""
        if peers < 2:
            return Coding(1, 0)
        with self._lock:
            tuner = self._tuner(state_bytes, peers)
            if tuner.goals.peers != peers:
                tuner = self._tuners[_size_class(state_bytes)] = tuner.after(FragmentMeasurement(peers=peers))
            return tuner.coding

    def decision(self, state_bytes: int) -> TunerDecision | None:
        """Return why the coding for this size is what it is; None before the first save."""
        tuner = self._tuners.get(_size_class(state_bytes))
        return None if tuner is None else tuner.decision

    def saved(self, header: StateHeader, peers: int, measured: SaveMeasurement) -> None:
        """Learn from a save."""
        sent = header.state_bytes * header.coding.total / header.coding.data
        self._learn(
            header.state_bytes,
            peers,
            FragmentMeasurement(
                coding=header.coding,
                encode_rate=_rate(header.state_bytes, measured.encode_seconds),
                bandwidth=_rate(sent, measured.send_seconds),
                holders=measured.holders,
                lost=min(measured.lost, measured.holders),
                peers=peers,
            ),
        )

    def loaded(self, header: StateHeader, peers: int, seconds: float, decode_seconds: float, lost: int) -> None:
        """Learn from a load."""
        self._learn(
            header.state_bytes,
            peers,
            FragmentMeasurement(
                coding=header.coding,
                decode_rate=_rate(header.state_bytes, decode_seconds),
                bandwidth=_rate(header.state_bytes, seconds - decode_seconds),
                holders=header.coding.total,
                lost=min(lost, header.coding.total),
            ),
        )

    def _learn(self, state_bytes: int, peers: int, measurement: FragmentMeasurement) -> None:
        if peers < 2:
            return
        with self._lock:
            tuner = self._tuner(state_bytes, peers)
            self._tuners[_size_class(state_bytes)] = tuner.after(measurement)

    def _tuner(self, state_bytes: int, peers: int) -> FragmentTuner:
        number = _size_class(state_bytes)
        tuner = self._tuners.get(number)
        if tuner is None:
            goals = TunerGoals(
                state_bytes=float(4**number),
                peers=peers,
                reliability=self._goals.reliability,
                prefer=self._goals.prefer,
                max_overhead=self._goals.max_overhead,
                node_failure=self._goals.node_failure,
            )
            tuner = self._tuners[number] = FragmentTuner.start(goals, FIRST_RATES)
        return tuner


def coding_to_survive(peers: int, share: float) -> Coding | None:
    """Return the cheapest code that outlives the loss of this share of the peers, whichever they are.

    Every peer holds one fragment, so what may be lost is known and not a matter of luck. None on rings with more peers
    than a state has fragments: there the tuner weighs probabilities.
    """
    if peers > MOST_FRAGMENTS:
        return None
    lost = min(math.floor(peers * share), peers - 1)
    return Coding(peers - lost, lost)


def _size_class(state_bytes: int) -> int:
    """Return the power of four at or above this size; everything up to 64 KiB is one class."""
    return max(8, -(-(max(1, state_bytes) - 1).bit_length() // 2))


def _rate(amount: float, seconds: float) -> float | None:
    return amount / seconds if amount > 0 and seconds > 0 else None
