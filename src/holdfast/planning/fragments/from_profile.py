"""What a plan of fragments needs, from a profile: the largest state, peers, losses, bandwidth and rates. Pure.

A run whose agents choose the code themselves has measured the last four (`measured.fragments.codes`); others have them
from restores and from `measured.coding`, which `holdfast profile APP` writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.erasure.layout import Coding
from holdfast.errors import BadInput
from holdfast.planning.fragments.code_rates import CodeRate, CodeRates, MeasuredRate
from holdfast.topology import Topology


@dataclass(frozen=True, slots=True)
class FragmentFigures:
    """What a profile knows; None: it does not."""

    state_bytes: float | None
    """Of the partition with the largest state."""
    peers: int | None
    node_failure: float | None
    bandwidth: float | None
    rates: CodeRates | None


def largest_state(topology: Topology) -> float:
    """Return the bytes of the largest state of one partition."""
    size = len(topology.operators)
    share = topology.weights / np.bincount(topology.operator_of, topology.weights, minlength=size)[topology.operator_of]
    state = np.array([operator.state_bytes for operator in topology.operators], float)[topology.operator_of] * share
    return float(state.max(initial=0.0))


def figures_of(topology: Topology, measured: Mapping[str, Any] | None) -> FragmentFigures:
    """Take what a profile has; a field that is no such thing is refused."""
    about = measured or {}
    try:
        codes = [dict(one) for one in (about.get("fragments") or {}).get("codes") or ()]
        known = [one for one in codes if one.get("bandwidth") is not None]
        nodes = len(about.get("nodes") or {}) - 1  # the one whose state is restored is no peer
        peers = max([int(one["peers"]) for one in codes], default=nodes)
        bandwidth = min([float(one["bandwidth"]) for one in known], default=about.get("restore_bandwidth"))
        down = max([float(one["node_failure"]) for one in known], default=None)
        rates = _rates(codes, about.get("coding") or ())
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"is not what a run measures: {type(error).__name__}: {error}",
            field="measured",
            remedy="write the profile again with `holdfast profile`",
        ) from None
    state = largest_state(topology)
    return FragmentFigures(state or None, peers if peers >= 2 else None, down, bandwidth, rates)


def _rates(codes: list[dict[str, Any]], coding: Any) -> CodeRates | None:
    measured = [
        MeasuredRate(
            Coding(int(one["data"]), int(one["parity"])),
            CodeRate(float(one["encode_bytes_per_second"]), float(one["decode_bytes_per_second"])),
        )
        for one in coding
    ]
    # An agent measures what it encodes: recomputing is taken to be as fast, as in A-FP4S.
    for one in codes:
        if one.get("encode_rate") is not None and int(one["parity"]):
            rate = float(one["encode_rate"])
            measured.append(MeasuredRate(Coding(int(one["data"]), int(one["parity"])), CodeRate(rate, rate)))
    return CodeRates.from_measurements(measured) if measured else None
