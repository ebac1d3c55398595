"""Blocks of one state from many peers at once (A-FP4S, Table 2: Retrieve). Runs in clients and in repairing peers.

Every holder of a fragment has a worker that takes the next stretch of stripes which still lacks blocks and requests its
peer's blocks of them. Any m different blocks make a stripe, so no stripe depends on a particular peer:

* Holders of data fragments start at once: their blocks need no decoding.
* Holders of parity start when data fragments are lost, or when the retrieval takes longer than `hedge_seconds`. Then
  all n peers share the work, fast ones taking more of it: with peers as the bottleneck a restore takes m / n of the
  time that m fragments from m peers would.
* An idle worker repeats a request that has been pending three times as long as requests usually take here: one slow or
  frozen peer does not delay the state, and a link that is slow for all peers gets no extra load.

A block with a wrong checksum ends its worker and is reported: its fragment counts as lost. Memory is bounded by a
window of stretches, whatever the size of the state.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from holdfast.erasure.faults import DamagedFragment
from holdfast.erasure.fragment import FragmentHeader, StateHeader, open_block
from holdfast.errors import HoldfastError
from holdfast.store.wire.address import Address
from holdfast.store.wire.connection import ConnectionPool
from holdfast.store.wire.failures import Corrupt, StateMissing
from holdfast.store.wire.messages import Bytes

HEDGE_SECONDS = 0.05
FIRST_GUESS_SECONDS = 0.1
"""What a request takes, before any has ended."""
WINDOW_BYTES = 32 << 20
STRETCH_BYTES = 1 << 20

Progress = Callable[[int, int], None]
"""Takes how many of the fragments that a state is rebuilt from have come, and how many it needs. Any thread calls."""


def no_progress(fetched: int, needed: int) -> None:
    """Nobody wants to know."""


ReadBlocks = Callable[[str, FragmentHeader, int, int], Bytes]
"""Asks the peer at an address for blocks first .. first + count of a fragment."""


def read_blocks(pool: ConnectionPool, address: str, fragment: FragmentHeader, first: int, count: int) -> Bytes:
    """Ask one peer for blocks of one fragment."""
    return pool.request(Address.parse(address), "read", {"first": first, "count": count}, [fragment.pack()]).body


@dataclass(frozen=True, slots=True)
class LostFragment:
    """A fragment that could not be used, where it was, and why: it counts as lost."""

    index: int
    address: str
    reason: str


@dataclass(slots=True)
class RetrieveReport:
    """What a retrieval used and met on its way."""

    used: set[int] = field(default_factory=set)
    lost: list[LostFragment] = field(default_factory=list)
    hedged: int = 0
    bytes: int = 0
    decode_seconds: float = 0.0
    """Seconds that the caller spent on rebuilding the state from the blocks."""


@dataclass(slots=True)
class _Stretch:
    """Some stripes in a row: which blocks are here, which are under way since when."""

    first: int
    count: int
    blocks: dict[int, memoryview] = field(default_factory=dict)
    under_way: dict[int, float] = field(default_factory=dict)


class Retrieval:
    """One retrieval; `stripes()` gives m or more blocks of each stripe, in order."""

    def __init__(
        self,
        header: StateHeader,
        holders: Mapping[int, Sequence[str]],
        read_blocks: ReadBlocks,
        *,
        hedge_seconds: float = HEDGE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        progress: Progress = no_progress,
    ) -> None:
        """Read from `holders`: fragment index -> addresses of peers that report it.

        `progress`: fragments come stripe by stripe from all peers at once, so it counts as many of them as the blocks
        that have come would fill.
        """
        self.header = header
        self.report = RetrieveReport()
        self._layout = header.layout
        self._needed = header.coding.data
        self._read = read_blocks
        self._hedge = hedge_seconds
        self._clock = clock
        self._progress = progress
        self._came = 0
        """Blocks that have come, of those that are needed: m of each stripe."""
        self._sources = {index: list(addresses) for index, addresses in holders.items() if addresses}
        # Stretches are small enough for all n peers to share a small state, and large enough to be worth a request.
        most = max(1, STRETCH_BYTES // header.block_bytes)
        self._per_stretch = max(1, min(most, -(-self._layout.stripes // 8)))
        stretch = self._per_stretch * header.block_bytes * self._needed
        self._window = max(2, WINDOW_BYTES // stretch)
        self._open: dict[int, _Stretch] = {}
        self._next_out = 0
        self._stretches = -(-self._layout.stripes // self._per_stretch)
        self._changed = threading.Condition()
        self._working: set[int] = set()
        self._idle: set[int] = set()
        self._over = False
        self._durations: deque[float] = deque(maxlen=101)
        self._unexpected: BaseException | None = None

    def stripes(self) -> Iterator[dict[int, Bytes]]:
        """Yield blocks (prefix included) by fragment index, one mapping per stripe; `StateMissing` if too few."""
        if self._layout.stripes == 0:
            return
        try:
            self._begin()
            while self._next_out < self._stretches:
                stretch, blocks = self._finished_stretch()
                base = self.header.block_span(stretch.first)[0]
                for stripe in range(stretch.first, stretch.first + stretch.count):
                    start, end = self.header.block_span(stripe)
                    yield {index: view[start - base : end - base] for index, view in blocks.items()}
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _begin(self) -> None:
        with self._changed:
            self._fill_window()
            self._started = self._clock()
            self._idle = set(self._sources)
            for index in sorted(self._idle)[: self._needed]:
                self._start(index)

    def _start(self, index: int) -> None:
        self._idle.discard(index)
        self._working.add(index)
        threading.Thread(target=self._work, args=(index,), name=f"holdfast-fragment-{index}", daemon=True).start()

    def _fill_window(self) -> None:
        for number in range(self._next_out, min(self._next_out + self._window, self._stretches)):
            if number not in self._open:
                first = number * self._per_stretch
                self._open[number] = _Stretch(first, min(self._per_stretch, self._layout.stripes - first))

    def _finished_stretch(self) -> tuple[_Stretch, dict[int, memoryview]]:
        """Wait for m blocks of the next stretch; wake more peers when it takes long.

        Its blocks are returned as they are now: peers that were asked twice may still answer.
        """
        with self._changed:
            self._open.pop(self._next_out - 1, None)
            stretch = self._open[self._next_out]
            while len(stretch.blocks) < self._needed:
                if self._unexpected is not None:
                    raise self._unexpected
                if len(self._working | set(stretch.blocks)) + len(self._idle) < self._needed:
                    raise self._too_few(stretch)
                now = self._clock()
                if self._idle and (
                    now - self._started >= self._hedge or len(self._working | set(stretch.blocks)) < self._needed
                ):
                    for index in sorted(self._idle):
                        self._start(index)
                self._changed.wait(self._hedge)
            self._next_out += 1
            self._fill_window()
            self._changed.notify_all()
            self.report.used |= set(stretch.blocks)
            return stretch, dict(stretch.blocks)

    def _work(self, index: int) -> None:
        """Serve one fragment until all is done or every peer that holds it has failed."""
        try:
            for address in self._sources[index]:
                try:
                    self._work_at(index, address)
                    return
                except HoldfastError as error:
                    with self._changed:
                        self.report.lost.append(LostFragment(index, address, str(error)))
                        self._put_back(index)
        except BaseException as error:
            self._unexpected = error
        finally:
            with self._changed:
                self._working.discard(index)
                self._put_back(index)
                self._changed.notify_all()

    def _put_back(self, index: int) -> None:
        """What this fragment's worker had taken is free for others, or for the next peer that holds it."""
        for stretch in self._open.values():
            stretch.under_way.pop(index, None)

    def _work_at(self, index: int, address: str) -> None:
        fragment = FragmentHeader(self.header, index)
        while True:
            stretch = self._take(index)
            if stretch is None:
                return
            began = self._clock()
            data = self._read(address, fragment, stretch.first, stretch.count)
            self._verify(fragment, stretch, data)
            with self._changed:
                self._durations.append(self._clock() - began)
                stretch.under_way.pop(index, None)
                stretch.blocks[index] = memoryview(data)
                self.report.bytes += len(data)
                before = self._came // self._layout.stripes
                self._came += stretch.count if len(stretch.blocks) <= self._needed else 0
                after = self._came // self._layout.stripes
                self._changed.notify_all()
            if after > before:
                self._progress(after, self._needed)

    def _take(self, index: int) -> _Stretch | None:
        """Return a stretch that lacks blocks; else one to double; wait where there is neither; None at the end."""
        with self._changed:
            while not self._over and self._next_out < self._stretches:
                now = self._clock()
                patience = self._stalls()
                doubled: _Stretch | None = None
                for number in sorted(self._open):
                    stretch = self._open[number]
                    if index in stretch.blocks or index in stretch.under_way or len(stretch.blocks) >= self._needed:
                        continue
                    if len(stretch.blocks) + len(stretch.under_way) < self._needed:
                        stretch.under_way[index] = now
                        return stretch
                    slow = sum(now - since > patience for since in stretch.under_way.values())
                    spare = len(stretch.blocks) + len(stretch.under_way) - self._needed
                    if doubled is None and slow > spare:
                        doubled = stretch
                if doubled is not None:
                    doubled.under_way[index] = now
                    self.report.hedged += 1
                    return doubled
                self._changed.wait(self._hedge)
            return None

    def _stalls(self) -> float:
        """Return how long a request may be under way before it is doubled."""
        usual = median(self._durations) if self._durations else FIRST_GUESS_SECONDS
        return max(self._hedge, 3 * usual)

    def _verify(self, fragment: FragmentHeader, stretch: _Stretch, data: Bytes) -> None:
        base = self.header.block_span(stretch.first)[0]
        view = memoryview(data)
        end = base
        try:
            for stripe in range(stretch.first, stretch.first + stretch.count):
                start, end = self.header.block_span(stripe)
                open_block(fragment, stripe, view[start - base : end - base])
        except DamagedFragment as damage:
            raise Corrupt(f"damaged: {damage}") from None
        if len(view) != end - base:
            raise Corrupt(f"received {len(view)} bytes, requested {end - base}")

    def _too_few(self, stretch: _Stretch) -> StateMissing:
        have = sorted(self._working | set(stretch.blocks))
        missing = sorted(set(range(self.header.coding.total)) - set(have))
        return StateMissing(
            f"{self.header}: {len(have)} undamaged fragments found, {self._needed} needed; missing {missing}"
            + "".join(f"; fragment {one.index} at {one.address}: {one.reason}" for one in self.report.lost[:3]),
            remedy="start peers that hold the missing fragments",
        )
