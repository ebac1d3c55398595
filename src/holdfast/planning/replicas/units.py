"""Units and segments of a topology (PPA, sec. IV-C1): what the structure-aware planner adds at a time.

Runs anywhere. A structured sub-topology is cut into units so that a unit has few minimal complete trees of its own, its
**segments**. A boundary lies before an operator that receives a merge and sends a split, and before a join that
receives a merge, each time at the merging link. In a full sub-topology any partition fits any other: there every
operator is a unit, and a segment is a single partition (Alg. 4 adds one task at a time).

The paper's rules keep segments few along one path of operators. Where several paths of independent inputs part and meet
again inside a unit, their number doubles each time; a unit with far more segments than partitions is cut into its
operators, which is always right and only gives the planner smaller pieces to put together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from holdfast.planning.replicas.fidelity import LossModel, Mask
from holdfast.topology import Partitioning, SubKind, decompose

_KINDS = list(Partitioning)
_MERGE, _SPLIT = _KINDS.index(Partitioning.MERGE), _KINDS.index(Partitioning.SPLIT)
_SEGMENTS_PER_PARTITION = 4
_SEGMENTS_ALWAYS = 64

Segment = tuple[int, ...]
"""Partitions that together bring something through their unit, upstream first."""


@dataclass(frozen=True, slots=True)
class Units:
    """All units of a topology, each a tuple of operators (their places), and the segments of all units."""

    units: tuple[tuple[int, ...], ...]
    segments: tuple[Segment, ...]
    inside: Mask
    """Whether each input stream comes from its partition's own unit."""


def units_of(model: LossModel) -> Units:
    """Cut a topology into units and list their segments."""
    uncut = _uncut_links(model)
    units: list[tuple[int, ...]] = []
    cut = np.zeros(len(model.topology.operators), bool)
    for members in _connected(model, uncut):
        if len(members) > 1 and _too_many_segments(model, uncut[model.topology.stream_link], members):
            units += [(operator,) for operator in members]
            cut[list(members)] = True
        else:
            units.append(members)
    # An uncut link joins its operators into one unit; cut units have no links inside.
    inside = (uncut & ~cut[model.topology.link_to])[model.topology.stream_link]
    heads = _heads(model, inside)
    found: list[Segment] = []
    listed: dict[int, list[Segment]] = {}
    for partitions in model.topology.partitions_by_level:
        for p in partitions.tolist():
            listed[p] = _segments_to(model, inside, listed, p)
            if heads[model.topology.operator_of[p]]:
                found += listed[p]
    return Units(tuple(units), tuple(dict.fromkeys(found)), inside)


def _uncut_links(model: LossModel) -> Mask:
    """Return for each link whether it stays inside a unit: it does not cross a boundary."""
    topology = model.topology
    sub_of: dict[int, tuple[int, SubKind]] = {}
    for number, sub in enumerate(decompose(topology)):
        sub_of.update(dict.fromkeys(sub.operators, (number, sub.kind)))
    joining = set(topology.operator_of[model.joins].tolist())
    links = list(zip(topology.link_from.tolist(), topology.link_to.tolist(), topology.link_kind.tolist(), strict=True))
    splitting = {up for up, down, kind in links if kind == _SPLIT and sub_of[up][0] == sub_of[down][0]}
    stays = (
        sub_of[up] == sub_of[down]
        and sub_of[up][1] is SubKind.STRUCTURED
        and not (kind == _MERGE and (down in joining or down in splitting))
        for up, down, kind in links
    )
    return np.fromiter(stays, bool, len(links))


def _connected(model: LossModel, uncut: Mask) -> list[tuple[int, ...]]:
    parent = list(range(len(model.topology.operators)))

    def root(at: int) -> int:
        while parent[at] != at:
            parent[at] = parent[parent[at]]
            at = parent[at]
        return at

    topology = model.topology
    for up, down in zip(topology.link_from[uncut].tolist(), topology.link_to[uncut].tolist(), strict=True):
        parent[root(up)] = root(down)
    members: dict[int, list[int]] = {}
    for operator in range(len(parent)):
        members.setdefault(root(operator), []).append(operator)
    return [tuple(one) for one in members.values()]


def _heads(model: LossModel, inside: Mask) -> Mask:
    """Return for each operator whether segments end there: nothing in its unit consumes it, or it has a value."""
    topology = model.topology
    heads = np.ones(len(topology.operators), bool)
    heads[topology.link_from[topology.stream_link[inside]]] = False
    worth = np.bincount(topology.operator_of, model.weight, minlength=len(topology.operators)) > 0
    return heads | worth


def _too_many_segments(model: LossModel, inside: Mask, members: tuple[int, ...]) -> bool:
    topology = model.topology
    chosen = [p for o in members for p in range(int(topology.first[o]), int(topology.first[o + 1]))]
    ways: dict[int, int] = {}
    for p in sorted(chosen, key=topology.level.__getitem__):
        streams = _streams(model, p)
        sums = [sum(ways[u] for u in _upstream(model, s)) for s in streams if inside[s]]
        if model.joins[p]:
            ways[p] = int(np.prod(np.array(sums, float), initial=1.0)) if sums else 1
        else:
            ways[p] = sum(sums) + (len(sums) < max(1, len(streams)))
    return sum(ways.values()) > (_SEGMENTS_PER_PARTITION * len(members) + 2) * len(chosen) + _SEGMENTS_ALWAYS


def _segments_to(model: LossModel, inside: Mask, listed: dict[int, list[Segment]], p: int) -> list[Segment]:
    """Return the segments that end at a partition."""
    streams = _streams(model, p)
    inner = [s for s in streams if inside[s]]
    if not inner:
        return [(p,)]
    if not model.joins[p]:
        found = [(*segment, p) for s in inner for u in _upstream(model, s) for segment in listed[u]]
        # Fed from outside too: then it may do without its own unit.
        return found if len(inner) == len(streams) else [*found, (p,)]
    level = model.topology.level
    found = []
    for parts in product(*([segment for u in _upstream(model, s) for segment in listed[u]] for s in inner)):
        united = set().union(*parts)
        found.append((*sorted(united, key=lambda one: (level[one], one)), p))
    return found


def _streams(model: LossModel, p: int) -> range:
    start = model.topology.stream_start
    return range(int(start[p]), int(start[p + 1]))


def _upstream(model: LossModel, stream: int) -> list[int]:
    topology = model.topology
    found: list[int] = topology.edge_from[topology.edge_start[stream] : topology.edge_start[stream + 1]].tolist()
    return found
