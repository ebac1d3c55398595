"""Blocks come back as they were written or not at all; every row goes to the one partition the model says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import Block, Edge, Header, decode_blocks, encode_blocks, encode_outbox, outbox_groups
from holdfast.runtime.worker.routing import Route, hash_rows, partition_of, spread
from holdfast.topology import Input, Operator, Partitioning, Topology

EDGE = Edge(OperatorId("O3"), OperatorId("O5"))
HEADER = Header(EDGE, PartitionId.parse("O3[1]"), PartitionId.parse("O5[0]"), BatchId(7), Epoch(2), -5, tentative=True)
ROWS = pa.table({"segment": ["é", None, ""], "n": [1, None, 3]})


def test_blocks_are_read_as_they_were_written() -> None:
    both = [Block(HEADER, ROWS), Block(HEADER)]
    again = decode_blocks(encode_blocks(both))
    assert [block.header for block in again] == [HEADER, HEADER]
    assert again[0].rows.equals(ROWS)
    assert again[1].rows is None, "a block without rows is the barrier alone"
    assert encode_blocks([again[0]]) == encode_blocks([both[0]]), "the same block, the same bytes"
    assert decode_blocks(encode_blocks([both[1]]))[0].header == HEADER
    assert Block(HEADER).stamped(Epoch(3)).header.epoch == 3


def test_blocks_of_one_sender_and_batch_share_a_table_and_are_read_apart() -> None:
    def to(index: int, rows: pa.Table | None, **more: object) -> Block:
        return Block(replace(HEADER, receiver=PartitionId(EDGE.target, index), **more), rows)  # type: ignore[arg-type]

    wider = ROWS.append_column("more", pa.array([1, 2, 3]))
    blocks = [
        to(0, ROWS),
        to(1, None),
        to(2, ROWS.slice(1, 2)),
        to(3, ROWS.slice(0, 0)),
        to(4, wider),
        to(5, wider, batch=BatchId(8)),
        to(6, None, batch=BatchId(8)),
    ]
    data = encode_blocks(blocks)
    assert data.count(b"HFB2") == 3, "other columns, or another batch, begin a new table"
    again = decode_blocks(data)
    assert [one.header for one in again] == [one.header for one in blocks]
    assert [one.rows for one in again] == [one.rows for one in blocks]
    assert decode_blocks(encode_blocks([])) == []


def test_the_outbox_of_a_snapshot_has_one_header_and_schema_for_many_batches_of_an_edge() -> None:
    def sent(batch: int, index: int, rows: pa.Table | None, **more: object) -> Block:
        receiver = PartitionId(EDGE.target, index)
        head = replace(HEADER, batch=BatchId(batch), receiver=receiver, watermark=batch / 4, tentative=False, **more)  # type: ignore[arg-type]
        return Block(head, rows)

    # As a host gives them: consumer by consumer, and batch by batch.
    kept = [
        sent(batch, index, None if (batch + index) % 4 == 0 else ROWS.slice(index, batch % 3))
        for index in range(2)
        for batch in range(40)
    ]
    data = encode_outbox(kept)
    assert data.count(b"HFB3") == 1, "the schema is there once"
    assert len(data) < len(encode_blocks(kept)) / 8
    again = decode_blocks(data)
    assert sorted(str(one.header) for one in again) == sorted(str(one.header) for one in kept)
    rows = {one.header: one.rows for one in again}
    assert all(rows[one.header] == one.rows for one in kept)
    assert encode_outbox(again) == encode_outbox(kept[::-1]) == data, "who saves it again saves the same bytes"
    assert encode_outbox([]) == b""
    for length in range(1, len(data), 97):
        with pytest.raises(CheckFailed):
            decode_blocks(data[:length])


def test_an_outbox_is_cut_where_it_would_take_too_much_memory_or_columns_change() -> None:
    many = pa.table({"n": pa.array(range(10_000), pa.int64())})
    other = pa.table({"m": pa.array(["x"])})
    words = pa.table({"w": pa.array(["a", "b"]).dictionary_encode()})

    def sent(batch: int, rows: pa.Table) -> Block:
        return Block(replace(HEADER, batch=BatchId(batch), tentative=False), rows)

    large = [sent(batch, many) for batch in range(6)]
    assert [len(list(map(bytes, group))) for group in outbox_groups(large)] == [3, 3, 3], "two batches in each"
    wide = pa.table({"b": pa.array([bytes(1 << 20)] * 3), "n": pa.array([1, None, 3])})  # few rows, and large ones
    pages = [sent(batch, wide.slice(batch % 2, 2)) for batch in range(12)]
    sizes = [sum(len(bytes(piece)) for piece in group) for group in outbox_groups(pages)]
    assert max(sizes) < 7 << 20, "what is in memory at a time: more than one batch is, and not all of them"
    assert len(sizes) in (4, 5, 6)
    again = decode_blocks(encode_outbox(pages))
    assert encode_outbox(again) == encode_outbox(pages), "cut at the same places, wherever rows come from"
    mixed = [sent(0, many.slice(0, 3)), sent(1, other), sent(2, words), sent(3, words)]
    data = encode_outbox(mixed)
    assert data.count(b"HFB3") == 4, "dictionaries of two batches are not put together"
    assert [one.rows for one in decode_blocks(data)] == [one.rows for one in mixed]


def test_rows_of_an_outbox_are_written_as_if_they_had_come_alone() -> None:
    values = pa.table(
        {
            "n": pa.array([None if n % 7 == 3 else n for n in range(60)]),
            "t": pa.array([n % 3 == 0 for n in range(60)]),
            "w": pa.array(["x" * (n % 5) for n in range(60)]),
            "l": pa.array([[n] * (n % 4) for n in range(60)]),
        }
    )
    for columns in (["n"], ["t"], ["w"], ["l"], values.schema.names):
        rows = values.select(columns)
        kept = [
            Block(replace(HEADER, batch=BatchId(batch), tentative=False), rows.slice(11 * batch, 11))
            for batch in range(5)
        ]
        alone = [replace(one, rows=pa.Table.from_pylist(one.rows.to_pylist(), rows.schema)) for one in kept]  # type: ignore[union-attr]
        assert encode_blocks(decode_blocks(encode_outbox(kept))) == encode_blocks(alone), columns


def test_a_torn_or_changed_block_is_refused() -> None:
    data = encode_blocks([Block(HEADER, ROWS)])
    for length in range(1, len(data), 7):
        with pytest.raises(CheckFailed):
            decode_blocks(data[:length])
    accepted = []
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 0x10
        try:
            decode_blocks(bytes(changed))
            accepted.append(place)
        except CheckFailed:
            pass
    assert len(accepted) < 8, "only the zeros between header and rows mean nothing"
    assert all(data[place] == 0 for place in accepted)


def routes() -> list[tuple[Partitioning, int, int]]:
    return [
        (Partitioning.ONE_TO_ONE, 3, 3),
        (Partitioning.SPLIT, 2, 6),
        (Partitioning.SPLIT, 2, 5),
        (Partitioning.SPLIT, 1, 4),
        (Partitioning.MERGE, 6, 2),
        (Partitioning.MERGE, 5, 3),
        (Partitioning.FULL, 3, 4),
    ]


@pytest.mark.parametrize(("kind", "senders", "receivers"), routes())
def test_targets_are_the_topologys_edges(kind: Partitioning, senders: int, receivers: int) -> None:
    a, b = OperatorId("a"), OperatorId("b")
    topology = Topology("t", [Operator(a, senders), Operator(b, receivers, (Input(a, kind),))])
    route = Route(Edge(a, b), kind, senders, receivers, ())
    for sender in range(senders):
        expected = {topology.partition(index).index for index in topology.downstream(sender)}
        assert set(route.targets(sender)) == expected


@pytest.mark.parametrize(("kind", "senders", "receivers"), routes())
@given(keys=st.lists(st.one_of(st.none(), st.text(max_size=4)), max_size=60))
def test_every_row_goes_to_one_target_in_its_order(
    kind: Partitioning, senders: int, receivers: int, keys: list[str | None]
) -> None:
    rows = pa.table({"key": pa.array(keys, pa.string()), "at": pa.array(range(len(keys)), pa.int64())})
    keyed = kind is Partitioning.FULL or receivers % senders == 0 or senders % receivers == 0
    route = Route(Edge(OperatorId("a"), OperatorId("b")), kind, senders, receivers, ("key",) if keyed else ())
    for sender in range(senders):
        given_rows = rows
        if keyed and kind is not Partitioning.FULL:  # nested: the sender holds its own part of the keys
            given_rows = rows.filter(pa.array(partition_of(hash_rows(rows, ["key"]), senders) == sender))
        parts = spread(given_rows, route, sender)
        assert len(parts) == len(route.targets(sender))
        kept = [part["at"].to_pylist() for part in parts if part is not None]
        assert all(part == sorted(part) for part in kept)
        assert sorted(at for part in kept for at in part) == given_rows["at"].to_pylist()
        for target, part in zip(route.targets(sender), parts, strict=True):
            if keyed and part is not None:
                assert (partition_of(hash_rows(part, ["key"]), receivers) == target).all()


def test_rows_without_a_key_are_cut_evenly() -> None:
    route = Route(EDGE, Partitioning.SPLIT, 1, 4, ())
    parts = spread(pa.table({"n": np.arange(10)}), route, 0)
    assert [part.num_rows for part in parts if part is not None] == [2, 3, 2, 3]


def test_a_key_that_does_not_belong_to_the_edge_is_refused() -> None:
    route = Route(EDGE, Partitioning.SPLIT, 2, 4, ("n",))
    with pytest.raises(CheckFailed, match="which this edge does not reach"):
        spread(pa.table({"n": np.arange(100)}), route, 0)
