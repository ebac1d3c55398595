"""The model of fragments beside the paper's figures (A-FP4S, Fig. 7, 8, 10 and 11), and the tuner at work.

Fig. 7 and 8 are the model alone. Fig. 10 and 11 set the model beside what this machine measures of coding; retrieval
over a network is the model with the bandwidth the paper found (72 to 75 Mbit/s). Units are bytes and seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from holdfast.erasure.layout import Coding
from holdfast.planning.fragments.choice import file_bandwidth_limit, success_probability, upload_bytes
from holdfast.planning.fragments.code_rates import CodeRate, CodeRates, MeasuredRate
from holdfast.planning.fragments.tuner import FragmentMeasurement, FragmentTuner, TunerGoals
from holdfast.topology.draws import Draws
from holdfast_lab.experiments.code_rate_measuring import (
    MEGABYTE,
    CodingTimes,
    measure_coding,
    measure_rates,
    some_state,
)

FIG7_DATA = (5, 10, 15)
FIG7_FAILURES = (0.01, 0.04, 0.07, 0.1)
FIG8_BANDWIDTHS = (10e6, 50e6, 100e6, 500e6)
FIG8_RATES = tuple(float(rate) * MEGABYTE for rate in (10, 20, 40, 65, 100, 200, 400, 700, 1000))
PAPER_BANDWIDTH = 73.5e6 / 8
"""The paper's effective bandwidth, the middle of 72 to 75 Mbit/s."""
PAPER_CODE_RATE = 65e6
FIG10_MEGABYTES = (8, 16, 32, 64, 128)
_MEASURED = ((1, 1), (2, 1), (4, 2), (4, 4), (8, 4), (10, 4), (10, 10), (10, 20), (16, 8), (16, 16), (24, 8), (28, 4))
RATE_CODINGS = tuple(Coding(data, parity) for data, parity in _MEASURED)


@dataclass(frozen=True, slots=True)
class SuccessPoint:
    """One point of Fig. 7."""

    data: int
    total: int
    node_failure: float
    success: float


@dataclass(frozen=True, slots=True)
class FileLimitPoint:
    """One point of Fig. 8: the file system bandwidth up to which fragments are faster."""

    bandwidth: float
    code_rate: float
    file_bandwidth: float


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """One state size of Fig. 10."""

    state_bytes: int
    retrieval_model: float
    recompute_paper: float
    """The model at the paper's rate."""
    recompute_model: float
    """The model at the rate fitted to this machine."""
    recompute_measured: float


@dataclass(frozen=True, slots=True)
class ParameterPoint:
    """One point of Fig. 11: what is varied, the model's m B / (m + k - 1) for B = 1, and what was measured."""

    figure: str
    varied: str
    value: int
    coding: Coding
    model: float | None
    seconds: float


@dataclass(frozen=True, slots=True)
class TunerPoint:
    """One round of the tuner in a world that changes."""

    number: int
    bandwidth: float
    node_failure: float
    data: int
    parity: int
    estimated_bandwidth: float
    estimated_failure: float
    changed: bool


@dataclass(frozen=True, slots=True)
class FragmentsClaim:
    """A statement of the paper, and our result."""

    where: str
    paper: str
    ours: str
    holds: bool


def success_points() -> list[SuccessPoint]:
    """Fig. 7: success by m, n and p; n from m to 2 m (to 32 at most)."""
    return [
        SuccessPoint(data, total, p, success_probability(Coding(data, total - data), p))
        for data in FIG7_DATA
        for p in FIG7_FAILURES
        for total in range(data, min(2 * data, 32) + 1)
    ]


def file_limit_points() -> list[FileLimitPoint]:
    """Fig. 8: eq. 4 by recompute rate and network bandwidth."""
    return [
        FileLimitPoint(bandwidth, rate, file_bandwidth_limit(bandwidth, rate))
        for bandwidth in FIG8_BANDWIDTHS
        for rate in FIG8_RATES
    ]


def recovery_points(largest_megabytes: int = 64, repeat: int = 5) -> Iterator[CodingTimes]:
    """Fig. 10: measure recomputing of states of different sizes with m = 10, n = 20 and one fragment lost."""
    for size in FIG10_MEGABYTES:
        if size <= largest_megabytes:
            yield measure_coding(Coding(10, 10), some_state(size * MEGABYTE), lost=1, repeat=repeat)


