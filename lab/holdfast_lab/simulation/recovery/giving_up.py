"""Queries of simulated runs that a change of layout removes, and that fail for good. Runs anywhere.

In some runs the layout before a change cannot process what is left of a query that is removed: it is given up, and the
others must lose nothing. Random numbers are its own, so that runs without it are what they were.
"""

from __future__ import annotations

import random

from holdfast.ids import PartitionId
from holdfast.runtime.program import Program

SHARE = 0.3
"""Of all runs."""


class GivingUp:
    """Which partitions of removed operators fail."""

    def __init__(self, seed: int, *, wanted: bool) -> None:
        self._draw = random.Random(f"leaves out {seed}")
        self._wanted = self._draw.random() < SHARE and wanted

    def victim(self, before: Program, now: Program) -> PartitionId | None:
        """Return a partition of an output that is removed, to fail from now on; None: none is to, or none is removed.

        One output at least stays, and nothing that stays reads from what is removed.
        """
        removed = [p for p in before.outputs if p.operator not in now.operators]
        stay = [p for p in before.outputs if p.operator in now.operators]
        return self._draw.choice(removed) if self._wanted and removed and stay else None
