"""Many seeds of a simulator, one after the other, in one process or several. Runs anywhere.

A seed gives the same run wherever it runs, so several processes only share the work. What is counted of the runs is the
simulator's own matter: `recovery.campaign` and `store.campaign`.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

CHUNK = 20
"""Seeds that a process takes at a time."""

_Outcome = TypeVar("_Outcome")


class Counted(Protocol[_Outcome]):
    """What came of many seeds."""

    seeds: int
    seconds: float
    cpu_seconds: float
    """What the seeds took on one core, summed over processes."""
    violations: list[_Outcome]

    @property
    def faults(self) -> Mapping[Any, int]:
        """How often each kind of fault was injected."""

    def add(self, outcome: _Outcome) -> None:
        """Count one more seed."""

    def document(self) -> dict[str, Any]:
        """Return everything as plain values."""


def run_seeds(
    campaign: Counted[_Outcome],
    simulate: Callable[[int], _Outcome],
    seeds: Sequence[int],
    *,
    jobs: int = 1,
    stop_at: int | None = None,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> bool:
    """Run seeds and count them in a campaign; stop early after so many violations, or by Ctrl-C.

    `simulate` is a function of a module, so that other processes find it. Return whether it was not interrupted. The
    campaign has the outcomes of the first `campaign.seeds` of the seeds then.
    """
    began = time.perf_counter()
    try:
        for outcomes, cpu_seconds in _chunks(simulate, seeds, jobs):
            campaign.cpu_seconds += cpu_seconds
            for outcome in outcomes:
                campaign.add(outcome)
            report(campaign.seeds, len(seeds))
            if stop_at is not None and len(campaign.violations) >= stop_at:
                break
    except KeyboardInterrupt:
        return False
    finally:
        campaign.seconds = time.perf_counter() - began
    return True


def _chunks(
    simulate: Callable[[int], _Outcome], seeds: Sequence[int], jobs: int
) -> Iterator[tuple[list[_Outcome], float]]:
    chunks = [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]
    if jobs == 1:
        for chunk in chunks:
            yield _run_chunk(simulate, chunk)
        return
    # New processes, not forks: Arrow and the solver may have threads here.
    # Ctrl-C reaches all processes of a terminal; only this one answers it.
    with multiprocessing.get_context("spawn").Pool(jobs, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        yield from pool.imap(partial(_run_chunk, simulate), chunks)


def _run_chunk(simulate: Callable[[int], _Outcome], seeds: Iterable[int]) -> tuple[list[_Outcome], float]:
    began = time.process_time()
    return [simulate(seed) for seed in seeds], time.process_time() - began
