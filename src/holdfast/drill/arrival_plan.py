"""When each piece of a source's rows arrives in a drill, and how: all from the seed. Runs anywhere; pure.

In order, piece n arrives n batch intervals after the beginning. With `disorder`, as sources do in the field, some come
late, some come a second time under another name (which makes them other data: their rows count twice), and some files
are written in two steps under a hidden name and show with all their rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.topology.draws import Draws

LATE, AGAIN, TWO_STEPS = 0.12, 0.1, 0.3
"""How often a piece comes late, comes twice, and is written in two steps."""
MOST_LATE = 4


@dataclass(frozen=True, slots=True, order=True)
class Delivery:
    """One piece that arrives: the file of this name, or records of a topic."""

    due: int
    """In which interval."""
    name: str
    number: int
    """Which of the source's pieces it is."""
    two_steps: bool = False


def plan_deliveries(seed: int, source: str, count: int, *, disorder: bool) -> tuple[Delivery, ...]:
    """Lay out the deliveries of a source in their order; none is due after the last interval."""
    draws, found = Draws(seed).branch(f"arrivals of {source}"), []
    for number in range(count):
        late, again, steps = draws.fraction() < LATE, draws.fraction() < AGAIN, draws.fraction() < TWO_STEPS
        by, after = draws.whole(1, MOST_LATE), draws.whole(0, MOST_LATE)
        due = min(count - 1, number + by) if disorder and late else number
        found.append(Delivery(due, f"{number:08d}", number, disorder and steps))
        if disorder and again:
            found.append(Delivery(min(count - 1, due + after), f"{number:08d}-again", number))
    return tuple(sorted(found))
