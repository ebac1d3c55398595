"""The run's storage in a simulation: a driver can die, be frozen or fail at every call. Runs anywhere.

Objects are in memory. Around every call the world may go on without its caller: that is where another driver takes
over. A call can fail with or without its effect, as a store that is away for a moment does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from holdfast.ids import BatchId, OperatorId
from holdfast.runtime.io.source_pieces import Piece, piece_of, read_pieces
from holdfast.runtime.program import Program
from holdfast.runtime.times import Watermark
from holdfast.simulation.recovery.faults import Fault, Mischief
from holdfast.simulation.recovery.stores import Complain
from holdfast.storage.memory import MemoryStorage


class DriverStorage:
    """A driver's view of the storage."""

    def __init__(
        self,
        world: MemoryStorage,
        touch: Callable[[str], None],
        mischief: Mischief,
        created: Callable[[str], None],
        folder: str = "",
    ) -> None:
        """`touch` is called around every call; `created` with the full name of every object that is new."""
        self._world, self._touch, self._mischief, self._created, self._folder = world, touch, mischief, created, folder
        self._view = world.within(folder) if folder else world
        self.url = f"simulated:{folder}"

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """See Storage."""
        self._touch(f"before creating {name}")
        fails = self._mischief.strikes(Fault.STORAGE_FAILED)
        if fails and self._mischief.draw.random() < 0.5:
            raise OSError(f"{name}: no space left")
        new = self._view.create(name, data)
        if new:
            self._created(f"{self._folder}/{name}" if self._folder else name)
        if fails:
            raise OSError(f"{name}: the answer was lost")
        self._touch(f"after creating {name}")
        return new

    def read(self, name: str) -> pa.Buffer | None:
        """See Storage."""
        self._touch(f"before reading {name}")
        return self._view.read(name)

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """See Storage."""
        found = self._view.list(prefix, after=after)
        self._touch(f"after listing {prefix}")
        return found

    def delete(self, names: Iterable[str]) -> None:
        """See Storage: one after the other."""
        for name in names:
            self._touch(f"before deleting {name}")
            self._view.delete([name])

    def within(self, folder: str) -> DriverStorage:
        """See Storage."""
        inside = f"{self._folder}/{folder}" if self._folder else folder
        return DriverStorage(self._world, self._touch, self._mischief, self._created, inside)


@dataclass(frozen=True, slots=True)
class LoggedSource:
    """What a batch has of one source, as it was when the batch was logged."""

    pieces: tuple[Piece, ...]
    tables: tuple[pa.Table | None, ...]
    """The rows of each partition."""
    watermark: Watermark


@dataclass(slots=True)
class LogWatch:
    """What was ever logged. It looks when a batch is logged: later its rows may be trimmed."""

    program: Program
    world: MemoryStorage
    complain: Complain
    batches: dict[BatchId, dict[OperatorId, LoggedSource]] = field(default_factory=dict)

    def created(self, name: str) -> None:
        """Look at an object that is new."""
        kind, _, number = name.rpartition("/")
        if kind != "batches":
            return
        batch = BatchId(int(number))
        if batch in self.batches:
            return  # of a number that was dropped: whoever wrote it must find out that it is over
        fields = _contents(self.world, name)
        found = {}
        for source, one in fields["sources"].items():
            pieces = tuple(piece_of(piece) for piece in one["pieces"])
            for piece in pieces:
                if self.world.read(piece.file) is None:
                    self.complain(f"batch {batch} is logged, and {piece.file} of {source} is not there")
            parallelism = self.program.sources[OperatorId(source)].parallelism
            tables = tuple(read_pieces(self.world, pieces, index) for index in range(parallelism))
            found[OperatorId(source)] = LoggedSource(pieces, tables, one["watermark"])
        self.batches[batch] = found

    def look(self) -> None:
        """See that what the newest progress needs is there: the rows of all batches after the older checkpoint."""
        names = self.world.list("progress/")
        if not names:
            return
        machine = _contents(self.world, names[-1])["machine"]
        checkpoints = None if machine is None else machine["checkpoints"]
        first = -1
        if checkpoints is not None:
            older = checkpoints["durable-before"]
            first = checkpoints["durable"] if older is None else older
        there = set(self.world.list("pieces/"))
        for batch, sources in self.batches.items():
            for source, logged in sources.items() if batch > first else ():
                for piece in logged.pieces:
                    if piece.file not in there:
                        self.complain(f"{piece.file} of {source} in batch {batch} is gone, and may be needed")


def _contents(world: MemoryStorage, name: str) -> dict[str, Any]:
    held = world.read(name)
    assert held is not None
    return dict(json.loads(held.to_pybytes().partition(b"\n")[2]))


class SimulatedReader:
    """Reads a source: micro-batches of one or two tables, the last one again after a start, as Spark does."""

    def __init__(self, tables: list[pa.Table], state: dict[str, Any], mischief: Mischief) -> None:
        self._tables, self._draw = tables, mischief.draw
        self._number, self._at = state.get("number", -1), state.get("at", 0)
        self._again: tuple[int, int, int] | None = None
        if self._number >= 0:
            self._again = self._number, state["from"], self._at

    @property
    def ended(self) -> bool:
        """Whether there is nothing more to deliver."""
        return bool(self._at >= len(self._tables))

    def deliver(self) -> tuple[int, str, pa.Table, dict[str, Any]]:
        """Return the next micro-batch: number, offsets, rows, and what a reader goes on from after it."""
        if self._again is not None:
            number, first, last = self._again
            self._again = None
        else:
            first = self._at
            last = min(len(self._tables), first + self._draw.choice((1, 1, 2)))
            self._number, self._at = self._number + 1, last
            number = self._number
        state = {"number": number, "from": first, "at": last}
        rows = pa.concat_tables(self._tables[first:last]) if last > first else self._tables[0].slice(0, 0)
        return number, f"{first}-{last}", rows, state
