"""The ring under random joins, leaves, crashes, lost messages, cuts: leaf sets and routes become right again.

All of it on the simulator with its own clock; every failure prints the seed that reproduces it (hypothesis does).
"""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.store.ring.ids import BITS, RingId, peer_id
from holdfast.store.ring.machine import RingPeer, RingSettings
from holdfast.store.ring.messages import (
    Call,
    Contact,
    Joined,
    KeepAlive,
    Leave,
    PeerFound,
    PeerLost,
    RouteReply,
    Send,
)
from holdfast_lab.ring_simulation.ring import Network, SimulatedRing

SETTINGS = RingSettings(leaf_size=8, keep_alive=10.0, table_period=40.0)


def grown(count: int, seed: int, *, loss: float = 0.0, settings: RingSettings = SETTINGS) -> SimulatedRing:
    ring = SimulatedRing(settings, seed, Network(loss=loss))
    for _ in range(count):
        ring.add(ring.new_contact())
        ring.run(0.2)
    assert ring.settle(600) is not None, ring.check()
    return ring


def look_up_everywhere(ring: SimulatedRing, count: int) -> None:
    ring.lookups.clear()
    for _ in range(count):
        ring.lookup(ring.random.choice(sorted(ring.peers)), RingId(ring.random.getrandbits(BITS)))
    ring.run(ring.settings.lookups * ring.settings.lookup_within + 1)
    assert len(ring.lookups) == count


steps = st.lists(
    st.tuples(st.sampled_from(["join", "join", "leave", "crash", "wait", "crash some"]), st.integers(0, 2**32)),
    max_size=25,
)


@given(first=st.integers(1, 30), steps=steps, seed=st.integers(0, 2**32), loss=st.sampled_from([0.0, 0.0, 0.05, 0.1]))
@settings(max_examples=100, deadline=None)
def test_leaf_sets_become_the_true_neighbours_and_routes_end_at_the_closest_live_peer(
    first: int, steps: list[tuple[str, int]], seed: int, loss: float
) -> None:
    ring = grown(first, seed, loss=loss)
    unrepaired = 0
    for step, number in steps:
        live = sorted(ring.peers)
        if step == "join":
            ring.add(ring.new_contact())
        elif step == "wait":
            ring.run(number % 50)
        elif step == "leave" and len(live) > 3:
            ring.leave(live[number % len(live)])
        elif len(live) > 6:
            # Half a leaf set may die before it is repaired; more might cut a small ring in two for good.
            some = 1 if step == "crash" else SETTINGS.leaf_size // 2
            if unrepaired + some > SETTINGS.leaf_size // 2:
                assert ring.settle(40 * SETTINGS.keep_alive) is not None, ring.check()
                unrepaired = 0
            for address in Random(number).sample(sorted(ring.peers), some):
                ring.crash(address)
            unrepaired += some
        ring.run(0.01)
    assert ring.settle(40 * SETTINGS.keep_alive) is not None, ring.check()
    look_up_everywhere(ring, 30)
    answered = [found for found in ring.lookups if found.root is not None]
    assert all(found.root == found.expected for found in answered)
    if not loss:
        assert len(answered) == 30
        assert ring.counts.false_losses == 0
        digits = math.ceil(math.log(len(ring.peers), 16)) if len(ring.peers) > 1 else 0
        assert max(found.hops for found in answered) <= digits + 2
    else:
        assert len(answered) >= 25


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 10, 17])
def test_small_rings_know_everyone(count: int) -> None:
    ring = grown(count, seed=count)
    look_up_everywhere(ring, 50)
    assert all(found.root == found.expected for found in ring.lookups)
    assert all(found.hops <= 1 for found in ring.lookups if count <= 9)


def test_hops_grow_with_the_logarithm() -> None:
    ring = grown(300, seed=3, settings=RingSettings(leaf_size=24))
    look_up_everywhere(ring, 300)
    hops = [found.hops for found in ring.lookups]
    assert all(found.root == found.expected for found in ring.lookups)
    assert sum(hops) / len(hops) < math.log(300, 16) + 0.5
    assert max(hops) <= math.ceil(math.log(300, 16)) + 1


def test_an_arc_longer_than_a_leaf_set_may_die_at_once() -> None:
    ring = grown(60, seed=8)
    ids = ring.live_ids
    doomed = {ids[(50 + i) % 60] for i in range(2 * SETTINGS.leaf_size)}
    for address in [address for address, peer in ring.peers.items() if peer.id in doomed]:
        ring.crash(address)
    assert ring.settle(60 * SETTINGS.keep_alive) is not None, ring.check()
    look_up_everywhere(ring, 100)
    assert all(found.root == found.expected for found in ring.lookups)


