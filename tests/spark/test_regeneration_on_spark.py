"""What is kept for a parked query is dropped on a cluster, and the query comes back exact: regenerated on its node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from holdfast.runtime.messages import OperatorFailed
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings
from spark.test_parking import as_numbers, poisoned

ROWS = 30_000
"""Of a batch: 240 kB, twice in the outbox of the source."""


@pytest.mark.cluster
@pytest.mark.parametrize("exchange", ["resident", "shuffle"])
def test_a_parked_query_is_regenerated(unhurried: SparkSession, tmp_path: Path, exchange: str) -> None:
    cause = tmp_path / "cause"
    cause.touch()
    events: list[Any] = []
    settings = replace(
        Settings.read(unhurried),
        exchange=exchange,
        errors_retries=0,
        errors_backoff=0.1,
        checkpoint_batches=2,
        recovery_waiting_mb=1,
    )
    run = SparkRun(poisoned(cause, "raises"), unhurried, tmp_path / "run", settings=settings, emit=events.append)
    whole: list[int] = []
    try:
        for batch in range(10):
            mine = list(range(batch * ROWS, (batch + 1) * ROWS))
            whole += mine
            run.log({"s": pa.table({"n": mine})})
            try:
                run.run()
            except OperatorFailed:
                assert run.coordinator.state.parked
        kinds = [seen.kind for seen in events]
        assert "kept-no-more" in kinds
        state = run.coordinator.state
        assert state.dropped
        kept = state.keep_from()
        for p in state.dropped:
            needed = state.partitions[p].frontier + 1
            assert all(kept[s] > needed for s in state.graph.senders(p)), "its senders keep nothing from its batch on"
        assert as_numbers(run.rows("good")) == whole, "the highest query is complete"
        cause.unlink()
        for query in list(state.parked):
            run.resume(str(query))
        run.coordinator.step(0.1)
        run.run()
        assert as_numbers(run.rows("bad")) == whole, "every row once"
        run.checkpoint()
        run.run()
        assert not {"node-lost", "node-silent", "rolled-back"} & {seen.kind for seen in events}
    finally:
        run.close()
