"""The measured client, as a process of its own: saves a file, restores it, checks it, and reports time, CPU and memory.

Runs as `python -m holdfast_lab.benches.store.client_process`, one JSON document in and one out. Memory is what
the process holds beyond mapped files (RssAnon), sampled every five milliseconds, above where it stood before.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.erasure.fragment import StateId
from holdfast.erasure.layout import Coding
from holdfast.ids import BatchId, Epoch
from holdfast.store.client.client import connect
from holdfast.store.client.reading import mapped_file


class Meter:
    """Wall time, CPU time and peak memory of a stretch of work."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._base = anonymous_bytes()
        self._peak = self._base
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()
        self._wall, self._cpu = time.perf_counter(), cpu_seconds()

    def stop(self) -> dict[str, float]:
        """Return what it took."""
        wall, cpu = time.perf_counter() - self._wall, cpu_seconds() - self._cpu
        self._stop.set()
        self._thread.join()
        return {"seconds": wall, "cpu_seconds": cpu, "memory_bytes": max(0, self._peak - self._base)}

    def _sample(self) -> None:
        while not self._stop.is_set():
            self._peak = max(self._peak, anonymous_bytes())
            self._stop.wait(0.005)


def cpu_seconds() -> float:
    """Return the CPU time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def anonymous_bytes() -> int:
    """Return the memory of this process that is no file's."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    """Carry out the job on standard input."""
    order: dict[str, Any] = json.load(sys.stdin)
    state = StateId("bench", order["name"])
    coding = Coding(order["data"], order["parity"])
    source, target = Path(order["file"]), Path(order["file"] + ".back")
    answer: dict[str, Any] = {}
    with connect(order["peers"], coding=coding, bandwidth=order["bandwidth"], answer_seconds=600.0) as store:
        store.candidates(state)  # Connected and loaded before the clock starts, as a running job is.
        with mapped_file(source) as contents:
            out = store.pool.bytes_out
            meter = Meter()
            saved = store.save(state, BatchId(order["version"]), Epoch(0), contents)
            answer["save"] = {**meter.stop(), "network_bytes": store.pool.bytes_out - out, "stored": saved.stored}
        came = store.pool.bytes_in
        meter = Meter()
        loaded = store.load_into(state, target)
        answer["restore"] = {
            **meter.stop(),
            "network_bytes": store.pool.bytes_in - came,
            "used": loaded.used,
            "decode_seconds": loaded.decode_seconds,
        }
        with mapped_file(source) as one, mapped_file(target) as other:
            answer["exact"] = one == other
        target.unlink()
        store.release(state, BatchId(order["version"] + 1), Epoch(0))
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
