"""What a simulated driver does that is over and is refused: it looks whether its claim is over. Runs anywhere.

A driver that only saves writes no record of its own, and would wait for a snapshot that nobody takes of it any more.
"""

from __future__ import annotations

from collections.abc import Callable

from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.messages import DesiredState
from holdfast_lab.simulation.recovery.stores import Complain


class ClaimChecks:
    """Looks at one driver."""

    def __init__(self, claim: int, last_claim: Callable[[], int], complain: Complain) -> None:
        """`last_claim` says which claim anybody has taken last."""
        self._claim, self._last_claim, self._complain = claim, last_claim, complain
        self._refused = False

    def emitted(self, seen: Observation) -> None:
        """Take an event of the driver."""
        if seen.kind == "snapshot-not-stored" and seen.fields["fenced"]:
            self._refused |= self._last_claim() > self._claim

    def look(self, desired: DesiredState) -> None:
        """See that a driver whose snapshot was refused because its claim is over has ended, and hands out no more."""
        if self._refused:
            self._complain(f"a snapshot of claim {self._claim} was refused as fenced, and its driver hands out cycles")
