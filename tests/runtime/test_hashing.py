"""Keys go to the same partition on every machine, for ever: golden vectors, and the rules they follow."""

from __future__ import annotations

import datetime

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadInput
from holdfast.runtime.worker.routing import hash_column, hash_rows, partition_of

GOLDEN = {
    "": 10749833864783185041,
    "a": 10159210920545720280,
    "abcdefgh": 8871704580729230,
    "abcdefghi": 645161281338598248,
    "é" * 200: 731202127680873526,
}


def test_hashes_never_change() -> None:
    assert hash_column(pa.array(list(GOLDEN))).tolist() == list(GOLDEN.values())
    assert hash_column(pa.array([1, None, 0])).tolist() == [
        10451216379200822465,
        11415608902216751769,
        16294208416658607535,
    ]


def one_by_one(text: bytes) -> int:
    """The hash as the module's text says it, one value at a time."""
    mask = 2**64 - 1

    def mixed(word: int) -> int:
        word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & mask
        word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & mask
        return word ^ (word >> 31)

    step = 0x9E3779B97F4A7C15
    value = mixed((len(text) * step + 0x2545F4914F6CDD1D) & mask)
    for at in range(0, len(text), 8):
        value = mixed((value * step + int.from_bytes(text[at : at + 8], "little")) & mask)
    return value


@given(st.lists(st.one_of(st.none(), st.text(max_size=60)), max_size=30), st.integers(0, 5))
def test_texts_hash_as_written_down_also_from_the_middle_of_a_buffer(texts: list[str | None], start: int) -> None:
    values = pa.array(texts, pa.string()).slice(start)
    hashed = hash_column(values)
    for text, found in zip(texts[start:], hashed.tolist(), strict=True):
        if text is not None:
            assert found == one_by_one(text.encode())
    assert hash_column(values.cast(pa.large_string())).tolist() == hashed.tolist()
    assert hash_column(pa.chunked_array([values, values])).tolist() == hashed.tolist() * 2
    many = pa.concat_arrays([values] * 100)
    assert hash_column(many).tolist() == hashed.tolist() * 100, "many values take another path"
    assert hash_column(values.dictionary_encode()).tolist() == hashed.tolist()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.array([1, -7], pa.int8()), pa.array([1, -7], pa.int64())),
        (pa.array([1, 7], pa.uint64()), pa.array([1.0, 7.0])),
        (pa.array([0.0, float("nan")]), pa.array([-0.0, -float("nan")])),
        (pa.array([0.5], pa.float32()), pa.array([0.5])),
        (pa.array([3], pa.timestamp("s")), pa.array([3_000_000], pa.timestamp("us"))),
        (pa.array([3], pa.timestamp("ns")), pa.array([3], pa.timestamp("ns"))),
        (pa.array(["é"]), pa.array(["é".encode()])),
        (pa.array([None], pa.string()), pa.array([None], pa.int64())),
    ],
    ids=str,
)
def test_equal_values_hash_alike_whatever_their_type(one: pa.Array, other: pa.Array) -> None:
    assert hash_column(one).tolist() == hash_column(other).tolist()


def test_all_key_types_spread() -> None:
    numbers = np.arange(4000)
    day = datetime.date(1970, 1, 1)
    for values in (
        pa.array(numbers),
        pa.array(numbers / 3),
        pa.array([str(n) for n in numbers]),
        pa.array([f"{n}".encode() for n in numbers]),
        pa.array(numbers, pa.timestamp("ms")),
        pa.array([day + datetime.timedelta(days=int(n)) for n in numbers]),
    ):
        shares = np.bincount(partition_of(hash_column(values), 8), minlength=8)
        assert shares.min() > 400, f"{values.type}: {shares}"


def test_columns_are_hashed_in_order_and_nulls_count() -> None:
    rows = pa.table({"a": ["x", "y", None, None], "b": ["y", "x", "x", None]})
    hashed = hash_rows(rows, ["a", "b"])
    assert len(set(hashed.tolist())) == 4
    assert hash_rows(rows, ["b", "a"]).tolist() != hashed.tolist()


@given(st.lists(st.integers(), max_size=50), st.integers(1, 12), st.integers(1, 12))
def test_partitions_nest_where_one_count_divides_the_other(keys: list[int], few: int, times: int) -> None:
    hashes = hash_column(pa.array([str(key) for key in keys], pa.string()))
    fine, coarse = partition_of(hashes, few * times), partition_of(hashes, few)
    assert (fine // times == coarse).all()
    assert ((coarse >= 0) & (coarse < few)).all()


def test_what_cannot_be_hashed_is_named() -> None:
    rows = pa.table({"tags": [["a"], ["b"]]})
    with pytest.raises(BadInput, match=r"key column 'tags' is list<.*cannot be hashed; key by texts"):
        hash_rows(rows, ["tags"])
    with pytest.raises(BadInput, match="no key column 'tag'; there are tags"):
        hash_rows(rows, ["tag"])
