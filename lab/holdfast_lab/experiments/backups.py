"""The experiments of FTC: backups and latency by R (Fig. 7 and 8), extra backups, and time (Table III).

Runs on one machine, no Spark. The paper's five topologies, each with T(v) = 1 and with whole T(v) from 1 to 10; R goes
over every whole second from the largest T to the longest path, where no backup is needed any more. The optimum is
`exact`'s, with its proof; `exhaustive` runs where it can (25 partitions). A time covers posing the problem and
planning, of exact with its proof.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.errors import CheckFailed
from holdfast.planning.backups.algorithms import BY_NAME, BackupAlgorithm
from holdfast.planning.backups.exact import exact_backups
from holdfast.planning.backups.exhaustive import MOST_PARTITIONS
from holdfast.planning.backups.line_tree import is_forest, is_lines
from holdfast.planning.backups.model import BackupProblem, check_backups
from holdfast.topology import Topology
from holdfast_lab.topologies import named_topology

EXACT_SECONDS = 60.0
QUICK_SECONDS = 0.2
"""What we promise for exact on the general graphs, where `dag` is not slower than that."""


@dataclass(frozen=True, slots=True)
class PaperSetting:
    """One topology of the paper with one kind of weights, and what the paper printed about it."""

    name: str
    """As Table III calls it; Sentiment stands there with uniform weights only."""
    topology: str
    figure: int
    unequal: bool
    printed_ms: dict[str, float]
    """Table III: milliseconds by algorithm."""
    printed_extra: str
    """The extra backups over the optimum that sec. V-B states."""


def _times(exhaustive: float, tree: float | None, dag: float, share: float) -> dict[str, float]:
    printed = {"exhaustive": exhaustive, "dag": dag, "share": share}
    return printed if tree is None else {**printed, "tree": tree}


_LINES = "line, tree, dag 0 %; share 21-43 %"
SETTINGS = (
    PaperSetting("Line-u", "line", 7, False, _times(54, 0.5, 1.2, 10), _LINES),
    PaperSetting("Line-n", "line-unequal", 7, True, _times(57, 0.6, 1.5, 10), _LINES),
    PaperSetting("Tree-u", "tree", 7, False, _times(892, 0.8, 1.6, 10), _LINES),
    PaperSetting("Tree-n", "tree-unequal", 7, True, _times(904, 0.9, 1.8, 10), _LINES),
    PaperSetting("Guru-u", "signal-guru", 8, False, _times(1160, None, 20, 8), "dag 3 %"),
    PaperSetting("Guru-n", "signal-guru-unequal", 8, True, _times(1210, None, 23, 10), "dag 10 %"),
    PaperSetting("Senti-560", "sentiment-50-20-20", 8, False, _times(12340, None, 287, 28), "dag 4 %"),
    PaperSetting("Senti-560-n", "sentiment-50-20-20-unequal", 8, True, {}, ""),
    PaperSetting("Senti-1050", "sentiment-30-30-30", 8, False, _times(108220, None, 501, 29), "dag 4 %"),
    PaperSetting("Senti-1050-n", "sentiment-30-30-30-unequal", 8, True, {}, ""),
)


@dataclass(frozen=True, slots=True)
class BackupPoint:
    """One algorithm's answer for one R."""

    setting: str
    figure: int
    latency: float
    algorithm: str
    count: int
    optimum: int
    proven: bool
    """Whether `exact` proved the optimum."""
    worst: float
    """O: the longest of all latencies, in seconds."""
    seconds: float
    """Median over the repetitions."""


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """One algorithm over all R of one setting, beside what the paper printed."""

    setting: str
    algorithm: str
    latencies: int
    """How many R there were."""
    backups: int
    """Over all R."""
    extra_percent: float | None
    """Mean over the R that need backups of (count - optimum) / optimum."""
    extra_pooled_percent: float | None
    """All backups against all of the optimum."""
    largest_extra: int
    median_ms: float
    greatest_ms: float
    printed_ms: float | None


def latencies_of(topology: Topology) -> range:
    """Return every whole R that matters: from the largest T to the longest path."""
    free = BackupProblem(topology, 1e6)
    longest = int(free.in_seconds(free.latencies(free.mask([]))).max())
    return range(int(topology.reprocess_seconds.max()), longest + 1)


def algorithms_for(problem: BackupProblem) -> list[BackupAlgorithm]:
    """Return the algorithms that can run on a topology, exact first."""
    found = [BackupAlgorithm.EXACT]
    found += [BackupAlgorithm.EXHAUSTIVE] if len(problem) <= MOST_PARTITIONS else []
    found += [BackupAlgorithm.LINE] if is_lines(problem) else []
    found += [BackupAlgorithm.TREE] if is_forest(problem) else []
    return [*found, BackupAlgorithm.DAG, BackupAlgorithm.SHARE]


def measure_setting(setting: PaperSetting, repeat: int = 3) -> Iterator[BackupPoint]:
    """Give every algorithm's answer for every R of a setting."""
    topology = named_topology(setting.topology)
    for latency in latencies_of(topology):
        optimum = 0
        proven = False
        for algorithm in algorithms_for(BackupProblem(topology, latency)):
            taken = []
            for _ in range(repeat):
                begin = time.perf_counter()
                problem = BackupProblem(topology, latency)
                if algorithm is BackupAlgorithm.EXACT:
                    exact = exact_backups(problem, time.perf_counter, EXACT_SECONDS)
                    found, optimum, proven = exact.backups, exact.cost, exact.optimal
                else:
                    found = BY_NAME[algorithm](problem)
                taken.append(time.perf_counter() - begin)
            check = check_backups(problem, found)
            if not check.meets:
                raise CheckFailed(
                    f"the plan of {algorithm} exceeds a latency of {latency} s on {topology.name}",
                    where="experiment backups",
                )
            yield BackupPoint(
                setting=setting.name,
                figure=setting.figure,
                latency=float(latency),
                algorithm=str(algorithm),
                count=int(found.sum()),
                optimum=optimum,
                proven=proven,
                worst=check.worst,
                seconds=statistics.median(taken),
            )


def summarise(setting: PaperSetting, points: list[BackupPoint]) -> list[BackupSummary]:
    """Return one line per algorithm of a setting."""
    made = []
    for algorithm in dict.fromkeys(point.algorithm for point in points):
        own = [point for point in points if point.algorithm == algorithm]
        needed = [point for point in own if point.optimum > 0]
        total = sum(point.optimum for point in own)
        count = sum(point.count for point in own)
        made.append(
            BackupSummary(
                setting=setting.name,
                algorithm=algorithm,
                latencies=len(own),
                backups=count,
                extra_percent=100 * statistics.mean(p.count / p.optimum - 1 for p in needed) if needed else None,
                extra_pooled_percent=100 * (count / total - 1) if total else None,
                largest_extra=max(point.count - point.optimum for point in own),
                median_ms=1e3 * statistics.median(point.seconds for point in own),
                greatest_ms=1e3 * max(point.seconds for point in own),
                printed_ms=setting.printed_ms.get(algorithm),
            )
        )
    return made


def too_slow(points: list[BackupPoint]) -> list[BackupPoint]:
    """Return exact's answers on the general graphs that took longer than `dag`'s and longer than we promise."""
    dag = {(point.setting, point.latency): point.seconds for point in points if point.algorithm == "dag"}
    return [
        point
        for point in points
        if point.figure == 8
        and point.algorithm == "exact"
        and point.seconds > max(QUICK_SECONDS, dag[point.setting, point.latency])
    ]
