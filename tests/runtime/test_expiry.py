"""Late rows, dead letters and outputs go after a time, and never before durable checkpoints cover them."""

from __future__ import annotations

import pyarrow as pa

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.coordinator.expiry import MOST_AT_ONCE, SHORTEST_SECONDS, Age, Expiry, expired, expiry_of
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import MemorySink, OutputKey
from holdfast.storage.memory import MemoryStorage
from holdfast.storage.storage import Storage

DAY = 86400.0
QUERY = PartitionId(OperatorId("counts"), 0)


def publish(storage: Storage, *batches: int, revision: int = 0) -> ParquetSink:
    sink = ParquetSink(storage)
    for batch in batches:
        sink.publish(OutputKey(QUERY, BatchId(batch), revision), pa.table({"n": [batch]}), Epoch(1))
    return sink


def batches(storage: Storage) -> list[int]:
    return sorted(key.batch for key in ParquetSink(storage).outputs())


def test_what_was_covered_long_enough_ago_has_expired() -> None:
    ages = [Age(BatchId(10), 100.0), Age(BatchId(20), 200.0), Age(BatchId(30), 300.0)]
    assert expired(ages, 250.0, 100.0) == 10
    assert expired(ages, 1000.0, 100.0) == 30
    assert expired(ages, 150.0, 100.0) is None
    assert [Age.read(one.name) for one in ages] == ages


def test_each_kind_goes_after_its_own_time_and_later_batches_stay() -> None:
    run, out, times = MemoryStorage(), MemoryStorage(), [0.0]
    late, dead = run.within("late/counts/words"), run.within("dead-letters/map")
    for storage in (late, dead, out):
        publish(storage, *range(10))
    sinks = [ParquetSink(out), MemorySink()]
    expiry = expiry_of(run, sinks, aside=DAY, outputs=10 * DAY, now=lambda: times[0])
    expiry.covered(BatchId(4))
    times[0] += 0.9 * DAY
    expiry.covered(BatchId(6))
    assert [len(batches(storage)) for storage in (late, dead, out)] == [10, 10, 10]
    times[0] += 0.2 * DAY
    expiry.covered(BatchId(8))
    assert batches(late) == batches(dead) == [5, 6, 7, 8, 9], "covered a day ago: up to 4"
    assert len(batches(out)) == 10
    # Another driver: the ages are in the storage.
    times[0] += 9 * DAY
    expiry_of(run, sinks, aside=DAY, outputs=10 * DAY, now=lambda: times[0]).covered(BatchId(9))
    assert batches(late) == [9], "what has just been covered stays a day"
    assert batches(out) == [5, 6, 7, 8, 9]


def test_a_clock_that_leaps_ahead_for_a_while_deletes_nothing() -> None:
    """A machine that resumed with a wrong clock deleted all outputs before the clock was set right."""
    run, out, times, since, lines = MemoryStorage(), MemoryStorage(), [1e9], [0.0], list[str]()
    sink = publish(out, *range(4))

    def pass_by(seconds: float) -> None:
        times[0] += seconds
        since[0] += seconds

    expiry = expiry_of(
        run, [sink], aside=None, outputs=DAY, now=lambda: times[0], clock=lambda: since[0], log=lines.append
    )
    expiry.covered(BatchId(1))
    pass_by(2 * SHORTEST_SECONDS)
    times[0] += 365 * DAY
    for _ in range(3):
        expiry.covered(BatchId(2))
        pass_by(SHORTEST_SECONDS)
    assert lines == ["the clock has leapt ahead: what expires is deleted later"]
    times[0] -= 365 * DAY
    expiry.covered(BatchId(3))
    assert batches(out) == [0, 1, 2, 3]
    assert all((age := Age.read(name)) is not None and age.at < 1e9 + DAY for name in run.list("ages/"))
    pass_by(1.2 * DAY)
    expiry.covered(BatchId(3))
    assert batches(out) == [], "by the right clock they are old enough"
    # One that was wrong until now is believed after a while.
    other = publish(out, 7)
    behind = expiry_of(run, [other], aside=None, outputs=DAY, now=lambda: times[0], clock=lambda: since[0])
    behind.covered(BatchId(7))
    times[0] += 30 * DAY
    behind.covered(BatchId(7))
    assert batches(out) == [7]
    pass_by(0.1 * DAY)
    behind.covered(BatchId(7))
    assert batches(out) == []


