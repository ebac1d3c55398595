"""Where restored state comes from, and with which code it is stored: what nodes say of it. Runs anywhere.

Nothing here decides anything: it is for people, events and profiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.ids import BatchId, NodeId, PartitionId


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where the bytes came from with which a partition was restored, and how long that took."""

    peer_bytes: int = 0
    """Read from peers' fragments, those of doubled requests included."""
    folder_bytes: int = 0
    """Read from the durable folder."""
    node_bytes: int = 0
    """Found on the node itself."""
    seconds: float = 0.0
    """Spent in retrieving and recomputing from fragments, summed over the snapshots of the chain."""
    predicted_seconds: float | None = None
    """The same by the model, before it began; None: nothing came from peers."""

    def plus(self, more: Fetched) -> Fetched:
        """Return the sums of both."""
        known = [one for one in (self.predicted_seconds, more.predicted_seconds) if one is not None]
        return Fetched(
            self.peer_bytes + more.peer_bytes,
            self.folder_bytes + more.folder_bytes,
            self.node_bytes + more.node_bytes,
            self.seconds + more.seconds,
            sum(known) if known else None,
        )


@dataclass(frozen=True, slots=True)
class Restored:
    """A partition was put in place from snapshots. Only for people and profiles: a report that is lost loses it."""

    partition: PartitionId
    batch: BatchId
    fetched: Fetched


@dataclass(frozen=True, slots=True)
class Fetching:
    """Snapshots of a partition are on their way. Only for people: a report that is lost loses it."""

    partition: PartitionId
    fragments: int
    """How many of the fragments that they are rebuilt from have come."""
    needed: int
    """How many they need."""


@dataclass(frozen=True, slots=True)
class CodeChosen:
    """The agent of a node has chosen another code for its snapshots."""

    node: NodeId
    choice: Mapping[str, Any]
    """m and k, why, for which size of state, and what the model predicts of them."""
    before: tuple[int, int] | None = None
    """m and k before; None: it is the first."""
