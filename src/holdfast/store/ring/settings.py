"""What can be configured about a peer's part in the ring. Pure; runs anywhere."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.store.ring.leaf_set import SMALLEST_LEAF_SET


@dataclass(frozen=True, slots=True)
class RingSettings:
    """What can be configured; seconds. The defaults are the paper's where it names one (T = 30 s, 24 leaves)."""

    leaf_size: int = SMALLEST_LEAF_SET
    keep_alive: float = 30.0
    """T: seconds between two keep-alives to each member of the leaf set."""
    silences: float = 2.0
    """A member without a message for this many T is probed."""
    answer_within: float = 1.0
    """How long a probe or a hop may take before it is repeated or goes elsewhere."""
    probes: int = 3
    table_period: float = 120.0
    """Seconds between two repairs of the routing table, and two probes of a lost peer."""
    lookup_within: float = 8.0
    """How long a lookup waits for its answer before it is repeated."""
    lookups: int = 3

    @property
    def silence(self) -> float:
        """Seconds of silence after which a member is probed."""
        return self.silences * self.keep_alive

    @property
    def detection(self) -> float:
        """Longest time from a crash to its being noticed by the leaf set (rule 2), ticks being on time."""
        return self.silence + self.keep_alive + self.probes * self.answer_within
