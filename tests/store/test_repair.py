"""Repair on its own: what one peer rebuilds, drops and keeps, with neighbours that are functions; no sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.erasure.encoding import encode
from holdfast.erasure.fragment import FragmentHeader, StateHeader, StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch
from holdfast.store.peer import repair
from holdfast.store.peer.fragment_files import FragmentFiles
from holdfast.store.peer.repair import Repairer, RepairSettings
from holdfast.store.peer.survey import Encoding
from holdfast.store.ring.ids import peer_id
from holdfast.store.ring.messages import Contact
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import NoRoom
from holdfast.store.wire.handshake import open_key
from holdfast.store.wire.messages import Bytes, Frame, Kind

STATE = StateId("app", "O3[0]")
UNLIMITED = repair._RateLimit(1e12, lambda: False)


def contact(name: str, address: str | None = None, domain: str | None = None) -> Contact:
    return Contact(peer_id(name), f"{address or name}:7400", domain)


def fragments(coding: Coding, version: int = 1, follows: int | None = None) -> list[bytes]:
    made = encode(
        b"state" * 100,
        STATE,
        BatchId(version),
        Epoch(1),
        coding,
        follows=None if follows is None else BatchId(follows),
    )
    return [bytes(one) for one in made]


class Neighbours(ConnectionPool):
    """Peers that hold fragments; requests change what they hold."""

    def __init__(self, held: Mapping[str, Sequence[bytes]]) -> None:
        super().__init__(open_key())
        self.held = {f"{name}:7400": list(some) for name, some in held.items()}
        self.dropped: list[tuple[str, int]] = []

    def request(self, address: Address, operation: str, header: Mapping[str, Any], body: Sequence[Bytes] = ()) -> Frame:
        held = self.held[str(address)]
        if operation == "inventory":
            return Frame(Kind.ANSWER, {}, b"".join(FragmentHeader.unpack(one).pack() for one in held))
        if operation == "drop":
            gone = FragmentHeader.unpack(body[0])
            self.dropped.append((str(address).partition(":")[0], gone.index))
            held[:] = [one for one in held if FragmentHeader.unpack(one) != gone]
            return Frame(Kind.ANSWER, {}, b"")
        first, count, wanted = header["first"], header["count"], FragmentHeader.unpack(body[0])
        start, end = wanted.state.block_span(first)[0], wanted.state.block_span(first + count - 1)[1]
        return Frame(Kind.ANSWER, {}, next(one for one in held if FragmentHeader.unpack(one) == wanted)[start:end])

    def encodings(self) -> list[Encoding]:
        """What the neighbours hold now, as a repairer sees it."""
        found: dict[StateHeader, Encoding] = {}
        for address, held in self.held.items():
            for header in map(FragmentHeader.unpack, held):
                encoding = found.setdefault(header.state, Encoding(header.state))
                encoding.holders.setdefault(header.index, []).append(address)
        return list(found.values())


def repairer(folder: Path, pool: ConnectionPool, members: Sequence[Contact], **settings: float) -> Repairer:
    return Repairer(
        FragmentFiles(folder),
        pool,
        members[0],
        lambda: list(members),
        lambda key: True,
        RepairSettings(**settings),
        1e12,
    )


@pytest.mark.parametrize("names", ["abc", "bca", "cab", "acb", "bac", "cba"])
def test_a_peer_that_returns_keeps_its_fragment_where_another_holds_two(names: str, tmp_path: Path) -> None:
    """c was lost, b took fragment 2 over, c is back: without its copy, the loss of b alone would lose the state."""
    made = fragments(Coding(2, 1))
    a, b, c = list(names)
    pool = Neighbours({a: [made[0]], b: [made[1], made[2]], c: [made[2]]})
    repairer(tmp_path, pool, [contact(name) for name in "abc"])._tidy(pool.encodings(), UNLIMITED)
    assert pool.dropped == [(b, 2)]


@pytest.mark.parametrize("full", ["c", "nobody"])
def test_a_peer_that_holds_two_fragments_gives_one_to_a_peer_that_holds_none(
    full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """c lost its disk, a took its fragment over, c is back: the loss of a alone would lose the state for good."""
    made = fragments(Coding(2, 1))
    pool, senders = Neighbours({"a": [made[0], made[1]], "b": [made[1], made[2]], "c": []}), Senders(full)
    monkeypatch.setattr(repair, "FragmentSender", senders)
    members = [contact("a", domain="r1"), contact("b", domain="r1"), contact("c", domain="r2")]
    one = repairer(tmp_path, pool, members)
    one._tidy(pool.encodings(), UNLIMITED)
    assert [sender.address for sender in senders.made] == ["c:7400"]
    assert pool.dropped == [], "all copies stay until those that are spread are there"
    if full == "c":
        one._tidy(pool.encodings(), UNLIMITED)
        assert len(senders.made) == 1, "one that refused is asked again at the next regular round"
        return
    pool.held["c:7400"] = [made[senders.made[0].header.index]]
    one._tidy(pool.encodings(), UNLIMITED)
    assert sorted(len(held) for held in pool.held.values()) == [1, 1, 1]
    one._tidy(pool.encodings(), UNLIMITED)
    assert len(senders.made) == 1, "repair comes to rest"


def test_a_copy_is_not_given_up_for_one_at_a_peer_that_was_lost_meanwhile(tmp_path: Path) -> None:
    made = fragments(Coding(1, 1))
    for gone in "bc":
        pool = Neighbours({"a": [made[0]], "b": [made[1]], "c": [made[1]]})
        members = [contact(name) for name in "abc" if name != gone]
        repairer(tmp_path / gone, pool, members)._tidy(pool.encodings(), UNLIMITED)
        assert pool.dropped in ([], [(gone, 1)])


def test_a_peer_that_is_known_by_two_ids_keeps_its_fragments(tmp_path: Path) -> None:
    made = fragments(Coding(1, 1))
    pool = Neighbours({"a": [made[0]], "b": [made[1]]})
    repairer(tmp_path, pool, [contact("a"), contact("b"), contact("b, before", "b")])._round(scrub=False)
    assert pool.dropped == []


def test_what_changes_are_based_on_is_no_rest_of_a_broken_save(tmp_path: Path) -> None:
    base, change = fragments(Coding(2, 1), 5), fragments(Coding(2, 1), 6, follows=5)
    pool = Neighbours({"a": [base[0], change[0]], "b": [change[1]], "c": [change[2]]})
    one = repairer(tmp_path, pool, [contact(name) for name in "abc"], garbage_after=0.0)
    for _ in range(2):
        one._tidy(pool.encodings(), UNLIMITED)
    assert pool.dropped == [], "the peers with fragments 1 and 2 of the base may come back"
    pool.held["b:7400"] += [base[1]]
    one._tidy(pool.encodings(), UNLIMITED)
    assert pool.dropped == []


class Senders:
    """Stands for the senders of rebuilt fragments: one address refuses all."""

    def __init__(self, full: str) -> None:
        self.full, self.made = f"{full}:7400", list[Sender]()

    def __call__(self, pool: object, header: FragmentHeader, address: str, seconds: float, **more: bool) -> Sender:
        self.made.append(Sender(header, address, NoRoom("the disk is full") if address == self.full else None))
        return self.made[-1]


class Sender:
    def __init__(self, header: FragmentHeader, address: str, error: HoldfastError | None) -> None:
        self.header, self.address, self.error, self.over = header, address, error, False

    def feed(self, pieces: list[Bytes] | None, stall_seconds: float) -> None:
        pass

    def give_up(self, error: HoldfastError) -> None:
        self.over = True

    def finished(self, deadline: float) -> bool:
        self.over = True
        return self.error is None


@pytest.mark.parametrize("full", "bcd")
def test_a_rebuilt_fragment_that_one_peer_refuses_goes_to_another(
    full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fragments(Coding(1, 2))
    pool, senders = Neighbours({"a": [made[0]], "b": [], "c": [], "d": []}), Senders(full)
    monkeypatch.setattr(repair, "FragmentSender", senders)
    one = repairer(tmp_path, pool, [contact(name) for name in "abcd"])
    for _ in range(2):
        one._round(scrub=False)
    stored = {sender.header.index for sender in senders.made if sender.error is None}
    assert stored == {1, 2}, "the second round knows who refused"


@pytest.mark.parametrize("full", "bcd")
def test_no_sender_goes_on_when_another_was_refused(full: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would hold its thread, its connection, and the room that its peer has reserved, for ever."""
    made = fragments(Coding(1, 2))
    pool, senders = Neighbours({"a": [made[0]], "b": [], "c": [], "d": []}), Senders(full)
    monkeypatch.setattr(repair, "FragmentSender", senders)
    repairer(tmp_path, pool, [contact(name) for name in "abcd"])._round(scrub=False)
    assert len(senders.made) == 2
    assert all(sender.over for sender in senders.made)
