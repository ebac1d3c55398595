"""Desired states and reports as bytes: what coordinator and workers say to each other over a connection. Runs anywhere.

    3 bytes "HFM" | u8 version | u8 kind ("D" desired state, "R" report) | 3 zeros
    u32 length of the JSON | u32 CRC-32 of everything after these 24 bytes | u64 length of the parts
    JSON (ASCII) | zeros up to a multiple of 8 | parts, one after the other

all numbers little-endian. The JSON is one list, its fields in the order in which this module writes them; bytes do not
stand in it but in the parts (the contents of small snapshots; last, the blocks of a report), whose lengths it lists.
Snapshots are JSON within a string: they seldom change from one desired state to the next, so both sides remember them.
Both sides are of one release: another version is refused, never guessed at. Nothing that is read is executed; whatever
is torn, changed or of another shape is a `CheckFailed`. Reading copies no rows: they stay in the buffer they came in.
"""

from __future__ import annotations

import json
import operator
import struct
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.erasure.checksums import crc32
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.cluster_state import Start
from holdfast.runtime.blocks import decode_blocks, encode_blocks
from holdfast.runtime.message_fields import (
    MAYBE_INT,
    NOT_STAGED_SHAPES,
    NUMBER,
    Contents,
    Row,
    all_of,
    answer_row,
    bad,
    batch_rows,
    chain_fields,
    checked,
    mapping,
    measures_row,
    partition_id,
    read_answer,
    read_batches,
    read_chain,
    read_checks,
    read_measured,
    read_reads,
    read_skips,
    read_staged,
    reads_row,
    shapes,
    skip_rows,
    whole_numbers,
)
from holdfast.runtime.messages import (
    BranchAssignment,
    DesiredState,
    NodeReport,
    PartitionAssignment,
    RegeneratorAssignment,
    StandInAssignment,
)

VERSION = 17

_MAGIC = b"HFM"
_PREFIX = struct.Struct("<3sBc3sIIQ")
_ALIGN = 8
_DESIRED, _REPORT = b"D", b"R"

T = TypeVar("T")

_DESIRED_SHAPES = shapes(
    str, int, int, MAYBE_INT, NUMBER, int, bool, bool, int, list, list, list, list, list, list, list, list
)
_ASSIGNMENT_SHAPES = shapes(
    str,
    int,
    str,
    int,
    int,
    int,
    bool,
    int,
    bool,
    bool,
    int,
    int,
    int,
    str,
    list,
    list,
    list,
    str,
    list,
    list,
    list,
    bool,
    list,
    MAYBE_INT,
)
_REPORT_SHAPES = shapes(str, int, int, list, list, list, list, list, list, list, list, list)
_REGENERATOR_SHAPES = shapes(str, int, int, int, int, int, str, list, list, list)
_BRANCH_SHAPES = shapes(str, int, list, int, MAYBE_INT)
_STAND_IN_SHAPES = shapes(str, int, str, int, int, str, list, list)
_WATERMARKS_SHAPES = shapes(str, list)
_WATERMARK_SHAPES = shapes(int, int)
_PROBLEM_SHAPES = shapes(str, int, str)
_PARTITION_SHAPES = shapes(str, int)


def encode_desired(desired: DesiredState) -> bytes:
    """Write a desired state."""
    contents = Contents()
    assignments = [_assignment_row(p, one, contents) for p, one in desired.assignments.items()]
    copies = [_assignment_row(p, one, contents) for p, one in desired.copies.items()]
    fields = [
        desired.run,
        desired.number,
        desired.epoch,
        desired.max_batches,
        desired.time_budget,
        desired.lag,
        desired.report_outbox_bytes,
        desired.trim_outboxes,
        desired.generation,
        desired.forget,
        assignments,
        batch_rows(desired.published),
        copies,
        [[*p, list(one.holes), one.through, one.out] for p, one in desired.branches.items()],
        [_regenerator_row(p, one, contents) for p, one in desired.regenerators.items()],
        [_stand_in_row(p, one, contents) for p, one in desired.stand_ins.items()],
        [[source, marks] for source, marks in desired.watermarks.items()],
    ]
    return _packed(_DESIRED, fields, contents.parts)


def _regenerator_row(partition: PartitionId, one: RegeneratorAssignment, contents: Contents) -> Row:
    start = one.start
    chain = chain_fields(start.snapshots, contents)
    return [*partition, start.epoch, start.batch, one.through, one.since, *chain, skip_rows(one.skips), one.checks]


def _stand_in_row(partition: PartitionId, one: StandInAssignment, contents: Contents) -> Row:
    chain = chain_fields(one.start.snapshots, contents)
    return [*partition, one.node, one.start.epoch, one.start.batch, *chain, skip_rows(one.skips)]


