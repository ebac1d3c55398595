"""Which blocks go out at which level: once within a desired state, again with a repeated level; late rows always."""

from __future__ import annotations

from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import Start
from holdfast.runtime.blocks import LATE, SINK, Block, Edge, Header
from holdfast.runtime.messages import DesiredState, PartitionAssignment
from holdfast.runtime.worker.exchange import Exchange

A, B = (PartitionId(OperatorId(name), 0) for name in "ab")
THERE = NodeId("there")
EPOCH = Epoch.of(1, 1)


def desired(number: int, *assigned: PartitionId) -> DesiredState:
    one = PartitionAssignment(THERE, Start(EPOCH, NOTHING, ()), NOTHING, BatchId(0), BatchId(9))
    return DesiredState("run", number, EPOCH, dict.fromkeys(assigned, one), {})


def block(receiver: PartitionId, batch: int = 0) -> Block:
    return Block(Header(Edge(A.operator, receiver.operator), A, receiver, BatchId(batch), EPOCH, None))


TO_B, TO_SINK, TO_LATE = block(B), block(PartitionId(SINK, 0)), block(PartitionId(LATE, 0))


def test_a_block_goes_out_at_the_level_at_which_it_was_made() -> None:
    exchange = Exchange()
    assert exchange.address(desired(1, B), 0, [TO_B, TO_SINK]) == ({THERE: [TO_B]}, [TO_SINK])
    assert exchange.address(desired(1, B), 1, [TO_B, TO_SINK]) == ({}, [])
    later = block(B, 1)
    assert exchange.address(desired(1, B), 1, [TO_B, later]) == ({THERE: [later]}, [])


def test_a_level_that_is_run_again_sends_again_and_so_does_the_next_desired_state() -> None:
    exchange = Exchange()
    for _ in range(2):
        assert exchange.address(desired(1, B), 0, [TO_B, TO_SINK]) == ({THERE: [TO_B]}, [TO_SINK])
    assert exchange.address(desired(2, B), 1, [TO_B]) == ({THERE: [TO_B]}, [])


def test_late_rows_go_with_every_report() -> None:
    """The frontier that is reported acknowledges them: a report of a later level must not come without them."""
    exchange = Exchange()
    for level in range(3):
        assert exchange.address(desired(1, B), level, [TO_LATE]) == ({}, [TO_LATE])


def test_what_is_assigned_nowhere_is_sent_nowhere() -> None:
    assert Exchange().address(desired(1), 0, [TO_B]) == ({}, [])
