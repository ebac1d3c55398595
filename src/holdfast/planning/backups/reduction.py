"""What remains to be decided about backups, once everything that is certain has been taken out. Runs anywhere.

Fewest backups is a hitting problem: of every path that takes longer than R, some partition but the last must keep a
backup. `reduce` shrinks it without losing an optimum (docs/decisions/0042 has the proofs):

1. an edge on no path longer than R does nothing and goes;
2. u with T(u) + T(v) > R for a consumer v keeps a backup; no partition is late because of it then: its edges go;
3. partitions with the same upstream and the same downstream neighbours are **twins**. A fewest set takes, of each group
   of twins, those with T above some threshold. So a group is one node with **levels**: to lower what it passes on from
   one T to the next lower, pay for the partitions in between;
   A full partitioning between many and many is one **hub** that takes no time: a sum of edges, not a product;
4. a node that only passes on to partitions without consumers of their own is only bounded: L(u) + `tail` <= R;
5. a group without undecided upstream, whose one consumer is a single partition w, needs no backup but what its tail
   forces, since at w one is worth more: it becomes `head`, what w must wait for at least. (This alone solves trees.)
6. in the mirror: a group whose one upstream neighbour is a single partition becomes part of that one's tail.

Rules 5 and 6 choose among sets of equal size, so they are left out where such sets differ (re-planning). What is left
falls into parts that do not touch: each a `Core`. All this is about partitions that fail alone; `domains` has
what failure domains add.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from holdfast.planning.backups.model import BackupProblem, Mask
from holdfast.topology import Ints, Partitioning

HUB_COST = 1 << 40
"""Marks a hub, which is no partition: nothing can be backed up there."""


@dataclass(slots=True)
class Node:
    """A group of twins while rules are applied. `levels` are (T, cost, partitions), largest T first."""

    levels: list[tuple[int, int, list[int]]]
    tail: int
    """The largest T after this node that cannot be avoided: its consumers', or what rule 6 made of them."""
    rank: float
    """Its level in the topology; hubs lie between two."""
    head: int = 0
    """What this node waits for at least, by rule 5."""
    up: set[int] = field(default_factory=set)
    down: set[int] = field(default_factory=set)

    @property
    def single(self) -> bool:
        """Whether it is one partition."""
        return len(self.levels) == 1 and len(self.levels[0][2]) == 1

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to decide about it, or through it."""
        if self.levels[0][1] == HUB_COST:
            return not self.up or not self.down
        return not self.up and not self.down


@dataclass(frozen=True, slots=True)
class CoreNode:
    """A group of twins in a core: places of upstream and downstream nodes, and levels with their costs."""

    ticks: tuple[int, ...]
    """T of each level, largest first."""
    costs: tuple[int, ...]
    """What it costs to back up all partitions of a level."""
    head: int
    tail: int
    down: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Core:
    """A connected part of what is undecided; nodes are in topological order. Equal cores have equal answers."""

    limit: int
    nodes: tuple[CoreNode, ...]


@dataclass(frozen=True, slots=True)
class Reduced:
    """What is certain, and the cores with the partitions of each node's levels."""

    certain: Mask
    cores: tuple[Core, ...]
    partitions: tuple[tuple[tuple[tuple[int, ...], ...], ...], ...]
    """Of each core, of each node, of each level: the partitions that a backup of the level means."""

    def backups(self, levels: list[list[int]]) -> Mask:
        """Return the whole set when node i of core c has its first `levels[c][i]` levels backed up."""
        made = self.certain.copy()
        for of_core, chosen in zip(self.partitions, levels, strict=True):
            for of_node, count in zip(of_core, chosen, strict=True):
                for of_level in of_node[:count]:
                    made[list(of_level)] = True
        return made


def reduce(problem: BackupProblem, *, cost: Ints | None = None, contract: bool = True) -> Reduced:
    """Apply the rules. `cost` is what each partition's backup costs (1), `contract`: whether rules 5 and 6 apply."""
    alive, certain = _prune(problem)
    nodes = _twins(problem, alive, np.ones(len(problem), np.int64) if cost is None else cost)
    _settle(nodes, problem.limit, certain, contract)
    while _cut_useless(nodes, problem):
        _settle(nodes, problem.limit, certain, contract)
    return _cores(problem, nodes, certain)


