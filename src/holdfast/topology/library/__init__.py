"""Named topologies from the papers, each with where it comes from. Pure.

The papers' pictures are lost; the graphs follow from their text and printed numbers, and what they leave open was
chosen once: each entry's `origin` says which is which, and docs/decisions/0020 says why. One module per paper.
"""

from __future__ import annotations

from holdfast.errors import BadInput
from holdfast.topology import checks
from holdfast.topology.library import paper_000, paper_001, paper_003, paper_004
from holdfast.topology.library.named import NamedTopology
from holdfast.topology.model import Topology

__all__ = ["NamedTopology", "describe", "named_topologies", "named_topology"]

_ALL: tuple[NamedTopology, ...] = (*paper_000.ENTRIES, *paper_001.ENTRIES, *paper_003.ENTRIES, *paper_004.ENTRIES)
_ENTRIES = {entry.name: entry for entry in _ALL}


def named_topologies() -> list[str]:
    """Return the names there are, in the order of the papers."""
    return list(_ENTRIES)


def describe(name: str) -> NamedTopology:
    """Return the entry of a name: its title and where it comes from."""
    if name not in _ENTRIES:
        raise BadInput(f"there is no topology named {name!r}", remedy=checks.suggestion(name, named_topologies()))
    return _ENTRIES[name]


def named_topology(name: str) -> Topology:
    """Return a named topology."""
    return describe(name).build()
