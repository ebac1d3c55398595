"""Ring messages as JSON values and back, strictly: what is not exactly a message is refused. Pure; runs anywhere.

Whatever carries the ring's messages between peers uses these two functions; ids are written as 32 hexadecimal digits.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from holdfast.errors import BadInput, one_line
from holdfast.store.ring.ids import DIGITS, RingId, written
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

MOST_CONTACTS = 2048
"""More than any leaf set and routing table together: a longer list is no honest message."""
LONGEST_TEXT = 300
_ID = re.compile(r"[0-9a-f]{32}")

_KINDS: dict[str, type[Message]] = {
    "keep-alive": KeepAlive,
    "route": Route,
    "route-ack": RouteAck,
    "route-reply": RouteReply,
    "row-request": RowRequest,
    "row-reply": RowReply,
    "leave": Leave,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def to_plain(message: Message) -> dict[str, Any]:
    """Return the message as JSON values."""
    plain: dict[str, Any] = {"kind": _NAMES[type(message)]}
    for one in fields(message):
        value = getattr(message, one.name)
        if one.name in ("key", "origin") and isinstance(value, int):
            value = written(value)
        elif isinstance(value, Contact):
            value = contact_to_plain(value)
        elif isinstance(value, tuple):
            value = [contact_to_plain(contact) for contact in value]
        elif isinstance(value, Call):
            value = value.value
        plain[one.name] = value
    return plain


def from_plain(plain: object) -> Message:
    """Return the message that JSON values describe; `BadInput` for anything else."""
    if not isinstance(plain, dict):
        raise BadInput("a ring message is an object", field="message")
    name = plain.get("kind")
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise BadInput(f"no ring message is called {one_line(repr(name), 60)}", field="kind")
    wanted = {one.name for one in fields(kind)}
    if set(plain) != wanted | {"kind"}:
        raise BadInput(f"a {name} has the fields {', '.join(sorted(wanted)) or 'none'}", field="message")
    readers = {**_READERS, **({"origin": _ring_id} if kind is RouteAck else {})}
    return kind(**{field: readers[field](field, plain[field]) for field in wanted})


def contact_to_plain(contact: Contact) -> dict[str, Any]:
    """Return a contact as JSON values."""
    return {
        "id": written(contact.id),
        "address": contact.address,
        "domain": contact.domain,
        "weight": contact.weight,
    }


def contact_from_plain(plain: object, field: str = "contact") -> Contact:
    """Return the contact that JSON values describe; `BadInput` for anything else."""
    if not isinstance(plain, dict) or set(plain) != {"id", "address", "domain", "weight"}:
        raise BadInput("a contact has the fields address, domain, id, weight", field=field)
    address, domain, weight = plain["address"], plain["domain"], plain["weight"]
    if not _is_text(address) or not (domain is None or _is_text(domain)):
        raise BadInput(f"addresses and domains have 1 to {LONGEST_TEXT} printable characters", field=field)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight < 0:
        raise BadInput("a weight is a number from 0 up", field=field)
    return Contact(_ring_id(f"{field}.id", plain["id"]), address, domain, float(weight))


def _is_text(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value.isprintable()


def _ring_id(field: str, value: object) -> RingId:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise BadInput(f"an id has {DIGITS} hexadecimal digits", field=field)
    return RingId(int(value, 16))


def _whole(field: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise BadInput("must be a whole number from 0 up", field=field)
    return value


def _truth(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadInput("must be true or false", field=field)
    return value


def _call(field: str, value: object) -> Call:
    if not isinstance(value, str) or value not in {call.value for call in Call}:
        raise BadInput(f"must be one of {', '.join(Call)}", field=field)
    return Call(value)


def _contacts(field: str, value: object) -> tuple[Contact, ...]:
    if not isinstance(value, list) or len(value) > MOST_CONTACTS:
        raise BadInput(f"must be a list of at most {MOST_CONTACTS} contacts", field=field)
    return tuple(contact_from_plain(one, field) for one in value)


def _contact(field: str, value: object) -> Contact:
    return contact_from_plain(value, field)


_READERS: dict[str, Callable[[str, object], Any]] = {
    "call": _call,
    "members": _contacts,
    "known": _contacts,
    "contacts": _contacts,
    "token": _whole,
    "hops": _whole,
    "row": _whole,
    "key": _ring_id,
    "origin": _contact,
    "root": _contact,
    "joining": _truth,
}
