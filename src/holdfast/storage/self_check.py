"""Whether a storage keeps what it must, tried on objects of its own. Runs anywhere, at every start.

About a dozen calls. It sees a store that overwrites, returns what is not there or misses what is. It cannot see that a
store is not durable, or that what another machine wrote comes late.
"""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from holdfast.errors import CheckFailed
from holdfast.storage.storage import Storage

ROUNDS = 3


def check_storage(storage: Storage) -> None:
    """Try create-only, whole objects and read after write; raises `CheckFailed` where one does not hold."""
    name = f"self-check/{secrets.token_hex(8)}"
    names = [f"{name}-{number}" for number in range(ROUNDS)]
    try:
        _check(storage, name, names)
    except BaseException:
        with suppress(OSError):
            storage.delete(names)
        raise


def _check(storage: Storage, prefix: str, names: list[str]) -> None:
    with ThreadPoolExecutor(2) as threads:
        for name in names:
            contents = [secrets.token_bytes(4096) for _ in range(2)]
            together = threading.Barrier(2)

            def create(data: bytes, name: str = name, together: threading.Barrier = together) -> bool:
                together.wait()
                return storage.create(name, data)

            created = list(threads.map(create, contents))
            _expect(storage, not all(created), "two calls at once created the same object")
            # A call that had to be sent again may have met its own object: then none returned True.
            kept = [data for data, won in zip(contents, created, strict=True) if won] or contents
    first, last = names[0], names[-1]
    _expect(storage, not storage.create(last, b"second"), "an object was created again")
    found = storage.read(last)
    _expect(storage, found is not None, "an object could not be read right after it was created")
    _expect(storage, found is not None and found.to_pybytes() in kept, "an object did not keep its first contents")
    _expect(storage, storage.list(prefix) == names, "a list did not show exactly the objects that had been created")
    _expect(storage, storage.list(prefix, after=first) == names[1:], "a list after a name showed others")
    storage.delete(names)
    _expect(storage, storage.read(last) is None, "an object could be read after it was deleted")
    _expect(storage, not storage.list(prefix), "a list showed objects after they were deleted")
    storage.delete([last])


def _expect(storage: Storage, held: bool, violation: str) -> None:
    if not held:
        raise CheckFailed(
            f"this storage does not keep what a run needs: {violation}",
            where=storage.url,
            remedy="keep the run on another storage; docs/operate/storage.md says which",
        )
