"""The failure effect model of FTC (sec. III-B, eq. 1-5), and the one checker of backup plans. Runs anywhere.

A partition v that has failed restarts from its checkpoint and reprocesses what it received since, which takes T(v). Its
inputs come at once from upstream partitions that keep a backup of their output; any other upstream partition must make
them again first, which takes its own L(u). So

    L(v) = T(v) + max over upstream u without a backup of L(u)                                      (eq. 3)

and a set of backups meets a latency R when L(v) <= R for every v. A sink's output has no consumer: it never needs a
backup. A source is an ordinary partition without upstream neighbours: L(v) = T(v).

**Failure domains** (ours; docs/decisions/0041): partitions that name one domain fail together, and the backups kept
there are lost with them. For a partition of domain d a backup inside d therefore counts as none. Partitions without a
domain fail alone. `lost` below is the domain that failed, or NOTHING_LOST.

Times are counted in whole **ticks**, a power of ten of a second chosen so that R has twelve digits: sums are exact, no
order of adding matters, and decimal input (0.1 + 0.2 against 0.3) is exact. See docs/decisions/0040.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import BadInput, NoPlan
from holdfast.topology import Floats, Ints, Topology

Mask = NDArray[np.bool_]

NOTHING_LOST = -1
_DIGITS = 11
_LONGEST_LATENCY = 1e18
_SHORTEST_LATENCY = 1e-280
"""A shorter latency counts as zero: its ticks would be beyond the range of a float."""


def young_interval(checkpoint_seconds: float, failure_rate: float) -> float:
    """Return Young's optimal time between checkpoints that take so long, at so many failures per second."""
    return math.sqrt(2.0 * checkpoint_seconds / failure_rate)


def reprocess_times(topology: Topology, checkpoint_seconds: float | None = None) -> Floats:
    """Return T(v) of every partition.

    Values of the topology have precedence. Where it has none and `checkpoint_seconds` (how long one checkpoint takes)
    is given, an operator with a failure rate has half of Young's interval: on average a failure comes half-way between
    two checkpoints. All else has the topology's default.
    """
    seconds = topology.reprocess_seconds.copy()
    if checkpoint_seconds is None:
        return seconds
    if not (math.isfinite(checkpoint_seconds) and checkpoint_seconds > 0):
        raise BadInput(
            f"a checkpoint cannot take {checkpoint_seconds:g} s",
            remedy="give the seconds that one checkpoint takes, above zero",
        )
    for number, operator in enumerate(topology.operators):
        if operator.reprocess_seconds is None and operator.failure_rate > 0:
            seconds[topology.first[number] : topology.first[number + 1]] = 0.5 * young_interval(
                checkpoint_seconds, operator.failure_rate
            )
    return seconds


def assumed_interval(
    topology: Topology, measured_interval: float | None, checkpoint_seconds: float | None = None
) -> float | None:
    """Return the checkpoint interval that `reprocess_times` holds for; None: the topology does not say.

    Where operators have intervals of their own, by Young's formula, it is the shortest: with it no T(v) is longer.
    """
    found = []
    declared = [operator.reprocess_seconds is not None for operator in topology.operators]
    if measured_interval is not None and measured_interval > 0 and any(declared):
        found.append(measured_interval)
    if checkpoint_seconds is not None:
        found += [
            young_interval(checkpoint_seconds, operator.failure_rate)
            for operator, known in zip(topology.operators, declared, strict=True)
            if not known and operator.failure_rate > 0
        ]
    return min(found, default=None)


@dataclass(frozen=True, slots=True)
class Level:
    """The task edges into one level of the topology: partitions, and where their upstream neighbours begin."""

    partitions: Ints
    upstream: Ints
    starts: Ints


