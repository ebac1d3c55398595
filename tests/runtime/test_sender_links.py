"""Connections to the nodes of senders: who is dialled when, and what becomes of a second connection."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from holdfast.ids import NodeId
from holdfast.runtime.worker.quiet_links import ANSWER_SECONDS, CHANCE_SECONDS
from holdfast.runtime.worker.sender_links import REDIAL_SECONDS, SenderLinks
from holdfast.runtime.worker.subscriptions import Subscriptions

N, M = NodeId("n"), NodeId("m")


@dataclass(eq=False)
class Link:
    """A connection that does what it is told."""

    ended: bool = False
    received_bytes: int = 0
    closed: int = field(default=0)

    def close(self) -> None:
        self.closed += 1
        self.ended = True


def links() -> tuple[SenderLinks[Link, str], Subscriptions, list[Link]]:
    subscriptions, replaced = Subscriptions(), list[Link]()
    found = SenderLinks[Link, str](subscriptions, lambda node, link: replaced.append(link))
    found.met({N: "a:1", M: "b:1"})
    return found, subscriptions, replaced


def until_quiet(found: SenderLinks[Link, str], now: float) -> float:
    """Ask, and look once a second until the node is to be dialled beside."""
    found.asked(N)
    while not found.due(now, [N]):
        now += 1.0
        assert now < 100
    return now


def test_a_node_is_dialled_once_and_again_where_it_did_not_answer() -> None:
    found, subscriptions, _ = links()
    assert found.due(0.0, [N, M, NodeId("unknown")]) == [(N, "a:1"), (M, "b:1")]
    assert found.due(100.0, [N, M]) == [], "that is under way"
    found.not_made(N, 100.0)
    assert found.due(100.0 + REDIAL_SECONDS / 2, [N]) == []
    assert found.due(100.0 + REDIAL_SECONDS, [N]) == [(N, "a:1")]
    found.made(N, one := Link(), 1, "a:1", 101.0)
    assert (found.link(N), found.link(M)) == (one, None)
    assert subscriptions.is_connected(N)
    found.lost(N, 0)
    assert subscriptions.is_connected(N), "that was one before"
    found.lost(N, 1)
    assert not subscriptions.is_connected(N)
    assert found.due(101.0, [N]) == [(N, "a:1")]


def test_a_connection_to_a_process_that_has_gone_is_closed_whenever_that_is_known() -> None:
    found, subscriptions, _ = links()
    found.due(0.0, [N, M])
    found.made(N, one := Link(), 1, "a:1", 0.0)
    assert found.met({N: "a:2", M: "b:2"}) == [N]
    assert one.closed == 1
    found.made(M, late := Link(), 2, "b:1", 0.0)
    assert late.closed == 1
    assert not subscriptions.is_connected(M)
    assert found.due(0.0, [M]) == [(M, "b:2")]
    found.made(M, Link(ended=True), 3, "b:2", 5.0)
    assert found.due(math.inf, [M]) == [(M, "b:2")], "it had ended before it was known"


def test_a_dead_connection_is_replaced_and_one_that_works_stays() -> None:
    for works in (True, False):
        found, subscriptions, replaced = links()
        found.due(0.0, [N])
        found.made(N, one := Link(), 1, "a:1", 0.0)
        now = until_quiet(found, 0.0)
        assert now >= ANSWER_SECONDS
        found.made(N, two := Link(), 2, "a:1", now)
        assert (found.link(N), found.beside[N].link) == (one, two)
        one.received_bytes += works
        for _ in range(math.ceil(CHANCE_SECONDS) + 1):
            now += 1.0
            assert found.due(now, [N]) == []
        stays, goes = (one, two) if works else (two, one)
        assert found.link(N) is stays
        assert (stays.closed, goes.closed, found.beside) == (0, 1, {})
        assert replaced == ([] if works else [one])
        found.lost(N, 2 if works else 1)
        assert subscriptions.is_connected(N)


def test_a_second_connection_that_ends_is_followed_by_another() -> None:
    found, _, replaced = links()
    found.due(0.0, [N])
    found.made(N, Link(), 1, "a:1", 0.0)
    now = until_quiet(found, 0.0)
    found.made(N, two := Link(), 2, "a:1", now)
    two.ended = True
    assert found.due(now + 1.0, [N]) == []
    assert found.due(now + 2.0, [N]) == [(N, "a:1")]
    found.made(N, three := Link(), 3, "a:1", now + 2.0)
    for step in range(4):
        found.due(now + 3.0 + step, [N])
    assert found.link(N) is three
    assert len(replaced) == 1


def test_all_are_closed() -> None:
    found, _, _ = links()
    found.due(0.0, [N])
    found.made(N, one := Link(), 1, "a:1", 0.0)
    now = until_quiet(found, 0.0)
    found.made(N, two := Link(), 2, "a:1", now)
    found.close()
    assert (one.closed, two.closed) == (1, 1)
