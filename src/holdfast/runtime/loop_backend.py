"""Nodes in one process: what carries blocks between them is a loop. For tests, the simulator, and a first try.

It is the real thing in small: the same nodes, stores, snapshot_store and cycles as on a cluster. Nodes can be lost with
all their files, and others come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.recovery.events import Event, NodesArrived, NodesLost
from holdfast.runtime.backend import Broken
from holdfast.runtime.blocks import Block
from holdfast.runtime.io.sources import SourceLog
from holdfast.runtime.messages import Cycle, NodeReport
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import SnapshotStore
from holdfast.runtime.state.store import VersionStore
from holdfast.runtime.worker.worker import Node


class LoopBackend:
    """Nodes as objects; see the coordinator's Backend."""

    def __init__(
        self,
        program: Program,
        logs: Mapping[OperatorId, SourceLog],
        snapshot_store: SnapshotStore,
        store_of: Callable[[NodeId], VersionStore],
        *,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.process_time,
    ) -> None:
        self._program, self._logs, self._snapshot_store, self._store_of = program, logs, snapshot_store, store_of
        self._clock, self._cpu_clock = clock, cpu_clock
        self.nodes: dict[NodeId, Node] = {}
        self._events: list[Event] = []

    def add_nodes(self, nodes: Mapping[NodeId, float]) -> None:
        """Let nodes come, each with its capacity."""
        for name in nodes:
            self.nodes[name] = Node(
                self._program,
                self._store_of(name),
                self._snapshot_store,
                self._logs,
                name=name,
                clock=self._clock,
                cpu_clock=self._cpu_clock,
            )
        self._events.append(NodesArrived(dict(nodes)))

    def lose_nodes(self, *nodes: NodeId) -> None:
        """Let nodes go, with everything on them."""
        for name in nodes:
            del self.nodes[name]
        self._events.append(NodesLost(nodes))

    def events(self) -> Sequence[Event]:
        """See Backend."""
        found, self._events = self._events, []
        return found

    def run(self, cycle: Cycle) -> Sequence[NodeReport] | Broken:
        """See Backend: levels follow each other until nothing moves between nodes."""
        reports: list[NodeReport] = []
        waiting: dict[NodeId, list[Block]] = {}
        sent: set[object] = set()
        level = 0
        busy = sorted({task.node for task in cycle.tasks.values()} & set(self.nodes))
        while busy:
            coming: dict[NodeId, list[Block]] = {}
            for name in busy:
                report = self.nodes[name].level(cycle, level, waiting.get(name, ()))
                reports.append(report)
                for block in report.blocks:
                    target = self._target(cycle, block.header.receiver)
                    if target is not None and block.header.sequence not in sent:
                        sent.add(block.header.sequence)
                        coming.setdefault(target, []).append(block)
            waiting, level = coming, level + 1
            busy = sorted(set(coming) & set(self.nodes))
        return reports

    def _target(self, cycle: Cycle, receiver: PartitionId) -> NodeId | None:
        task = cycle.tasks.get(receiver)
        return None if task is None else task.node

    def request_nodes(self, count: int) -> str | None:
        """See Backend: nodes come when the owner of this backend adds them."""
        return None

    def wait(self, seconds: float) -> None:
        """See Backend: nothing happens here while one waits."""
