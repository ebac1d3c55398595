"""Any m of n fragments give the state back, lost fragments are rebuilt bit for bit, nothing wrong is ever returned."""

from __future__ import annotations

import itertools
import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.erasure.decoding import decode, decode_stream, gather, recompute, verify_fragment
from holdfast.erasure.encoding import describe, encode, encode_stripes
from holdfast.erasure.faults import DamagedFragment, FragmentFault, MismatchedFragments, NotEnoughFragments, WrongState
from holdfast.erasure.fragment import FragmentHeader, StateHeader, StateId
from holdfast.erasure.layout import MOST_FRAGMENTS, Coding
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch

STATE = StateId("traffic", "O3[0]")


def fragments_of(state: bytes, data: int, parity: int, *, block_bytes: int = 64, version: int = 7) -> list[bytearray]:
    return encode(state, STATE, BatchId(version), Epoch(3), Coding(data, parity), block_bytes=block_bytes)


@st.composite
def codings(draw: st.DrawFn) -> Coding:
    data = draw(st.integers(1, MOST_FRAGMENTS))
    return Coding(data, draw(st.integers(0, MOST_FRAGMENTS - data)))


@given(
    coding=codings(), size=st.integers(0, 20_000), seed=st.integers(0, 2**32), block=st.sampled_from([64, 100, 4096])
)
@settings(max_examples=150, deadline=None)
def test_any_m_fragments_give_the_state_and_all_lost_ones(coding: Coding, size: int, seed: int, block: int) -> None:
    chance = random.Random(seed)
    state = chance.randbytes(size)
    fragments = fragments_of(state, coding.data, coding.parity, block_bytes=block)
    assert len(fragments) == coding.total
    assert {len(fragment) for fragment in fragments} == {gather(fragments).header.fragment_length}
    kept = chance.sample(range(coding.total), coding.data)
    subset = [fragments[index] for index in kept]
    assert decode(subset) == state
    lost = sorted(set(range(coding.total)) - set(kept))
    assert recompute(subset, lost) == {index: fragments[index] for index in lost}
    for fragment in fragments:
        verify_fragment(fragment)


@pytest.mark.parametrize(("data", "parity"), [(3, 3), (1, 4), (5, 1), (2, 0)])
@pytest.mark.parametrize("size", [0, 1, 2, 63, 64, 65, 191, 192, 193, 1000])
def test_every_subset_of_small_codes(data: int, parity: int, size: int) -> None:
    state = random.Random(size).randbytes(size)
    fragments = fragments_of(state, data, parity)
    for kept in itertools.combinations(fragments, data):
        assert decode(kept) == state
    if size:
        for kept in itertools.combinations(fragments, data - 1):
            with pytest.raises(NotEnoughFragments):
                decode(kept)


