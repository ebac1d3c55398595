"""Objects of a bucket that a source reads, through `obstore`. Runs on the driver and on nodes.

An object appears whole, and its entity tag names its content: one that was replaced has another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from holdfast.storage.objects import Absent, bucket_and_folder, calling, is_absent, open_bucket
from holdfast.storage.source_files import OpenFile, SourceFile, matches

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import ObjectStore


class SourceObjects:
    """The objects in a folder of a bucket."""

    atomic = True

    def __init__(self, url: str, *, glob: str = "*", recursive: bool = False) -> None:
        self._bucket, self._folder = bucket_and_folder(url)
        self._glob, self._recursive = glob, recursive
        self.url = f"{self._bucket}/{self._folder}".rstrip("/")
        self._store = open_bucket(self._bucket)

    def list(self) -> list[SourceFile]:
        """See SourceFiles."""
        import obstore

        found = []
        with _reading(self.url):
            for chunk in obstore.list(self._store, self._folder.rstrip("/") or None, chunk_size=1000):
                for one in chunk:
                    if matches(one["path"].removeprefix(self._folder), self._glob, recursive=self._recursive):
                        found.append(_seen(self._bucket, one))
        return found

    def open(self, path: str) -> OpenFile:
        """See SourceFiles."""
        return _OpenObject(self._store, self._bucket, path)

    def __reduce__(self) -> tuple[object, ...]:
        return _reopen, (self.url, self._glob, self._recursive)


def _reopen(url: str, glob: str, recursive: bool) -> SourceObjects:
    return SourceObjects(url, glob=glob, recursive=recursive)


class _OpenObject:
    def __init__(self, store: ObjectStore, bucket: str, path: str) -> None:
        self._store, self._bucket, self._path = store, bucket, path
        self._key = path.removeprefix(f"{bucket}/")
        self.seen = self.look()

    def look(self) -> SourceFile:
        import obstore

        with _reading(self._path):
            try:
                meta = obstore.head(self._store, self._key)
            except FileNotFoundError:
                # An answer to HEAD has no body: whether the object is missing, or its bucket, only GET is told.
                meta = obstore.get(self._store, self._key).meta
            return _seen(self._bucket, meta)

    def read(self, start: int, count: int) -> pa.Buffer:
        import obstore
        import pyarrow as pa

        end = min(start + count, self.seen.size)
        if end <= start:
            return pa.py_buffer(b"")
        with _reading(self._path):
            return pa.py_buffer(obstore.get_range(self._store, self._key, start=start, end=end))

    def close(self) -> None:
        pass


def _seen(bucket: str, meta: Any) -> SourceFile:
    modified = round(meta["last_modified"].timestamp() * 1e9)
    return SourceFile(f"{bucket}/{meta['path']}", meta["size"], modified, meta["e_tag"] or "")


@contextmanager
def _reading(place: str) -> Iterator[None]:
    with calling(place):
        try:
            yield
        except FileNotFoundError as error:
            if is_absent(error):
                raise Absent(place) from None
            raise