def fitted_rate(times: Sequence[CodingTimes]) -> float:
    """Return the one rate c that fits s / c best over the measured sizes (relative errors, least squares)."""
    ratio = np.array([one.decode / one.state_bytes for one in times])
    return float(ratio.sum() / (ratio**2).sum())


def modelled(times: Sequence[CodingTimes]) -> list[RecoveryPoint]:
    """Set eq. 2 beside the measurements."""
    rate = fitted_rate(times)
    return [
        RecoveryPoint(
            state_bytes=one.state_bytes,
            retrieval_model=one.state_bytes / PAPER_BANDWIDTH,
            recompute_paper=one.state_bytes / PAPER_CODE_RATE,
            recompute_model=one.state_bytes / rate,
            recompute_measured=one.decode,
        )
        for one in times
    ]


def parameter_points(megabytes: int = 64, repeat: int = 5) -> Iterator[ParameterPoint]:
    """Fig. 11: recompute time by m and by k with one fragment lost, encode time by k, recompute time by losses e."""
    state = some_state(megabytes * MEGABYTE)
    for data in range(11, 21):
        coding = Coding(data, 10)
        times = measure_coding(coding, state, lost=1, repeat=repeat)
        yield ParameterPoint("11a", "m (k = 10)", data, coding, upload_bytes(coding, 1.0), times.decode)
    for parity in range(11, 21):
        coding = Coding(10, parity)
        times = measure_coding(coding, state, lost=1, repeat=repeat)
        yield ParameterPoint("11a", "k (m = 10)", parity, coding, upload_bytes(coding, 1.0), times.decode)
        yield ParameterPoint("11b", "k (m = 10)", parity, coding, None, times.encode)
    for lost in range(1, 17):
        coding = Coding(16, 16)
        times = measure_coding(coding, state, lost=lost, repeat=repeat)
        yield ParameterPoint("11c", "e (m = 16, n = 32)", lost, coding, None, times.decode)


def measured_rates(megabytes: int = 64, repeat: int = 5) -> Iterator[MeasuredRate]:
    """Measure the table that `plan fragments --rates` and the tuner take."""
    yield from measure_rates(RATE_CODINGS, some_state(megabytes * MEGABYTE), repeat=repeat)


def usual_rates() -> CodeRates:
    """Return a table close to ISA-L on one idle core: 2.2 GB/s for 10+4, 0.9 GB/s for 10+20."""
    rates = {}
    for coding in RATE_CODINGS:
        rate = 1 / (2.9e-10 + 4.1e-11 * coding.parity)
        rates[coding] = CodeRate(rate, rate)
    return CodeRates(rates)


def tuner_points(seed: int = 1, rounds: int = 240) -> list[TunerPoint]:
    """Run the tuner: after a third of the rounds the bandwidth falls to a tenth, after two thirds more nodes fail.

    The rates are a fixed table, so that the run is the same on every machine.
    """
    rates = usual_rates()
    draws = Draws(seed).branch("tuner")
    tuner = FragmentTuner.start(TunerGoals(state_bytes=64e6, peers=40, reliability=0.9999, bandwidth=1e9), rates)
    found = []
    for number in range(rounds):
        bandwidth = 1e9 if number < rounds // 3 else 1e8
        down = 0.01 if number < 2 * rounds // 3 else 0.1
        coding = tuner.coding
        tuner = tuner.after(
            FragmentMeasurement(
                coding=coding,
                encode_rate=rates.of(coding).encode * float(np.exp(draws.normal(0, 0.15))),
                bandwidth=bandwidth * float(np.exp(draws.normal(0, 0.2))),
                holders=coding.total,
                lost=sum(draws.chance(down) for _ in range(coding.total)),
            )
        )
        found.append(
            TunerPoint(
                number=number,
                bandwidth=bandwidth,
                node_failure=down,
                data=tuner.coding.data,
                parity=tuner.coding.parity,
                estimated_bandwidth=tuner.bandwidth.rate or 0.0,
                estimated_failure=tuner.losses.probability,
                changed=tuner.decision.changed,
            )
        )
    return found


