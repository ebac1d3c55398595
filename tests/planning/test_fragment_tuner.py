"""The tuner on traces made here: steady under noise, quick after a change, never stuck, never flapping."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput
from holdfast.planning.fragments.choice import Preference, choose_coding, evaluate, problems_of
from holdfast.planning.fragments.code_rates import CodeRate, CodeRates
from holdfast.planning.fragments.measurement_filters import LossFilter, RateFilter
from holdfast.planning.fragments.tuner import FragmentMeasurement, FragmentTuner, TunerGoals


def true_rates(coding: Coding) -> CodeRate:
    rate = 1 / (1e-10 + 3e-11 * coding.parity + 1e-12 * coding.data)
    return CodeRate(rate, rate)


TABLE = CodeRates(
    {c: true_rates(c) for c in (Coding(1, 1), Coding(4, 2), Coding(10, 4), Coding(10, 20), Coding(24, 8))}
)


def run(
    tuner: FragmentTuner,
    rounds: int,
    rng: random.Random,
    *,
    bandwidth: float,
    down: float,
    noise: float = 0.2,
    rate: Callable[[Coding], CodeRate] = true_rates,
) -> tuple[FragmentTuner, list[int]]:
    """Return the tuner after some rounds in one world, and the rounds in which it moved."""
    moves = []
    for number in range(rounds):
        coding = tuner.coding
        tuner = tuner.after(
            FragmentMeasurement(
                coding=coding,
                encode_rate=rate(coding).encode * rng.lognormvariate(0, noise),
                bandwidth=bandwidth * rng.lognormvariate(0, noise),
                holders=coding.total,
                lost=sum(rng.random() < down for _ in range(coding.total)),
            )
        )
        if tuner.decision.changed:
            moves.append(number)
    return tuner, moves


def started(**changes: object) -> FragmentTuner:
    values: dict[str, object] = {"state_bytes": 64e6, "peers": 40, "reliability": 0.9999, "bandwidth": 1e9}
    return FragmentTuner.start(TunerGoals(**{**values, **changes}), TABLE)  # type: ignore[arg-type]


@pytest.mark.parametrize("prefer", list(Preference))
@pytest.mark.parametrize("seed", range(2))
def test_steady_in_a_noisy_world_that_does_not_change(prefer: Preference, seed: int) -> None:
    tuner, moves = run(started(prefer=prefer), 80, random.Random(seed), bandwidth=1e9, down=0.01, noise=0.3)
    assert len(moves) <= 2, moves
    _, later = run(tuner, 80, random.Random(seed + 100), bandwidth=1e9, down=0.01, noise=0.3)
    assert len(later) <= 1, later


@pytest.mark.parametrize("seed", range(2))
def test_quick_after_the_bandwidth_falls(seed: int) -> None:
    rng = random.Random(seed)
    tuner, _ = run(started(), 40, rng, bandwidth=1e9, down=0.01)
    before = tuner.coding
    tuner, moves = run(tuner, 8, rng, bandwidth=1e8, down=0.01)
    assert moves, "the bandwidth fell to a tenth and the coding stayed"
    assert moves[0] <= 5
    # A slower network makes it worth spreading the upload over more peers.
    assert tuner.coding.total > before.total
    truth = tuner.request()
    assert evaluate(truth, tuner.coding).spread_seconds <= 1.25 * choose_coding(truth).spread_seconds


@pytest.mark.parametrize("seed", range(2))
def test_more_parity_at_once_when_nodes_begin_to_fail_and_less_when_they_stop(seed: int) -> None:
    rng = random.Random(seed)
    tuner, _ = run(started(), 40, rng, bandwidth=1e9, down=0.005)
    calm = tuner.coding
    tuner, moves = run(tuner, 10, rng, bandwidth=1e9, down=0.15)
    assert moves
    assert moves[0] <= 4
    assert tuner.coding.parity > calm.parity
    stormy = tuner.coding
    tuner, moves = run(tuner, 100, rng, bandwidth=1e9, down=0.005)
    assert tuner.coding.parity < stormy.parity
    assert len(moves) <= 6


def test_one_outlier_moves_nothing() -> None:
    rng = random.Random(5)
    tuner, _ = run(started(), 60, rng, bandwidth=1e9, down=0.01, noise=0.1)
    for wild in (1e5, 1e13):
        after = tuner.after(FragmentMeasurement(coding=tuner.coding, bandwidth=wild, encode_rate=wild))
        assert not after.decision.changed
        assert after.bandwidth.rate == pytest.approx(tuner.bandwidth.rate, rel=0.2)


def test_a_coding_the_table_flatters_is_left_once_and_not_gone_back_to() -> None:
    """What the table promises and what is measured differ for one coding: no going back and forth."""
    tuner = started()
    rng = random.Random(9)
    favourite = tuner.coding

    def disappointing(coding: Coding) -> CodeRate:
        honest = true_rates(coding)
        return honest if coding == favourite else CodeRate(honest.encode / 3, honest.decode / 3)

    moves = 0
    for bandwidth in (1e9, 1e8, 1e9, 1e8):
        tuner, moved = run(tuner, 25, rng, bandwidth=bandwidth, down=0.01, rate=disappointing)
        moves += len(moved)
    assert moves <= 12
    _, moved = run(tuner, 40, rng, bandwidth=1e8, down=0.01, rate=disappointing)
    assert len(moved) <= 3


def test_fewer_peers_force_a_smaller_coding_at_once() -> None:
    tuner = started(bandwidth=1e7)
    assert tuner.coding.total > 12
    tuner = tuner.after(FragmentMeasurement(peers=12))
    assert tuner.decision.changed
    assert tuner.coding.total <= 12
    assert "there are 12" in tuner.decision.reason


def test_where_nothing_meets_the_limits_the_most_reliable_is_used_and_said_so() -> None:
    tuner = started(peers=3, node_failure=0.4)
    assert not tuner.decision.meets_limits
    assert tuner.coding == Coding(1, 2)
    tuner = tuner.after(FragmentMeasurement(holders=3, lost=1))
    assert "nothing meets the limits" in tuner.decision.reason


def test_moves_go_to_codings_that_hold_with_a_margin() -> None:
    rng = random.Random(3)
    tuner, _ = run(started(), 50, rng, bandwidth=1e9, down=0.01)
    tuner, moves = run(tuner, 30, rng, bandwidth=5e7, down=0.03)
    assert moves
    assert not problems_of(tuner.request(), evaluate(tuner.request(), tuner.coding))


def test_the_same_measurements_give_the_same_decisions() -> None:
    one, _ = run(started(), 50, random.Random(1), bandwidth=3e8, down=0.02)
    two, _ = run(started(), 50, random.Random(1), bandwidth=3e8, down=0.02)
    assert one.decision == two.decision


def test_bad_measurements_are_refused() -> None:
    with pytest.raises(BadInput, match="encode_rate"):
        FragmentMeasurement(coding=Coding(2, 1), encode_rate=0)
    with pytest.raises(BadInput, match="lost"):
        FragmentMeasurement(holders=3, lost=4)


def test_rate_filter_follows_and_finds_changes() -> None:
    rng = random.Random(2)
    follow = RateFilter()
    alarms = 0
    for _ in range(400):
        follow = follow.with_rate(100 * rng.lognormvariate(0, 0.2))
        alarms += follow.changed
    assert follow.rate == pytest.approx(100, rel=0.15)
    assert alarms <= 1
    found = []
    for rounds in range(1, 6):
        follow = follow.with_rate(300 * rng.lognormvariate(0, 0.2))
        found += [rounds] if follow.changed else []
    assert found
    assert follow.rate == pytest.approx(300, rel=0.35)


def test_loss_filter_follows_and_finds_changes() -> None:
    rng = random.Random(4)
    follow = LossFilter(0.01)
    alarms = 0
    for _ in range(300):
        follow = follow.with_round(sum(rng.random() < 0.02 for _ in range(24)), 24)
        alarms += follow.changed
    assert follow.probability == pytest.approx(0.02, abs=0.012)
    assert alarms <= 3
    follow = follow.with_round(12, 24)
    assert follow.changed
    assert follow.probability > 0.3
    assert follow.with_round(0, 0).probability == follow.probability
