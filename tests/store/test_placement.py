"""Placement: the same everywhere, by weight, failure domains apart, and honest where that is not possible."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.erasure.layout import Coding
from holdfast.errors import NoPlan
from holdfast.store.ring.ids import RingId
from holdfast.store.ring.messages import Contact
from holdfast.store.ring.placement import choose_holders, domain_of, spread_copies


def contacts(count: int, domains: int | None = None, seed: int = 0) -> list[Contact]:
    chance = Random(seed)
    return [
        Contact(RingId(chance.getrandbits(128)), f"peer:{i}", None if domains is None else f"rack{i % domains}")
        for i in range(count)
    ]


@st.composite
def cases(draw: st.DrawFn) -> tuple[RingId, list[Contact], Coding]:
    data = draw(st.integers(1, 16))
    coding = Coding(data, draw(st.integers(0, 16)))
    seed = draw(st.integers(0, 2**32))
    peers = [
        Contact(contact.id, contact.address, draw(st.sampled_from([None, "a", "b", "c", "d"])))
        for contact in contacts(draw(st.integers(1, 40)), seed=seed)
    ]
    return RingId(Random(seed).getrandbits(128)), peers, coding


@given(cases())
@settings(max_examples=100, deadline=None)
def test_domains_stay_within_parity_exactly_where_that_is_possible(
    case: tuple[RingId, list[Contact], Coding],
) -> None:
    key, peers, coding = case
    placement = choose_holders(key, peers, coding)
    assert len(placement.holders) == coding.total
    held = Counter(domain_of(holder) for holder in placement.holders)
    assert placement.most_in_domain == max(held.values())
    # One fragment for each peer and at most k for each domain fit exactly when this sum is large enough.
    sizes = Counter(domain_of(peer) for peer in peers)
    possible = sum(min(size, coding.parity) for size in sizes.values()) >= coding.total
    if possible:
        assert placement.survives_any_domain
        assert placement.warning is None
    if len(peers) >= coding.total:
        assert placement.most_on_peer == 1
        assert placement.losses_survived == coding.parity
        assert placement.survives_any_domain == possible
    else:
        assert placement.most_on_peer == -(-coding.total // len(peers))
        assert placement.warning is not None
    assert (placement.warning is None) == (placement.survives_any_domain and placement.most_on_peer == 1)


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_the_choice_does_not_depend_on_the_order_of_candidates(
    case: tuple[RingId, list[Contact], Coding], chance: Random
) -> None:
    key, peers, coding = case
    shuffled = list(peers)
    chance.shuffle(shuffled)
    assert choose_holders(key, peers, coding) == choose_holders(key, shuffled, coding)


def test_repair_moves_only_what_was_lost() -> None:
    peers, coding = contacts(33, domains=4), Coding(10, 20)
    before = choose_holders(RingId(5), peers, coding)
    dead = {before.holders[3].id, before.holders[17].id}
    keep = {i: holder for i, holder in enumerate(before.holders) if holder.id not in dead}
    after = choose_holders(RingId(5), [peer for peer in peers if peer.id not in dead], coding, keep=keep)
    moved = [i for i in range(30) if before.holders[i] != after.holders[i]]
    assert moved == [3, 17]
    assert after.most_on_peer == 1


def test_load_follows_weights() -> None:
    peers = [
        Contact(contact.id, contact.address, weight=3.0 if i < 10 else 1.0) for i, contact in enumerate(contacts(40))
    ]
    load: Counter[RingId] = Counter()
    chance = Random(1)
    for _ in range(3000):
        load.update(
            holder.id for holder in choose_holders(RingId(chance.getrandbits(128)), peers, Coding(2, 1)).holders
        )
    heavy = sum(load[peer.id] for peer in peers[:10]) / 10
    light = sum(load[peer.id] for peer in peers[10:]) / 30
    assert 2.5 < heavy / light < 3.1  # a little under 3: a peer holds at most one fragment of a state


def test_peers_of_weight_zero_get_nothing_and_no_peers_is_an_error() -> None:
    full = Contact(RingId(1), "full", weight=0.0)
    placement = choose_holders(RingId(9), [full, *contacts(5)], Coding(3, 2))
    assert full not in placement.holders
    with pytest.raises(NoPlan):
        choose_holders(RingId(9), [full], Coding(3, 2))


def test_a_warning_names_the_shortage() -> None:
    placement = choose_holders(RingId(1), contacts(12, domains=2), Coding(8, 2))
    assert placement.most_in_domain == 5
    assert placement.warning == "one failure domain holds 5 of 10 fragments, more than the 2 that may be lost"
    crowded = choose_holders(RingId(1), contacts(4), Coding(4, 4))
    assert crowded.losses_survived == 2
    assert crowded.warning == "8 fragments on 4 peers: one holds 2, and only 2 peers may be lost instead of 4"


def test_the_heaviest_holders_get_the_data_fragments() -> None:
    there = [replace(one, weight=0.1 if number < 3 else 1.0) for number, one in enumerate(contacts(8))]
    placement = choose_holders(RingId(5), there, Coding(5, 3))
    assert [one.weight for one in placement.holders] == [1.0] * 5 + [0.1] * 3
    assert choose_holders(RingId(5), reversed(there), Coding(5, 3)) == placement, "the same wherever it is computed"


@given(cases(), st.randoms(use_true_random=False))
@settings(max_examples=100, deadline=None)
def test_copies_are_spread_as_well_as_a_new_save_and_then_stay(
    case: tuple[RingId, list[Contact], Coding], chance: Random
) -> None:
    key, peers, coding = case
    held = {index: chance.sample(peers, min(len(peers), chance.randint(1, 3))) for index in range(coding.total)}
    chosen = spread_copies(key, held, peers, coding)
    assert chosen is not None
    new = choose_holders(key, peers, coding)
    assert max(Counter(one.id for one in chosen.values()).values()) <= new.most_on_peer
    assert max(Counter(domain_of(one) for one in chosen.values()).values()) <= new.most_in_domain
    both = {index: list(dict.fromkeys([*some, chosen[index]])) for index, some in held.items()}
    again = spread_copies(key, both, peers, coding)
    assert again is not None
    assert all(again[index] in both[index] for index in both), "no copy has to be made once more"
    assert spread_copies(key, {index: [one] for index, one in chosen.items()}, peers, coding) == chosen


def test_no_copy_goes_to_a_peer_that_refused() -> None:
    there = contacts(3)
    crowded = {0: [there[0]], 1: [there[0]]}
    refused = {one.id for one in there[1:]}
    assert spread_copies(RingId(5), crowded, there, Coding(1, 1), refused=refused) is None
