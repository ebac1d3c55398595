"""One run of a workload under a plan, in which operators are killed in turn: `kill -9` of the node of each.

Runs on the driver. Every node has one partition, and one node stands by: what is killed is one operator, and it is
restored on the node that stood by; another takes the place of that one before the next kill. Input is due every half
second, kill or no kill. A prediction is on disk before its kill.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.drill.checkers import compare_rows
from holdfast.drill.drill import read_output
from holdfast.drill.driving import IDLE, WAIT_SECONDS, await_executors
from holdfast.drill.losses import is_on
from holdfast.errors import CheckFailed
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.runtime import run_in_process
from holdfast.runtime.coordinator.profiling import SavedSnapshots
from holdfast.spark.planned import plan_for_run
from holdfast.spark.planned_segments import NEVER
from holdfast.spark.run import SparkRun
from holdfast.spark.session import start_session, stop_session
from holdfast.spark.settings import Settings, conf_of
from holdfast_lab.experiments.promises.predicting import Prediction, predict, rolling_back
from holdfast_lab.experiments.promises.workloads import BATCH_SECONDS, Workload

if TYPE_CHECKING:
    from holdfast.runtime.coordinator.event_log import Observation
    from holdfast.spark.cluster import EmbeddedCluster

CAPACITY = 1.25
"""Of a node: with a bound of 80 %, room for one partition."""
LEVEL_BATCHES = 4
"""Partitions that are at most so far behind the log are level."""
STEP_SECONDS = 240.0
"""How long a step of a run may take: to be level again, to be back."""
BEFORE_MARK = 1.0
"""Seconds between a kill and the end of the interval: the next checkpoint is not complete when it is noticed."""
SOON_SECONDS = 4.0
"""Seconds after the checkpoint's batch within which a kill that measures fixed costs comes."""
CALIBRATION_INTERVAL = 5.0
STEADY_SECONDS = 15.0
"""So long the run that measures rates and costs runs before its first kill."""


_Before = Callable[[Prediction], object]
_After = Callable[[dict[str, Any]], object]


@dataclass(frozen=True, slots=True)
class RunAsked:
    """What one run is to do."""

    workload: Workload
    operators: tuple[str, ...]
    """To be killed, in this order."""
    plan_file: str | None
    """A plan of segments or of backups; None: the run that measures rates and fixed costs."""
    interval: Mapping[str, float]
    """Seconds between checkpoints, by operator."""
    work: Mapping[str, float]
    """Seconds of work per second of input, as measured in another run."""
    fixed: float
    seed: int = 1


@dataclass(slots=True)
class _Seen:
    """What events said."""

    published: dict[str, int] = field(default_factory=dict)
    times: dict[tuple[str, int], float] = field(default_factory=dict)
    events: list[Observation] = field(default_factory=list)
    measures: list[tuple[float, Mapping[str, Any]]] = field(default_factory=list)

    def take(self, seen: Observation) -> None:
        if seen.kind == "published":
            query, batch = str(seen.fields["partition"]), int(seen.fields["batch"])
            self.times.setdefault((query, batch), seen.at)
            self.published[query] = max(batch, self.published.get(query, -1))
        elif seen.kind == "measures":
            self.measures.append((seen.at, seen.fields["partitions"]))
        elif seen.kind in ("node-lost", "node-silent", "planned", "restored", "rolled-back", "checkpoint"):
            self.events.append(seen)


