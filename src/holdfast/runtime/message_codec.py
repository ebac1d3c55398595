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
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise, product
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from holdfast.erasure.checksums import crc32
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.cluster_state import Start
from holdfast.runtime.blocks import decode_blocks, encode_blocks
from holdfast.runtime.io.sinks import StagedRows
from holdfast.runtime.messages import (
    Answer,
    DesiredState,
    Done,
    Failed,
    Measures,
    Missing,
    NodeReport,
    PartitionAssignment,
    Ready,
    Refused,
    SnapshotLost,
    SnapshotNotStored,
    SnapshotStored,
)

VERSION = 1

_MAGIC = b"HFM"
_PREFIX = struct.Struct("<3sBc3sIIQ")
_ALIGN = 8
_DESIRED, _REPORT = b"D", b"R"
_REMEMBERED = 4096

Row: TypeAlias = list[Any]
T = TypeVar("T")

_UNKNOWN: tuple[Sequence[SavedSnapshot], str] = ((), "")
_WRITTEN: dict[tuple[int, ...], tuple[Sequence[SavedSnapshot], str]] = {}
"""Snapshots by the identity of the objects, which are held here so that no other object takes it; and their text."""


def encode_desired(desired: DesiredState) -> bytes:
    """Write a desired state."""
    contents = _Contents()
    assignments = [
        [
            *partition,
            a.node,
            a.frontier,
            a.keep_from,
            a.through,
            a.with_outbox,
            a.forgotten,
            a.paused,
            a.start.epoch,
            a.start.batch,
            *_chain_fields(a.start.snapshots, contents),
            a.marks,
            sorted(a.durable),
            *_chain_fields(() if a.follows is None else (a.follows,), contents),
        ]
        for partition, a in desired.assignments.items()
    ]
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
        _batch_rows(desired.published),
    ]
    return _packed(_DESIRED, fields, contents.parts)


def decode_desired(data: pa.Buffer | bytes | bytearray | memoryview) -> DesiredState:
    """Read a desired state."""
    return _read(data, _DESIRED, _desired)


def encode_report(report: NodeReport) -> bytes:
    """Write a report. Whoever carries it has taken out the blocks for other nodes (`sent`): they go another way."""
    if report.sent:
        raise ValueError("a report is written without the blocks for other nodes")
    contents = _Contents()
    fields = [
        report.node,
        report.epoch,
        report.outbox_bytes,
        [_answer_row(answer, contents) for answer in report.answers],
        _batch_rows(report.frontiers),
        [[*partition, *_measures_row(measures)] for partition, measures in report.measures.items()],
        _batch_rows(report.kept_from),
        [[*partition, batch, staged.place, staged.rows] for (partition, batch), staged in report.staged.items()],
        list(report.not_staged.items()),
    ]
    return _packed(_REPORT, fields, [*contents.parts, encode_blocks(report.outputs)])


def decode_report(data: pa.Buffer | bytes | bytearray | memoryview) -> NodeReport:
    """Read a report."""
    return _read(data, _REPORT, _report)


# -- around the fields -------------------------------------------------------------------------------------------------


class _Contents:
    """The contents of the snapshots of one message; what stands in it twice is written once."""

    __slots__ = ("_numbers", "parts")

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self._numbers: dict[int, int] = {}

    def number(self, contents: bytes) -> int:
        """Return the number of the part that has these bytes."""
        number = self._numbers.setdefault(id(contents), len(self.parts))
        if number == len(self.parts):
            self.parts.append(contents)
        return number


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
        raise _bad(f"has fields that do not fit ({type(problem).__name__})") from None


