"""Drives this peer's part in the ring with real time and real connections. Runs in peers, on their event loop.

`ring.RingPeer` decides; this module gives it the time, carries its messages as one-way notes over authenticated links,
and notifies it at once when a link breaks: a killed process is noticed in milliseconds, a frozen one by its silence.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from random import Random

from holdfast.errors import BadInput, HoldfastError
from holdfast.store.ring.encoding import contact_from_plain, contact_to_plain, from_plain, to_plain
from holdfast.store.ring.ids import RingId
from holdfast.store.ring.machine import RingPeer, RingSettings
from holdfast.store.ring.messages import (
    Contact,
    Effect,
    Joined,
    JoinFailed,
    LookupDone,
    LookupFailed,
    Message,
    PeerFound,
    PeerLost,
    Send,
)
from holdfast.store.wire.address import Address
from holdfast.store.wire.failures import StateMissing
from holdfast.store.wire.frames import ConnectionEnded, FrameProtocol
from holdfast.store.wire.greeting import open_frames
from holdfast.store.wire.handshake import ClusterKey, Keys
from holdfast.store.wire.messages import BadFrame, Frame

log = logging.getLogger("holdfast.store.ring.machine")
CONNECT_SECONDS = 5.0
RENEW_SECONDS = 3.0
"""A link that rests on the previous secret tries the new one so often; less than a listener's grace."""
MOST_WAITING = 64
"""Notes that wait for a link to come up; older ones are dropped, as a lossy network would."""


MOST_READ = 128
"""Parsed notes that are remembered."""


