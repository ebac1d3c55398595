"""A segment plan on a real cluster: a killed node takes back nobody outside of the segments that lost something."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from holdfast import Application
from holdfast.examples import EXAMPLES
from holdfast.ids import OperatorId, PartitionId
from holdfast.recovery.executed_plan import SegmentInterval
from holdfast.recovery.segments import segments_of
from holdfast.runtime import run_in_process
from holdfast.spark.pinned_jobs import executors_of
from holdfast.spark.planned_segments import PlannedSegments
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster


@pytest.fixture
def extra_node(spark: SparkSession, cluster: EmbeddedCluster) -> Iterator[None]:
    """A fourth node, for tests that take one away: the suite's cluster has three."""
    before = {one.id for one in executors_of(spark.sparkContext)}
    node = cluster.add_node()
    deadline = time.monotonic() + 300
    while not {one.id for one in executors_of(spark.sparkContext)} - before:
        assert time.monotonic() < deadline, "the fourth node did not come"
        time.sleep(0.1)
    yield
    if len(cluster.nodes) > 3:
        cluster.kill_node(node.id)


def stamped() -> Application:
    """A source, an operator that gives other rows whenever it runs, and two after it that add up what they see."""

    def stamp(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        return state, pa.table({"n": pa.array([int.from_bytes(os.urandom(4), "big")], pa.int64())})

    def running_sum(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        total, found = sum(state["n"].to_pylist()), []
        for n in inputs[0]["n"].to_pylist():
            total += n
            found.append(total)
        return pa.table({"n": pa.array([total], pa.int64())}), pa.table({"n": pa.array(found, pa.int64())})

    app, schema = Application("stamped"), {"n": "int64"}
    stream = app.source("a", schema=schema, parallelism=1)
    stream = stream.apply(stamp, schema=schema, state=schema, deterministic=False, id="s", parallelism=1).output()
    for name in "cd":
        stream = stream.apply(running_sum, schema=schema, state=schema, id=name, parallelism=1)
    stream.output()
    return app


@pytest.mark.cluster
@pytest.mark.usefixtures("extra_node")
def test_the_segment_behind_a_held_boundary_goes_on_while_what_is_not_deterministic_rolls_back(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    segments = segments_of(stamped().topology(), ["c"])
    intervals = tuple(SegmentInterval(name, 3) for name in segments.names)
    events: list[Any] = []
    lines: list[str] = []
    run = SparkRun(
        stamped(),
        spark,
        tmp_path / "run",
        settings=replace(Settings.read(spark), exchange="resident", boundaries="held"),
        nodes=4,
        emit=events.append,
        log=lines.append,
        segments=PlannedSegments(segments, intervals),
    )
    assert any("blocks of s wait for a checkpoint of their segment" in line for line in lines)
    state = run.coordinator.state
    a, s, c, d = (PartitionId(OperatorId(name), 0) for name in "ascd")
    deadline = time.monotonic() + 300

    def feed(until: Callable[[], bool], why: str) -> None:
        """Log batches, one whenever those before the boundary have the last, until something holds."""
        while not until():
            assert time.monotonic() < deadline, why
            if state.partitions[a].frontier >= run.logged and state.partitions[s].frontier >= run.logged:
                run.log({"a": pa.table({"n": [1]})})
            run.coordinator.advance()
            assert state.partitions[c].frontier <= state.checkpoints.line[s], "a block crossed before its checkpoint"

    feed(lambda: state.partitions[d].frontier >= 3, "nothing crosses the boundary")
    feed(lambda: state.partitions[s].frontier > state.checkpoints.line[s], "nothing waits at the boundary")
    victim = state.placement[s]
    here = {p for p, at in state.placement.items() if at == victim}
    behind = {c, d} - here
    assert behind, "no node has a part of the segment after the boundary alone"
    (node,) = [one.id for one in cluster.nodes.values() if one.host == victim.rpartition("-")[0]]
    before = len(events)
    cluster.kill_node(node)
    while victim in state.nodes:
        assert time.monotonic() < deadline, "the loss was not noticed"
        run.coordinator.advance()
    gone = state.partitions[d].frontier
    feed(lambda: state.partitions[d].frontier > gone, "nothing crosses after the loss")
    run.checkpoint()
    stamps, sums = run.rows("s")["n"].to_pylist(), run.rows("d")["n"].to_pylist()
    count = run.logged + 1
    run.close()
    later = [one for one in events[before:] if one.kind == "state" and one.fields["before"] == "running"]
    left = {one.fields["partition"] for one in later if one.fields["after"] in ("lost", "restoring")}
    assert str(s) in left
    assert not left & {str(p) for p in behind}, "what is behind the boundary was running all the time"
    assert len(stamps) == count
    assert sums == list(itertools.accumulate(itertools.accumulate(stamps)))


@pytest.mark.cluster
@pytest.mark.usefixtures("extra_node")
def test_a_killed_node_takes_back_nobody_where_every_operator_is_a_segment(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    example = EXAMPLES["traffic"]
    given = list(example.batches(5, 13, 120))
    topology = example.application().topology()
    segments = segments_of(topology, [str(operator.id) for operator in topology.operators])
    intervals = tuple(SegmentInterval(name, 2 + number) for number, name in enumerate(segments.names))
    events: list[Any] = []
    lines: list[str] = []
    run = SparkRun(
        example.application(),
        spark,
        tmp_path / "run",
        settings=replace(Settings.read(spark), exchange="resident"),
        checkpoint_every=4,
        nodes=4,
        emit=events.append,
        log=lines.append,
        segments=PlannedSegments(segments, intervals),
    )
    for batch in given[:9]:
        run.log(batch)
        run.run()
    state = run.coordinator.state
    assert "5 segments checkpoint at intervals of their own" in lines
    deadline = time.monotonic() + 300
    while len(set(state.checkpoints.line.values())) < 2 or min(state.checkpoints.line.values()) < 0:
        assert time.monotonic() < deadline, "the segments have no checkpoints of their own"
        run.coordinator.advance()
    victim = sorted(state.placement.values())[-1]
    here = {str(p) for p, at in state.placement.items() if at == victim}
    (node,) = [one.id for one in cluster.nodes.values() if one.host == victim.rpartition("-")[0]]
    before = len(events)
    cluster.kill_node(node)
    while victim in state.nodes:
        assert time.monotonic() < deadline, "the loss was not noticed"
        run.coordinator.advance()
    for batch in given[9:]:
        run.log(batch)
        run.run()
    run.log({}, last=True)
    run.run()
    run.checkpoint()
    found = {name: sorted(map(str, run.rows(name).to_pylist())) for name in run.program.output_names.values()}
    line = set(state.checkpoints.line.values())
    run.close()
    later = events[before:]
    assert {one.fields["partition"] for one in later if one.kind == "restored"} == here
    assert not [one for one in later if one.kind == "rolled-back"]
    assert line == {len(given)}, "a checkpoint that was ordered is of all segments"
    assert any(one.fields.get("segments") for one in events if one.kind == "checkpoint")
    wanted = run_in_process(example.application(), given)
    assert found == {name: sorted(map(str, wanted.rows(name).to_pylist())) for name in found}
