"""The requests that a peer serves: one method per operation, named in a table. Runs in peers, on their event loop.

Disk work runs in threads; the loop only moves bytes. Operations (all over authenticated connections):

| do | header | body | answer |
|---|---|---|---|
| `put` | `repairing` | fragment header | `here`; if not, chunks follow, the last with `end`, then `stored` |
| `read` | `first`, `count` | fragment header | the blocks |
| `find` | `namespace`, `name` | | headers of the fragments held, one behind the other |
| `inventory` | `first`, `last` (keys, hex), `skip` | | headers of fragments with keys in this arc; `more` |
| `locate` | `namespace`, `name` | | `root`, `members` |
| `members` | | | `members` |
| `release` | `namespace`, `name`, `before`, `epoch` | | `removed` |
| `forget` | `namespace`, `names`, `epoch` | | `removed`: every version of these states |
| `drop` | | fragment header | |
| `fence` | `namespace`, `epoch` | | `epoch` |
| `fences` | | | `fences` |
| `restore` | `namespace`, `name`, `version`, `file` | | `ticket` |
| `restored` | `ticket` | | `state`, `path`, `version`, `bytes`, `line` |
| `repair` | `scrub` | | starts a round |
| `status` | | | everything about this peer |
| `ping` | | | `ready`: the process runs, and is part of the ring |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from holdfast.erasure.faults import FragmentFault
from holdfast.erasure.fragment import FragmentHeader, StateId
from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch
from holdfast.store.peer.fragment_files import FragmentFiles
from holdfast.store.peer.fragment_writer import FragmentWriter
from holdfast.store.ring.encoding import contact_to_plain
from holdfast.store.ring.ids import SIZE, clockwise, state_key
from holdfast.store.ring.membership import Membership
from holdfast.store.wire.failures import BadRequest, NotTrusted
from holdfast.store.wire.frames import FrameProtocol
from holdfast.store.wire.handshake import opens
from holdfast.store.wire.listener import Answer
from holdfast.store.wire.messages import LARGEST_BODY, BadFrame, Frame, Kind

T = TypeVar("T")
MOST_HEADERS = 20_000
"""Fragment headers in one answer to `inventory`."""


OPEN_TO_NAMESPACES = frozenset(
    {"put", "read", "find", "locate", "members", "release", "forget", "fence", "fences", "ping"}
)
"""What a client that has the secret of one namespace may request, of that namespace."""


class PeerServices(Protocol):
    """What a peer does beside keeping fragments: restores, repair, and telling about itself."""

    def restore(self, state: StateId, version: BatchId | None, file: str) -> str:
        """Start to restore a state into a local file; return a ticket."""
        ...

    def restored(self, ticket: str) -> dict[str, Any]:
        """Return the status of a restore."""
        ...

    def repair(self, *, scrub: bool) -> dict[str, Any]:
        """Start a round of repair; return its number."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the peer's status."""
        ...


