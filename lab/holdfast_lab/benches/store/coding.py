"""Encoding and decoding as ratios: to a plain memory copy, and to pyeclib used bare.

Bare pyeclib is called as its documentation does, with the whole state at once; and, as a second figure, with our
stripes one by one, where it stays in the cache. One core; the least of several runs, since everything else on the
machine can only make it longer. Ours includes what pyeclib does not do: checksums of every block, checks of every
stripe, the digest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.erasure.decoding import StateDecoder
from holdfast.erasure.encoding import describe, encode_stripes
from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch


@dataclass(frozen=True, slots=True)
class CodingFigures:
    """Rates in MB of state per second; decoding with as many data fragments lost as there can be."""

    data: int
    parity: int
    copy: float
    pyeclib_encode: float
    pyeclib_decode: float
    stripes_encode: float
    """pyeclib stripe by stripe."""
    stripes_decode: float
    encode: float
    decode: float
    read: float
    """Decoding when no data fragment is lost: checking and joining."""

    @property
    def encode_ratio(self) -> float:
        """Our encoding over bare pyeclib's; the issue asks for 0.7."""
        return self.encode / self.pyeclib_encode

    @property
    def decode_ratio(self) -> float:
        """Our decoding over bare pyeclib's."""
        return self.decode / self.pyeclib_decode


def measure_coding(coding: Coding, state: bytes, repeat: int) -> CodingFigures:
    """Measure one (m, k)."""
    from pyeclib.ec_iface import ECDriver

    size = len(state) / 1e6
    header = describe(state, StateId("bench", "coding"), BatchId(1), Epoch(1), coding)
    driver = ECDriver(ec_type="isa_l_rs_cauchy", k=coding.data, m=coding.parity)
    span = header.layout.stripe_bytes
    stripes = [state[start : start + span] for start in range(0, len(state), span)]
    lost = min(coding.parity, coding.data)
    whole = driver.encode(state)[lost : lost + coding.data]
    coded = [driver.encode(stripe) for stripe in stripes]
    survivors = [blocks[lost : lost + coding.data] for blocks in coded]
    ours = [
        {index: b"".join((block.prefix, block.payload)) for index, block in enumerate(blocks)}
        for blocks in encode_stripes(header, state)
    ]
    damaged = [{index: block for index, block in blocks.items() if index >= lost} for blocks in ours]

    def decode_all(given: list[dict[int, bytes]]) -> None:
        decoder = StateDecoder(header)
        for blocks in given:
            decoder.stripe(blocks)
        decoder.finish()

    def encode_bare() -> None:
        for stripe in stripes:
            driver.encode(stripe)

    def decode_bare() -> None:
        for blocks in survivors:
            driver.decode(blocks)

    def encode_ours() -> None:
        for _ in encode_stripes(header, state):
            pass

    return CodingFigures(
        data=coding.data,
        parity=coding.parity,
        copy=size / _seconds(lambda: bytearray(state), repeat),
        pyeclib_encode=size / _seconds(lambda: driver.encode(state), repeat),
        pyeclib_decode=size / _seconds(lambda: driver.decode(whole), repeat),
        stripes_encode=size / _seconds(encode_bare, repeat),
        stripes_decode=size / _seconds(decode_bare, repeat),
        encode=size / _seconds(encode_ours, repeat),
        decode=size / _seconds(lambda: decode_all(damaged), repeat),
        read=size / _seconds(lambda: decode_all(ours), repeat),
    )


def _seconds(work: Callable[[], object], repeat: int) -> float:
    work()
    times = []
    for _ in range(repeat):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)
