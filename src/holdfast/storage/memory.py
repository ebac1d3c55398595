"""Storage in the memory of one process, for tests and a first try. Runs anywhere.

It is gone with the last view of it. A pickled one opens again in the same process only.
"""

from __future__ import annotations

import secrets
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from holdfast.errors import BadInput
from holdfast.storage.storage import check_name, check_prefix

if TYPE_CHECKING:
    import pyarrow as pa


_LAST = "\U0010ffff"
"""No character of a name comes after it."""


class _Objects(dict[str, bytes]):
    """What all views of one storage share."""

    def __init__(self) -> None:
        super().__init__()
        self.key = secrets.token_hex(8)
        self.changes = 0
        self.lock = threading.Lock()
        self._in_order: tuple[int, list[str]] = (0, [])
        _OPEN[self.key] = self

    def in_order(self) -> list[str]:
        """Return all keys in order, as of now. The caller has the lock, and does not change the list."""
        if self._in_order[0] != self.changes:
            self._in_order = self.changes, sorted(self)
        return self._in_order[1]


_OPEN: WeakValueDictionary[str, _Objects] = WeakValueDictionary()


class MemoryStorage:
    """A dictionary of objects, shared by all views of it."""

    def __init__(self) -> None:
        self._objects = _Objects()
        self._folder = ""
        self.url = f"memory:{self._objects.key}"

    def create(self, name: str, data: bytes | memoryview | pa.Buffer) -> bool:
        """Store an object under a name that is free; False: the name is taken."""
        key, copy = self._key(name), bytes(memoryview(data))
        with self._objects.lock:
            if key in self._objects:
                return False
            self._objects[key] = copy
            self._objects.changes += 1
            return True

    @property
    def changes(self) -> int:
        """How often an object was created or deleted: where it is the same, so is all that is there."""
        return self._objects.changes

    def read(self, name: str) -> pa.Buffer | None:
        """Return an object; None where there is none."""
        import pyarrow as pa

        with self._objects.lock:
            found = self._objects.get(self._key(name))
        return None if found is None else pa.py_buffer(found)

    def list(self, prefix: str = "", *, after: str = "") -> list[str]:
        """Return the names that begin with a prefix and come after a name, in order of their characters."""
        beginning = self._folder + check_prefix(prefix)
        with self._objects.lock:
            keys = self._objects.in_order()
        first = max(bisect_left(keys, beginning), bisect_right(keys, self._folder + after))
        last = bisect_left(keys, beginning + _LAST)
        return [key.removeprefix(self._folder) for key in keys[first:last]]

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; names that are not there are passed over."""
        keys = [self._key(name) for name in names]
        with self._objects.lock:
            for key in keys:
                if self._objects.pop(key, None) is not None:
                    self._objects.changes += 1

    def within(self, folder: str) -> MemoryStorage:
        """Return the same storage, with all names under a folder."""
        view = type(self).__new__(type(self))
        view._objects = self._objects
        view._folder = f"{self._key(folder)}/"
        view.url = f"{self.url}/{folder}"
        return view

    def __reduce__(self) -> tuple[object, ...]:
        return reopen_memory, (self.url,)

    def _key(self, name: str) -> str:
        return self._folder + check_name(name)


def reopen_memory(url: str) -> MemoryStorage:
    """Return the storage of this process that has this URL."""
    key, _, folder = url.removeprefix("memory:").partition("/")
    objects = _OPEN.get(key)
    if objects is None:
        raise BadInput("is in the memory of another process, or gone", where=url, remedy="use a folder or a bucket")
    storage = MemoryStorage.__new__(MemoryStorage)
    storage._objects = objects
    storage._folder = ""
    storage.url = f"memory:{key}"
    return storage.within(folder) if folder else storage
