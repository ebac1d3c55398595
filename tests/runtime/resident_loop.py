"""A backend of workers that stay, in one process: messages travel through queues, in order, when they are delivered.

Its nodes may have several "operator processes", which are workers here: `residents` has them by their names.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.ids import NodeId, PartitionId
from holdfast.recovery.events import NodesArrived, NodesLost
from holdfast.runtime.blocks import Block, decode_blocks, encode_blocks
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.messages import REPORT_BYTES, DesiredState, NodeReport, Report
from holdfast.runtime.processes import ProcessSpread, declared_costs
from holdfast.runtime.program import Program
from holdfast.runtime.resident_cycle import ResidentCycle
from holdfast.runtime.state.snapshot_store import SnapshotStore
from holdfast.runtime.state.store import VersionStore
from holdfast.runtime.worker.resident import ResidentWorker
from holdfast.runtime.worker.subscriptions import Request
from holdfast.runtime.worker.worker import NodeWorker
from holdfast_lab.simulation.recovery.files import ProcessDied


@dataclass(slots=True)
class _Node:
    """The processes of a node together."""

    workers: list[NodeWorker]

    @property
    def host(self) -> _Node:
        return self

    def lose(self, partition: PartitionId) -> None:
        """Lose a partition with its files, in whichever process it is."""
        for worker in self.workers:
            worker.host.lose(partition)


class ResidentLoop:
    """See the coordinator's Backend."""

    takes_updates = True

    def __init__(
        self,
        program: Program,
        batch_log: BatchLog,
        snapshot_store: SnapshotStore,
        store_of: Callable[[NodeId], VersionStore],
        *,
        window: int = 8,
        report_bytes: int = REPORT_BYTES,
        clock: Callable[[], float] = time.perf_counter,
        processes: int = 1,
    ) -> None:
        self._program, self._batch_log, self._snapshot_store = program, batch_log, snapshot_store
        self._store_of, self._window, self._clock = store_of, window, clock
        self._report_bytes = report_bytes
        self._spread = ProcessSpread(processes, declared_costs(program))
        self._places: dict[NodeId, tuple[NodeId, int]] = {}
        """The node of each process, and which of its processes it is."""
        self.residents: dict[NodeId, ResidentWorker] = {}
        self._workers: dict[NodeId, NodeWorker] = {}
        self._numbers: dict[tuple[NodeId, NodeId], int] = {}
        """The connection of a consumer's node to a sender's."""
        self._count = 0
        self._reports: list[Report] = []
        self._cycle: ResidentCycle | None = None
        self.released: list[NodeId] = []
        self.restarts = 0
        """How many operator processes have died and come again."""
        self._queue: deque[Callable[[], None]] = deque()
        self.loses: Callable[[NodeReport], bool] = lambda report: False
        """Which reports are lost with the connection to the driver; the process lives on, and dials again."""

    @property
    def nodes(self) -> dict[NodeId, _Node]:
        """The nodes, as whoever takes partitions from them sees them."""
        found: dict[NodeId, _Node] = {}
        for name, (node, _) in self._places.items():
            found.setdefault(node, _Node([])).workers.append(self._workers[name])
        return found

    def add_nodes(self, nodes: Mapping[NodeId, float]) -> None:
        for node in nodes:
            for index, name in enumerate(self._spread.names(node)):
                self._places[name] = node, index
                self._start(name)
        self._connect_all()
        self._reports.append(NodesArrived(dict(nodes)))

    def _start(self, name: NodeId) -> None:
        worker = NodeWorker(
            self._program,
            self._store_of(name),
            self._snapshot_store,
            self._batch_log,
            name=name,
            clock=self._clock,
            cpu_clock=time.process_time,
        )
        self._workers[name] = worker
        self.residents[name] = ResidentWorker(
            worker,
            self._program,
            clock=self._clock,
            cpu_clock=time.process_time,
            window=self._window,
            report_bytes=self._report_bytes,
        )

    def _restart(self, name: NodeId) -> None:
        """The operator process of a node has died: its connections end, and the next one opens the same files."""
        self.restarts += 1
        self._disconnect(name)
        while True:
            try:
                self._start(name)
                break
            except ProcessDied:
                self.restarts += 1
        self._connect_all()
        if self._cycle is not None:
            self._cycle.left(name)
            self.residents[name].hand_out(self._cycle.desired)

    def _connect_all(self) -> None:
        for one in self.residents:
            for other in self.residents:
                if one != other and (one, other) not in self._numbers:
                    self._connect(one, other)

    def _connect(self, one: NodeId, other: NodeId) -> None:
        self._count += 1
        self._numbers[one, other] = self._count
        self.residents[one].subscriptions.connected(other, self._count)

    def lose_nodes(self, *nodes: NodeId) -> None:
        for node in nodes:
            self._spread.lose(node)
        for name in [name for node in nodes for name in self._spread.names(node)]:
            del self.residents[name]
            del self._workers[name]
            del self._places[name]
            self._disconnect(name)
            if self._cycle is not None:
                self._cycle.lost(name)
        self._reports.append(NodesLost(nodes))

    def _disconnect(self, name: NodeId) -> None:
        for one, other in list(self._numbers):
            if name in (one, other):
                number = self._numbers.pop((one, other))
                if other == name and one in self.residents:
                    self.residents[one].subscriptions.disconnected(other, number)
                if one == name and other in self.residents:
                    self.residents[other].publications.disconnected(number)

    def reconcile(self, desired: DesiredState) -> None:
        desired = self._spread.divide(desired, {node for node, _ in self._places.values()})
        self._cycle = ResidentCycle(desired)
        for node in self.residents.values():
            node.hand_out(desired)

    def reports(self, timeout: float) -> Sequence[Report]:
        if not self._reports:
            self._turn()
        if self._cycle is not None and (ended := self._cycle.end()) is not None:
            self._reports.append(ended)
        found, self._reports = self._reports, []
        return found

    def _turn(self) -> None:
        """Let every node work once, and deliver what that sends."""
        for name, node in list(self.residents.items()):
            try:
                done = node.work()
            except ProcessDied:
                self._restart(name)
                continue
            for other, requests in done.requests.items():
                for request in requests:
                    self._queue.append(lambda o=other, n=name, r=request: self._request(n, o, r))
            for link, blocks in done.blocks.items():
                data = encode_blocks(blocks)
                self._queue.append(lambda k=link, d=data: self._deliver(k, decode_blocks(d)))
            if done.report is not None and self.loses(done.report):
                node.driver_connected()
            elif done.report is not None:
                self._reports.append(self._spread.report_of(*self._places[name], done.report))
            if self._cycle is not None:
                self._cycle.reported(name, done.applied, idle=done.idle)
        while self._queue:
            self._queue.popleft()()

    def _request(self, consumer: NodeId, sender: NodeId, request: Request) -> None:
        if (consumer, sender) in self._numbers:
            self.residents[sender].take_request(self._numbers[consumer, sender], request)

    def _deliver(self, link: int, blocks: list[Block]) -> None:
        for (consumer, _), number in self._numbers.items():
            if number == link:
                self.residents[consumer].take_blocks(blocks)

    def release_nodes(self, nodes: Sequence[NodeId]) -> None:
        self.released += nodes

    def request_nodes(self, count: int) -> str | None:
        return None