def _assignment_row(partition: PartitionId, a: PartitionAssignment, contents: Contents) -> Row:
    return [
        *partition,
        a.node,
        a.frontier,
        a.keep_from,
        a.through,
        a.with_outbox,
        a.forgotten,
        a.paused,
        a.parked,
        a.attempt,
        a.start.epoch,
        a.start.batch,
        *chain_fields(a.start.snapshots, contents),
        a.marks,
        sorted(a.durable),
        *chain_fields(() if a.follows is None else (a.follows,), contents),
        skip_rows(a.skips),
        a.checks,
        a.replica,
        batch_rows(a.regenerate),
        a.limit,
    ]


def decode_desired(data: pa.Buffer | bytes | bytearray | memoryview) -> DesiredState:
    """Read a desired state."""
    return _read(data, _DESIRED, _desired)


def encode_report(report: NodeReport) -> bytes:
    """Write a report. Whoever carries it has taken out the blocks for other nodes (`sent`): they go another way."""
    if report.sent:
        raise ValueError("a report is written without the blocks for other nodes")
    contents = Contents()
    fields = [
        report.node,
        report.epoch,
        report.outbox_bytes,
        [answer_row(answer, contents) for answer in report.answers],
        batch_rows(report.frontiers),
        [[*partition, *measures_row(measures)] for partition, measures in report.measures.items()],
        batch_rows(report.kept_from),
        [[*partition, batch, staged.place, staged.rows] for (partition, batch), staged in report.staged.items()],
        list(report.not_staged.items()),
        [reads_row(partition, read) for partition, read in report.reads.items()],
        [[*partition, why] for partition, why in report.branch_problems.items()],
        batch_rows(report.regenerated),
    ]
    return _packed(_REPORT, fields, [*contents.parts, encode_blocks(report.outputs)])


def decode_report(data: pa.Buffer | bytes | bytearray | memoryview) -> NodeReport:
    """Read a report."""
    return _read(data, _REPORT, _report)


# -- the whole ---------------------------------------------------------------------------------------------------------


def _packed(kind: bytes, fields: Row, parts: Sequence[bytes]) -> bytes:
    # Whole numbers of other libraries are written as what they are; anything else that is not JSON is a TypeError.
    text = json.dumps([*fields, list(map(len, parts))], separators=(",", ":"), default=operator.index).encode()
    tail = bytes(-len(text) % _ALIGN)
    check = 0
    for piece in (text, tail, *parts):
        check = crc32(piece, check)
    prefix = _PREFIX.pack(_MAGIC, VERSION, kind, bytes(3), len(text), check, sum(map(len, parts)))
    return b"".join((prefix, text, tail, *parts))


def _read(
    data: pa.Buffer | bytes | bytearray | memoryview,
    kind: bytes,
    message: Callable[[Row, Sequence[pa.Buffer]], T],
) -> T:
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    try:
        return message(*_unpacked(buffer, kind))
    except CheckFailed:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError, pa.ArrowException) as problem:
        raise bad(f"has fields that do not fit ({type(problem).__name__})") from None


def _unpacked(buffer: pa.Buffer, kind: bytes) -> tuple[Row, list[pa.Buffer]]:
    view = memoryview(buffer)
    if len(view) < _PREFIX.size:
        raise bad("ends in the middle")
    magic, version, found, zeros, length, check, parts_length = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise bad("does not begin like one")
    if version != VERSION:
        raise bad(f"has version {version}, this side supports {VERSION}")
    if found != kind or any(zeros):
        raise bad("is of another kind")
    first = _PREFIX.size + length + -length % _ALIGN
    if first + parts_length != len(view):
        raise bad("ends in the middle" if first + parts_length > len(view) else "goes on after its end")
    if crc32(view[_PREFIX.size :]) != check:
        raise bad("has another checksum than its content")
    *fields, lengths = json.loads(bytes(view[_PREFIX.size : _PREFIX.size + length]))
    if not all_of(int, lengths) or min(lengths, default=0) < 0 or sum(lengths) != parts_length:
        raise bad("has parts of other lengths than it lists")
    ends = accumulate(lengths, initial=first)
    return fields, [buffer.slice(start, end - start) for start, end in pairwise(ends)]


# -- its fields --------------------------------------------------------------------------------------------------------


def _desired(row: Row, parts: Sequence[pa.Buffer]) -> DesiredState:
    run, number, epoch, max_batches, budget, lag, sizes, trim, generation, *rest = checked(row, _DESIRED_SHAPES)
    forget, assignments, published, copies, branches, regenerators, stand_ins, watermarks = rest
    if not all_of(str, forget):
        raise bad("has fields that do not fit")
    return DesiredState(
        run=run,
        number=number,
        epoch=Epoch(epoch),
        assignments=mapping((_assignment(each, parts) for each in assignments), len(assignments)),
        published=read_batches(published),
        max_batches=max_batches,
        time_budget=budget,
        lag=lag,
        report_outbox_bytes=sizes,
        forget=tuple(forget),
        trim_outboxes=trim,
        generation=generation,
        copies=mapping((_assignment(each, parts) for each in copies), len(copies)),
        branches=mapping(map(_branch, branches), len(branches)),
        regenerators=mapping((_regenerator(each, parts) for each in regenerators), len(regenerators)),
        stand_ins=mapping((_stand_in(each, parts) for each in stand_ins), len(stand_ins)),
        watermarks=mapping(map(_watermarks, watermarks), len(watermarks)),
    )


