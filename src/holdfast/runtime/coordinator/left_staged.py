"""Gathered rows that an earlier start left staged in a folder to which no output writes any more. Runs on the driver.

A staged output is out: no start makes it again. What a killed driver has left staged is published by the next one, as
part of the sink of the same folder. Where the application has changed meanwhile, so that the output goes elsewhere or
is no more, no sink has that folder. So a start notes, before anything is staged, the folders into which it gathers; a
later one publishes what is staged in those that it has not, and then drops the note. What fails is tried by the next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

from holdfast.errors import HoldfastError, one_line
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io.gathered_parquet import GatheredParquetSink
from holdfast.runtime.io.parquet_names import STAGED
from holdfast.runtime.io.sinks import Gathered, Sink
from holdfast.storage.storage import Storage

_FOLDER = "gathered/"
_VERSION = 1


def publish_left_staged(
    storage: Storage,
    sinks: Iterable[Sink],
    run: str,
    epoch: Epoch,
    published: Mapping[PartitionId, BatchId],
    generation: int,
    log: Callable[[str], object] = lambda line: None,
) -> None:
    """Note the folders of sinks that gather, and publish what is staged in those that were noted and have no sink now.

    `storage` is the run's; `published` says of each query which batch is out, and `generation` is the run's layout.
    """
    mine = {sink.kept_in().url: sink for sink in sinks if isinstance(sink, GatheredParquetSink)}
    there = storage.list(_FOLDER)
    for url, sink in mine.items():
        note = {"version": _VERSION, "url": url, "partition_by": list(sink.partition_by)}
        if (name := f"{_FOLDER}{sha256(url.encode()).hexdigest()[:16]}.json") not in there:
            storage.create(name, json.dumps(note).encode())
    for name in there:
        held = storage.read(name)
        about: dict[str, Any] = {} if held is None else json.loads(held.to_pybytes())
        if about.get("version") != _VERSION or about["url"] in mine:
            continue
        url = about["url"]
        try:
            left = GatheredParquetSink(url, partition_by=about["partition_by"])
            count = _publish(left, run, epoch, published, generation)
        except (OSError, HoldfastError) as error:
            why = one_line(str(error))
            log(f"rows that an earlier start left staged in {url} are not published, the next start tries again: {why}")
            continue
        if count:
            log(f"rows that an earlier start left staged in {url}, to which no output writes any more, are published")
        storage.delete([name])


def _publish(
    sink: GatheredParquetSink, run: str, epoch: Epoch, published: Mapping[PartitionId, BatchId], generation: int
) -> int:
    """Publish what is staged in a folder; return in how many groups. One in which nothing is staged is left alone."""
    count = 0
    if not sink.kept_in().list(STAGED):
        return count
    sink.begin(run, epoch)
    while sink.due(math.inf):
        sink.flush(Gathered(published, generation, math.inf), epoch)
        count += 1
    return count