def test_objects_of_others_among_the_ages_end_no_run() -> None:
    run, times = MemoryStorage(), [0.0]
    publish(run.within("late/counts/words"), *range(10))
    for name in ("ages/desktop.ini", "ages/000000000004-12.tmp", "ages/four-nan"):
        run.create(name, b"")
    expiry = expiry_of(run, [], aside=DAY, outputs=None, now=lambda: times[0])
    expiry.covered(BatchId(8))
    times[0] += 2 * DAY
    expiry.covered(BatchId(9))
    assert batches(run.within("late/counts/words")) == [9]
    assert "ages/desktop.ini" in run.list("ages/")


def test_nothing_goes_that_a_recovery_may_make_again() -> None:
    """The checkpoints were lost, and the run has gone back to an earlier one: its batches come again."""
    run, times = MemoryStorage(), [0.0]
    publish(run.within("late/counts/words"), *range(10))
    expiry = expiry_of(run, [], aside=DAY, outputs=None, now=lambda: times[0])
    expiry.covered(BatchId(8))
    times[0] += 2 * DAY
    expiry.covered(BatchId(3))
    assert batches(run.within("late/counts/words")) == [4, 5, 6, 7, 8, 9]


def test_marks_of_ages_and_deletions_at_once_have_a_bound() -> None:
    run, times = MemoryStorage(), [0.0]
    asked: list[int] = []
    expiry = Expiry(run, [(DAY, lambda through, most: asked.append(most))], now=lambda: times[0])
    for batch in range(2000):
        times[0] += SHORTEST_SECONDS
        expiry.covered(BatchId(batch))
    assert len(run.list("ages/")) <= 23
    assert set(asked) == {MOST_AT_ONCE}
    many = MemoryStorage()
    sink = publish(many, *range(30))
    assert sink.expire(BatchId(25), 10) == 10
    assert len(batches(many)) == 20


def test_only_the_runs_own_files_go() -> None:
    out = MemoryStorage()
    publish(out, 1, 2)
    publish(out, 1, revision=1)
    publish(out.within("nested"), 1)
    out.create("notes.txt", b"mine")
    out.create("part-00000.parquet", b"mine too")
    out.create("_holdfast/run.json", b'{"run": "r"}')
    ParquetSink(out).expire(BatchId(1), 100)
    assert batches(out) == [2]
    assert len(out.list("nested/")) == 1
    mine = {"_holdfast/run.json", "notes.txt", "part-00000.parquet", *out.list("nested/")}
    assert set(out.list()) == {"counts-00000-0000000002-g0-r0.parquet", *mine}


def test_without_a_time_nothing_goes_and_nothing_is_noted() -> None:
    run = MemoryStorage()
    expiry_of(run, [], aside=None, outputs=None, now=lambda: 1e9).covered(BatchId(5))
    assert run.list() == []


def test_storage_that_is_away_is_asked_again() -> None:
    class Away(MemoryStorage):
        away = True

        def list(self, prefix: str = "", *, after: str = "") -> list[str]:
            if self.away:
                raise OSError("away")
            return super().list(prefix, after=after)

    run, lines, times = Away(), list[str](), [1e6]
    expiry = Expiry(run, [(DAY, lambda through, most: None)], now=lambda: times[0], log=lines.append)
    expiry.covered(BatchId(5))
    assert lines == ["what has expired is deleted later: away"]
    run.away = False
    times[0] += DAY
    expiry.covered(BatchId(5))
    assert run.list("ages/")
