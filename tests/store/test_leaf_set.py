"""Leaf sets and routing tables against what they are by definition."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.erasure.fragment import StateId
from holdfast.store.ring.ids import (
    SIZE,
    RingId,
    clockwise,
    closeness,
    digit,
    distance,
    peer_id,
    shared_digits,
    state_key,
    written,
)
from holdfast.store.ring.leaf_set import LeafSet, leaf_set_size
from holdfast.store.ring.messages import Contact
from holdfast.store.ring.routing_table import RoutingTable

ids = st.integers(0, SIZE - 1).map(RingId)
# Ids that lie close together, as those of one site do, and ids anywhere.
clustered = st.one_of(ids, st.integers(0, 1000).map(RingId), st.integers(SIZE - 1000, SIZE - 1).map(RingId))


def contact(number: RingId) -> Contact:
    return Contact(number, f"peer:{number}")


def nearest(owner: RingId, others: set[RingId], half: int) -> set[RingId]:
    after = sorted(others, key=lambda peer: clockwise(owner, peer))[:half]
    before = sorted(others, key=lambda peer: clockwise(peer, owner))[:half]
    return set(after) | set(before)


@given(owner=clustered, others=st.lists(clustered, max_size=40, unique=True), half=st.integers(1, 8))
@settings(max_examples=120, deadline=None)
def test_a_leaf_set_holds_the_nearest_in_whatever_order_they_come(
    owner: RingId, others: list[RingId], half: int
) -> None:
    leaves = LeafSet(owner, 2 * half)
    for peer in others:
        leaves.add(contact(peer))
    expected = nearest(owner, set(others) - {owner}, half)
    assert {member.id for member in leaves.members} == expected
    assert {member.id for member in (*leaves.after, *leaves.before)} == expected
    assert [member.id for member in leaves.after] == sorted(
        (member.id for member in leaves.after), key=lambda peer: clockwise(owner, peer)
    )


@given(owner=ids, others=st.lists(ids, min_size=1, max_size=12, unique=True), half=st.integers(3, 8), data=st.data())
@settings(max_examples=120, deadline=None)
def test_in_a_small_ring_it_stays_the_whole_ring_after_losses(
    owner: RingId, others: list[RingId], half: int, data: st.DataObject
) -> None:
    live = set(others[: 2 * half]) - {owner}
    leaves = LeafSet(owner, 2 * half)
    for peer in live:
        leaves.add(contact(peer))
    gone = data.draw(st.sets(st.sampled_from(sorted(live)))) if live else set()
    for peer in gone:
        assert leaves.remove(peer) == contact(peer)
    live -= gone
    for peer in live:
        leaves.add(contact(peer))  # they are heard from again
    assert {member.id for member in leaves.members} == live
    if live:
        key = data.draw(ids)
        assert leaves.covers(key, whole_ring=lambda: True)
        expected = min([owner, *live], key=lambda peer: closeness(key, peer))
        found = leaves.closest(key)
        assert (owner if found is None else found.id) == expected


@given(owner=ids, others=st.sets(ids, min_size=30, max_size=60), key=ids)
@settings(max_examples=100, deadline=None)
def test_where_a_full_leaf_set_covers_a_key_the_closest_peer_is_in_it(
    owner: RingId, others: set[RingId], key: RingId
) -> None:
    others.discard(owner)
    leaves = LeafSet(owner, 8)
    for peer in others:
        leaves.add(contact(peer))
    if leaves.covers(key, whole_ring=lambda: False):
        found = leaves.closest(key)
        assert (owner if found is None else found.id) == min([owner, *others], key=lambda peer: closeness(key, peer))


def test_limits_keep_far_peers_out_of_a_side_that_has_room() -> None:
    leaves = LeafSet(RingId(1000), 4)
    assert leaves.add(contact(RingId(1010)), (50, 50))
    assert not leaves.add(contact(RingId(2000)), (50, 50))
    assert leaves.fitting([contact(RingId(960)), contact(RingId(900))], (50, 50)) == [contact(RingId(960))]
    assert leaves.add(contact(RingId(2000)))


@pytest.mark.parametrize(("fragments", "size"), [(1, 24), (22, 24), (23, 24), (24, 26), (25, 26), (30, 32), (32, 34)])
def test_the_leaf_set_is_larger_than_n(fragments: int, size: int) -> None:
    assert leaf_set_size(fragments) == size


@given(owner=ids, others=st.sets(clustered, max_size=60), key=clustered)
@settings(max_examples=100, deadline=None)
def test_a_routing_table_steps_one_digit_closer(owner: RingId, others: set[RingId], key: RingId) -> None:
    table = RoutingTable(owner)
    for peer in others:
        table.add(contact(peer))
    found = table.towards(key)
    reachable = [peer for peer in others if shared_digits(peer, key) > shared_digits(owner, key)]
    assert (found is not None) == (bool(reachable) and owner != key)
    if found is not None:
        assert shared_digits(found.id, key) > shared_digits(owner, key)
    nearer = table.nearer(key, [], ())
    if nearer is not None:
        assert distance(nearer.id, key) < distance(owner, key)
        assert shared_digits(nearer.id, key) >= shared_digits(owner, key)
    for peer in others:
        table.remove(peer)
    assert len(table) == 0


@given(one=ids, other=ids)
def test_digits_and_distances(one: RingId, other: RingId) -> None:
    shared = shared_digits(one, other)
    assert written(one)[:shared] == written(other)[:shared]
    if one != other:
        assert written(one)[shared] != written(other)[shared]
        assert int(written(one)[shared], 16) == digit(one, shared)
    assert distance(one, other) == distance(other, one) <= SIZE // 2
    assert (clockwise(one, other) + clockwise(other, one)) % SIZE == 0


def test_ids_of_one_site_are_neighbours_and_spread_within_it() -> None:
    names = [f"host{i}:7000" for i in range(200)]
    near = [peer_id(name, "frankfurt") for name in names]
    far = [peer_id(name, "oregon") for name in names]
    assert len({number >> 112 for number in near}) == 1
    assert near[0] >> 112 != far[0] >> 112
    assert state_key(StateId("a", "b"), "oregon") >> 112 == far[0] >> 112
    # Within a site the rest of the id is as even as without one: sixteenths of the site hold 12.5 on average.
    counts = [0] * 16
    for number in near:
        counts[(number >> 108) & 15] += 1
    assert max(counts) < 30
    assert peer_id("x") != state_key(StateId("x", "x"))