def _unpacked(buffer: pa.Buffer, kind: bytes) -> tuple[Row, list[pa.Buffer]]:
    view = memoryview(buffer)
    if len(view) < _PREFIX.size:
        raise _bad("ends in the middle")
    magic, version, found, zeros, length, check, parts_length = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        raise _bad("does not begin like one")
    if version != VERSION:
        raise _bad(f"has version {version}, this side supports {VERSION}")
    if found != kind or any(zeros):
        raise _bad("is of another kind")
    first = _PREFIX.size + length + -length % _ALIGN
    if first + parts_length != len(view):
        raise _bad("ends in the middle" if first + parts_length > len(view) else "goes on after its end")
    if crc32(view[_PREFIX.size :]) != check:
        raise _bad("has another checksum than its content")
    *fields, lengths = json.loads(bytes(view[_PREFIX.size : _PREFIX.size + length]))
    if not _all(int, lengths) or min(lengths, default=0) < 0 or sum(lengths) != parts_length:
        raise _bad("has parts of other lengths than it lists")
    ends = accumulate(lengths, initial=first)
    return fields, [buffer.slice(start, end - start) for start, end in pairwise(ends)]


def _bad(what: str) -> CheckFailed:
    return CheckFailed(
        f"a message between coordinator and worker {what}",
        remedy="it counts as lost; install one release of Holdfast on all nodes",
    )


# -- rows: what is written of a value, and the value read back ---------------------------------------------------------
#
# Whether a row fits is one look: the types of its fields, together, are among those that may stand there.

_Shapes: TypeAlias = frozenset[tuple[type, ...]]


def _shapes(*fields: type | tuple[type, ...]) -> _Shapes:
    return frozenset(product(*(field if isinstance(field, tuple) else (field,) for field in fields)))


_MAYBE_INT = (int, type(None))
_NUMBER = (float, int)

_DESIRED_SHAPES = _shapes(str, int, int, _MAYBE_INT, _NUMBER, int, bool, bool, int, list, list, list)
_ASSIGNMENT_SHAPES = _shapes(str, int, str, int, int, int, bool, int, bool, int, int, str, list, list, list, str, list)
_SNAPSHOT_SHAPES = _shapes(int, int, (list, type(None)), _MAYBE_INT, bool, int, int, bool)
_REPORT_SHAPES = _shapes(str, int, int, list, list, list, list, list, list)
_BATCH_SHAPES = _shapes(str, int, int)
_PAIR_SHAPES = _shapes(int, int)
_MEASURES_SHAPES = _shapes(int, int, int, _NUMBER, int, int, _NUMBER)
_STAGED_SHAPES = _shapes(str, int, int, str, int)
_NOT_STAGED_SHAPES = _shapes(str, str)


def _fitting(row: Any, shapes: _Shapes) -> Row:
    if type(row) is not list or tuple(map(type, row)) not in shapes:
        raise _bad("has fields that do not fit")
    return row


def _all(kind: type, values: Any) -> bool:
    return type(values) is list and all(type(value) is kind for value in values)


def _partition(name: str, index: int) -> PartitionId:
    return PartitionId(OperatorId(name), index)


def _mapping(pairs: Iterator[tuple[Any, T]], count: int) -> dict[Any, T]:
    found = dict(pairs)
    if len(found) != count:
        raise _bad("has a key twice")
    return found


def _batch_rows(batches: Mapping[PartitionId, BatchId]) -> list[tuple[str, int, int]]:
    return [(name, index, batch) for (name, index), batch in batches.items()]


def _batches(rows: Row) -> dict[PartitionId, BatchId]:
    fitting = (_fitting(row, _BATCH_SHAPES) for row in rows)
    return _mapping(((_partition(name, index), BatchId(batch)) for name, index, batch in fitting), len(rows))


def _numbers(values: Any) -> list[BatchId]:
    if not _all(int, values):
        raise _bad("has fields that do not fit")
    return list(values)


