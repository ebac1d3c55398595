"""The status of the whole ring: peers, states, remaining redundancy, repair. Runs wherever a client does."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from holdfast.erasure.fragment import FragmentHeader, StateId
from holdfast.store.client.client import PeerStore
from holdfast.store.client.scatter import scatter
from holdfast.store.client.states import chain_to
from holdfast.store.peer.survey import Encoding, gathered, read_headers
from holdfast.store.wire.address import Address
from holdfast.store.wire.failures import StateMissing


@dataclass(frozen=True, slots=True)
class StateOverview:
    """One state: its newest version that can be read, and how safe it is."""

    state: StateId
    version: int
    epoch: int
    bytes: int
    data: int
    parity: int
    present: int
    """Different fragments of the weakest link of its chain."""
    redundancy: int
    """How many more fragments may be lost; below zero the newest version is lost."""
    versions: int


@dataclass(frozen=True, slots=True)
class RingOverview:
    """The status of the ring."""

    peers: list[dict[str, Any]]
    silent: list[str]
    states: list[StateOverview]

    @property
    def repair(self) -> dict[str, Any]:
        """Repair progress, added up over peers."""
        total: dict[str, Any] = defaultdict(int)
        for peer in self.peers:
            for name, value in (peer.get("repair") or {}).items():
                total[name] += int(value)
        return {**total, "running": total.get("running", 0)}


def overview(store: PeerStore) -> RingOverview:
    """Ask every peer."""
    members = store.members()
    addresses = [one.address for one in members]

    def ask(address: str) -> tuple[dict[str, Any], list[FragmentHeader]]:
        where = Address.parse(address)
        status = store.pool.request(where, "status", {}).header
        headers: list[FragmentHeader] = []
        while True:
            bounds = {"first": "0", "last": "0", "skip": len(headers)}
            answer = store.pool.request(where, "inventory", bounds)
            headers += read_headers(answer.body)
            if not answer.header.get("more"):
                return status, headers

    outcomes = scatter(addresses, ask, seconds=10.0)
    answered = {one.asked for one in outcomes if one.result is not None}
    held = gathered((one.asked, one.result[1]) for one in outcomes if one.result is not None)
    by_state: dict[StateId, list[Encoding]] = defaultdict(list)
    for encoding in held.values():
        by_state[encoding.header.state].append(encoding)
    return RingOverview(
        peers=sorted(
            (one.result[0] for one in outcomes if one.result is not None), key=lambda peer: str(peer["address"])
        ),
        silent=sorted(set(addresses) - answered),
        states=[_state(state, encodings) for state, encodings in sorted(by_state.items())],
    )


def _state(state: StateId, encodings: list[Encoding]) -> StateOverview:
    known = {one.header: one for one in encodings}
    whole = [one.header for one in encodings if one.whole]
    try:
        chain = chain_to(whole, state, None)
    except StateMissing:
        newest = max(encodings, key=lambda one: (one.header.epoch, one.header.version))
        chain = [newest.header]
    weakest = min((known[header] for header in chain), key=lambda one: one.redundancy)
    head = chain[-1]
    return StateOverview(
        state=state,
        version=head.version,
        epoch=head.epoch,
        bytes=sum(one.state_bytes for one in chain),
        data=weakest.header.coding.data,
        parity=weakest.header.coding.parity,
        present=len(weakest.holders),
        redundancy=weakest.redundancy,
        versions=len({one.version for one in whole}),
    )


def repair_now(store: PeerStore, *, scrub: bool, seconds: float) -> bool:
    """Start a round of repair at every peer and wait for all to end; False if some did not in time."""
    addresses = [one.address for one in store.members()]
    started = scatter(
        addresses,
        lambda address: int(
            store.pool.request(Address.parse(address), "repair", {"scrub": scrub}).header["after_round"]
        ),
        seconds=10.0,
    )
    waiting = {one.asked: one.result for one in started if one.result is not None}
    deadline = time.monotonic() + seconds
    while waiting and time.monotonic() < deadline:
        for address, before in list(waiting.items()):
            try:
                repair = store.pool.request(Address.parse(address), "status", {}).header.get("repair") or {}
            except Exception as error:
                if not hasattr(error, "code"):
                    raise
                del waiting[address]  # It is gone: its neighbours take over in a later round.
                continue
            if int(repair.get("rounds", 0)) > before:
                del waiting[address]
        time.sleep(0.05)
    return not waiting
