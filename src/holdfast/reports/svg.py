"""Plots as SVG text, for one file that opens without a network. Runs anywhere; pure.

Time along the bottom, lines or steps or bars above it, bands for outages and marks for faults. Colours are classes that
the page's style sheet names, so that a report follows the reader's light or dark setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from holdfast.reports.model import Band, Mark

WIDTH = 1000
RIGHT, TOP, BOTTOM = 20, 14, 40
SERIES = 8
"""How many colours there are; further series begin again, dashed."""
Points = Sequence[tuple[float, float]]
_CHAR = 6.6
"""Pixels of a letter of 12 px, about."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The scales of one plot: time from 0 to `end`, values from `low` to `high`, by powers of ten where `log`."""

    end: float
    low: float
    high: float
    height: int
    log: bool = False
    left: int = 66

    def x(self, at: float) -> float:
        """Return the place of a moment."""
        return self.left + (WIDTH - self.left - RIGHT) * min(max(at, 0.0), self.end) / (self.end or 1.0)

    def y(self, value: float) -> float:
        """Return the place of a value."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        given = math.log10(min(max(value, self.low), self.high)) if self.log else min(max(value, low), high)
        return TOP + (self.height - TOP - BOTTOM) * (1 - (given - low) / ((high - low) or 1.0))

    @property
    def bottom(self) -> int:
        """Return where the plot ends and the scale begins."""
        return self.height - BOTTOM


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


def shades(frame: Frame, bands: Sequence[Band]) -> list[str]:
    """Shade times: outages, and faults that last."""
    parts = []
    for band in bands:
        left, right = frame.x(band.begin), frame.x(band.end)
        title = escape(f"{band.begin:.1f} to {band.end:.1f} s: {band.label}")
        parts.append(
            f'<rect class="band {band.kind}" x="{left:.1f}" width="{max(1.0, right - left):.1f}" y="{TOP}" '
            f'height="{frame.bottom - TOP}"><title>{title}</title></rect>'
        )
    return parts


def lines(frame: Frame, marks: Sequence[Mark]) -> list[str]:
    """Draw the marks of faults and arrivals."""
    parts = []
    for mark in marks:
        at = frame.x(mark.at)
        parts.append(
            f'<line class="mark {mark.kind}" x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 6}" y2="{frame.bottom}">'
            f"<title>{escape(f'{mark.at:.1f} s: {mark.label}')}</title></line>"
        )
    return parts


def axes(frame: Frame, label: str) -> list[str]:
    """Draw the grid and both scales."""
    parts = []
    for value in _log_ticks(frame.low, frame.high) if frame.log else nice_ticks(frame.low, frame.high, 6):
        at = frame.y(value)
        parts.append(f'<line class="grid" x1="{frame.left}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text x="{frame.left - 8}" y="{at + 4:.1f}" text-anchor="end">{_number(value)}</text>')
    parts += time_scale(frame)
    middle = (TOP + frame.bottom) / 2
    parts.append(
        f'<text class="label" transform="rotate(-90 {frame.left - 44} {middle:.0f})" x="{frame.left - 44}" '
        f'y="{middle:.0f}" '
        f'text-anchor="middle">{escape(label)}</text>'
    )
    return parts


def time_scale(frame: Frame) -> list[str]:
    """Draw the seconds along the bottom."""
    bottom = frame.bottom
    parts = [f'<line class="axis" x1="{frame.left}" x2="{WIDTH - RIGHT}" y1="{bottom}" y2="{bottom}"/>']
    for value in nice_ticks(0, frame.end, 12):
        at = frame.x(value)
        parts.append(f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom}" y2="{bottom + 4}"/>')
        parts.append(f'<text x="{at:.1f}" y="{bottom + 17}" text-anchor="middle">{_number(value)}</text>')
    middle = (frame.left + WIDTH - RIGHT) / 2
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
        f'<line class="level" x1="{frame.left}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>'
        f'<text x="{WIDTH - RIGHT}" y="{at - 4:.1f}" text-anchor="end">{escape(label)}</text>'
    )


def bar(frame: Frame, begin: float, end: float, top: float, height: float, kind: str, title: str) -> str:
    """Draw a time of something; at least a pixel wide, so that what was short is seen."""
    left, right = frame.x(begin), frame.x(end)
    return (
        f'<rect class="bar {kind}" x="{left:.1f}" width="{max(1.5, right - left):.1f}" y="{top:.1f}" '
        f'height="{height:g}" rx="1.5"><title>{escape(title)}</title></rect>'
    )


def row_label(frame: Frame, text: str, top: float, note: str = "") -> str:
    """Write the name of a row left of it, cut where it is too long; the whole name shows when pointed at."""
    most = max(4, int((frame.left - 14 - (len(note) + 1) * _CHAR * bool(note)) / _CHAR))
    shown = text if len(text) <= most else f"{text[: most - 1]}…"
    small = f'<tspan class="dim" dx="6">{escape(note)}</tspan>' if note else ""
    return (
        f'<text class="row" x="{frame.left - 8}" y="{top:.1f}" text-anchor="end">{escape(shown)}{small}'
        f"<title>{escape(text)}</title></text>"
    )


def label_space(names: Sequence[str], notes: int = 0) -> int:
    """Return how much room the names of rows need on the left, within reason."""
    longest = max((len(name) for name in names), default=4) + (notes + 1 if notes else 0)
    return int(min(240.0, max(66.0, 18 + longest * _CHAR)))


def drawing(height: int, title: str, parts: Sequence[str]) -> str:
    """Wrap what was drawn into one SVG element."""
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title)}" '
        f'xmlns="http://www.w3.org/2000/svg">{"".join(parts)}</svg>'
    )
