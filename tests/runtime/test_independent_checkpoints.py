"""Runs in one process in which a query waits: the others checkpoint and trim without it, and it comes back exact."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime.in_process import InProcess
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import OutputKey
from runtime.test_parking import NOW, Trouble, found, numbers, two_queries


def line_of(running: InProcess) -> dict[str, int]:
    """Return the batch of every operator's checkpoint; all have one partition."""
    return {p.operator: batch for p, batch in running._coordinator.state.checkpoints.line.items()}


def run_in(directory: Path, trouble: Trouble, **sinks: object) -> InProcess:
    given = {name: ParquetSink(directory / "out" / name) for name in ("good", "after")}
    return InProcess(
        two_queries(trouble), directory=directory, errors=NOW, nodes=2, checkpoint_every=2, sinks={**given, **sinks}
    )


def test_others_checkpoint_and_trim_while_a_query_is_parked(tmp_path: Path) -> None:
    trouble = Trouble()
    running = run_in(tmp_path, trouble)
    for number in range(12):
        running.feed(numbers(13 if number == 5 else 100 + number))
    assert running.parked
    line = line_of(running)
    assert line["s"] == line["good"] >= 9
    assert line["bad"] == line["after"] == 4, "where they stand: they saved there, and keep nobody back"
    host = running.hosts[running.placement[PartitionId(OperatorId("good"), 0)]]
    running._coordinator.probe(trim_outboxes=True)
    assert host.oldest_output(PartitionId(OperatorId("good"), 0)) >= line["good"], "it keeps nothing for the parked one"


def test_a_driver_that_starts_again_goes_on_from_the_checkpoint_of_each_set(tmp_path: Path) -> None:
    trouble = Trouble()
    running = run_in(tmp_path, trouble)
    for number in range(12):
        running.feed(numbers(13 if number == 5 else 100 + number))
    before = line_of(running)
    assert before["good"] > before["after"]
    again = run_in(tmp_path, trouble)
    assert line_of(again) == before
    assert again.parked
    again.feed(numbers(200))
    trouble.on = False
    again.resume("after")
    assert found(again, "after") == found(again, "good") == [*(100 + n if n != 5 else 13 for n in range(12)), 200]
    again.feed(numbers(201))
    again.feed(numbers(202))
    again.checkpoint()
    assert set(line_of(again).values()) == {14}


class Refusing:
    """A Parquet sink that refuses rows for a while."""

    grouped = False

    def __init__(self, directory: Path) -> None:
        self.refuses = False
        self._sink = ParquetSink(directory)

    def __getattr__(self, name: str) -> object:
        return getattr(self._sink, name)

    def publish(self, key: OutputKey, rows: pa.Table, epoch: int) -> None:
        if self.refuses:
            raise OSError("no room")
        self._sink.publish(key, rows, epoch)  # type: ignore[arg-type]

    def stager(self, start: str) -> None:
        """Nodes write nothing for it."""


def test_rows_of_a_failing_sink_are_in_snapshots_and_a_restart_publishes_them(tmp_path: Path) -> None:
    """The checkpoint of its partition moves: its senders need keep nothing, and what is not out is not lost."""
    trouble = Trouble()
    trouble.on = False
    sink = Refusing(tmp_path / "out" / "after")
    running = run_in(tmp_path, trouble, after=sink)
    for number in range(12):
        sink.refuses = number >= 5
        running.feed(numbers(number))
    assert running.parked
    state = running._coordinator.state
    after = PartitionId(OperatorId("after"), 0)
    assert state.published[after] == BatchId(4)
    assert state.checkpoints.line[after] >= 5
    sink.refuses = False
    again = run_in(tmp_path, trouble, after=sink)
    assert again._coordinator.state.published[after] == 4
    again.resume("after")
    assert sorted(again.rows("good")["n"].to_pylist()) == list(range(12))
    assert sorted(ParquetSink(tmp_path / "out" / "after").rows()["n"].to_pylist()) == list(range(12))  # type: ignore[index]
