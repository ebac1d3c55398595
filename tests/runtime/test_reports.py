"""What the reports of a cycle come to, and how effects are told."""

from __future__ import annotations

from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot
from holdfast.recovery.effects import Fence, GlobalCheckpoint, Place, RecoveryEnded, RollBack, Waiting
from holdfast.recovery.events import RestoreFailed, StateMissing
from holdfast.runtime.coordinator.cycles import held_back
from holdfast.runtime.coordinator.event_log import effect_line
from holdfast.runtime.messages import (
    Failed,
    Measures,
    Missing,
    NodeReport,
    Refused,
    SnapshotLost,
    SnapshotNotStored,
    SnapshotStored,
    merge_reports,
)

HERE, THERE = NodeId("here"), NodeId("there")
A, B = (PartitionId(OperatorId(name), 0) for name in "ab")
EPOCH = Epoch(3)


def report(node: NodeId = HERE, **said: object) -> NodeReport:
    """What a node says."""
    return NodeReport(node, EPOCH, **said)  # type: ignore[arg-type]


def test_frontiers_count_from_the_node_that_has_the_partition() -> None:
    reports = [
        report(frontiers={A: BatchId(4)}),
        report(frontiers={A: BatchId(7), B: BatchId(9)}),
        report(THERE, frontiers={A: BatchId(20), B: BatchId(5)}),
    ]
    assert merge_reports(reports, {A: HERE, B: THERE}).frontiers == {A: 7, B: 5}


def test_a_partition_without_a_node_has_no_frontier() -> None:
    assert merge_reports([report(frontiers={A: BatchId(4)})], {}).frontiers == {}


def test_a_lost_image_says_more_than_a_missing_state() -> None:
    lost, missing = SnapshotLost(A, (BatchId(2), EPOCH), "too few fragments"), Missing(A, BatchId(2))
    for answers in ([lost, missing], [missing, lost]):
        result = merge_reports([report(answers=answers)], {A: HERE})
        assert result.losses == [RestoreFailed(A, (BatchId(2), EPOCH), EPOCH, "too few fragments")]
    assert merge_reports([report(answers=[missing])], {A: HERE}).losses == [StateMissing(A, HERE, EPOCH)]


def test_of_several_failures_of_a_partition_the_last_attempt_at_the_first_batch_is_told() -> None:
    later, first, other = Failed(A, BatchId(6), "x"), Failed(B, BatchId(5), "y"), Failed(A, BatchId(5), "z")
    found = merge_reports([report(answers=[later, first]), report(THERE, answers=[other])], {}).failed
    assert found == {A: other, B: first}
    again = Failed(A, BatchId(6), "x", attempt=1)
    assert merge_reports([report(answers=[again, other])], {}).failed == {A: again}


def test_sums_over_levels_and_nodes() -> None:
    stored = SnapshotStored(A, SavedSnapshot(BatchId(1), EPOCH, None))
    not_stored, refused = SnapshotNotStored(B, BatchId(1), "the disk is full"), Refused(A, EPOCH, Epoch(4))
    result = merge_reports(
        [
            report(measures={A: Measures(rows_in=3)}, outbox_bytes=10, answers=[stored]),
            report(measures={A: Measures(rows_in=4)}, outbox_bytes=12, answers=[not_stored]),
            report(THERE, measures={B: Measures(rows_in=5)}, outbox_bytes=100, answers=[refused]),
        ],
        {},
    )
    assert result.rows == 12
    assert [partition for partition, _ in result.measures] == [A, A, B]
    assert result.outbox_bytes == {HERE: 12, THERE: 100}, "of a node, what it reported last"
    assert (result.stored, result.not_stored, result.refused) == ([stored], [not_stored], refused)


def test_people_hear_of_what_changes_their_run() -> None:
    placed = ((A, HERE),)
    assert effect_line(Place(placed, (), 0, (B,))) == "1 lost partition in recovery, 1 waiting for nodes"
    assert effect_line(Place(placed, (), 0, ())) is None, "everything comes back: nobody waits"
    assert effect_line(RollBack((A, B), BatchId(4))) == "rolled back to batch 4: 2 live partitions"
    assert effect_line(GlobalCheckpoint(BatchId(4), NOTHING, NOTHING)) == "checkpoint at batch 4 is complete"
    assert effect_line(RecoveryEnded(BatchId(4))) == (
        "recovery ended: the checkpoint at batch 4 is complete and nothing is lost"
    )
    assert effect_line(Waiting(2, (A,))) == "waiting for 2 nodes: 1 partition"
    assert effect_line(Fence(EPOCH, "why")) is None


def test_rows_that_are_not_written_hold_a_partition_back_to_the_batch_before_them() -> None:
    """Not further back: one that went back to an earlier batch would never get to them again."""
    known = {A: NOTHING, B: NOTHING}
    at = {A: BatchId(1), B: BatchId(7)}
    assert held_back(at, (), known) == at
    assert held_back(at, {(A, BatchId(3))}, known) == at
    assert held_back(at, {(B, BatchId(6)), (B, BatchId(4))}, known) == {**at, B: BatchId(3)}
    assert held_back(at, {(B, BatchId(4))}, known | {B: BatchId(5)}) == {**at, B: BatchId(5)}
