"""Asking peers what there is, with peers that refuse, are silent, or are of another cluster; no sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.erasure.encoding import encode
from holdfast.erasure.fragment import FragmentHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch
from holdfast.store.peer.survey import ask_any, survey_state
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import BadRequest, NotTrusted, Unreachable
from holdfast.store.wire.handshake import open_key
from holdfast.store.wire.messages import Bytes, Frame, Kind

STATE = StateId("app", "O3[0]")
HEADERS = [FragmentHeader.unpack(one) for one in encode(b"x" * 99, STATE, BatchId(1), Epoch(1), Coding(2, 1))]


class Peers(ConnectionPool):
    def __init__(self, answers: Mapping[str, bytes | HoldfastError]) -> None:
        super().__init__(open_key())
        self.answers = answers

    def request(self, address: Address, operation: str, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> Frame:
        answer = self.answers[address.host]
        if isinstance(answer, HoldfastError):
            raise answer
        return Frame(Kind.ANSWER, {}, answer)


@pytest.mark.parametrize("stranger", [NotTrusted("another secret"), BadRequest("this agent stores no fragments")])
def test_a_stranger_at_the_address_of_a_lost_peer_keeps_nobody_from_the_others(stranger: HoldfastError) -> None:
    pool = Peers({"a": stranger, "b": HEADERS[0].pack(), "c": HEADERS[1].pack()})
    survey = survey_state(pool, STATE, ["a:1", "b:1", "c:1"])
    assert [header.coding for header in survey.whole()] == [Coding(2, 1)]
    assert set(survey.silent) == {"a:1"}
    assert ask_any(pool, ["a:1", "b:1"], "members", {}).body == HEADERS[0].pack()


@pytest.mark.parametrize("refusal", [NotTrusted("another secret"), BadRequest("no such name")])
def test_where_nobody_answers_a_refusal_is_the_reason(refusal: HoldfastError) -> None:
    pool = Peers({"a": refusal, "b": Unreachable("gone")})
    for contacts in (["a:1", "b:1"], ["b:1", "a:1"]):
        with pytest.raises(type(refusal)):
            survey_state(pool, STATE, contacts)
        with pytest.raises(type(refusal)):
            ask_any(pool, contacts, "members", {})
