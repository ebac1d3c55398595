"""Changes of the plan of replicas in simulated runs, whatever is lost, built or moving then. Runs anywhere.

Real runs change their plan only while nothing is lost, and seldom. Here it is changed often, in the middle of outages,
and back again, so that copies start and stop in every state of a run. Random numbers are its own: other runs are what
they were.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from holdfast.recovery.copies import level, to_move
from holdfast.recovery.events import ReplicasPlanned
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast_lab.simulation.recovery.checks import Violation
from holdfast_lab.simulation.recovery.faults import Fault, Mischief

CHANGED, AT_ONCE = 0.12, 0.25
"""The chances, at every turn, that the plan changes; and that what it no longer has goes at once."""


class Replanner:
    """Who changes the plan of replicas."""

    def __init__(self, seed: int, mischief: Mischief, found: Callable[[Violation], object], *, wanted: bool) -> None:
        """`wanted`: whether plans change in this run; `found` gets what is wrong right after a change."""
        self._draw, self._mischief, self._found = random.Random(f"{seed} replica plans"), mischief, found
        self.wanted = wanted

    def strike(self, coordinator: Coordinator) -> None:
        """Perhaps change the plan."""
        if self.wanted and self._mischief.active and self._draw.random() < CHANGED:
            self.change(coordinator)

    def change(self, coordinator: Coordinator) -> None:
        """Change the plan, in runs in which plans change."""
        if not self.wanted:
            return
        draw, state = self._draw, coordinator.state
        planned, every = list(state.copies.replicas), sorted(state.partitions)
        if draw.random() < 0.6 and planned:
            planned.remove(draw.choice(planned))
            planned.append(draw.choice(every))
        else:
            planned = draw.sample(every, draw.randint(0, len(every)))
        self._mischief.injected[Fault.REPLICAS_PLANNED] += 1
        at_once = draw.random() < AT_ONCE
        coordinator.handle(ReplicasPlanned(tuple(planned), "drawn", at_once=at_once))
        copies = state.copies
        strange = tuple(p for p in copies.at if p not in copies.replicas and p not in to_move(state))
        if at_once and strange:
            self._found(Violation(f"the plan without {strange[0]} holds at once, and its replica stays", strange))

    def problem(self, coordinator: Coordinator) -> Violation | None:
        """Say what is wrong where nothing goes wrong any more: copies are those of the plan, once these are level."""
        state, copies = coordinator.state, coordinator.state.copies
        if not self.wanted or copies.leaving:
            return None
        planned = {p for p in copies.replicas if state.graph.deterministic(p)}
        stays = set(copies.retiring) if planned - level(state).keys() else set()
        strange = tuple(p for p in copies.at if p not in planned | stays)
        return Violation(f"the plan has no replica of {strange[0]}, and there is one", strange) if strange else None
