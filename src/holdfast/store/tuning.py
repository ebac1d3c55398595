"""What a client measures, and m and k chosen from it (paper 002, sec. 4.1). Runs wherever a client does."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.erasure.fragment import StateHeader
from holdfast.erasure.layout import Coding


@dataclass(slots=True)
class Measurements:
    """Moving averages of rates, in bytes per second, and of lost fragments; None until first measured."""

    save_rate: float | None = None
    load_rate: float | None = None
    decode_rate: float | None = None
    fragments: int = 0
    fragments_lost: int = 0

    def saved(self, header: StateHeader, seconds: float, lost: int) -> None:
        """Note a save."""
        self.save_rate = _moved(self.save_rate, header.state_bytes, seconds)
        self.fragments += header.coding.total
        self.fragments_lost += lost

    def loaded(self, header: StateHeader, seconds: float, decoding: float, lost: int) -> None:
        """Note a load and how much of it was decoding."""
        self.load_rate = _moved(self.load_rate, header.state_bytes, seconds)
        self.decode_rate = _moved(self.decode_rate, header.state_bytes, decoding)
        self.fragments += header.coding.data
        self.fragments_lost += lost


def _moved(before: float | None, amount: int, seconds: float) -> float | None:
    if seconds <= 0 or amount <= 0:
        return before
    rate = amount / seconds
    return rate if before is None else 0.7 * before + 0.3 * rate


def default_coding(state_bytes: int, peers: int, measured: Measurements) -> Coding:
    """Choose m and k for as many peers as there are."""
    total = max(1, min(peers, 15))
    parity = total // 3 if total > 2 else total - 1
    return Coding(total - parity, parity)
