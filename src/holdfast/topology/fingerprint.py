"""The identity of a topology: what a plan was made for. Pure; runs anywhere.

A plan names partitions and says what they keep. It holds for another topology only where the same partitions send to
each other in the same way: operators, their parallelism, inputs and partitionings. Rates, costs and sizes may change
without making a plan another topology's; it is then made again because its promises no longer hold.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from holdfast.errors import BadInput
from holdfast.topology.model import Topology

_DIGITS = 16


def fingerprint(topology: Topology) -> str:
    """Return the identity of a topology: the same for the same operators, parallelisms, inputs and outputs."""
    shape = sorted(
        [
            str(operator.id),
            operator.parallelism,
            [[str(one.source), one.partitioning.value] for one in operator.inputs],
            bool(topology.operator_outputs[number]),
        ]
        for number, operator in enumerate(topology.operators)
    )
    text = json.dumps(shape, separators=(",", ":"), ensure_ascii=False)
    return sha256(text.encode()).hexdigest()[:_DIGITS]


def made_for(topology: Topology) -> dict[str, str]:
    """Return what a plan's document says about the topology it was made for."""
    return {"name": topology.name, "identity": fingerprint(topology)}


def require_made_for(document: Mapping[str, Any], topology: Topology, *, where: str) -> None:
    """Refuse a plan that was made for another topology; one that names none is taken at its word."""
    named = document.get("topology")
    if named is None:
        return
    if not isinstance(named, Mapping) or not isinstance(named.get("identity"), str):
        raise BadInput(
            "must say what the plan was made for",
            where=where,
            field="topology",
            remedy="give what `holdfast plan … --json` printed",
        )
    mine, theirs = fingerprint(topology), named["identity"]
    if theirs != mine:
        raise BadInput(
            f"is a plan for topology {named.get('name', '?')} ({theirs}), and this is {topology.name} ({mine})",
            where=where,
            remedy="plan again for this topology: operators, parallelism or inputs differ",
        )
