"""Nodes die and the durable folder is gone: what is restored comes from peers, and outputs are exact."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.ids import OperatorId, PartitionId
from holdfast.runtime import run_in_process
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.spark.pinned_jobs import executors_of
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from spark.test_run import OUTPUTS, as_rows, batches, traffic, until_safe

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster


def test_a_node_dies_with_the_durable_folder_renamed_away(
    spark: SparkSession, cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    added = cluster.add_node()
    deadline = time.monotonic() + 300
    while added.host not in {one.host for one in executors_of(spark.sparkContext)}:
        assert time.monotonic() < deadline, "the new node did not come"
        time.sleep(0.1)
    seen: list[Observation] = []
    # Every checkpoint is durable: all that is restored has a copy in the folder, and none comes from there.
    chosen = replace(Settings.read(spark), durable_every=1)
    run = SparkRun(traffic(), spark, tmp_path / "run", checkpoint_every=3, settings=chosen, emit=seen.append)
    given = list(batches(20))
    for batch in given[:12]:
        run.log(batch)
    run.run()
    until_safe(run)
    assert run.coordinator.state.checkpoints.durable_batch >= 0
    folder = tmp_path / "run" / "checkpoints"
    assert any(folder.rglob("*-d")), "the folder has durable snapshots"
    folder.rename(tmp_path / "away")
    killed_at = len(seen)
    lost = run.coordinator.state.placement[PartitionId(OperatorId("speeds"), 0)]
    cluster.kill_node(next(one.id for one in cluster.nodes.values() if str(lost).startswith(f"{one.host}-")))
    for batch in given[12:]:
        run.log(batch)
    run.log({}, last=True)
    run.run()
    expected = run_in_process(traffic(), batches(20))
    for name in OUTPUTS:
        assert as_rows(run.rows(name)) == as_rows(expected.rows(name))
    restored = [one.fields for one in seen[killed_at:] if one.kind == "restored" and "bytes_from_peers" in one.fields]
    assert sum(one["bytes_from_peers"] + one["bytes_from_node"] for one in restored) > 0
    assert sum(one["bytes_from_folder"] for one in restored) == 0
    fetched = [one for one in restored if one["bytes_from_peers"] > 0]
    assert fetched, "state came over the network"
    assert all(one["predicted_seconds"] > 0 and one["fetch_seconds"] > 0 for one in fetched)
    chosen_codes = [one.fields for one in seen if one.kind == "code-changed"]
    assert chosen_codes, "agents say which code they have chosen"
    assert all(one["parity"] >= 1 and 0 < one["success"] <= 1 for one in chosen_codes)
    profile = run.coordinator.measuring.profile().fragments
    assert profile.bytes_from_peers >= sum(one["bytes_from_peers"] for one in fetched)
    assert profile.restores >= 1
    run.close()
