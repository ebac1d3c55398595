"""Messages between coordinator and workers: what is written is read back; anything else is refused with one line."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import SavedSnapshot
from holdfast.recovery.cluster_state import Start
from holdfast.recovery.quarantine import PoisonRow, Quarantined
from holdfast.runtime.blocks import SINK, Block, Edge, Header
from holdfast.runtime.fetches import Fetched, Fetching, Restored
from holdfast.runtime.io.file_ranges import RangesRead
from holdfast.runtime.io.sinks import StagedRows
from holdfast.runtime.message_codec import VERSION, decode_desired, decode_report, encode_desired, encode_report
from holdfast.runtime.messages import (
    BranchAssignment,
    DesiredState,
    Done,
    Failed,
    Measures,
    Missing,
    NodeReport,
    PartitionAssignment,
    Ready,
    Refused,
    RegeneratorAssignment,
    SnapshotLost,
    SnapshotNotStored,
    SnapshotStored,
    SourceRead,
    StandInAssignment,
)

GOLDEN = Path(__file__).parent.parent / "data" / "messages"

# -- any message -------------------------------------------------------------------------------------------------------

texts = st.text(st.characters(), max_size=12)  # Lone surrogates are among them: names of files can have some.
counts = st.integers(0, 2**63)
batch_ids = st.integers(-1, 2**40).map(BatchId)
epochs = st.builds(Epoch.of, st.integers(0, 2**31), st.integers(0, 2**32 - 1))
partitions = st.builds(PartitionId, texts.map(OperatorId), st.integers(0, 10**9))
nodes = texts.map(NodeId)
seconds = st.floats(allow_nan=False) | st.integers(0, 10**9)
snapshots = st.builds(
    SavedSnapshot,
    batch_ids,
    epochs,
    st.none() | st.tuples(batch_ids, epochs),
    st.none() | batch_ids,
    st.booleans(),
    st.tuples(counts, counts),
    st.none() | st.binary(max_size=40),
)
poison = st.lists(st.builds(PoisonRow, texts.map(OperatorId), counts, texts), max_size=4).map(tuple)
chains = st.lists(snapshots, max_size=4).map(tuple)
assignments = st.builds(
    PartitionAssignment,
    nodes,
    st.builds(Start, epochs, batch_ids, chains),
    batch_ids,
    batch_ids,
    batch_ids,
    st.lists(batch_ids, max_size=3).map(tuple),
    st.frozensets(batch_ids, max_size=3),
    st.none() | snapshots,
    st.booleans(),
    counts,
    st.booleans(),
    st.booleans(),
    counts,
    st.dictionaries(batch_ids, st.builds(Quarantined, poison, st.floats(allow_nan=False)), max_size=3),
    checks=st.lists(st.tuples(batch_ids, st.lists(counts, max_size=3).map(tuple)), max_size=3).map(tuple),
    regenerate=st.dictionaries(partitions, batch_ids, max_size=3),
)
regenerators = st.builds(
    RegeneratorAssignment,
    st.builds(Start, epochs, batch_ids, chains),
    batch_ids,
    st.dictionaries(batch_ids, st.builds(Quarantined, poison, st.floats(allow_nan=False)), max_size=3),
    st.lists(st.tuples(batch_ids, st.lists(counts, max_size=3).map(tuple)), max_size=3).map(tuple),
)
stand_ins = st.builds(
    StandInAssignment,
    nodes,
    st.builds(Start, epochs, batch_ids, chains),
    st.dictionaries(batch_ids, st.builds(Quarantined, poison, st.floats(allow_nan=False)), max_size=3),
)
desired_states = st.builds(
    DesiredState,
    texts,
    counts,
    epochs,
    st.dictionaries(partitions, assignments, max_size=4),
    st.dictionaries(partitions, batch_ids, max_size=4),
    st.none() | counts,
    seconds,
    counts,
    st.booleans(),
    st.lists(texts, max_size=3).map(tuple),
    st.booleans(),
    counts,
    branches=st.dictionaries(
        partitions,
        st.builds(BranchAssignment, st.lists(partitions, max_size=3).map(tuple), batch_ids, st.none() | batch_ids),
        max_size=3,
    ),
    regenerators=st.dictionaries(partitions, regenerators, max_size=3),
    stand_ins=st.dictionaries(partitions, stand_ins, max_size=3),
    watermarks=st.dictionaries(
        texts.map(OperatorId),
        st.lists(st.tuples(batch_ids, st.integers(-(2**62), 2**62)), max_size=3).map(tuple),
        max_size=3,
    ),
)
measured = st.builds(Measures, counts, counts, counts, seconds, counts, counts, seconds)
watermarks = st.none() | st.integers(-(2**62), 2**62)
answers = st.one_of(
    st.builds(Ready, partitions, batch_ids),
    st.builds(Missing, partitions, batch_ids),
    st.builds(Refused, partitions, epochs, epochs),
    st.builds(Done, partitions, batch_ids, watermarks, measured, st.booleans()),
    st.builds(Failed, partitions, batch_ids, texts, counts, st.booleans(), poison, st.booleans(), st.booleans()),
    st.builds(SnapshotStored, partitions, snapshots),
    st.builds(SnapshotNotStored, partitions, batch_ids, texts, st.booleans(), st.booleans()),
    st.builds(SnapshotLost, partitions, st.tuples(batch_ids, epochs), texts),
    st.builds(
        Restored, partitions, batch_ids, st.builds(Fetched, counts, counts, counts, seconds, st.none() | seconds)
    ),
    st.builds(Fetching, partitions, counts, counts),
)
reads = st.builds(
    SourceRead,
    watermarks,
    st.lists(
        st.tuples(batch_ids, st.builds(RangesRead, counts, st.lists(counts, max_size=3).map(tuple))), max_size=3
    ).map(tuple),
)
names = st.text(min_size=1, max_size=12).map(OperatorId)
rows = st.none() | st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20).map(lambda n: pa.table({"n": n}))
headers = st.builds(
    Header,
    st.builds(Edge, names, names),
    st.builds(PartitionId, names, st.integers(0, 9)),
    st.builds(PartitionId, names, st.integers(0, 9)),
    batch_ids,
    epochs,
    watermarks,
    st.booleans(),
)
reports = st.builds(
    NodeReport,
    nodes,
    epochs,
    st.lists(answers, max_size=6),
    st.just({}),
    st.lists(st.builds(Block, headers, rows), max_size=3),
    st.dictionaries(partitions, batch_ids, max_size=4),
    st.dictionaries(partitions, measured, max_size=4),
    counts,
    st.dictionaries(partitions, batch_ids, max_size=4),
    st.dictionaries(st.tuples(partitions, batch_ids), st.builds(StagedRows, texts, counts), max_size=3),
    st.dictionaries(texts.map(OperatorId), texts, max_size=3),
    st.dictionaries(partitions, reads, max_size=3),
    st.dictionaries(partitions, texts, max_size=3),
)


def plain(value: Any) -> Any:
    """A value with its types, and with what does not count when two are compared: contents, tables, order."""
    if isinstance(value, pa.Table):
        return value.schema.to_string(), value.to_pylist()
    if isinstance(value, tuple | list):
        return type(value).__name__, [plain(each) for each in value]
    if isinstance(value, dict):
        return [(plain(key), plain(each)) for key, each in value.items()]
    if hasattr(value, "__dataclass_fields__"):
        return type(value).__name__, [plain(getattr(value, field.name)) for field in fields(value)]
    return type(value).__name__, value


@settings(max_examples=150, deadline=None)
@given(desired_states)
def test_any_desired_state_is_read_back(desired: DesiredState) -> None:
    assert plain(decode_desired(encode_desired(desired))) == plain(desired)


@settings(max_examples=150, deadline=None)
@given(reports)
def test_any_report_is_read_back(report: NodeReport) -> None:
    assert plain(decode_report(encode_report(report))) == plain(report)


# -- one message with everything in it ---------------------------------------------------------------------------------

E = Epoch.of(3, 7)


def partition(name: str, index: int) -> PartitionId:
    return PartitionId(OperatorId(name), index)


def snapshot(batch: int, contents: bytes | None = None, **more: Any) -> SavedSnapshot:
    return SavedSnapshot(BatchId(batch), E, saved=(3, 1), contents=contents, **more)


def example_desired() -> DesiredState:
    base = snapshot(10, b"small")
    changes = snapshot(15, follows=base.id, outbox_from=BatchId(12), durable=True)
    return DesiredState(
        run="traffic-é",
        number=17,
        epoch=E,
        assignments={
            partition("speeds", 0): PartitionAssignment(
                NodeId("node-1"),
                Start(E, BatchId(15), (base, changes)),
                BatchId(20),
                BatchId(16),
                BatchId(25),
                marks=(BatchId(22), BatchId(24)),
                durable=frozenset({BatchId(24), BatchId(22)}),
                follows=base,
                with_outbox=True,
                forgotten=2,
                paused=True,
                parked=True,
                attempt=3,
                skips={BatchId(21): Quarantined((PoisonRow(OperatorId("cars"), 7, "too fast"),), 1.5)},
                checks=((BatchId(19), (1, 4_000_000_000)), (BatchId(20), ())),
            ),
            partition("jams", 11): PartitionAssignment(
                NodeId("node-2"),
                Start(Epoch.of(3, 0), BatchId(-1), ()),
                BatchId(-1),
                BatchId(0),
                BatchId(25),
                regenerate={partition("speeds", 0): BatchId(14)},
                limit=BatchId(12),
            ),
        },
        published={partition("jams", 11): BatchId(19)},
        max_batches=4,
        time_budget=math.inf,
        lag=5,
        report_outbox_bytes=True,
        forget=("traffic/speeds-0/c3.1-5.7", "x"),
        trim_outboxes=True,
        generation=2,
        branches={
            partition("jams", 11): BranchAssignment((partition("speeds", 1),), BatchId(25), BatchId(19)),
            partition("speeds", 0): BranchAssignment((), BatchId(25)),
        },
        regenerators={
            partition("speeds", 0): RegeneratorAssignment(
                Start(E, BatchId(10), (base,)),
                BatchId(30),
                {BatchId(21): Quarantined((PoisonRow(OperatorId("cars"), 7, "too fast"),), 1.5)},
                ((BatchId(19), (1, 4_000_000_000)),),
                BatchId(18),
            )
        },
        stand_ins={
            partition("jams", 11): StandInAssignment(
                NodeId("node-3"),
                Start(E, BatchId(15), (base, changes)),
                {BatchId(21): Quarantined((PoisonRow(OperatorId("cars"), 7, "too fast"),), 1.5)},
            )
        },
        watermarks={OperatorId("cars"): ((BatchId(23), -5), (BatchId(25), 2**62))},
    )


def example_report(rows: pa.Table | None = None) -> NodeReport:
    jams, speeds = partition("jams", 11), partition("speeds", 0)
    measures = Measures(100, 10, 1, 0.25, 4096, 512, 0.125, 2048)
    header = Header(Edge(jams.operator, SINK), jams, PartitionId(SINK, 0), BatchId(21), E, 123_456_789, tentative=True)
    return NodeReport(
        NodeId("node-2"),
        E,
        answers=[
            Ready(jams, BatchId(20)),
            Missing(speeds, BatchId(15)),
            Refused(speeds, Epoch.of(3, 6), E),
            Done(jams, BatchId(21), None, measures, tentative=True),
            Failed(speeds, BatchId(21), "division by zero", attempt=2, disk_full=True),
            Failed(
                jams,
                BatchId(22),
                "2 rows",
                poison=(PoisonRow(OperatorId("cars"), 7, "x"), PoisonRow(OperatorId("cars"), 9, "x")),
                all_rows=True,
                out_of_memory=True,
                stalled=True,
            ),
            SnapshotStored(jams, snapshot(20, b"as small", follows=(BatchId(15), E))),
            SnapshotNotStored(jams, BatchId(21), "no room", gone=True),
            SnapshotNotStored(jams, BatchId(22), "epoch 3 is fenced", fenced=True),
            SnapshotLost(speeds, (BatchId(15), E), "4 of 6 fragments are lost"),
            SnapshotLost(speeds, (BatchId(3), E), "it is not here", regenerating=True),
        ],
        outputs=[Block(header, rows)],
        frontiers={jams: BatchId(21)},
        measures={jams: measures, speeds: Measures(seconds=math.inf)},
        outbox_bytes=1 << 40,
        kept_from={jams: BatchId(16)},
        staged={(jams, BatchId(21)): StagedRows("part-0.parquet", 10)},
        not_staged={OperatorId("reports"): "permission denied"},
        reads={speeds: SourceRead(-5, ((BatchId(19), RangesRead(7, (1, 4_000_000_000))),))},
        branch_problems={jams: "division by zero"},
        regenerated={jams: BatchId(17)},
    )


@pytest.mark.parametrize(
    ("file", "written", "read", "value"),
    [
        ("desired.bin", encode_desired, decode_desired, example_desired()),
        ("report.bin", encode_report, decode_report, example_report()),
    ],
)
def test_the_format_does_not_change_unnoticed(
    file: str, written: Callable[[Any], bytes], read: Callable[[bytes], Any], value: Any
) -> None:
    """Whoever changes the format raises its version, and writes these files anew."""
    golden = (GOLDEN / file).read_bytes()
    assert written(value) == golden
    assert plain(read(golden)) == plain(value)


def test_a_golden_report_with_rows_is_read() -> None:
    """Arrow may write a table in other bytes than it once did; what it wrote is read."""
    rows = pa.table({"word": ["a", None, "日本"], "n": [1, 2, 3]})
    assert plain(decode_report((GOLDEN / "report-with-rows.bin").read_bytes())) == plain(example_report(rows))


def test_rows_stay_in_the_buffer_they_came_in() -> None:
    received = pa.py_buffer(encode_report(example_report(pa.table({"n": list(range(1000))}))))
    (block,) = decode_report(received).outputs
    assert block.rows is not None
    (values,) = [buffer for buffer in block.rows["n"].chunk(0).buffers() if buffer is not None]
    assert received.address <= values.address < received.address + received.size
    assert (values.address - received.address) % 8 == 0


def test_equal_snapshots_with_other_contents_are_told_apart() -> None:
    """Contents do not count when snapshots are compared: what is remembered goes by them all the same."""
    for contents in (b"one", b"other", None, b"one", b""):
        report = NodeReport(NodeId("n"), E, [SnapshotStored(partition("a", 0), snapshot(1, contents))])
        (answer,) = decode_report(encode_report(report)).answers
        assert isinstance(answer, SnapshotStored)
        assert answer.snapshot.contents == contents


def test_numbers_of_other_libraries_are_written_as_numbers() -> None:
    report = NodeReport(NodeId("n"), E, frontiers={partition("a", 0): np.int64(7)})
    assert decode_report(encode_report(report)).frontiers == {partition("a", 0): 7}
    with pytest.raises(TypeError):
        encode_report(NodeReport(NodeId("n"), E, outbox_bytes=object()))  # type: ignore[arg-type]


def test_blocks_for_other_nodes_are_not_written() -> None:
    with pytest.raises(ValueError, match="other nodes"):
        encode_report(NodeReport(NodeId("n"), E, sent={NodeId("m"): []}))


# -- what is no message ------------------------------------------------------------------------------------------------

WHOLE = [(decode_desired, encode_desired(example_desired())), (decode_report, encode_report(example_report()))]
both = pytest.mark.parametrize(("read", "whole"), WHOLE, ids=["desired", "report"])
Read = Callable[[bytes], Any]


def refused(read: Read, data: bytes) -> CheckFailed:
    with pytest.raises(CheckFailed) as caught:
        read(data)
    assert "\n" not in str(caught.value)
    return caught.value


@both
def test_every_changed_byte_is_noticed(read: Read, whole: bytes) -> None:
    chance = Random(16)
    for at in range(len(whole)):
        changed = bytearray(whole)
        changed[at] ^= chance.randrange(1, 256)
        refused(read, bytes(changed))


@both
def test_every_cut_and_every_addition_is_noticed(read: Read, whole: bytes) -> None:
    for length in range(len(whole)):
        refused(read, whole[:length])
    refused(read, whole + b"\0")
    refused(read, whole + whole)


@both
def test_another_version_is_named(read: Read, whole: bytes) -> None:
    assert f"version 8, this side supports {VERSION}" in str(refused(read, whole[:3] + b"\x08" + whole[4:]))


def test_a_message_of_the_other_kind_is_refused() -> None:
    (read_desired, desired), (read_report, report) = WHOLE
    assert "another kind" in str(refused(read_desired, report))
    assert "another kind" in str(refused(read_report, desired))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_noise_is_refused(data: bytes) -> None:
    for read, whole in WHOLE:
        refused(read, data)
        refused(read, whole[:24] + data)


def rewritten(whole: bytes, change: Callable[[Any], Any]) -> bytes:
    """The message with other fields, and everything around them right: what a faulty other side might send."""
    length = int.from_bytes(whole[8:12], "little")
    text = json.dumps(change(json.loads(whole[24 : 24 + length])), separators=(",", ":")).encode()
    rest = text + bytes(-len(text) % 8) + whole[24 + length + -length % 8 :]
    numbers = len(text).to_bytes(4, "little") + zlib.crc32(rest).to_bytes(4, "little")
    return whole[:8] + numbers + whole[16:24] + rest


def places(value: Any, path: tuple[int, ...] = ()) -> list[tuple[int, ...]]:
    inner = [p for i, each in enumerate(value) for p in places(each, (*path, i))] if isinstance(value, list) else []
    return [path, *inner]


def changed_at(value: Any, path: tuple[int, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(value)
    return [changed_at(each, path[1:], change) if i == path[0] else each for i, each in enumerate(value)]


@both
def test_fields_of_another_type_are_refused(read: Read, whole: bytes) -> None:
    """Every field in turn becomes a mapping, which stands nowhere; a text becomes a number, a number a text."""
    length = int.from_bytes(whole[8:12], "little")
    found = json.loads(whole[24 : 24 + length])
    assert plain(read(rewritten(whole, lambda fields: fields))) == plain(read(whole))
    for path in places(found):
        refused(read, rewritten(whole, lambda value, path=path: changed_at(value, path, lambda _: {})))  # type: ignore[misc]
        refused(
            read,
            rewritten(
                whole,
                lambda value, path=path: changed_at(  # type: ignore[misc]
                    value, path, lambda field: 7 if isinstance(field, str | list) or field is None else "7"
                ),
            ),
        ) if not _may_be_missing(found, path) else None


def _may_be_missing(found: Any, path: tuple[int, ...]) -> bool:
    """Whether a field is None there, where a number may stand too."""
    for step in path:
        found = found[step]
    return found is None


@both
def test_rows_too_short_or_too_long_are_refused(read: Read, whole: bytes) -> None:
    length = int.from_bytes(whole[8:12], "little")
    found = json.loads(whole[24 : 24 + length])
    refused(read, rewritten(whole, lambda value: value[:-1]))
    refused(read, rewritten(whole, lambda value: [*value, 1]))
    for at, field in enumerate(found):
        for inner, row in enumerate(field if isinstance(field, list) else ()):
            if isinstance(row, list):
                for wrong in (row[:-1], [*row, 1], []):
                    refused(
                        read,
                        rewritten(
                            whole,
                            lambda value, at=at, inner=inner, wrong=wrong: changed_at(  # type: ignore[misc]
                                value, (at, inner), lambda _: wrong
                            ),
                        ),
                    )


@pytest.mark.parametrize(
    "text",
    [
        "[[1,2,null,null,false,0,0,true]]",  # contents that are not there
        "[[1,2,[3],null,false,0,0,false]]",
        "[[1,2,null,null,0,0,0,false]]",
        "{}x",
        "7",
        "[7]",
        "[" * 100_000,
        "9" * 10_000,
    ],
)
def test_snapshots_of_another_shape_are_refused(text: str) -> None:
    read, whole = WHOLE[0]
    refused(read, rewritten(whole, lambda value: changed_at(value, (10, 1, 11), lambda _: text)))


@pytest.mark.parametrize("numbers", [[-1], [9], [0, 0], [], ["0"], [None]])
def test_contents_that_are_not_there_are_refused(numbers: Any) -> None:
    read, whole = WHOLE[0]
    refused(read, rewritten(whole, lambda value: changed_at(value, (10, 0, 12), lambda _: numbers)))


def test_a_key_twice_is_refused() -> None:
    read, whole = WHOLE[0]
    doubled = rewritten(whole, lambda value: changed_at(value, (10,), lambda all_rows: [*all_rows, all_rows[0]]))
    assert "twice" in str(refused(read, doubled))


def test_parts_of_other_lengths_are_refused() -> None:
    for read, whole in WHOLE:
        for lengths in ([], [0], [-1], [10**9], [1, 2, 3], "5", [2.0]):
            refused(read, rewritten(whole, lambda value, lengths=lengths: [*value[:-1], lengths]))  # type: ignore[misc]


def test_a_partition_follows_one_snapshot_at_most() -> None:
    read, whole = WHOLE[0]
    row = "[1,2,null,null,false,0,0,false]"
    one = read(rewritten(whole, lambda value: changed_at(value, (10, 1, 17), lambda _: f"[{row}]")))
    assert one.assignments[partition("jams", 11)].follows == SavedSnapshot(BatchId(1), Epoch(2))
    refused(read, rewritten(whole, lambda value: changed_at(value, (10, 1, 17), lambda _: f"[{row},{row}]")))


def test_rows_in_the_future_are_reported() -> None:
    report = example_report()
    speeds = next(iter(report.reads))
    reads = {speeds: SourceRead(-5, ((BatchId(19), RangesRead(7, (1,), 3)), (BatchId(20), RangesRead(7, (1,)))))}
    assert decode_report(encode_report(replace(report, reads=reads))).reads == reads


@pytest.mark.parametrize("predicted", [None, 0.25])
def test_where_restored_state_came_from_arrives_as_it_was_sent(predicted: float | None) -> None:
    fetched = Fetched(1 << 40, 5, 7, 1.5, predicted)
    report = NodeReport(NodeId("n"), E, answers=[Restored(partition("jams", 1), BatchId(9), fetched)])
    assert list(decode_report(encode_report(report)).answers) == list(report.answers)
