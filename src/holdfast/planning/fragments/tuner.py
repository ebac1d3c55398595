"""The tuner: measurements of encode rate, bandwidth and losses go in, the next m and k come out (A-FP4S, sec. 4.1).

Pure; runs anywhere. Use: after each round of saving states (or a recovery), hand what was measured to `after`; it
returns the next tuner, whose `decision` is the coding of the next round and the reason for it.

    tuner = FragmentTuner.start(TunerGoals(state_bytes=64e6, peers=40, reliability=0.9999), rates)
    tuner = tuner.after(FragmentMeasurement(coding=tuner.coding, encode_rate=1.9e9, bandwidth=8e7, holders=24, lost=1))
    tuner.decision.coding

Steady under noise: rates and losses are filtered (`measurement_filters`); a coding that meets the limits is left only
for one that is better by a tenth at least, several rounds running; and a coding is only chosen when it would meet the
reliability with half again as many losses (two and a half times as many, when nothing forces the move), so that an
estimate that wavers does not carry the coding with it.
Quick after a change: a coding that no longer meets the limits is left at once, and so is one that became clearly worse
when the filters find a change.

Rates are given as a table over (m, k) whose *shape* is trusted and whose scale is learned. A coding that turns out
slower or faster than in the table keeps its own correction, and codings like it share in it, so that the tuner does
not go back and forth between a coding it knows and others that the table flatters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput, NoPlan
from holdfast.planning.fragments.choice import (
    FragmentPlan,
    FragmentRequest,
    Preference,
    all_codings,
    choose_coding,
    evaluate,
    problems_of,
)
from holdfast.planning.fragments.code_rates import CodeRates
from holdfast.planning.fragments.measurement_filters import LossFilter, RateFilter


@dataclass(frozen=True, slots=True)
class TunerGoals:
    """The store's goals, and when the tuner changes the coding."""

    state_bytes: float
    peers: int
    reliability: float
    prefer: Preference = Preference.SPEED
    max_overhead: float | None = None
    node_failure: float = 0.01
    """First guess, until losses are measured."""
    gone: int = 0
    """Holders that are lost with the node whose state is restored; p is then that of the others."""
    bandwidth: float = 100e6
    """First guess, until a bandwidth is measured."""
    loss_margin: float = 1.5
    """A coding taken because the old one failed the limits must hold with this many times the estimated losses."""
    calm_margin: float = 2.5
    """A coding taken because it is better must hold with this many times the estimated losses."""
    least_gain: float = 0.1
    """A coding that is good enough is left only for one better by this part."""
    patience: int = 3
    """Rounds in a row that the better one must be better, when nothing has changed."""


