"""A source of files on the driver: it lists them, says what the next batch has, and keeps the list of files seen.

Listing may be slow, and runs in a thread of its own or where a caller wants it; it never takes anything. The list of
files seen is in the position of each batch as far as it is new, and for the rest in objects (*bundles*) that the
position names: with many files it would make every record long.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any
from urllib.parse import unquote, urlsplit
from uuid import uuid4

from holdfast.application.readers import Files, file_options
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import OperatorId
from holdfast.runtime.io.file_ranges import HowRead
from holdfast.runtime.io.file_retention import FileRetention
from holdfast.runtime.io.file_tracker import (
    SMALL_RANGE,
    FilePosition,
    FileTracker,
    Notice,
    Seen,
    Taken,
    position_fields,
    position_of,
)
from holdfast.runtime.program import SourceProgram
from holdfast.storage.source_files import ALIASES, SourceFiles, open_source_files
from holdfast.storage.storage import Storage

INLINE = 128
"""Files seen that the record of a batch has in it at most; with more, they go into a bundle."""
MOST_BUNDLES = 16
"""So many bundles at most; then they are put together into one, without what is below the low-water mark."""


class FileReader:
    """Reads one source's folder."""

    what = "its folder"
    look_seconds, pause_factor = 0.1, 5.0  # a listing costs the file system, or object storage, a lot

    def __init__(
        self,
        source: OperatorId,
        reader: Files,
        partitions: int,
        files: SourceFiles,
        storage: Storage,
        claim: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        inline: int = INLINE,
        small_range: int = SMALL_RANGE,
        watch: FileRetention | None = None,
    ) -> None:
        """`storage` is the run's: bundles go there, under names with the driver's claim.

        `watch` copies ranges of files that are about to be deleted. `inline`: files seen that the record of a batch has
        in it at most. For `small_range` see `FileTracker`.
        """
        self.source, self.reader, self.files = source, reader, files
        self._options, self._partitions = file_options(reader), partitions
        self._storage, self._claim, self._clock, self._wall = storage, claim, clock, wall
        self._inline, self._small_range, self._watch = inline, small_range, watch
        self._guard, self._looking = Lock(), Lock()
        self._tracker = self._new_tracker(FilePosition(), {}, begun=False)
        self._replaced: tuple[str, ...] = ()
        """Bundles that the position which is to be logged next names no more."""
        self.listed = 0
        """How many listings there were since reading began, or began anew."""
        self._has_looked = False
        self._only: frozenset[str] | None = None
        """The files that this run reads; None: also those that come."""

    def _new_tracker(self, position: FilePosition, seen: dict[str, Seen], *, begun: bool) -> FileTracker:
        return FileTracker(
            self.reader.format,
            self._options,
            self._partitions,
            self.files.atomic,
            position,
            seen,
            begun,
            self._small_range,
        )

    def begin(self, position: Mapping[str, Any]) -> None:
        """Begin, or begin anew, after the batch whose record has this position; empty: at the beginning."""
        if "kafka" in position:
            raise BadInput(
                "was read from Kafka in this run",
                where=f"source {self.source}",
                remedy="read it as before: app.source(…, hf.kafka(…)); or begin in another directory",
            )
        begun = "files" in position
        bundles = position.get("reader", {}).get("bundles", ())
        if begun:
            at = position_of(position["files"], bundles)
            seen = {path: (modified, size) for path, modified, size in at.recent}
            for name in bundles:
                seen.update({path: (modified, size) for path, modified, size in self._contents(name)})
            seen = {path: what for path, what in seen.items() if what[0] >= at.low}
        elif position.get("offsets"):
            at, seen = self._position_of_spark(position)
        else:
            at, seen = FilePosition(), {}
        with self._guard:
            before, self._tracker = self._tracker, self._new_tracker(at, seen, begun=begun)
            self._tracker.follow(before)
            self.listed = 0

    def look(self) -> list[Notice]:
        """List the folder; return what people should know about files in it.

        One at a time: what an earlier listing has must not come after what a later one has.
        """
        with self._looking:
            return self._look()

    def _look(self) -> list[Notice]:
        tracker = self._tracker
        # A clock that was set since, or is ahead, makes no file old that has come since.
        now, wall = self._clock(), -math.inf if self._has_looked else self._wall()
        found, complete = self.files.list(), self._clock()
        self._has_looked = True
        kept = [] if self._watch is None else [Notice("kept", None, line) for line in self._watch.look(found)]
        if self._only is not None:
            found = [one for one in found if one.path in self._only]
        with self._guard:
            if tracker is not self._tracker:
                return kept  # reading has begun anew meanwhile, and looks itself
            self.listed += 1
            return kept + tracker.look(found, now=now, wall=wall, complete=complete)

    @property
    def pending(self) -> bool:
        """Whether the next batch can have something of this source."""
        with self._guard:
            return self._tracker.pending

    @property
    def unsettled(self) -> bool:
        """Whether files are there that may be half-written."""
        with self._guard:
            return self._tracker.unsettled

    @property
    def waiting(self) -> frozenset[str]:
        """The files that are listed and not taken to their end."""
        with self._guard:
            return self._tracker.waiting

    def take(self, most_bytes: int) -> Taken | None:
        """Return what the next batch has, about so many bytes at most; None: nothing."""
        with self._guard:
            taken = self._tracker.take(most_bytes) if self._tracker.pending else None
            seen = None if taken is None else dict(self._tracker.seen)
        if taken is None or seen is None:
            return None
        position = taken.position
        self._replaced = ()
        if len(position.recent) > self._inline:
            entries = list(position.recent)
            bundles = position.bundles
            if len(bundles) >= MOST_BUNDLES:
                self._replaced, bundles = bundles, ()
                known = seen | {path: (modified, size) for path, modified, size in entries}
                entries = [(path, *what) for path, what in known.items() if what[0] >= position.low]
            name = f"readers/{self.source}/{self._claim:08d}-files-{uuid4().hex[:12]}"
            self._storage.create(name, json.dumps(entries, separators=(",", ":")).encode())
            position = replace(position, recent=(), bundles=(*bundles, name))
        return replace(taken, position=position)

    def fields(self, taken: Taken) -> dict[str, Any]:
        """Return where the source is after a batch, as its record holds it."""
        return {"files": position_fields(taken.position), "reader": {"bundles": list(taken.position.bundles)}}

    def how(self, lateness: int) -> HowRead:
        """Return how ranges are read, as the record of a batch holds it."""
        return HowRead(self.reader.format, self.reader.options, lateness)

    def fix_end(self) -> None:
        """Leave files that come from now on for the next run."""
        self._only = self.waiting

    @property
    def ended(self) -> bool:
        """Whether the files are fixed that this run reads, and all of them are taken."""
        return self._only is not None and self._are_taken(self._only)

    def taken_now(self) -> Callable[[], bool]:
        """Return what says whether the files that are there now are taken."""
        wanted = self.waiting
        return lambda: self._are_taken(wanted)

    def _are_taken(self, wanted: frozenset[str]) -> bool:
        """Whether files that were listed are taken; where reading has begun anew, only the next listing says that."""
        with self._guard:
            return not wanted or (self.listed > 0 and not self._tracker.waiting & wanted)

    def logged(self, taken: Taken) -> None:
        """What was taken is in the log."""
        with self._guard:
            self._tracker.logged(taken)
        if self._replaced:
            self._storage.delete(self._replaced)
            self._replaced = ()

    def _contents(self, name: str) -> Any:
        held = self._storage.read(name)
        if held is None:
            raise CheckFailed(
                "is not there any more",
                where=f"{self._storage.url}/{name}",
                remedy="bring it back: it holds the list of files that the source has read",
            )
        return json.loads(held.to_pybytes())

    def _position_of_spark(self, position: Mapping[str, Any]) -> tuple[FilePosition, dict[str, Seen]]:
        """Take over the list of files that Spark's file stream has read, in a run that began with it."""
        last = _log_offset(position["offsets"])
        texts: dict[str, str] = {}
        for name in position.get("reader", {}).get("bundles", ()):
            texts.update(self._contents(name))
        seen: dict[str, Seen] = {}
        for name, text in texts.items():
            if not name.startswith("sources/"):
                continue
            for line in text.splitlines()[1:]:
                entry = json.loads(line) if line.startswith("{") else {}
                if "path" not in entry or last is None:
                    raise BadInput(
                        "was read by Spark in this run, and not from files",
                        where=f"source {self.source}",
                        remedy="read it as before: app.source(…, lambda spark: spark.readStream…); or begin in "
                        "another directory",
                    )
                if entry["batchId"] <= last:
                    seen[_plain_path(entry["path"])] = (entry["timestamp"] * 1_000_000, -1)
        latest = max((modified for modified, _ in seen.values()), default=FilePosition().latest)
        recent = tuple((path, *what) for path, what in sorted(seen.items()))
        return FilePosition(latest=latest, recent=recent), seen


def folder_of(source: SourceProgram) -> SourceFiles:
    """Open the folder that a source reads."""
    assert isinstance(source.reader, Files)
    options = file_options(source.reader)
    return open_source_files(source.reader.path, glob=options.glob, recursive=options.recursive)


def _log_offset(offsets: str) -> int | None:
    """Return up to which of its batches Spark's file stream had read; None: this is no file stream."""
    try:
        found = json.loads(offsets.splitlines()[-1])["logOffset"]
    except (ValueError, KeyError, TypeError, IndexError):
        return None
    return int(found)


def _plain_path(path: str) -> str:
    """Return a path of Spark's as a listing has it."""
    parts = urlsplit(path)
    if parts.scheme in ("", "file"):
        return unquote(parts.path)
    scheme = ALIASES.get(parts.scheme, parts.scheme)
    return f"{scheme}://{parts.netloc}{unquote(parts.path)}"
