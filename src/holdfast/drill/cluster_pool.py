"""The cluster that one drill leaves for the next. Runs beside the cluster.

A cluster takes a while to start, and a drill that went well leaves it with as many nodes as it found.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from holdfast.ids import NodeId
from holdfast.spark.cluster import EmbeddedCluster

MOST_STARTED = 120
"""Nodes that one cluster has started in its life, of which each has an address of its own, before another is made."""


class ClusterPool:
    """The cluster of one drill after the other: the same again where it is whole, else a new one. A context."""

    def __init__(self) -> None:
        self._cluster: EmbeddedCluster | None = None
        self._nodes: frozenset[NodeId] = frozenset()

    def __enter__(self) -> Self:
        """Return it, with nothing started."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop what is running."""
        self._stop()

    def take(self, nodes: int) -> EmbeddedCluster:
        """Return a cluster with so many nodes: the one there is, with more where they are missing, or a new one."""
        cluster = self._cluster
        if cluster is not None and self._nodes == frozenset(cluster.nodes) and len(cluster.nodes) < nodes:
            for _ in range(nodes - len(cluster.nodes)):
                cluster.add_node()
            cluster.await_agents()
        elif cluster is None or self._nodes != frozenset(cluster.nodes) or len(cluster.nodes) != nodes:
            self._stop()
            cluster = self._cluster = EmbeddedCluster(nodes)
        self._nodes = frozenset()  # until it is given back
        return cluster

    def give_back(self, nodes: int) -> None:
        """Say that a drill is over and has left the cluster with so many nodes, all running."""
        assert self._cluster is not None
        there = frozenset(self._cluster.nodes)
        numbers = [int(node.rpartition("-")[2]) for node in there]
        if len(there) == nodes and max(numbers) <= MOST_STARTED:
            self._nodes = there

    def _stop(self) -> None:
        if self._cluster is not None:
            self._cluster.stop()
            self._cluster = None
