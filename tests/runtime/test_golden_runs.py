"""A run that an earlier version began goes on: what it wrote stays readable.

`tests/data/runs/MONTH` is the directory of a run as it was written then: seven batches, a checkpoint after five, no
files of nodes. A version that cannot continue it must keep a reader for its formats, and add a directory of its own.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from runtime.test_layout import app, batches, never_changed, rows, start

RUNS = sorted((Path(__file__).parent.parent / "data" / "runs").iterdir())


@pytest.mark.parametrize("parallelism", [2, 4])
@pytest.mark.parametrize("run", RUNS, ids=lambda path: path.name)
def test_a_run_of_an_earlier_version_goes_on(run: Path, parallelism: int, tmp_path: Path) -> None:
    place, given = tmp_path / "run", batches(11, 12)
    shutil.copytree(run, place)
    goes_on = start(place, app(2))
    assert goes_on.frontier == 6
    goes_on.checkpoint()
    goes_on = start(place, app(parallelism))
    for batch in given[7:]:
        goes_on.feed(batch)
    goes_on.close()
    for name in ("totals", "threes"):
        assert rows(goes_on, name) == never_changed(given, name)
