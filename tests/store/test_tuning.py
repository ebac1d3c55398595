"""The tuner in the client's hands: it learns from saves and loads, and follows the peers."""

from __future__ import annotations

from pathlib import Path
from random import Random

from holdfast.erasure.encoding import describe
from holdfast.erasure.fragment import StateHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.planning.fragments.choice import success_probability
from holdfast.store.client.client import connect
from holdfast.store.client.tuning import CodingTuner, SaveMeasurement, TuningGoals
from holdfast_lab.testing.ring_of_peers import RingOfPeers


def header(size: int, coding: Coding) -> StateHeader:
    return describe(bytes(size), StateId("a", "b"), BatchId(1), Epoch(1), coding)


def test_a_coding_fits_the_peers_and_the_reliability() -> None:
    tuner = CodingTuner(TuningGoals(reliability=0.999999))
    assert tuner.choose(1000, 1) == Coding(1, 0)
    for peers in (2, 3, 5, 12, 30, 100):
        coding = tuner.choose(10_000_000, peers)
        assert coding.total <= min(32, peers)
        assert coding.parity >= 1
        if peers >= 5:
            assert success_probability(coding, 0.01) >= 0.999999


def test_losses_buy_parity_and_quiet_gives_it_back() -> None:
    tuner = CodingTuner()
    size = 4_000_000
    calm = tuner.choose(size, 20)
    for _ in range(40):
        coding = tuner.choose(size, 20)
        tuner.saved(header(size, coding), 20, SaveMeasurement(0.01, 0.05, coding.total, round(coding.total * 0.2)))
    stormy = tuner.choose(size, 20)
    assert success_probability(stormy, 0.2) > success_probability(calm, 0.2)
    decision = tuner.decision(size)
    assert decision is not None
    assert decision.reason


def test_sizes_have_tuners_of_their_own() -> None:
    tuner = CodingTuner()
    tuner.choose(1000, 10)
    assert tuner.decision(1_000_000_000) is None
    assert tuner.decision(60_000) is not None


def test_a_client_chooses_saves_and_learns(tmp_path: Path) -> None:
    data = Random(1).randbytes(500_000)
    with RingOfPeers(5, tmp_path / "ring") as ring, connect(ring.addresses) as store:
        for version in range(3):
            saved = store.save(StateId("a", "x"), BatchId(version), Epoch(0), data)
            assert saved.coding.total <= 5
            assert saved.stored == saved.coding.total
            assert bytes(store.load(StateId("a", "x")).joined()) == data
        decision = store.tuner.decision(len(data))
        assert decision is not None
        # Peers die just before a save: the client finds a coding for those that are left.
        ring.kill([1, 2])
        saved = store.save(StateId("a", "x"), BatchId(9), Epoch(0), data[::-1])
        assert saved.stored == saved.coding.total
        assert bytes(store.load(StateId("a", "x")).joined()) == data[::-1]
