"""The same question to many peers at once, without waiting for the slowest. Runs wherever a client does.

Threads, not an event loop: a Spark worker calls from any thread, and a thread that waits on a frozen peer costs nothing
but its stack. Those still waiting when enough is known are left behind; their time limit ends them.
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
    """What one peer answered: a result, or the error it was."""

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
    """Ask all; return when all have answered, `seconds` have passed, or `enough` says so after any answer.

    Peers that have not answered are missing from the list.
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
