"""Measures what the live page costs: frame times of a headless Chromium, and CPU time of the page's threads.

    python tools/measure_page.py --partitions 1000 --updates 100 --seconds 20

Writes an event log as a run would, with so many changes a second, while a browser looks at it. Prints one JSON object:
frames (median, 99th percentile and longest, in ms), and as shares of one core the CPU time of the page's threads and of
this process, which writes the log and drives the browser as well.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from holdfast.dashboard.page import LivePage, serve
from holdfast_lab.browser import chromium, missing_browser

COUNT_FRAMES = """() => {
  window.seen = {frames: [], last: performance.now()};
  const tick = (at) => { window.seen.frames.push(at - window.seen.last); window.seen.last = at; requestAnimationFrame(tick); };
  requestAnimationFrame(tick);
}"""  # noqa: E501


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--updates", type=int, default=100, help="Changes of partitions per second.")
    parser.add_argument("--seconds", type=float, default=20.0)
    given = parser.parse_args()
    if (missing := missing_browser()) is not None:
        print(missing, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(Path(folder) / "events.jsonl", given.partitions, given.updates, given.seconds)))
    return 0


def measure(file: Path, partitions: int, updates: int, seconds: float) -> dict[str, Any]:
    """Let a browser look while events come."""
    names = [f"m[{number}]" for number in range(partitions - 1)]
    operators = [
        {"id": "m", "parallelism": partitions - 1},
        {"id": "out", "inputs": [{"from": "m", "partitioning": "merge"}]},
    ]
    topology = {"holdfast": 1, "name": "measured", "operators": operators}
    with file.open("w") as log:

        def add(kind: str, **fields: Any) -> None:
            log.write(json.dumps({"at": time.time(), "event": kind, **fields}) + "\n")

        add("run", application="measured", start="a", bound=0.8, topology=topology)
        for name in (*names, "out[0]"):
            add("state", partition=name, node="node-1", before="lost", after="running", cause="level")
        log.flush()
        page = LivePage(file)
        server = serve(page, host="127.0.0.1", port=0, token=None)
        try:
            with chromium() as browser:
                shown = browser.new_page(viewport={"width": 1360, "height": 900})
                shown.goto(server.url)
                shown.wait_for_selector("#topology .tile.healthy")
                shown.evaluate(COUNT_FRAMES)
                own = resource.getrusage(resource.RUSAGE_SELF)
                began, done = time.monotonic(), 0
                while (gone := time.monotonic() - began) < seconds:
                    while done < gone * updates:
                        after = ("lost", "restoring", "catching-up", "running")[done % 4]
                        add("state", partition=names[done * 7 % len(names)], node="node-1", before="", after=after)
                        done += 1
                    log.flush()
                    shown.wait_for_timeout(20)
                frames = sorted(shown.evaluate("window.seen.frames")[1:])
                wall, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_SELF)
                shown.close()
                while server.connections:
                    time.sleep(0.05)  # the stream ends with its next message
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
        "page_cpu_share": round(server.cpu_seconds / wall, 4),
        "process_cpu_share": round((used.ru_utime + used.ru_stime - own.ru_utime - own.ru_stime) / wall, 4),
    }


if __name__ == "__main__":
    sys.exit(main())
