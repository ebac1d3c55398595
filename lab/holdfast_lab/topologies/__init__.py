"""Named topologies: the example applications' own, and the papers', each with where it comes from. Pure.

An example application and the topology of its name are one: the topology is built from the application. The papers'
pictures are lost; their graphs follow from the text and the printed numbers, and what they leave open was chosen once:
each entry's `origin` distinguishes the two; docs/decisions/0020 has the reasons. One module per paper.
"""

from __future__ import annotations

from holdfast.errors import BadInput
from holdfast.examples.registry import EXAMPLES
from holdfast.topology import checks
from holdfast.topology.model import Topology
from holdfast_lab.topologies import fast_recover, ftc, incremental_recovery, ppa
from holdfast_lab.topologies.named import NamedTopology

__all__ = ["NamedTopology", "describe", "named_topologies", "named_topology"]

_ALL: tuple[NamedTopology, ...] = (
    *incremental_recovery.ENTRIES,
    *ppa.ENTRIES,
    *ftc.ENTRIES,
    *fast_recover.ENTRIES,
)
_ENTRIES = {entry.name: entry for entry in _ALL}


def named_topologies() -> list[str]:
    """Return the names there are: the examples', then those of the papers in their order."""
    return [*EXAMPLES, *_ENTRIES]


def describe(name: str) -> NamedTopology:
    """Return the entry of a paper's topology: its title and where it comes from."""
    if name not in _ENTRIES:
        raise BadInput(f"there is no topology named {name!r}", remedy=checks.suggestion(name, named_topologies()))
    return _ENTRIES[name]


def paper_topologies() -> list[NamedTopology]:
    """Return the papers' topologies."""
    return list(_ENTRIES.values())


def named_topology(name: str) -> Topology:
    """Return a named topology."""
    return EXAMPLES[name].application().topology() if name in EXAMPLES else describe(name).build()
