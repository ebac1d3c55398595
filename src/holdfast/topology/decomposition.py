"""Cut a general topology into structured and full sub-topologies (PPA, sec. IV-C3). Runs anywhere.

A sub-topology is a connected set of operators between which all partitionings are full, or none is. The paper asks for
as few of them as possible and finds them by a search from the sinks upstream that stops where a partitioning does not
fit. Which kind an operator with both sorts of neighbours should join decides how many there are, so that is decided
first, by local search; then the paper's search runs over it. See docs/decisions/0004.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from holdfast.topology.model import Topology
from holdfast.topology.operators import Partitioning

_Links = list[list[tuple[int, bool]]]
"""For each operator its neighbours, and whether the partitioning between is full."""


class SubKind(StrEnum):
    """What a sub-topology is."""

    STRUCTURED = "structured"
    FULL = "full"


@dataclass(frozen=True, slots=True)
class SubTopology:
    """Some operators of a topology (their places in `Topology.operators`, in topological order), and their kind."""

    kind: SubKind
    operators: tuple[int, ...]


def decompose(topology: Topology) -> tuple[SubTopology, ...]:
    """Return sub-topologies that hold every operator once, those of the sinks first."""
    inputs, consumers = _links(topology)
    found = [_search(topology, label, inputs, consumers) for label in _labels(inputs, consumers)]
    return min(found, key=len)


def _links(topology: Topology) -> tuple[_Links, _Links]:
    full_kind = list(Partitioning).index(Partitioning.FULL)
    inputs: _Links = [[] for _ in topology.operators]
    consumers: _Links = [[] for _ in topology.operators]
    links = zip(topology.link_from.tolist(), topology.link_to.tolist(), topology.link_kind.tolist(), strict=True)
    for upstream, downstream, kind in links:
        consumers[upstream].append((downstream, kind == full_kind))
        inputs[downstream].append((upstream, kind == full_kind))
    return inputs, consumers


def _labels(inputs: _Links, consumers: _Links) -> list[list[bool]]:
    """Return candidate labellings (true: full), each improved until no single operator gains by changing."""
    neighbours = [[*up, *down] for up, down in zip(inputs, consumers, strict=True)]
    majority = [sum(full for _, full in links) * 2 > len(links) for links in neighbours]
    candidates = []
    for start in (majority, [False] * len(inputs), [True] * len(inputs)):
        label = list(start)
        # A label keeps the links of its own kind to neighbours of the same label: each change raises that count, so
        # this ends.
        changed = True
        while changed:
            changed = False
            for operator, links in enumerate(neighbours):
                gain_full = sum(full and label[other] for other, full in links)
                gain_structured = sum(not full and not label[other] for other, full in links)
                better = gain_full > gain_structured if gain_full != gain_structured else label[operator]
                if better != label[operator]:
                    label[operator] = better
                    changed = True
        candidates.append(label)
    return candidates


def _search(topology: Topology, label: list[bool], inputs: _Links, consumers: _Links) -> tuple[SubTopology, ...]:
    """From every operator not yet taken, sinks first, take in what can be reached upstream within its kind."""
    rank = {operator: place for place, operator in enumerate(topology.operator_order)}
    taken: set[int] = set()
    found: list[SubTopology] = []
    for start in reversed(topology.operator_order):
        if start in taken:
            continue
        members = {start}
        stack = [start]
        while stack:
            at = stack.pop()
            # Upstream first, as the paper has it; consumers that were stopped elsewhere join here if they fit.
            for other, _ in [*inputs[at], *consumers[at]]:
                if other in members or other in taken or label[other] != label[start]:
                    continue
                links = [*inputs[other], *consumers[other]]
                if all(full == label[start] for neighbour, full in links if neighbour in members):
                    members.add(other)
                    stack.append(other)
        taken |= members
        kind = SubKind.FULL if label[start] and len(members) > 1 else SubKind.STRUCTURED
        found.append(SubTopology(kind, tuple(sorted(members, key=rank.__getitem__))))
    return tuple(found)
