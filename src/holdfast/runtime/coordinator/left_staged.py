"""Gathered rows that an earlier start left staged where no output gathers any more. Runs on the driver.

A staged output is out: no start makes it again. What a killed driver has left staged is published by the next one, as
part of the sink of the same folder, or table. Where the application has changed meanwhile, so that the output goes
elsewhere, is not gathered or is no more, no sink has it. So a start notes, before anything is staged, the folders and
tables for which it gathers; a later one publishes what is staged in those that it has not, and then drops the note.
What fails is tried by the next.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from typing import Any

from holdfast.errors import one_line
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.runtime.io.gathered_delta import GatheredDeltaSink
from holdfast.runtime.io.gathered_parquet import GatheredParquetSink
from holdfast.runtime.io.sinks import Gathered, Sink
from holdfast.storage.storage import Storage

_FOLDER = "gathered/"
_KINDS: Mapping[int, type[GatheredParquetSink | GatheredDeltaSink]] = {1: GatheredParquetSink, 2: GatheredDeltaSink}
"""What gathers where a note says, by the note's version; a note of a version that is not known here is left alone."""


def publish_left_staged(
    storage: Storage,
    sinks: Iterable[Sink],
    run: str,
    epoch: Epoch,
    published: Mapping[PartitionId, BatchId],
    generation: int,
    log: Callable[[str], object] = lambda line: None,
    kinds: Mapping[int, Callable[..., GatheredParquetSink | GatheredDeltaSink]] | None = None,
) -> None:
    """Note where sinks gather, and publish what is staged in places that were noted and that no sink has now.

    `storage` is the run's; `published` says of each query which batch is out, and `generation` is the run's layout.
    `kinds` make the sink for a note, by its version.
    """
    mine = dict(_note(number, sink) for sink in sinks for number, kind in _KINDS.items() if isinstance(sink, kind))
    there = storage.list(_FOLDER)
    for name, note in mine.items():
        if name not in there:
            storage.create(name, json.dumps(note).encode())
    for name in there:
        held = None if name in mine else storage.read(name)
        about: dict[str, Any] = {} if held is None else json.loads(held.to_pybytes())
        if (kind := (kinds or _KINDS).get(about.get("version", 0))) is None:
            continue
        url = about["url"]
        try:
            count = _publish(kind(url, partition_by=about["partition_by"]), run, epoch, published, generation)
        except Exception as error:  # also those of a table's library: whatever it is, it is no reason not to start
            why = one_line(str(error)) or type(error).__name__
            log(f"rows that an earlier start left staged in {url} are not published, the next start tries again: {why}")
            continue
        if count:
            log(f"rows that an earlier start left staged in {url}, where no output gathers any more, are published")
        storage.delete([name])


def _note(version: int, sink: GatheredParquetSink | GatheredDeltaSink) -> tuple[str, dict[str, Any]]:
    """Return the name of the note about where a sink gathers, and what it says."""
    url = sink.kept_in().url
    place = url if version == 1 else f"{version} {url}"
    name = f"{_FOLDER}{sha256(place.encode()).hexdigest()[:16]}.json"
    return name, {"version": version, "url": url, "partition_by": list(sink.partition_by)}


def _publish(
    sink: GatheredParquetSink | GatheredDeltaSink,
    run: str,
    epoch: Epoch,
    published: Mapping[PartitionId, BatchId],
    generation: int,
) -> int:
    """Publish what is staged in a place; return in how many groups. One in which nothing is staged is left alone."""
    count = 0
    if not sink.has_staged(run):
        return count
    sink.begin(run, epoch)
    while sink.due(math.inf):
        sink.flush(Gathered(published, generation, math.inf), epoch)
        count += 1
    return count
