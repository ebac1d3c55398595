"""What Flink's count is compared with, without Flink: the rows that are written for it, and the check of its output."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from math import floor
from pathlib import Path

import pyarrow.csv
import pytest

from holdfast.errors import CheckFailed
from holdfast_lab.baselines.flink import FlinkJob
from holdfast_lab.benches.streaming.flink_count import SIZE, FlinkCount, _compare, _write

ROWS = 900


def test_no_row_is_late_in_its_file_and_wrong_counts_are_noticed(tmp_path: Path) -> None:
    counted = _write(tmp_path / "in", ROWS, 400, 1, 2)
    assert sum(counted["count_all"].to_pylist()) == ROWS
    expected: Counter[tuple[str, int]] = Counter()
    for one in sorted((tmp_path / "in").iterdir()):
        names = pyarrow.csv.ReadOptions(column_names=["tag", "at"])
        read = pyarrow.csv.read_csv(one, read_options=names)
        times = read["at"].to_pylist()
        latest = list(accumulate(times, max))
        behind = max(seen - at for seen, at in zip(latest, times, strict=True))
        assert behind < timedelta(seconds=1), "no row is late, whichever slot reads which file"
        for tag, at in zip(read["tag"].to_pylist(), times, strict=True):
            for ahead in range(SIZE):
                expected[tag, floor(at.replace(tzinfo=UTC).timestamp()) + ahead + 1] += 1
    out = tmp_path / "out"
    out.mkdir()
    lines = [f"{tag},{_text(end)},{count}" for (tag, end), count in expected.items()]
    (out / "part-0").write_text("\n".join(lines) + "\n")
    _compare(out, counted)
    (out / "part-0").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(CheckFailed, match=r"Flink gave \d+ counts, not \d+"):
        _compare(out, counted)
    tag, end, count = lines[0].split(",")
    (out / "part-0").write_text("\n".join([f"{tag},{end},{int(count) + 1}", *lines[1:]]) + "\n")
    with pytest.raises(CheckFailed, match="others than what the rows say"):
        _compare(out, counted)


def _text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S")


def test_marginal_figures_are_of_the_rows_between_the_sizes() -> None:
    one = FlinkCount(4, 1, 6_000_000, 24_000_000, (FlinkJob(10.0, 30.0), FlinkJob(28.0, 66.0)))
    assert one.cpu_per_million == pytest.approx(2.0)
    assert one.marginal_rows_per_second == pytest.approx(1e6)
    assert one.name == "flink 2.3.0, 4 x 1"
