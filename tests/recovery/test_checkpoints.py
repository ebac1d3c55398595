"""The record of checkpoints: no snapshot without those it follows, and none global that could lose an output."""

from __future__ import annotations

import json
from dataclasses import replace

from holdfast.ids import BatchId, Epoch
from holdfast.recovery.checkpoints import Checkpoints, SavedSnapshot
from recovery.machine_driving import part

A, B = part("a"), part("b")


def snapshot(batch: int, follows: int | None = None, outbox_from: int | None = None) -> SavedSnapshot:
    before = None if follows is None else (BatchId(follows), Epoch(1))
    return SavedSnapshot(BatchId(batch), Epoch(1), before, None if outbox_from is None else BatchId(outbox_from))


def book_with(*snapshots: SavedSnapshot, marks: tuple[int, ...] = ()) -> Checkpoints:
    checkpoints = Checkpoints([A])
    for mark in marks:
        checkpoints.mark(BatchId(mark), durable=False)
    for one in snapshots:
        checkpoints.stored(A, one)
    return checkpoints


def test_what_holds_the_changes_since_an_image_goes_with_it() -> None:
    checkpoints = book_with(
        snapshot(1), snapshot(2, follows=1), snapshot(3, follows=2), snapshot(4), marks=(1, 2, 3, 4)
    )
    checkpoints.lost(A, (BatchId(1), Epoch(1)))
    assert [checkpoints.at(A, BatchId(batch)) for batch in (1, 2, 3)] == [None, None, None]
    assert checkpoints.last(A) == snapshot(4)
    checkpoints.lost(A, (BatchId(1), Epoch(1)))
    assert checkpoints.last(A) == snapshot(4), "hearing it twice changes nothing"


def test_changes_since_an_image_that_is_gone_are_not_safe() -> None:
    checkpoints = book_with(snapshot(3, follows=2), marks=(3,))
    assert not checkpoints.has(A, BatchId(3))
    assert checkpoints.last(A) is None


def test_an_image_that_the_book_keeps_is_written_down_with_it() -> None:
    checkpoints = Checkpoints([A])
    checkpoints.mark(BatchId(3), durable=True)
    kept = SavedSnapshot(BatchId(3), Epoch(1), None, None, durable=True, contents=b"\x00small")
    checkpoints.stored(A, kept)
    checkpoints.move({A: BatchId(3)})
    again = Checkpoints.read([A], json.loads(json.dumps(checkpoints.written())))
    found = again.at(A, BatchId(3))
    assert found == kept
    assert found is not None
    assert found.contents == b"\x00small"


def test_a_chain_ends_at_a_whole_image() -> None:
    checkpoints = book_with(snapshot(1), snapshot(2, follows=1), snapshot(3, follows=2), marks=(1, 2, 3))
    assert [one.batch for one in checkpoints.chain(A, snapshot(3, follows=2))] == [1, 2, 3]


def test_an_uncertain_output_is_in_its_image_before_the_checkpoint_is_global() -> None:
    """Else its rows, which go out only after the checkpoint, would be nowhere once its node is lost."""
    for saved, whole in ((snapshot(4), False), (snapshot(4, outbox_from=4), False), (snapshot(4, outbox_from=3), True)):
        checkpoints = book_with(saved, marks=(4,))
        assert checkpoints.is_covered(A, BatchId(4), {A: BatchId(2)}) == whole
        assert checkpoints.is_covered(A, BatchId(4), {A: BatchId(4)}), "it is out: the snapshot need not hold it"


def test_a_snapshot_that_lacks_unpublished_rows_replaces_none_that_holds_them() -> None:
    """A node lost its outbox and was asked for a durable snapshot at a batch that is saved with the rows."""
    checkpoints = book_with(snapshot(3, outbox_from=0), marks=(3,))
    poorer = replace(snapshot(3, outbox_from=4), durable=True)
    assert checkpoints.stored(A, poorer, BatchId(2)) == poorer, "rows of batches 2 and 3 would be nowhere"
    assert checkpoints.at(A, BatchId(3)) == snapshot(3, outbox_from=0)
    whole = replace(snapshot(3, outbox_from=2), durable=True)
    assert checkpoints.stored(A, whole, BatchId(2)) == snapshot(3, outbox_from=0)
    later = book_with(snapshot(3, outbox_from=0), marks=(3,))
    assert later.stored(A, poorer, BatchId(4)) == snapshot(3, outbox_from=0), "all of them are published"
    sure = book_with(snapshot(3, outbox_from=0), marks=(3,))
    assert sure.stored(A, poorer) == snapshot(3, outbox_from=0), "its rows can be made again"


