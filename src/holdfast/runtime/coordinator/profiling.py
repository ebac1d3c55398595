"""Measures what planners need, over a sliding period, from what workers report. Pure: the time comes with each call.

A partition's batches count in two places. *Steady* batches were processed by a partition that is level with the log: by
these go rates and the share of a core that it needs. All others (a replay, a backlog) were processed as fast as the
partition could: they say how long a replay takes, and nothing about what it needs. So a run that works off a backlog
has no measured costs, and recovery is not bounded by what would only be its own hurry.

Nothing here is needed for correctness: a profile that is lost is measured again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.ids import BatchId, NodeId, PartitionId, SegmentId
from holdfast.planning.profiles.run_profile import FragmentProfile, PartitionProfile, RunProfile
from holdfast.planning.profiles.sliding import SlidingSums, Sums
from holdfast.recovery.effects import Changed, Effect, GlobalCheckpoint
from holdfast.recovery.states import LIVE_STATES, PartitionState
from holdfast.runtime.fetches import CodeChosen, Fetched
from holdfast.runtime.messages import Measures, SnapshotStored

PERIOD_SECONDS = 300.0
"""The sliding period."""
ENOUGH_SECONDS = 30.0
"""So long a partition is measured at the pace of its sources before its cost counts."""
LEAST_COST = 1e-6
"""Of a partition, in cores: of one that was not measured, too."""
LEAST_RESTORED = 1 << 20
"""Bytes of a state whose restore says something about bandwidth; of a smaller one, its latency is most of it."""
_KEPT = 32
"""Checkpoints and restores that averages are taken over, at most."""


@dataclass(slots=True)
class SavedSnapshots:
    """What checkpoints and stored edges took: snapshots hold both."""

    snapshots: int = 0
    bytes: int = 0
    cpu_seconds: float = 0.0
    """Of operator processes, to write them down; coding and sending are the agents'."""


class _Partition:
    """What is counted of one partition."""

    def __init__(self, period: float) -> None:
        self.work, self.steady, self.replay = SlidingSums(period), SlidingSums(period), SlidingSums(period)
        self.state_bytes = 0
        self.seen_at: float | None = None
        """Since when it runs, or when it was last counted; None: it does not run."""
        self.cores = 0.0
        """What it was measured to use when it was last placed; kept while it is lost."""
        self.known = False


