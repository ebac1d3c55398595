"""A stream whose rates and state triple half-way, on an embedded cluster: how soon its plan follows, and what stops.

    python tools/triple_the_rate.py --seconds 60 --rows 60000

Files of so many rows come every second; an operator keeps the last twenty seconds of rows, so its state follows the
rate. The run has targets (`hf.targets`), and its plan is made again from what it measures. Half-way three times as many
rows come. Prints, as a table or with --json, every `plan-measured` (overhead predicted, measured and allowed),
`promise-alarm`, `promise-holds` and `plan-changed`, then the verdict: in how many checkpoint intervals the plan
followed, how often it changed, the longest time without an output, whether anything rolled back, and whether every row
came out once. Status 1 where something stopped, rows are wrong, or no plan followed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src")]

import holdfast as hf  # noqa: E402

KEPT_SECONDS = 20
SHOWN = ("plan-measured", "promise-alarm", "promise-holds", "plan-chosen", "plan-changed")


def application(folder: Path) -> hf.Application:
    """A source of files, and an operator that keeps the rows of the last seconds."""

    def keep(state: pa.Table, inputs: tuple[pa.Table, ...], watermark: float) -> tuple[pa.Table, pa.Table]:
        rows = inputs[0]
        if not rows.num_rows:
            return state, pa.table({"second": pa.array([], pa.int64()), "rows": pa.array([], pa.int64())})
        kept = pa.concat_tables([state, rows])
        last = max(rows["second"].to_pylist()[-1:] or [0])
        first = pc.greater_equal(kept["second"], last - KEPT_SECONDS)
        counted = rows.group_by("second").aggregate([("n", "count")])
        out = pa.table({"second": counted["second"], "rows": counted["n_count"]})
        return kept.filter(first).combine_chunks(), out.cast(pa.schema([("second", pa.int64()), ("rows", pa.int64())]))

    app = hf.Application("triple")
    schema = {"second": "int64", "n": "int64"}
    rows = app.source("rows", hf.files(str(folder)), schema=schema, parallelism=1)
    kept = rows.key_by("n").apply(
        keep, schema={"second": "int64", "rows": "int64"}, state=schema, id="kept", parallelism=2
    )
    kept.output("counts")
    return app


def feed(folder: Path, rows: int, seconds: int) -> None:
    """Write a file a second; three times as many rows in the second half."""
    began = time.monotonic()
    for second in range(2 * seconds):
        many = rows * (3 if second >= seconds else 1)
        table = pa.table({"second": pa.array([second] * many, pa.int64()), "n": pa.array(range(many), pa.int64())})
        path = folder / f"_{second:05}.parquet"
        pq.write_table(table, path)
        path.rename(folder / f"{second:05}.parquet")
        time.sleep(max(0.0, began + second + 1 - time.monotonic()))


def main() -> int:
    """Run, and say what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="seconds of each half of the stream")
    parser.add_argument("--rows", type=int, default=60_000, help="rows a second in the first half")
    parser.add_argument("--overhead", type=float, default=0.01)
    parser.add_argument("--recovery", type=float, default=120.0, help="target: seconds in which all queries are back")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", action="store_true", help="leave the run's directory")
    given = parser.parse_args()
    place = Path(tempfile.mkdtemp(prefix="holdfast-triple-"))
    folder = place / "in"
    folder.mkdir()
    pq.write_table(
        pa.table({"second": pa.array([-1], pa.int64()), "n": pa.array([0], pa.int64())}), folder / "a.parquet"
    )
    try:
        wanted = hf.targets(recovery={1: given.recovery}, overhead=given.overhead)
        run = hf.start(application(folder), directory=place / "run", nodes=given.nodes, plan=wanted, page=False)
        began = time.time()
        writer = threading.Thread(target=feed, args=(folder, given.rows, given.seconds), daemon=True)
        writer.start()
        writer.join()
        time.sleep(5)
        run.stop()
        return report(place / "run", began, given)
    finally:
        if not given.keep:
            shutil.rmtree(place, ignore_errors=True)


def report(directory: Path, began: float, given: argparse.Namespace) -> int:
    """Read the events and outputs of the run, and print them."""
    lines = [line for path in sorted(directory.rglob("events*.jsonl")) for line in path.read_text().splitlines()]
    events = [event for event in map(json.loads, lines) if event["at"] >= began]
    tripled = began + given.seconds
    found = [event for event in events if event["event"] in SHOWN]
    out = [event["at"] for event in events if event["event"] == "published" and event.get("rows")]
    gaps = [later - earlier for earlier, later in pairwise(out)]
    changes = [event for event in found if event["event"] == "plan-changed"]
    before = [event for event in changes if event["at"] < tripled]
    after = [event for event in changes if event["at"] >= tripled]
    interval = _interval(before[-1]) if before else None
    counts: dict[int, int] = {}
    for path in (directory / "out" / "counts").rglob("*.parquet"):
        for row in pq.read_table(path).to_pylist():
            counts[row["second"]] = counts.get(row["second"], 0) + row["rows"]
    asked = {s: given.rows * (3 if s >= given.seconds else 1) for s in range(2 * given.seconds)}
    wrong = [s for s, many in counts.items() if s >= 0 and many != asked[s]]
    measured = [event for event in found if event["event"] == "plan-measured"]
    alarms = [event["event"] for event in found if event["event"] in ("promise-alarm", "promise-holds")]
    verdict: dict[str, Any] = {
        "interval_before": interval,
        "followed_after_seconds": round(after[0]["at"] - tripled, 1) if after else None,
        "followed_after_intervals": round((after[0]["at"] - tripled) / interval, 2) if after and interval else None,
        "changes_before": len(before),
        "changes_after": len(after),
        "intervals": [round(_interval(event), 2) for event in changes],
        "longest_gap_seconds": round(max(gaps, default=0.0), 2),
        "rolled_back": sum(event["event"] == "rolled-back" for event in events),
        "seconds_out": len([s for s in counts if s >= 0]),
        "wrong_seconds": wrong[:5],
        "alarm_at_the_end": bool(alarms) and alarms[-1] == "promise-alarm",
        "last_overhead": measured[-1]["overhead"] if measured else None,
    }
    if given.json:
        print(json.dumps({"events": found, **verdict}, indent=1))
    else:
        for event in found:
            about = {
                k: v for k, v in event.items() if k in ("overhead", "recovery", "what", "now", "target", "why", "batch")
            }
            about |= {"interval": round(_interval(event), 2)} if "intervals" in event else {}
            print(f"{event['at'] - tripled:8.1f} s  {event['event']:14} {json.dumps(about)}")
        for name, value in verdict.items():
            print(f"{name.replace('_', ' ')}: {value}")
    return 0 if after and not wrong and not verdict["rolled_back"] and verdict["seconds_out"] else 1


def _interval(event: dict[str, Any]) -> float:
    return max((float(one["seconds"]) for one in event["intervals"] if one["seconds"] is not None), default=0.0)


if __name__ == "__main__":
    sys.exit(main())
