"""The page of a real drill in a real browser: a cluster loses a node, and the page shows each stage as it happens."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.dashboard.run_page import RunPage

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.cluster

WAIT_SECONDS = 240.0


@pytest.fixture
def drill(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A drill in a process of its own; its run is in `d/run`."""
    options = "--nodes 2 --kill 1 --arrivals 4 --batches 16 --rows 60 --fail-at 5 --seed 3 --keep --json --out d"
    with (tmp_path / "drill.log").open("wb") as log, (tmp_path / "drill.json").open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli.main", "drill", "traffic", *options.split()],
            cwd=tmp_path,
            stdout=out,
            stderr=log,
        )
    yield process, tmp_path / "d" / "run"
    if process.poll() is None:
        process.terminate()
    process.wait(60)


def await_run(process: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not (folder / "run" / "events.jsonl").exists():
        log = (folder.parent.parent / "drill.log").read_text()
        assert process.poll() is None, log
        assert time.monotonic() < deadline, log
        time.sleep(0.1)


def ended_children() -> float:
    """CPU seconds of this process's children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.long
def test_the_page_from_failure_to_recovery(
    drill: tuple[subprocess.Popen[bytes], Path], opened: Callable[..., Page]
) -> None:
    before = ended_children()
    process, folder = drill
    await_run(process, folder)
    shown = RunPage(str(folder), host="127.0.0.1", port=0)
    try:
        page = opened(shown.url)
        page.set_default_timeout(WAIT_SECONDS * 1000)
        page.wait_for_selector("#phase:has-text('Running')")
        assert page.locator("#topology .tile.healthy, #topology .tile.replaying").count() == 10
        assert "of 10 partitions live" in page.locator("#headline-text").inner_text()
        page.wait_for_selector("#phase:has-text('Recovering')")
        page.wait_for_selector("#gantt .s-lost")
        page.wait_for_selector("#nodes li.gone")
        page.wait_for_selector("#gantt .s-restoring")
        assert "plan" in page.locator("#why").inner_text().lower()
        page.wait_for_selector("#recovery-summary:has-text('all level after')")
        page.wait_for_selector("#phase:has-text('Running'), #phase:has-text('Ended')")
        page.wait_for_selector("#phase:has-text('Ended')")
        assert page.locator("#queries tbody tr").count() > 0
        (recovery, *_) = [one for one in shown.page.view()["recoveries"] if not one["is_start"]]
        assert len(recovery["nodes"]) == 1
        assert recovery["lowest_fidelity"] < 1
        assert all(outage["back_at"] for outage in recovery["queries"].values())
        page.close()  # else it would ask a server that is gone
    finally:
        shown.close()
    assert process.wait(WAIT_SECONDS) == 0, (folder.parent.parent / "drill.log").read_text()
    used = ended_children() - before
    assert shown.cpu_seconds < 0.01 * used, f"{shown.cpu_seconds} s of the page, {used} s of the run"
    assert json.loads((folder.parent / "result.json").read_text())["verdict"] == "ok"
    over = RunPage(str(folder), host="127.0.0.1", port=0, require_run=True)
    try:
        again = opened(over.url)
        again.wait_for_selector("#phase:has-text('Ended')")
        assert "all level after" in again.locator("#recovery-summary").inner_text(), "history is in the event log"
        again.close()
    finally:
        over.close()
