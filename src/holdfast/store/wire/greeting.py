"""A connection to a peer on an event loop: opened, and greeted. Runs in peers, and where peers are watched."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from holdfast.store.wire.address import Address
from holdfast.store.wire.bandwidth import Bandwidth
from holdfast.store.wire.failures import NotTrusted
from holdfast.store.wire.frames import FrameProtocol
from holdfast.store.wire.handshake import ClientHandshake, ClusterKey, Keys, SessionSeals
from holdfast.store.wire.messages import Kind
from holdfast.store.wire.tls import server_name


async def open_frames(
    address: Address, keys: Keys, tls: ssl.SSLContext | None = None, on_end: Callable[[], None] | None = None
) -> FrameProtocol:
    """Connect to a peer and shake hands, with one valid key after the other; `on_end` is called when it ends."""
    first, *others = keys.valid()
    for key in (first, *others):
        try:
            return await _opened(address, key, tls, on_end)
        except NotTrusted as refused:
            last = refused
    raise last


async def _opened(
    address: Address, key: ClusterKey, tls: ssl.SSLContext | None, on_end: Callable[[], None] | None
) -> FrameProtocol:
    handshake = ClientHandshake(key)
    greeting = SessionSeals(handshake.greeting.incoming, handshake.greeting.outgoing)
    unlimited = Bandwidth(None)
    _, protocol = await asyncio.get_running_loop().create_connection(
        lambda: FrameProtocol(greeting, unlimited, unlimited, unread_bytes=1 << 16, on_end=on_end),
        address.host,
        address.port,
        ssl=tls,
        server_hostname=None if tls is None else server_name(tls, address.host) or "",
    )
    try:
        await protocol.send(Kind.HELLO, handshake.hello())
        await protocol.send(Kind.PROOF, handshake.prove(await protocol.next()))
        protocol.trust(handshake.finish(await protocol.next()))
    except BaseException:
        protocol.end()
        raise
    protocol.key = key
    return protocol
