"""A run as it is, as a joint plan: what its settings amount to, and where its partitions are. Pure; runs anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from holdfast.erasure.layout import Coding
from holdfast.planning.joint.model import JointModel, JointPlan
from holdfast.topology import as_mask


def as_set(model: JointModel, measured: Mapping[str, Any], first_code: Callable[[int, float], Coding]) -> JointPlan:
    """Return the plan that a run's settings amount to: its segments, its backups, its code.

    `first_code`: what agents choose for so many peers and such a reliability before they have measured anything.
    """
    topology, settings = model.topology, measured.get("settings") or {}
    interval = measured.get("checkpoint_interval_seconds") or settings.get("checkpoint_seconds") or 10.0
    peers = min(32, model.peers)
    anchors, intervals = model.sources.copy(), np.full(len(topology.operators), float(interval))
    for segment in settings.get("segments") or ():
        for name in segment["operators"]:
            intervals[topology.position(name)] = float(segment["interval_seconds"])
        for name in segment["anchors"]:
            anchors[topology.position(name)] = True
    return JointPlan(
        anchors,
        intervals,
        as_mask(topology, topology.indices(settings.get("backups") or [])),
        np.zeros(len(topology), bool),
        _code(peers, settings, measured, first_code),
    )


def _code(
    peers: int, settings: Mapping[str, Any], measured: Mapping[str, Any], first_code: Callable[[int, float], Coding]
) -> Coding:
    """Return m and k: as set; by the loss to survive; as agents chose for the largest states; their first choice."""
    data, parity = settings.get("data_fragments"), settings.get("parity_fragments")
    if data is not None and parity is not None:
        return Coding(int(data), int(parity))
    if (share := settings.get("tolerate_node_loss")) is not None:
        lost = min(peers - 1, int(peers * float(share)))
        return Coding(peers - lost, lost)
    if chosen := (measured.get("fragments") or {}).get("codes"):
        largest = max(chosen, key=lambda one: float(one["state_bytes"]))
        return Coding(int(largest["data"]), int(largest["parity"]))
    return first_code(peers, float(settings.get("reliability") or 0.999))


def placed_as_measured(measured: Mapping[str, Any] | None) -> dict[str, str]:
    """Return which node each partition is on, as the profile says; empty where it says nothing."""
    return {str(p): str(node) for p, node in ((measured or {}).get("placement") or {}).items()}
