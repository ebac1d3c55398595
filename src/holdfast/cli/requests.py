"""What commands share that write a request into a run's storage, and wait for its driver to take it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import BadInput
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.storage.storage import Storage, open_storage

WAIT_SECONDS = 10.0
"""How long a driver that runs may take to say that it has read a request."""


class RunRecord:
    """The storage of a run, and what its last driver has written down."""

    def __init__(self, directory: str) -> None:
        self.storage: Storage = open_storage(f"{directory.rstrip('/')}/run")
        last = last_driver(self.storage)
        if last is None:
            raise BadInput(
                "no run began here", where=directory, remedy="give the directory that the run was started with"
            )
        self._ended = bool(last["ended"])
        self._outputs: Mapping[str, str] = (last.get("identity") or {}).get("outputs", {})
        self.machine: Mapping[str, Any] = last["machine"] or {}

    def by_operator(self, query: str) -> str:
        """Return a query or an output by its operator, also where it was given by the output's name."""
        given, bracket, index = query.partition("[")
        operators = [operator for operator, name in self._outputs.items() if name == given]
        return query if given in self._outputs or not operators else f"{operators[0]}{bracket}{index}"

    def wait_until(self, is_taken: Callable[[Mapping[str, Any]], bool]) -> bool:
        """Say whether the driver takes a request within the time that it has; one that has ended takes none."""
        until = time.monotonic() + (0.0 if self._ended else WAIT_SECONDS)
        taken = False
        while not taken and time.monotonic() < until:
            time.sleep(0.2)
            self.machine = (last_driver(self.storage) or {}).get("machine") or {}
            taken = is_taken(self.machine)
        return taken
