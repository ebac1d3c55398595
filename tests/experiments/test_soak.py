"""A soak's actions come from its seed, and its verdict tells growth from noise."""

from __future__ import annotations

from collections import Counter
from random import Random

from holdfast_lab.soak_measures import Action, draw_action, expected_counts, series_of, slope_of


def test_actions_are_the_same_however_often_a_soak_is_resumed() -> None:
    first = [draw_action(3, number) for number in range(200)]
    again = [draw_action(3, number) for number in range(100, 200)]
    assert [action for action, _ in first[100:]] == [action for action, _ in again]
    assert [draw.random() for _, draw in first[100:]] == [draw.random() for _, draw in again]
    assert set(Counter(action for action, _ in first)) == set(Action), "all kinds come"


def noisy(per_hour: float, seed: int = 1) -> list[tuple[float, float]]:
    draw = Random(seed)
    return [(n / 720, 100.0 + per_hour * n / 720 + draw.gauss(0, 5)) for n in range(1440)]


def test_growth_is_told_from_noise_and_from_peaks() -> None:
    flat = slope_of("memory", noisy(0.0))
    assert flat.flat
    assert abs(flat.per_hour) < 2
    grows = slope_of("memory", noisy(20.0))
    assert grows.flat is False
    assert grows.low < 20.0 < grows.high or abs(grows.per_hour - 20.0) < 2
    peaks = [(hours, value + (500 if number % 50 == 0 else 0)) for number, (hours, value) in enumerate(noisy(0.0))]
    assert slope_of("latency", peaks).flat, "a recovery now and then is no growth"
    assert slope_of("latency", noisy(0.0)[:5]).flat is None, "too few samples say nothing"


def test_what_a_start_warms_up_does_not_count() -> None:
    warm = [(n / 720, min(100.0, float(n))) for n in range(1440)]
    assert slope_of("memory", warm).flat


def test_series_skip_what_was_not_measured() -> None:
    found = series_of([{"hours": 0.1, "a": 1.0}, {"hours": 0.2, "a": None, "b": 2.0}])  # type: ignore[dict-item]
    assert found == {"a": [(0.1, 1.0)], "b": [(0.2, 2.0)]}


def test_expected_counts() -> None:
    assert expected_counts(12, 3, 2, 10) == {("k0", 0): 20, ("k1", 0): 10, ("k0", 1): 4, ("k1", 1): 2}
