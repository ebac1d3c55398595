"""Which connections are dead without an end: those that owe an answer, while their sender takes another connection."""

from __future__ import annotations

import threading
from random import Random

import pytest

from holdfast.ids import NodeId
from holdfast.runtime.worker.quiet_links import ANSWER_SECONDS, CHANCE_SECONDS, QuietLinks
from holdfast.store.wire.handshake import open_key
from holdfast.store.wire.link import Link, LinkListener, dial

N = NodeId("n2")


def looked(links: QuietLinks, begin: int, end: int, received: int = 0, step: int = 1) -> None:
    for now in range(begin, end, step):
        links.look(float(now), {N: received})


def test_a_connection_that_owes_nothing_may_be_quiet() -> None:
    links = QuietLinks()
    links.connected(N)
    looked(links, 0, 1000)
    assert links.quiet() == []
    assert not links.is_dead(N)


def test_one_that_owes_an_answer_is_dialled_beside_and_then_given_up() -> None:
    links = QuietLinks()
    links.connected(N)
    links.look(0.0, {N: 0})
    links.asked(N)
    looked(links, 1, 10)
    assert links.quiet() == []
    links.asked(N)  # a request that is repeated owes no later answer
    looked(links, 10, 11)
    assert links.quiet() == [N]
    assert not links.is_dead(N), "no second connection is made: its process may be held up"
    looked(links, 11, 500)
    assert not links.is_dead(N)
    links.reached(N)
    assert links.quiet() == []
    assert not links.is_dead(N), "it has a last chance"
    looked(links, 500, 502)
    assert links.is_dead(N)
    links.connected(N, 7)
    assert links.lives(N)
    links.look(502.0, {N: 7})
    assert links.quiet() == []


@pytest.mark.parametrize("when", ["before it is dialled", "while it is dialled", "after it is dialled"])
def test_whatever_it_brings_it_lives(when: str) -> None:
    links = QuietLinks()
    links.connected(N)
    links.look(0.0, {N: 0})
    links.asked(N)
    if when == "before it is dialled":
        looked(links, 1, 9)
        looked(links, 9, 100, received=1)
        assert links.quiet() == []
        return
    looked(links, 1, 20)
    if when == "while it is dialled":
        looked(links, 20, 21, received=1)
        links.reached(N)
    else:
        links.reached(N)
        looked(links, 20, 21, received=1)
    assert links.lives(N)
    looked(links, 21, 100, received=1)
    assert not links.is_dead(N)
    links.asked(N)
    looked(links, 100, 120, received=1)
    assert links.quiet() == [N], "the next request counts anew"


def test_a_consumer_that_was_held_up_itself_has_not_waited() -> None:
    links = QuietLinks()
    links.connected(N)
    links.look(0.0, {N: 0})
    links.asked(N)
    looked(links, 60, 60 * 9, step=60)
    assert links.quiet() == [], "eight looks, a minute apart"
    links.look(0.0, {N: 0})  # a clock that is set back counts nothing
    assert links.quiet() == []


def test_a_second_connection_that_ends_is_dialled_again() -> None:
    links = QuietLinks()
    links.connected(N)
    links.look(0.0, {N: 0})
    links.asked(N)
    looked(links, 1, 20)
    links.reached(N)
    links.refused(N)
    assert links.quiet() == [N]
    links.disconnected(N)
    assert links.quiet() == []
    assert links.is_dead(N), "with the first gone there is nothing to wait for"
    assert not links.lives(N)


@pytest.mark.parametrize("seed", range(200))
def test_half_open_connections_come_back_and_live_ones_stay(seed: int) -> None:
    """A connection becomes half-open at some time; its sender and its consumer are held up now and then."""
    draw = Random(seed)
    dies_at = draw.choice([draw.uniform(0, 300), 1e9])
    answer_due: float | None = None
    links, now, received, second, switched_at, held_until = QuietLinks(), 0.0, 0, False, None, 0.0
    links.connected(N)
    while now < 600 and switched_at is None:
        now += draw.choice([0.02, 0.5, 1.0, 1.0, draw.uniform(1, 30) if draw.random() < 0.05 else 1.0])
        if now > held_until and draw.random() < 0.02:
            held_until = now + draw.uniform(0, 120)  # the sender's interpreter is held
        if answer_due is not None and now > max(answer_due, held_until) and now < dies_at:
            received, answer_due = received + 1, None
        links.look(now, {N: received})
        if second and links.lives(N):
            second = False
        elif second and links.is_dead(N):
            switched_at = now
        elif links.quiet() and now > held_until:
            second = True
            links.reached(N)
        if draw.random() < 0.2:
            links.asked(N)
            answer_due = now + 0.01 if answer_due is None and now < dies_at else answer_due
    if dies_at > 1e8:
        assert switched_at is None, "a live connection stays"
    else:
        assert switched_at is not None
        assert switched_at > dies_at


def test_a_link_counts_what_has_come() -> None:
    there: list[Link] = []

    def on_link(link: Link) -> tuple[object, object]:
        there.append(link)
        return (lambda link, header, body: link.send({"do": "requested"})), lambda *_: None

    listener = LinkListener("127.0.0.1", 0, open_key(), on_link)  # type: ignore[arg-type]
    came = threading.Event()
    link = dial(listener.address, open_key(), {}, lambda *_: came.set(), lambda *_: None)
    before = link.received_bytes
    link.send({"do": "requests"})
    assert came.wait(60)
    assert link.received_bytes > before
    link.close()
    listener.close()


def test_what_is_bounded() -> None:
    assert ANSWER_SECONDS + CHANCE_SECONDS < 60
