"""What a partition goes through, as a table: which state may follow which, and why. Pure.

The table is the truth: the machine changes states only through it, the diagram in the documents is drawn from it, and a
change that is not in it raises with the partition's history.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from holdfast.errors import CheckFailed
from holdfast.ids import Epoch, NodeId, PartitionId


class PartitionState(StrEnum):
    """Where a partition stands."""

    LOST = "lost"
    """It runs nowhere: it has failed, or has not been placed yet."""
    RESTORING = "restoring"
    """A node is chosen; its state is on the way there."""
    CATCHING_UP = "catching-up"
    """It runs, behind the log."""
    RUNNING = "running"
    """It runs, level with the log."""
    PAUSED = "paused"
    """It is held back: outboxes have reached their bound, and its queries are the least valuable."""
    PARKED = "parked"
    """It is held back: all its queries are parked, because an operator, a row or a sink of theirs fails."""


class Cause(StrEnum):
    """Why a partition changes its state."""

    PLACED = "placed"
    """A plan has chosen its node."""
    NODE_LOST = "node-lost"
    STATE_MISSING = "state-missing"
    """Its node is there, and its files are not."""
    RESTORED = "restored"
    RESTORE_FAILED = "restore-failed"
    ROLLED_BACK = "rolled-back"
    """Another partition needs what it has not kept, or a checkpoint is lost."""
    LEVEL = "level"
    BEHIND = "behind"
    BUFFERS_FULL = "buffers-full"
    BUFFERS_FREE = "buffers-free"
    PARKED = "parked"
    """All its queries are parked."""
    PROMOTED = "promoted"
    """Its copy on another node has taken its place."""
    RESUMED = "resumed"
    """One of its queries goes on."""


_S, _C = PartitionState, Cause

TRANSITIONS: dict[tuple[PartitionState, Cause], PartitionState] = {
    (_S.LOST, _C.PLACED): _S.RESTORING,
    (_S.RESTORING, _C.RESTORED): _S.CATCHING_UP,
    (_S.RESTORING, _C.RESTORE_FAILED): _S.LOST,
    (_S.RESTORING, _C.NODE_LOST): _S.LOST,
    (_S.RESTORING, _C.STATE_MISSING): _S.LOST,
    (_S.RESTORING, _C.ROLLED_BACK): _S.RESTORING,
    (_S.CATCHING_UP, _C.LEVEL): _S.RUNNING,
    (_S.CATCHING_UP, _C.PROMOTED): _S.CATCHING_UP,
    (_S.CATCHING_UP, _C.NODE_LOST): _S.LOST,
    (_S.CATCHING_UP, _C.STATE_MISSING): _S.LOST,
    (_S.CATCHING_UP, _C.ROLLED_BACK): _S.RESTORING,
    (_S.CATCHING_UP, _C.BUFFERS_FULL): _S.PAUSED,
    (_S.RUNNING, _C.BEHIND): _S.CATCHING_UP,
    (_S.RUNNING, _C.PROMOTED): _S.CATCHING_UP,
    (_S.RUNNING, _C.NODE_LOST): _S.LOST,
    (_S.RUNNING, _C.STATE_MISSING): _S.LOST,
    (_S.RUNNING, _C.ROLLED_BACK): _S.RESTORING,
    (_S.RUNNING, _C.BUFFERS_FULL): _S.PAUSED,
    (_S.PAUSED, _C.BUFFERS_FREE): _S.CATCHING_UP,
    (_S.PAUSED, _C.PROMOTED): _S.PAUSED,
    (_S.PAUSED, _C.NODE_LOST): _S.LOST,
    (_S.PAUSED, _C.STATE_MISSING): _S.LOST,
    (_S.PAUSED, _C.ROLLED_BACK): _S.RESTORING,
    (_S.CATCHING_UP, _C.PARKED): _S.PARKED,
    (_S.RUNNING, _C.PARKED): _S.PARKED,
    (_S.PAUSED, _C.PARKED): _S.PARKED,
    (_S.PARKED, _C.RESUMED): _S.CATCHING_UP,
    (_S.PARKED, _C.PROMOTED): _S.PARKED,
    (_S.PARKED, _C.NODE_LOST): _S.LOST,
    (_S.PARKED, _C.STATE_MISSING): _S.LOST,
    (_S.PARKED, _C.ROLLED_BACK): _S.RESTORING,
}

AT_WORK_STATES = frozenset({_S.CATCHING_UP, _S.RUNNING})
"""It processes what comes."""
LIVE_STATES = AT_WORK_STATES | {_S.PAUSED, _S.PARKED}
"""Its state is on its node."""
PLACED_STATES = LIVE_STATES | {_S.RESTORING}
"""It has a node."""

_KEPT = 64


@dataclass(frozen=True, slots=True)
class Transition:
    """One change in a partition's history."""

    epoch: Epoch
    cause: Cause
    state: PartitionState
    node: NodeId | None

    def __str__(self) -> str:
        where = "" if self.node is None else f" on {self.node}"
        return f"epoch {self.epoch}: {self.cause}, {self.state}{where}"


class History:
    """What became of one partition, the last changes of it."""

    def __init__(self, partition: PartitionId) -> None:
        self.partition = partition
        self.state = PartitionState.LOST
        self._transitions: deque[Transition] = deque(maxlen=_KEPT)

    @property
    def transitions(self) -> tuple[Transition, ...]:
        """The last changes, oldest first."""
        return tuple(self._transitions)

    def apply(self, cause: Cause, epoch: Epoch, node: NodeId | None) -> PartitionState:
        """Change the state as the table says; what it does not say is refused, with the history."""
        following = TRANSITIONS.get((self.state, cause))
        if following is None:
            raise CheckFailed(
                f"{self.partition} is {self.state} and cannot be {cause} in epoch {epoch}; before: {self}",
                where="recovery",
                remedy="this is a fault of ours: report it with this line",
            )
        self.state = following
        self._transitions.append(Transition(epoch, cause, following, node))
        return following

    def __str__(self) -> str:
        return "; ".join(map(str, self._transitions)) or "nothing yet"


def diagram() -> str:
    """Draw the table as a Mermaid state diagram."""
    causes: dict[tuple[PartitionState, PartitionState], list[str]] = {}
    for (state, cause), following in TRANSITIONS.items():
        causes.setdefault((state, following), []).append(str(cause))

    def name(state: PartitionState) -> str:
        return state.name.lower()

    lines = ["stateDiagram-v2", f"    [*] --> {name(PartitionState.LOST)}"]
    lines += [f'    state "{state}" as {name(state)}' for state in PartitionState if "-" in state]
    for (state, following), why in causes.items():
        lines.append(f"    {name(state)} --> {name(following)}: {', '.join(why)}")
    return "\n".join(lines)
