"""How long a topology takes to load, check and answer, and how much memory: 10 to 10,000 partitions.

Runs anywhere, each size in a process of its own, so that memory is what that size needs and nothing else.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import CheckFailed
from holdfast.ids import OperatorId
from holdfast.topology import Input, Operator, Partitioning, Queries, Topology, parse, rates_of, to_json

SIZES = ("10", "1000", "10000", "10000-operators")
"""Partitions, in operators of up to 100 joined fully; the last has as many operators, one partition each."""


@dataclass(frozen=True, slots=True)
class TopologyFigures:
    """What one size took: seconds as (median, least, greatest) of the repetitions, memory in MB."""

    size: str
    partitions: int
    edges: int
    file_mb: float
    load_and_check: tuple[float, float, float]
    rates: tuple[float, float, float]
    queries: tuple[float, float, float]
    peak_mb: float
    start_mb: float
    """Memory before the topology was read: Python and numpy themselves."""


def topology_of(size: str) -> Topology:
    """Return a topology of so many partitions: rows of operators, each fully joined to the one before."""
    if size.endswith("-operators"):
        total, width = int(size.partition("-")[0]), 100
        operators = [Operator(OperatorId(f"N{n}")) for n in range(width)]
        for number in range(width, total):
            row = number // width - 1
            feeds = tuple(Input(OperatorId(f"N{row * width + i}"), Partitioning.ONE_TO_ONE) for i in range(width))
            operators.append(Operator(OperatorId(f"N{number}"), inputs=feeds))
        return Topology(f"bench-{size}", operators)
    total = int(size)
    width = min(100, max(2, total // 5))
    operators = [Operator(OperatorId("N0"), width, rate=1e6)]
    for number in range(1, total // width):
        feed = Input(OperatorId(f"N{number - 1}"), Partitioning.FULL)
        operators.append(Operator(OperatorId(f"N{number}"), width, (feed,), output=True))
    return Topology(f"bench-{size}", operators)


def bench_topology(sizes: tuple[str, ...] = SIZES, repeat: int = 5) -> Iterator[TopologyFigures]:
    """Measure each size in a process of its own; give figures as they come."""
    for size in sizes:
        command = [sys.executable, "-m", "holdfast_lab.benches.topology", size, str(repeat)]
        text = to_json(topology_of(size))
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise CheckFailed(f"measuring {size} partitions ended with: {last}", where="bench topology")
        printed: dict[str, Any] = json.loads(done.stdout)
        figures: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in printed.items()}
        yield TopologyFigures(**figures)


def _measure(size: str, repeat: int, text: str) -> dict[str, object]:
    start_mb = _peak_mb()
    load = [_seconds(lambda: parse(text, "bench.json")) for _ in range(repeat)]
    topology = parse(text, "bench.json")
    rates = [_seconds(lambda: rates_of(topology)) for _ in range(repeat)]
    queries = [_seconds(lambda: Queries(topology).sizes()) for _ in range(repeat)]
    return {
        "size": size,
        "partitions": len(topology),
        "edges": topology.task_edges,
        "file_mb": len(text) / 1e6,
        "load_and_check": _spread(load),
        "rates": _spread(rates),
        "queries": _spread(queries),
        "peak_mb": _peak_mb(),
        "start_mb": start_mb,
    }


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _spread(taken: list[float]) -> tuple[float, float, float]:
    return statistics.median(taken), min(taken), max(taken)


def _peak_mb() -> float:
    """Return the most memory this process has had; `ru_maxrss` would count its parent's from before it was started."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_measure(sys.argv[1], int(sys.argv[2]), sys.stdin.read())))
