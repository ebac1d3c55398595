"""A backend of workers that stay, in one process: messages travel through queues, in order, when they are delivered."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from holdfast.ids import NodeId
from holdfast.recovery.events import NodesArrived, NodesLost
from holdfast.runtime.blocks import Block, decode_blocks, encode_blocks
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.messages import DesiredState, Report
from holdfast.runtime.program import Program
from holdfast.runtime.resident_cycle import ResidentCycle
from holdfast.runtime.state.snapshot_store import SnapshotStore
from holdfast.runtime.state.store import VersionStore
from holdfast.runtime.worker.resident import ResidentWorker
from holdfast.runtime.worker.subscriptions import Request
from holdfast.runtime.worker.worker import NodeWorker


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
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._program, self._batch_log, self._snapshot_store = program, batch_log, snapshot_store
        self._store_of, self._window, self._clock = store_of, window, clock
        self.residents: dict[NodeId, ResidentWorker] = {}
        self.nodes: dict[NodeId, NodeWorker] = {}
        self._numbers: dict[tuple[NodeId, NodeId], int] = {}
        """The connection of a consumer's node to a sender's."""
        self._count = 0
        self._reports: list[Report] = []
        self._cycle: ResidentCycle | None = None
        self._queue: deque[Callable[[], None]] = deque()

    def add_nodes(self, nodes: Mapping[NodeId, float]) -> None:
        for name in nodes:
            worker = NodeWorker(
                self._program,
                self._store_of(name),
                self._snapshot_store,
                self._batch_log,
                name=name,
                clock=self._clock,
                cpu_clock=time.process_time,
            )
            self.nodes[name] = worker
            self.residents[name] = ResidentWorker(
                worker, self._program, clock=self._clock, cpu_clock=time.process_time, window=self._window
            )
        for one in self.residents:
            for other in self.residents:
                if one != other and (one, other) not in self._numbers:
                    self._connect(one, other)
        self._reports.append(NodesArrived(dict(nodes)))

    def _connect(self, one: NodeId, other: NodeId) -> None:
        self._count += 1
        self._numbers[one, other] = self._count
        self.residents[one].subscriptions.connected(other, self._count)

    def lose_nodes(self, *nodes: NodeId) -> None:
        for name in nodes:
            del self.residents[name]
            del self.nodes[name]
            for one, other in list(self._numbers):
                if name in (one, other):
                    number = self._numbers.pop((one, other))
                    if other == name and one in self.residents:
                        self.residents[one].subscriptions.disconnected(other, number)
                    if one == name and other in self.residents:
                        self.residents[other].publications.disconnected(number)
            if self._cycle is not None:
                self._cycle.lost(name)
        self._reports.append(NodesLost(nodes))

    def reconcile(self, desired: DesiredState) -> None:
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
        for name, node in self.residents.items():
            done = node.work()
            for other, requests in done.requests.items():
                for request in requests:
                    self._queue.append(lambda o=other, n=name, r=request: self._request(n, o, r))
            for link, blocks in done.blocks.items():
                data = encode_blocks(blocks)
                self._queue.append(lambda k=link, d=data: self._deliver(k, decode_blocks(d)))
            if done.report is not None:
                self._reports.append(done.report)
            if self._cycle is not None:
                self._cycle.reported(name, done.applied, idle=done.idle)
        while self._queue:
            self._queue.popleft()()

    def _request(self, consumer: NodeId, sender: NodeId, request: Request) -> None:
        if sender in self.residents:
            self.residents[sender].take_request(self._numbers[consumer, sender], request)

    def _deliver(self, link: int, blocks: list[Block]) -> None:
        for (consumer, _), number in self._numbers.items():
            if number == link:
                self.residents[consumer].take_blocks(blocks)

    def request_nodes(self, count: int) -> str | None:
        return None
