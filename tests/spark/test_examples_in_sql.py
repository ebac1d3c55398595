"""Every example gives, row for row, what Spark SQL says of its whole input at once: in process, and on four nodes.

Inputs are messy: see messy_inputs. Late rows are held against SQL too.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from holdfast.examples import EXAMPLES
from holdfast.runtime import run_in_process
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.spark.pinned_jobs import executors_of
from holdfast.spark.run import SparkRun
from spark.messy_inputs import messy

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from holdfast.spark.cluster import EmbeddedCluster

pytestmark = pytest.mark.cluster

SEED = 5


@dataclass(frozen=True)
class Expected:
    """What SQL says, as tables."""

    batches: list[dict[str, pa.Table]]
    rows: Mapping[str, pa.Table]
    late: Mapping[tuple[str, str], pa.Table]
    in_order: frozenset[str]


@pytest.fixture(scope="module")
def answers(spark: SparkSession) -> Iterator[dict[str, Expected]]:
    """What SQL says of each example, computed when the first test asks; plainly, for the inputs are small."""
    known: dict[str, Expected] = {}
    settings = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    before = {name: spark.conf.get(name) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    yield known
    spark.catalog.clearCache()
    for name, value in before.items():
        spark.conf.set(name, value)


def expected(spark: SparkSession, name: str, known: dict[str, Expected]) -> Expected:
    from holdfast_lab.sql_answers import answer

    if name not in known:
        batches = messy(name, SEED)
        said = answer(spark, name, batches)
        rows = {output: frame.toArrow() for output, frame in said.rows.items()}
        late = {place: frame.toArrow() for place, frame in said.late.items()}
        known[name] = Expected(batches, rows, late, said.in_order)
        assert all(table.num_rows > 20 for table in rows.values()), "an empty answer proves nothing"
        for table in late.values():
            assert set(table["late_reason"].to_pylist()) == {"late", "no event time"}
    return known[name]


@pytest.fixture(scope="module")
def four_nodes(spark: SparkSession, cluster: EmbeddedCluster) -> Iterator[None]:
    """One node more than the suite's cluster has, for these tests."""
    node = cluster.add_node()
    deadline = time.monotonic() + 300
    while len(executors_of(spark.sparkContext)) < 4:
        assert time.monotonic() < deadline, "the fourth node did not come"
        time.sleep(0.1)
    yield
    cluster.kill_node(node.id)


@pytest.mark.parametrize("name", EXAMPLES)
def test_in_process(name: str, spark: SparkSession, answers: dict[str, Expected]) -> None:
    wanted = expected(spark, name, answers)
    done = run_in_process(EXAMPLES[name].application(), wanted.batches, nodes=4)
    for output, rows in wanted.rows.items():
        assert_same(done.rows(output), rows, output in wanted.in_order, f"{name} {output}")
    for (operator, feed), rows in wanted.late.items():
        kept = done.late(operator, feed)
        assert kept is not None
        assert_same(kept, rows, False, f"{name} {operator} late")
    counted = Counter[str]()
    for partition, measures in done.measures().items():
        counted[partition.operator] += measures.late_rows
    for operator in EXAMPLES[name].application().steps:
        many = sum(rows.num_rows for (at, _), rows in wanted.late.items() if at == operator)
        assert counted[operator] == many, f"late rows of {operator}"


@pytest.mark.usefixtures("four_nodes")
@pytest.mark.parametrize("name", EXAMPLES)
def test_on_four_nodes(name: str, spark: SparkSession, answers: dict[str, Expected], tmp_path: Path) -> None:
    wanted = expected(spark, name, answers)
    files: dict[str, object] = {output: str(tmp_path / "out" / output) for output in wanted.rows}
    run = SparkRun(EXAMPLES[name].application(), spark, tmp_path / "run", sinks=files, checkpoint_every=6)
    for batch in wanted.batches:
        run.log(batch)
    run.log({}, last=True)
    run.run()
    for output, rows in wanted.rows.items():
        assert_same(run.rows(output), rows, output in wanted.in_order, f"{name} {output}")
    for (operator, feed), rows in wanted.late.items():
        kept = ParquetSink(tmp_path / "run" / "late" / operator / feed).rows()
        assert kept is not None
        assert_same(kept, rows, False, f"{name} {operator} late")
    run.close()


def assert_same(found: pa.Table, wanted: pa.Table, in_order: bool, what: str) -> None:
    """Demand the same columns and rows: in one order, or as often each."""
    assert sorted(found.column_names) == sorted(wanted.column_names), what
    names = sorted(wanted.column_names)
    plain = [_plain(table.select(names)) for table in (found, wanted)]
    if not in_order:
        plain = [table.sort_by([(name, "ascending") for name in names]) for table in plain]
    if not plain[0].equals(plain[1]):
        bags = [Counter(map(tuple, (row.values() for row in table.to_pylist()))) for table in plain]
        more, less = bags[0] - bags[1], bags[1] - bags[0]
        pytest.fail(
            f"{what}: {sum(more.values())} of {found.num_rows} rows are not in the answer, like {list(more)[:3]}; "
            f"{sum(less.values())} of {wanted.num_rows} of the answer are missing, like {list(less)[:3]}"
        )


def _plain(table: pa.Table) -> pa.Table:
    """Moments as microseconds, and everything in one piece."""
    columns = {}
    for name in table.column_names:
        values = table[name]
        if pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us")).cast(pa.int64())
        columns[name] = values
    return pa.table(columns).combine_chunks()
