"""The tool that kills drivers while a run changes its layout, without Spark; and that it finds what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa

from holdfast.storage.files import FileStorage
from holdfast_lab.changing_queries import SOURCES, Input
from holdfast_lab.driver_in_process import DriverInProcess
from holdfast_lab.layout_changes import PATHS, LayoutHistory, LayoutPlan
from tools.loading import TOOLS


def test_a_seed_without_spark() -> None:
    words = ["--without-spark", "--seeds", "1", "--first", "4", "--drivers", "3", "--files", "3", "--rows", "8"]
    command = [sys.executable, str(TOOLS / "change_the_layout.py"), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 seeds from 4: 2 drivers killed" in done.stdout
    assert ", 0 problems" in done.stdout


def test_rows_that_are_missing_or_come_twice_are_found(tmp_path: Path) -> None:
    storage, given = FileStorage(tmp_path), Input(3, 5)
    plan, history = LayoutPlan(Random(3), PATHS[0]), LayoutHistory(storage, given)
    driver = DriverInProcess(tmp_path, storage, given, plan.first(), storage.within("out"))
    driver.read(3)
    driver.close()
    history.see()
    rows = pa.concat_tables([given.table("rows", number) for number in range(3)])
    given_by = {"rows": pa.concat_tables([rows, rows.slice(4, 1)]), "keyed": given.table("keyed", 0)}
    found = [*history.problems([], 3, given_by.get, Counter())]
    assert [line.partition(";")[2].partition("; [")[0].strip() for line in found] == [
        "0 missing, 1 too many",
        "10 missing, 0 too many",
    ]
    assert set(given_by) == set(SOURCES)
