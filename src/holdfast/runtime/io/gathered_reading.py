"""Reads a folder whose outputs are gathered, whole: what is in files, and what is staged. Runs anywhere.

An output that is staged may be published, and its staged copy deleted, while it is read: then all is looked at anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.runtime.io.gathered_files import rows_by_batch
from holdfast.runtime.io.parquet_names import GROUPS, RUN, STAGED, Seen
from holdfast.runtime.io.sinks import OutputKey
from holdfast.storage.storage import Storage


def gathers(storage: Storage) -> dict[str, Any] | None:
    """Return how the outputs in a folder are gathered; None: they are not, or there are none."""
    held = storage.read(RUN)
    about: dict[str, Any] = {} if held is None else json.loads(held.to_pybytes())
    return about if "gathered" in about else None


def see(storage: Storage) -> Seen:
    """Return where every output is that is out: each is in one place."""
    staged = storage.list(STAGED)
    groups = storage.list(GROUPS)
    return Seen.of(staged, groups, storage.list())


def read_outputs(storage: Storage) -> dict[OutputKey, pa.Table]:
    """Return every output, in the order of batch and query; rows that folders part come folder by folder."""
    parts: dict[OutputKey, list[pa.Table]] = {}
    for key, rows in _read(storage, _outputs_of):
        parts.setdefault(key, []).append(rows)
    ordered = sorted(parts, key=lambda key: (key.batch, key.query, key.generation))
    return {key: pa.concat_tables(parts[key]).combine_chunks() for key in ordered}


def count_rows(storage: Storage) -> int:
    """Return how many rows are there, as the footers say."""
    return sum(_read(storage, lambda name, seen, data: [pq.read_metadata(pa.BufferReader(data)).num_rows]))


def read_staged(storage: Storage, name: str) -> pa.Table:
    """Return the rows of a staged output; FileNotFoundError: it has just been published."""
    if (data := storage.read(name)) is None:
        raise FileNotFoundError(name)
    return pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)


def _outputs_of(name: str, seen: Seen, data: pa.Buffer) -> Iterator[tuple[OutputKey, pa.Table]]:
    if name in seen.staged:
        yield seen.staged[name], pq.ParquetFile(pa.BufferReader(data)).read(use_threads=False)
        return
    group = seen.files[name]
    for batch, rows in rows_by_batch(data, name):
        yield OutputKey(group.query, batch, generation=group.generation), rows


def _read(storage: Storage, read: Callable[[str, Seen, pa.Buffer], Any]) -> list[Any]:
    while True:
        seen, found = see(storage), []
        for name in (*seen.staged, *seen.files):
            if (data := storage.read(name)) is None:
                break  # it has just been published, or has expired
            found += read(name, seen, data)
        else:
            return found
