"""Retrieval on its own: peers that are slow, dead, frozen or lying, as functions; no sockets."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.erasure.decoding import StateDecoder
from holdfast.erasure.encoding import encode
from holdfast.erasure.fragment import FragmentHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.client import retrieving
from holdfast.store.client.retrieving import Progress, Retrieval, RetrieveReport, _Stretch, no_progress
from holdfast.store.wire.failures import StateMissing, Unreachable


class Peers:
    """Fragments by index; `faults` says what becomes of a read."""

    def __init__(self, state: bytes, coding: Coding, block_bytes: int = 256) -> None:
        made = encode(state, StateId("a", "b"), BatchId(1), Epoch(1), coding, block_bytes=block_bytes)
        self.fragments = [bytes(one) for one in made]
        self.header = FragmentHeader.unpack(self.fragments[0]).state
        self.faults: dict[int, str] = {}
        self.reads = 0
        self.frozen = threading.Event()

    def read(self, address: str, fragment: FragmentHeader, first: int, count: int) -> bytes:
        self.reads += 1
        fault = self.faults.get(fragment.index)
        start, end = self.header.block_span(first)[0], self.header.block_span(first + count - 1)[1]
        data = bytearray(self.fragments[fragment.index][start:end])
        if fault == "dead" or (fault == "dies" and first > 2):
            raise Unreachable("gone", where=address)
        if fault == "lies":
            data[len(data) // 2] ^= 1
        if fault == "short":
            return bytes(data[:-1])
        if fault == "frozen":
            self.frozen.wait(300)
            raise Unreachable("timed out", where=address)
        return bytes(data)

    def load(
        self, clock: Callable[[], float] = time.monotonic, progress: Progress = no_progress
    ) -> tuple[bytes, RetrieveReport]:
        holders = {index: [f"peer{index}"] for index in range(len(self.fragments))}
        retrieval = Retrieval(self.header, holders, self.read, hedge_seconds=0.01, clock=clock, progress=progress)
        decoder = StateDecoder(self.header)
        try:
            state = b"".join(bytes(decoder.stripe(blocks)) for blocks in retrieval.stripes())
            decoder.finish()
        finally:
            self.frozen.set()
        return state, retrieval.report


def time_stands_still() -> float:
    """A clock by which no peer is ever slow: on a busy machine a healthy one would be, and would be hedged against."""
    return 0.0


@given(
    size=st.integers(0, 30_000),
    data=st.integers(1, 6),
    parity=st.integers(0, 6),
    seed=st.integers(0, 1000),
)
@settings(max_examples=60, deadline=None)
def test_any_faults_up_to_k_give_the_state_and_more_never_wrong_bytes(
    size: int, data: int, parity: int, seed: int
) -> None:
    chance = Random(seed)
    state = chance.randbytes(size)
    peers = Peers(state, Coding(data, parity))
    total = data + parity
    broken = chance.sample(range(total), chance.randrange(total + 1))
    peers.faults = {index: chance.choice(["dead", "dies", "lies", "short"]) for index in broken}
    certain = [index for index in broken if peers.faults[index] != "dies"]
    try:
        found, report = peers.load()
    except StateMissing as missing:
        assert len(broken) > parity
        assert "undamaged fragments found" in str(missing)
        return
    assert found == state
    assert len(certain) <= parity or size == 0
    assert not report.used & set(certain)


def test_frozen_peers_are_worked_around() -> None:
    peers = Peers(bytes(20_000), Coding(3, 2))
    peers.faults = {0: "frozen", 2: "frozen"}
    found, report = peers.load()
    assert found == bytes(20_000)
    assert report.used == {1, 3, 4}
    assert report.hedged >= 1


def test_lies_are_reported() -> None:
    peers = Peers(bytes(20_000), Coding(3, 2))
    peers.faults = {1: "lies"}
    _, report = peers.load(clock=time_stands_still)
    assert [one.index for one in report.lost] == [1]
    assert "checksum" in report.lost[0].reason


def test_a_second_holder_of_a_fragment_stands_in() -> None:
    peers = Peers(Random(1).randbytes(9000), Coding(2, 0))
    calls: list[str] = []

    def read(address: str, fragment: FragmentHeader, first: int, count: int) -> bytes:
        calls.append(address)
        if address == "broken":
            raise Unreachable("gone")
        return peers.read(address, fragment, first, count)

    retrieval = Retrieval(peers.header, {0: ["broken", "good"], 1: ["good"]}, read, hedge_seconds=0.01)
    decoder = StateDecoder(peers.header)
    state = b"".join(bytes(decoder.stripe(blocks)) for blocks in retrieval.stripes())
    assert state == Random(1).randbytes(9000)
    assert "broken" in calls


def test_healthy_peers_are_not_asked_twice() -> None:
    peers = Peers(bytes(100_000), Coding(4, 4))
    _, report = peers.load(clock=time_stands_still)
    assert report.bytes < 1.5 * sum(map(len, peers.fragments)) * 4 / 8
    assert report.lost == []


def test_too_few_from_the_start() -> None:
    peers = Peers(bytes(5000), Coding(3, 2))
    retrieval = Retrieval(peers.header, {0: ["x"], 4: ["y"]}, peers.read)
    with pytest.raises(StateMissing, match=r"2 undamaged fragments found, 3 needed; missing \[1, 2, 3\]"):
        list(retrieval.stripes())


@given(
    size=st.integers(1, 30_000), data=st.integers(1, 6), faults=st.lists(st.sampled_from(["dead", "lies"]), max_size=3)
)
@settings(max_examples=40, deadline=None)
def test_progress_counts_every_needed_fragment_once_whatever_peers_do(size: int, data: int, faults: list[str]) -> None:
    peers = Peers(Random(size).randbytes(size), Coding(data, 3))
    peers.faults = dict(enumerate(faults))
    told: list[tuple[int, int]] = []
    peers.load(progress=lambda fetched, needed: told.append((fetched, needed)))
    counted = [fetched for fetched, _ in told]
    assert {needed for _, needed in told} == {data}
    assert len(counted) == len(set(counted)), "no count twice"
    assert max(counted) == data, "all that are needed have come"
    assert min(counted) >= 1


class LateBlocks(dict[int, memoryview]):
    """The blocks of a stretch, of which one more comes while they are gone through."""

    def items(self) -> Any:
        late = max(self) + 1
        for index, view in super().items():
            self[late] = view
            yield index, view


def test_a_block_that_comes_when_there_are_enough_disturbs_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieving, "_Stretch", lambda first, count: _Stretch(first, count, LateBlocks()))
    state = Random(1).randbytes(5000)
    assert Peers(state, Coding(2, 3)).load(time_stands_still)[0] == state
