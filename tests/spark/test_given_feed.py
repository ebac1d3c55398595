"""Tables that are given in the place of sources: each is logged once, whatever an earlier start has logged."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.spark.feed import GivenFeed


class FakeRun:
    """What a feed needs of a run; everything that is logged is processed at once."""

    def __init__(self, logged: int, generation: int) -> None:
        self.logged = self.live_frontier = logged
        self.batch_log = SimpleNamespace(generation=generation)
        self.taken: list[Any] = []

    def log(self, batch: Any) -> None:
        self.logged = self.live_frontier = self.logged + 1
        self.taken.append(batch["rows"])


@pytest.mark.parametrize(
    ("logged", "generation", "expected"),
    [
        (-1, 0, [0, 1, 2, 3, 4]),
        (1, 0, [2, 3, 4]),
        (2, 1, [2, 3, 4]),  # batches 0 and 1, and the one that a change of layout has logged
        (4, 3, [2, 3, 4]),
        (0, 1, [0, 1, 2, 3, 4]),
    ],
)
def test_batches_that_a_change_of_layout_logged_are_none_of_those_given(
    logged: int, generation: int, expected: list[int]
) -> None:
    run: Any = FakeRun(logged, generation)
    feed = GivenFeed([{"rows": number} for number in range(5)], run)  # type: ignore[dict-item]
    while feed.reading:
        feed.log_batches()
    assert run.taken == expected
