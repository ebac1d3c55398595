"""Do something again and again in a thread, while a block runs. For benches and tools."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeating(seconds: float, work: Callable[[], object]) -> Iterator[None]:
    """Call `work` every `seconds` seconds until the block ends; the last call has returned then."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(seconds):
            work()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
