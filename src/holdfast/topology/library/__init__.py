"""Named topologies from the papers."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.errors import BadInput
from holdfast.topology import checks
from holdfast.topology.model import Topology

_NAMED: dict[str, Callable[[], Topology]] = {}


def named_topologies() -> list[str]:
    """Return the names there are."""
    return list(_NAMED)


def named_topology(name: str) -> Topology:
    """Return a named topology."""
    if name not in _NAMED:
        raise BadInput(f"there is no topology named {name!r}", remedy=checks.suggestion(name, named_topologies()))
    return _NAMED[name]()
