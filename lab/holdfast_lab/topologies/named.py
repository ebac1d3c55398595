"""What a named topology is: its operators, and where each of its numbers comes from. Runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from holdfast.ids import OperatorId
from holdfast.topology.model import Topology
from holdfast.topology.operators import Input, Operator, Partitioning

ONE_TO_ONE, SPLIT, MERGE, FULL = Partitioning.ONE_TO_ONE, Partitioning.SPLIT, Partitioning.MERGE, Partitioning.FULL


@dataclass(frozen=True, slots=True)
class NamedTopology:
    """One entry of the library."""

    name: str
    title: str
    """What it computes or shows, in one line."""
    paper: str
    """Short name of the paper (docs/research/papers.md has the references)."""
    place: str
    """Figure or section of the paper."""
    printed: str
    """What the paper prints, and this topology keeps."""
    chosen: str
    """What the paper leaves open, and what was chosen; empty when nothing was."""
    operators: Callable[[], Iterable[Operator]]

    @property
    def origin(self) -> str:
        """The source: paper, figure, what the paper prints and what was chosen here."""
        origin = f"{self.paper}, {self.place}. Printed: {self.printed}."
        return f"{origin} Chosen: {self.chosen}." if self.chosen else origin

    def build(self) -> Topology:
        """Make the topology."""
        return Topology(self.name, self.operators())


def reads(*sources: tuple[str, Partitioning]) -> tuple[Input, ...]:
    """Write the inputs of an operator."""
    return tuple(Input(OperatorId(source), partitioning) for source, partitioning in sources)
