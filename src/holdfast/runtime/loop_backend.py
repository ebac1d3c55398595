"""Nodes in one process: what carries blocks between them is a loop. For tests, the simulator, and a first try.

The same workers, stores and snapshot store as on a cluster; only what carries blocks between them is a loop. Nodes can
be lost with all their files, and others come.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from holdfast.ids import NodeId, OperatorId
from holdfast.recovery.events import NodesArrived, NodesLost
from holdfast.runtime.blocks import Block
from holdfast.runtime.io.sources import SourceLog
from holdfast.runtime.messages import CycleEnded, DesiredState, Report
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import SnapshotStore
from holdfast.runtime.state.store import VersionStore
from holdfast.runtime.worker.worker import NodeWorker


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
        self.nodes: dict[NodeId, NodeWorker] = {}
        self._reports: list[Report] = []

    def add_nodes(self, nodes: Mapping[NodeId, float]) -> None:
        """Let nodes come, each with its capacity."""
        for name in nodes:
            self.nodes[name] = NodeWorker(
                self._program,
                self._store_of(name),
                self._snapshot_store,
                self._logs,
                name=name,
                clock=self._clock,
                cpu_clock=self._cpu_clock,
            )
        self._reports.append(NodesArrived(dict(nodes)))

    def lose_nodes(self, *nodes: NodeId) -> None:
        """Let nodes go, with everything on them."""
        for name in nodes:
            del self.nodes[name]
        self._reports.append(NodesLost(nodes))

    def reports(self, timeout: float) -> Sequence[Report]:
        """See Backend: everything is done when `reconcile` returns, so nothing comes later."""
        found, self._reports = self._reports, []
        return found

    def reconcile(self, desired: DesiredState) -> None:
        """See Backend: levels follow each other until no block moves between nodes."""
        waiting: dict[NodeId, list[Block]] = {}
        level = 0
        busy = sorted({one.node for one in desired.assignments.values()} & set(self.nodes))
        while busy:
            coming: dict[NodeId, list[Block]] = {}
            for name in busy:
                report = self.nodes[name].reconcile(desired, level, waiting.get(name, ()))
                self._reports.append(report)
                for target, blocks in report.sent.items():
                    coming.setdefault(target, []).extend(blocks)
            waiting, level = coming, level + 1
            busy = sorted(set(coming) & set(self.nodes))
        self._reports.append(CycleEnded(desired.number, desired.epoch))

    def request_nodes(self, count: int) -> str | None:
        """See Backend: nodes come when the owner of this backend adds them."""
        return None
