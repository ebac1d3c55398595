"""One request to many peers at once, without waiting for the slowest. Runs wherever a client does.

Threads, not an event loop: a Spark worker calls from any thread, and a thread that waits on a frozen peer costs only
its stack. Requests that are pending when enough peers have responded are abandoned; their time limit ends them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.errors import HoldfastError

Asked = TypeVar("Asked")
Given = TypeVar("Given")


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Asked, Given]):
    """The result of the request to one peer, or its error."""

    asked: Asked
    result: Given | None
    error: HoldfastError | None


def scatter(
    peers: Sequence[Asked],
    ask: Callable[[Asked], Given],
    *,
    enough: Callable[[list[Outcome[Asked, Given]]], bool] | None = None,
    seconds: float,
) -> list[Outcome[Asked, Given]]:
    """Send to all; return when all have responded, `seconds` have passed, or `enough` is true after a response.

    Peers that have not responded are missing from the list.
    """
    outcomes: list[Outcome[Asked, Given]] = []
    changed = threading.Condition()
    unexpected: list[BaseException] = []

    def run(peer: Asked) -> None:
        try:
            outcome: Outcome[Asked, Given] = Outcome(peer, ask(peer), None)
        except HoldfastError as error:
            outcome = Outcome(peer, None, error)
        except BaseException as error:
            with changed:
                unexpected.append(error)
                changed.notify()
            return
        with changed:
            outcomes.append(outcome)
            changed.notify()

    if len(peers) == 1:
        run(peers[0])
    else:
        for peer in peers:
            threading.Thread(target=run, args=(peer,), name="holdfast-scatter", daemon=True).start()
    deadline = time.monotonic() + seconds
    with changed:
        while len(outcomes) < len(peers) and not unexpected:
            if enough is not None and enough(list(outcomes)):
                break
            left = deadline - time.monotonic()
            if left <= 0:
                break
            changed.wait(min(left, 0.1) if enough is not None else left)
        if unexpected:
            raise unexpected[0]
        return list(outcomes)