def _regenerator(row: Any, parts: Sequence[pa.Buffer]) -> tuple[PartitionId, RegeneratorAssignment]:
    name, index, epoch, batch, through, since, snapshots, contents, skips, checks = checked(row, _REGENERATOR_SHAPES)
    start = Start(Epoch(epoch), BatchId(batch), read_chain(snapshots, contents, parts))
    return partition_id(name, index), RegeneratorAssignment(
        start, BatchId(through), read_skips(skips), read_checks(checks), BatchId(since)
    )


def _stand_in(row: Any, parts: Sequence[pa.Buffer]) -> tuple[PartitionId, StandInAssignment]:
    name, index, node, epoch, batch, snapshots, contents, skips = checked(row, _STAND_IN_SHAPES)
    start = Start(Epoch(epoch), BatchId(batch), read_chain(snapshots, contents, parts))
    return partition_id(name, index), StandInAssignment(NodeId(node), start, read_skips(skips))


def _watermarks(row: Any) -> tuple[OperatorId, tuple[tuple[BatchId, int], ...]]:
    source, marks = checked(row, _WATERMARKS_SHAPES)
    found = (checked(each, _WATERMARK_SHAPES) for each in marks)
    return OperatorId(source), tuple((BatchId(batch), mark) for batch, mark in found)


def _branch(row: Any) -> tuple[PartitionId, BranchAssignment]:
    name, index, holes, through, out = checked(row, _BRANCH_SHAPES)
    named = tuple(partition_id(*checked(each, _PARTITION_SHAPES)) for each in holes)
    return partition_id(name, index), BranchAssignment(named, BatchId(through), None if out is None else BatchId(out))


def _assignment(row: Any, parts: Sequence[pa.Buffer]) -> tuple[PartitionId, PartitionAssignment]:
    (
        name,
        index,
        node,
        frontier,
        keep_from,
        through,
        with_outbox,
        forgotten,
        paused,
        parked,
        attempt,
        epoch,
        batch,
        snapshots,
        contents,
        marks,
        durable,
        follows,
        follows_contents,
        skips,
        checks,
        replica,
        regenerate,
        limit,
    ) = checked(row, _ASSIGNMENT_SHAPES)
    last = read_chain(follows, follows_contents, parts)
    if len(last) > 1:
        raise bad("has fields that do not fit")
    return partition_id(name, index), PartitionAssignment(
        node=NodeId(node),
        start=Start(Epoch(epoch), BatchId(batch), read_chain(snapshots, contents, parts)),
        frontier=BatchId(frontier),
        keep_from=BatchId(keep_from),
        through=BatchId(through),
        marks=tuple(whole_numbers(marks)),
        durable=frozenset(whole_numbers(durable)),
        follows=last[0] if last else None,
        with_outbox=with_outbox,
        forgotten=forgotten,
        paused=paused,
        parked=parked,
        attempt=attempt,
        skips=read_skips(skips),
        checks=read_checks(checks),
        replica=replica,
        regenerate=read_batches(regenerate),
        limit=None if limit is None else BatchId(limit),
    )


def _report(row: Row, parts: Sequence[pa.Buffer]) -> NodeReport:
    node, epoch, outbox_bytes, answers, frontiers, measures, kept_from, staged, *rest = checked(row, _REPORT_SHAPES)
    not_staged, reads, problems, regenerated = rest
    *contents, blocks = parts
    reasons = (checked(each, NOT_STAGED_SHAPES) for each in not_staged)
    return NodeReport(
        node=NodeId(node),
        epoch=Epoch(epoch),
        answers=[read_answer(each, contents) for each in answers],
        outputs=decode_blocks(blocks),
        frontiers=read_batches(frontiers),
        measures=mapping(map(read_measured, measures), len(measures)),
        outbox_bytes=outbox_bytes,
        kept_from=read_batches(kept_from),
        staged=mapping(map(read_staged, staged), len(staged)),
        not_staged=mapping(((OperatorId(name), why) for name, why in reasons), len(not_staged)),
        reads=mapping(map(read_reads, reads), len(reads)),
        branch_problems=mapping(map(_problem, problems), len(problems)),
        regenerated=read_batches(regenerated),
    )


def _problem(row: Any) -> tuple[PartitionId, str]:
    name, index, why = checked(row, _PROBLEM_SHAPES)
    return partition_id(name, index), why
