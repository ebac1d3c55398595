"""When an agent acknowledges a save: what its fragments survive against what they must survive. Pure; runs in agents.

A save is acknowledged when so many peers may be lost, whichever they are, as the run asks for
(`spark.holdfast.store.tolerateNodeLoss`). The share is taken of the agents that the driver knows, not of those that
this agent reaches: an agent that is alone on its side of a cut, or that has not met the others yet, must not call safe
what it alone holds. A code that the agent has tuned has that number in it: its parity, chosen for the agents that the
driver knows (`peers_to_code_for`). Only where the driver knows of no more agents a save counts with fewer holders; then
it is *degraded*, and people are told what it survives.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.erasure.layout import MOST_FRAGMENTS, Coding


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a save is acknowledged."""

    acknowledged: bool
    survives: int
    """Peers that may be lost, whichever they are."""
    line: str | None = None
    """Why it is not acknowledged, or what it lacks although it is."""


def losses_wanted(
    saved: Coding, reached: int, known: int, share: float | None = None, fixed: Coding | None = None
) -> int:
    """Return how many losses a save with this code must survive, of the agents known to the driver, or those reached.

    `share` and `fixed` are what the run asks for; neither: the code was tuned, and all its parity must count.
    """
    if share is None and fixed is None:
        return saved.parity
    return losses_to_survive(known or reached, share or 0.0, fixed)


def losses_to_survive(peers: int, share: float, coding: Coding | None = None) -> int:
    """Return how many peers may be lost, of so many, where this share of them is to be tolerated.

    With a code that is set, as many as it has parity fragments. On rings with more peers than a state has fragments
    the code follows probabilities: there, one.
    """
    if coding is not None:
        return coding.parity
    if peers > MOST_FRAGMENTS:
        return 1 if share > 0 else 0
    return max(0, min(math.floor(peers * share), peers - 1))


def losses_survived(holders: Iterable[str], data: int) -> int:
    """Return how many holders may be lost, whichever they are, with `data` fragments left; below 0: it is lost now.

    `holders` names the holder of every fragment; one that holds several takes them all with it.
    """
    held = sorted(Counter(holders).values(), reverse=True)
    left = sum(held)
    if left < data:
        return -1
    for count, fragments in enumerate(held):
        left -= fragments
        if left < data:
            return count
    return len(held)


def judge(survives: int, wanted: int, *, tolerant: bool) -> Verdict:
    """Decide about a save that survives so many losses, where so many are wanted.

    `tolerant`: the run asks for some losses to be survived, and would have wanted more with more peers.
    """
    if survives < wanted or survives < 0:
        return Verdict(
            acknowledged=False,
            survives=survives,
            line=f"its fragments survive the loss of {max(0, survives)} peers, {wanted} are wanted: not all agents "
            "that the driver knows hold one",
        )
    if tolerant and survives == 0:
        return Verdict(
            acknowledged=True,
            survives=0,
            line="there is no second agent: snapshots survive no loss of a node until the next durable checkpoint",
        )
    return Verdict(acknowledged=True, survives=survives)
