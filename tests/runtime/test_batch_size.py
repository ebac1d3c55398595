"""How many bytes the next batch of files takes: from what was processed, within bounds."""

from holdfast.ids import BatchId
from holdfast.runtime.io.batch_size import FIRST_BYTES, LEAST_BYTES, BatchSize


def test_a_batch_takes_what_is_processed_in_the_target_time() -> None:
    size = BatchSize(seconds=2.0, most_bytes=64 << 20)
    assert size.limit == FIRST_BYTES
    size.logged(BatchId(0), 8 << 20, 10.0)
    size.completed(BatchId(-1), 11.0)
    assert size.limit == FIRST_BYTES, "nothing is completed"
    size.completed(BatchId(0), 12.0)
    assert size.limit == 8 << 20, "4 MiB a second, for 2 seconds"
    size.logged(BatchId(1), 8 << 20, 12.0)
    size.completed(BatchId(1), 12.5)
    assert size.limit == 20 << 20, "half of 16 and half of 4 MiB a second"


def test_the_size_has_bounds_and_little_says_nothing() -> None:
    size = BatchSize(seconds=1.0, most_bytes=10 << 20)
    size.logged(BatchId(0), 100, 0.0)
    size.completed(BatchId(0), 50.0)
    assert size.limit == FIRST_BYTES
    size.logged(BatchId(1), 8 << 20, 50.0)
    size.completed(BatchId(1), 50.001)
    assert size.limit == 10 << 20
    for number in range(2, 20):
        size.logged(BatchId(number), LEAST_BYTES, 100.0 * number)
        size.completed(BatchId(number), 100.0 * number + 90)
    assert size.limit == LEAST_BYTES
