"""A fragment on its way onto a shelf: checked block by block as it comes, durable and visible at once or not at all.

Runs in peers. The order is what makes a crash harmless: contents synced, renamed into place, the folder synced, and
only then does the peer say stored.
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
class Berth:
    """Where an arriving fragment goes, and whom to tell."""

    disk: Disk
    part: Path
    """Written here first."""
    place: Path
    """Published here."""
    keep: bool
    """Hand the whole contents on when published: the memory tier takes them."""
    last_look: Callable[[], None]
    """Raises where it may no longer be published."""
    published: Callable[[bytes | None], None]
    cancelled: Callable[[], None]


class Arrival:
    """A fragment on its way in: `add` bytes in order, then `publish`; `cancel` undoes everything."""

    def __init__(self, header: FragmentHeader, berth: Berth | None) -> None:
        """Take bytes in; without a berth the fragment is on the shelf already, and the bytes are only counted."""
        self.header = header
        self._berth = berth
        self._expected = header.state.fragment_length
        self._got = 0
        self._pending = bytearray()
        self._stripe = 0
        self._digest = StateDigest(header.state.state_bytes, header.state.layout.stripe_bytes)
        self._kept: list[bytes] | None = [] if berth is not None and berth.keep else None
        self._handle: int | None = None
        self._done = False
        if berth is not None:
            try:
                self._handle = berth.disk.open_new(berth.part)
                self._write(header.pack())
            except OSError as error:
                self.cancel()
                raise _no_room(error) from None
        self._got = header.state.header_length

    @property
    def here(self) -> bool:
        """The fragment is on the shelf already: nothing needs to be sent."""
        return self._berth is None

    @property
    def done(self) -> bool:
        """Published, cancelled or not needed."""
        return self._done or self._berth is None

    def add(self, data: Piece) -> None:
        """Take the next bytes behind the header; whole blocks are checked as they come."""
        self._got += len(data)
        if self._got > self._expected:
            self.cancel()
            raise BadRequest(f"more than the {self._expected} bytes of this fragment were sent")
        if self._berth is None:
            return
        try:
            self._check_blocks(data)
            self._write(data)
        except OSError as error:
            self.cancel()
            raise _no_room(error) from None
        except DamagedFragment as damage:
            self.cancel()
            raise Corrupt(f"damaged on the way here: {damage}") from None

    def publish(self) -> None:
        """Make the fragment durable and visible, in this order; afterwards a crash does not lose it."""
        berth = self._berth
        if berth is None:
            return
        if self._got != self._expected or self._digest.value() != self.header.state.digest:
            self.cancel()
            raise Corrupt(f"{self._got} of {self._expected} bytes came, or they are another state's")
        disk, place = berth.disk, berth.place
        assert self._handle is not None
        try:
            disk.sync_file(self._handle)
            disk.close(self._handle)
            self._handle = None
            disk.make_folder(place.parent)
            # A newer epoch may have begun since the first byte: the last look is just before publishing.
            berth.last_look()
            try:
                disk.rename(berth.part, place)
            except FileNotFoundError:  # the state's last fragment was dropped just now, and the folder with it
                disk.make_folder(place.parent)
                disk.rename(berth.part, place)
            disk.sync_folder(place.parent)
        except OSError as error:
            self.cancel()
            raise _no_room(error) from None
        except StaleEpoch:
            self.cancel()
            raise
        self._done = True
        berth.published(b"".join(self._kept) if self._kept is not None else None)

    def cancel(self) -> None:
        """Leave no trace; fine when it is over already."""
        berth = self._berth
        if self._done or berth is None:
            return
        self._done = True
        if self._handle is not None:
            berth.disk.close(self._handle)
            self._handle = None
        try:
            berth.disk.remove(berth.part)
        except OSError as error:
            log.warning("could not remove %s: %s", berth.part.name, error.strerror)
        berth.cancelled()

    def _write(self, data: Piece) -> None:
        assert self._handle is not None
        assert self._berth is not None
        self._berth.disk.append(self._handle, [data])
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
                raise DamagedFragment("bytes behind the last block")


def _no_room(error: OSError) -> NoRoom:
    return NoRoom(f"the disk did not take it: {error.strerror or error}")
