"""The book of checkpoints: no image without those it follows, and none global that could lose an output."""

from __future__ import annotations

import json

from holdfast.ids import BatchId, Epoch
from holdfast.recovery.checkpoints import CheckpointBook, SavedImage
from recovery.machine_driving import part

A, B = part("a"), part("b")


def image(batch: int, follows: int | None = None, outbox_from: int | None = None) -> SavedImage:
    before = None if follows is None else (BatchId(follows), Epoch(1))
    return SavedImage(BatchId(batch), Epoch(1), before, None if outbox_from is None else BatchId(outbox_from))


def book_with(*images: SavedImage, marks: tuple[int, ...] = ()) -> CheckpointBook:
    book = CheckpointBook([A])
    for mark in marks:
        book.mark(BatchId(mark), durable=False)
    for one in images:
        book.stored(A, one)
    return book


def test_what_holds_the_changes_since_an_image_goes_with_it() -> None:
    book = book_with(image(1), image(2, follows=1), image(3, follows=2), image(4), marks=(1, 2, 3, 4))
    book.lost(A, (BatchId(1), Epoch(1)))
    assert [book.at(A, BatchId(batch)) for batch in (1, 2, 3)] == [None, None, None]
    assert book.last(A) == image(4)
    book.lost(A, (BatchId(1), Epoch(1)))
    assert book.last(A) == image(4), "hearing it twice changes nothing"


def test_changes_since_an_image_that_is_gone_are_not_safe() -> None:
    book = book_with(image(3, follows=2), marks=(3,))
    assert not book.has(A, BatchId(3))
    assert book.next_global({}, [A]) is None


def test_an_image_that_the_book_keeps_is_written_down_with_it() -> None:
    book = CheckpointBook([A])
    book.mark(BatchId(3), durable=True)
    kept = SavedImage(BatchId(3), Epoch(1), None, None, durable=True, contents=b"\x00small")
    book.stored(A, kept)
    book.make_global(BatchId(3))
    again = CheckpointBook.read([A], json.loads(json.dumps(book.written())))
    found = again.at(A, BatchId(3))
    assert found == kept
    assert found is not None
    assert found.contents == b"\x00small"


def test_a_chain_ends_at_a_whole_image() -> None:
    book = book_with(image(1), image(2, follows=1), image(3, follows=2), marks=(1, 2, 3))
    assert [one.batch for one in book.chain(A, image(3, follows=2))] == [1, 2, 3]


def test_an_uncertain_output_is_in_its_image_before_the_checkpoint_is_global() -> None:
    """Else its rows, which go out only after the checkpoint, would be nowhere once its node is lost."""
    for saved, whole in ((image(4), False), (image(4, outbox_from=4), False), (image(4, outbox_from=3), True)):
        book = book_with(saved, marks=(4,))
        assert book.next_global({A: BatchId(2)}, sure=[]) == (4 if whole else None)
        assert book.next_global({A: BatchId(4)}, sure=[]) == 4, "it is out: the image need not hold it"
        assert book.next_global({A: BatchId(2)}, sure=[A]) is None, "a sure output goes out before"
