"""Minimal complete trees (PPA, Definition 1): counted without listing them, and listed lazily. Runs anywhere.

An MC-tree is one way for source tuples to reach an output partition: an output partition, then for an independent-input
partition one of its upstream partitions, for a correlated-input (joining) partition one upstream partition of *each*
input stream, and so on up to sources. The number is a sum of products and may have hundreds of digits.

Where two branches of a join meet again further up, each way is counted: two ways may then consist of the same
partitions. `distinct_mc_trees` lists sets of partitions, each once.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.topology.model import Topology

Tree = tuple[int, ...]
"""The partitions of an MC-tree, sorted."""


def count_mc_trees(topology: Topology) -> int:
    """Return how many MC-trees there are, over all output partitions."""
    ways = ways_to(topology)
    return sum(ways[head] for head in topology.outputs.tolist())


def ways_to(topology: Topology) -> list[int]:
    """Return, for each partition, how many MC-trees end there if it were an output."""
    ways = [0] * len(topology)
    stream_start, edge_start = topology.stream_start.tolist(), topology.edge_start.tolist()
    edge_from, joins = topology.edge_from.tolist(), topology.joins.tolist()
    for partitions in topology.partitions_by_level:
        for p in partitions.tolist():
            streams = range(stream_start[p], stream_start[p + 1])
            if not streams:
                ways[p] = 1
                continue
            sums = [sum(ways[u] for u in edge_from[edge_start[s] : edge_start[s + 1]]) for s in streams]
            if joins[p]:
                ways[p] = 1
                for one in sums:
                    ways[p] *= one
            else:
                ways[p] = sum(sums)
    return ways


def smallest_mc_tree_size(topology: Topology) -> int:
    """Return the fewest partitions an MC-tree has, where branches do not meet again; otherwise an upper bound of it."""
    size = [0] * len(topology)
    for partitions in topology.partitions_by_level:
        for p in partitions.tolist():
            best = [min(size[u] for u in inputs) for inputs in _inputs(topology, p)]
            size[p] = 1 + (sum(best) if topology.joins[p] else min(best, default=0))
    heads: list[int] = topology.outputs.tolist()
    return min(size[head] for head in heads)


def mc_trees(topology: Topology, head: int | None = None) -> Iterator[Tree]:
    """List MC-trees one by one, of one output partition or of all; take as many as you need."""
    for output in topology.outputs.tolist() if head is None else [head]:
        yield from (tuple(sorted(tree)) for tree in _trees(topology, output))


def distinct_mc_trees(topology: Topology, head: int | None = None) -> Iterator[Tree]:
    """List the sets of partitions that MC-trees consist of, each once; keeps what it has listed in memory."""
    seen: set[Tree] = set()
    for tree in mc_trees(topology, head):
        if tree not in seen:
            seen.add(tree)
            yield tree


def _inputs(topology: Topology, partition: int) -> list[list[int]]:
    """Return the upstream partitions of each input stream."""
    streams = range(int(topology.stream_start[partition]), int(topology.stream_start[partition + 1]))
    return [topology.edge_from[topology.edge_start[s] : topology.edge_start[s + 1]].tolist() for s in streams]


_Linked = tuple[int, "_Linked"] | None
"""Partitions as a linked list, so that ways which begin alike share what they have in common."""


def _trees(topology: Topology, head: int) -> Iterator[frozenset[int]]:
    """Walk through all ways to choose, without recursion: a chain of operators may be thousands long."""
    # One frame per choice made: what is left to try there, the partitions chosen before it, the choices still to make.
    # Both are linked lists, shared between frames.
    start = _choices(topology, head, None)
    if start is None:
        yield frozenset((head,))
        return
    frames: list[tuple[Iterator[int], _Chosen, _Pending]] = [(iter(start[0]), (head, None), start[1])]
    while frames:
        options, chosen, pending = frames[-1]
        for one in options:
            taken: _Chosen = (one, chosen)
            left = _choices(topology, one, pending)
            if left is None:
                yield _as_set(taken)
            else:
                frames.append((iter(left[0]), taken, left[1]))
                break
        else:
            frames.pop()


_Chosen = tuple[int, "_Chosen | None"]
_Pending = tuple[list[int], "_Pending"] | None


def _choices(topology: Topology, partition: int, pending: _Pending) -> _Pending:
    """Put the choices a partition calls for before those still to make: one in all, or for a join one per stream."""
    inputs = _inputs(topology, partition)
    if not inputs:
        return pending
    if not topology.joins[partition]:
        return [one for upstream in inputs for one in upstream], pending
    for upstream in reversed(inputs):
        pending = (upstream, pending)
    return pending


def _as_set(chosen: _Chosen | None) -> frozenset[int]:
    found = []
    while chosen is not None:
        found.append(chosen[0])
        chosen = chosen[1]
    return frozenset(found)
