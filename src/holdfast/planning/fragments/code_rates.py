"""How fast states are coded and recomputed, per number of data and parity fragments. Pure; runs anywhere.

A-FP4S writes one recompute rate c; in truth it depends on m and k (sec. 5.4 measures that). Here rates are a table:
what was measured stands as measured, what was not is read off a plane fitted through the measurements: the seconds a
byte costs grow about linearly with the parity that is computed and with the fragments that are read.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput


@dataclass(frozen=True, slots=True)
class CodeRate:
    """Bytes of state per second for one (m, k)."""

    encode: float
    decode: float
    """The rate of recomputing a state from m fragments: c in A-FP4S."""


@dataclass(frozen=True, slots=True)
class MeasuredRate:
    """One measurement, as rate files have it."""

    coding: Coding
    rate: CodeRate


class CodeRates:
    """Rates for every (m, k): measured where measured, else from the plane through what was measured."""

    __slots__ = ("_decode_plane", "_decode_scale", "_encode_plane", "_encode_scale", "_own", "measured")

    def __init__(self, measured: Mapping[Coding, CodeRate]) -> None:
        """Take the measurements; one is enough, three or more that differ in m and k make a plane."""
        if not measured:
            raise BadInput("no coding rates are given", field="rates", remedy="give at least one measured rate")
        for coding, rate in measured.items():
            if not (0 < rate.encode < math.inf and 0 < rate.decode < math.inf):
                raise BadInput(
                    f"the rates of {coding} are not both above zero", field="rates", remedy="give bytes per second"
                )
        self.measured: dict[Coding, CodeRate] = dict(measured)
        self._encode_plane = _plane(self.measured, "encode")
        self._decode_plane = _plane(self.measured, "decode")
        self._encode_scale = self._decode_scale = 1.0
        self._own: dict[Coding, float] = {}

    @classmethod
    def constant(cls, rate: float) -> CodeRates:
        """One rate for all m and k, as in A-FP4S, eq. 2."""
        return cls({Coding(1, 1): CodeRate(rate, rate)})

    @classmethod
    def from_measurements(cls, measurements: Iterable[MeasuredRate]) -> CodeRates:
        """Take a list of measurements; the last of several for one (m, k) stands."""
        return cls({one.coding: one.rate for one in measurements})

    def of(self, coding: Coding) -> CodeRate:
        """Return the rates for one (m, k)."""
        rate = self.measured.get(coding) or CodeRate(
            1.0 / _cost(self._encode_plane, coding), 1.0 / _cost(self._decode_plane, coding)
        )
        own = _correction(self._own, coding)
        return CodeRate(rate.encode * self._encode_scale * own, rate.decode * self._decode_scale * own)

    def adjusted(self, encode: float, decode: float, corrections: Mapping[Coding, float]) -> CodeRates:
        """Return the same shape for a faster or busier machine, with the factors that single codings showed.

        A coding without a factor of its own takes those of the codings near it, the nearest most.
        """
        other = object.__new__(CodeRates)
        other.measured = self.measured
        other._encode_plane, other._decode_plane = self._encode_plane, self._decode_plane
        other._encode_scale, other._decode_scale = self._encode_scale * encode, self._decode_scale * decode
        other._own = dict(corrections)
        return other


def _correction(own: Mapping[Coding, float], coding: Coding) -> float:
    if not own or coding in own:
        return own.get(coding, 1.0)
    near = [(_nearness(coding, other), factor) for other, factor in own.items() if factor != 1.0]
    if not near:
        return 1.0
    weights = sum(weight for weight, _ in near) + sum(_nearness(coding, other) for other in own if own[other] == 1.0)
    return math.exp(sum(weight * math.log(factor) for weight, factor in near) / weights)


@lru_cache(maxsize=1 << 16)
def _nearness(one: Coding, other: Coding) -> float:
    data = math.log(one.data / other.data)
    parity = math.log(max(one.parity, 0.5) / max(other.parity, 0.5))
    return 1.0 / max(data * data + parity * parity, 1e-6)


Plane = tuple[float, float, float, float]
"""Seconds per byte: constant, per parity fragment, per data fragment, and the lower bound of the estimate."""


def _plane(measured: Mapping[Coding, CodeRate], which: str) -> Plane:
    seconds = np.array([1.0 / getattr(rate, which) for rate in measured.values()])
    shape = np.array([[1.0, coding.parity, coding.data] for coding in measured])
    floor = float(seconds.min()) / 2
    # A term whose coefficient comes out negative is noise: coding more never takes less. Drop it and fit again.
    terms = [0, 1, 2] if np.linalg.matrix_rank(shape) == 3 else [0]
    coefficients = np.zeros(3)
    while terms:
        fitted, *_ = np.linalg.lstsq(shape[:, terms], seconds, rcond=None)
        if (fitted >= 0).all():
            coefficients[terms] = fitted
            break
        terms = [term for term, value in zip(terms, fitted, strict=True) if value >= 0]
    else:
        coefficients[0] = seconds.mean()
    return float(coefficients[0]), float(coefficients[1]), float(coefficients[2]), floor


def _cost(plane: Plane, coding: Coding) -> float:
    constant, per_parity, per_data, floor = plane
    return max(floor, constant + per_parity * coding.parity + per_data * coding.data)
