"""How fast this machine codes and recomputes a state: one stripe, for some m and k. Pure: the clock is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.erasure.codec import codec_for
from holdfast.erasure.layout import Coding

USUAL = (Coding(2, 2), Coding(4, 2), Coding(8, 4))
"""Small, usual and larger codes: planners take others from the plane through them."""
STRIPE_BYTES = 4 << 20
TRIES = 3


def measured_rates(clock: Callable[[], float], codings: Iterable[Coding] = USUAL) -> list[dict[str, Any]]:
    """Return bytes of state per second, the best of some tries, as `holdfast plan fragments --rates` reads them."""
    state = bytes(range(256)) * (STRIPE_BYTES // 256)
    return [_rates(clock, coding, state) for coding in codings]


def _rates(clock: Callable[[], float], coding: Coding, state: bytes) -> dict[str, Any]:
    codec = codec_for(coding)
    blocks = dict(enumerate(codec.encode(state)))
    # The worst a restore meets: as many data blocks are lost as there are parity blocks.
    left = {index: blocks[index] for index in range(coding.parity, coding.total)}
    if len(left) > coding.data:
        left = dict(sorted(left.items(), reverse=True)[: coding.data])

    def best(action: Callable[[], object]) -> float:
        seconds = []
        for _ in range(TRIES):
            began = clock()
            action()
            seconds.append(max(clock() - began, 1e-9))
        return float(f"{len(state) / min(seconds):.4g}")

    return {
        "data": coding.data,
        "parity": coding.parity,
        "encode_bytes_per_second": best(lambda: codec.encode(state)),
        "decode_bytes_per_second": best(lambda: codec.decode(left, len(state))),
    }