def fragments_claims(
    success: Sequence[SuccessPoint],
    recovery: Sequence[RecoveryPoint],
    parameters: Sequence[ParameterPoint],
    tuner: Sequence[TunerPoint],
    megabytes: int,
) -> list[FragmentsClaim]:
    """Compare the paper's statements with our results."""
    twice = min(one.success for one in success if one.total == 2 * one.data)
    limit = file_bandwidth_limit(PAPER_BANDWIDTH, PAPER_CODE_RATE)
    errors = [abs(one.recompute_model / one.recompute_measured - 1) for one in recovery]
    paper_share = fmean(one.recompute_measured / (one.retrieval_model + one.recompute_measured) for one in recovery)

    def of(figure: str, varied: str) -> list[ParameterPoint]:
        return [one for one in parameters if (one.figure, one.varied[0]) == (figure, varied)]

    by_data, by_parity, encode, lost = of("11a", "m"), of("11a", "k"), of("11b", "k"), of("11c", "e")
    slopes = {name: _change(points) for name, points in (("m", by_data), ("k", by_parity), ("enc", encode))}
    fit = _linear_fit(lost)
    moves = [one.number for one in tuner if one.changed]
    third = len(tuner) // 3
    after = [next((move - change for move in moves if move >= change), None) for change in (third, 2 * third)]
    return [
        FragmentsClaim(
            "Fig. 7",
            "success rises with n and falls with p; n = 2 m is enough for all p shown",
            f"at n = 2 m never below {twice:.6f}",
            twice > 0.99,
        ),
        FragmentsClaim(
            "Fig. 8",
            "for realistic values fragments beat the file system",
            f"with the paper's {PAPER_BANDWIDTH / 1e6:.1f} and {PAPER_CODE_RATE / 1e6:.0f} MB/s up to "
            f"{limit / 1e6:.2f} MB/s",
            limit > 0.8 * PAPER_BANDWIDTH,
        ),
        FragmentsClaim(
            "Fig. 10",
            "recompute time is linear in the state; the model matches",
            f"model off by {fmean(errors):.1%} on average, {max(errors):.1%} at most; recomputing is "
            f"{paper_share:.1%} of a recovery at the paper's bandwidth",
            fmean(errors) < 0.15,
        ),
        FragmentsClaim(
            "Fig. 11 a",
            "recompute time rises with m and falls with k, as m B / (m + k - 1) does for a given B",
            f"the formula does; measured {slopes['m']:+.0%} from m = 11 to 20, {slopes['k']:+.0%} from k = 11 to 20",
            slopes["m"] > 0 > slopes["k"],
        ),
        FragmentsClaim(
            "Fig. 11 b",
            "encoding 128 MB takes 1.5 to 2 s and grows slightly with k",
            f"{megabytes} MB take {min(p.seconds for p in encode):.3f} to {max(p.seconds for p in encode):.3f} s, "
            f"{slopes['enc']:+.0%} from k = 11 to 20",
            slopes["enc"] > 0,
        ),
        FragmentsClaim(
            "Fig. 11 c",
            "recovery time grows slowly and linearly with the unavailable fragments e",
            f"{lost[0].seconds:.3f} s at e = 1, {lost[-1].seconds:.3f} s at e = 16 (recomputing only); a line explains "
            f"{fit:.0%}",
            fit > 0.7,
        ),
        FragmentsClaim(
            "sec. 4.1",
            "m and k follow the measurements",
            f"{len(moves)} moves in {len(tuner)} noisy rounds; {after[0]} and {after[1]} rounds after the changes",
            len(moves) <= 10 and all(one is not None and one <= 6 for one in after),
        ),
    ]


def _change(points: Sequence[ParameterPoint]) -> float:
    """Return by what part a fitted line rises from the first value to the last."""
    x = np.array([one.value for one in points], float)
    slope, start = np.polyfit(x, [one.seconds for one in points], 1)
    return float((slope * x[-1] + start) / (slope * x[0] + start) - 1)


def _linear_fit(points: Sequence[ParameterPoint]) -> float:
    x, y = np.array([one.value for one in points], float), np.array([one.seconds for one in points])
    return float(np.corrcoef(x, y)[0, 1] ** 2)
