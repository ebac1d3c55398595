"""What a part of the ring experiment gives back: rows for tables, CSV and plots, and claims beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from holdfast_lab.ring_simulation.scenario import RingScenario

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement of the paper, and ours."""

    where: str
    statement: str
    paper: str
    ours: str
    holds: bool | None
    """None: the paper gives nothing to hold ours against."""


@dataclass(frozen=True, slots=True)
class Part:
    """One figure."""

    name: str
    figure: str
    """As the paper counts, or `ours` for what it does not have."""
    title: str
    rows: tuple[Mapping[str, Any], ...]
    claims: tuple[Claim, ...] = ()
    note: str = ""
    """How it was made, in a sentence."""

    def document(self) -> dict[str, Any]:
        """Return the part as JSON values."""
        return {
            "name": self.name,
            "figure": self.figure,
            "title": self.title,
            "note": self.note,
            "rows": [dict(row) for row in self.rows],
            "claims": [asdict(claim) for claim in self.claims],
        }


@dataclass(frozen=True, slots=True)
class RingExperiment:
    """What all parts are run with."""

    scenario: RingScenario
    state_bytes: int = 128 << 20
    """The state of Fig. 11."""
    bandwidth: float = 12.5e6
    """Bytes per second a peer sends: the paper's 100 Mbit/s."""
    repeat: int = 5


@dataclass(frozen=True, slots=True)
class Group:
    """Parts that are made together."""

    name: str
    parts: tuple[str, ...]
    run: Callable[[RingExperiment, Progress], list[Part]]