class KillingRun:
    """A run, its input, and the nodes that are killed under it."""

    def __init__(self, asked: RunAsked, cluster: EmbeddedCluster, place: Path) -> None:
        self.asked, self._cluster, self._place = asked, cluster, place
        self._seen = _Seen()
        self._given: list[dict[str, Any]] = []
        self._batches = asked.workload.batches(asked.seed)
        self._recovering = {"seconds": 0.0, "snapshots": 0, "bytes": 0}
        """What of the run's time and snapshots was in recoveries: snapshots hold what is kept for those, too."""
        self._prepared: tuple[float, SavedSnapshots] | None = None
        """When all checkpoints had passed the first batch, which is 75 times as large as those that plans count."""

    def run(self, before: _Before, after: _After) -> dict[str, Any]:
        """Kill every operator that was asked for; return what the run cost.

        `before` gets a prediction before its kill, `after` what the kill took.
        """
        app = self.asked.workload.application()
        nodes = len(self._cluster.nodes)
        spark = start_session(f"promises {app.name}", self._cluster.master_url)
        try:
            await_executors(spark, nodes)
            settings = replace(
                Settings.of(conf_of(spark)),
                node_capacity=CAPACITY,
                checkpoint_batches=NEVER,
                checkpoint_seconds=min(self.asked.interval.values()),
            )
            planned = plan_for_run(self.asked.plan_file, app.topology(), None)
            if planned is not None:
                settings, _ = planned.applied(settings, {})
            self._run = SparkRun(
                app,
                spark,
                f"{self._place}/run",
                settings=settings,
                sinks={name: f"{self._place}/out/{name}" for name in app.output_names().values()},
                emit=self._seen.take,
                nodes=nodes,
                secret_file=self._cluster.secret_file,
                wait_seconds=WAIT_SECONDS,
                backups=None if planned is None else planned.backups,
                segments=None if planned is None else planned.executed_segments({}),
            )
            try:
                return self._through(before, after)
            finally:
                self._run.close()
        finally:
            stop_session(spark)

    def _through(self, before: _Before, after: _After) -> dict[str, Any]:
        run = self._run
        run.cycle()
        self._began = time.time()
        if self.asked.plan_file is None:
            steady = self._began + STEADY_SECONDS
            self._until(lambda: time.time() > steady and len(self._seen.measures) > 1, "a first checkpoint")
        measures = [*self._seen.measures]
        for operator in self.asked.operators:
            after(self._kill(operator, before))
        saved, seconds = replace(run.coordinator.measuring.profiler.saved), time.time() - self._began
        since, prepared = self._prepared or (self._began, SavedSnapshots())
        run.log({}, last=True)
        run.run()
        return {
            "seconds": seconds,
            "snapshots": saved.snapshots,
            "bytes": saved.bytes,
            "cpu_seconds": saved.cpu_seconds,
            "bytes_per_second": (saved.bytes - prepared.bytes) / (self._began + seconds - since),
            "recovering": self._recovering,
            "checkpoints": sum(one.kind == "checkpoint" for one in self._seen.events),
            "batches": len(self._given),
            "measures": [] if len(measures) < 2 else [measures[0], measures[-1]],
            "exact": self._exact(),
        }

    # -- one kill ------------------------------------------------------------------------------------------------------

    def _kill(self, operator: str, before: Callable[[Prediction], object]) -> dict[str, Any]:
        run, partition = self._run, PartitionId(OperatorId(operator), 0)
        self._until(lambda: self._is_time(partition), f"a moment to kill {operator}")
        state = run.coordinator.state
        target = int(run.logged) + 1
        prediction = self._predicted(partition, target - int(state.checkpoints.line[partition]))
        before(prediction)
        host = str(state.placement[partition])
        node = next(one for one in self._cluster.nodes.values() if is_on(one.host, host))
        queries = [str(query) for query in state.graph.queries_of(partition)]
        known = len(self._seen.events)
        at = time.time()
        self._cluster.kill_node(node.id)
        self._until(
            lambda: all(self._seen.published.get(query, -1) >= target for query in queries), f"{operator} to be back"
        )
        back = max(
            min(when for (query, batch), when in self._seen.times.items() if query == one and batch >= target)
            for one in queries
        )
        steps: dict[str, float] = {}
        for event in self._seen.events[known:]:
            steps.setdefault(event.kind, round(event.at - at, 3))
        rolled = [one.fields["partitions"] for one in self._seen.events[known:] if one.kind == "rolled-back"]
        self._cluster.add_node()
        return {
            "operator": operator,
            "prediction": prediction.document(),
            "at": at,
            "measured": back - at,
            "steps": steps,
            "rolled_back": sorted({str(p) for group in rolled for p in group}),
        }

    def _is_time(self, partition: PartitionId) -> bool:
        """Whether the operator may be killed now: all are level, a node stands by, and its checkpoint is old enough."""
        state = self._run.coordinator.state
        logged = int(self._run.logged)
        if state.recovering or any(logged - one.frontier > LEVEL_BATCHES for one in state.partitions.values()):
            return False
        if len(state.nodes) <= len(state.partitions):
            return False
        age = (logged - int(state.checkpoints.line[partition])) * BATCH_SECONDS
        if self.asked.plan_file is None:
            return age <= SOON_SECONDS
        interval = self.asked.interval[partition.operator]
        return interval - BEFORE_MARK <= age <= interval

    def _predicted(self, partition: PartitionId, batches: int) -> Prediction:
        state = self._run.coordinator.state

        def keeps(sender: str, consumer: str) -> bool:
            """Whether the plan has the sender keep what the consumer needs, or the sender happens to have it still."""
            one, other = PartitionId(OperatorId(sender), 0), PartitionId(OperatorId(consumer), 0)
            needed = int(state.checkpoints.line[other]) + 1
            return state.plan.now.keeps(one, other) or int(state.partitions[one].kept_from) <= needed

        inputs = self.asked.workload.inputs
        operator = str(partition.operator)
        back = rolling_back(operator, inputs.__getitem__, keeps)
        # Each on a node of its own, before and after.
        return predict(
            operator,
            back,
            batches,
            BATCH_SECONDS,
            inputs,
            self.asked.work,
            {name: name for name in inputs},
            self.asked.fixed,
        )

    # -- the stream ----------------------------------------------------------------------------------------------------

    def _until(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STEP_SECONDS
        while not holds():
            if time.monotonic() > deadline:
                raise CheckFailed(f"waited {STEP_SECONDS:g} s for {what}", where=str(self._place))
            self._step()

    def _step(self) -> None:
        run = self._run
        due = math.floor((time.time() - self._began) / BATCH_SECONDS)
        while int(run.logged) < due:
            self._given.append(next(self._batches))
            run.log(self._given[-1], number=BatchId(run.logged + 1))
        began, saved = time.time(), replace(run.coordinator.measuring.profiler.saved)
        if self._prepared is None and all(batch > 0 for batch in run.coordinator.state.checkpoints.line.values()):
            self._prepared = began, saved
        run.cycle(IDLE)
        if run.coordinator.state.recovering:
            now = run.coordinator.measuring.profiler.saved
            self._recovering["seconds"] += time.time() - began
            self._recovering["snapshots"] += now.snapshots - saved.snapshots
            self._recovering["bytes"] += now.bytes - saved.bytes

    def _exact(self) -> bool:
        """Whether outputs are those of a run in one process without failures; it does not sleep."""
        app = self.asked.workload.application()
        app.before_steps = {}
        done = run_in_process(app, self._given, nodes=1, close=True)
        return all(
            compare_rows(done.rows(name), read_output(f"{self._place}/out/{name}")).holds
            for name in app.output_names().values()
        )
