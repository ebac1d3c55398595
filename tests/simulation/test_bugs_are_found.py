"""Deliberate bugs are each found within two hundred seeds."""

from __future__ import annotations

import pytest

from holdfast.simulation.recovery.run import simulate_recovery
from simulation.bugs import BUGS, Bug

SEEDS = 200


def test_there_are_twenty_and_more() -> None:
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= 20


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_is_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.put_in(monkeypatch)
    assert any(simulate_recovery(seed).violation is not None for seed in range(SEEDS)), bug.what