def test_two_thirds_of_the_peers_may_die_at_once() -> None:
    ring = grown(90, seed=5, settings=RingSettings(leaf_size=24, keep_alive=10.0, table_period=40.0))
    for address in ring.random.sample(sorted(ring.peers), 60):
        ring.crash(address)
    took = ring.settle(60 * SETTINGS.keep_alive)
    assert took is not None, ring.check()
    assert took <= ring.settings.detection + 3 * ring.settings.keep_alive


def test_a_crash_is_noticed_within_the_time_the_settings_promise() -> None:
    ring = grown(40, seed=2)
    victim = sorted(ring.peers)[7]
    gone = ring.peers[victim].id
    witnesses = ring.true_neighbours(gone)
    noticed: dict[RingId, float] = {}
    ring.observers.append(
        lambda peer, effect, now: (
            noticed.setdefault(peer.id, now) and None
            if isinstance(effect, PeerLost) and effect.contact.id == gone
            else None
        )
    )
    crashed = ring.now
    ring.crash(victim)
    ring.run(ring.settings.detection + 1)
    assert set(noticed) >= witnesses
    assert max(noticed.values()) - crashed <= ring.settings.detection


def test_rumours_do_not_raise_the_dead() -> None:
    ring = grown(40, seed=4)
    dead: set[RingId] = set()
    raised: list[RingId] = []

    def watch(peer: RingPeer, effect: object, now: float) -> None:
        if isinstance(effect, PeerFound) and effect.contact.id in dead:
            raised.append(effect.contact.id)

    ring.observers.append(watch)
    for address in sorted(ring.peers)[::5]:
        dead.add(ring.peers[address].id)
        ring.crash(address)
    ring.run(1)  # what was under way when they died has arrived
    raised.clear()
    ring.run(100 * SETTINGS.keep_alive)
    assert raised == []
    assert ring.check() == []


def test_a_ring_cut_in_two_grows_together_again() -> None:
    ring = grown(40, seed=6)
    side = {address: i % 2 for i, address in enumerate(sorted(ring.peers))}
    ring.reachable = lambda one, other: side[one] == side[other]
    ring.run(SETTINGS.detection + 5 * SETTINGS.keep_alive)
    assert all(
        {side[contact.address] for contact in peer.leaves.members} == {side[address]}
        for address, peer in ring.peers.items()
    )
    ring.reachable = None
    assert ring.settle(30 * SETTINGS.table_period) is not None, ring.check()


