"""What a run needs of storage: create-only put, read, list, delete. Nothing is locked, replaced or renamed.

Runs anywhere. A store must guarantee:

1. *Create-only.* Of any number of `create` calls for one name, by any processes on any machines, at most one returns
   True, as long as nobody deletes the name.
2. *Whole.* An object is there whole or not at all: a writer that dies leaves no part of one under its name.
3. *Durable.* When `create` returns True, or False, the object is there for everybody, also after a power cut.
4. *Read after write.* `read` and `list` that begin after a `create` returned see it; after a `delete` returned they do
   not. A `list` that runs beside other calls may or may not see what they do.

It need not order calls that overlap, keep time, or compare and swap. `self_check` tries 1, 2 and 4 at every start.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote, urlsplit

from holdfast.errors import BadInput

if TYPE_CHECKING:
    import pyarrow as pa

OBJECT_SCHEMES = ("s3", "gs", "az", "abfs", "abfss")

_SEGMENT = r"[A-Za-z0-9_=%\u00a1-\ud7ff\ue000-\U0010fffe-][A-Za-z0-9._=%\u00a1-\ud7ff\ue000-\U0010fffe-]*"
_NAME = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")
_PREFIX = re.compile(rf"({_SEGMENT}/)*({_SEGMENT})?")


class Storage(Protocol):
    """Objects by name in one place. Every call may be repeated; every failure is an `OSError`.

    A name is one or more segments of letters and other characters beyond ASCII, digits, `.`, `_`, `-`, `=` and `%`,
    joined by `/`; no segment begins with a dot.
    """

    url: str
    """Where it is, as `open_storage` takes it; without secrets."""

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """Store an object under a name that is free; False: the name is taken, and nothing was written.

        Where it raises, the object may be there or not, and may still appear: whoever tries again and gets False reads
        it to see whose it is.
        """
        ...

    def read(self, name: str) -> pa.Buffer | None:
        """Return an object; None where there is none. It stays readable when the object is deleted meanwhile."""
        ...

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """Return the names that begin with a prefix (of characters, not segments) and come after a name, in order."""
        ...

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; names that are not there are passed over."""
        ...

    def within(self, folder: str) -> Storage:
        """Return the same storage, with all names under a folder."""
        ...


def open_storage(place: str | Path) -> Storage:
    """Return the storage at a path or a URL; nothing is read or written yet."""
    text = str(place)
    if isinstance(place, Path) or not is_url(text):
        from holdfast.storage.files import FileStorage

        return FileStorage(Path(text))
    scheme = text.partition(":")[0].lower()
    if scheme == "file":
        from holdfast.storage.files import FileStorage

        return FileStorage(path_of_url(text))
    if scheme == "memory":
        from holdfast.storage.memory import reopen_memory

        return reopen_memory(text)
    if scheme in OBJECT_SCHEMES:
        from holdfast.storage.objects import ObjectStorage

        return ObjectStorage(text)
    raise BadInput(
        f"a run cannot be kept on {scheme}:",
        remedy=f"name a folder or a URL with one of: file, {', '.join(OBJECT_SCHEMES)}",
    )


def is_url(text: str) -> bool:
    """Whether a text is a URL, as opposed to a path; `s3:/bucket` is one with a slip, not a folder called `s3:`."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/|memory:", text) is not None


def is_name(text: str) -> bool:
    """Whether an object may have this name."""
    return _NAME.fullmatch(text) is not None


def check_name(name: str) -> str:
    """Return a name; refuse one that no object may have."""
    if not is_name(name):
        raise BadInput(f"{name!r} is not a name of an object", remedy=_RULE)
    return name


def check_prefix(prefix: str) -> str:
    """Return a prefix; refuse one with which no name begins."""
    if _PREFIX.fullmatch(prefix) is None:
        raise BadInput(f"no name begins with {prefix!r}", remedy=_RULE)
    return prefix


_RULE = "use segments of letters, digits, `.`, `_`, `-`, `=` and `%`, joined by `/`, none beginning with a dot"


def path_of_url(url: str) -> Path:
    """Return the folder that a file URL names."""
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or parts.query or parts.fragment or not parts.path:
        raise BadInput("a file URL names a folder of this machine", remedy="write file:///FOLDER, or the path alone")
    return Path(unquote(parts.path))
