"""The fields of messages between coordinator and workers (`message_codec`), to JSON and back. Runs anywhere.

A value is a list of its fields in the order of its class. Whether a list fits is one look: the types of its fields,
together, are among those that may stand there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import product
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.quarantine import Quarantined
from holdfast.runtime.fetches import Fetched, Fetching, Restored
from holdfast.runtime.io.file_ranges import RangesRead
from holdfast.runtime.io.sinks import StagedRows
from holdfast.runtime.messages import (
    Answer,
    Done,
    Failed,
    Measures,
    Missing,
    Ready,
    Refused,
    SnapshotLost,
    SnapshotNotStored,
    SnapshotStored,
    SourceRead,
)

_REMEMBERED = 4096

Row: TypeAlias = list[Any]
T = TypeVar("T")

_UNKNOWN: tuple[Sequence[SavedSnapshot], str] = ((), "")
_WRITTEN: dict[tuple[int, ...], tuple[Sequence[SavedSnapshot], str]] = {}
"""Snapshots by the identity of the objects, which are held here so that no other object takes it; and their text."""


def bad(what: str) -> CheckFailed:
    """Return the error of a message that cannot be read."""
    return CheckFailed(
        f"a message between coordinator and worker {what}",
        remedy="it counts as lost; install one release of Holdfast on all nodes",
    )


# -- shapes ------------------------------------------------------------------------------------------------------------

Shapes: TypeAlias = frozenset[tuple[type, ...]]


def shapes(*fields: type | tuple[type, ...]) -> Shapes:
    """Return what a row may look like: the type of each field, or several."""
    return frozenset(product(*(field if isinstance(field, tuple) else (field,) for field in fields)))


MAYBE_INT = (int, type(None))
NUMBER = (float, int)

_SNAPSHOT_SHAPES = shapes(int, int, (list, type(None)), MAYBE_INT, bool, int, int, bool)
_BATCH_SHAPES = shapes(str, int, int)
_PAIR_SHAPES = shapes(int, int)
_SKIP_SHAPES = shapes(int, list)
_MEASURES_SHAPES = shapes(int, int, int, NUMBER, int, int, NUMBER, int)
_MEASURED_SHAPES = shapes(str, int, int, int, int, NUMBER, int, int, NUMBER, int)
_STAGED_SHAPES = shapes(str, int, int, str, int)
NOT_STAGED_SHAPES = shapes(str, str)
_CHECKS_SHAPES = shapes(int, list)
_READS_SHAPES = shapes(str, int, MAYBE_INT, list)
_RANGES_SHAPES = shapes(int, int, list) | shapes(int, int, list, int) | shapes(int, int, list, int, int)


def checked(row: Any, shapes: Shapes) -> Row:
    """Return a row whose fields have the types of one of these shapes."""
    if type(row) is not list or tuple(map(type, row)) not in shapes:
        raise bad("has fields that do not fit")
    return row


def all_of(kind: type, values: Any) -> bool:
    """Whether this is a list of nothing else."""
    return type(values) is list and all(type(value) is kind for value in values)


def partition_id(name: str, index: int) -> PartitionId:
    """Return a partition's id."""
    return PartitionId(OperatorId(name), index)


def mapping(pairs: Iterator[tuple[Any, T]], count: int) -> dict[Any, T]:
    """Return pairs as a mapping of so many keys."""
    found = dict(pairs)
    if len(found) != count:
        raise bad("has a key twice")
    return found


def batch_rows(batches: Mapping[PartitionId, BatchId]) -> list[tuple[str, int, int]]:
    """Write a batch of each partition."""
    return [(name, index, batch) for (name, index), batch in batches.items()]


def read_batches(rows: Row) -> dict[PartitionId, BatchId]:
    """Read a batch of each partition."""
    fields = (checked(row, _BATCH_SHAPES) for row in rows)
    return mapping(((partition_id(name, index), BatchId(batch)) for name, index, batch in fields), len(rows))


def whole_numbers(values: Any) -> list[BatchId]:
    """Return a list that has nothing but whole numbers."""
    if not all_of(int, values):
        raise bad("has fields that do not fit")
    return list(values)


