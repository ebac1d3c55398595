"""Writes one incoming fragment: checks each block as it is received, and publishes the fragment atomically and durably.

Runs in peers. The order of steps makes a crash harmless: the contents are synced, the file is renamed into place, the
folder is synced, and only then does the peer acknowledge the fragment.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.erasure.checksums import StateDigest
from holdfast.erasure.faults import DamagedFragment
from holdfast.erasure.fragment import FragmentHeader, open_block
from holdfast.store.peer.disk import Disk
from holdfast.store.wire.failures import BadRequest, Corrupt, NoRoom, StaleEpoch

log = logging.getLogger("holdfast.store.peer.fragment_files")
Piece = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class FragmentTarget:
    """The file of an incoming fragment, and the callbacks for its outcome."""

    disk: Disk
    part: Path
    """Written here first."""
    place: Path
    """The published file."""
    keep: bool
    """Pass the whole contents to `published`: the memory tier keeps them."""
    last_look: Callable[[], None]
    """Raises if the fragment may no longer be published."""
    published: Callable[[bytes | None], None]
    cancelled: Callable[[], None]


class FragmentWriter:
    """One incoming fragment: `add` bytes in order, then `publish`; `cancel` removes everything."""

    def __init__(self, header: FragmentHeader, target: FragmentTarget | None) -> None:
        """Receive bytes; without a target the fragment is stored already, and the bytes are only counted."""
        self.header = header
        self._target = target
        self._expected = header.state.fragment_length
        self._got = 0
        self._pending = bytearray()
        self._stripe = 0
        self._digest = StateDigest(header.state.state_bytes, header.state.layout.stripe_bytes)
        self._kept: list[bytes] | None = [] if target is not None and target.keep else None
        self._handle: int | None = None
        self._done = False
        if target is not None:
            try:
                self._handle = target.disk.open_new(target.part)
                self._write(header.pack())
            except OSError as error:
                self.cancel()
                raise _no_room(error) from None
        self._got = header.state.header_length

    @property
    def here(self) -> bool:
        """Whether the fragment is stored already: nothing needs to be sent."""
        return self._target is None

    @property
    def done(self) -> bool:
        """Published, cancelled or not needed."""
        return self._done or self._target is None

    def add(self, data: Piece) -> None:
        """Take the next bytes behind the header; whole blocks are checked as they come."""
        self._got += len(data)
        if self._got > self._expected:
            self.cancel()
            raise BadRequest(f"the sender sent more than the {self._expected} bytes of this fragment")
        if self._target is None:
            return
        try:
            self._check_blocks(data)
            self._write(data)
        except OSError as error:
            self.cancel()
            raise _no_room(error) from None
        except DamagedFragment as damage:
            self.cancel()
            raise Corrupt(f"the fragment was damaged in transit: {damage}") from None

    def publish(self) -> None:
        """Make the fragment durable and visible, in this order; afterwards a crash does not lose it."""
        target = self._target
        if target is None:
            return
        if self._got != self._expected or self._digest.value() != self.header.state.digest:
            self.cancel()
            raise Corrupt(f"received {self._got} of {self._expected} bytes, or blocks of another state")
        disk, place = target.disk, target.place
        assert self._handle is not None
        try:
            disk.sync_file(self._handle)
            disk.close(self._handle)
            self._handle = None
            disk.make_folder(place.parent)
            # A newer epoch may have started since the first byte: the last check is just before publishing.
            target.last_look()
            try:
                disk.rename(target.part, place)
            except FileNotFoundError:  # the state's last fragment was dropped just now, and the folder with it
                disk.make_folder(place.parent)
                disk.rename(target.part, place)
            disk.sync_folder(place.parent)
        except OSError as error:
            self.cancel()
            raise _no_room(error) from None
        except StaleEpoch:
            self.cancel()
            raise
        self._done = True
        target.published(b"".join(self._kept) if self._kept is not None else None)

    def cancel(self) -> None:
        """Leave no trace; fine when it is over already."""
        target = self._target
        if self._done or target is None:
            return
        self._done = True
        if self._handle is not None:
            target.disk.close(self._handle)
            self._handle = None
        try:
            target.disk.remove(target.part)
        except OSError as error:
            log.warning("could not remove %s: %s", target.part.name, error.strerror)
        target.cancelled()

    def _write(self, data: Piece) -> None:
        assert self._handle is not None
        assert self._target is not None
        self._target.disk.append(self._handle, [data])
        if self._kept is not None:
            self._kept.append(bytes(data))

    def _check_blocks(self, data: Piece) -> None:
        layout, state = self.header.state.layout, self.header.state
        view = memoryview(data)
        while view:
            start, end = state.block_span(self._stripe)
            size = end - start
            if not self._pending and len(view) >= size:
                block: Piece = view[:size]
                view = view[size:]
            else:
                missing = size - len(self._pending)
                self._pending += view[:missing]
                view = view[missing:]
                if len(self._pending) < size:
                    return
                block, self._pending = self._pending, bytearray()
            check, _ = open_block(self.header, self._stripe, block)
            self._digest.add(check)
            self._stripe += 1
            if self._stripe == layout.stripes and len(view):
                raise DamagedFragment("the fragment has bytes after the last block")


def _no_room(error: OSError) -> NoRoom:
    return NoRoom(f"writing the fragment failed: {error.strerror or error}")
