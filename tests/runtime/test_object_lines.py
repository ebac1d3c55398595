"""Which lines begin and end as objects do, found in one pass over the bytes."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from holdfast.runtime.io import json_rows
from holdfast.runtime.io.json_rows import object_lines

PARTS = [b"{}", b'{"a":1}', b"\n", b"\r\n", b"\r", b" ", b"\t", b"\n\n", b"}\n{", b"1", b" " * 70, b"\n" * 70]
OFTEN = [6, 6, 8, 4, 0.5, 2, 1, 2, 1, 0.3, 0.1, 0.1]


def one_by_one(data: bytes) -> int | None:
    filled = [line for line in (one.strip(b" \t") for one in data.splitlines()) if line]
    return len(filled) if all(line[:1] == b"{" and line[-1:] == b"}" for line in filled) else None


@pytest.mark.parametrize("seed", range(10))
def test_the_lines_are_those_that_are_found_one_by_one(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(500):
        data = b"".join(draw.choices(PARTS, OFTEN, k=draw.randint(0, 9)))
        assert object_lines(pa.py_buffer(data)) == one_by_one(data), data


@pytest.mark.parametrize("between", ["\n", "\r\n", " \n", "\t\r\n ", "\n\n", "\n \n\n"])
def test_blanks_and_blank_lines_between_objects_take_no_loop_over_lines(
    between: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one line ended in a blank, or was blank, all lines were taken apart in Python."""

    monkeypatch.setattr(json_rows, "_object_lines_slowly", lambda held: None)
    lines = [f'{{"id":{number}}}' for number in range(50)]
    data = between + between.join(lines) + between
    assert object_lines(pa.py_buffer(data.encode())) == 50
