"""A segment plan on a real cluster: a killed node takes back nobody outside of the segments that lost something."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.examples import EXAMPLES
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