class Membership:
    """This peer's place among the others."""

    def __init__(
        self,
        contact: Contact,
        settings: RingSettings,
        keys: Keys,
        *,
        tls: ssl.SSLContext | None = None,
        on_found: Callable[[Contact], None] = lambda contact: None,
        on_lost: Callable[[Contact], None] = lambda contact: None,
    ) -> None:
        """Stand outside until `start` or `join`."""
        self.ring = RingPeer(contact, settings, Random(contact.id))
        self.joined = asyncio.Event()
        self._join_failed = asyncio.Event()
        self._keys, self._tls = keys, tls
        self._on_found, self._on_lost = on_found, on_lost
        self._links: dict[str, _Link] = {}
        self._lookups: dict[int, asyncio.Future[LookupDone]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._left = False
        self._loop = asyncio.get_running_loop()
        self._entrance: str | None = None
        self._written: tuple[Message, bytes] | None = None
        self._read: dict[bytes, tuple[Contact, Message]] = {}
        self._clock = self._loop.time

    def start(self) -> None:
        """Be the first peer."""
        self._carry_out(self.ring.start(self._clock()))

    async def join(self, addresses: list[str], timeout: float) -> None:
        """Enter the ring through one of these peers, trying again for `timeout` seconds."""
        deadline = self._clock() + timeout
        turn = 0
        while not self.joined.is_set():
            address = addresses[turn % len(addresses)]
            turn += 1
            self._join_failed.clear()
            self._entrance = address
            self._carry_out(self.ring.join(address, self._clock()))
            _, waiting = await asyncio.wait(
                [asyncio.create_task(self.joined.wait()), asyncio.create_task(self._join_failed.wait())],
                # Not sooner: a busy ring may answer late, and asking anew would throw its answer away.
                timeout=max(0.1, deadline - self._clock()),
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in waiting:
                task.cancel()
            if self.joined.is_set():
                self._entrance = None
                return
            if self._clock() >= deadline:
                raise StateMissing(
                    f"no peer answered at {', '.join(addresses)} within {timeout:g} s",
                    remedy="check the address and the secret, or start without --join to begin a new ring",
                )
            await asyncio.sleep(0.3)

    async def leave(self) -> None:
        """Notify the neighbours and stop."""
        self._left = True
        self._carry_out(self.ring.leave(self._clock()))
        await asyncio.sleep(0)
        await asyncio.gather(*(link.close() for link in self._links.values()))

    def everyone(self) -> list[Contact]:
        """Return this peer and its neighbours."""
        return [self.ring.contact, *self.ring.leaves.members]

    def meet(self, addresses: Iterable[str]) -> None:
        """Contact peers that may be unknown here."""
        for address in addresses:
            self._carry_out(self.ring.meet(address))

    async def lookup(self, key: RingId) -> LookupDone:
        """Find the root of a key and its neighbours."""
        token, effects = self.ring.lookup(key, self._clock())
        answer: asyncio.Future[LookupDone] = asyncio.get_running_loop().create_future()
        self._lookups[token] = answer
        self._carry_out(effects)
        try:
            return await answer
        finally:
            self._lookups.pop(token, None)

    def handle(self, frame: Frame) -> None:
        """Take a note from another peer; what is not exactly a ring message is refused."""
        text = bytes(frame.body)
        known = self._read.get(text)
        if known is None:
            known = self._parsed(text)
            if len(self._read) >= MOST_READ:
                self._read.clear()
            # Keep-alives of a quiet ring are the same from one period to the next: each is parsed once.
            self._read[text] = known
        sender, message = known
        self._carry_out(self.ring.receive(sender, message, self._clock()))

    @staticmethod
    def _parsed(text: bytes) -> tuple[Contact, Message]:
        try:
            note = json.loads(text)
            if not isinstance(note, dict):
                raise BadFrame("a note that is not an object")
            return contact_from_plain(note.get("from")), from_plain(note.get("message"))
        except (BadInput, ValueError, RecursionError) as bad:
            raise BadFrame(f"a note that is no ring message: {bad}") from None

    def unreachable(self, address: str) -> None:
        """Pass on that no peer responds at this address."""
        if address == self._entrance:
            self._join_failed.set()
        self._carry_out(self.ring.unreachable(address, self._clock()))

    def _tick(self) -> None:
        self._timer = None
        try:
            self._carry_out(self.ring.tick(self._clock()))
        except Exception:
            # Without ticks this peer would stop sending keep-alives: log the error, and continue.
            log.exception("a tick of the ring's state machine failed")
            self._wait_for_tick()

    def _wait_for_tick(self) -> None:
        """Have `tick` called when it is due; a timer that comes too early only looks again."""
        due = self.ring.next_tick
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
            self._timer = None
        if due != float("inf") and not self._left:
            self._timer = self._loop.call_at(max(due, self._clock() + 0.001), self._tick)

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Send():
                    self._send(effect.address, effect.message)
                case Joined():
                    self.joined.set()
                case JoinFailed():
                    self._join_failed.set()
                case PeerFound():
                    self._on_found(effect.contact)
                case PeerLost():
                    log.info("peer %s %s", effect.contact.address, "left" if effect.left else "is lost")
                    self._on_lost(effect.contact)
                case LookupDone():
                    self._answer(effect.token, effect)
                case LookupFailed():
                    self._answer(
                        effect.token, StateMissing("no peer responds for this key; the ring is being repaired")
                    )
        self._wait_for_tick()

    def _answer(self, token: int, result: LookupDone | HoldfastError) -> None:
        future = self._lookups.get(token)
        if future is None or future.done():
            return
        if isinstance(result, HoldfastError):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _send(self, address: str, message: Message) -> None:
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = _Link(address, self._keys, self._tls, self.unreachable)
        if self._written is None or self._written[0] is not message:
            # A keep-alive goes to all neighbours: it is written once.
            note = {"from": contact_to_plain(self.ring.contact), "message": to_plain(message)}
            self._written = (message, json.dumps(note, separators=(",", ":")).encode())
        link.send(self._written[1])


class _Link:
    """One-way messages to one peer: connects when there is one to send, reports when it cannot."""

    def __init__(self, address: str, keys: Keys, tls: ssl.SSLContext | None, on_broken: Callable[[str], None]) -> None:
        self._address, self._keys, self._tls, self._on_broken = address, keys, tls, on_broken
        self._valid: tuple[ClusterKey, ...] = ()
        self._renew_at = 0.0
        self._waiting: deque[bytes] = deque(maxlen=MOST_WAITING)
        self._protocol: FrameProtocol | None = None
        self._connecting: asyncio.Task[None] | None = None
        self._closing = False

    def send(self, note: bytes) -> None:
        """Send now, or as soon as there is a connection, or not at all."""
        self._renew()
        if self._protocol is not None and not self._protocol.ended:
            self._protocol.send_note(note)
            return
        self._waiting.append(note)
        if self._connecting is None and not self._closing:
            self._connecting = asyncio.create_task(self._open())

    def _renew(self) -> None:
        """Connect anew where the secret is being replaced: the other side ends what rests on the previous one."""
        protocol, valid = self._protocol, self._keys.valid()
        if protocol is None or self._connecting is not None or protocol.ended:
            return
        fell_back = protocol.key != valid[0] and asyncio.get_running_loop().time() >= self._renew_at
        if valid != self._valid or fell_back:
            self._protocol = None  # its end is no loss
            protocol.end()

    async def close(self) -> None:
        """Send what waits, then close."""
        self._closing = True
        if self._connecting is not None:
            with contextlib.suppress(TimeoutError, asyncio.CancelledError):  # The peer is not reachable.
                await asyncio.wait_for(self._connecting, 1.0)
        if self._protocol is not None:
            self._protocol.end()

    async def _open(self) -> None:
        broken = False
        try:
            self._valid = self._keys.valid()
            self._renew_at = asyncio.get_running_loop().time() + RENEW_SECONDS
            opening = open_frames(Address.parse(self._address), self._keys, self._tls, self._ended)
            protocol = await asyncio.wait_for(opening, CONNECT_SECONDS)
            while self._waiting:
                protocol.send_note(self._waiting.popleft())
            self._protocol = protocol
        except (OSError, TimeoutError, ConnectionEnded, HoldfastError) as error:
            known = isinstance(error, HoldfastError)
            log.log(logging.WARNING if known else logging.INFO, "cannot connect to %s: %r", self._address, error)
            self._waiting.clear()
            # A refused or broken connection is a sign of a loss. A slow one is not: the probes decide.
            broken = not isinstance(error, TimeoutError)
        finally:
            self._connecting = None
        if broken:
            self._broken()

    def _broken(self) -> None:
        self._protocol = None
        if not self._closing:
            self._on_broken(self._address)

    def _ended(self) -> None:
        if self._protocol is not None:
            self._broken()
