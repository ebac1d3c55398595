"""One batch of one partition: from its blocks and its state to the commit and the blocks it sends. Runs on a node.

Nothing is written here, and no clock is read. Inputs are taken in the fixed order of the streams, so the same blocks
and the same state give the same bytes, whoever computes them and however often.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.quarantine import Quarantined
from holdfast.runtime.blocks import DEAD_LETTERS, LATE, Block, Edge, Header
from holdfast.runtime.program import OperatorProgram
from holdfast.runtime.schemas import conform
from holdfast.runtime.state.store import FRESH, Addition
from holdfast.runtime.state.versions import Commit, FileName, SegmentRef, VersionId
from holdfast.runtime.tables import one_chunk
from holdfast.runtime.times import Watermark, highest, lowest
from holdfast.runtime.worker.dead_letters import dead_letters, without
from holdfast.runtime.worker.routing import spread

State = Mapping[str, tuple[pa.Table, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """What a partition processes next: one batch's blocks in the order of its streams, and what it goes on from."""

    partition: PartitionId
    batch: BatchId
    epoch: Epoch
    blocks: Sequence[Block]
    before: Commit | None
    """The commit of the batch before; None: this is the first."""
    state: State
    """The state it left."""
    skipped: Quarantined | None = None
    """Rows that are left out, and kept aside as dead letters."""


Inputs = Sequence[pa.Table | None]
"""The rows of a batch on each input of an operator; None: there are none."""


def gather(operator: OperatorProgram, blocks: Sequence[Block]) -> list[pa.Table | None]:
    """Put the rows of each input together: the positions in these tables name rows in every replay."""
    return [_rows(operator, number, blocks) for number in range(len(operator.inputs))]


def process(
    operator: OperatorProgram, given: Batch, rewritten: set[FileName], tried: Inputs | None = None
) -> tuple[Commit, Addition]:
    """Run the operator on one batch; return the commit to be made and what it adds.

    With `tried`, on these rows of it: to see whether that fails, and for nothing else.
    """
    before, blocks = given.before, given.blocks
    gathered = gather(operator, blocks) if tried is None else tried
    inputs = gathered
    if given.skipped is not None and tried is None:
        inputs = [
            without(table, given.skipped.positions(feed)) for feed, table in zip(operator.feeds, gathered, strict=True)
        ]
    past = None if before is None else before.watermark
    now = highest(past, lowest(block.header.watermark for block in blocks))
    tentative = any(block.header.tentative for block in blocks) or (before is not None and before.tentative)
    if operator.before_step is not None:
        operator.before_step(given.partition, given.batch, list(inputs))
    stepped = operator.kernel.step(given.state, inputs, past, now)
    output = stepped.output
    if output is not None and operator.schema is not None:
        output = conform(output, operator.schema, "the output")
    sent = _sent(operator, given, output, now, tentative)
    late_rows = 0
    for side, table in stepped.late.items():
        late_rows += table.num_rows
        edge = Edge(operator.inputs[side].edge.source, LATE)
        sent.append(Block(_header(given, edge, given.partition.index, now, tentative), table))
    if given.skipped is not None:
        letters = dead_letters(given.partition, given.batch, operator.feeds, gathered, given.skipped)
        late_rows += letters.num_rows
        edge = Edge(DEAD_LETTERS, LATE)
        sent.append(Block(_header(given, edge, given.partition.index, now, tentative), letters))
    for block in blocks:
        if block.rejected is not None:
            late_rows += block.rejected.num_rows
            edge = Edge(DEAD_LETTERS, LATE)
            sent.append(Block(_header(given, edge, given.partition.index, now, tentative), block.rejected))
    refs, fresh = _segments(given, stepped.state, rewritten)
    commit = Commit(
        given.partition,
        VersionId(given.batch, given.epoch),
        None if before is None else before.id,
        now,
        refs,
        late_rows=late_rows + (0 if before is None else before.late_rows),
        rows_in=sum(block.row_count for block in blocks) + (0 if before is None else before.rows_in),
        rows_out=(0 if output is None else output.num_rows) + (0 if before is None else before.rows_out),
        state_bytes=sum(segment.nbytes for segments in stepped.state.values() for segment in segments),
        tentative=tentative,
    )
    return commit, Addition(fresh, sent)


def barrier(edge: Edge, sender: PartitionId, receiver: PartitionId, commit: Commit, epoch: Epoch) -> Block:
    """Return the block without rows that says a batch is over."""
    return Block(Header(edge, sender, receiver, commit.id.batch, epoch, commit.watermark, commit.tentative))


def _rows(operator: OperatorProgram, number: int, blocks: Sequence[Block]) -> pa.Table | None:
    """Put the rows of one input together, in the order of its streams."""
    edge = operator.inputs[number].edge
    tables = [block.rows for block in blocks if block.header.edge == edge and block.rows is not None]
    tables = [table for table in tables if table.num_rows]
    if not tables:
        return None
    for table in tables[1:]:
        if not table.schema.equals(tables[0].schema):
            raise BadInput(
                f"the partitions of {edge.source} gave different columns: {_named(tables[0])} and {_named(table)}",
                remedy="declare them with schema=",
            )
    return one_chunk(tables)


def _named(table: pa.Table) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in table.schema)


def _sent(
    operator: OperatorProgram, given: Batch, output: pa.Table | None, watermark: Watermark, tentative: bool
) -> list[Block]:
    """Return the blocks with rows; the others are barriers, which the commit alone says."""
    if output is None or output.num_rows == 0:
        return []
    sent = []
    for route in operator.outputs:
        targets = route.targets(given.partition.index)
        for target, rows in zip(targets, spread(output, route, given.partition.index), strict=True):
            if rows is not None and rows.num_rows:
                sent.append(Block(_header(given, route.edge, target, watermark, tentative), rows))
    return sent


def _header(given: Batch, edge: Edge, target: int, watermark: Watermark, tentative: bool) -> Header:
    receiver = PartitionId(OperatorId(edge.target), target)
    return Header(edge, given.partition, receiver, given.batch, given.epoch, watermark, tentative)


def _segments(
    given: Batch, state: State, rewritten: set[FileName]
) -> tuple[dict[str, tuple[SegmentRef, ...]], dict[str, list[pa.Table]]]:
    """Tell segments that are where they were from new ones; those of files to be rewritten count as new."""
    known: dict[int, SegmentRef] = {}
    if given.before is not None:
        for name, segments in given.state.items():
            known.update({id(segment): ref for segment, ref in zip(segments, given.before.segments[name], strict=True)})
    refs: dict[str, tuple[SegmentRef, ...]] = {}
    fresh: dict[str, list[pa.Table]] = {}
    number = 0
    for name in sorted(state):
        found = []
        for segment in state[name]:
            ref = known.get(id(segment))
            if ref is None or ref.file in rewritten:
                ref = SegmentRef(FRESH, number)
                number += 1
                fresh.setdefault(name, []).append(segment)
            found.append(ref)
        refs[name] = tuple(found)
    return refs, fresh
