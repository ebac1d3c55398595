"""Samples of a running soak: memory, descriptors, disk and latency of driver and nodes. Runs beside the cluster."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, median
from typing import Any

from holdfast.drill.faults import operator_processes
from holdfast.runtime.io.batch_records import FORMAT
from holdfast.spark.cluster import EmbeddedCluster
from holdfast.spark.process_reaper import session_of
from holdfast.storage.records import Records
from holdfast.storage.storage import open_storage

_MB = 1 << 20


class Sampler:
    """Takes samples of one run: `directory` is its own, the cluster's nodes may come and go."""

    def __init__(self, directory: Path, arrived: Callable[[int], float | None]) -> None:
        """`arrived` says when the file with a row, by the number of rows before it, arrived; None: nobody knows."""
        self._run, self._arrived = directory / "run", arrived
        self._newest: dict[int, int] = {}
        """Batch -> the rows that are logged with it and before it."""
        self.counted, self.rows = -1, 0
        """The last batch whose rows are counted, and the rows up to it: a later start goes on from there."""
        self._events = self._run / "events.jsonl"
        self._read = self._events.stat().st_size if self._events.exists() else 0
        self._records = Records(open_storage(str(self._run)), "batches", version=FORMAT)

    def sample(self, cluster: EmbeddedCluster, driver: Iterable[int]) -> dict[str, Any]:
        """Return what there is now; None where nothing could be measured."""
        drivers = list(driver)
        javas = [process for process in drivers if _is_java(process)]
        pythons = [process for process in drivers if process not in javas]
        operators, executors, agents, disks = [], [], [], []
        for node in list(cluster.nodes.values()):
            operators += operator_processes(node.group)
            session = session_of(node.group)
            executors += [process for process in session if _is_java(process)]
            agents += [process for process in session if _named(process, b"holdfast.store.agent.agent")]
            disks.append(_size(cluster.local_files(node.id)) + _size(node.spool))
        self._count_rows()
        latencies = self._latencies()
        return {
            "nodes": len(cluster.nodes),
            "driver_python_mb": _mean(map(_memory, pythons[:1])),
            "driver_jvm_mb": _mean(map(_memory, javas)),
            "operator_mb": _mean(map(_memory, operators)),
            "node_jvm_mb": _mean(map(_memory, executors)),
            "agent_mb": _mean(map(_memory, agents)),
            "driver_descriptors": _mean(map(_descriptors, pythons[:1])),
            "operator_descriptors": _mean(map(_descriptors, operators)),
            "agent_descriptors": _mean(map(_descriptors, agents)),
            "run_mb": _size(self._run) / _MB,
            "node_disk_mb": _mean(size / _MB for size in disks),
            "latency_s": median(latencies) if latencies else None,
            "latency_max_s": max(latencies) if latencies else None,
            "published": len(latencies),
        }

    def _count_rows(self) -> None:
        """Count the rows of batches that were logged since; batches stay in the log for long enough."""
        while (fields := self._records.read(self.counted + 1)) is not None:
            self.counted += 1
            self.rows += sum(sum(one["rows"]) for one in fields["sources"].values())
            self._newest[self.counted] = self.rows
            self._newest.pop(self.counted - 1000, None)

    def _latencies(self) -> list[float]:
        """Return, for what was published since, the seconds from the arrival of its batch's last file."""
        found: list[float] = []
        if not self._events.exists():
            return found
        if self._events.stat().st_size < self._read:
            self._read = 0  # a new file was begun
        with self._events.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read += len(line)
                if b'"published"' not in line:
                    continue
                event = json.loads(line)
                if event.get("event") == "published":
                    rows = self._newest.get(int(event["batch"]), 0)
                    at = self._arrived(rows - 1) if rows else None
                    if at is not None:
                        found.append(max(0.0, float(event["at"]) - float(at)))
        return found


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if value > 0]
    return round(fmean(known), 2) if known else None


def _memory(process: int) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
    return 0.0


def _descriptors(process: int) -> float:
    with contextlib.suppress(OSError):
        return float(len(os.listdir(f"/proc/{process}/fd")))
    return 0.0


def _is_java(process: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_bytes().partition(b"\0")[0].endswith(b"java")
    return False


def _named(process: int, word: bytes) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        return word in words and b"sh" not in words[0].rpartition(b"/")[2]
    return False


def _size(folder: Path) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.stat(os.path.join(place, name)).st_size
    return total
