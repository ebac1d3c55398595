"""Rebuilds the fragments of lost peers, removes superfluous ones (A-FP4S, sec. 3.2 and 3.3). Runs in a peer's thread.

Every peer maintains the states whose keys are closest to it: it lists the fragments of its leaf set, and

* rebuilds missing fragments from any m others, stripe by stripe, and puts them on peers chosen by `placement`,
* removes second copies of a fragment, which appear when a lost peer comes back,
* copies fragments to other peers where one peer, or one domain, holds more of them than after a new save,
* removes what is left of saves that were never completed, once a newer whole version is there and time has passed.

Fragments of this peer that lie too far from their key (the ring has grown) are handed over to where readers look.
A round runs some time after a peer was lost or found (it may return soon), regularly, and on request. Its bandwidth is
limited. Everything a round does is safe to do twice and to stop anywhere: a peer killed in the middle
leaves fragments whole or absent, like any other save.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from holdfast.erasure.fragment import FragmentHeader, StateHeader, StateId
from holdfast.errors import HoldfastError
from holdfast.store.client.retrieving import Retrieval, read_blocks
from holdfast.store.client.scatter import scatter
from holdfast.store.client.sending import FragmentSender
from holdfast.store.peer.fragment_files import FragmentFiles
from holdfast.store.peer.survey import Encoding, gathered, locate, read_headers, survey_state
from holdfast.store.ring.ids import SIZE, RingId, clockwise, state_key
from holdfast.store.ring.messages import Contact
from holdfast.store.ring.placement import choose_holders, rank, spread_copies
from holdfast.store.wire.address import Address
from holdfast.store.wire.bandwidth import Bandwidth
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import Unreachable
from holdfast.store.wire.messages import Bytes

log = logging.getLogger("holdfast.store.peer.repair")
MOST_INCOMPLETE = 3
"""Rounds postponed in a row because a neighbour does not list its fragments."""


@dataclass(frozen=True, slots=True)
class RepairSettings:
    """When repair runs; seconds."""

    after: float = 10.0
    """Seconds from a loss to the repair round: a peer that restarts within them costs nothing."""
    every: float = 300.0
    garbage_after: float = 600.0
    """How long an incomplete save is left alone: its writer may still be at work."""


@dataclass(slots=True)
class RepairProgress:
    """What repair has done since the peer started, and what it does now."""

    rounds: int = 0
    running: bool = False
    states: int = 0
    """States this peer looks after, at its last round."""
    to_rebuild: int = 0
    """Fragments the current or last round found missing."""
    rebuilt: int = 0
    bytes: int = 0
    failed: int = 0
    """States that the last round could not repair."""
    removed: int = 0
    spread: int = 0
    """Fragments copied to a peer that holds fewer."""
    handed_over: int = 0
    scrubbed: int = 0


class Repairer:
    """This peer's share in keeping every state at full redundancy."""

    def __init__(
        self,
        files: FragmentFiles,
        pool: ConnectionPool,
        me: Contact,
        members: Callable[[], list[Contact]],
        covers: Callable[[RingId], bool],
        settings: RepairSettings,
        bandwidth: float,
    ) -> None:
        """Maintain keys near `me`; `members` and `covers` return the current state of the ring."""
        self.progress = RepairProgress()
        self._files, self._pool, self._me, self._members, self._covers = files, pool, me, members, covers
        self._settings = settings
        self._rate = bandwidth
        self._wake = threading.Condition()
        self._due = time.monotonic() + settings.every
        self._scrub = False
        self._stopping = False
        self._incomplete = 0
        self._first_seen: dict[StateHeader, float] = {}
        self._refused: dict[str, float] = {}
        """Peers that did not take a rebuilt fragment, and when: until the next regular round it goes to others."""
        self._thread = threading.Thread(target=self._run, name="holdfast-repair", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End at the next safe place."""
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread.is_alive():
            self._thread.join(5.0)

    def soon(self) -> None:
        """Run a round when the settling time has passed."""
        self._schedule(time.monotonic() + self._settings.after)

    def now(self, *, scrub: bool) -> int:
        """Run a round at once; return how many had ended before it."""
        with self._wake:
            self._scrub = self._scrub or scrub
            self._due = 0.0
            self._wake.notify_all()
            return self.progress.rounds + (1 if self.progress.running else 0)

    def report(self) -> dict[str, Any]:
        """Return the progress as plain values."""
        return asdict(self.progress)

    def _schedule(self, when: float) -> None:
        with self._wake:
            self._due = min(self._due, when)
            self._wake.notify_all()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._stopping and time.monotonic() < self._due:
                    self._wake.wait(self._due - time.monotonic())
                if self._stopping:
                    return
                self._due = time.monotonic() + self._settings.every
                scrub, self._scrub = self._scrub, False
                self.progress.running = True
            try:
                self._round(scrub)
            except HoldfastError as error:
                log.warning("a repair round ended early: %s", error)
                self.soon()
            except Exception:
                log.exception("a repair round failed")
                self.soon()
            with self._wake:
                self.progress.running = False
                self.progress.rounds += 1

    def _round(self, scrub: bool) -> None:
        limit = _RateLimit(self._rate, lambda: self._stopping)
        if scrub:
            for held in list(self._files.all_held()):
                self._files.verify(held)
                self.progress.scrubbed += 1
                limit.spent(held.state.fragment_length)
        self._hand_over(limit)
        members = self._members()
        long_ago = time.monotonic() - self._settings.every
        self._refused = {peer: when for peer, when in self._refused.items() if when > long_ago}
        by_state: dict[StateId, list[Encoding]] = defaultdict(list)
        for encoding in self._inventory(members).values():
            by_state[encoding.header.state].append(encoding)
        self.progress.states = len(by_state)
        damaged = [one for encodings in by_state.values() for one in encodings if one.whole and one.missing]
        self.progress.to_rebuild = sum(len(one.missing) for one in damaged)
        self.progress.failed = 0
        # The states nearest to being lost first.
        for encoding in sorted(damaged, key=lambda one: one.redundancy):
            if self._stopping:
                return
            try:
                self._rebuild(encoding, members, limit)
            except HoldfastError as error:
                self.progress.failed += 1
                log.warning("fragments were not rebuilt: %s", error)
        for encodings in by_state.values():
            if self._stopping:
                return
            self._tidy(encodings, limit)
        if self.progress.failed:
            self.soon()

    def _inventory(self, members: list[Contact]) -> dict[StateHeader, Encoding]:
        """Ask the leaf set for all fragments whose keys are closer to this peer than to any other."""
        first, last = arc(self._me.id, [one.id for one in members])
        bounds = {"first": f"{first:032x}", "last": f"{last:032x}"}

        def ask(address: str) -> list[FragmentHeader]:
            headers: list[FragmentHeader] = []
            while True:
                answer = self._pool.request(Address.parse(address), "inventory", {**bounds, "skip": len(headers)})
                headers += read_headers(answer.body)
                if not answer.header.get("more"):
                    return headers

        # A peer that began anew at its address is known by two ids for a while. Asked twice, it would seem to be two
        # peers that hold the same fragments, and the copies of one of them would go.
        addresses = list(dict.fromkeys(one.address for one in members))
        outcomes = scatter(addresses, ask, seconds=30.0)
        silent = len(addresses) - sum(one.error is None for one in outcomes)
        if silent and self._incomplete < MOST_INCOMPLETE:
            # What a slow peer holds is not lost: wait until it answers or the ring gives it up, but not for ever.
            self._incomplete += 1
            raise Unreachable(f"{silent} of {len(addresses)} neighbours did not list their fragments")
        self._incomplete = 0
        return gathered((one.asked, one.result) for one in outcomes)

    def _read_blocks(self, address: str, fragment: FragmentHeader, first: int, count: int) -> Bytes:
        return read_blocks(self._pool, address, fragment, first, count)

    def _rebuild(self, encoding: Encoding, members: list[Contact], limit: _RateLimit) -> None:
        from holdfast.erasure.decoding import StateDecoder  # The code is loaded by those who use it.

        header = encoding.header
        by_address = {one.address: one for one in members}
        keep = {index: by_address[peers[0]] for index, peers in encoding.holders.items()}
        takes = [one for one in members if one.address not in self._refused]
        placement = choose_holders(state_key(header.state), takes or members, header.coding, keep=keep)
        lost = encoding.missing
        senders = {
            index: FragmentSender(
                self._pool,
                FragmentHeader(header, index),
                placement.holders[index].address,
                30.0,
                repairing=True,
            )
            for index in lost
        }
        retrieval = Retrieval(header, encoding.holders, self._read_blocks)
        decoder = StateDecoder(header)
        try:
            for blocks in retrieval.stripes():
                rebuilt = decoder.recompute(blocks, lost)
                size = 0
                for index, block in rebuilt.items():
                    pieces: list[Bytes] = [block.prefix, block.payload]
                    senders[index].feed(pieces, 5.0)
                    size += len(block)
                limit.spent(size + header.coding.data * header.block_bytes)
            decoder.finish()
        except BaseException as error:
            fault = error if isinstance(error, HoldfastError) else HoldfastError("repair was interrupted")
            for sender in senders.values():
                sender.give_up(fault)
            raise
        for sender in senders.values():
            sender.feed(None, 5.0)
        failed: list[HoldfastError] = []
        for index, sender in senders.items():
            if not sender.finished(time.monotonic() + 30.0):
                failed.append(sender.error or HoldfastError("not stored"))
                self._refused[sender.address] = time.monotonic()
                continue
            self.progress.rebuilt += 1
            self.progress.bytes += header.fragment_length
            log.info("rebuilt fragment %d of %s at %s", index, header, sender.address)
        if failed:
            raise failed[0]

    def _tidy(self, encodings: list[Encoding], limit: _RateLimit) -> None:
        """Spread fragments, remove second copies, and incomplete saves that are old and superseded."""
        now = time.monotonic()
        whole = [one for one in encodings if one.whole]
        newest = max(((one.header.epoch, one.header.version) for one in whole), default=None)
        # What changes are based on is no rest of a broken save: peers that hold what it lacks may come back.
        bases = {one.header.follows for one in encodings} - {one.header.version for one in whole}
        for encoding in encodings:
            header = encoding.header
            if encoding.whole:
                self._first_seen.pop(header, None)
                if not encoding.missing:
                    self._spread(encoding, limit)
                continue
            since = self._first_seen.setdefault(header, now)
            superseded = newest is not None and (header.epoch, header.version) < newest and header.version not in bases
            if superseded and now - since >= self._settings.garbage_after:
                for index, peers in encoding.holders.items():
                    self._drop(FragmentHeader(header, index), peers)
                self._first_seen.pop(header, None)

    def _spread(self, encoding: Encoding, limit: _RateLimit) -> None:
        """Leave one copy of every fragment, on peers and domains as different as those of a new save."""
        header, members = encoding.header, self._members()
        here = {one.address: one for one in members}  # not those that were lost since they listed their fragments
        holders = {index: [here[peer] for peer in peers if peer in here] for index, peers in encoding.holders.items()}
        refused = {one.id for one in members if one.address in self._refused}
        chosen = spread_copies(state_key(header.state), holders, members, header.coding, refused=refused)
        if chosen is None:
            return
        moving = {index: to for index, to in chosen.items() if to not in holders[index]}
        for index, to in moving.items():
            source = next((one.address for one in holders[index]), None)
            if source is None:
                return
            if not self._copy(FragmentHeader(header, index), to.address, limit, source):
                self._refused[to.address] = time.monotonic()
                self.progress.failed += 1
                return
            self.progress.spread += 1
            log.info("copied fragment %d of %s from %s to %s", index, header, source, to.address)
        if moving:
            self.soon()  # what they leave behind goes when the neighbours have listed the copies
            return
        for index, peers in encoding.holders.items():
            self._drop(FragmentHeader(header, index), [peer for peer in peers if peer != chosen[index].address])

    def _drop(self, fragment: FragmentHeader, peers: list[str]) -> None:
        for peer in peers:
            try:
                self._pool.request(Address.parse(peer), "drop", {}, [fragment.pack()])
                self.progress.removed += 1
            except HoldfastError as error:
                log.info("could not remove a copy at %s: %s", peer, error)

    def _hand_over(self, limit: _RateLimit) -> None:
        """Move own fragments to where readers look, if that is no longer here."""
        for state in self._files.states():
            if self._stopping:
                return
            if self._covers(state_key(state)):
                continue
            near = locate(self._pool, state, [self._me.address])
            if any(one.id == self._me.id for one in near):
                continue
            there = survey_state(self._pool, state, [one.address for one in near])
            for held in self._files.held(state):
                encoding = there.encodings.get(held.state)
                if encoding is None or held.index not in encoding.holders:
                    taken = {peer for peers in encoding.holders.values() for peer in peers} if encoding else set()
                    free = [one for one in rank(state_key(state), near) if one.address not in taken]
                    if not free or not self._copy(held, free[0].address, limit):
                        continue
                self._files.drop(held)
                self.progress.handed_over += 1

    def _copy(self, held: FragmentHeader, address: str, limit: _RateLimit, source: str | None = None) -> bool:
        """Copy a fragment of this peer, or of the peer at `source`, to another."""
        sender = FragmentSender(self._pool, held, address, 30.0, repairing=True)
        try:
            for stripe in range(held.state.layout.stripes):
                block = self._read_blocks(source, held, stripe, 1) if source else self._files.read(held, stripe, 1)
                sender.feed([block], 5.0)
                limit.spent(len(block))
        except HoldfastError as error:
            sender.give_up(error)
            return False
        sender.feed(None, 5.0)
        return sender.finished(time.monotonic() + 30.0)


class _RateLimit:
    """Sleeps as the bandwidth demands, in small steps so that stopping is quick."""

    def __init__(self, rate: float, stopping: Callable[[], bool]) -> None:
        self._bandwidth = Bandwidth(rate)
        self._stopping = stopping

    def spent(self, amount: int) -> None:
        wait = self._bandwidth.delay(amount, time.monotonic())
        while wait > 0 and not self._stopping():
            time.sleep(min(wait, 0.2))
            wait -= 0.2


def arc(me: RingId, members: list[RingId]) -> tuple[int, int]:
    """Return the keys that are closer to `me` than to others: from, inclusive, to, exclusive; equal means all."""
    others = [one for one in members if one != me]
    if not others:
        return 0, 0
    before = min(clockwise(one, me) for one in others)
    after = min(clockwise(me, one) for one in others)
    first, last = (me - before // 2) % SIZE, (me + after // 2 + 1) % SIZE
    return first, last
