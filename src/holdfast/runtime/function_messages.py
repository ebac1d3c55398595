"""Calls of functions on nodes, as messages: a call with its outputs, and what became of each. Runs anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import CheckFailed, HoldfastError, one_line
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.coordinator.sink_calls import Call, Returned
from holdfast.runtime.io.sinks import Output, OutputKey, StagedRows
from holdfast.runtime.tables import decode_rows, encode_rows

_LENGTH = 8
"""Bytes that say how long the text is that describes a call; the rows are behind it."""


def encode_call(call: Call) -> list[bytes | pa.Buffer]:
    """Write a call, with the rows that the node does not have: pieces of a message that belong behind each other."""
    body: list[bytes | pa.Buffer] = []
    rows = []
    for one in call.outputs:
        data = None if one.rows is None else encode_rows(one.rows)
        if data is not None:
            body.append(data)
        rows.append(
            {
                "key": _write_key(one.key),
                "bytes": -1 if data is None else data.size,
                "staged": -1 if one.staged is None else one.staged.rows,
                "fidelity": one.fidelity,
                "retracts": one.retracts,
            }
        )
    text = json.dumps({"number": call.number, "epoch": int(call.epoch), "outputs": rows}).encode()
    return [len(text).to_bytes(_LENGTH, "big"), text, *body]


def decode_call(data: pa.Buffer) -> tuple[int, Epoch, list[Output]]:
    """Read a call: its number, the epoch it was made in, and its outputs."""
    at = rows_at = _LENGTH + int.from_bytes(data.slice(0, _LENGTH).to_pybytes(), "big")
    fields = json.loads(data.slice(_LENGTH, rows_at - _LENGTH).to_pybytes())
    outputs = []
    for row in fields["outputs"]:
        rows = None
        if (size := int(row["bytes"])) >= 0:
            rows, at = decode_rows(data.slice(at, size)), at + size
        staged = None if row["staged"] < 0 else StagedRows("", int(row["staged"]))
        outputs.append(Output(_read_key(row["key"]), rows, staged, row["fidelity"], bool(row["retracts"])))
    return int(fields["number"]), Epoch(int(fields["epoch"])), outputs


def encode_returned(found: Sequence[Returned]) -> bytes:
    """Write what became of outputs; of an error, its text."""
    rows = [
        {
            "call": one.call,
            "key": None if one.key is None else _write_key(one.key),
            "out": one.out,
            "error": None if one.error is None else _error_text(one.error),
            "tentative": one.tentative,
        }
        for one in found
    ]
    return json.dumps(rows).encode()


def decode_returned(data: pa.Buffer) -> list[Returned]:
    """Read what became of outputs."""
    return [
        Returned(
            int(row["call"]),
            None if row["key"] is None else _read_key(row["key"]),
            bool(row["out"]),
            None if row["error"] is None else CheckFailed(row["error"]),
            bool(row["tentative"]),
        )
        for row in json.loads(data.to_pybytes())
    ]


def _write_key(key: OutputKey) -> list[Any]:
    return [key.query.operator, key.query.index, key.batch, key.revision, key.generation, key.run]


def _read_key(row: Sequence[Any]) -> OutputKey:
    operator, index, batch, revision, generation, run = row
    query = PartitionId(OperatorId(operator), int(index))
    return OutputKey(query, BatchId(batch), int(revision), int(generation), str(run))


def _error_text(error: BaseException) -> str:
    return one_line(str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}")