def _chain_fields(snapshots: Sequence[SavedSnapshot], contents: _Contents) -> tuple[str, list[int]]:
    """Return snapshots as text, and the numbers of the parts that have the contents of those that have any."""
    # Most of the coordinator's snapshots are those of its last desired state, the same objects.
    key = tuple(map(id, snapshots))
    _, text = known = _WRITTEN.get(key, _UNKNOWN)
    if known is _UNKNOWN:
        text = json.dumps([_snapshot_row(snapshot) for snapshot in snapshots], separators=(",", ":"))
        if len(_WRITTEN) >= _REMEMBERED:
            _WRITTEN.clear()
        _WRITTEN[key] = (snapshots, text)
    return text, [contents.number(one.contents) for one in snapshots if one.contents is not None]


def _snapshot_row(one: SavedSnapshot) -> Row:
    return [one.batch, one.epoch, one.follows, one.outbox_from, one.durable, *one.saved, one.contents is not None]


def _chain(text: str, numbers: Row, parts: Sequence[pa.Buffer]) -> tuple[SavedSnapshot, ...]:
    if not numbers:
        return _chain_of(text, ())
    if min(_numbers(numbers)) < 0:
        raise _bad("names a part that it does not have")
    return _chain_of(text, tuple([parts[number].to_pybytes() for number in numbers]))


@lru_cache(maxsize=_REMEMBERED)
def _chain_of(text: str, contents: tuple[bytes, ...]) -> tuple[SavedSnapshot, ...]:
    left = iter(contents)
    chain = tuple([_snapshot(row, left) for row in json.loads(text)])
    if next(left, None) is not None:
        raise _bad("has contents of no snapshot")
    return chain


def _snapshot(row: Any, contents: Iterator[bytes]) -> SavedSnapshot:
    batch, epoch, follows, outbox_from, durable, claim, count, with_contents = _fitting(row, _SNAPSHOT_SHAPES)
    small = next(contents, None) if with_contents else None
    if with_contents and small is None:
        raise _bad("has a snapshot without its contents")
    before = None if follows is None else _snapshot_id(follows)
    return SavedSnapshot(BatchId(batch), Epoch(epoch), before, outbox_from, durable, (claim, count), small)


def _snapshot_id(row: Any) -> tuple[BatchId, Epoch]:
    batch, epoch = _fitting(row, _PAIR_SHAPES)
    return BatchId(batch), Epoch(epoch)


def _desired(row: Row, parts: Sequence[pa.Buffer]) -> DesiredState:
    run, number, epoch, max_batches, budget, lag, sizes, trim, generation, forget, assignments, published = _fitting(
        row, _DESIRED_SHAPES
    )
    if not _all(str, forget):
        raise _bad("has fields that do not fit")
    return DesiredState(
        run=run,
        number=number,
        epoch=Epoch(epoch),
        assignments=_mapping((_assignment(each, parts) for each in assignments), len(assignments)),
        published=_batches(published),
        max_batches=max_batches,
        time_budget=budget,
        lag=lag,
        report_outbox_bytes=sizes,
        forget=tuple(forget),
        trim_outboxes=trim,
        generation=generation,
    )


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
        epoch,
        batch,
        snapshots,
        contents,
        marks,
        durable,
        follows,
        follows_contents,
    ) = _fitting(row, _ASSIGNMENT_SHAPES)
    last = _chain(follows, follows_contents, parts)
    if len(last) > 1:
        raise _bad("has fields that do not fit")
    return _partition(name, index), PartitionAssignment(
        node=NodeId(node),
        start=Start(Epoch(epoch), BatchId(batch), _chain(snapshots, contents, parts)),
        frontier=BatchId(frontier),
        keep_from=BatchId(keep_from),
        through=BatchId(through),
        marks=tuple(_numbers(marks)),
        durable=frozenset(_numbers(durable)),
        follows=last[0] if last else None,
        with_outbox=with_outbox,
        forgotten=forgotten,
        paused=paused,
    )


