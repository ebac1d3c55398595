"""The verdict on decommissioned nodes, on histories that no cluster made."""

from __future__ import annotations

from dataclasses import replace

from drill.made_up import begin, event, outputs
from holdfast.drill.checkers import Verdict
from holdfast.drill.fault_checkers import check_evacuated, fault_checks
from holdfast.drill.history import Event
from holdfast.drill.settings import DrillSettings
from holdfast.ids import OperatorId
from holdfast.topology import Operator, Topology

ANY = Topology("any", [Operator(OperatorId("a"), 1, (), output=True)])
MOVED = ("A[1]", "T[0]", "B[0]")
"""What is on node-2."""


def history(*more: Event, silent_until: float | None = None) -> list[Event]:
    """node-2 gets its notice at 20 s and is left at 25 s."""
    found = begin()
    for query in ("A[0]", "A[1]", "B[0]", "B[1]"):
        if silent_until is not None and query == "B[0]":
            found += outputs(query, range(19)) + outputs(query, range(19, 40), at=silent_until)
        else:
            found += outputs(query, range(40))
    found += [
        event(20, "fault", what="decommission", node="node-2"),
        event(20.5, "node-leaving", nodes=["127.0.0.3-1"]),
        *more,
    ]
    return sorted(found, key=lambda one: one.at)


LEFT = (
    *(
        event(24, "promoted", partition=p, before="127.0.0.3-1", node="127.0.0.2-0", batch=20, why="moved")
        for p in MOVED
    ),
    event(25, "node-evacuated", nodes=["127.0.0.3-1"]),
)


def test_a_node_that_is_left_in_order() -> None:
    found = check_evacuated(history(*LEFT))
    assert (found.verdict, found.reason) == (
        Verdict.OK,
        "3 partitions moved, none was lost, no query paused for a batch",
    )


def test_a_plain_loss_is_no_evacuation() -> None:
    lost = event(24, "state", partition="T[0]", before="running", after="lost")
    assert check_evacuated(history(lost)).verdict is Verdict.FAILED
    late = check_evacuated(history(lost, *LEFT))
    assert (late.verdict, late.reason) == (
        Verdict.FAILED,
        "T[0], on a node that was decommissioned, was lost at 24.0 s",
    )
    back = event(24.5, "rolled-back", partitions=["B[1]"], to=10)
    assert "1 partition rolled back" in check_evacuated(history(back, *LEFT)).reason
    restored = event(24.5, "restored", partition="T[0]", node="127.0.0.2-0", batch=10)
    assert "T[0], on a node that was decommissioned, was restored" in check_evacuated(history(restored, *LEFT)).reason


def test_no_query_stands_still_for_more_than_a_batch() -> None:
    found = check_evacuated(history(*LEFT, silent_until=24.0))
    assert found.verdict is Verdict.FAILED
    assert found.reason.startswith("B[0] stood still for 5.5 s")
    assert check_evacuated(history(*LEFT, silent_until=20.4)).verdict is Verdict.OK
    young = [one for one in history(*LEFT) if one.kind != "published" or one.at > 17]
    assert check_evacuated(young).verdict is Verdict.UNKNOWN


def test_beside_other_faults_what_went_wrong_is_unknown() -> None:
    killed = event(21, "fault", what="kill", node="node-1")
    assert check_evacuated(history(killed)).verdict is Verdict.UNKNOWN
    assert "other faults: kill" in check_evacuated(history(killed)).reason
    assert check_evacuated(history(killed, *LEFT)).verdict is Verdict.OK
    assert check_evacuated(begin()).verdict is Verdict.UNKNOWN


def test_it_is_made_where_a_node_is_decommissioned() -> None:
    asked = DrillSettings("traffic", kill=0, decommission=1)
    assert [one.name for one in fault_checks(asked, ANY, history(*LEFT))] == ["evacuated"]
    assert not fault_checks(replace(asked, decommission=0), ANY, history(*LEFT))
