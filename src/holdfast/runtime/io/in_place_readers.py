"""Sources that are read in place, on the driver: what a batch asks of their readers, and the reader of each source."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from holdfast.application.kafka_topics import KafkaTopic
from holdfast.application.readers import Files, file_options
from holdfast.ids import OperatorId
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.file_ranges import FileRange, HowRead
from holdfast.runtime.io.file_reader import FileReader, folder_of
from holdfast.runtime.io.file_retention import FileRetention
from holdfast.runtime.io.file_tracker import Notice
from holdfast.runtime.io.in_place import files_at
from holdfast.runtime.io.kafka_reader import FRESH_SECONDS, kafka_reader
from holdfast.runtime.io.needed_ranges import NeededRanges
from holdfast.runtime.io.offset_ranges import SourceRange
from holdfast.runtime.program import SourceProgram
from holdfast.storage.storage import Storage


class TakenRanges(Protocol):
    """What the next batch has of a source."""

    @property
    def ranges(self) -> Sequence[SourceRange]:
        """The ranges, in the order of the rows."""
        ...


class InPlaceReader(Protocol):
    """What knows which ranges of a source come next. From any thread."""

    source: OperatorId
    what: str
    """What it looks at, in a sentence: its folder, its topic."""
    look_seconds: float
    """The shortest pause between two looks."""
    listed: int
    """How many looks there were since it began, or began anew."""
    pause_factor: float
    """The pause after a look is at least the time that the look took, times this factor."""

    def begin(self, position: Mapping[str, Any]) -> None:
        """Begin, or begin anew, after the batch whose record has this position; empty: at the beginning."""
        ...

    def look(self) -> Sequence[Notice]:
        """See what is there now; return what people should know. Nothing is taken."""
        ...

    @property
    def pending(self) -> bool:
        """Whether the next batch can have something of this source."""
        ...

    @property
    def unsettled(self) -> bool:
        """Whether there is something that cannot be taken yet, and soon can."""
        ...

    def take(self, most_bytes: int) -> TakenRanges | None:
        """Return what the next batch has, about so many bytes at most; None: nothing."""
        ...

    def fields(self, taken: Any) -> dict[str, Any]:
        """Return where the source is after a batch, as its record holds it."""
        ...

    def how(self, lateness: int) -> HowRead:
        """Return how ranges are read, as the record of a batch holds it."""
        ...

    def logged(self, taken: Any) -> None:
        """What was taken is in the log."""
        ...

    def fix_end(self) -> None:
        """Leave what comes from now on for the next run."""
        ...

    @property
    def ended(self) -> bool:
        """Whether an end was fixed, and everything up to it is taken."""
        ...

    def taken_now(self) -> Callable[[], bool]:
        """Return what says whether everything that is there now is taken."""
        ...


def in_place_readers(
    sources: Mapping[OperatorId, SourceProgram],
    storage: Storage,
    log: BatchLog,
    *,
    fresh_seconds: float = FRESH_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> dict[OperatorId, InPlaceReader]:
    """Return the readers of the sources that are read in place. `fresh_seconds`: see `kafka_client.Topic`."""
    found: dict[OperatorId, InPlaceReader] = {}
    for name, source in sources.items():
        if isinstance(source.reader, Files):
            kept = FileRetention(
                source,
                file_options(source.reader).retention,
                NeededRanges(log, name, FileRange),
                log.copies,
                files_at,
                clock=clock,
            )
            found[name] = FileReader(
                name,
                source.reader,
                source.parallelism,
                folder_of(source),
                storage,
                log.claim,
                clock=clock,
                watch=kept,
            )
        elif isinstance(source.reader, KafkaTopic):
            found[name] = kafka_reader(name, source.reader, source.parallelism, log, fresh_seconds=fresh_seconds)
    return found
