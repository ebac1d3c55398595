"""What checkpoints cost, by their interval: CPU beside that of the computation (PPA, Fig. 9). Runs in one process.

The tree of merges runs on the same batches with a checkpoint every so many seconds of input, and with none; each run is
repeated, in turn, and the medians of CPU seconds are compared. State is written to files, as on a node.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import pyarrow as pa

from holdfast.drill import merge_tree
from holdfast.runtime.in_process import InProcess

INTERVALS = (1, 5, 15, 30)
"""Seconds between checkpoints; a batch is a second."""
_NEVER = 2**62


def measure(seed: int, rows: int, seconds: int, repeats: int, window: float = 30.0) -> list[dict[str, object]]:
    """Return the price of every interval: CPU seconds, and the ratio to those of a run without checkpoints."""
    batches = list(merge_tree.batches(seed, seconds, rows))
    spent: dict[int, list[float]] = {every: [] for every in (_NEVER, *INTERVALS)}
    for turn in range(repeats):
        order = list(spent)
        for every in order[turn % len(order) :] + order[: turn % len(order)]:
            spent[every].append(_cpu(batches, every, window))
    without = median(spent[_NEVER])
    return [
        {
            "interval": every,
            "rows_per_second": rows,
            "window": window,
            "cpu_seconds": median(spent[every]),
            "without": without,
            "ratio": median(spent[every]) / without - 1.0,
            "runs": repeats,
        }
        for every in INTERVALS
    ]


def _cpu(batches: Sequence[Mapping[str, pa.Table]], every: int, window: float) -> float:
    with tempfile.TemporaryDirectory() as place:
        running = InProcess(merge_tree.application(window), directory=Path(place), nodes=4, checkpoint_every=every)
        began = time.process_time()
        for one in batches:
            running.feed(one)
        return time.process_time() - began


def findings(found: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Put the paper's claim beside ours."""
    ratios = [float(str(one["ratio"])) for one in found]
    ours = ", ".join(f"{one['interval']} s {float(str(one['ratio'])):.0%}" for one in found)
    paper = "checkpoints cost more the shorter their interval, and at one second prohibitively much"
    return [{"figure": "9", "paper": paper, "ours": ours, "agrees": ratios[0] > max(ratios[1:], default=0.0)}]