class BackupProblem:
    """A topology, a time T(v) for each of its partitions, and the recovery latency R that is asked for."""

    def __init__(self, topology: Topology, latency: float, reprocess_seconds: Floats | None = None) -> None:
        if isinstance(latency, bool) or not (math.isfinite(latency) and 0 <= latency <= _LONGEST_LATENCY):
            raise BadInput(f"a latency of {latency} s is not possible", remedy="give seconds, zero or more")
        seconds = topology.reprocess_seconds if reprocess_seconds is None else reprocess_seconds
        self.topology = topology
        self.latency = float(latency)
        self.seconds: Floats = seconds
        latency = latency if latency >= _SHORTEST_LATENCY else 0.0
        self.tick_exponent = math.floor(math.log10(latency)) - _DIGITS if latency > 0 else -_DIGITS
        """One tick is 10 to this power seconds."""
        self.limit = int(_to_ticks(np.array([latency]), self.tick_exponent)[0])
        """R in ticks."""
        # What takes longer than R is refused before any sum is made; cutting it keeps sums far from overflow.
        clipped = np.minimum(seconds, max(2.0 * latency, 2.0 * 10.0**self.tick_exponent) if latency > 0 else 1.0)
        self.ticks: Ints = np.minimum(_to_ticks(clipped, self.tick_exponent), self.limit + 1)
        """T(v) in ticks; never more than R + 1."""
        self.ticks.setflags(write=False)
        self.domain_of: Ints = topology.domain_of
        self.sinks: Mask = np.diff(topology.down_start) == 0

    def __len__(self) -> int:
        """How many partitions there are."""
        return len(self.ticks)

    @cached_property
    def has_domains(self) -> bool:
        """Whether two partitions fail together: only then do domains change anything."""
        named = self.domain_of[self.domain_of >= 0]
        return bool(len(named)) and int(np.bincount(named).max()) > 1

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """The task edges level by level, sources left out: a sweep meets inputs before consumers."""
        topology = self.topology
        made = []
        for edges in topology.edges_by_level:
            if len(edges):
                to = topology.edge_to[edges]
                starts = np.flatnonzero(np.concatenate([[True], to[1:] != to[:-1]]))
                made.append(Level(to[starts], topology.edge_from[edges], starts))
        return tuple(made)

    def latencies(self, backups: Mask, lost: int = NOTHING_LOST) -> Ints:
        """Return L(v) in ticks of every partition when the backups in domain `lost` are gone (eq. 3)."""
        keeps = backups if lost == NOTHING_LOST else backups & (self.domain_of != lost)
        found = self.ticks.copy()
        for level in self.levels:
            waits = np.where(keeps[level.upstream], 0, found[level.upstream])
            found[level.partitions] += np.maximum.reduceat(waits, level.starts)
        return found

    def guaranteed(self, backups: Mask) -> Ints:
        """Return, for every partition, its latency in ticks in the worst failure that takes it: its whole domain's."""
        found = self.latencies(backups)
        for lost in range(len(self.topology.domains) if self.has_domains else 0):
            there = self.domain_of == lost
            found[there] = self.latencies(backups, lost)[there]
        return found

    def mask(self, partitions: Ints | list[int]) -> Mask:
        """Return a set of partitions as one truth value each."""
        made = np.zeros(len(self), bool)
        made[np.asarray(partitions, np.int64)] = True
        return made

    def in_seconds(self, ticks: Ints) -> Floats:
        """Return times in seconds."""
        exponent = self.tick_exponent
        seconds = ticks.astype(np.float64)
        return seconds * 10.0**exponent if exponent >= 0 else seconds / 10.0**-exponent


def _to_ticks(seconds: Floats, exponent: int) -> Ints:
    scaled = seconds / 10.0**exponent if exponent >= 0 else seconds * 10.0**-exponent
    return np.rint(scaled).astype(np.int64)


@dataclass(frozen=True, slots=True)
class BackupCheck:
    """What the checker found: each partition's latency in seconds, and which partitions take longer than R."""

    latency: Floats
    worst: float
    late: Ints

    @property
    def meets(self) -> bool:
        """Whether every partition is back within R."""
        return len(self.late) == 0


def check_backups(problem: BackupProblem, backups: Mask) -> BackupCheck:
    """Return whether a set of backups meets the latency: the one oracle of planners, tests and the run."""
    ticks = problem.guaranteed(backups)
    seconds = problem.in_seconds(ticks)
    return BackupCheck(latency=seconds, worst=float(seconds.max()), late=np.flatnonzero(ticks > problem.limit))


def require_feasible(problem: BackupProblem) -> None:
    """Raise NoPlan, naming the partition that takes too long even when every partition keeps a backup."""
    alone = int(np.argmax(problem.seconds))
    asked = f"{problem.latency:g} s"
    if problem.ticks[alone] > problem.limit:
        raise NoPlan(
            f"no backups meet {asked}: {problem.topology.partition(alone)} alone takes "
            f"{problem.seconds[alone]:g} s to reprocess",
            remedy=f"ask for a latency of {problem.seconds[alone]:g} s or more",
        )
    if not problem.has_domains:
        return
    best = problem.guaranteed(np.ones(len(problem), bool))
    worst = int(np.argmax(best))
    if best[worst] > problem.limit:
        needed = problem.in_seconds(best)[worst]
        domain = problem.topology.domains[problem.domain_of[worst]]
        raise NoPlan(
            f"no backups meet {asked}: {problem.topology.partition(worst)} takes {needed:g} s when domain {domain} "
            "fails, as upstream partitions fail with it and their backups are lost",
            remedy=f"ask for a latency of {needed:g} s or more, or move some of them to another domain",
        )
