"""Steps that end their process: what was being processed when it died, and which steps are not tried again.

Runs on a node. An operator may take its whole process with it: a fault in native code, the kernel out of memory. The
process notes what it is about to process where its supervisor can read it; an attempt at a step in which the process
has died is answered as failed from then on, as one is that raises. When to try again, and when to park the step's
queries, is the coordinator's decision. Where rows to blame are searched for (row_search.py), each try is a piece of its
step, and a death counts for the piece; so is the reading of a source's rows, where the reader's own native code may
fail. It also counts its steps and the turns of its loop: a process whose count stands still hangs, and is ended by its
supervisor as if it had crashed.
"""

from __future__ import annotations

import json
import mmap
import signal
import struct
from dataclasses import dataclass
from typing import Protocol

from holdfast.ids import BatchId, OperatorId, PartitionId

Step = tuple[PartitionId, BatchId]

READING = "reading"
"""The piece of a source's step in which its rows are read, often ahead of the step itself."""
_SIZE = 4096
_LENGTH, _COUNT = struct.Struct("<I"), struct.Struct("<Q")
_STEP_AT = _COUNT.size + _LENGTH.size
"""In the shared memory: the count, the length of the noted step, the step."""


@dataclass(frozen=True, slots=True)
class Death:
    """How a process has died in an attempt at a step."""

    attempt: int
    how: str
    out_of_memory: bool = False
    """Whether its supervisor ended it because of the memory it took."""
    stalled: bool = False
    """Whether its supervisor ended it because the step did not end."""

    def __str__(self) -> str:
        return f"the operator process was ended in this batch {self.how}"

    @property
    def in_reading(self) -> str:
        """Say it of the reading of a batch's rows."""
        return f"the operator process was ended while it read the batch's rows, {self.how}"


class StepGuard(Protocol):
    """Told of every step before and after it."""

    def begin(self, partition: PartitionId, batch: BatchId, attempt: int, piece: str = "") -> Death | None:
        """An attempt at a step, or at a piece of it, is about to begin; or say why it must not."""
        ...

    def end(self) -> None:
        """It has ended, well or with an exception."""
        ...

    def turn(self) -> None:
        """The loop has turned: the process does not hang."""
        ...


class NoGuard:
    """For processes without a supervisor: notes nothing."""

    def begin(self, partition: PartitionId, batch: BatchId, attempt: int, piece: str = "") -> Death | None:
        """See StepGuard."""
        return None

    def end(self) -> None:
        """See StepGuard."""

    def turn(self) -> None:
        """See StepGuard."""


class ApartGuard:
    """For steps that are made beside those of the partitions themselves: a death in one counts for its kind alone."""

    def __init__(self, guard: StepGuard, kind: str) -> None:
        """`kind` names such steps; `guard` notes them."""
        self._guard, self._kind = guard, kind

    def begin(self, partition: PartitionId, batch: BatchId, attempt: int, piece: str = "") -> Death | None:
        """See StepGuard."""
        return self._guard.begin(partition, batch, attempt, f"{self._kind} {piece}")

    def end(self) -> None:
        """See StepGuard."""
        self._guard.end()

    def turn(self) -> None:
        """See StepGuard."""
        self._guard.turn()


class SharedGuard:
    """Notes steps in memory that a supervisor shares with the processes it forks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)
        self._deaths: dict[tuple[PartitionId, BatchId, str], Death] = {}
        """The last attempt at each step, and at each piece of it, in which a process died, and how."""
        self._count = 0

    # -- in the operator process ---------------------------------------------------------------------------------------

    def begin(self, partition: PartitionId, batch: BatchId, attempt: int, piece: str = "") -> Death | None:
        """See StepGuard."""
        died = self._deaths.get((partition, batch, piece))
        if died is not None and died.attempt >= attempt:
            return died
        self.turn()
        noted = json.dumps([partition.operator, partition.index, batch, attempt, piece]).encode()
        if len(noted) <= _SIZE - _STEP_AT:
            self._memory[_STEP_AT : _STEP_AT + len(noted)] = noted
            self._note_length(len(noted))
        return None

    def end(self) -> None:
        """See StepGuard."""
        self._note_length(0)

    def turn(self) -> None:
        """See StepGuard."""
        self._count += 1
        self._memory[: _COUNT.size] = _COUNT.pack(self._count)

    def _note_length(self, length: int) -> None:
        self._memory[_COUNT.size : _STEP_AT] = _LENGTH.pack(length)

    # -- in the supervisor ---------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many steps and turns the operator process has begun; 0: its loop has not turned yet."""
        (count,) = _COUNT.unpack(self._memory[: _COUNT.size])
        return int(count)

    @property
    def in_step(self) -> bool:
        """Whether the operator process is in a step, and not in its loop."""
        (length,) = _LENGTH.unpack(self._memory[_COUNT.size : _STEP_AT])
        return bool(length)

    @property
    def stalled_before(self) -> bool:
        """Whether an earlier attempt at the step that the process is in has stalled."""
        step = self._noted()
        return step is not None and any(
            died.stalled and (partition, batch) == step[:2] for (partition, batch, _), died in self._deaths.items()
        )

    def _noted(self) -> tuple[PartitionId, BatchId, int, str] | None:
        """Return the step that the process is in, the attempt and its piece; None where that cannot be read."""
        (length,) = _LENGTH.unpack(self._memory[_COUNT.size : _STEP_AT])
        if not length:
            return None
        try:
            operator, index, batch, attempt, piece = json.loads(self._memory[_STEP_AT : _STEP_AT + length])
        except ValueError:
            return None  # the process is writing it just now
        return PartitionId(OperatorId(operator), int(index)), BatchId(batch), attempt, piece

    def died(
        self, status: int, why: str | None = None, *, out_of_memory: bool = False, stalled: bool = False
    ) -> Step | None:
        """The operator process is gone, with this exit status, or ended for a reason; return the step it was in."""
        noted = self._noted()
        self._memory[: _COUNT.size] = _COUNT.pack(0)
        if noted is None:
            return None
        self.end()
        partition, batch, attempt, piece = noted
        step = partition, batch
        # Of a partition the last step alone: it goes on from there, or not at all. A batch that is read is later than
        # the one that is processed: a death in one is no reason to forget one in the other, which would come again.
        self._deaths = {
            one: died
            for one, died in self._deaths.items()
            if one[0] != step[0] or one[1] == step[1] or (READING in one[2]) != (READING in piece)
        }
        self._deaths[(*step, piece)] = Death(attempt, why or ended_by(status), out_of_memory, stalled)
        return step


def ended_by(status: int) -> str:
    """Say how a process ended, from its exit status (negative: a signal)."""
    if status >= 0:
        return f"with exit status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
