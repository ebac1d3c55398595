"""Measures what the live page and its metrics cost: CPU seconds of their threads beside those of the run.

    python tools/measure_page.py                            # all three, in about three minutes
    python tools/measure_page.py --only run --only partitions

A headless Chromium looks at the page all the time, and `/metrics` is asked every five seconds. What is measured:

- `run`: a drill on an embedded cluster of Spark that loses a node and recovers. The run's CPU seconds are those of all
  processes of the drill.
- `partitions`: a run of 1,000 partitions in one process, without Spark, that loses two of 20 nodes again and again. It
  does what partitions and coordinator do, and nothing else: on a cluster the same run costs more.
- `changes`: no run, but the log of one whose 1,000 partitions change 100 times a second: frame times of the browser
  (median, 99th percentile and longest, in ms), and the CPU time of the page's threads as a share of one core.

Prints one JSON object, and each part on standard error when it is done; status 1 where page and metrics cost 1 % of a
run or more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

import holdfast as hf
from holdfast.dashboard.page import LivePage, serve
from holdfast.dashboard.run_page import RunPage
from holdfast.ids import NodeId
from holdfast.recovery.events import NodesLost
from holdfast.runtime.in_process import InProcess
from holdfast.spark.event_file import EventFile
from holdfast_lab.browser import chromium, missing_browser
from holdfast_lab.repeating import repeating

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOST_SHARE = 0.01
SCRAPE_SECONDS = 5.0
DRILL = "traffic --nodes 3 --kill 1 --arrivals 6 --batches 40 --rows 100 --fail-at 15 --seed 3 --keep --json"
COUNT_FRAMES = """() => {
  window.seen = {frames: [], last: performance.now()};
  const tick = (at) => { window.seen.frames.push(at - window.seen.last); window.seen.last = at; requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
}"""  # noqa: E501


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=100, help="Changes of partitions per second, for `changes`.")
    parser.add_argument("--seconds", type=float, default=20.0, help="For `partitions` and `changes`.")
    parser.add_argument("--only", action="append", choices=("run", "partitions", "changes"))
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child is not None:
        run_many_partitions(given.child, given.partitions, given.seconds)
        return 0
    if (missing := missing_browser()) is not None:
        print(missing, file=sys.stderr)
        return 2
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "run": beside_a_drill,
        "partitions": lambda folder: beside_many_partitions(folder, given.partitions, given.seconds),
        "changes": lambda folder: beside_changes(folder, given.partitions, given.updates, given.seconds),
    }
    found: dict[str, Any] = {"cores": os.cpu_count()}
    for name in given.only or parts:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = {"load": os.getloadavg()[0], **parts[name](Path(folder))}
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr, flush=True)
    print(json.dumps(found, indent=2))
    return int(any(found[name]["share"] >= MOST_SHARE for name in ("run", "partitions") if name in found))


# -- runs --------------------------------------------------------------------------------------------------------------


def beside_a_drill(folder: Path) -> dict[str, Any]:
    """Look at a drill from its start to its end."""
    place = folder / "drill"
    command = [sys.executable, "-m", "holdfast.cli.main", "drill", *DRILL.split(), "--out", str(place)]
    return beside(command, place / "run" / "run" / "events.jsonl", lambda: RunPage(str(place / "run"), **HERE))


def beside_many_partitions(folder: Path, partitions: int, seconds: float) -> dict[str, Any]:
    """Look at a run of many partitions in a process of its own."""
    options = ["--child", str(folder), "--partitions", str(partitions), "--seconds", str(seconds)]
    file = folder / "run" / "events.jsonl"
    found = beside([sys.executable, __file__, *options], file, lambda: RunPage(str(folder), **HERE))
    return {"partitions": partitions, **found}


HERE: dict[str, Any] = {"host": "127.0.0.1", "port": 0}


def beside(command: list[str], events: Path, open_page: Callable[[], RunPage]) -> dict[str, Any]:
    """Run a command, look at its page, and compare what both have cost."""
    with chromium() as browser:
        before = ended_children()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        while not events.exists():
            if process.poll() is not None:
                raise SystemExit(f"the run ended with status {process.returncode} before it began")
            time.sleep(0.05)
        shown = open_page()
        page = browser.new_page(viewport={"width": 1360, "height": 900})
        page.goto(shown.url)
        with scraping(shown.url):
            while process.poll() is None:
                page.wait_for_timeout(200)
        run_seconds = ended_children() - before
        page.close()
        shown.close()
        if process.returncode:
            raise SystemExit(f"the run ended with status {process.returncode}")
        cost = shown.cpu_seconds
    return {
        "page_cpu_seconds": round(cost, 4),
        "run_cpu_seconds": round(run_seconds, 2),
        "share": round(cost / run_seconds, 5),
        "events": sum(1 for _ in events.open("rb")),
        "log_seconds": round(_seconds_of(events), 1),
    }


def ended_children() -> float:
    """CPU seconds of this process's children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def scraping(url: str) -> AbstractContextManager[None]:
    """Ask for metrics as Prometheus does, until the end."""

    def scrape() -> None:
        with urllib.request.urlopen(f"{url}metrics", timeout=60) as answer:
            answer.read()

    return repeating(SCRAPE_SECONDS, scrape)


def _seconds_of(events: Path) -> float:
    lines = events.read_text().splitlines()
    return float(json.loads(lines[-1])["at"]) - float(json.loads(lines[0])["at"])


def run_many_partitions(folder: Path, partitions: int, seconds: float) -> None:
    """Run a topology of many partitions on 20 nodes, and lose two of them after every tenth batch."""
    wide = max(1, (partitions - 20) // 3)
    app = hf.Application("many")
    numbers = app.source("numbers", schema={"n": "int64"}, parallelism=wide)
    schema = {"n": "int64"}
    first = numbers.map(lambda rows: rows, schema=schema, id="first", parallelism=wide)
    second = first.map(lambda rows: rows, schema=schema, id="second", parallelism=wide)
    counted = second.key_by("n").window(hf.rows(1000)).count(id="counted", parallelism=20)
    counted.output(priority=list(range(20, 0, -1)))
    file = EventFile(folder / "run" / "events.jsonl")
    run = InProcess(app, nodes=20, checkpoint_every=5, emit=file.write)
    began, batch, name = time.monotonic(), 0, 20
    while time.monotonic() - began < seconds:
        run.feed({"numbers": pa.table({"n": [(batch * 31 + row) % 997 for row in range(2000)]})})
        batch += 1
        if batch % 10 == 0:
            gone = tuple(run._backend.nodes)[:2]
            run._backend.lose_nodes(*gone)
            run._coordinator.handle(NodesLost(gone))
            run._backend.add_nodes({NodeId(f"node-{name}"): math.inf, NodeId(f"node-{name + 1}"): math.inf})
            name += 2
    run.close()
    file.close()


# -- changes -----------------------------------------------------------------------------------------------------------


def beside_changes(folder: Path, partitions: int, updates: int, seconds: float) -> dict[str, Any]:
    """Let a browser look while partitions change, and measure its frames."""
    names = [f"m[{number}]" for number in range(partitions - 1)]
    operators = [
        {"id": "m", "parallelism": partitions - 1},
        {"id": "out", "inputs": [{"from": "m", "partitioning": "merge"}]},
    ]
    topology = {"holdfast": 1, "name": "measured", "operators": operators}
    file = folder / "events.jsonl"
    with file.open("w") as log:

        def add(kind: str, **fields: Any) -> None:
            log.write(json.dumps({"at": time.time(), "event": kind, **fields}) + "\n")

        add("run", application="measured", start="a", bound=0.8, topology=topology)
        for number, name in enumerate((*names, "out[0]")):
            add("state", partition=name, node=f"node-{number % 20}", before="lost", after="running", cause="level")
        log.flush()
        page = LivePage(file)
        server = serve(page, host="127.0.0.1", port=0, token=None)
        try:
            with chromium() as browser:
                shown = browser.new_page(viewport={"width": 1360, "height": 900})
                shown.goto(server.url)
                shown.wait_for_selector("#topology .tile.healthy")
                shown.evaluate(COUNT_FRAMES)
                before, began, done = server.cpu_seconds, time.monotonic(), 0
                with scraping(server.url):
                    while (gone := time.monotonic() - began) < seconds:
                        while done < gone * updates:
                            after = ("lost", "restoring", "catching-up", "running")[done % 4]
                            node = None if after == "lost" else f"node-{done % 20}"
                            place = done // 4 * 7 % len(names)
                            add("state", partition=names[place], node=node, before="", after=after, cause="")
                            done += 1
                        log.flush()
                        shown.wait_for_timeout(20)
                wall, cost = time.monotonic() - began, server.cpu_seconds - before
                frames = frame_times(shown)
                shown.close()
        finally:
            page.close()
            server.close()
    return {
        "partitions": partitions,
        "updates_per_second": updates,
        "frames": len(frames),
        "frame_ms": {
            "median": round(statistics.median(frames), 1),
            "p99": round(frames[int(0.99 * (len(frames) - 1))], 1),
            "longest": round(frames[-1], 1),
        },
        "page_cpu_seconds": round(cost, 3),
        "share_of_a_core": round(cost / wall, 4),
    }


def frame_times(shown: Page) -> list[float]:
    """Return the frames' times so far, the shortest first."""
    return sorted(float(one) for one in shown.evaluate("window.seen.frames")[1:])


if __name__ == "__main__":
    sys.exit(main())
