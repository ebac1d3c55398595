"""Small states saved together: bounded bundles, intervals, and every state found again."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.erasure.fragment import StateId
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.gathering import (
    SAVE_INTERVAL_SECONDS,
    Gatherer,
    Member,
    load_gathered,
    pack_bundle,
    unpack_bundle,
)
from holdfast.store.client.local import MemoryStore
from holdfast.store.wire.failures import Corrupt, StateMissing


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nothing_is_saved_before_the_interval_and_all_after() -> None:
    store, clock = MemoryStore(), Clock()
    gatherer = Gatherer(store, "app", "node1", clock=clock)
    for number in range(20):
        assert gatherer.add(f"O1[{number}]", BatchId(5), Epoch(1), f"state {number}".encode()) == []
    with pytest.raises(StateMissing):
        load_gathered(store, "app", "node1", "O1[3]")
    clock.now += SAVE_INTERVAL_SECONDS
    saved = gatherer.add("O1[3]", BatchId(6), Epoch(1), b"newer")
    assert len(saved) == 1, "twenty states, one bundle"
    assert load_gathered(store, "app", "node1", "O1[3]").contents == b"newer"
    assert load_gathered(store, "app", "node1", "O1[7]").contents == b"state 7"
    assert not gatherer.due()
    assert gatherer.flush() == []


def test_a_bundles_worth_of_changes_does_not_wait() -> None:
    gatherer = Gatherer(MemoryStore(), "app", "n", threshold=1000, clock=Clock())
    saved = [gatherer.add(f"s{number}", BatchId(1), Epoch(1), bytes(300)) for number in range(8)]
    assert [len(one) for one in saved] == [0, 0, 0, 2, 0, 0, 0, 2]


def test_large_states_go_by_themselves_and_may_come_back() -> None:
    store = MemoryStore()
    gatherer = Gatherer(store, "app", "n", threshold=1000, clock=Clock())
    gatherer.add("s", BatchId(1), Epoch(1), b"small")
    gatherer.flush()
    assert len(gatherer.add("s", BatchId(2), Epoch(1), bytes(5000))) == 1
    assert load_gathered(store, "app", "n", "s").contents == bytes(5000)
    gatherer.add("s", BatchId(3), Epoch(1), b"small again")
    gatherer.flush()
    assert load_gathered(store, "app", "n", "s").contents == b"small again"
    assert [one.version for one in store.versions(StateId("app", "s"))] == [2]


@given(seed=st.integers(0, 10_000))
@settings(max_examples=60, deadline=None)
def test_after_a_flush_every_state_is_found_as_it_was_last_added(seed: int) -> None:
    chance = Random(seed)
    store = MemoryStore()
    gatherer = Gatherer(store, "app", "n", threshold=2000, clock=Clock())
    latest: dict[str, bytes] = {}
    for version in range(40):
        name = f"s{chance.randrange(9)}"
        latest[name] = chance.randbytes(chance.choice([0, 10, 300, 900, 1100, 3000]))
        gatherer.add(name, BatchId(version), Epoch(1), latest[name])
    gatherer.flush()
    for name, contents in latest.items():
        assert bytes(load_gathered(store, "app", "n", name).contents) == contents


@pytest.mark.parametrize("cut", [0, 5, 11, 14, 40, 60])
def test_a_bundle_that_is_none_is_refused(cut: int) -> None:
    bundle = pack_bundle([Member("a", BatchId(1), Epoch(1), b"x" * 20), Member("b", BatchId(2), Epoch(1), b"")])
    assert [one.name for one in unpack_bundle(bundle)] == ["a", "b"]
    with pytest.raises(Corrupt, match="no bundle"):
        unpack_bundle(bundle[:cut])
    with pytest.raises(Corrupt):
        unpack_bundle(bundle + b"!")
