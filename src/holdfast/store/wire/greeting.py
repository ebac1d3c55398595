"""A connection to a peer on an event loop: opened, and greeted. Runs in peers, and where peers are watched."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable

from holdfast.store.wire.address import Address
from holdfast.store.wire.bandwidth import Bandwidth
from holdfast.store.wire.frames import FrameProtocol
from holdfast.store.wire.handshake import ClientHandshake, ClusterKey, SessionSeals
from holdfast.store.wire.messages import Kind


async def open_frames(
    address: Address, key: ClusterKey, tls: ssl.SSLContext | None = None, on_end: Callable[[], None] | None = None
) -> FrameProtocol:
    """Connect to a peer and shake hands; `on_end` is called when the connection ends."""
    handshake = ClientHandshake(key)
    greeting = SessionSeals(handshake.greeting.incoming, handshake.greeting.outgoing)
    unlimited = Bandwidth(None)
    _, protocol = await asyncio.get_running_loop().create_connection(
        lambda: FrameProtocol(greeting, unlimited, unlimited, unread_bytes=1 << 16, on_end=on_end),
        address.host,
        address.port,
        ssl=tls,
        server_hostname="" if tls is not None else None,
    )
    try:
        await protocol.send(Kind.HELLO, handshake.hello())
        await protocol.send(Kind.PROOF, handshake.prove(await protocol.next()))
        protocol.trust(handshake.finish(await protocol.next()))
    except BaseException:
        protocol.end()
        raise
    return protocol
