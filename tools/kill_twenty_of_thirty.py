"""A-FP4S's headline on real processes: thirty peers, m = 10, n = 30, twenty killed with SIGKILL, every state back.

Run: `python tools/kill_twenty_of_thirty.py --sizes 1,16,256,1024` (MB; 1024 takes 5 GB of disk and a minute). Ends
with status 1 if a state does not come back bit-exact, or if anything comes back with 21 peers killed.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from random import Random
from typing import Any

from holdfast_lab.testing.ring_of_peers import RingOfPeers


def store(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `holdfast store …` as a process of its own."""
    command = [sys.executable, "-m", "holdfast.cli.main", "store", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": ":".join(sys.path)}
    )


def main() -> int:
    """Save, kill, read back, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", default="1,16,256", help="MB of each state")
    parser.add_argument("--seed", type=int, default=1, help="which peers die")
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="holdfast-thirty-") as folder:
        place = Path(folder)
        with RingOfPeers(30, place / "ring", ["--repair-after", "3600"]) as ring:
            names = [f"state{size}" for size in options.sizes.split(",")]
            for name in names:
                with (place / name).open("wb") as file:
                    for _ in range(int(name.removeprefix("state"))):
                        file.write(os.urandom(1 << 20))
                code = ("--data-fragments", "10", "--parity-fragments", "20", "--json")
                put: dict[str, Any] = json.loads(
                    store("put", name, str(place / name), "--peer", ring.address(0), *code).stdout
                )
                print(f"put {name}: {put['stored']} fragments in {put['seconds']:.2f} s", flush=True)
            order = Random(options.seed).sample(range(30), 30)
            ring.kill(order[:20])
            alive = ring.address(order[29])
            for name in names:
                back = place / f"{name}.back"
                got = json.loads(store("get", name, str(back), "--peer", alive, "--json").stdout)
                exact = filecmp.cmp(place / name, back, shallow=False)
                wrong += not exact
                print(
                    f"20 of 30 killed, get {name}: {got['seconds']:.2f} s, {'exact' if exact else 'WRONG'}", flush=True
                )
                back.unlink()
            ring.kill(order[20:21])
            for name in names:
                done = store("get", name, str(place / "never"), "--peer", alive)
                wrong += done.returncode != 1 or (place / "never").exists()
                print(f"21 of 30 killed, get {name}: status {done.returncode}: {done.stderr.strip()}", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