class Operations:
    """Serves requests."""

    def __init__(
        self, files: FragmentFiles, membership: Membership, services: PeerServices, threads: ThreadPoolExecutor
    ) -> None:
        self._files, self._membership, self._services, self._threads = files, membership, services, threads
        self._table: dict[str, Callable[[FrameProtocol, Frame], Awaitable[Answer]]] = {
            "put": self._put,
            "read": self._read,
            "find": self._find,
            "inventory": self._inventory,
            "locate": self._locate,
            "members": self._members,
            "release": self._release,
            "forget": self._forget,
            "drop": self._drop,
            "fence": self._fence,
            "fences": self._all_fences,
            "restore": self._restore,
            "restored": self._restored,
            "repair": self._repair,
            "status": self._status,
            "ping": self._ping,
        }

    async def serve(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        """Serve one request."""
        operation = self._table.get(str(frame.header.get("do")))
        if operation is None:
            raise BadRequest(f"unknown operation {str(frame.header.get('do'))[:40]!r}")
        try:
            if protocol.namespace is not None:
                _check_namespace(protocol.namespace, frame)
            return await operation(protocol, frame)
        except BadInput as bad:
            # Names and numbers that are not allowed, wherever they were noticed.
            raise bad if isinstance(bad, BadRequest) else BadRequest(str(bad)) from bad

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _put(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        header, repairing = _fragment(frame), bool(frame.header.get("repairing"))
        writer = await self._in_thread(lambda: self._files.begin(header, repairing=repairing))
        if writer.here:
            return Answer({"here": True})
        try:
            await protocol.send(Kind.ANSWER, {"here": False})
            await self._take_in(protocol, writer)
            await self._in_thread(writer.publish)
        finally:
            if not writer.done:
                await self._in_thread(writer.cancel)
        return Answer({"stored": True})

    async def _take_in(self, protocol: FrameProtocol, writer: FragmentWriter) -> None:
        """Receive chunks up to the last; after a fault, read and drop the rest, so that the sender gets the error."""
        fault: Exception | None = None
        seconds = self._files.limits.idle_seconds
        while True:
            try:
                async with asyncio.timeout(seconds):
                    chunk = await protocol.next()
            except TimeoutError:
                # A machine that died does not close its connections, and one that is served is not swept away.
                raise BadFrame(f"no chunk of a fragment for {seconds:g} s") from None
            if chunk.kind is not Kind.CHUNK:
                raise BadFrame(f"{chunk.kind.name} where a chunk was due")
            if chunk.header.get("end"):
                break
            if fault is None:
                try:
                    await self._in_thread(writer.add, chunk.body)
                except Exception as error:
                    fault = error
        if fault is not None:
            raise fault

    async def _read(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        header = _fragment(frame)
        first, count = _number(frame, "first"), _number(frame, "count")
        if count * header.state.block_bytes > LARGEST_BODY:
            raise BadRequest(f"{count} blocks do not fit into one response")
        return Answer(body=[await self._in_thread(self._files.read, header, first, count)])

    async def _find(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        held = self._files.held(_state(frame))
        return Answer({"fragments": len(held)}, [header.pack() for header in held])

    async def _inventory(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        first, last, skip = _key(frame, "first"), _key(frame, "last"), _number(frame, "skip")
        reach = clockwise(first, last)

        def in_arc() -> list[FragmentHeader]:
            return [
                header
                for state in self._files.states()
                if first == last or clockwise(first, state_key(state)) < reach
                for header in self._files.held(state)
            ]

        found = await self._in_thread(in_arc)
        page = found[skip : skip + MOST_HEADERS]
        more = skip + len(page) < len(found)
        return Answer({"fragments": len(page), "more": more}, [header.pack() for header in page])

    async def _locate(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        found = await self._membership.lookup(state_key(_state(frame)))
        return Answer(
            {
                "root": contact_to_plain(found.root),
                "members": [contact_to_plain(contact) for contact in found.members],
                "hops": found.hops,
            }
        )

    async def _members(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        return Answer({"members": [contact_to_plain(contact) for contact in self._membership.everyone()]})

    async def _release(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        before, epoch = BatchId(_number(frame, "before")), Epoch(_number(frame, "epoch"))
        removed = await self._in_thread(self._files.release, _state(frame), before, epoch)
        return Answer({"removed": removed})

    async def _forget(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        namespace, epoch, names = _text(frame, "namespace"), Epoch(_number(frame, "epoch")), frame.header.get("names")
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise BadRequest("must be a list of names", field="names")
        states = [StateId(namespace, name) for name in names]

        def remove() -> int:
            return sum(self._files.release(state, BatchId((1 << 63) - 1), epoch) for state in states)

        return Answer({"removed": await self._in_thread(remove)})

    async def _drop(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        await self._in_thread(self._files.drop, _fragment(frame))
        return Answer()

    async def _fence(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        namespace = StateId(_text(frame, "namespace"), "x").namespace
        epoch = await self._in_thread(self._files.fence, namespace, Epoch(_number(frame, "epoch")))
        return Answer({"epoch": epoch})

    async def _all_fences(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        fences, only = self._files.fences(), protocol.namespace
        return Answer({"fences": {name: one for name, one in fences.items() if opens(only, name)}})

    async def _restore(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        version = None if frame.header.get("version") is None else BatchId(_number(frame, "version"))
        return Answer({"ticket": self._services.restore(_state(frame), version, _text(frame, "file"))})

    async def _restored(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        return Answer(self._services.restored(_text(frame, "ticket")))

    async def _repair(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        return Answer(self._services.repair(scrub=bool(frame.header.get("scrub"))))

    async def _ping(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        return Answer({"ready": self._membership.ring.active})

    async def _status(self, protocol: FrameProtocol, frame: Frame) -> Answer:
        return Answer(self._services.status())


def _check_namespace(namespace: str, frame: Frame) -> None:
    """Refuse what a client of one namespace may not request: another namespace, or what concerns all of them."""
    operation = str(frame.header.get("do"))
    if operation not in OPEN_TO_NAMESPACES or frame.header.get("repairing"):
        raise NotTrusted(
            f"{operation} needs the cluster's secret; this one opens namespace {namespace!r} only",
            remedy="pass the file with the cluster's secret",
        )
    named = None
    if operation in ("put", "read"):
        named = _fragment(frame).state.state.namespace
    elif operation not in ("members", "fences", "ping"):
        named = _text(frame, "namespace")
    if named is not None and not opens(namespace, named):
        raise NotTrusted(
            f"this secret opens namespace {namespace!r}, not {named!r}", remedy="pass the secret of that namespace"
        )


def _fragment(frame: Frame) -> FragmentHeader:
    try:
        header = FragmentHeader.unpack(frame.body)
    except FragmentFault as fault:
        raise BadRequest(f"not a fragment header: {fault}") from None
    if len(frame.body) != header.state.header_length:
        raise BadRequest("the request has bytes after the fragment header")
    return header


def _state(frame: Frame) -> StateId:
    return StateId(_text(frame, "namespace"), _text(frame, "name"))


def _text(frame: Frame, field: str) -> str:
    value = frame.header.get(field)
    if not isinstance(value, str):
        raise BadRequest("must be text", field=field)
    return value


def _number(frame: Frame, field: str) -> int:
    value = frame.header.get(field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise BadRequest("must be a whole number from 0", field=field)
    return value


def _key(frame: Frame, field: str) -> int:
    try:
        key = int(_text(frame, field), 16)
    except ValueError:
        key = -1
    if not 0 <= key < SIZE:
        raise BadRequest("must be a key in hexadecimal", field=field)
    return key
