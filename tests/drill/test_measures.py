"""Down, back, level, available: from made-up histories whose answers are known by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from drill.made_up import PLACED, begin, event, one_node_killed, outputs
from holdfast.drill.losses import Loss, find_detections, find_losses
from holdfast.drill.measures import Output, find_level, find_outages, measure
from holdfast.drill.prediction import predict
from holdfast.drill.settings import DrillSettings, DrillStrategy
from holdfast.ids import OperatorId
from holdfast.topology import Input, Operator, Partitioning, Topology


def test_one_killed_node_by_hand() -> None:
    found = measure(one_node_killed())
    by_name = {one.query.id: one for one in found.queries}
    assert [one.query.id for one in found.failed] == ["A[1]", "B[0]", "B[1]"], "A[0] lost nothing"
    assert by_name["A[1]"].down_at == 20
    assert by_name["A[1]"].back_at == pytest.approx(23.0)
    # B[1] itself stayed; its query needs T[0].
    assert (by_name["B[1]"].down_at, by_name["B[1]"].back_at) == (20, pytest.approx(38.0))
    assert found.unavailability == pytest.approx(2 * 3 + 3 * 18 + 1 * 18)
    assert found.fault_at == 20
    assert found.detected_after == pytest.approx(0.2)
    assert found.planned_after == pytest.approx(0.3)
    assert found.first_restore_after == pytest.approx(1.5)
    assert found.first_output_after == pytest.approx(3.0)
    assert found.all_back_after == pytest.approx(18.0)
    assert found.recovered_at == {"A[1]": 21.5, "B[0]": 35, "T[0]": 34}


def test_tentative_outputs_have_a_time_and_the_fidelity_that_was_predicted() -> None:
    history = one_node_killed()
    for batch, rows in ((21, 6), (22, 14)):
        fields = {"partition": "A[1]", "batch": batch, "rows": rows, "tentative": True, "fidelity": 0.75}
        history.append(event(batch + 0.9, "published", **fields))
    history.sort(key=lambda one: one.at)
    by_id = {one.query.id: one for one in measure(history).queries}
    one = by_id["A[1]"]
    assert (one.tentative_at, one.fidelity_predicted) == (21.9, 0.75)
    assert one.back_at == {one.query.id: one for one in measure(one_node_killed()).queries}["A[1]"].back_at
    assert by_id["A[0]"].fidelity_predicted is None


def test_the_gap_is_the_longest_time_between_two_outputs_around_the_failure() -> None:
    history = one_node_killed()
    found = {one.query.id: (one.gap, one.gap_before) for one in measure(history).queries}
    assert found["A[0]"] == (pytest.approx(1.0), pytest.approx(1.0)), "it was live: a batch is due every second"
    assert found["A[1]"] == (pytest.approx(23.0 - 18.5), pytest.approx(1.0))
    assert found["B[1]"] == (pytest.approx(38.0 - 18.5), pytest.approx(1.0)), "it lost none, and waits for what did"
    late = [*history, *outputs("A[0]", range(70, 72))]
    assert {one.query.id: one.gap for one in measure(late).queries}["A[0]"] == pytest.approx(1.0), "long after it"
    soon = [one for one in history if one.kind not in ("published", "end") or one.at < 36]
    end = event(70, "end")
    assert {one.query.id: one.gap for one in measure([*soon, end]).queries}["A[0]"] == pytest.approx(1.0), "no more"
    never = [one for one in history if one.kind != "published" or one.fields["partition"] != "B[0]" or one.at < 20]
    assert {one.query.id: one.gap for one in measure(never).queries}["B[0]"] == pytest.approx(60.1 - 18.5)
    calm = [one for one in history if one.kind not in ("fault", "node-lost", "state")]
    assert {(one.gap, one.gap_before) for one in measure(calm).queries} == {(None, None)}


def test_live_partitions_that_went_back_are_no_restores() -> None:
    history = [*one_node_killed(), event(20.6, "restored", partition="S[0]", node="127.0.0.2-0", batch=10)]
    assert measure(sorted(history, key=lambda one: one.at)).first_restore_after == pytest.approx(1.5)


def test_relative_latency_is_over_the_mean_before_the_failure() -> None:
    found = {one.query.id: one for one in measure(one_node_killed()).queries}
    assert found["A[0]"].latency_before == pytest.approx(0.5)
    assert all(value == pytest.approx(1) for _, value in found["A[0]"].relative)
    at, value = found["B[0]"].relative[19]
    assert (at, value) == (pytest.approx(38.0), pytest.approx((38 - 19) / 0.5))
    # From batch 39, at 40.0 s, the next five seconds hold 2, 0.2 and four times 1; from batch 38 on also 3.8.
    assert found["B[0]"].level_at == pytest.approx(40.0)
    assert found["B[0]"].latency_after == pytest.approx((1 + 0.1 + 19 * 0.5) / 21)


def test_available_queries_over_time() -> None:
    found = measure(one_node_killed()).available

    def at(moment: float) -> int:
        return [count for when, count in found if when <= moment][-1]

    assert at(10) == 4
    assert at(21) == 1, "only A[0] is up"
    assert at(30) == 2
    assert at(45) == 4


def test_a_second_failure_before_the_first_is_over_is_one_outage() -> None:
    times = [Output(batch, float(batch), 0.5, 1) for batch in (1, 2, 3, 10, 11, 30)]
    first = Loss("A[0]", at=3.5, seen=4.0, back=6.0)
    second = Loss("A[0]", at=7.0, seen=7.5, back=9.0)
    assert [(one.down_at, one.back_at) for one in find_outages(times, [first, second])] == [(3.5, 10.0)]
    later = Loss("B[0]", at=12.0, seen=12.5, back=20.0)
    assert [(one.down_at, one.back_at) for one in find_outages(times, [first, later])] == [(3.5, 10.0), (12.0, 30.0)]
    never = Loss("B[0]", at=12.0, seen=12.5, back=None)
    assert find_outages(times, [first, never])[-1].back_at is None


def test_what_was_on_its_way_does_not_end_an_outage() -> None:
    times = [Output(batch, at, 0.5, 1) for batch, at in enumerate((1.0, 2.0, 4.2, 9.0))]
    loss = Loss("A[0]", at=4.0, seen=4.1, back=8.0)
    assert find_outages(times, [loss])[0].back_at == 9.0


def test_the_end_of_the_driver_takes_every_partition() -> None:
    history = [
        *begin(),
        *outputs("A[0]", range(10)),
        event(10.5, "fault", what="kill-driver"),
        event(15.0, "restored", partition="S[0]", node="127.0.0.2-0"),
        event(15.1, "restored", partition="A[0]", node="127.0.0.2-0"),
        *outputs("A[0]", range(5, 10), at=15.5),  # the new driver says these again
        *outputs("A[0]", range(10, 20), at=16.5),
        event(30, "end"),
    ]
    found = {one.query.id: one for one in measure(history).queries}
    assert found["A[0]"].down_at == 10.5
    assert found["A[0]"].back_at == pytest.approx(16.5), "what had been out before is no new output"
    assert found["B[0]"].back_at is None
    assert {loss.at for loss in find_losses(history, ["S[0]", "A[0]"])} == {10.5}


def test_losses_are_counted_from_the_fault_on_their_own_node() -> None:
    state = {"before": "running", "after": "lost"}
    history = [
        *begin(),
        event(20, "fault", what="freeze", node="node-1"),
        event(21, "fault", what="kill", node="node-2"),
        event(21.2, "state", partition="A[1]", **state),
        event(23, "state", partition="A[0]", **state),
    ]
    assert {loss.partition: loss.at for loss in find_losses(history, [])} == {"A[1]": 21, "A[0]": 20}


def test_what_no_fault_took_is_down_from_when_it_was_noticed() -> None:
    """Corrupted disks and decommissioned nodes take partitions too, and no time before the first fault is down time."""
    history = [
        *begin(),
        *outputs("B[1]", range(60)),
        event(25, "fault", what="corrupt", node="node-3"),
        event(26, "state", partition="B[1]", before="running", after="lost", node="127.0.0.4-2"),
        event(28, "restored", partition="B[1]", node="127.0.0.4-2", batch=10),
    ]
    (loss,) = find_losses(history, PLACED)
    assert (loss.at, loss.seen, loss.back) == (26, 26, 28)


def test_detection_of_each_node_by_itself() -> None:
    history = [
        *begin(),
        event(20, "fault", what="kill", node="node-1"),
        event(20, "fault", what="freeze", node="node-2"),
        event(20.3, "node-lost", nodes=["127.0.0.2-0"]),
        event(22.4, "node-silent", nodes=["127.0.0.3-1"]),
        event(30, "fault", what="freeze", node="node-3"),
    ]
    found = [(one.what, one.node, one.after) for one in find_detections(history)]
    assert found == [
        ("kill", "node-1", pytest.approx(0.3)),
        ("freeze", "node-2", pytest.approx(2.4)),
        ("freeze", "node-3", None),
    ]


def test_level_needs_five_whole_seconds() -> None:
    relative = [(float(at), 3.0 if at < 10 else 1.0) for at in range(20)]
    assert find_level(relative, 5.0, 19.0) == 9.0 + 1.0
    assert find_level(relative, 5.0, 14.0) is None, "the drill ended before they were over"
    # Nine tenths of a second of waiting spread over five seconds: a mean, not each output.
    assert find_level([(0.0, 1.9), (1.0, 1.0), (2.0, 1.0), (3.0, 1.0), (4.0, 1.0)], 0.0, 9.0) == 0.0


def test_without_a_fault_nothing_is_down() -> None:
    found = measure([*begin(), *outputs("A[0]", range(10)), event(12, "end")])
    assert not found.failed
    assert found.unavailability == 0
    assert found.detected_after is None
    assert found.fault_at is None


def test_the_planner_predicts_when_queries_are_back() -> None:
    operators = [
        Operator(OperatorId("S"), 1, rate=1.0),
        Operator(OperatorId("T"), 1, rate=1.0),
        Operator(OperatorId("A"), 2, (Input(OperatorId("S"), Partitioning.SPLIT),), output=True, priority=(5, 2)),
        Operator(OperatorId("B"), 2, (Input(OperatorId("T"), Partitioning.SPLIT),), output=True, priority=(3, 1)),
    ]
    topology = Topology("made-up", operators)
    history = one_node_killed()
    # Three partitions to a node at most: node-1 has room for A[1] at once, node-3 for one more; B waits for node-4.
    asked = DrillSettings("x", nodes=3, kill=1, arrivals=(10.0,), capacity=3.0 / 0.8)
    found = predict(asked, topology, history, measure(history))
    assert found is not None
    assert found.back_after["B[0]"] == pytest.approx(0.0), "three rooms are free: everything fits on the survivors"
    asked = DrillSettings("x", nodes=3, kill=1, arrivals=(10.0,), capacity=2.5 / 0.8)
    found = predict(asked, topology, history, measure(history))
    assert found is not None
    # One room only, on node-3: A[1] fits there; T[0] and B[0] wait for node-4, which was there 13 s after the failure.
    assert found.back_after == {"A[1]": 0.0, "B[0]": 13.0, "B[1]": 13.0}
    assert found.unavailability == pytest.approx(13 * 4)
    blocking = predict(replace(asked, strategy=DrillStrategy.BLOCKING), topology, history, measure(history))
    assert blocking is not None
    assert blocking.unavailability == pytest.approx(13 * 6)
    assert predict(replace(asked, strategy=DrillStrategy.SOURCE_REPLAY), topology, history, measure(history)) is None
