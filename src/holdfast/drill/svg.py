"""Plots as SVG text, for one file that opens without a network. Runs anywhere; pure.

Only what a drill's report needs: time along the bottom, lines or steps or bars above it, marks for faults. Colours are
classes that the page's style sheet names, so that a report follows the reader's light or dark setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 920
LEFT, RIGHT, TOP, BOTTOM = 66, 18, 16, 40
SERIES = 8
"""How many colours there are; further series begin again, dashed."""
Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that is marked in every plot: a fault, or a node that came."""

    at: float
    label: str
    kind: str
    """`bad` or `good`: its colour."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The scales of one plot: time from 0 to `end`, values from `low` to `high`, by powers of ten where `log`."""

    end: float
    low: float
    high: float
    height: int
    log: bool = False

    def x(self, at: float) -> float:
        """Return the place of a moment."""
        return LEFT + (WIDTH - LEFT - RIGHT) * min(max(at, 0.0), self.end) / (self.end or 1.0)

    def y(self, value: float) -> float:
        """Return the place of a value."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        given = math.log10(min(max(value, self.low), self.high)) if self.log else min(max(value, low), high)
        return TOP + (self.height - TOP - BOTTOM) * (1 - (given - low) / ((high - low) or 1.0))


def nice_ticks(low: float, high: float, most: int = 8) -> list[float]:
    """Return round values between two, at most about so many: steps of 1, 2 or 5 times a power of ten."""
    span = max(high - low, 1e-9)
    step = 10.0 ** math.floor(math.log10(span / most))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= most)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 10) for number in range(first, int(high / step + 1e-9) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    wide = last - first > 2
    factors = (1,) if wide else (1, 2, 5)
    found = [factor * 10.0**power for power in range(first, last + 1) for factor in factors]
    return [value for value in found if low * 0.999 <= value <= high * 1.001]


def _number(value: float) -> str:
    return f"{value:g}"


def axes(frame: Frame, label: str, marks: Sequence[Mark]) -> list[str]:
    """Draw the grid, both scales and the marks of faults."""
    bottom = frame.height - BOTTOM
    parts = []
    for mark in marks:
        at = frame.x(mark.at)
        title = escape(f"{mark.at:.1f} s: {mark.label}")
        parts.append(
            f'<line class="mark {mark.kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP}" y2="{bottom}">'
            f"<title>{title}</title></line>"
        )
    for value in _log_ticks(frame.low, frame.high) if frame.log else nice_ticks(frame.low, frame.high, 6):
        at = frame.y(value)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    parts += time_scale(frame)
    middle = (TOP + bottom) / 2
    parts.append(
        f'<text class="label" transform="rotate(-90 14 {middle:.0f})" x="14" y="{middle:.0f}" '
        f'text-anchor="middle">{escape(label)}</text>'
    )
    return parts


def time_scale(frame: Frame) -> list[str]:
    """Draw the seconds along the bottom."""
    bottom = frame.height - BOTTOM
    parts = [f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>']
    for value in nice_ticks(0, frame.end, 12):
        at = frame.x(value)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{_number(value)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="label" x="{middle:.0f}" y="{frame.height - 6}" text-anchor="middle">seconds</text>')
    return parts


def line(
    frame: Frame,
    points: Points,
    series: int,
    title: str,
    *,
    gaps: Points = (),
    steps: bool = False,
    faint: bool = False,
) -> str:
    """Draw one series: a line through its points, or steps that hold a value until the next; nothing over gaps."""
    path = ""
    before = -math.inf
    for at, value in points:
        x, y = frame.x(at), frame.y(value)
        broken = not path or any(before < end and begin < at for begin, end in gaps)
        path += f"M{x:.1f} {y:.1f}" if broken else f"H{x:.1f}V{y:.1f}" if steps else f"L{x:.1f} {y:.1f}"
        before = at
    if not path:
        return ""
    kind = f"series s{series % SERIES}" + (" dashed" if series >= SERIES else "") + (" faint" if faint else "")
    return f'<path class="{kind}" d="{path}"><title>{escape(title)}</title></path>'


def level_line(frame: Frame, value: float, label: str) -> str:
    """Draw a value that others are compared with."""
    at = frame.y(value)
    return (
        f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text class="note" x="{WIDTH - RIGHT}" y="{at - 4:.1f}" text-anchor="end">{escape(label)}</text>'
    )


def drawing(height: int, title: str, parts: Sequence[str]) -> str:
    """Wrap what was drawn into one SVG element."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
