"""Storage in a bucket of S3, GCS or Azure, through `obstore`. Runs anywhere; the extra `objects` brings `obstore`.

Credentials, endpoint and region come from the environment, as docs/operate/storage.md lists them; a URL with
credentials in it is refused, and no error shows more of an answer than its status and code.

`obstore` sends a request again where the connection broke before it was sent or the server answered 5xx. Where the
first one was carried out all the same, `create` returns False for an object of its own: whoever gets False reads the
object to see whose it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit

from holdfast.errors import BadInput, missing_extra, one_line
from holdfast.storage.storage import OBJECT_SCHEMES, check_name, check_prefix, is_name

if TYPE_CHECKING:
    import pyarrow as pa
    from obstore.store import ObjectStore

_TRIES = 5
_ABSENT_CODES = {"NoSuchKey", "BlobNotFound", "PathNotFound", "ResourceNotFound"}
"""Answers that say that an object is not there; a bucket that is not there, or a wrong endpoint, is an error."""


class ObjectStorage:
    """The objects of a bucket, or of a folder in it."""

    def __init__(self, url: str) -> None:
        bucket, self._folder = bucket_and_folder(url)
        self.url = f"{bucket}/{self._folder}".rstrip("/")
        self._store = open_bucket(bucket)

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """Store an object under a name that is free; False: the name is taken."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        key, contents = self._key(name), memoryview(data).cast("B")
        with self._calling(name):
            for _ in range(_TRIES):
                try:
                    obstore.put(self._store, key, contents, mode="create")
                    return True
                except (AlreadyExistsError, PreconditionError) as error:
                    refusal = error
                # Also an answer to a conflict with another call (409), after which there may be no object at all.
                try:
                    obstore.head(self._store, key)
                    return False
                except FileNotFoundError:
                    pass
            raise refusal

    def read(self, name: str) -> pa.Buffer | None:
        """Return an object; None where there is none."""
        import obstore
        import pyarrow as pa

        key = self._key(name)
        with self._calling(name):
            try:
                return pa.py_buffer(obstore.get(self._store, key).bytes())
            except FileNotFoundError as error:
                if is_absent(error):
                    return None
                raise

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """Return the names that begin with a prefix and come after a name, in order of their characters."""
        import obstore

        # The library's prefixes are whole segments.
        folder = self._folder + "".join(check_prefix(prefix).rpartition("/")[:2])
        offset = self._folder + after if after else None
        names: list[str] = []
        with self._calling(prefix):
            for chunk in obstore.list(self._store, folder or None, offset=offset, chunk_size=1000):
                names += (found["path"].removeprefix(self._folder) for found in chunk)
        return sorted(name for name in names if name.startswith(prefix) and name > after and is_name(name))

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; names that are not there are passed over."""
        import obstore

        keys = [self._key(name) for name in names]
        if not keys:
            return
        with self._calling(keys[0].removeprefix(self._folder)):
            try:
                obstore.delete(self._store, keys)
            except FileNotFoundError:  # GCS and Azure: some are not there, and others may still be
                for key in keys:
                    try:
                        obstore.delete(self._store, key)
                    except FileNotFoundError as error:
                        if not is_absent(error):
                            raise

    def within(self, folder: str) -> ObjectStorage:
        """Return the same storage, with all names under a folder."""
        view = ObjectStorage.__new__(ObjectStorage)
        view._folder = f"{self._key(folder)}/"
        view._store = self._store
        view.url = f"{self.url}/{folder}"
        return view

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStorage, (self.url,)

    def _key(self, name: str) -> str:
        return self._folder + check_name(name)

    @contextmanager
    def _calling(self, name: str) -> Iterator[None]:
        with calling(f"{self.url}/{name}"):
            yield


class Absent(FileNotFoundError):
    """An object is not there, as opposed to its bucket or its server."""


@contextmanager
def calling(place: str) -> Iterator[None]:
    """Turn every error of the library into an `OSError` of one line."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    _refuse_forks(place)
    try:
        yield
    except Absent:
        raise
    except (PermissionDeniedError, UnauthenticatedError) as error:
        raise PermissionError(f"{place}: {_cause(error)}") from None
    except (BaseError, OSError, ValueError) as error:
        raise OSError(f"{place}: {_cause(error)}") from None


def bucket_and_folder(url: str) -> tuple[str, str]:
    """Take a URL apart into the bucket's and the folder in it: empty, or with a slash at its end."""
    place = _place(url)
    folder = place.path.strip("/")
    return f"{place.scheme}://{place.netloc}", f"{folder}/" if folder else ""


def _place(url: str) -> SplitResult:
    """Take a URL apart. What is refused is not shown: it may hold a secret."""
    place = urlsplit(url)
    user, _, host = place.netloc.rpartition("@")
    azure = place.scheme in ("abfs", "abfss")  # these name their container as CONTAINER@ACCOUNT
    if place.query or place.fragment or ":" in user or (user and not azure):
        raise BadInput(
            f"a {place.scheme} URL with credentials or a query in it",
            remedy="name bucket and folder only, and put credentials into environment variables",
        )
    if place.scheme not in OBJECT_SCHEMES or not host:
        raise BadInput("not a URL of a bucket", where=url, remedy="write s3://BUCKET/FOLDER, gs://… or az://…")
    if place.path.strip("/"):
        check_name(place.path.strip("/"))
    return place


def open_bucket(bucket: str) -> ObjectStore:
    """Return the library's store of a bucket."""
    try:
        from obstore.exceptions import BaseError
        from obstore.store import from_url
    except ModuleNotFoundError as error:
        raise missing_extra(error) or error from None
    try:
        return from_url(bucket)
    except (BaseError, ValueError) as error:
        raise BadInput(
            _cause(error), where=bucket, remedy="set the environment variables that docs/operate/storage.md lists"
        ) from None


_first_process: int | None = None


def _refuse_forks(place: str) -> None:
    """Raise in a process that was forked from one which has used the library: its threads are gone, it would wait."""
    global _first_process  # noqa: PLW0603
    if _first_process is None:
        _first_process = os.getpid()
    elif _first_process != os.getpid():
        raise OSError(f"{place}: object storage was used before this process was forked; start it afresh instead")


def is_absent(error: FileNotFoundError) -> bool:
    """Whether an answer says that the object is not there."""
    return _code(str(error)) in _ABSENT_CODES


def _code(text: str) -> str:
    found = re.search(r"<Code>(\w+)</Code>", text)
    return found[1] if found else ""


def _cause(error: Exception) -> str:
    """Return what an error of the library says, without addresses and bodies of answers."""
    text = str(error)
    says = text.partition("\n\nDebug source")[0].partition("<")[0].rpartition(" - ")[2].strip(" :\n")
    details = [_code(text), *re.findall(r'message: "([^"\\]{1,100})"', text)[:1]]
    return one_line(": ".join(filter(None, [says, *details])), 300)