def _report(row: Row, parts: Sequence[pa.Buffer]) -> NodeReport:
    node, epoch, outbox_bytes, answers, frontiers, measures, kept_from, staged, not_staged = _fitting(
        row, _REPORT_SHAPES
    )
    *contents, blocks = parts
    reasons = (_fitting(each, _NOT_STAGED_SHAPES) for each in not_staged)
    return NodeReport(
        node=NodeId(node),
        epoch=Epoch(epoch),
        answers=[_answer(each, contents) for each in answers],
        outputs=decode_blocks(blocks),
        frontiers=_batches(frontiers),
        measures=_mapping(((_partition(*each[:2]), _measures(each[2:])) for each in measures), len(measures)),
        outbox_bytes=outbox_bytes,
        kept_from=_batches(kept_from),
        staged=_mapping(map(_staged, staged), len(staged)),
        not_staged=_mapping(((OperatorId(name), why) for name, why in reasons), len(not_staged)),
    )


def _staged(row: Any) -> tuple[tuple[PartitionId, BatchId], StagedRows]:
    name, index, batch, place, rows = _fitting(row, _STAGED_SHAPES)
    return (_partition(name, index), BatchId(batch)), StagedRows(place, rows)


def _measures_row(m: Measures) -> Row:
    return [m.rows_in, m.rows_out, m.late_rows, m.seconds, m.state_bytes, m.written_bytes, m.cpu_seconds]


def _measures(row: Any) -> Measures:
    return Measures(*_fitting(row, _MEASURES_SHAPES))


# -- answers -----------------------------------------------------------------------------------------------------------


def _answer_row(answer: Answer, contents: _Contents) -> Row:
    match answer:
        case Done(partition, batch, watermark, measures, tentative):
            return ["done", *partition, batch, watermark, tentative, _measures_row(measures)]
        case Ready(partition, frontier):
            return ["ready", *partition, frontier]
        case Missing(partition, batch):
            return ["missing", *partition, batch]
        case Refused(partition, epoch, current):
            return ["refused", *partition, epoch, current]
        case Failed(partition, batch, problem):
            return ["failed", *partition, batch, problem]
        case SnapshotStored(partition, snapshot):
            return ["stored", *partition, *_chain_fields((snapshot,), contents)]
        case SnapshotNotStored(partition, batch, problem, gone):
            return ["not stored", *partition, batch, problem, gone]
        case SnapshotLost(partition, snapshot_id, problem):
            return ["lost", *partition, snapshot_id, problem]


_ANSWER_SHAPES: Mapping[str, _Shapes] = {
    "done": _shapes(str, str, int, int, _MAYBE_INT, bool, list),
    "ready": _shapes(str, str, int, int),
    "missing": _shapes(str, str, int, int),
    "refused": _shapes(str, str, int, int, int),
    "failed": _shapes(str, str, int, int, str),
    "stored": _shapes(str, str, int, str, list),
    "not stored": _shapes(str, str, int, int, str, bool),
    "lost": _shapes(str, str, int, list, str),
}


def _answer(row: Any, parts: Sequence[pa.Buffer]) -> Answer:
    _, name, index, *rest = _fitting(row, _ANSWER_SHAPES[row[0]])
    partition = _partition(name, index)
    match [row[0], *rest]:
        case ["done", batch, watermark, tentative, measures]:
            return Done(partition, batch, watermark, _measures(measures), tentative)
        case ["ready", frontier]:
            return Ready(partition, frontier)
        case ["missing", batch]:
            return Missing(partition, batch)
        case ["refused", epoch, current]:
            return Refused(partition, Epoch(epoch), Epoch(current))
        case ["failed", batch, problem]:
            return Failed(partition, batch, problem)
        case ["stored", text, contents]:
            (snapshot,) = _chain(text, contents, parts)
            return SnapshotStored(partition, snapshot)
        case ["not stored", batch, problem, gone]:
            return SnapshotNotStored(partition, batch, problem, gone)
        case ["lost", snapshot_id, problem]:
            return SnapshotLost(partition, _snapshot_id(snapshot_id), problem)
        case _:
            raise _bad("has an answer of no known kind")
