"""How fast this machine codes and recomputes states, per number of data and parity fragments.

Runs anywhere; measures whole fragments, checksums included, because that is what saving and recovering a state costs.
Coding is one thread's work without waiting, so processor time is measured, and the least of several runs counts: on a
busy machine the others pay for caches and memory that other processes used.
Its figures are what `holdfast plan fragments --rates` and the tuner start from.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from holdfast.erasure.decoding import decode
from holdfast.erasure.encoding import encode
from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.planning.fragments.code_rates import CodeRate, MeasuredRate

MEGABYTE = 1_000_000
_STATE = StateId("experiment", "state[0]")


@dataclass(frozen=True, slots=True)
class CodingTimes:
    """Processor seconds to code a state, and to recompute it with some fragments lost: the least of several runs."""

    coding: Coding
    state_bytes: int
    lost: int
    encode: float
    decode: float


def some_state(size: int, seed: int = 1) -> bytes:
    """Return bytes that do not compress, the same ones every time."""
    return random.Random(seed).randbytes(size)


def measure_coding(
    coding: Coding, state: bytes, *, lost: int, repeat: int = 3, clock: Callable[[], float] = time.thread_time
) -> CodingTimes:
    """Code a state and recompute it without its first `lost` fragments, several times; the answer is checked."""
    encoding, decoding = [], []
    for _ in range(repeat):
        begin = clock()
        fragments = encode(state, _STATE, BatchId(1), Epoch(1), coding)
        encoding.append(clock() - begin)
        begin = clock()
        back = decode(fragments[lost : lost + coding.data])
        decoding.append(clock() - begin)
        assert back == state, f"{coding} gave another state back"
    return CodingTimes(coding, len(state), lost, min(encoding), min(decoding))


def measure_rates(codings: Iterable[Coding], state: bytes, *, repeat: int = 3) -> Iterator[MeasuredRate]:
    """Measure rates for each coding, recomputing with as many data fragments lost as parity can replace."""
    for coding in codings:
        times = measure_coding(coding, state, lost=min(coding.parity, coding.data), repeat=repeat)
        yield MeasuredRate(coding, CodeRate(len(state) / times.encode, len(state) / times.decode))
