"""What an application gives when only some of its partitions work, from a failure on. Runs anywhere, in one process.

With the kernels and routes of real runs, batch by batch, and nothing around them. From the failure on a partition that
does not work gives barriers without rows and without a watermark, as branches forge them (decision 0192); one that
works keeps the state that it had. So what comes out is what tentative outputs are while only these partitions are left.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from holdfast.ids import OperatorId, PartitionId
from holdfast.runtime.blocks import OUTSIDE, Edge
from holdfast.runtime.io.batch_records import watermark_after
from holdfast.runtime.io.source_pieces import cut_rows
from holdfast.runtime.program import Program
from holdfast.runtime.schemas import conform
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import Watermark, highest, lowest
from holdfast.runtime.worker.routing import spread
from holdfast.topology import Topology

Arrived = Mapping[OperatorId, tuple[Sequence[pa.Table | None], Watermark]]
"""The rows of every source partition in a batch, and the source's watermark."""


@dataclass(slots=True)
class Standing:
    """Where a run stands: what partitions hold, and how far they are."""

    states: dict[PartitionId, Mapping[str, tuple[pa.Table, ...]]] = field(default_factory=dict)
    marks: dict[PartitionId, Watermark] = field(default_factory=dict)
    rows_in: dict[PartitionId, int] = field(default_factory=dict)
    rows_out: dict[PartitionId, int] = field(default_factory=dict)

    def copy(self) -> Standing:
        """Return it apart from the original; tables are never changed."""
        return Standing(dict(self.states), dict(self.marks), dict(self.rows_in), dict(self.rows_out))


def arrivals(program: Program, batches: Iterable[Mapping[str, pa.Table]]) -> list[Arrived]:
    """Spread batches over source partitions, once for all runs."""
    marks: dict[OperatorId, Watermark] = {}
    found: list[Arrived] = []
    for tables in batches:
        one: dict[OperatorId, tuple[Sequence[pa.Table | None], Watermark]] = {}
        for name, source in program.sources.items():
            pieces, latest = cut_rows(source, tables[str(name)])
            marks[name] = watermark_after(source, marks.get(name), latest, last=False)
            one[name] = pieces, marks[name]
        found.append(one)
    return found


def advance(
    program: Program, standing: Standing, batches: Sequence[Arrived], working: Collection[PartitionId] | None = None
) -> list[dict[PartitionId, pa.Table]]:
    """Process batches with the partitions that work (None: all); return what outputs give in each."""
    return [_batch(program, standing, one, working) for one in batches]


def _batch(
    program: Program, standing: Standing, arrived: Arrived, working: Collection[PartitionId] | None
) -> dict[PartitionId, pa.Table]:
    coming: dict[tuple[Edge, PartitionId, PartitionId], pa.Table | None] = {}
    given: dict[PartitionId, pa.Table] = {}
    now_marks: dict[PartitionId, Watermark] = {}
    for name, (pieces, _) in arrived.items():
        for index, piece in enumerate(pieces):
            coming[Edge(OUTSIDE, name), PartitionId(OUTSIDE, index), PartitionId(name, index)] = piece
    for partition in program.partitions:
        if working is not None and partition not in working:
            continue  # its barriers are forged: no rows, no watermark
        operator, streams = program.operators[partition.operator], program.streams(partition)
        inputs = []
        for route in operator.inputs:
            pieces = [coming.get((edge, sender, partition)) for edge, sender in streams if edge == route.edge]
            some = [piece for piece in pieces if piece is not None and piece.num_rows]
            inputs.append(one_chunk(some) if some else None)
        before = standing.marks.get(partition)
        mine = [
            arrived[partition.operator][1] if sender.operator == OUTSIDE else now_marks.get(sender)
            for _, sender in streams
        ]
        now = highest(before, lowest(mine))
        stepped = operator.kernel.step(standing.states.get(partition, {}), inputs, before, now)
        standing.states[partition], standing.marks[partition], now_marks[partition] = stepped.state, now, now
        output = stepped.output
        _count(standing.rows_in, partition, sum(one.num_rows for one in inputs if one is not None))
        _count(standing.rows_out, partition, 0 if output is None else output.num_rows)
        if output is None or not output.num_rows:
            continue
        if operator.schema is not None:
            output = conform(output, operator.schema, "the output")
        for route in operator.outputs:
            targets = route.targets(partition.index)
            for target, piece in zip(targets, spread(output, route, partition.index), strict=True):
                coming[route.edge, partition, route.receiver(target)] = piece
        if partition in program.outputs:
            given[partition] = output
    return given


def _count(counts: dict[PartitionId, int], partition: PartitionId, rows: int) -> None:
    counts[partition] = counts.get(partition, 0) + rows


def measured_topology(topology: Topology, standing: Standing, seconds: float) -> Topology:
    """Return a topology with the rates, weights and selectivities that a run without failures had."""
    operators = []
    for operator in topology.operators:
        ids = [PartitionId(operator.id, index) for index in range(operator.parallelism)]
        rows_in = [standing.rows_in.get(p, 0) for p in ids]
        values: dict[str, object] = {}
        if sum(rows_in):
            values["selectivity"] = sum(standing.rows_out.get(p, 0) for p in ids) / sum(rows_in)
            if operator.parallelism > 1:
                values["weights"] = tuple(float(rows + 1) for rows in rows_in)
        if operator.is_source:
            values["rate"] = sum(rows_in) / seconds
        operators.append(replace(operator, **values))  # type: ignore[arg-type]
    return Topology(topology.name, operators)
