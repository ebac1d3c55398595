"""Measure cases, each in a process of its own: memory is then what that case needs, and nothing else's.

`python -m holdfast_lab.benches.planners.measuring SECTION CASE REPEAT` measures one and prints JSON.
"""

from __future__ import annotations

import json
import math
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import holdfast
from holdfast.errors import CheckFailed
from holdfast_lab.benches.planners.sections import Section, all_sections


@dataclass(frozen=True, slots=True)
class CaseFigures:
    """What one case took: seconds of each repetition, memory in MB."""

    section: str
    case: str
    series: str
    size: int
    seconds: tuple[float, ...]
    cpu_seconds: tuple[float, ...]
    """The process's own; far below `seconds` on a machine that is busy with other work."""
    start_mb: float
    """The process before planning: Python, libraries and the input."""
    peak_mb: float
    limit_seconds: float | None
    facts: dict[str, Any] = field(default_factory=dict)
    growth: float | None = None
    """The exponent of processor time over size, from the next smaller case of the series; 1 is linear."""

    @property
    def median(self) -> float:
        """Seconds, the median."""
        return statistics.median(self.seconds)

    @property
    def median_cpu(self) -> float:
        """Processor seconds, the median."""
        return max(1e-9, statistics.median(self.cpu_seconds))

    @property
    def within_limit(self) -> bool | None:
        """Whether the median keeps what is promised; None where nothing is."""
        return None if self.limit_seconds is None else self.median <= self.limit_seconds


def measure_sections(sections: Iterable[Section], repeat: int) -> Iterator[CaseFigures]:
    """Measure every case; give figures as they come."""
    for section in sections:
        before: dict[str, CaseFigures] = {}
        for case in section.cases():
            figures = _in_a_process(section, case.name, repeat)
            smaller = before.get(case.series)
            if smaller is not None and smaller.size != figures.size:
                times = figures.median_cpu / smaller.median_cpu
                exponent = math.log(times) / math.log(figures.size / smaller.size)
                figures = CaseFigures(**{**_fields(figures), "growth": exponent})
            before[case.series] = figures
            yield figures


def _fields(figures: CaseFigures) -> dict[str, Any]:
    return {name: getattr(figures, name) for name in CaseFigures.__dataclass_fields__}


def _in_a_process(section: Section, case: str, repeat: int) -> CaseFigures:
    command = [sys.executable, "-m", "holdfast_lab.benches.planners.measuring", section.name, case, str(repeat)]
    # The same code as here, however it was found.
    source = str(Path(holdfast.__file__).parents[1])
    paths = os.pathsep.join([source, *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailed(f"measuring {section.name}, {case} ended with: {last}", where="bench planners")
    printed: dict[str, Any] = json.loads(done.stdout)
    return CaseFigures(
        **{**printed, "seconds": tuple(printed["seconds"]), "cpu_seconds": tuple(printed["cpu_seconds"])}
    )


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _measure(section: str, name: str, repeat: int) -> dict[str, object]:
    case = next(case for case in all_sections()[section].cases() if case.name == name)
    timed = case.prepare()
    start_mb = _peak_mb()
    seconds, cpu_seconds = [], []
    facts: dict[str, object] = {}
    for _ in range(repeat):
        begin, cpu_begin = time.perf_counter(), time.process_time()
        answer = timed()
        seconds.append(time.perf_counter() - begin)
        cpu_seconds.append(time.process_time() - cpu_begin)
        facts = dict(answer)
    return {
        "section": section,
        "case": name,
        "series": case.series,
        "size": case.size,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "start_mb": start_mb,
        "peak_mb": _peak_mb(),
        "limit_seconds": case.limit_seconds,
        "facts": facts,
    }


if __name__ == "__main__":
    json.dump(_measure(sys.argv[1], sys.argv[2], int(sys.argv[3])), sys.stdout)
