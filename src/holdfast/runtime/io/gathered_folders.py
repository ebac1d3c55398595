"""Folders `COLUMN=VALUE` of gathered outputs, named as Spark and Hive name them. Runs anywhere.

Which columns and values can name one is checked before an output is staged: what is staged must get into a file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import BadInput
from holdfast.ids import BatchId

NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = re.compile(r"[\x00-\x20\"#%&'()*+,/:;<=>?@\[\\\]^`{|}~!$\x7f-\xa0\ufffe\uffff\U0010ffff]")
MOST_BYTES = 255
"""Bytes that the name of a folder may have, on the file systems that there are."""


def check_columns(schema: pa.Schema, partition_by: Sequence[str], where: str, field_name: str = "") -> None:
    """Refuse columns that rows do not have, or whose values no folder can name."""
    for name in partition_by:
        if name not in schema.names:
            raise BadInput(
                f"has no column {name!r}, by which its files are to be partitioned",
                where=where,
                field=field_name or None,
                remedy=f"name one of {', '.join(schema.names)} in `partition_by`",
            )
        kind = schema.field(name).type
        if not _is_plain(kind):
            raise BadInput(
                f"column {name!r} is {kind}, and folders can be named by text, whole numbers, dates and booleans",
                where=where,
                field=field_name or None,
                remedy="add a column of such a type, a date for example, and partition by it",
            )
    if schema.names and set(schema.names) <= set(partition_by):
        raise BadInput(
            "would be partitioned by all its columns, and files need one",
            where=where,
            field=field_name or None,
            remedy="leave one out of `partition_by`",
        )


def _is_plain(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(
        types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_integer(kind)
        or types.is_boolean(kind)
        or types.is_date32(kind)
    )


def escaped(text: str) -> str:
    """Return a name or value as it is in the name of a folder: as Spark writes it, and Spark and Arrow read it.

    >>> escaped("a/b=c d"), escaped("Zürich"), escaped("")
    ('a%2Fb%3Dc%20d', 'Zürich', '')
    """
    return _ESCAPED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), text)


def _text(value: object) -> str:
    if value is None or value == "":
        return NULL  # Spark writes both so, and reads null
    if isinstance(value, bool):
        return "true" if value else "false"
    return escaped(value.isoformat() if hasattr(value, "isoformat") else str(value))


def _segments(rows: pa.Table, name: str) -> tuple[list[str], pa.Array]:
    """Return the folders that a column names, and the number among them of each row's; OverflowError: of some none."""
    encoded = rows[name].combine_chunks().dictionary_encode(null_encoding="encode")
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    texts = [f"{escaped(name)}={_text(value)}" for value in encoded.dictionary.to_pylist()]
    for text in texts:
        if len(text.encode()) > MOST_BYTES:
            raise OverflowError(f"{text[:40]}… has {len(text.encode())} bytes, and {MOST_BYTES} are possible")
    return texts, encoded.indices


def check_rows(rows: pa.Table, partition_by: Sequence[str], batch: BatchId, where: str) -> None:
    """Refuse rows of which no files can be made: before they are staged, since what is staged must get into a file."""
    check_columns(rows.schema, partition_by, where)
    for name in partition_by:
        try:
            _segments(rows, name)
        except (OverflowError, ValueError) as error:
            raise BadInput(
                f"column {name!r} has a value in batch {batch} that no folder can be named by: {error}",
                where=where,
                remedy="shorten such values, drop dates outside the years 1 to 9999, or partition by another column",
            ) from None


def folders_of(rows: pa.Table, partition_by: Sequence[str]) -> tuple[list[str], pa.Array]:
    """Return the folders of rows, and the number among them of each row's. No text is made for each row."""
    folders, numbers = [""], None
    for name in partition_by:
        texts, found = _segments(rows, name)
        own = {text: at for at, text in enumerate(dict.fromkeys(texts))}  # null and the empty text are in one folder
        found = pa.array([own[text] for text in texts], pa.int64()).take(found)
        segments = list(own)
        if numbers is None:
            folders, numbers = segments, found
            continue
        both = pc.add(pc.multiply(numbers, len(segments)), found).dictionary_encode()
        places = [divmod(one, len(segments)) for one in both.dictionary.to_pylist()]
        folders = [f"{folders[before]}/{segments[at]}" for before, at in places]
        numbers = both.indices.cast(pa.int64())
    return folders, numbers
