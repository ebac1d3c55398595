"""The windowed count on Flink SQL: rows per second, and what a million rows more cost in CPU. Runs on the driver.

The same rows as for the other sides, as CSV: one file for each slot, and all go through event time together, so that no
row is late whichever slot reads which file. Checkpoints every 10 s; the cluster is warm. All windows are closed at the
end, so the output is compared with what the rows say.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from holdfast.errors import CheckFailed
from holdfast_lab.baselines.flink import VERSION, FlinkCluster, FlinkJob
from holdfast_lab.benches.streaming.workloads import in_our_days, tag_batches

LAYOUTS = ((1, 2), (4, 1))
"""TaskManagers, and slots of each."""
SIZE, EVERY = 10, 1
"""Of the windows, in seconds."""
WARM_ROWS = 1_000_000


@dataclass(frozen=True, slots=True)
class FlinkCount:
    """What the count took on one layout."""

    task_managers: int
    slots: int
    small: int
    large: int
    """Rows of the two sizes."""
    jobs: tuple[FlinkJob, FlinkJob]

    @property
    def name(self) -> str:
        """How it is called in tables."""
        return f"flink {VERSION}, {self.task_managers} x {self.slots}"

    @property
    def rows_per_second(self) -> float:
        """Of the large size."""
        return self.large / self.jobs[1].seconds

    @property
    def marginal_rows_per_second(self) -> float:
        """Rows between the sizes by the seconds between them: without what a job's start takes."""
        return (self.large - self.small) / max(1e-9, self.jobs[1].seconds - self.jobs[0].seconds)

    @property
    def cpu_per_million(self) -> float:
        """Marginal CPU seconds of a million rows."""
        return 1e6 * (self.jobs[1].cpu_seconds - self.jobs[0].cpu_seconds) / (self.large - self.small)


def measure_flink(
    folder: Path,
    small: int,
    large: int,
    *,
    batch_rows: int,
    seed: int,
    layouts: tuple[tuple[int, int], ...] = LAYOUTS,
    progress: Callable[[str], object] = lambda text: None,
) -> list[FlinkCount]:
    """Count rows of two sizes on each layout, after a warm-up."""
    found = []
    for managers, slots in layouts:
        progress(f"flink {managers} x {slots}: starts")
        with FlinkCluster(managers, slots) as cluster:
            jobs = []
            for number, rows in enumerate((min(WARM_ROWS, small), small, large)):
                progress(f"flink {managers} x {slots}: {rows:,} rows")
                place = folder / f"flink-{managers}x{slots}-{number}"
                counted = _write(place / "in", rows, batch_rows, seed, cluster.parallelism)
                jobs.append(cluster.run(*_statements(place)))
                _compare(place / "out", counted)
                shutil.rmtree(place)
            found.append(FlinkCount(managers, slots, small, large, (jobs[1], jobs[2])))
    return found


def _statements(place: Path) -> tuple[list[str], str]:
    files = "'connector' = 'filesystem', 'format' = 'csv', 'path' = '{}'"
    tables = [
        "CREATE TABLE tags (tag STRING, `at` TIMESTAMP(3), WATERMARK FOR `at` AS `at` - INTERVAL '1' SECOND) "
        f"WITH ({files.format((place / 'in').as_uri())})",
        "CREATE TABLE counts (tag STRING, window_end TIMESTAMP(3), `count` BIGINT) "
        f"WITH ({files.format((place / 'out').as_uri())})",
    ]
    windows = f"HOP(TABLE tags, DESCRIPTOR(`at`), INTERVAL '{EVERY}' SECOND, INTERVAL '{SIZE}' SECOND)"
    insert = (
        "INSERT INTO counts SELECT tag, window_end, COUNT(*) "
        f"FROM TABLE({windows}) GROUP BY window_start, window_end, tag"
    )
    return tables, insert


def _write(folder: Path, rows: int, batch_rows: int, seed: int, files: int) -> pa.Table:
    """Write the rows, spread over files; return how many of each tag each second has."""
    folder.mkdir(parents=True)
    options = pyarrow.csv.WriteOptions(include_header=False)
    parts: list[pa.Table] = []
    writers: list[pyarrow.csv.CSVWriter] = []
    try:
        for table in _tables(rows, batch_rows, seed):
            if not writers:
                paths = [folder / f"{number}.csv" for number in range(files)]
                writers = [pyarrow.csv.CSVWriter(path, table.schema, write_options=options) for path in paths]
            in_order = table.sort_by("at")
            for part, writer in enumerate(writers):
                # Rows go to the files in turn, so that the event times of all files advance together.
                writer.write_table(in_order.take(pa.array(range(part, table.num_rows, files))))
            second = pc.floor_temporal(table["at"], unit="second")
            parts.append(
                pa.table({"tag": table["tag"], "second": second})
                .group_by(["tag", "second"])
                .aggregate([([], "count_all")])
            )
    finally:
        for writer in writers:
            writer.close()
    return pa.concat_tables(parts)


def _tables(rows: int, batch_rows: int, seed: int) -> Iterator[pa.Table]:
    left = rows
    for batch in in_our_days(tag_batches(seed, -(-rows // batch_rows), batch_rows)):
        yield batch["tags"].slice(0, left)
        left -= min(left, batch["tags"].num_rows)


def _compare(out: Path, counted: pa.Table) -> None:
    """See that every count is what the rows say."""
    in_order = [("end", "ascending"), ("tag", "ascending")]
    expected = []
    for ahead in range(SIZE):
        end = pc.add(counted["second"], pa.scalar((ahead + 1) * 1_000_000, pa.duration("us"))).cast(pa.timestamp("us"))
        expected.append(pa.table({"tag": counted["tag"], "end": end, "n": counted["count_all"]}))
    sums = pa.concat_tables(expected).group_by(["tag", "end"]).aggregate([("n", "sum")])
    wanted = sums.rename_columns({"n_sum": "n"}).sort_by(in_order)
    read = pyarrow.csv.ReadOptions(column_names=["tag", "end", "n"])
    convert = pyarrow.csv.ConvertOptions(column_types={"tag": pa.string(), "end": pa.timestamp("us"), "n": pa.int64()})
    files = [one for one in out.rglob("*") if one.is_file() and not one.name.startswith((".", "_"))]
    tables = [pyarrow.csv.read_csv(one, read_options=read, convert_options=convert) for one in files]
    found = pa.concat_tables(tables).sort_by(in_order) if tables else wanted.slice(0, 0)
    if found.num_rows != wanted.num_rows:
        raise CheckFailed(f"Flink gave {found.num_rows} counts, not {wanted.num_rows}")
    if not all(found[name].equals(wanted[name]) for name in ("tag", "end", "n")):
        raise CheckFailed("Flink's counts are others than what the rows say")
