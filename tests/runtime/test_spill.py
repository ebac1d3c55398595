"""Blocks beyond the bound of inboxes are on disk: the same rows, no file that stays."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import Block, Edge, Header, decode_blocks, encode_blocks
from holdfast.runtime.worker import spill
from holdfast.runtime.worker.spill import InboxSpill

SENDER, RECEIVER = PartitionId(OperatorId("a"), 0), PartitionId(OperatorId("b"), 0)
ROWS = pa.table({"word": ["x", "y"] * 5000})


def message() -> bytes:
    head = Header(Edge(SENDER.operator, RECEIVER.operator), SENDER, RECEIVER, BatchId(3), Epoch(1), None)
    return encode_blocks([Block(head, ROWS)])


def mapped(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line]


def test_what_comes_to_full_inboxes_is_mapped_and_leaves_no_file(tmp_path: Path) -> None:
    one, data = InboxSpill(tmp_path / "spill", most=len(message())), message()
    first = decode_blocks(one.arrived(data))
    assert not mapped(tmp_path), "there was room"
    decode_blocks(one.arrived(data))
    assert not mapped(tmp_path), "no more than the bound was there before it"
    third = decode_blocks(one.arrived(data))
    assert len(mapped(tmp_path)) == 1
    assert one.spilled == len(data)
    assert list((tmp_path / "spill").iterdir()) == [], "its file has no name"
    assert third[0].rows is not None
    assert third[0].header == first[0].header
    assert third[0].rows.equals(ROWS)
    third.clear()
    gc.collect()
    assert not mapped(tmp_path), "the file ends with the table"


def test_there_is_room_again_when_inboxes_are_emptied(tmp_path: Path) -> None:
    data = message()
    one = InboxSpill(tmp_path, most=len(data))
    for _ in range(2):
        one.arrived(data)
        one.taken(len(data), in_inboxes=3 * len(data))
    one.arrived(data)
    assert one.spilled == 2 * len(data), "inboxes were full from the first on"
    one.taken(len(data), in_inboxes=0)
    one.arrived(data)
    one.taken(0, in_inboxes=2 * len(data))
    one.arrived(data)
    assert one.spilled == 3 * len(data)


def test_a_full_disk_leaves_it_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, data: memoryview) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(spill.os, "write", full)
    one = InboxSpill(tmp_path, most=-1)
    found = decode_blocks(one.arrived(message()))
    assert found[0].rows is not None
    assert found[0].rows.equals(ROWS)
    assert one.spilled == 0
