"""People of simulated runs who choose which queries give tentative outputs, while the run goes on. Runs anywhere.

In every second range of runs with tentative outputs no application asks for any: people do, at any time, and take it
back. Random numbers are its own, so that other runs are what they were.
"""

from __future__ import annotations

import random

from holdfast.runtime.coordinator.requests import TentativeRequests
from holdfast.runtime.program import Program
from holdfast.storage.storage import Storage
from holdfast_lab.simulation.recovery.faults import Fault, Mischief

ASKED, ON = 0.15, 0.8
"""The chances, at every turn, that somebody chooses; and that the choice is for tentative outputs."""


class Chooser:
    """Those who choose."""

    def __init__(self, seed: int, storage: Storage, mischief: Mischief, *, wanted: bool) -> None:
        """`wanted`: whether anybody chooses in this run."""
        self._draw = random.Random(f"{seed} choices")
        self._requests, self._mischief, self._wanted = TentativeRequests(storage), mischief, wanted

    def strike(self, program: Program) -> None:
        """Perhaps choose for a query, or for all of an output operator."""
        if not self._wanted or not self._mischief.active or self._draw.random() >= ASKED:
            return
        query = self._draw.choice(sorted(program.outputs))
        name = str(query) if self._draw.random() < 0.5 else query.operator
        self._requests.add(name, on=self._draw.random() < ON)
        self._mischief.injected[Fault.TENTATIVE_CHOSEN] += 1
