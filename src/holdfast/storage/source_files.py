"""Files that a source reads: list them with size and version, read parts of them. Runs on the driver and on nodes.

These files belong to others, who add, change and delete them at any time. So whoever reads says which file it was, and
compares. A folder is local or shared, or a folder of a bucket (`objects`).
"""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from holdfast.storage.storage import OBJECT_SCHEMES, is_url, path_of_url

if TYPE_CHECKING:
    import pyarrow as pa

ALIASES = {"s3a": "s3", "s3n": "s3"}
"""Names that Spark has for the same stores."""
IN_PLACE_SCHEMES = ("file", *OBJECT_SCHEMES, *ALIASES)


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file as a listing, or who opened it, saw it."""

    path: str
    size: int
    modified: int
    """When it was last modified, in nanoseconds since 1970, as the storage says."""
    version: str = ""
    """What the storage calls its content (an entity tag); empty: it has no such name."""

    def is_same(self, other: SourceFile) -> bool:
        """Whether these are one content, as far as size and version say."""
        if self.version and other.version:
            return (self.size, self.version) == (other.size, other.version)
        return (self.size, self.modified) == (other.size, other.modified)


class OpenFile(Protocol):
    """A file that is being read."""

    seen: SourceFile
    """As it was when it was opened."""

    def read(self, start: int, count: int) -> pa.Buffer:
        """Return so many bytes from a place, or those up to its end."""
        ...

    def look(self) -> SourceFile:
        """Look at it again: it may have changed since it was opened."""
        ...

    def close(self) -> None:
        """Close it."""
        ...


class SourceFiles(Protocol):
    """The files of one folder. Every failure is an `OSError`; one that is not there is a `FileNotFoundError`."""

    url: str
    atomic: bool
    """Whether a file appears whole or not at all, so that none is ever seen half-written."""

    def list(self) -> list[SourceFile]:
        """Return the files that are to be read, in any order."""
        ...

    def open(self, path: str) -> OpenFile:
        """Open a file for reading."""
        ...


def open_source_files(place: str, *, glob: str = "*", recursive: bool = False) -> SourceFiles:
    """Return the files at a path or URL; nothing is read yet."""
    scheme = place.partition(":")[0].lower() if is_url(place) else ""
    scheme = ALIASES.get(scheme, scheme)
    if scheme in OBJECT_SCHEMES:
        from holdfast.storage.source_objects import SourceObjects

        return SourceObjects(f"{scheme}:{place.partition(':')[2]}", glob=glob, recursive=recursive)
    return LocalFiles(path_of_url(place) if scheme == "file" else Path(place), glob=glob, recursive=recursive)


def is_hidden(name: str) -> bool:
    """Whether a file or folder is not to be read, by its name: drafts, markers and files that are being copied."""
    return name.startswith(("_", ".")) or name.endswith(("._COPYING_", ".tmp"))


def matches(relative: str, glob: str, *, recursive: bool) -> bool:
    """Whether a file below the folder is to be read."""
    *folders, name = relative.split("/")
    if (folders and not recursive) or is_hidden(name) or any(map(is_hidden, folders)):
        return False
    return fnmatch.fnmatchcase(name, glob)


class LocalFiles:
    """A folder on this machine, or one that all machines share; or one file."""

    atomic = False

    def __init__(self, folder: Path, *, glob: str = "*", recursive: bool = False) -> None:
        self._folder, self._glob, self._recursive = folder, glob, recursive
        self.url = str(folder)

    def list(self) -> list[SourceFile]:
        """See SourceFiles."""
        if self._folder.is_file():
            return [_seen(str(self._folder), self._folder.stat())]
        return list(self._below(str(self._folder)))

    def _below(self, folder: str) -> Iterator[SourceFile]:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    if entry.is_dir():
                        if self._recursive and not is_hidden(entry.name):
                            yield from self._below(entry.path)
                    elif matches(entry.name, self._glob, recursive=True):
                        yield _seen(entry.path, entry.stat())
                except FileNotFoundError:
                    continue  # it went while we looked

    def open(self, path: str) -> OpenFile:
        """See SourceFiles."""
        return _OpenLocal(path)


class _OpenLocal:
    """Read with plain calls: a file that is cut off while it is mapped into memory would end the process."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.seen = self.look()

    def look(self) -> SourceFile:
        return _seen(self._path, os.fstat(self._handle))

    def read(self, start: int, count: int) -> pa.Buffer:
        import pyarrow as pa

        held = pa.allocate_buffer(count)
        view, at = memoryview(held), 0
        while at < count:
            got = os.preadv(self._handle, [view[at:]], start + at)
            if not got:
                break
            at += got
        return held if at == count else held.slice(0, at)

    def close(self) -> None:
        os.close(self._handle)


def _seen(path: str, stat: os.stat_result) -> SourceFile:
    return SourceFile(path, stat.st_size, stat.st_mtime_ns)