def test_rings_that_never_heard_of_each_other_become_one_when_one_peer_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that was frozen while all it knew were replaced has a ring of its own, and nobody to ask."""
    ring = grown(20, seed=8)
    with monkeypatch.context() as patch:
        patch.setattr(ring, "any_active", lambda: None)
        alone = ring.add(ring.new_contact())
    ring.add(ring.new_contact(), bootstrap=alone.contact.address)
    ring.run(20 * SETTINGS.table_period)
    assert len(alone.leaves) == 1, "nothing brings them together by itself"
    other = next(peer for peer in ring.peers.values() if len(peer.leaves) > 1)
    assert alone.meet(next(iter(alone.leaves.members)).address) == [], "those it knows are not asked"
    ring._do(alone, alone.meet(other.contact.address))
    assert ring.settle(30 * SETTINGS.table_period) is not None, ring.check()


def test_a_peer_that_leaves_is_gone_at_once_and_may_come_back() -> None:
    ring = grown(20, seed=7)
    address = sorted(ring.peers)[3]
    contact = ring.peers[address].contact
    ring.leave(address)
    ring.run(1)
    assert not any(contact.id in peer.leaves for peer in ring.peers.values())
    ring.add(contact)
    assert ring.settle(100) is not None
    assert any(contact.id in peer.leaves for peer in ring.peers.values())


def test_joins_survive_a_bootstrap_that_does_not_answer() -> None:
    ring = grown(10, seed=9)
    late = ring.add(ring.new_contact(), bootstrap="sim:nobody")
    ring.run(SETTINGS.lookups * SETTINGS.lookup_within + 5)
    assert late.active
    assert ring.counts.joins_failed == 1


def test_one_seed_is_one_run() -> None:
    runs = []
    for _ in range(2):
        ring = grown(30, seed=11, loss=0.05)
        look_up_everywhere(ring, 20)
        runs.append((ring.counts, ring.lookups, ring.now))
    assert runs[0] == runs[1]
    other = grown(30, seed=12, loss=0.05)
    assert other.counts != runs[0][0]


def test_rings_of_several_sites_work_and_keep_leaf_sets_at_home() -> None:
    ring = SimulatedRing(SETTINGS, seed=1)
    for i in range(60):
        site = ("frankfurt", "oregon", "tokyo")[i % 3]
        ring.add(Contact(peer_id(f"host{i}", site), f"host{i}", domain=f"{site}-rack{i % 4}"))
        ring.run(0.2)
    assert ring.settle(600) is not None, ring.check()
    look_up_everywhere(ring, 100)
    assert all(found.root == found.expected for found in ring.lookups)
    at_home = [
        contact.domain is not None
        and peer.contact.domain is not None
        and contact.domain.split("-")[0] == peer.contact.domain.split("-")[0]
        for peer in ring.peers.values()
        for contact in peer.leaves.members
    ]
    assert sum(at_home) / len(at_home) > 0.7  # 20 peers in a site and leaf sets of 8: only the ends look outside


# One peer by itself: what a driver may rely on ---------------------------------------------------------------------


def lone_peer() -> RingPeer:
    peer = RingPeer(Contact(RingId(500), "me"), SETTINGS, Random(0))
    peer.start(0.0)
    return peer


def test_a_peer_heard_of_is_probed_before_it_is_believed() -> None:
    peer, friend, rumoured = lone_peer(), Contact(RingId(600), "friend"), Contact(RingId(700), "rumour")
    effects = peer.receive(friend, KeepAlive(Call.PERIODIC, (rumoured,)), 1.0)
    assert PeerFound(friend) in effects
    assert rumoured.id not in peer.leaves
    assert [effect.address for effect in effects if isinstance(effect, Send)] == ["rumour"]
    for _ in range(SETTINGS.probes):
        peer.tick(peer.next_tick)
    assert not any(isinstance(effect, Send) and effect.address == "rumour" for effect in peer.tick(9.0))
    peer.receive(rumoured, KeepAlive(Call.ANSWER, ()), 9.5)
    assert rumoured.id in peer.leaves


def test_a_transport_that_cannot_connect_makes_a_loss_known_early() -> None:
    peer, friend = lone_peer(), Contact(RingId(600), "friend")
    peer.receive(friend, KeepAlive(Call.PERIODIC, ()), 1.0)
    assert not any(isinstance(effect, PeerLost) for effect in peer.unreachable("friend", 2.0))
    assert PeerLost(friend, left=False) in peer.unreachable("friend", 2.1)
    assert friend.id not in peer.leaves


def test_answers_are_not_answered() -> None:
    peer, other = lone_peer(), Contact(RingId(600), "other")
    for call, answered in ((Call.PROBE, True), (Call.ANSWER, False), (Call.GREETING, False), (Call.PERIODIC, False)):
        effects = peer.receive(other, KeepAlive(call, ()), 1.0)
        assert any(isinstance(effect, Send) for effect in effects) == answered, call


def test_messages_from_itself_and_from_strangers_do_no_harm() -> None:
    peer = lone_peer()
    assert peer.receive(peer.contact, KeepAlive(Call.PROBE, (peer.contact,)), 1.0) == []
    assert peer.receive(Contact(RingId(9), "stranger"), Leave(), 1.0) == []
    assert len(peer.leaves) == 0


def test_a_lookup_asked_for_too_early_waits_until_the_peer_has_joined() -> None:
    ring = grown(20, seed=13)
    late = ring.add(ring.new_contact())
    ring.lookup(late.contact.address, RingId(12345))
    assert ring.lookups == []
    ring.run(SETTINGS.lookup_within + 1)
    (found,) = ring.lookups
    assert found.root == found.expected


def test_nothing_is_kept_for_ever_about_peers_that_are_gone() -> None:
    ring = SimulatedRing(SETTINGS, seed=14)
    for number in range(120):
        ring.add(ring.new_contact())
        if number > 15:
            ring.leave(sorted(ring.peers)[number % 16])
        ring.run(5)
    ring.run(3 * SETTINGS.table_period)
    for peer in ring.peers.values():
        around = peer._around
        assert len(around._last_message) <= SETTINGS.leaf_size + 16
        assert len(around._member_lists) <= SETTINGS.leaf_size + 16
        assert len(around.probes) <= 1  # one lost peer at a time is asked whether it is back
        assert not peer._hops
        assert not peer._lookups


def test_a_join_asked_for_again_takes_whichever_answer_comes_first() -> None:
    first, late = lone_peer(), RingPeer(Contact(RingId(900), "late"), SETTINGS, Random(1))
    routes = [effect.message for _ in range(2) for effect in late.join("me", 1.0) if isinstance(effect, Send)]
    answers = [
        effect.message
        for effect in first.receive(late.contact, routes[0], 2.0)
        if isinstance(effect, Send) and isinstance(effect.message, RouteReply)
    ]
    (probe,) = (effect for effect in late.receive(first.contact, answers[0], 3.0) if isinstance(effect, Send))
    (answer,) = (effect for effect in first.receive(late.contact, probe.message, 3.0) if isinstance(effect, Send))
    assert Joined() in late.receive(first.contact, answer.message, 3.1)
    assert late.active
    assert late.id in first.leaves
    assert first.id in late.leaves
