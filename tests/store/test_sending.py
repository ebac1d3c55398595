"""Senders of fragments: one that ends has stored its fragment, or says why not."""

from __future__ import annotations

import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.erasure.encoding import encode
from holdfast.erasure.fragment import FragmentHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch
from holdfast.store.client import client, saving
from holdfast.store.client.client import ClientSettings, PeerStore
from holdfast.store.client.saving import save_fragments
from holdfast.store.client.scatter import Outcome
from holdfast.store.client.sending import FragmentSender
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import BadRequest, NotSaved, StaleEpoch, Unreachable
from holdfast.store.wire.handshake import open_key

STATE = b"state" * 100
HEADER = FragmentHeader.unpack(encode(STATE, StateId("a", "b"), BatchId(1), Epoch(1), Coding(1, 0))[0])
NO_HOST = f"{'a' * 70}.example:7400"
"""No label of a host's name is so long."""


class BrokenPool(ConnectionPool):
    def take(self, address: Address, *, fresh: bool = False) -> Any:
        raise MemoryError("no room for a frame")


def test_a_sender_that_ends_by_any_error_has_not_stored_its_fragment() -> None:
    sender = FragmentSender(BrokenPool(open_key()), HEADER, "127.0.0.1:7400", 5.0)
    sender.feed(None, 5.0)
    assert not sender.finished(time.monotonic() + 60)
    assert "MemoryError: no room for a frame" in str(sender.error)
    with pytest.raises(NotSaved, match="no room for a frame"):
        save_fragments(BrokenPool(open_key()), HEADER.state, STATE, ["127.0.0.1:7400"])


def test_a_peer_whose_name_is_none_is_out_of_reach() -> None:
    with pytest.raises(Unreachable, match="cannot connect"):
        ConnectionPool(open_key()).request(Address.parse(NO_HOST), "ping", {})
    with pytest.raises(NotSaved, match="cannot connect"):
        save_fragments(ConnectionPool(open_key()), HEADER.state, STATE, [NO_HOST])


class Refusing:
    """Stands for the senders of a save: some addresses refuse the request as one that nobody serves."""

    def __init__(self, *strangers: str) -> None:
        self.strangers = strangers

    def __call__(self, pool: object, header: FragmentHeader, address: str, seconds: float) -> Refusing:
        made = Refusing()
        made.header, made.address = header, address
        made.error = BadRequest("this agent stores no fragments") if address in self.strangers else None
        return made

    header: FragmentHeader
    address: str
    error: BadRequest | None
    sent_bytes, busy_seconds = 0, 0.0

    def feed(self, pieces: object, stall_seconds: float) -> None:
        pass

    def finished(self, deadline: float) -> bool:
        return self.error is None


def test_an_agent_that_stores_no_fragments_ends_no_save(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its refusal would be final: the agent would never try this snapshot again."""
    pool, header = ConnectionPool(open_key()), replace(HEADER.state, coding=Coding(1, 1))
    monkeypatch.setattr(saving, "FragmentSender", Refusing("b:1"))
    assert save_fragments(pool, header, STATE, ["a:1", "b:1"], ["c:1"]).stored == {0: "a:1", 1: "c:1"}
    with pytest.raises(NotSaved):
        save_fragments(pool, header, STATE, ["a:1", "b:1"])
    monkeypatch.setattr(saving, "FragmentSender", Refusing("a:1", "b:1"))
    with pytest.raises(BadRequest):
        save_fragments(pool, header, STATE, ["a:1", "b:1"])


class OneRefuses(PeerStore):
    """Three peers, of which one answers with an error."""

    def __init__(self, error: HoldfastError) -> None:
        super().__init__(ClientSettings(("a:1", "b:1", "c:1")))
        self.error, self.asked = error, []  # type: ignore[var-annotated]

    def _ask_all(self, peers: object, operation: str, header: dict[str, Any]) -> list[Outcome[str, Any]]:
        self.asked.append(header["names"])
        return [Outcome("a:1", object(), None), Outcome("b:1", None, self.error), Outcome("c:1", object(), None)]


def test_a_peer_that_refuses_to_forget_keeps_no_other_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MOST_FORGOTTEN", 2)
    peers = [SimpleNamespace(address=one) for one in ("a:1", "b:1", "c:1")]
    monkeypatch.setattr(client, "everyone", lambda pool, contacts: peers)
    store = OneRefuses(BadRequest("this agent stores no fragments"))
    assert store.forget("run", ["x", "y", "z"], Epoch(1)) == ["b:1"]
    assert store.asked == [["x", "y"], ["z"]]
    over = OneRefuses(StaleEpoch("epoch 1 is over"))
    with pytest.raises(StaleEpoch):
        over.forget("run", ["x", "y", "z"], Epoch(1))
    assert over.asked == [["x", "y"]], "an epoch that is over deletes nothing more"