class Profiler:
    """Accumulates reports and effects of one run."""

    def __init__(
        self,
        partitions: Iterable[PartitionId],
        now: float,
        *,
        period: float = PERIOD_SECONDS,
        costs: Mapping[PartitionId, float] | None = None,
        before: Mapping[str, Any] | None = None,
    ) -> None:
        """Begin; `costs` are those that an earlier driver measured, `before` what its profile said (`measured`)."""
        self.period, self._began = period, now
        self._partitions = {p: _Partition(period) for p in partitions}
        for p, cost in (costs or {}).items():
            if p in self._partitions and cost > LEAST_COST:
                self._partitions[p].cores, self._partitions[p].known = cost, True
        earlier = before or {}
        self._incidents: Counter[str] = Counter(earlier.get("incidents") or {})
        self._observed = float(earlier.get("observed_seconds") or 0.0)
        self._marked: dict[BatchId, float] = {}
        self._checkpoints: list[tuple[float | None, int]] = []
        """Of each, how long after its mark it was complete, and the bytes written since the one before."""
        self._complete_at: dict[SegmentId | None, float] = {}
        """When the last checkpoint of each segment was complete; of None: of all partitions in one."""
        self._apart: list[float] = []
        """Seconds between two checkpoints of the same segment."""
        self._written = 0
        self._restoring: dict[PartitionId, float] = {}
        self._restores: list[tuple[float, int]] = []
        """Seconds and bytes of each."""
        self._restored = 0
        self._fetched = Fetched()
        """What all restores have read, from where."""
        self._predicted: list[tuple[float, float]] = []
        """Predicted and measured seconds of restores from fragments."""
        self._codes: dict[tuple[NodeId, float], CodeChosen] = {}
        self.saved = SavedSnapshots()
        """Since the driver began."""

    # -- what happens --------------------------------------------------------------------------------------------------

    def reported(self, now: float, partition: PartitionId, measures: Measures, batches: int, *, steady: bool) -> None:
        """Count what a partition did since it was last counted; `steady`: it was level with the log."""
        one = self._partitions[partition]
        since = now if one.seen_at is None else one.seen_at
        one.seen_at = now
        sums = Sums(
            seconds=max(0.0, now - since),
            rows_in=measures.rows_in,
            rows_out=measures.rows_out,
            bytes_in=measures.bytes_in,
            busy_seconds=measures.seconds,
            cpu_seconds=measures.cpu_seconds,
            written_bytes=measures.written_bytes,
            batches=batches,
        )
        one.work.add(sums)
        (one.steady if steady else one.replay).add(sums)
        one.state_bytes = measures.state_bytes
        self._written += measures.written_bytes

    def measure_over(self, period: float) -> None:
        """Measure over another period from now on: a longer one is full once it has passed."""
        if period == self.period:
            return
        self.period = period
        for one in self._partitions.values():
            for sums in (one.work, one.steady, one.replay):
                sums.period = period

    def marked(self, now: float, batch: BatchId) -> None:
        """A checkpoint is marked at a batch."""
        self._marked.setdefault(batch, now)
        while len(self._marked) > _KEPT:
            del self._marked[min(self._marked)]

    def took_effect(self, now: float, effects: Iterable[Effect]) -> None:
        """Take what the recovery machine decided: losses, restores, complete checkpoints."""
        lost: set[str] = set()
        for effect in effects:
            if isinstance(effect, GlobalCheckpoint):
                self._checkpoint(now, effect)
            elif isinstance(effect, Changed):
                self._changed(now, effect, lost)
        self._incidents.update(lost)

    def took_snapshot(self, stored: SnapshotStored) -> None:
        """Count what a snapshot took."""
        self.saved.snapshots += 1
        self.saved.bytes += stored.size
        self.saved.cpu_seconds += stored.cpu_seconds

    def fetched(self, fetched: Fetched) -> None:
        """Count where the state of a restored partition came from."""
        self._fetched = self._fetched.plus(fetched)
        if fetched.predicted_seconds is not None:
            self._predicted.append((fetched.predicted_seconds, fetched.seconds))
            del self._predicted[:-_KEPT]

    @property
    def fetched_total(self) -> Fetched:
        """Where the state of all restored partitions came from, since the driver began."""
        return self._fetched

    def chose_code(self, chosen: CodeChosen) -> None:
        """The agent of a node has chosen a code for a class of sizes."""
        self._codes[chosen.node, float(chosen.choice["state_bytes"])] = chosen

    def _checkpoint(self, now: float, effect: GlobalCheckpoint) -> None:
        began = self._marked.pop(effect.batch, None)
        self._marked = {mark: at for mark, at in self._marked.items() if mark > effect.batch}
        self._checkpoints.append((None if began is None else now - began, self._written))
        self._written = 0
        del self._checkpoints[:-_KEPT]
        # Segments have checkpoints of their own: two of them may be complete at one moment.
        whose: tuple[SegmentId | None, ...] = effect.segments or (None,)
        known = {name: at for name, at in self._complete_at.items() if (name is None) is (whose == (None,))}
        self._apart += [now - known[name] for name in whose if name in known and now > known[name]]
        self._complete_at = known | dict.fromkeys(whose, now)
        del self._apart[: -_KEPT * len(self._complete_at)]

    def _changed(self, now: float, effect: Changed, lost: set[str]) -> None:
        partition = effect.partition
        one = self._partitions[partition]
        if effect.after is PartitionState.LOST:
            lost.add(str(partition.operator))
            one.seen_at = None
            self._restoring.pop(partition, None)
        elif effect.after is PartitionState.RESTORING:
            one.seen_at = None
            self._restoring[partition] = now
        elif effect.after in LIVE_STATES and effect.before is PartitionState.RESTORING:
            one.seen_at = now
            if (began := self._restoring.pop(partition, None)) is not None:
                self._restores.append((now - began, one.state_bytes))
                self._restored += 1
                del self._restores[:-_KEPT]

    # -- what follows --------------------------------------------------------------------------------------------------

    def costs(
        self, placement: Mapping[PartitionId, NodeId], capacity: Mapping[NodeId, float], bound: float
    ) -> dict[PartitionId, float]:
        """Return what every partition needs, in cores: nothing to speak of before it is measured.

        What a node has been carrying, a node like it can carry again: where its partitions use more than the bound
        leaves them, their costs are scaled down to it. So a placement that ran fits when its nodes come back.
        """
        load: dict[NodeId, float] = {}
        for p, one in self._partitions.items():
            steady = one.steady.total
            if steady.seconds >= ENOUGH_SECONDS and p in placement:
                one.cores, one.known = steady.cpu_seconds / steady.seconds, True
            if one.known and p in placement:
                load[placement[p]] = load.get(placement[p], 0.0) + one.cores
        for p, one in self._partitions.items():
            if one.known and (node := placement.get(p)) is not None:
                room = capacity.get(node, math.inf) * bound
                if load[node] > room:
                    one.cores *= room / load[node]
        return {p: self.cost(p) for p in self._partitions}

    def is_measured(self) -> bool:
        """Whether every partition was measured at the pace of its sources for long enough to know its rate."""
        return all(one.steady.total.seconds >= ENOUGH_SECONDS for one in self._partitions.values())

    def cost(self, partition: PartitionId) -> float:
        """Return what a partition needs, in cores, as it was last measured."""
        one = self._partitions[partition]
        # Rounded down: sums of rounded costs must not exceed what their node carried.
        return max(LEAST_COST, math.floor(one.cores * 1e6) / 1e6) if one.known else LEAST_COST

    def profile(
        self,
        now: float,
        at: float,
        placement: Mapping[PartitionId, NodeId],
        capacity: Mapping[NodeId, float],
        settings: Mapping[str, Any] | None = None,
    ) -> RunProfile:
        """Return what was measured up to now; `at` is the time of day."""
        done = self._checkpoints
        spans = [seconds for seconds, _ in done if seconds is not None]
        fetched = [(seconds, size) for seconds, size in self._restores if size >= LEAST_RESTORED and seconds > 0]
        return RunProfile(
            at=at,
            period=self.period,
            partitions={
                p: PartitionProfile(one.work.total, one.steady.total, one.replay.total, one.state_bytes)
                for p, one in self._partitions.items()
            },
            placement={p: str(node) for p, node in placement.items()},
            nodes={str(node): None if math.isinf(size) else size for node, size in capacity.items()},
            checkpoint_interval=_mean(self._apart),
            checkpoint_seconds=_mean(spans),
            checkpoint_bytes=_mean([float(written) for _, written in done]),
            snapshots=self.saved.snapshots,
            snapshot_bytes=self.saved.bytes / self.saved.snapshots if self.saved.snapshots else None,
            snapshot_cpu_seconds=self.saved.cpu_seconds / self.saved.snapshots if self.saved.snapshots else None,
            restores=self._restored,
            restore_seconds=_mean([seconds for seconds, _ in self._restores]),
            restore_bandwidth=(sum(size for _, size in fetched) / sum(s for s, _ in fetched)) if fetched else None,
            observed_seconds=self._observed + now - self._began,
            incidents=dict(self._incidents),
            fragments=FragmentProfile(
                bytes_from_peers=self._fetched.peer_bytes,
                bytes_from_folder=self._fetched.folder_bytes,
                bytes_from_node=self._fetched.node_bytes,
                restores=len(self._predicted),
                predicted_seconds=_mean([predicted for predicted, _ in self._predicted]),
                measured_seconds=_mean([measured for _, measured in self._predicted]),
                codes=tuple(
                    {"node": str(node), **one.choice}
                    for (node, _), one in sorted(self._codes.items())
                    if node in capacity
                ),
            ),
            settings=settings or {},
        )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
