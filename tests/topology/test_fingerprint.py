"""What makes two topologies the same for a plan, and the refusal of a plan that was made for another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.topology import Input, Operator, Partitioning, Topology, fingerprint, made_for, require_made_for

FULL = Partitioning.FULL
OPERATORS = (
    Operator("s", parallelism=2),  # type: ignore[arg-type]
    Operator("a", parallelism=3, inputs=(Input("s", FULL),)),  # type: ignore[arg-type]
    Operator("b", parallelism=3, inputs=(Input("a", FULL),)),  # type: ignore[arg-type]
)


@pytest.mark.parametrize(
    "changed",
    [{"selectivity": 0.5}, {"cost": 3.0}, {"state_bytes": 1e6}, {"priority": (3, 1, 1)}, {"failure_rate": 0.1}],
)
def test_measured_values_do_not_make_another_topology(changed: dict[str, Any]) -> None:
    other = Topology("renamed", [*OPERATORS[:2], replace(OPERATORS[2], **changed)])
    assert fingerprint(other) == fingerprint(Topology("t", OPERATORS))
    assert fingerprint(Topology("t", OPERATORS[::-1])) == fingerprint(Topology("t", OPERATORS)), "nor does the order"


@pytest.mark.parametrize(
    "changed",
    [
        {"parallelism": 2},
        {"inputs": (Input("s", FULL),)},
        {"inputs": (Input("a", Partitioning.ONE_TO_ONE),)},
        {"id": "c"},
    ],
)
def test_partitions_and_edges_do(changed: dict[str, Any]) -> None:
    mine = Topology("t", OPERATORS)
    other = Topology("t", [*OPERATORS[:2], replace(OPERATORS[2], **changed)])
    assert fingerprint(other) != fingerprint(mine)
    require_made_for({"topology": made_for(mine)}, mine, where="plan.json")
    require_made_for({"backups": []}, mine, where="plan.json")
    with pytest.raises(BadInput, match=r"plan.json: is a plan for topology t \(\w{16}\), and this is t \(.*plan again"):
        require_made_for({"topology": made_for(other)}, mine, where="plan.json")
    with pytest.raises(BadInput, match="topology: must say what the plan was made for"):
        require_made_for({"topology": "t"}, mine, where="plan.json")