def skip_rows(skips: Mapping[BatchId, Quarantined]) -> Row:
    """Write the rows that a partition leaves out."""
    return [[batch, one.fields()] for batch, one in skips.items()]


def read_skips(rows: Row) -> dict[BatchId, Quarantined]:
    """Read them."""
    fields = (checked(row, _SKIP_SHAPES) for row in rows)
    return mapping(((BatchId(batch), Quarantined.read(one)) for batch, one in fields), len(rows))


# -- ranges that are read in place -------------------------------------------------------------------------------------


def read_checks(rows: Row) -> tuple[tuple[BatchId, tuple[int, ...]], ...]:
    """Read the checksums of a source partition's ranges, by batch."""
    fields = (checked(row, _CHECKS_SHAPES) for row in rows)
    return tuple((BatchId(batch), tuple(whole_numbers(checks))) for batch, checks in fields)


def reads_row(partition: PartitionId, read: SourceRead) -> Row:
    """Write what a source partition has read."""
    batches = [[batch, found.rows, found.checks, *_events(found)] for batch, found in read.batches]
    return [*partition, read.watermark, batches]


def _events(found: RangesRead) -> Row:
    """Rows in the future are rare, and so are streams apart: where there are none, nothing is written."""
    if found.furthest is not None:
        return [found.ahead, found.furthest]
    return [found.ahead] if found.ahead else []


def _ranges_read(row: Any) -> tuple[BatchId, RangesRead]:
    batch, rows, checks, *events = checked(row, _RANGES_SHAPES)
    return BatchId(batch), RangesRead(rows, tuple(whole_numbers(checks)), *events)


def read_reads(row: Any) -> tuple[PartitionId, SourceRead]:
    """Read what a source partition has read."""
    name, index, watermark, batches = checked(row, _READS_SHAPES)
    found = tuple(_ranges_read(each) for each in batches)
    return partition_id(name, index), SourceRead(watermark, found)


# -- snapshots ---------------------------------------------------------------------------------------------------------


class Contents:
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


def chain_fields(snapshots: Sequence[SavedSnapshot], contents: Contents) -> tuple[str, list[int]]:
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


def read_chain(text: str, numbers: Row, parts: Sequence[pa.Buffer]) -> tuple[SavedSnapshot, ...]:
    """Read snapshots: their text, and the numbers of the parts that have contents of them."""
    if not numbers:
        return _chain_of(text, ())
    if min(whole_numbers(numbers)) < 0:
        raise bad("names a part that it does not have")
    return _chain_of(text, tuple([parts[number].to_pybytes() for number in numbers]))


@lru_cache(maxsize=_REMEMBERED)
def _chain_of(text: str, contents: tuple[bytes, ...]) -> tuple[SavedSnapshot, ...]:
    left = iter(contents)
    snapshots = tuple([_snapshot(row, left) for row in json.loads(text)])
    if next(left, None) is not None:
        raise bad("has contents of no snapshot")
    return snapshots


def _snapshot(row: Any, contents: Iterator[bytes]) -> SavedSnapshot:
    batch, epoch, follows, outbox_from, durable, claim, count, with_contents = checked(row, _SNAPSHOT_SHAPES)
    small = next(contents, None) if with_contents else None
    if with_contents and small is None:
        raise bad("has a snapshot without its contents")
    before = None if follows is None else _snapshot_id(follows)
    return SavedSnapshot(BatchId(batch), Epoch(epoch), before, outbox_from, durable, (claim, count), small)


def _snapshot_id(row: Any) -> tuple[BatchId, Epoch]:
    batch, epoch = checked(row, _PAIR_SHAPES)
    return BatchId(batch), Epoch(epoch)


# -- what reports have -------------------------------------------------------------------------------------------------


def read_staged(row: Any) -> tuple[tuple[PartitionId, BatchId], StagedRows]:
    """Read where an output's rows are staged."""
    name, index, batch, place, rows = checked(row, _STAGED_SHAPES)
    return (partition_id(name, index), BatchId(batch)), StagedRows(place, rows)


def measures_row(m: Measures) -> Row:
    """Write measures."""
    state = [m.state_bytes, m.written_bytes]
    return [m.rows_in, m.rows_out, m.late_rows, m.seconds, *state, m.cpu_seconds, m.bytes_in]


