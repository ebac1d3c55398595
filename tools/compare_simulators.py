"""Compare how fast two checkouts simulate the same seeds of recoveries, in turns in one run.

    python tools/compare_simulators.py /tmp/before . --seeds 24

Each side is one process that has run a few seeds before it is measured; they take four seeds in turn, so that both see
the same load of the machine. Figures are seconds of CPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

FIRST = {"cycles": 0, "workers that stay": 36, "with second copies": 252, "files in place": 2016}
"""The first seed of each kind; the agents of every fourth seed are in all of them."""
AT_ONCE = 4
SIDE = """
import sys, time
try:
    from holdfast_lab.simulation.recovery.run import simulate_recovery
except ModuleNotFoundError:  # commits before 2026-11-19 have it in the wheel
    from holdfast.simulation.recovery.run import simulate_recovery
for seed in (3, 1, 40, 2001, 252):
    simulate_recovery(seed)
for line in sys.stdin:
    began = time.process_time()
    for seed in map(int, line.split()):
        simulate_recovery(seed)
    print(time.process_time() - began, flush=True)
"""


def begin(folder: Path) -> subprocess.Popen[str]:
    """Start one side."""
    paths = os.pathsep.join(str(folder.resolve() / name) for name in ("src", "lab"))
    env = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(
        [sys.executable, "-c", SIDE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )


def ask(side: subprocess.Popen[str], seeds: Sequence[int]) -> float:
    """Let a side run seeds; return its seconds."""
    assert side.stdin is not None
    assert side.stdout is not None
    side.stdin.write(" ".join(map(str, seeds)) + "\n")
    side.stdin.flush()
    return float(side.stdout.readline())


def main() -> None:
    """Run both sides and print seeds per second of CPU."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("before", type=Path)
    arguments.add_argument("after", type=Path)
    arguments.add_argument("--seeds", type=int, default=24, help="of each kind")
    given = arguments.parse_args()
    sides, totals = [begin(given.before), begin(given.after)], [0.0, 0.0]
    for kind, first in FIRST.items():
        seconds = [0.0, 0.0]
        for start in range(first, first + given.seeds, AT_ONCE):
            seeds = range(start, min(start + AT_ONCE, first + given.seeds))
            for number, side in enumerate(sides):
                seconds[number] += ask(side, seeds)
        totals = [total + more for total, more in zip(totals, seconds, strict=True)]
        print(line(kind, given.seeds, seconds))
    print(line("all", given.seeds * len(FIRST), totals))
    for side in sides:
        assert side.stdin is not None
        side.stdin.close()
        side.wait()


def line(kind: str, seeds: int, seconds: Sequence[float]) -> str:
    """Say what came of one kind."""
    before, after = (seeds / one for one in seconds)
    return f"{kind:20} {seeds:4} seeds: {before:.2f} and {after:.2f} a second of CPU, {after / before:.2f} times"


if __name__ == "__main__":
    main()
