"""A line of JSON with nested columns gives the same row whatever is beside it."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from holdfast.runtime.io.json_rows import json_table, read_json

WHOLE = ["0", "-0", "1", "-7", "16777217", "9007199254740993", str(1 << 60), "1" + "0" * 20, "1" + "0" * 400]
NUMBERS = [*WHOLE, "0.1e1", "1.5", "-2.25", "1e400", "123456789012345678.25"]
TIMES = ['"2026-11-18 21:00:00"', '"2026-11-18T21:00:00Z"', '"1900-01-01"', '"2026-11-18 21:00:00.123"']
TEXTS = [r'"x"', '""', r'"\u00e9"', '"1.50"']
ANY = [*NUMBERS, *TIMES, *TEXTS, "true", "false", "null", "[]", "{}", "[null]", '{"a":1}']
LEAVES = [
    (pa.int8(), WHOLE),
    (pa.int64(), WHOLE),
    (pa.uint32(), WHOLE),
    (pa.float32(), NUMBERS),
    (pa.float64(), NUMBERS),
    (pa.decimal128(10, 2), [*NUMBERS, '"1.50"']),
    (pa.decimal128(20, 2), [*NUMBERS, '"1.50"']),
    (pa.timestamp("s"), TIMES),
    (pa.timestamp("us"), TIMES),
    (pa.timestamp("us", "UTC"), TIMES),
    (pa.date32(), ['"2026-11-18"', "5", "-0"]),
    (pa.date64(), ['"2026-11-18"', "86400000", "5"]),
    (pa.string(), TEXTS),
    (pa.large_string(), TEXTS),
    (pa.binary(), TEXTS),
    (pa.bool_(), ["true", "false"]),
]


def drawn(draw: random.Random, depth: int) -> tuple[pa.DataType, list[str]]:
    """Return a type, and values of it as JSON."""
    if not depth:
        kind, texts = draw.choice(LEAVES)
        return kind, [*(draw.choice(texts) for _ in range(6)), "null"]
    inner, values = drawn(draw, depth - 1)
    if draw.random() < 0.15:
        values.append(draw.choice(ANY))

    def some(fewest: int = 0, most: int = 3) -> list[str]:
        return [draw.choice(values) for _ in range(draw.randint(fewest, most))]

    match draw.choice(["list", "large", "fixed", "struct", "map"]):
        case "list":
            return pa.list_(inner), [f"[{','.join(some())}]" for _ in range(5)]
        case "large":
            return pa.large_list(inner), [f"[{','.join(some())}]" for _ in range(5)]
        case "fixed":
            return pa.list_(inner, 2), [f"[{','.join(some(2, 2))}]" for _ in range(5)]
        case "struct":
            named = ['{"a":%s,"b":1}', '{"b":-0,"a":%s}', '{"a":%s,"c":[1]}', '{"a":%s}']
            kind = pa.struct([("a", inner), ("b", pa.int64())])
            return kind, [*(draw.choice(named) % value for value in some(4, 5)), "{}"]
    pairs = ['{"k":%s}', '[{"key":"k","value":%s}]']
    return pa.map_(pa.string(), inner), [*(draw.choice(pairs) % value for value in some(4, 5)), "{}"]


@pytest.mark.parametrize("seed", range(40))
def test_nested_columns_have_the_same_values_beside_a_line_that_is_no_object(seed: int) -> None:
    """Nested values that Arrow's parser takes were dead letters where a `null` was in the same few lines."""
    draw = random.Random(seed)
    for _ in range(12):
        kind, values = drawn(draw, draw.randint(1, 3))
        schema = pa.schema([("id", pa.int64()), ("v", kind)])
        for text in [*values, "null"]:
            line = f'{{"id":1,"v":{text}}}'
            alone, refused = read_json(pa.py_buffer(line.encode()), schema)
            rows, rejected = read_json(pa.py_buffer(f"{line}\nnull\n".encode()), schema)
            assert rows.equals(alone), (kind, text, rows.to_pylist(), alone.to_pylist(), rejected)
            assert len(rejected) == len(refused) + 1


TAKEN = [
    (pa.list_(pa.timestamp("us")), '["2026-11-18 21:00:00",null]'),
    (pa.struct([("a", pa.decimal128(10, 2))]), '{"a":1.5}'),
    (pa.list_(pa.float64()), "[9007199254740993]"),
    (pa.list_(pa.struct([("at", pa.timestamp("us"))])), '[{"at":"2026-11-18"}]'),
]


@pytest.mark.parametrize(("kind", "text"), TAKEN)
@pytest.mark.parametrize("stray", ["null", "[]"])
def test_a_stray_line_makes_no_dead_letter_of_a_good_one(kind: pa.DataType, text: str, stray: str) -> None:
    schema = pa.schema([("v", kind)])
    line = f'{{"v":{text}}}'
    wanted = json_table(pa.py_buffer(line.encode()), schema)
    assert wanted is not None, "Arrow's parser takes it"
    rows, rejected = read_json(pa.py_buffer(f"{stray}\n{line}\n".encode()), schema)
    assert rows.equals(wanted)
    assert [one.position for one in rejected] == [0]


def test_the_values_of_maps_are_those_of_columns() -> None:
    schema = pa.schema([("v", pa.map_(pa.string(), pa.timestamp("us")))])
    rows, rejected = read_json(pa.py_buffer(b'{"v":{"k":"2026-11-18 21:00:00"}}'), schema)
    assert rejected == []
    assert str(rows["v"][0].as_py()) == "[('k', datetime.datetime(2026, 11, 18, 21, 0))]"


@pytest.mark.parametrize("beside", [[], ["null"]])
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-0", "-0"),
        ("-0.0", "-0.0"),
        ("1e2", "1e2"),
        ("9" * 4400, "9" * 4400),
        ("-" + "9" * 4400, "-" + "9" * 4400),
        *(('{"b":-0, "c":[-0,{"d":%s}],"é":"\\""}' % ("9" * 4400),) * 2,),
        ("[]", "[]"),
        ("true", "true"),
    ],
    ids=lambda one: one[:12],
)
def test_a_value_in_a_column_of_texts_is_as_it_was_written(text: str, value: str, beside: list[str]) -> None:
    data = "\n".join([f'{{"a":{text}}}', *beside]).encode()
    rows, rejected = read_json(pa.py_buffer(data), pa.schema([("a", pa.string())]))
    assert rows.to_pylist() == [{"a": value}]
    assert len(rejected) == len(beside)
