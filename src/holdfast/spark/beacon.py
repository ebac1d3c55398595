"""Answers the driver's pings, in a process of a node's task that runs no user code. Runs on a node.

An operator may hold Python's interpreter for as long as it likes: its process answers nothing meanwhile, and its node
has not failed. This process ends with the task, so its answers say that the machine runs and the task lives. A
connection that ends is dialled again, and so is one over which no ping comes for long: after a cut of the network a new
one is there sooner than the old one recovers.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.spark.resident_node import NodeIdentity
from holdfast.store.wire.address import Address
from holdfast.store.wire.handshake import ClusterKey
from holdfast.store.wire.link import Link, dial
from holdfast.store.wire.messages import Header
from holdfast.store.wire.tls import Tls

REDIAL_SECONDS = 0.25
LONGEST_WAIT = 2.0
"""Between two tries to reach a driver that does not answer, or does not want this node any more."""


def answer_pings(
    identity: NodeIdentity,
    key: ClusterKey,
    tls: Tls | None = None,
    *,
    seconds: float,
    stop: threading.Event | None = None,
) -> None:
    """Answer until this process is ended, or `stop` is set; dial again where no ping comes for `seconds`."""
    over = stop or threading.Event()
    me = {"node": identity.node, "token": identity.token, "beacon": True}
    context = None if tls is None else tls.context(serving=False)
    wait = REDIAL_SECONDS
    while not over.is_set():
        ended, pinged = threading.Event(), [time.monotonic()]
        on_message, on_end = partial(_answer, pinged), partial(_ended, ended)
        try:
            link = dial(Address.parse(identity.driver), key, me, on_message, on_end, tls=context)
        except HoldfastError:
            over.wait(wait)
            wait = min(LONGEST_WAIT, 2 * wait)
            continue
        wait = REDIAL_SECONDS
        while not ended.wait(REDIAL_SECONDS) and not over.is_set() and time.monotonic() - pinged[0] < seconds:
            pass
        link.close()
        over.wait(wait)


def _ended(event: threading.Event, link: Link, why: str) -> None:
    event.set()


def _answer(pinged: list[float], link: Link, header: Header, body: Any) -> None:
    if header.get("do") == "ping":
        pinged[0] = time.monotonic()
        link.send({"do": "pong", "number": header["number"]})
