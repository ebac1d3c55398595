"""m and k chosen from what the client measures (A-FP4S, sec. 4.1). Runs wherever a client does.

`planning.fragments.tuner` decides; this module feeds it. There is one tuner per range of state sizes (powers of
four), because a coding that is right for a gigabyte is wrong for a kilobyte. After each save the tuner gets the
encode rate, the bandwidth to the peers and how many peers refused; after each load the decode rate and lost fragments.
The same client therefore moves to more parity when peers begin to fail, and to fewer, larger fragments when the network
is faster than the code.

A run's agents restore because a node is lost (`TuningGoals.gone` 1). There, saves and loads say nothing about how many
go together: the agent says which peers went (`peers_went`), whenever the driver's list of them shrinks.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.erasure.fragment import StateHeader
from holdfast.erasure.layout import MOST_FRAGMENTS, Coding
from holdfast.planning.fragments.choice import Preference
from holdfast.planning.fragments.code_rates import CodeRate, CodeRates
from holdfast.planning.fragments.tuner import FragmentMeasurement, FragmentTuner, TunerDecision, TunerGoals

_ROUNDS_KEPT = 16
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
    gone: int = 0
    """Holders that are lost with the node whose state is restored; `node_failure` is then that of the others."""


@dataclass(frozen=True, slots=True)
class SaveMeasurement:
    """What one save showed."""

    encode_seconds: float
    send_seconds: float
    holders: int
    lost: int
    peer_bandwidth: float | None = None
    weights: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class CodeChoice:
    """A code that the tuner has chosen, why, and what the model says of it."""

    data: int
    parity: int
    reason: str
    meets_limits: bool
    state_bytes: float
    """The size of state that it is for: the largest of its class."""
    peers: int
    recovery_seconds: float
    """Predicted time to retrieve and recompute a state of this size."""
    success: float
    """Predicted probability that a restore finds enough fragments."""
    bandwidth: float | None
    """Measured, bytes per second; None: not yet, and so the two below."""
    encode_rate: float | None
    node_failure: float
    weights: tuple[float, ...] = ()


class CodingTuner:
    """Chooses m and k for a client. Safe in threads."""

    def __init__(
        self, goals: TuningGoals | None = None, on_change: Callable[[CodeChoice], None] = lambda choice: None
    ) -> None:
        """`on_change` gets every code that is chosen, the first of each class of sizes included."""
        self._goals, self._on_change = goals or TuningGoals(), on_change
        self._tuners: dict[int, FragmentTuner] = {}
        self._rounds: list[FragmentMeasurement] = []
        """Losses that were announced: a class of sizes that is new learns from them too."""
        self._lock = threading.Lock()

    def choose(self, state_bytes: int, peers: int) -> Coding:
        """Return m and k for a state of this size on so many peers."""
        if peers < 2:
            return Coding(1, 0)
        with self._lock:
            tuner = self._tuner(state_bytes, peers)
            if tuner.goals.peers != peers:
                tuner = self._moved(_size_class(state_bytes), tuner, FragmentMeasurement(peers=peers))
            return tuner.coding

    def decision(self, state_bytes: int) -> TunerDecision | None:
        """Return why the coding for this size is what it is; None before the first save."""
        tuner = self._tuners.get(_size_class(state_bytes))
        return None if tuner is None else tuner.decision

    def predicted_seconds(self, header: StateHeader, peers: int) -> float:
        """Return how long retrieving and recomputing a state will take, by the model and what was measured."""
        with self._lock:
            tuner = self._tuner(header.state_bytes, max(2, peers))
            return tuner.predicted(header.coding, header.state_bytes).recovery_seconds

    def peers_went(self, peers: int, lost: int) -> None:
        """Learn that of so many peers some were lost together: of the others than the first, how many went with it."""
        gone = self._goals.gone
        if lost < 1 or peers <= gone:
            return
        seen = FragmentMeasurement(holders=peers - gone, lost=max(0, min(lost, peers) - gone))
        with self._lock:
            self._rounds = [*self._rounds, seen][-_ROUNDS_KEPT:]
            for number, tuner in list(self._tuners.items()):
                self._moved(number, tuner, seen)

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
                holders=0 if self._goals.gone else measured.holders,
                lost=0 if self._goals.gone else min(measured.lost, measured.holders),
                peers=peers,
                peer_bandwidth=measured.peer_bandwidth,
                weights=measured.weights,
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
                holders=0 if self._goals.gone else header.coding.total,
                lost=0 if self._goals.gone else min(lost, header.coding.total),
            ),
        )

    def _learn(self, state_bytes: int, peers: int, measurement: FragmentMeasurement) -> None:
        if peers < 2:
            return
        with self._lock:
            self._moved(_size_class(state_bytes), self._tuner(state_bytes, peers), measurement)

    def _moved(self, number: int, tuner: FragmentTuner, measurement: FragmentMeasurement) -> FragmentTuner:
        moved = self._tuners[number] = tuner.after(measurement)
        if moved.decision.changed:
            self._on_change(_choice(moved))
        return moved

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
                gone=self._goals.gone,
            )
            tuner = FragmentTuner.start(goals, FIRST_RATES)
            for seen in self._rounds:
                tuner = tuner.after(seen)
            self._tuners[number] = tuner
            self._on_change(_choice(tuner))
        return tuner


def _choice(tuner: FragmentTuner) -> CodeChoice:
    plan, decision = tuner.predicted(), tuner.decision
    speed = tuner.speed.rate
    return CodeChoice(
        decision.coding.data,
        decision.coding.parity,
        decision.reason,
        decision.meets_limits,
        tuner.goals.state_bytes,
        tuner.goals.peers,
        plan.recovery_seconds,
        plan.success,
        tuner.bandwidth.rate,
        None if speed is None else tuner.rates().of(decision.coding).encode,
        tuner.losses.probability,
        tuner.weights,
    )


def peers_to_code_for(reached: int, known: int) -> int:
    """Return for how many peers a code is chosen: whoever reaches few of those there are must not choose for these."""
    return max(reached, known)


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


def first_code(peers: int, reliability: float) -> Coding:
    """Return what a run's agents choose for a state of a megabyte before they have measured anything."""
    return CodingTuner(TuningGoals(reliability=reliability, gone=1)).choose(1 << 20, peers)
