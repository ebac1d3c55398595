"""What a run shows of itself: queries, nodes, a recovery, and progress reports. Runs on the driver.

Read by the user's threads while the run's own thread works: everything is copied before it is looked at.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from holdfast.ids import BatchId, PartitionId
from holdfast.recovery.states import PartitionState
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.spark.run import SparkRun


@dataclass(frozen=True, slots=True)
class QueryStatus:
    """One query: an output partition and everything it needs."""

    id: str
    """The output partition, like `jams[0]`."""
    output: str
    """The output it belongs to."""
    priority: int
    state: str
    """`running`; `down`: a partition that it needs is lost or being restored; `catching-up` or `paused`: its own."""
    published: int
    """The last batch whose rows are in the sink; -1: none."""
    lag: int
    """Logged batches whose rows are not in the sink yet."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node: a host with an executor."""

    name: str
    host: str
    partitions: tuple[str, ...]
    capacity: float | None
    """What it can carry, in the unit of the partitions' costs; None: no limit."""


@dataclass(frozen=True, slots=True)
class RecoveryStatus:
    """A recovery that is under way."""

    since: float
    """When it began, in seconds since 1970."""
    lost: tuple[str, ...]
    """Partitions that run nowhere: they wait for nodes."""
    restoring: tuple[str, ...]
    """Partitions whose state is on the way to their node."""
    awaited_nodes: int
    """Nodes that were requested and have not come."""


class RunView:
    """Looks at a run; `emit` and `advanced` are called in the run's own thread."""

    def __init__(self, running: SparkRun) -> None:
        self._running = running
        self._began = self._last_at = time.time()
        self._reported = running.live_frontier
        self._published: Counter[str] = Counter()
        self._down_since: float | None = self._began

    # -- events ------------------------------------------------------------------------------------------------------

    def emit(self, seen: Observation) -> None:
        """Take an event: rows that were published, and whether partitions are down."""
        if seen.kind == "published":
            operator = PartitionId.parse(seen.fields["partition"]).operator
            self._published[self._running.program.output_names[operator]] += seen.fields["rows"]
        elif seen.kind == "state":
            down = self._in(PartitionState.LOST) or self._in(PartitionState.RESTORING)
            self._down_since = (self._down_since or seen.at) if down else None

    def advanced(self) -> dict[str, Any] | None:
        """Return a progress report if live queries have advanced since the last one."""
        running, now = self._running, time.time()
        before, reached = self._reported, running.live_frontier
        if reached == before:
            return None
        rows: Counter[str] = Counter()
        for batch in range(before + 1, reached + 1):
            rows.update(running.logged_rows(BatchId(batch)))
        seconds, taken = max(1e-3, now - self._last_at), rows.total()
        published = {name: self._published.pop(name, 0) for name in running.program.output_names.values()}
        self._reported, self._last_at = reached, now
        cluster = running.coordinator.state
        return {
            "id": running.id,
            "runId": running.start_id,
            "name": running.program.name,
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "batchId": int(reached),
            "numInputRows": taken,
            "inputRowsPerSecond": taken / seconds,
            "processedRowsPerSecond": taken / seconds,
            "durationMs": {"triggerExecution": round(1000 * seconds)},
            "sources": [
                {"description": str(name), "endOffset": int(reached), "numInputRows": rows[str(name)]}
                for name in running.program.sources
            ],
            "sinks": [{"description": name, "numOutputRows": published[name]} for name in published],
            "loggedBatchId": int(running.logged),
            "checkpointBatchId": int(cluster.checkpoints.global_batch),
            "claim": cluster.epoch.claim,
            "epoch": cluster.epoch.number,
            "partitions": dict(Counter(str(one.state) for one in cluster.partitions.values())),
        }

    # -- what users ask ----------------------------------------------------------------------------------------------

    def queries(self) -> list[QueryStatus]:
        """Return every query, in the order of the topology."""
        running, cluster = self._running, self._running.coordinator.state
        topology, logged = running.program.topology, running.logged
        found = []
        for index in topology.outputs.tolist():
            partition = topology.partition(index)
            state = str(cluster.partitions[partition].state) if cluster.available(partition) else "down"
            out = int(cluster.published[partition])
            name = running.program.output_names[partition.operator]
            priority = int(topology.priority[index])
            found.append(QueryStatus(str(partition), name, priority, state, out, max(0, int(logged) - out)))
        return found

    def nodes(self) -> list[NodeStatus]:
        """Return every node with the partitions on it."""
        cluster = self._running.coordinator.state
        placement = cluster.placement
        return [
            NodeStatus(
                str(node),
                node.rpartition("-")[0] or str(node),
                tuple(str(p) for p, its in placement.items() if its == node),
                None if math.isinf(capacity) else float(capacity),
            )
            for node, capacity in dict(cluster.nodes).items()
        ]

    def recovery(self) -> RecoveryStatus | None:
        """Return what is lost or being restored; None where every partition is live."""
        lost, restoring = self._in(PartitionState.LOST), self._in(PartitionState.RESTORING)
        if not lost and not restoring:
            return None
        awaited = self._running.coordinator.state.awaited
        return RecoveryStatus(self._down_since or time.time(), lost, restoring, int(awaited))

    def all_live(self) -> bool:
        """Whether no partition is lost or being restored."""
        return not self._in(PartitionState.LOST) and not self._in(PartitionState.RESTORING)

    def is_published(self, through: int) -> bool:
        """Whether everything up to a batch is processed, and in its sink where that needs no checkpoint first."""
        running, cluster = self._running, self._running.coordinator.state
        return running.frontier >= through and all(
            cluster.published[p] >= through
            for p in running.program.outputs
            if running.program.operators[p.operator].deterministic
        )

    def checkpoint_batch(self) -> int:
        """Return the batch of the last global checkpoint; -1: there is none."""
        return int(self._running.coordinator.state.checkpoints.global_batch)

    def explained(self, *, extended: bool) -> str:
        """Return the operators, how they are partitioned, where partitions are, and the outputs, as text."""
        running = self._running
        topology, cluster = running.program.topology, running.coordinator.state
        lines = [f"application {running.program.name}: run {running.id}, start {running.start_id}"]
        for number in topology.operator_order:
            operator = topology.operators[number]
            reads = ", ".join(f"{one.source} ({one.partitioning})" for one in operator.inputs) or "a source"
            name = running.program.output_names.get(operator.id)
            out = "" if name is None else f" -> output {name}, priority {operator.priority}"
            lines.append(f"  {operator.id} x {operator.parallelism} <- {reads}{out}")
            if extended:
                for index in range(operator.parallelism):
                    one = cluster.partitions[PartitionId(operator.id, index)]
                    lines.append(f"    [{index}] {one.state} on {one.node or 'no node'}, batch {one.frontier}")
        return "\n".join(lines)

    def _in(self, state: PartitionState) -> tuple[str, ...]:
        return tuple(str(p) for p in self._running.coordinator.state.in_state([state]))
