"""Ring messages survive the way through JSON, and nothing else gets through."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.store.ring.encoding import MOST_CONTACTS, contact_from_plain, contact_to_plain, from_plain, to_plain
from holdfast.store.ring.ids import SIZE, RingId
from holdfast.store.ring.messages import (
    Call,
    Contact,
    KeepAlive,
    Leave,
    Message,
    Route,
    RouteAck,
    RouteReply,
    RowReply,
    RowRequest,
)

ids = st.integers(0, SIZE - 1).map(RingId)
contacts = st.builds(
    Contact,
    ids,
    st.just("127.0.0.1:7000"),
    st.none() | st.just("rack1"),
    st.floats(0, 100, allow_nan=False),
)
several = st.lists(contacts, max_size=4).map(tuple)
whole = st.integers(0, 2**40)
messages: st.SearchStrategy[Message] = st.one_of(
    st.builds(KeepAlive, st.sampled_from(Call), several),
    st.builds(Route, whole, ids, contacts, whole, st.booleans(), several),
    st.builds(RouteAck, whole, ids, whole),
    st.builds(RouteReply, whole, ids, contacts, several, whole, several),
    st.builds(RowRequest, whole),
    st.builds(RowReply, several),
    st.just(Leave()),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(messages)
@settings(max_examples=150, deadline=None)
def test_messages_come_back_as_they_were(message: Message) -> None:
    assert from_plain(json.loads(json.dumps(to_plain(message)))) == message


@given(messages, st.data())
@settings(max_examples=200, deadline=None)
def test_a_changed_field_gives_a_message_or_is_refused(message: Message, data: st.DataObject) -> None:
    plain = to_plain(message)
    field = data.draw(st.sampled_from(sorted(plain)))
    plain[field] = data.draw(anything)
    try:
        read = from_plain(plain)
    except BadInput:
        return
    assert from_plain(to_plain(read)) == read


@given(anything)
@settings(max_examples=150, deadline=None)
def test_noise_is_refused(noise: Any) -> None:
    with pytest.raises(BadInput):
        from_plain(noise)


def test_missing_extra_and_overlong_fields_are_refused() -> None:
    plain = to_plain(KeepAlive(Call.PROBE, ()))
    contact = contact_to_plain(Contact(RingId(1), "a:1"))
    for bad in (
        {**plain, "extra": 1},
        {"kind": "keep-alive", "call": "probe"},
        {**plain, "kind": "shout"},
        {**plain, "members": [contact] * (MOST_CONTACTS + 1)},
    ):
        with pytest.raises(BadInput):
            from_plain(bad)
    for field, value in (("id", "0x1"), ("address", ""), ("address", "a\nb"), ("weight", -1), ("weight", float("nan"))):
        with pytest.raises(BadInput):
            contact_from_plain({**contact, field: value})
