"""What stands in an operator's box when a topology is drawn: its texts, its partitions, and how large that is.

Runs on the driver. Up to `MOST_SHOWN` partitions are shown; of more the first, one place for the rest, and the last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from holdfast.pictures.layered_layout import Box
from holdfast.topology.model import Topology
from holdfast.topology.operators import Operator
from holdfast.topology.rates import Rates, rates_of

MOST_SHOWN: Final = 8
SHOWN_FIRST: Final = 5
_SHORT_ID: Final = 6
"""Characters of an id that still fit into a partition."""

NAME_SIZE: Final = 11.0
TEXT_SIZE: Final = 8.5
JOIN_TAG: Final = "⋈ join"

PILL: Final = 0.27
PILL_GAP: Final = 0.075
PAD: Final = 0.11
HEAD: Final = 0.30
FACT: Final = 0.17
"""Inches: a partition, the room between two, the border around them, the name above them, and the line of rates."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a group: one partition, or (`index` none) all that are not shown."""

    index: int | None
    text: str
    priority: int | None
    """Of its query, where it is an output."""


@dataclass(frozen=True, slots=True)
class Group:
    """One operator as it will be drawn."""

    operator: Operator
    fact: str
    """Its rates; empty where the topology gives none."""
    slots: tuple[Slot, ...]
    slot_of: tuple[int, ...]
    """The slot of each partition."""
    width: float
    height: float

    @property
    def single(self) -> bool:
        """Whether it has one partition: then the box itself is the partition."""
        return len(self.slots) == 1

    def port(self, box: Box, slot: int, *, right: bool) -> tuple[float, float]:
        """Return where lines leave (right) or reach (left) a slot."""
        if self.single:
            return (box.x + box.width if right else box.x, box.middle)
        top = box.y + box.height - PAD - len(self.slots) * (PILL + PILL_GAP) + PILL_GAP
        y = top + slot * (PILL + PILL_GAP) + PILL / 2
        return (box.x + box.width - PAD if right else box.x + PAD, y)


def groups_of(topology: Topology) -> list[Group]:
    """Return for every operator what is drawn of it."""
    rates = rates_of(topology)
    known = any(operator.rate is not None for operator in topology.operators)
    # Short ids stand in every partition, long ones only above them.
    short = all(len(operator.id) <= _SHORT_ID for operator in topology.operators if operator.parallelism > 1)
    return [_group(topology, number, rates if known else None, short) for number in range(len(topology.operators))]


def _group(topology: Topology, number: int, rates: Rates | None, short: bool) -> Group:
    operator = topology.operators[number]
    first, count = int(topology.first[number]), operator.parallelism
    output = bool(topology.operator_outputs[number])
    shown = list(range(count)) if count <= MOST_SHOWN else [*range(SHOWN_FIRST), count - 1]
    slots = [
        Slot(
            index,
            f"{operator.id if short else ''}[{index}]",
            int(topology.priority[first + index]) if output else None,
        )
        for index in shown
    ]
    slot_of = list(range(count))
    if count > MOST_SHOWN:
        slots.insert(SHOWN_FIRST, Slot(None, f"… {count - len(shown):,} more", None))
        slot_of = [min(index, SHOWN_FIRST) for index in range(count - 1)] + [SHOWN_FIRST + 1]
    fact = "" if rates is None else _rate_text(rates, slice(first, first + count))
    tag = text_width(JOIN_TAG, TEXT_SIZE, bold=True) + 0.12 if operator.joins else 0.0
    badge = 0.34 if output and count == 1 else 0.0
    needed = [text_width(operator.id, NAME_SIZE, bold=True) + tag + badge, text_width(fact, TEXT_SIZE)]
    if count > 1:
        needed += [text_width(slot.text, TEXT_SIZE) + (0.42 if output else 0.16) for slot in slots]
    width = max(*needed, 0.42 if count == 1 else 0.62) + 2 * (PAD + 0.03)
    height = HEAD + (FACT if fact else 0.0) + 0.10
    if count > 1:
        height += len(slots) * (PILL + PILL_GAP) - PILL_GAP + PAD - 0.04
    return Group(operator, fact, tuple(slots), tuple(slot_of), width, height)


def _rate_text(rates: Rates, partitions: slice) -> str:
    entering, leaving = float(rates.input[partitions].sum()), float(rates.output[partitions].sum())
    if abs(entering - leaving) <= 1e-9 * max(entering, leaving):
        return f"{_number(entering)}/s"
    return f"{_number(entering)} → {_number(leaving)}/s"


def _number(value: float) -> str:
    if value >= 1e6:
        return f"{value / 1e6:,.3g}M"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


@cache
def text_width(text: str, size: float, *, bold: bool = False) -> float:
    """Return the width of a text in inches, in the font that every picture has."""
    if not text:
        return 0.0
    font = FontProperties(family="DejaVu Sans", weight="bold" if bold else "normal", math_fontfamily="dejavusans")
    return float(TextPath((0, 0), text.replace("$", "S"), size=size, prop=font).get_extents().x1) / 72
