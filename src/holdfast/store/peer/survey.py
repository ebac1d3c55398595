"""What is there: which peers answer, and which fragments of which encodings they hold. Runs wherever a client does.

Fragments describe themselves, so there is no directory that could be lost or disagree with them: a state is where its
fragments are. A reader asks the root of the state's key and the root's leaf set, all at once.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.erasure.faults import FragmentFault
from holdfast.erasure.fragment import FragmentHeader, StateHeader, StateId
from holdfast.errors import BadInput, HoldfastError
from holdfast.store.client.scatter import Outcome, scatter
from holdfast.store.ring.encoding import contact_from_plain
from holdfast.store.ring.ids import closeness, state_key
from holdfast.store.ring.messages import Contact
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import BadRequest, Corrupt, NotTrusted, Unreachable
from holdfast.store.wire.messages import Bytes, Frame

NEWEST_WAIT_SECONDS = 0.3
"""How long to wait for the last peers when what the others hold is enough."""
FIND_SECONDS = 3.0


@dataclass(slots=True)
class Encoding:
    """One encoding of a version: the peers that report each fragment."""

    header: StateHeader
    holders: dict[int, list[str]] = field(default_factory=dict)

    @property
    def whole(self) -> bool:
        """Enough different fragments are there."""
        return len(self.holders) >= self.header.coding.data

    @property
    def redundancy(self) -> int:
        """How many more fragments may be lost; below zero it is lost."""
        return len(self.holders) - self.header.coding.data

    @property
    def missing(self) -> list[int]:
        """Fragments that no peer has."""
        return sorted(set(range(self.header.coding.total)) - set(self.holders))


@dataclass(frozen=True, slots=True)
class Survey:
    """Who was asked, who answered, and what they hold."""

    asked: tuple[str, ...]
    silent: dict[str, str]
    """Peers without an answer, and why."""
    encodings: dict[StateHeader, Encoding]

    def whole(self) -> list[StateHeader]:
        """Return the encodings that can be read."""
        return [header for header, encoding in self.encodings.items() if encoding.whole]

    def shortfall(self) -> str:
        """Return what is missing of the newest encoding, and who does not answer."""
        parts = []
        if self.encodings:
            newest = max(self.encodings.values(), key=lambda one: (one.header.epoch, one.header.version))
            have, need = len(newest.holders), newest.header.coding.data
            missing = _listed(newest.missing)
            parts.append(f"{newest.header}: {have} of the {need} fragments it needs are there, missing {missing}")
        if self.silent:
            parts.append(f"peers that do not answer: {_listed(sorted(self.silent))}")
        return "; ".join(parts)


def survey_state(pool: ConnectionPool, state: StateId, peers: Sequence[str]) -> Survey:
    """Ask peers what they hold of a state; does not wait for frozen peers when the newest encoding is whole."""
    began = time.monotonic()

    def enough(outcomes: list[Outcome[str, list[FragmentHeader]]]) -> bool:
        if time.monotonic() - began < NEWEST_WAIT_SECONDS:
            return False
        found = gathered((one.asked, one.result) for one in outcomes)
        if not found:
            return False
        newest = max(found.values(), key=lambda one: (one.header.epoch, one.header.version))
        # A newer acknowledged version has n holders; fewer than m of them can be among the peers without a response.
        unanswered = len(peers) - len(outcomes)
        return newest.whole and unanswered < newest.header.coding.data

    def ask(address: str) -> list[FragmentHeader]:
        answer = pool.request(Address.parse(address), "find", {"namespace": state.namespace, "name": state.name})
        return list(read_headers(answer.body))

    outcomes = scatter(peers, ask, enough=enough, seconds=FIND_SECONDS)
    answered = {one.asked for one in outcomes if one.error is None}
    for one in outcomes:
        # One that refuses among others is another cluster's, at the address of a peer that is gone: it holds nothing.
        if isinstance(one.error, NotTrusted | BadRequest) and not answered:
            raise one.error
    errors = {one.asked: str(one.error) for one in outcomes if one.error is not None}
    silent = {peer: errors.get(peer, "no answer in time") for peer in peers if peer not in answered}
    return Survey(tuple(peers), silent, gathered((one.asked, one.result) for one in outcomes))


def gathered(held: Iterable[tuple[str, Iterable[FragmentHeader] | None]]) -> dict[StateHeader, Encoding]:
    """Group the fragments that peers report by encoding; None stands for a peer that did not respond."""
    encodings: dict[StateHeader, Encoding] = {}
    for address, headers in held:
        for header in headers or ():
            encoding = encodings.setdefault(header.state, Encoding(header.state))
            encoding.holders.setdefault(header.index, []).append(address)
    return encodings


def read_headers(body: Bytes) -> Iterator[FragmentHeader]:
    """Read fragment headers written one behind the other."""
    view = memoryview(body)
    while view.nbytes:
        try:
            header = FragmentHeader.unpack(view)
        except FragmentFault as fault:
            raise Corrupt(f"a peer's list of fragments cannot be parsed: {fault}") from None
        yield header
        view = view[header.state.header_length :]


def locate(pool: ConnectionPool, state: StateId, contacts: Sequence[str]) -> list[Contact]:
    """Return the root of a state's key and its neighbours, the closest first; asks contacts one after the other."""
    answer = ask_any(pool, contacts, "locate", {"namespace": state.namespace, "name": state.name})
    found = [_contact(answer.header.get("root")), *_contacts(answer)]
    key = state_key(state)
    return sorted({one.id: one for one in found}.values(), key=lambda one: closeness(key, one.id))


def everyone(pool: ConnectionPool, contacts: Sequence[str], seconds: float = FIND_SECONDS) -> list[Contact]:
    """Return all peers of the ring: leaf set by leaf set until no new peer is named."""
    known = {one.id: one for one in _contacts(ask_any(pool, contacts, "members", {}))}
    asked: set[str] = set()
    while True:
        fresh = [one.address for one in known.values() if one.address not in asked]
        if not fresh:
            return sorted(known.values(), key=lambda one: one.id)
        asked |= set(fresh)
        outcomes = scatter(
            fresh, lambda peer: _contacts(pool.request(Address.parse(peer), "members", {})), seconds=seconds
        )
        known |= {one.id: one for outcome in outcomes for one in outcome.result or () if one.id not in known}


def ask_any(pool: ConnectionPool, contacts: Sequence[str], operation: str, header: dict[str, object]) -> Frame:
    """Ask peers one after the other until one answers; where none does, a refusal says more than silence."""
    last: HoldfastError | None = None
    for contact in contacts:
        try:
            return pool.request(Address.parse(contact), operation, header)
        except HoldfastError as error:
            last = last if isinstance(last, NotTrusted | BadInput) else error
    raise last or Unreachable("no peer address is known", remedy="give the address of a running peer")


def _contacts(answer: Frame) -> list[Contact]:
    listed = answer.header.get("members")
    return [_contact(one) for one in listed] if isinstance(listed, list) else []


def _contact(plain: object) -> Contact:
    try:
        return contact_from_plain(plain)
    except BadInput as bad:
        raise Corrupt(f"a peer's response cannot be parsed: {bad}") from None


def _listed(items: Sequence[object], most: int = 40) -> str:
    shown = ", ".join(map(str, items[:most]))
    return shown + (f" and {len(items) - most} more" if len(items) > most else "")