@given(coding=codings(), size=st.integers(0, 3000), seed=st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_flipped_bits_never_give_wrong_bytes(coding: Coding, size: int, seed: int) -> None:
    chance = random.Random(seed)
    state = chance.randbytes(size)
    fragments = fragments_of(state, coding.data, coding.parity)
    hurt = chance.sample(range(coding.total), chance.randint(1, coding.total))
    for index in hurt:
        for _ in range(chance.choice([1, 1, 2, 5])):
            fragments[index][chance.randrange(len(fragments[index]))] ^= 1 << chance.randrange(8)
    damaged = 0
    for index in hurt:
        try:
            verify_fragment(fragments[index])
        except DamagedFragment:
            damaged += 1
    try:
        assert decode(fragments) == state
    except FragmentFault:
        # With m whole fragments left it must succeed. With fewer it may: a damaged fragment still has good blocks.
        assert len(fragments) - damaged < coding.data


def test_every_single_bit_of_a_fragment_is_guarded() -> None:
    fragment = fragments_of(b"some state" * 20, 2, 1)[1]
    for place in range(len(fragment) * 8):
        fragment[place // 8] ^= 1 << place % 8
        with pytest.raises(DamagedFragment):
            verify_fragment(fragment)
        fragment[place // 8] ^= 1 << place % 8
    verify_fragment(fragment)


def test_cut_and_overlong_fragments_count_as_lost() -> None:
    state = bytes(range(256)) * 9
    fragments = fragments_of(state, 3, 3)
    for size in (0, 1, 90, len(fragments[0]) - 1):
        assert decode([fragments[0][:size], *fragments[1:]]) == state
    assert decode([fragments[0] + b"\0", *fragments[1:]]) == state
    with pytest.raises(NotEnoughFragments, match="2 fragments, 3 needed; missing \\[0, 1, 2, 4\\]"):
        decode([fragments[3], fragments[5], fragments[4] + b"\0"])


def test_a_block_in_the_wrong_place_is_found() -> None:
    fragments = fragments_of(bytes(64 * 2) * 3, 2, 1)  # all stripes alike: only their place differs
    header = gather(fragments).header
    (first, end), (second, last) = header.block_span(0), header.block_span(1)
    moved = fragments[0]
    moved[first:end], moved[second:last] = moved[second:last], moved[first:end]
    with pytest.raises(DamagedFragment, match="checksum"):
        verify_fragment(moved)


def test_encodings_are_never_mixed() -> None:
    one, other = fragments_of(b"a" * 500, 3, 2), fragments_of(b"b" * 500, 3, 2)
    with pytest.raises(MismatchedFragments, match="digest differ"):
        decode([*one[:2], *other[2:]])
    with pytest.raises(MismatchedFragments, match="version differ"):
        decode([*one[:2], *fragments_of(b"a" * 500, 3, 2, version=8)[2:]])


def test_a_state_that_changes_while_it_is_encoded_is_found() -> None:
    state = bytearray(b"x" * 1000)
    header = describe(state, STATE, BatchId(1), Epoch(1), Coding(2, 1), block_bytes=64)
    stripes = encode_stripes(header, state)
    next(stripes)
    state[900] = 0
    with pytest.raises(WrongState, match="changed while"):
        list(stripes)


def test_streams_hold_one_stripe_at_a_time() -> None:
    state = random.Random(1).randbytes(64 * 4 * 10 + 17)
    gathered = gather(fragments_of(state, 4, 2)[2:])
    pieces = list(decode_stream(gathered))
    assert b"".join(pieces) == state
    assert [len(piece) for piece in pieces] == [64 * 4] * 10 + [17]


@pytest.mark.parametrize(("data", "parity"), [(0, 1), (33, 0), (20, 13), (3, -1)])
def test_codes_that_do_not_exist_are_refused(data: int, parity: int) -> None:
    with pytest.raises(BadInput):
        Coding(data, parity)


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "-x", "a b", "é", "x" * 201, "a\0"])
def test_names_that_could_be_paths_are_refused(name: str) -> None:
    with pytest.raises(BadInput):
        StateId("app", name)


def test_headers_of_deltas_name_what_they_follow() -> None:
    state = StateHeader(STATE, BatchId(9), Epoch(1), Coding(2, 1), 5, 64, b"d" * 16, follows=BatchId(4))
    assert FragmentHeader.unpack(FragmentHeader(state, 2).pack()) == FragmentHeader(state, 2)
    with pytest.raises(BadInput, match="cannot follow"):
        StateHeader(STATE, BatchId(9), Epoch(1), Coding(2, 1), 5, 64, b"d" * 16, follows=BatchId(9))


@given(noise=st.binary(max_size=400))
@settings(max_examples=200, deadline=None)
def test_noise_is_no_fragment(noise: bytes) -> None:
    for text in (noise, b"HOLDFRAG" + noise, b"HOLDFRAG\1\0" + noise):
        with pytest.raises(DamagedFragment):
            FragmentHeader.unpack(text)


@pytest.mark.parametrize("index", [-1, 5])
def test_fragments_that_do_not_exist_cannot_be_recomputed(index: int) -> None:
    fragments = fragments_of(b"abc" * 100, 3, 2)
    with pytest.raises(BadInput, match="fragment"):
        recompute(fragments, [index])


def test_coding_a_state_needs_memory_for_a_few_stripes_only() -> None:
    data, block = 4, 1 << 16
    state = bytes(range(256)) * (1 << 15)  # 8 MB: 32 stripes of 256 kB
    header = describe(state, STATE, BatchId(1), Epoch(1), Coding(data, 2), block_bytes=block)
    fragments = [bytearray(FragmentHeader(header, index).pack()) for index in range(6)]
    for stripe in encode_stripes(header, state):
        for index, one in enumerate(stripe):
            fragments[index] += one.prefix + bytes(one.payload)
    gathered = gather(fragments[2:])
    stripe_bytes = data * block
    tracemalloc.start()
    try:
        for _ in encode_stripes(header, state):
            pass
        assert tracemalloc.get_traced_memory()[1] < 3 * stripe_bytes
        tracemalloc.reset_peak()
        place = 0
        for piece in decode_stream(gathered):
            assert piece == state[place : place + len(piece)]
            place += len(piece)
        assert place == len(state)
        assert tracemalloc.get_traced_memory()[1] < 5 * stripe_bytes
    finally:
        tracemalloc.stop()
