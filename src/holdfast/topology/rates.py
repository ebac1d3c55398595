"""How many tuples per second flow where. Runs anywhere.

A partition's output rate is its selectivity times the sum of its inputs' rates; what it sends to one consuming operator
divides over its targets there in proportion to their weights. Output goes whole to every consuming operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from holdfast.errors import BadInput
from holdfast.topology.model import Floats, Topology


@dataclass(frozen=True, slots=True)
class Rates:
    """Tuples per second: into and out of each partition, on each task edge and each input stream."""

    input: Floats
    output: Floats
    edge: Floats
    stream: Floats


def rates_of(topology: Topology) -> Rates:
    """Compute all rates in one sweep from the sources down; refuse a topology whose rates no number can hold."""
    entering = topology.source_rate.copy()
    leaving = np.zeros(len(topology))
    edge = np.zeros(topology.task_edges)
    share = topology.stream_share
    with np.errstate(over="ignore", invalid="ignore"):
        for partitions, edges in zip(topology.partitions_by_level, topology.edges_by_level, strict=True):
            if len(edges):
                edge[edges] = leaving[topology.edge_from[edges]] * share[topology.edge_stream[edges]]
                low = int(partitions.min())
                sums = np.bincount(
                    topology.edge_to[edges] - low, edge[edges], minlength=int(partitions.max()) - low + 1
                )
                entering[partitions] += sums[partitions - low]
            leaving[partitions] = entering[partitions] * topology.selectivity[partitions]
    if not np.isfinite(leaving).all():
        first = next(p for part in topology.partitions_by_level for p in part.tolist() if not np.isfinite(leaving[p]))
        raise BadInput(
            f"the rate out of {topology.partition(first)} is too large for a number",
            where=topology.name,
            field=f"operators[{int(topology.operator_of[first])}].selectivity",
            remedy="lower it, or the selectivities and rates before it",
        )
    stream = np.bincount(topology.edge_stream, edge, minlength=len(topology.stream_to)).astype(float)
    return Rates(input=entering, output=leaving, edge=edge, stream=stream)
