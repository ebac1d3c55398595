"""The shapes the papers distinguish. Runs anywhere.

Two are about partitions (FTC, where a task is a vertex), two about operators (FastRecover), two about partitionings
(PPA, sec. IV-C). A topology may have several at once.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from holdfast.topology.model import Topology
from holdfast.topology.operators import Partitioning


@dataclass(frozen=True, slots=True)
class Shapes:
    """Which of the papers' shapes a topology has."""

    lines: bool
    """Partitions in one line, or several lines that may meet in a common sink (FTC, sec. IV-B): none has two
    downstream neighbours, and only sinks have two upstream."""
    tree_to_sink: bool
    """Every partition has at most one downstream neighbour, and all lead to one sink."""
    chain: bool
    """Operators in a row: one source, each feeding at most one other."""
    tree_from_root: bool
    """One source operator, and every other operator has one input."""
    structured: bool
    """No full partitioning between its operators."""
    full: bool
    """Only full partitioning between its operators."""
    general: bool
    """Neither structured nor full."""

    def names(self) -> list[str]:
        """Return the names of the shapes it has."""
        return [field.name.replace("_", "-") for field in fields(self) if getattr(self, field.name)]


def shapes_of(topology: Topology) -> Shapes:
    """Return which shapes a topology has."""
    # Two inputs from one operator are refused, so neighbours are counted by edges.
    up, down = np.diff(topology.up_start), np.diff(topology.down_start)
    fan_in = np.diff(topology.link_start)
    fan_out = np.bincount(topology.link_from, minlength=len(topology.operators))
    one_source = int((fan_in == 0).sum()) == 1
    full = topology.link_kind == list(Partitioning).index(Partitioning.FULL)
    structured, only_full = not full.any(), bool(full.all())
    return Shapes(
        lines=int(down.max()) <= 1 and int(up.max(where=down > 0, initial=0)) <= 1,
        tree_to_sink=int(down.max()) <= 1 and int((down == 0).sum()) == 1,
        chain=one_source and int(fan_in.max()) <= 1 and int(fan_out.max()) <= 1,
        tree_from_root=one_source and int(fan_in.max()) <= 1,
        structured=structured,
        full=only_full,
        general=not structured and not only_full,
    )