def test_a_later_version_that_lacks_what_waiting_consumers_need_does_not_stand_for_its_batch() -> None:
    """Restored from the first, a node lost its outbox and saved once more: a consumer that waits never came back."""
    first = SavedSnapshot(BatchId(2), Epoch(1), outbox_from=BatchId(0))
    later = SavedSnapshot(BatchId(2), Epoch(5), outbox_from=BatchId(3), durable=True)
    checkpoints = Checkpoints([A])
    checkpoints.mark(BatchId(2), durable=False)
    assert checkpoints.stored(A, first) is None
    checkpoints.move({A: BatchId(2)})
    checkpoints.mark(BatchId(2), durable=True)
    assert checkpoints.stored(A, later, needed_from=BatchId(0)) == later, "it is of no use"
    assert checkpoints.at(A, BatchId(2)) == first
    assert checkpoints.stored(A, later, needed_from=None) is None, "where nobody waits, it is"
    assert checkpoints.at(A, BatchId(2)) == later


def test_a_batch_whose_latest_version_is_not_durable_is_saved_at_again_where_an_earlier_one_is() -> None:
    """It counted as saved and not as durable: no durable checkpoint was complete any more."""
    durable = SavedSnapshot(BatchId(2), Epoch(1), durable=True)
    later = SavedSnapshot(BatchId(2), Epoch(5))
    checkpoints = Checkpoints([A, B])
    checkpoints.mark(BatchId(2), durable=True)
    checkpoints.stored(A, durable)
    checkpoints.stored(B, later)
    checkpoints.stored(A, later)
    checkpoints.move({A: BatchId(2), B: BatchId(2)})
    assert checkpoints.durable_batch == -1
    checkpoints.mark(BatchId(2), durable=True)
    assert not checkpoints.has(A, BatchId(2)), "what stands for the batch is not durable"
    for p in (A, B):
        assert checkpoints.lacks(p, BatchId(2))
        checkpoints.stored(p, replace(later, durable=True))
        assert checkpoints.has(p, BatchId(2))
    checkpoints.move({A: BatchId(2), B: BatchId(2)})
    assert checkpoints.durable_batch == 2


def test_a_node_that_saves_an_earlier_version_again_makes_its_durable_snapshot_stand() -> None:
    """The later version was on peers only, and its node was gone: a run could not come to its last checkpoint."""
    durable = SavedSnapshot(BatchId(2), Epoch(1), outbox_from=BatchId(3), durable=True)
    later = SavedSnapshot(BatchId(2), Epoch(5), outbox_from=BatchId(3))

    def both() -> Checkpoints:
        checkpoints = Checkpoints([A, B])
        checkpoints.mark(BatchId(2), durable=True)
        checkpoints.stored(A, durable)
        checkpoints.stored(A, later)
        return checkpoints

    checkpoints = both()
    again = replace(durable, outbox_from=None, saved=(7, 7))
    assert checkpoints.stored(A, again) == again, "it has no more than the one that is there"
    assert not checkpoints.has(A, BatchId(2))
    assert checkpoints.let_durable_stand(A, again.id, None) == [later]
    assert checkpoints.has(A, BatchId(2))
    assert checkpoints.at(A, BatchId(2)) == durable
    held = both()
    rows = replace(later, epoch=Epoch(6), outbox_from=BatchId(1))
    held.stored(A, rows)
    assert held.let_durable_stand(A, durable.id, BatchId(1)) == [], "only the later one holds rows that are needed"
    followed = both()
    followed.stored(A, SavedSnapshot(BatchId(3), Epoch(5), follows=later.id))
    assert followed.let_durable_stand(A, durable.id, None) == []
    assert followed.let_durable_stand(A, later.id, None) == [], "it is not durable itself"
