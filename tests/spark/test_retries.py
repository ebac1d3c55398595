"""Spark's retries are harmless: outputs on a real cluster stay those of one process.

Tasks that fail, workers that die, attempts in pairs, cancelled and repeated cycles, and late writes of an old epoch
come at random points of a run.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle

from holdfast.examples.registry import EXAMPLES
from holdfast.runtime import run_in_process
from holdfast.spark import backend
from holdfast.spark.backend import SparkBackend
from holdfast.spark.run import SparkRun
from holdfast.spark.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.cluster

# Workers cannot import the tests: what is defined here travels by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BATCHES, ROWS, SEED = 18, 120, 3
MOST_CANCELLED = 4
KINDS = ("raises", "dies", "twice", "pair", "none", "none")


def faulty_level(shared: Any, data: Any, level: int, slot: int, blocks: list[bytes]) -> Any:
    """Do a level, with a fault that is drawn from cycle, level and slot; a task that is tried again has none."""
    import os

    from pyspark import TaskContext

    from holdfast.spark.worker_task import read_job, run_level

    job = read_job(data)
    context = TaskContext.get()
    first = context is not None and context.attemptNumber() == 0
    kind = Random(f"{SEED} {job.desired.number} {level} {slot}").choice(KINDS) if first else "none"
    if kind == "dies":
        list(run_level(shared.value, job, level, slot, blocks))
        os._exit(1)
    if kind == "raises":
        list(run_level(shared.value, job, level, slot, blocks))
        raise RuntimeError("injected, after the work was done")
    if kind == "twice":
        list(run_level(shared.value, job, level, slot, blocks))
    if kind == "pair":
        child = os.fork()
        if child == 0:
            try:
                list(run_level(shared.value, job, level, slot, blocks))
            finally:
                os._exit(0)
        found = list(run_level(shared.value, job, level, slot, blocks))
        os.waitpid(child, 0)
        return found
    return run_level(shared.value, job, level, slot, blocks)


def as_rows(rows: Any) -> list[str]:
    return sorted(map(str, rows.to_pylist()))


def test_retries_and_cancelled_cycles_change_nothing(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = EXAMPLES["traffic"]
    given = list(example.batches(SEED, BATCHES, ROWS))
    draw = Random(SEED)
    seen: Counter[str] = Counter()
    expected = run_in_process(example.application(), given, close=False)
    outputs = dict.fromkeys(partition.operator for partition in expected.program.outputs)
    sinks: dict[str, object] = {name: str(tmp_path / "out" / name) for name in outputs}
    chosen = replace(Settings.read(spark), exchange="shuffle")
    run = SparkRun(example.application(), spark, tmp_path / "run", sinks=sinks, checkpoint_every=5, settings=chosen)
    assert isinstance(run.backend, SparkBackend)
    job_reports = run.backend._job_reports

    def now_and_then() -> list[Any]:
        job = run.backend._job
        if job is not None and not job.ended and seen["cancelled"] < MOST_CANCELLED and draw.random() < 0.2:
            seen["cancelled"] += 1
            run.backend._cancel("injected: the cycle is cancelled")
        return list(job_reports())

    monkeypatch.setattr(backend, "_level", faulty_level)
    monkeypatch.setattr(run.backend, "_job_reports", now_and_then)
    for number, batch in enumerate(given):
        run.log(batch)
        if number % 3 == 2:
            run.run()
    run.run()
    run.close()
    for name in outputs:
        assert as_rows(run.rows(name)) == as_rows(expected.rows(name)), name
        plain = pq.read_table(tmp_path / "out" / name)
        assert as_rows(plain) == as_rows(expected.rows(name)), (
            "other readers see nothing of attempts that did not count"
        )
        assert not list((tmp_path / "out" / name).glob("_holdfast/starts/*"))
    assert seen["cancelled"] > 0, "cycles were cancelled"
    kinds = {
        Random(f"{SEED} {cycle} {level} {slot}").choice(KINDS)
        for cycle in range(1, 9)
        for level in range(2)
        for slot in range(3)
    }
    assert kinds == set(KINDS), "every kind of fault was drawn"


def test_an_old_epoch_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A driver that another has followed finds its epoch over, and its late writes refused."""
    from holdfast.runtime.state.store import StaleEpoch

    example = EXAMPLES["word-count"]
    given = list(example.batches(SEED, 4, 50))
    sinks: dict[str, object] = {"counts": str(tmp_path / "out")}
    old = SparkRun(example.application(), spark, tmp_path / "run", sinks=sinks, checkpoint_every=100)
    old.log(given[0])
    old.run()
    new = SparkRun(example.application(), spark, tmp_path / "run", sinks=sinks, checkpoint_every=100, take_over=True)
    new.log(given[1])
    new.run()
    with pytest.raises(StaleEpoch):
        old.checkpoint()
    new.close()
    old.close()
