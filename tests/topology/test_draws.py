"""Draws are the same everywhere: golden values, and the distributions they should have."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.topology.draws import Draws, rounded, zipf_shares


def test_words_are_those_of_splitmix64() -> None:
    draws = Draws(0)
    assert [draws.word() for _ in range(3)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_golden_values() -> None:
    draws = Draws(42).branch("golden")
    assert [draws.whole(1, 10) for _ in range(8)] == GOLDEN_WHOLE
    assert [draws.real(0, 1) for _ in range(3)] == GOLDEN_REAL
    assert [draws.normal(0.1, 0.03) for _ in range(3)] == GOLDEN_NORMAL
    assert draws.sample("abcdefgh", 4) == GOLDEN_SAMPLE
    assert zipf_shares(4, 0.1) == [1.0, 0.933033, 0.895958, 0.870551]


GOLDEN_WHOLE: list[int] = [7, 4, 2, 7, 6, 6, 6, 2]
GOLDEN_REAL: list[float] = [0.46829, 0.579232, 0.667335]
GOLDEN_NORMAL: list[float] = [0.0928672, 0.113738, 0.135018]
GOLDEN_SAMPLE: list[str] = ["b", "f", "g", "c"]


def test_branches_do_not_depend_on_what_was_drawn() -> None:
    fresh, used = Draws(7), Draws(7)
    used.word()
    assert fresh.branch("a").word() == used.branch("a").word()
    assert fresh.branch("a").word() != fresh.branch("b").word()
    assert Draws(7).branch("a").word() != Draws(8).branch("a").word()


@settings(derandomize=True, max_examples=50)
@given(seed=st.integers(0, 2**64 - 1), low=st.integers(-(10**6), 10**6), span=st.integers(0, 10**6))
def test_whole_numbers_stay_in_range(seed: int, low: int, span: int) -> None:
    draws = Draws(seed)
    assert all(low <= draws.whole(low, low + span) <= low + span for _ in range(20))


def test_an_empty_range_is_refused() -> None:
    with pytest.raises(ValueError, match="no whole number"):
        Draws(1).whole(2, 1)
    with pytest.raises(ValueError, match="wider"):
        Draws(1).whole(0, 2**64)


def test_distributions() -> None:
    draws = Draws(5)
    many = 20_000
    counts = [0] * 10
    for _ in range(many):
        counts[draws.whole(0, 9)] += 1
    # Chi-square with 9 degrees of freedom is below 27.9 with probability 0.999; the seed is fixed.
    assert sum((count - many / 10) ** 2 / (many / 10) for count in counts) < 27.9
    normal = [draws.normal(3, 2) for _ in range(many)]
    mean = sum(normal) / many
    deviation = math.sqrt(sum((one - mean) ** 2 for one in normal) / many)
    assert mean == pytest.approx(3, abs=0.05)
    assert deviation == pytest.approx(2, abs=0.05)
    assert sum(abs(one - 3) < 2 for one in normal) / many == pytest.approx(0.6827, abs=0.01)
    assert sum(draws.chance(0.2) for _ in range(many)) / many == pytest.approx(0.2, abs=0.01)


def test_shuffles_reach_every_order_alike() -> None:
    draws = Draws(9)
    seen: dict[tuple[int, ...], int] = {}
    for _ in range(6000):
        items = [1, 2, 3]
        draws.shuffle(items)
        seen[tuple(items)] = seen.get(tuple(items), 0) + 1
    assert len(seen) == 6
    assert all(abs(count - 1000) < 150 for count in seen.values())


def test_rounding_hides_the_last_bit() -> None:
    value = 0.1**0.3
    assert rounded(value) == rounded(math.nextafter(value, 1)) == rounded(math.nextafter(value, 0))
    assert rounded(0.0) == 0.0
    assert zipf_shares(3, 0) == [1.0, 1.0, 1.0]


@settings(derandomize=True, max_examples=30)
@given(seed=st.integers(0, 2**64 - 1), count=st.integers(0, 50))
def test_a_shuffle_is_fisher_and_yates_with_whole_numbers(seed: int, count: int) -> None:
    draws, plain = Draws(seed), Draws(seed)
    items, other = list(range(count)), list(range(count))
    draws.shuffle(items)
    for last in range(count - 1, 0, -1):
        place = plain.whole(0, last)
        other[last], other[place] = other[place], other[last]
    assert items == other
    assert draws.word() == plain.word(), "and leaves the stream at the same place"
