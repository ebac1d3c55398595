"""Runs in one process under segment plans: what a lost node takes back, where it starts again, and the same rows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.examples import EXAMPLES
from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.recovery.segments import ONE_SEGMENT, Segments, segments_of
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import InProcess
from holdfast.runtime.blocks import block_groups, encode_blocks
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.io.logged_marks import ALL_PARTITIONS
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.program import Program
from holdfast.runtime.state import snapshot_files, snapshots
from holdfast.spark.planned_segments import read_segments

SCHEMA = {"n": "int64"}
LETTERS = "abcd"


def four() -> Application:
    """A source and three operators in a row, each of which adds up what it has seen."""

    def running_sum(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        total, found = sum(state["n"].to_pylist()), []
        for n in inputs[0]["n"].to_pylist():
            total += n
            found.append(total)
        return pa.table({"n": pa.array([total], pa.int64())}), pa.table({"n": pa.array(found, pa.int64())})

    app = Application("four")
    stream = app.source("a", schema=SCHEMA, parallelism=1)
    for name in LETTERS[1:]:
        stream = stream.apply(running_sum, schema=SCHEMA, state=SCHEMA, id=name, parallelism=1)
    stream.output()
    return app


def numbers(number: int) -> dict[str, pa.Table]:
    return {"a": pa.table({"n": [number, 2 * number, 3]})}


class Running:
    """The application, one node for each operator, under a segment plan."""

    def __init__(self, segments: Segments, intervals: dict[str, int], *, every: int = 3, directory: Path | None = None):
        self.seen: list[Observation] = []
        self.run = InProcess(
            four(),
            nodes=4,
            checkpoint_every=every,
            directory=directory,
            sinks={} if directory is None else {"d": ParquetSink(directory / "out")},
            recovery=RecoverySettings(segments=segments),
            intervals=intervals,
            emit=self.seen.append,
        )
        self.state = self.run._coordinator.state

    def line(self) -> list[int]:
        return [int(self.state.checkpoints.line[partition(letter)]) for letter in LETTERS]

    def kill_node_of(self, letter: str) -> tuple[str, dict[str, int]]:
        """Lose the node of an operator; return who else rolled back, and the batch that each started again from."""
        self.seen.clear()
        self.run._backend.lose_nodes(self.run.placement[partition(letter)])
        self.run._backend.add_nodes({NodeId(f"m-{letter}-{self.run.frontier}"): float("inf")})
        self.run.run()
        back = [name for one in self.seen if one.kind == "rolled-back" for name in one.fields["partitions"]]
        restored = {str(one.fields["partition"])[0]: one.fields["batch"] for one in self.seen if one.kind == "restored"}
        return "".join(sorted(name[0] for name in back)), restored


def partition(letter: str) -> PartitionId:
    return PartitionId(OperatorId(letter), 0)


def plan(anchors: str) -> Segments:
    return segments_of(Program(four()).topology, anchors) if anchors else ONE_SEGMENT


def rows_without_failure(count: int) -> list[int]:
    run = InProcess(four())
    for number in range(count):
        run.feed(numbers(number))
    return list(run.rows("d")["n"].to_pylist())


INTERVALS = {
    "": {},
    "abcd": {"a": 4, "b": 3, "c": 5, "d": 2},
    "c": {"a": 3, "c": 7},
}


@pytest.mark.parametrize("anchors", ["", "abcd", "c"], ids=["one segment", "n segments", "a chosen one"])
@pytest.mark.parametrize("lost", LETTERS)
def test_a_lost_node_takes_back_its_segment_alone(anchors: str, lost: str) -> None:
    running = Running(plan(anchors), INTERVALS[anchors], every=5)
    for number in range(12):
        running.run.feed(numbers(number))
    line = dict(zip(LETTERS, running.line(), strict=True))
    back, restored = running.kill_node_of(lost)
    segments = plan(anchors)
    mine = {one for one in LETTERS if segments.of(partition(one)) == segments.of(partition(lost))}
    upstream = set(LETTERS[: LETTERS.index(lost)])
    assert set(back) == mine & upstream, "senders in its own segment make its inputs again; nobody else does"
    assert set(restored) == {lost, *back}
    assert all(batch == line[name] for name, batch in restored.items()), "each at its own segment's checkpoint"
    for number in range(12, 14):
        running.run.feed(numbers(number))
    assert list(running.run.rows("d")["n"].to_pylist()) == rows_without_failure(14)


def test_segments_checkpoint_at_their_own_interval_and_outboxes_follow() -> None:
    running = Running(plan("c"), INTERVALS["c"], every=4)
    for number in range(10):
        running.run.feed(numbers(number))
    line = running.line()
    assert line[0] == line[1] > line[2] == line[3] >= 0
    running.run._coordinator.probe(trim_outboxes=True)
    host = running.run.hosts[running.run.placement[partition("b")]]
    assert host.oldest_output(partition("b")) == line[2] + 1, "back to the checkpoint of the other segment"
    records = [running.run.batch_log.record(BatchId(number)) for number in range(10)]
    names = {name for record in records if record is not None for name in record.marks}
    assert {"a"} <= names <= {"a", "c", ALL_PARTITIONS}


def test_every_node_at_once_starts_each_segment_at_its_own_checkpoint() -> None:
    running = Running(plan("c"), INTERVALS["c"], every=4)
    for number in range(10):
        running.run.feed(numbers(number))
    line = running.line()
    running.seen.clear()
    running.run._backend.lose_nodes(*sorted(running.run.hosts))
    running.run._backend.add_nodes({NodeId(f"m{number}"): float("inf") for number in range(4)})
    running.run.run()
    restored = {str(one.fields["partition"])[0]: one.fields["batch"] for one in running.seen if one.kind == "restored"}
    assert [restored[letter] for letter in LETTERS] == line
    assert list(running.run.rows("d")["n"].to_pylist()) == rows_without_failure(10)


@pytest.mark.parametrize("anchors", ["", "c", "bd"])
def test_a_driver_that_starts_again_may_have_another_plan(tmp_path: Path, anchors: str) -> None:
    running = Running(plan("c"), INTERVALS["c"], every=4, directory=tmp_path)
    for number in range(10):
        running.run.feed(numbers(number))
    before = running.line()
    again = Running(plan(anchors), {"a": 3, "b": 2, "c": 6, "d": 4}, every=4, directory=tmp_path)
    assert before[0] > before[2]
    for number in range(10, 20):
        again.run.feed(numbers(number))
    again.run.checkpoint()
    assert set(again.line()) == {19}
    assert not again.state.recovering
    assert list(again.run.rows("d")["n"].to_pylist()) == rows_without_failure(20)


def test_a_run_goes_on_from_snapshots_of_the_version_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That one wrote a header and a schema for every batch of a stored edge; new changes come on top of its bases."""

    def saved() -> bytes:
        files = [path for path in (tmp_path / "checkpoints").rglob("*") if path.is_file()]
        return b"".join(path.read_bytes() for path in sorted(files))

    with monkeypatch.context() as patch:
        patch.setattr(snapshots, "encode_outbox", encode_blocks)
        patch.setattr(snapshot_files, "outbox_groups", block_groups)
        running = Running(plan("c"), INTERVALS["c"], every=4, directory=tmp_path)
        for number in range(10):
            running.run.feed(numbers(number))
    assert saved().count(b"HFB2") > 3
    assert b"HFB3" not in saved()
    again = Running(plan("c"), INTERVALS["c"], every=4, directory=tmp_path)
    restored = [one.fields["batch"] for one in again.seen if one.kind == "restored"]
    assert min(restored) > 0, "none was taken for lost"
    assert len(restored) == 4
    for number in range(10, 16):
        again.run.feed(numbers(number))
    again.run.checkpoint()
    assert b"HFB3" in saved()
    assert list(again.run.rows("d")["n"].to_pylist()) == rows_without_failure(16)