def read_measured(row: Any) -> tuple[PartitionId, Measures]:
    """Read a partition's measures."""
    name, index, *fields = checked(row, _MEASURED_SHAPES)
    return partition_id(name, index), Measures(*fields)


# -- answers -----------------------------------------------------------------------------------------------------------


def answer_row(answer: Answer, contents: Contents) -> Row:
    """Write an answer."""
    match answer:
        case Done(partition, batch, watermark, measures, tentative):
            return ["done", *partition, batch, watermark, tentative, measures_row(measures)]
        case Ready(partition, frontier):
            return ["ready", *partition, frontier]
        case Missing(partition, batch):
            return ["missing", *partition, batch]
        case Refused(partition, epoch, current):
            return ["refused", *partition, epoch, current]
        case Failed(partition, batch, problem, attempt, disk_full, poison, all_rows, memory, row, stalled):
            rows = Quarantined(poison, 0.0).fields() if poison else []
            return ["failed", *partition, batch, problem, attempt, disk_full, rows, all_rows, memory, row, stalled]
        case SnapshotStored(partition, snapshot, size, cpu_seconds):
            return ["stored", *partition, *chain_fields((snapshot,), contents), size, cpu_seconds]
        case SnapshotNotStored(partition, batch, problem, gone, fenced):
            return ["not stored", *partition, batch, problem, gone, fenced]
        case SnapshotLost(partition, snapshot_id, problem, regenerating):
            return ["lost", *partition, snapshot_id, problem, regenerating]
        case Restored(partition, batch, one):
            sizes = [one.peer_bytes, one.folder_bytes, one.node_bytes]
            return ["restored", *partition, batch, *sizes, one.seconds, one.predicted_seconds]
        case Fetching(partition, fragments, needed):
            return ["fetching", *partition, fragments, needed]


_ANSWER_SHAPES: Mapping[str, Shapes] = {
    "done": shapes(str, str, int, int, MAYBE_INT, bool, list),
    "ready": shapes(str, str, int, int),
    "missing": shapes(str, str, int, int),
    "refused": shapes(str, str, int, int, int),
    "failed": shapes(str, str, int, int, str, int, bool, list, bool, bool, str, bool),
    "stored": shapes(str, str, int, str, list, int, NUMBER),
    "not stored": shapes(str, str, int, int, str, bool, bool),
    "lost": shapes(str, str, int, list, str, bool),
    "restored": shapes(str, str, int, int, int, int, int, NUMBER, (*NUMBER, type(None))),
    "fetching": shapes(str, str, int, int, int),
}


def read_answer(row: Any, parts: Sequence[pa.Buffer]) -> Answer:
    """Read an answer."""
    _, name, index, *rest = checked(row, _ANSWER_SHAPES[row[0]])
    partition = partition_id(name, index)
    match [row[0], *rest]:
        case ["done", batch, watermark, tentative, measures]:
            return Done(partition, batch, watermark, Measures(*checked(measures, _MEASURES_SHAPES)), tentative)
        case ["ready", frontier]:
            return Ready(partition, frontier)
        case ["missing", batch]:
            return Missing(partition, batch)
        case ["refused", epoch, current]:
            return Refused(partition, Epoch(epoch), Epoch(current))
        case ["failed", batch, problem, attempt, disk_full, rows, all_rows, memory, row, stalled]:
            poison = Quarantined.read(rows).rows if rows else ()
            return Failed(partition, batch, problem, attempt, disk_full, poison, all_rows, memory, row, stalled)
        case ["stored", text, contents, size, cpu_seconds]:
            (stored,) = read_chain(text, contents, parts)
            return SnapshotStored(partition, stored, size, cpu_seconds)
        case ["not stored", batch, problem, gone, fenced]:
            return SnapshotNotStored(partition, batch, problem, gone, fenced)
        case ["lost", snapshot, problem, regenerating]:
            return SnapshotLost(partition, _snapshot_id(snapshot), problem, regenerating)
        case ["restored", batch, peers, folder, node, seconds, predicted]:
            return Restored(partition, batch, Fetched(peers, folder, node, seconds, predicted))
        case ["fetching", fragments, needed]:
            return Fetching(partition, fragments, needed)
        case _:
            raise bad("has an answer of no known kind")