class _Sweeps:
    """Longest paths over the edges that are alive, downwards and upwards."""

    def __init__(self, problem: BackupProblem) -> None:
        topology = problem.topology
        self.ticks = problem.ticks
        self.alive = np.ones(topology.task_edges, bool)
        self.down = []
        for edges in topology.edges_by_level:
            if len(edges):
                to = topology.edge_to[edges]
                starts = np.flatnonzero(np.concatenate([[True], to[1:] != to[:-1]]))
                self.down.append((edges, topology.edge_from[edges], starts, to[starts]))
        edges = topology.down_edges
        start = topology.edge_from[edges]
        order = np.argsort(-topology.level[start], kind="stable")
        edges, start = edges[order], start[order]
        level = topology.level[start]
        cuts = np.flatnonzero(level[1:] != level[:-1]) + 1
        self.up = []
        for part in np.split(np.arange(len(edges)), cuts) if len(edges) else []:
            here = start[part]
            starts = np.flatnonzero(np.concatenate([[True], here[1:] != here[:-1]]))
            self.up.append((edges[part], topology.edge_to[edges[part]], starts, here[starts]))

    def ending(self) -> Ints:
        """Return the longest path that ends at each partition, itself included."""
        return self._sweep(self.down)

    def starting(self) -> Ints:
        """Return the longest path that starts at each partition, itself included."""
        return self._sweep(self.up)

    def _sweep(self, steps: list[tuple[Ints, Ints, Ints, Ints]]) -> Ints:
        found = self.ticks.copy()
        for edges, other, starts, target in steps:
            found[target] += np.maximum.reduceat(np.where(self.alive[edges], found[other], 0), starts)
        return found


def _prune(problem: BackupProblem) -> tuple[Mask, Mask]:
    """Apply rules 1 and 2 until neither does anything: which edges are left, and which backups are certain."""
    topology, limit = problem.topology, problem.limit
    sweeps = _Sweeps(problem)
    alive = sweeps.alive
    edge_from, edge_to = topology.edge_from, topology.edge_to
    certain = np.zeros(len(problem), bool)
    certain[edge_from[problem.ticks[edge_from] + problem.ticks[edge_to] > limit]] = True
    alive &= ~certain[edge_from]
    # Edges to and from partitions that keep backups fall away; paths get shorter, so one more pass may find more.
    while True:
        useless = alive & (sweeps.ending()[edge_from] + sweeps.starting()[edge_to] <= limit)
        if not useless.any():
            return alive, certain
        alive &= ~useless


def _joined(problem: BackupProblem, alive: Mask) -> tuple[Ints, Ints, list[tuple[int, int]]]:
    """Return edges from and to, full partitionings replaced by hubs, and each hub's level and longest T after it.

    Hubs are numbered after the partitions. All partitions that send over a link reach all that receive over it: rule 1
    may have taken some of these edges away, which is no duty.
    """
    topology = problem.topology
    edge_from, edge_to = topology.edge_from, topology.edge_to
    link = topology.stream_link[topology.edge_stream]
    is_full = topology.link_kind == list(Partitioning).index(Partitioning.FULL)
    full = np.flatnonzero(alive & is_full[link])
    order = full[np.argsort(link[full], kind="stable")]
    cuts = np.flatnonzero(np.diff(link[order])) + 1
    starts, ends = [], []
    hubs: list[tuple[int, int]] = []
    plain = alive.copy()
    for edges in np.split(order, cuts) if len(order) else []:
        senders, receivers = np.unique(edge_from[edges]), np.unique(edge_to[edges])
        if len(senders) * len(receivers) <= len(senders) + len(receivers):
            continue
        hub = len(problem) + len(hubs)
        hubs.append((int(topology.level[senders[0]]), int(problem.ticks[receivers].max())))
        starts += [senders, np.full(len(receivers), hub)]
        ends += [np.full(len(senders), hub), receivers]
        plain[edges] = False
    rest = np.flatnonzero(plain)
    return np.concatenate([edge_from[rest], *starts]), np.concatenate([edge_to[rest], *ends]), hubs


def _twins(problem: BackupProblem, alive: Mask, cost: Ints) -> dict[int, Node]:
    """Group twins (rule 3) and fold partitions without consumers into tails (rule 4)."""
    edge_from, edge_to, hubs = _joined(problem, alive)
    total = len(problem) + len(hubs)
    order = np.lexsort((edge_from, edge_to))
    up_from = edge_from[order]
    up_start = np.searchsorted(edge_to[order], np.arange(total + 1))
    order = np.lexsort((edge_to, edge_from))
    down_to = edge_to[order]
    down_start = np.searchsorted(edge_from[order], np.arange(total + 1))
    inner = np.flatnonzero(np.diff(down_start) > 0)

    group_of: dict[tuple[bytes, bytes, bool], int] = {}
    node_of = np.full(total, -1, np.int64)
    members: list[list[int]] = []
    for v in inner.tolist():
        key = (
            up_from[up_start[v] : up_start[v + 1]].tobytes(),
            down_to[down_start[v] : down_start[v + 1]].tobytes(),
            v >= len(problem),
        )
        number = group_of.setdefault(key, len(members))
        if number == len(members):
            members.append([])
        members[number].append(v)
        node_of[v] = number

    nodes: dict[int, Node] = {}
    longest_after = np.concatenate([problem.ticks, np.array([after for _, after in hubs], np.int64)])
    times, costs, level = problem.ticks.tolist(), cost.tolist(), problem.topology.level
    for number, group in enumerate(members):
        first = group[0]
        after = down_to[down_start[first] : down_start[first + 1]]
        consumers = node_of[after]
        down = set(np.unique(consumers[consumers >= 0]).tolist())
        if first >= len(problem):
            nodes[number] = Node([(0, HUB_COST, [])], tail=0, rank=hubs[first - len(problem)][0] + 0.5, down=down)
            continue
        by_time: dict[int, list[int]] = {}
        for v in sorted(group, key=lambda v: -times[v]):
            by_time.setdefault(times[v], []).append(v)
        levels = [(t, sum(costs[v] for v in of_level), of_level) for t, of_level in by_time.items()]
        nodes[number] = Node(levels, tail=int(longest_after[after].max()), rank=float(level[first]), down=down)
    for number, node in nodes.items():
        for other in node.down:
            nodes[other].up.add(number)
    return nodes


