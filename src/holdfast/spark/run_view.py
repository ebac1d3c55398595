"""What a run shows of itself: queries, nodes, a recovery, and progress reports. Runs on the driver.

Read by the user's threads while the run's own thread works: everything is copied before it is looked at.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.recovery.branches import TentativeQuery
from holdfast.recovery.copies import level
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
    """`running`; `parked`: an operator, a row or its sink fails; `down`: a partition that it needs is lost or being
    restored; `catching-up` or `paused`: its own."""
    published: int
    """The last batch whose rows are in the sink; -1: none."""
    lag: int
    """Logged batches whose rows are not in the sink yet."""
    error: str | None = None
    """What parked it."""
    replicated: int = 0
    """Partitions that it needs whose replica is level: they continue at once where their node is lost."""
    tentative: bool = False
    """Whether it gives tentative outputs now."""
    fidelity: float | None = None
    """The fidelity predicted for its tentative outputs; None: none are out that final ones have not replaced."""
    tentative_from: int | None = None
    """The first batch of which tentative rows may be out that final ones have not replaced; None: there is none."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node: a host with an executor."""

    name: str
    host: str
    partitions: tuple[str, ...]
    capacity: float | None
    """What it can carry, in the unit of the partitions' costs; None: no limit."""
    replicas: tuple[str, ...] = ()
    """Partitions of which it has a replica."""
    leaving: bool = False
    """Whether it will go before long: its partitions move to other nodes."""


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


def with_tentative(status: QueryStatus, one: TentativeQuery | None) -> QueryStatus:
    """Return a query's status with what is known of its tentative outputs; None: none are out, or wanted."""
    if one is None:
        return status
    return replace(status, tentative=one.active, fidelity=one.fidelity, tentative_from=int(one.since))


class RunView:
    """Looks at a run; `emit` and `advanced` are called in the run's own thread."""

    def __init__(self, running: SparkRun) -> None:
        self._running = running
        self._began = self._last_at = time.time()
        self._reported = running.live_frontier
        self.reported: int = self._reported
        """The last batch whose progress report was handed on."""
        self._published: Counter[str] = Counter()
        self._read: Counter[OperatorId] = Counter()
        """Rows of files that are in reports."""
        self._down_since: float | None = self._began

    # -- events ------------------------------------------------------------------------------------------------------

    def emit(self, seen: Observation) -> None:
        """Take an event: rows that were published, and whether partitions are down."""
        if seen.kind == "published" and not seen.fields.get("tentative"):
            operator = PartitionId.parse(seen.fields["partition"]).operator
            self._published[self._running.program.output_names[operator]] += seen.fields["rows"]
        elif seen.kind == "state":
            down = self._in(PartitionState.LOST) or self._in(PartitionState.RESTORING)
            self._down_since = (self._down_since or seen.at) if down else None

    @property
    def has_news(self) -> bool:
        """Whether there are rows that no report has yet; from any thread."""
        read = self._running.coordinator.reads.rows_read
        return any(list(self._published.values())) or any(count > self._read[name] for name, count in read.items())

    def advanced(self) -> dict[str, Any] | None:
        """Return a progress report if live queries have advanced since the last one.

        The batch that all live partitions have completed goes back where a restored partition joins them; a report
        then waits until it is passed again, so that a batch's rows are in one report only.
        """
        running, now = self._running, time.time()
        before, reached = self._reported, max(self._reported, running.live_frontier)
        rows: Counter[str] = Counter()
        for batch in range(before + 1, reached + 1):
            rows.update(running.ingested_rows(BatchId(batch)))
        # What is in files is known once it was read.
        for name, count in running.coordinator.reads.rows_read.items():
            rows[str(name)] += count - self._read[name]
            self._read[name] = count
        if reached <= before and not rows.total() and not self._published.total():
            return None
        seconds, taken = max(1e-3, now - self._last_at), rows.total()
        published = {name: self._published.pop(name, 0) for name in running.program.output_names.values()}
        self._reported, self._last_at = reached, now
        cluster, restored = running.coordinator.state, running.coordinator.measuring.profiler.fetched_total
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
            "falseAlarms": running.coordinator.false_alarms,
            "restoredBytes": {
                "fromPeers": restored.peer_bytes,
                "fromFolder": restored.folder_bytes,
                "fromNode": restored.node_bytes,
            },
            "partitions": dict(Counter(str(one.state) for one in cluster.partitions.values())),
            "replicas": dict(Counter(str(one.state) for one in list(cluster.copies.at.values()))),
        }

    # -- what users ask ----------------------------------------------------------------------------------------------

    def queries(self) -> list[QueryStatus]:
        """Return every query, in the order of the topology."""
        running, cluster = self._running, self._running.coordinator.state
        topology, logged, levelled = running.program.topology, running.logged, level(cluster)
        found = []
        for index in topology.outputs.tolist():
            partition = topology.partition(index)
            why = cluster.parked.get(partition)
            state = str(cluster.partitions[partition].state) if cluster.available(partition) else "down"
            error = None if why is None else f"{why.partition}, batch {why.batch}: {why.error}"
            out = int(cluster.published[partition])
            name = running.program.output_names[partition.operator]
            priority = int(topology.priority[index])
            lag = max(0, int(logged) - out)
            ready = sum(p in levelled for p in cluster.graph.members(partition))
            shown = "parked" if why else state
            known = QueryStatus(str(partition), name, priority, shown, out, lag, error, ready)
            found.append(with_tentative(known, cluster.branches.at.get(partition)))
        return found

    def nodes(self) -> list[NodeStatus]:
        """Return every node with the partitions on it."""
        cluster = self._running.coordinator.state
        placement, copies = cluster.placement, cluster.copies.placement
        return [
            NodeStatus(
                str(node),
                node.rpartition("-")[0] or str(node),
                tuple(str(p) for p, its in placement.items() if its == node),
                None if math.isinf(capacity) else float(capacity),
                tuple(str(p) for p, its in copies.items() if its == node),
                node in cluster.copies.leaving,
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
        """Whether everything up to a batch is processed, and in its sink where that needs no checkpoint first.

        What is parked does not count.
        """
        running, cluster = self._running, self._running.coordinator.state
        return all(
            one.frontier >= through or cluster.serves_parked_only(p) for p, one in cluster.partitions.items()
        ) and all(
            cluster.published[p] >= through or p in cluster.parked
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
