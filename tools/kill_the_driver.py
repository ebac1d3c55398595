"""A run whose driver is killed with SIGKILL at random moments and started again, many times; every row comes out once.

Run: `python tools/kill_the_driver.py --times 20`. The cluster outlives its drivers, as a user's would. Ends with status
1 if the outputs differ from those of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

from holdfast.examples.registry import EXAMPLES
from holdfast.runtime import ParquetSink, run_in_process
from holdfast.spark.cluster import EmbeddedCluster

SECONDS = 600.0


def main() -> int:
    """Start, kill, start again; then let it end, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--application", default="traffic", choices=sorted(EXAMPLES), help="an example")
    parser.add_argument("--times", type=int, default=20, help="drivers to kill")
    parser.add_argument("--batches", type=int, default=120, help="batches in all")
    parser.add_argument("--rows", type=int, default=300, help="rows of a batch")
    parser.add_argument("--seed", type=int, default=1, help="of the input and of the moments")
    options = parser.parse_args()
    draw = Random(options.seed)
    example = EXAMPLES[options.application]
    with tempfile.TemporaryDirectory(prefix="holdfast-drivers-") as folder, EmbeddedCluster(3) as cluster:
        place = Path(folder)
        words = ["run", options.application, "--master", cluster.master_url, "--directory", folder, "--json"]
        words += ["--batches", str(options.batches), "--rows", str(options.rows), "--seed", str(options.seed)]
        words += ["--checkpoint-every", "5", "--conf", f"spark.holdfast.store.secretFile={cluster.secret_file}"]
        killed, ended = 0, False
        while not ended:
            with (place / "driver.log").open("ab") as log:
                driver = subprocess.Popen(
                    [sys.executable, "-m", "holdfast.cli.main", *words],
                    stdout=log,
                    stderr=log,
                    env={**os.environ, "PYTHONPATH": ":".join(sys.path)},
                )
            if killed < options.times:
                moment = wait_for_batches(driver, place, draw)
                driver.send_signal(signal.SIGKILL)
                driver.wait()
                killed += 1
                print(f"driver {killed} killed at batch {moment}", flush=True)
            else:
                ended = True
                if driver.wait() != 0:
                    print((place / "driver.log").read_text()[-2000:])
                    return 1
        expected = run_in_process(
            example.application(), example.batches(options.seed, options.batches, options.rows), close=False
        )
        wrong = 0
        for name in dict.fromkeys(partition.operator for partition in expected.program.outputs):
            found = ParquetSink(place / "out" / name).rows()
            rows = [] if found is None else found.to_pylist()
            wanted = expected.rows(name).to_pylist()
            equal = sorted(map(str, rows)) == sorted(map(str, wanted))
            wrong += not equal
            print(f"{name}: {len(rows)} rows, {'equal' if equal else f'WRONG, expected {len(wanted)}'}")
    print(f"{killed} drivers killed, outputs {'equal' if not wrong else 'differ'}")
    return 1 if wrong else 0


def wait_for_batches(driver: subprocess.Popen[bytes], place: Path, draw: Random) -> int:
    """Wait until a driver has done something, then a random while more; return the last batch it told of."""
    events = place / "run" / "events.jsonl"
    before = events.stat().st_size if events.exists() else 0
    deadline, cycles = time.monotonic() + SECONDS, draw.randint(0, 6)
    last = -1
    while time.monotonic() < deadline:
        if driver.poll() is not None:
            raise SystemExit(f"the driver ended by itself with status {driver.returncode}: give more --batches")
        if events.exists():
            with events.open() as file:
                file.seek(before)
                seen = [json.loads(line) for line in file.read().splitlines() if line.endswith("}")]
            done = [one for one in seen if one["event"] == "cycle"]
            if done:
                last = done[-1]["frontier"]
            if len(done) >= cycles and seen:
                time.sleep(draw.uniform(0, 0.6))
                return last
        time.sleep(0.02)
    raise SystemExit("the driver did nothing")


if __name__ == "__main__":
    sys.exit(main())
