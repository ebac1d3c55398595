"""Kill peers at random points of save, retrieve and repair, and check every promise. For tests and drills.

Writers save new versions of a few states all the time, readers read them, and peers are killed with SIGKILL at random
moments and started again. At most k peers are down at once. Checked all along and at the end:

* what was acknowledged is read back bit-exact, or a newer version is,
* what was not acknowledged is absent or whole: every read equals some version that was tried,
* nothing else is ever read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.client import connect
from holdfast.store.client.scatter import scatter
from holdfast.store.wire.address import Address
from holdfast.store.wire.failures import StateMissing
from holdfast_lab.testing.ring_of_peers import RingOfPeers


@dataclass(slots=True)
class SoakResult:
    """What happened, and what should not have."""

    seed: int
    kills: int = 0
    saves: int = 0
    acknowledged: int = 0
    refused: int = 0
    """Saves that ended without an acknowledgement: too few peers at that moment."""
    reads: int = 0
    unreadable: int = 0
    """Reads that found too few fragments while peers were down; never a wrong byte."""
    verified: int = 0
    rebuilt: int = 0
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)


def version_contents(state: int, version: int, size: int) -> bytes:
    """Return what a version holds: made from its number, so that every read can be checked."""
    return Random(state * 1_000_003 + version).randbytes(size + version % 97)


def rebuilt_fragments(ring: RingOfPeers) -> int:
    """Return how many fragments the living peers have rebuilt since they started."""
    with connect(ring.addresses) as store:
        outcomes = scatter(
            ring.addresses, lambda peer: store.pool.request(Address.parse(peer), "status", {}).header, seconds=10.0
        )
    return sum(int(one.result["repair"]["rebuilt"]) for one in outcomes if one.result is not None)


def soak(
    ring: RingOfPeers,
    coding: Coding,
    *,
    kills: int,
    seed: int,
    state_bytes: int,
    states: int = 3,
    on_kill: Callable[[int], None] | None = None,
) -> SoakResult:
    """Run until so many peers were killed; every failure names the seed."""
    chance = Random(seed)
    result = SoakResult(seed)
    began = time.monotonic()
    lock = threading.Lock()
    over = threading.Event()
    acknowledged = dict.fromkeys(range(states), -1)
    tried = dict.fromkeys(range(states), -1)

    def problem(line: str) -> None:
        with lock:
            result.problems.append(f"seed {seed}: {line}")
        over.set()

    def check(state: int, version: int, contents: bytes, newest_before: int, tried_until: int) -> None:
        if contents != version_contents(state, version, state_bytes):
            problem(f"s{state} version {version} is not what was saved")
        if version < newest_before:
            problem(f"s{state}: version {newest_before} was acknowledged and version {version} was read")
        if version > tried_until:
            problem(f"s{state}: version {version} was read and never tried")
        with lock:
            result.verified += 1

    def read(state: int, *, last: bool) -> None:
        with lock:
            newest = acknowledged[state]
        with connect(ring.addresses, answer_seconds=5.0, connect_seconds=1.0) as store:
            try:
                loaded = store.load(StateId("soak", f"s{state}"))
            except StateMissing as missing:
                with lock:
                    result.unreadable += 1
                if last and newest >= 0:
                    problem(f"s{state}: version {newest} was acknowledged and is gone: {missing}")
                return
            except HoldfastError:
                with lock:
                    result.unreadable += 1
                if last:
                    raise
                return
        with lock:
            result.reads += 1
            until = tried[state]
        check(state, loaded.version, bytes(loaded.joined()), newest, until)

    def write(state: int) -> None:
        while not over.is_set():
            with lock:
                tried[state] += 1
                version = tried[state]
                result.saves += 1
            with connect(
                ring.addresses, coding=coding, answer_seconds=5.0, connect_seconds=1.0, stall_seconds=2.0
            ) as store:
                name = StateId("soak", f"s{state}")
                try:
                    saved = store.save(name, BatchId(version), Epoch(1), version_contents(state, version, state_bytes))
                    # Two fragments on one peer would make the loss of k peers more than the loss of k fragments.
                    safe = not any("peers may be lost" in note for note in saved.notes)
                    with lock:
                        if safe:
                            result.acknowledged += 1
                            acknowledged[state] = version
                        else:
                            result.refused += 1
                    if safe:
                        store.release(name, BatchId(version), Epoch(1))
                except HoldfastError:
                    with lock:
                        result.refused += 1
            over.wait(Random(version).random() * 0.05)

    def guarded(work: Callable[..., None], *arguments: object) -> Callable[[], None]:
        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:
                problem(f"{type(error).__name__}: {error}")

        return run

    def read_on(state: int) -> None:
        while not over.is_set():
            read(state, last=False)
            over.wait(0.02)

    threads = [threading.Thread(target=guarded(write, state), daemon=True) for state in range(states)]
    threads += [threading.Thread(target=guarded(read_on, state), daemon=True) for state in range(states)]
    for thread in threads:
        thread.start()
    down: list[int] = []
    try:
        while result.kills < kills and not over.is_set():
            time.sleep(chance.random() * 0.25)
            if len(down) >= coding.parity or (down and chance.random() < 0.4):
                back = down.pop(chance.randrange(len(down)))
                ring.start([back])
                continue
            victim = chance.choice(ring.living)
            ring.kill([victim])
            down.append(victim)
            result.kills += 1
            if on_kill is not None:
                on_kill(result.kills)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    # At most k peers are down: everything acknowledged must be there now, before anyone comes back.
    for state in range(states):
        if not result.problems:
            read(state, last=True)
    ring.start(down)
    result.rebuilt = rebuilt_fragments(ring)
    result.seconds = time.monotonic() - began
    return result
