"""Asks the run's storage and Spark's master whether they answer: a driver that is cut off reaches neither.

Runs on the driver, when most of its nodes fall silent together (runtime/detection.py). Each is asked in a thread of its
own; one that has not answered after a second counts as not reached.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from holdfast.errors import BadInput
from holdfast.runtime.detection import SelfCheck
from holdfast.storage.storage import Storage
from holdfast.store.wire.address import Address

if TYPE_CHECKING:
    from pyspark import SparkContext

CHECK_SECONDS = 1.0


def self_check(storage: Storage, masters: Sequence[Address], seconds: float = CHECK_SECONDS) -> SelfCheck:
    """Ask both, at the same time, for so long; without a known master only the storage."""
    return SelfCheck(
        *_all_of([lambda: _lists(storage), *([lambda: _one_listens(masters, seconds)] if masters else [])], seconds)
    )


def _all_of(questions: Sequence[Callable[[], object]], seconds: float) -> list[bool]:
    found = [False] * len(questions)

    def ask(number: int) -> None:
        with contextlib.suppress(Exception):  # whatever it is: it does not answer
            questions[number]()
            found[number] = True

    threads = [threading.Thread(target=ask, args=(number,), daemon=True) for number in range(len(questions))]
    for thread in threads:
        thread.start()
    until = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return list(found)


def _lists(storage: Storage) -> None:
    storage.list("alive/")


def _one_listens(masters: Sequence[Address], seconds: float) -> None:
    """Connect to one of the masters; there are several where Spark has masters that stand by."""
    problem: OSError | None = None
    for address in masters:
        try:
            socket.create_connection((address.host, address.port), timeout=seconds / len(masters)).close()
        except OSError as error:
            problem = error
        else:
            return
    if problem is not None:
        raise problem


def masters_of(context: SparkContext) -> tuple[Address, ...]:
    """Return where a cluster's master listens: Spark's own, the API server of Kubernetes, YARN's resource manager."""
    master = str(context.master)
    if master == "yarn":
        found = None
        with contextlib.suppress(Exception):
            found = context._jsc.hadoopConfiguration().get("yarn.resourcemanager.address")
        return () if not found or str(found).startswith("0.0.0.0") else addresses(f"spark://{found}")
    return addresses(master)


def addresses(master: str) -> tuple[Address, ...]:
    """Read the addresses out of a master's URL; none where it names no host, as `local-cluster[…]` does."""
    found = re.fullmatch(r"(?:spark|k8s)://(?:https?://)?([^/]+).*", master)
    if found is None:
        return ()
    with contextlib.suppress(BadInput):
        return tuple(Address.parse(one if ":" in one else f"{one}:443") for one in found.group(1).split(","))
    return ()