@pytest.mark.parametrize("name", ["traffic", "hashtags", "word-count"])
def test_examples_give_the_same_rows_under_every_operator_lost_in_turn(name: str) -> None:
    example = EXAMPLES[name]
    topology = Program(example.application()).topology
    batches = list(example.batches(3, 2 * len(topology.operators) + 4, 40))
    anchors = [str(operator.id) for number, operator in enumerate(topology.operators) if number % 3 == 0]
    segments = segments_of(topology, anchors)
    intervals = {name: 2 + number % 3 for number, name in enumerate(segments.names)}
    plain = InProcess(example.application(), nodes=3)
    run = InProcess(
        example.application(), nodes=3, checkpoint_every=4, recovery=RecoverySettings(segments=segments),
        intervals=intervals,
    )  # fmt: skip
    for number, batch in enumerate(batches):
        plain.feed(batch)
        run.feed(batch)
        if number % 2 and number // 2 < len(topology.operators):
            lost = PartitionId(OperatorId(topology.operators[number // 2].id), 0)
            run._backend.lose_nodes(run.placement[lost])
            run._backend.add_nodes({NodeId(f"m{number}"): float("inf")})
    plain.close()
    run.close()
    for output in {str(p.operator) for p in plain.program.outputs}:
        assert run.rows(output).equals(plain.rows(output))


# -- frequencies within a segment --------------------------------------------------------------------------------------


def refined(anchors: str, frequency: dict[str, float]) -> Segments:
    """Read a plan with these frequencies, as `holdfast plan segments --refine --json` prints it."""
    document = {"anchors": ["a", *anchors], "frequency": frequency, "topology": None}
    found = read_segments(document, Program(four()).topology, "a plan")
    assert not found.lines, "all of it is executed"
    return found.segments


def saved_at(running: Running) -> dict[str, list[int]]:
    """Return the batches at which each operator has saved, of complete checkpoints and between them."""
    found: dict[str, list[int]] = {letter: [] for letter in LETTERS}
    for one in running.seen:
        if one.kind == "intermediate-snapshots":
            for name in one.fields["operators"]:
                found[name].append(one.fields["batch"])
        elif one.kind == "checkpoint":
            names = one.fields.get("segments")
            for letter in LETTERS:
                if names is None or running.state.segments.of(partition(letter)) in names:
                    found[letter].append(one.fields["batch"])
    return found


def test_each_operator_saves_at_its_own_frequency() -> None:
    segments = refined("", {"a": 0.4, "b": 0.4, "c": 0.2, "d": 0.1})
    running = Running(segments, {}, every=8)
    for number in range(25):
        running.run.feed(numbers(number))
    found = saved_at(running)
    assert found["d"] == [7, 15, 23], "its segment's checkpoint"
    assert found["c"] == [3, 7, 11, 15, 19, 23]
    assert found["a"] == found["b"] == [1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23]


def test_segments_have_multiples_of_their_own() -> None:
    segments = refined("c", {"a": 0.2, "b": 0.1, "c": 0.3, "d": 0.1})
    running = Running(segments, {"a": 4, "c": 6}, every=4)
    for number in range(13):
        running.run.feed(numbers(number))
    found = saved_at(running)
    assert [b - a for a, b in pairwise(found["a"])] == [2] * (len(found["a"]) - 1)
    assert [b - a for a, b in pairwise(found["c"])] == [2] * (len(found["c"]) - 1)
    assert set(found["b"]) < set(found["a"])
    assert set(found["d"]) < set(found["c"])


@pytest.mark.parametrize(
    ("lost", "wanted"),
    [("a", {"a": 13}), ("b", {"b": 13}), ("c", {"a": 11, "b": 11, "c": 11}), ("d", dict.fromkeys(LETTERS, 7))],
)
def test_a_lost_operator_starts_from_its_own_last_snapshot_and_its_senders_with_it(
    lost: str, wanted: dict[str, int]
) -> None:
    running = Running(refined("", {"a": 0.4, "b": 0.4, "c": 0.2, "d": 0.1}), {}, every=8)
    for number in range(15):
        running.run.feed(numbers(number))
    _, restored = running.kill_node_of(lost)
    assert restored == wanted, "of b's inputs after batch 13 its sender still has all"
    for number in range(15, 20):
        running.run.feed(numbers(number))
    assert list(running.run.rows("d")["n"].to_pylist()) == rows_without_failure(20)


def test_operators_lost_one_after_the_other_between_checkpoints_give_the_same_rows() -> None:
    running = Running(refined("c", {"a": 0.4, "b": 0.1, "c": 0.4, "d": 0.1}), {"a": 8, "c": 8}, every=8)
    for number in range(40):
        running.run.feed(numbers(number))
        if number % 4 == 3:
            running.kill_node_of(LETTERS[number // 4 % 4])
    assert list(running.run.rows("d")["n"].to_pylist()) == rows_without_failure(40)


def test_a_driver_that_starts_again_starts_from_the_checkpoint(tmp_path: Path) -> None:
    segments = refined("", {"a": 0.4, "b": 0.4, "c": 0.2, "d": 0.1})
    running = Running(segments, {}, every=8, directory=tmp_path)
    for number in range(15):
        running.run.feed(numbers(number))
    again = Running(segments, {}, every=8, directory=tmp_path)
    restored = {str(one.fields["partition"])[0]: one.fields["batch"] for one in again.seen if one.kind == "restored"}
    assert restored == dict.fromkeys(LETTERS, 7)
    for number in range(15, 20):
        again.run.feed(numbers(number))
    assert list(again.run.rows("d")["n"].to_pylist()) == rows_without_failure(20)