@dataclass(frozen=True, slots=True)
class FragmentMeasurement:
    """What one round showed; None or 0 where it showed nothing."""

    coding: Coding | None = None
    """The coding that the rates below were measured with."""
    encode_rate: float | None = None
    """Bytes of state coded per second."""
    decode_rate: float | None = None
    """Bytes of state recomputed per second."""
    bandwidth: float | None = None
    """Bytes per second from peers to a recovering node (or, as a stand-in, from a node to its peers)."""
    holders: int = 0
    """Holders that were asked (keep-alives, saves, fetches)."""
    lost: int = 0
    """How many of them were down or had lost the fragment."""
    peers: int | None = None
    """Peers there are now, when that is known."""
    peer_bandwidth: float | None = None
    """Bytes per second of one peer, of the usual kind."""
    weights: tuple[float, ...] | None = None
    """Speeds of the peers as shares of that, the heaviest first; None: not known."""

    def __post_init__(self) -> None:
        for name in ("encode_rate", "decode_rate", "bandwidth", "peer_bandwidth"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadInput(f"{value} is not a rate", field=name, remedy="leave it out when nothing was measured")
        if not 0 <= self.lost <= self.holders:
            raise BadInput(
                f"{self.lost} of {self.holders} holders lost is not possible",
                field="lost",
                remedy="give at most the number of holders",
            )


@dataclass(frozen=True, slots=True)
class TunerDecision:
    """Which coding the next round uses, and why."""

    coding: Coding
    changed: bool
    reason: str
    meets_limits: bool
    """False when no coding does; then `coding` is the most reliable there is."""


_LEARNING_ROUNDS = 3
_OWN_DIFFERENCE = 0.3
"""Difference from the table (logarithm) from which it is taken for the coding's own."""


@dataclass(frozen=True, slots=True)
class FragmentTuner:
    """The tuner's state; a value. Build it with `start`, move it with `after`."""

    goals: TunerGoals
    shape: CodeRates
    decision: TunerDecision
    losses: LossFilter
    bandwidth: RateFilter = field(default_factory=RateFilter)
    speed: RateFilter = field(default_factory=RateFilter)
    """The machine's encode rate relative to the table."""
    decode_speed: RateFilter = field(default_factory=RateFilter)
    corrections: Mapping[Coding, float] = field(default_factory=dict)
    learning: tuple[float, ...] = ()
    peer_bandwidth: RateFilter = field(default_factory=RateFilter)
    weights: tuple[float, ...] = ()
    better_for: int = 0

    @classmethod
    def start(cls, goals: TunerGoals, rates: CodeRates, coding: Coding | None = None) -> FragmentTuner:
        """Begin with a coding, or with the one the first guesses lead to."""
        tuner = cls(
            goals=goals,
            shape=rates,
            decision=TunerDecision(coding or Coding(1, 1), False, "first", True),
            losses=LossFilter(goals.node_failure),
        )
        if coding is None:
            coding = tuner._best().coding
        first = evaluate(tuner.request(), coding)
        met = not problems_of(tuner.request(), first)
        return replace(tuner, decision=TunerDecision(coding, False, "the first coding", met), corrections={coding: 1.0})

    @property
    def coding(self) -> Coding:
        """The coding to use now."""
        return self.decision.coding

    def after(self, measured: FragmentMeasurement) -> FragmentTuner:
        """Take one round's measurements; return the next tuner."""
        moved = self._with_rates(measured)
        goals = self.goals if measured.peers is None else replace(self.goals, peers=max(2, measured.peers))
        moved = replace(
            moved,
            goals=goals,
            bandwidth=_followed(self.bandwidth, measured.bandwidth),
            peer_bandwidth=_followed(self.peer_bandwidth, measured.peer_bandwidth),
            weights=self.weights if measured.weights is None else measured.weights,
            losses=self.losses.with_round(measured.lost, measured.holders),
        )
        return moved._decided()

    def rates(self) -> CodeRates:
        """Return the table as estimated now: its shape, scaled, with the corrections of single codings."""
        encode = self.speed.rate or 1.0
        decode = self.decode_speed.rate or encode
        return self.shape.adjusted(encode, decode, self.corrections)

    def request(self, margin: float = 1.0) -> FragmentRequest:
        """Return what is asked of a coding, by today's estimates; losses times `margin`."""
        return FragmentRequest(
            state_bytes=self.goals.state_bytes,
            peers=self.goals.peers,
            node_failure=min(0.99, self.losses.probability * margin),
            reliability=self.goals.reliability,
            bandwidth=self.bandwidth.rate or self.goals.bandwidth,
            rates=self.rates(),
            prefer=self.goals.prefer,
            max_overhead=self.goals.max_overhead,
            gone=self.goals.gone,
            peer_bandwidth=self.peer_bandwidth.rate,
            weights=self.weights,
        )

    def predicted(self, coding: Coding | None = None, state_bytes: float | None = None) -> FragmentPlan:
        """Return what the model says of a coding (default: the one in use), by today's estimates."""
        request = self.request()
        if state_bytes is not None:
            request = replace(request, state_bytes=max(1.0, state_bytes))
        return evaluate(request, coding or self.coding)

    # -- what was measured ----------------------------------------------------------------------------------------

    def _with_rates(self, measured: FragmentMeasurement) -> FragmentTuner:
        if measured.coding is None or measured.encode_rate is None:
            moved = replace(self, speed=replace(self.speed, changed=False))
        else:
            ratio = measured.encode_rate / self.shape.of(measured.coding).encode
            moved = self._with_ratio(measured.coding, ratio)
        if measured.coding is not None and measured.decode_rate is not None:
            own = self.corrections.get(measured.coding, 1.0)
            ratio = measured.decode_rate / self.shape.of(measured.coding).decode / own
            moved = replace(moved, decode_speed=self.decode_speed.with_rate(ratio))
        return moved

    def _with_ratio(self, coding: Coding, ratio: float) -> FragmentTuner:
        if coding in self.corrections:
            return replace(self, speed=self.speed.with_rate(ratio / self.corrections[coding]), learning=())
        # A coding not used before: the difference from the table is its own, not the machine's.
        seen = (*self.learning, ratio / (self.speed.rate or 1.0))
        if len(seen) < _LEARNING_ROUNDS:
            return replace(self, learning=seen, speed=replace(self.speed, changed=False))
        # Less than that is noise, which would add up from coding to coding.
        factor = median(seen)
        own = factor if abs(math.log(factor)) > _OWN_DIFFERENCE else 1.0
        return replace(
            self,
            corrections={**self.corrections, coding: own},
            learning=(),
            speed=replace(self.speed, changed=False),
        )

    # -- what follows ---------------------------------------------------------------------------------------------

    def _decided(self) -> FragmentTuner:
        request = self.request()
        current = evaluate(request, self.coding)
        broken = problems_of(request, current)
        if broken:
            best = self._best()
            met = not problems_of(request, evaluate(request, best.coding))
            reason = f"no longer within the limits: {broken[0]}" if met else f"nothing meets the limits: {broken[0]}"
            return self._moved_to(best.coding, reason, met)
        best = self._best(self.goals.calm_margin)
        if best.coding == self.coding:
            return self._stayed(0, "still the best")
        if problems_of(self.request(self.goals.calm_margin), best):
            return self._stayed(0, "nothing else holds with a margin")
        there = evaluate(request, best.coding)
        gain = _gain(self.goals.prefer, current, there)
        if gain < self.goals.least_gain:
            return self._stayed(0, f"{best.coding} would be better by {max(0.0, gain):.1%} only")
        streak = self.better_for + 1
        filters = (self.bandwidth, self.peer_bandwidth, self.speed, self.decode_speed)
        change = self.losses.changed or any(one.changed for one in filters)
        if change or streak >= self.goals.patience:
            why = "after a change" if change else f"for {streak} rounds"
            return self._moved_to(best.coding, f"better by {gain:.0%} {why}", True)
        return self._stayed(streak, f"{best.coding} is better by {gain:.0%}, for {streak} rounds so far")

    def _best(self, *margins: float) -> FragmentPlan:
        """Return the coding to move to: with a margin where there is one, else without, else the most reliable."""
        for margin in (*margins, self.goals.loss_margin, 1.0):
            try:
                return choose_coding(self.request(margin))
            except NoPlan:
                continue
        request = self.request()
        codings = [
            coding
            for coding in all_codings(self.goals.peers)
            if self.goals.max_overhead is None or coding.parity <= self.goals.max_overhead * coding.data
        ]
        return min((evaluate(request, coding) for coding in codings or [Coding(1, 1)]), key=lambda plan: plan.loss)

    def _moved_to(self, coding: Coding, reason: str, met: bool) -> FragmentTuner:
        moved = coding != self.coding
        return replace(self, decision=TunerDecision(coding, moved, reason, met), better_for=0, learning=())

    def _stayed(self, streak: int, reason: str) -> FragmentTuner:
        return replace(self, decision=TunerDecision(self.coding, False, reason, True), better_for=streak)


def _followed(current: RateFilter, measured: float | None) -> RateFilter:
    return replace(current, changed=False) if measured is None else current.with_rate(measured)


def _gain(prefer: Preference, current: FragmentPlan, other: FragmentPlan) -> float:
    """Return by what part the other coding is better in what is preferred."""
    if prefer is Preference.STORAGE:
        return 1 - other.storage_overhead / current.storage_overhead
    if prefer is Preference.RELIABILITY:
        return 1 - math.log(max(current.loss, 1e-300)) / math.log(max(other.loss, 1e-300)) if other.loss < 1 else 0.0
    return 1 - other.spread_seconds / current.spread_seconds