def _settle(nodes: dict[int, Node], limit: int, certain: Mask, contract: bool) -> None:
    """Decide what heads and tails force, and contract by rules 5 and 6, until nothing changes."""
    waiting = list(nodes)
    queued = set(waiting)
    while waiting:
        number = waiting.pop()
        queued.discard(number)
        if number not in nodes:
            continue
        node = nodes[number]
        touched: set[int] = set()
        while node.levels and node.head + node.levels[0][0] + node.tail > limit:
            certain[node.levels.pop(0)[2]] = True
            touched |= node.up | node.down
        if not node.levels:
            _drop(nodes, number)
        elif node.is_idle:
            touched |= node.up | node.down
            _drop(nodes, number)
        elif contract:
            touched |= _contract(nodes, number)
        for other in touched:
            if other in nodes and other not in queued:
                queued.add(other)
                waiting.append(other)


def _contract(nodes: dict[int, Node], number: int) -> set[int]:
    node = nodes[number]
    touched: set[int] = set()
    if not node.up and len(node.down) == 1 and nodes[consumer := next(iter(node.down))].single:
        nodes[consumer].head = max(nodes[consumer].head, node.head + node.levels[0][0])
        touched.add(consumer)
        _drop(nodes, number)
    elif not node.down and len(node.up) == 1 and nodes[feeder := next(iter(node.up))].single:
        nodes[feeder].tail = max(nodes[feeder].tail, node.levels[0][0] + node.tail)
        touched.add(feeder)
        _drop(nodes, number)
    return touched


def _cut_useless(nodes: dict[int, Node], problem: BackupProblem) -> bool:
    """Apply rule 1 to nodes as they are now; return whether an edge was removed."""
    order = _in_order(nodes)
    ending: dict[int, int] = {}
    for number in order:
        node = nodes[number]
        ending[number] = node.levels[0][0] + max([node.head, *(ending[other] for other in node.up)])
    starting: dict[int, int] = {}
    for number in reversed(order):
        node = nodes[number]
        starting[number] = node.levels[0][0] + max([node.tail, *(starting[other] for other in node.down)])
    cut = False
    for number in order:
        for other in [other for other in nodes[number].down if ending[number] + starting[other] <= problem.limit]:
            nodes[number].down.discard(other)
            nodes[other].up.discard(number)
            cut = True
    return cut


def _in_order(nodes: dict[int, Node]) -> list[int]:
    return sorted(nodes, key=lambda number: nodes[number].rank)


def _drop(nodes: dict[int, Node], number: int) -> None:
    node = nodes.pop(number)
    for other in node.up:
        nodes[other].down.discard(number)
    for other in node.down:
        nodes[other].up.discard(number)


def _cores(problem: BackupProblem, nodes: dict[int, Node], certain: Mask) -> Reduced:
    order = _in_order(nodes)
    parts: list[list[int]] = []
    part_of: dict[int, int] = {}
    for first in order:
        if first in part_of:
            continue
        part_of[first] = len(parts)
        stack, found = [first], {first}
        while stack:
            at = nodes[stack.pop()]
            for other in (at.up | at.down) - found:
                found.add(other)
                part_of[other] = len(parts)
                stack.append(other)
        parts.append([])
    for number in order:
        parts[part_of[number]].append(number)
    cores, partitions = [], []
    for part in parts:
        place = {number: at for at, number in enumerate(part)}
        cores.append(_core(problem.limit, [nodes[number] for number in part], place))
        partitions.append(tuple(tuple(tuple(of) for _, _, of in nodes[number].levels) for number in part))
    return Reduced(certain, tuple(cores), tuple(partitions))


def _core(limit: int, nodes: list[Node], place: dict[int, int]) -> Core:
    """Number the nodes and divide times by what they have in common, so that small problems have small numbers."""
    times = [t for node in nodes for t, _, _ in node.levels]
    times += [value for node in nodes for value in (node.head, node.tail)]
    unit = int(np.gcd.reduce(np.array(times, np.int64))) or 1
    return Core(
        limit // unit,
        tuple(
            CoreNode(
                ticks=tuple(t // unit for t, _, _ in node.levels),
                costs=tuple(cost for _, cost, _ in node.levels),
                head=node.head // unit,
                tail=node.tail // unit,
                down=tuple(sorted(place[other] for other in node.down)),
            )
            for node in nodes
        ),
    )
