"""What a coordinator needs of those who run its cycles: Spark, one process, the simulator. Runs on the driver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.recovery.events import Event
from holdfast.runtime.messages import Cycle, NodeReport


@dataclass(frozen=True, slots=True)
class Broken:
    """A cycle that has not ended, and why: what it did is found out by the next."""

    why: str


class Backend(Protocol):
    """Nodes, and a way to run cycles on them."""

    def events(self) -> Sequence[Event]:
        """Return what has become of nodes since this was asked last."""
        ...

    def run(self, cycle: Cycle) -> Sequence[NodeReport] | Broken:
        """Run one cycle; end it early when a node that it needs is gone."""
        ...

    def request_nodes(self, count: int) -> str | None:
        """Ask for nodes; say why that cannot be done, if it cannot."""
        ...

    def wait(self, seconds: float) -> None:
        """Let time pass, or less of it when something happens."""
        ...
