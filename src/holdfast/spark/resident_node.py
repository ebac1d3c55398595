"""A node's operator process: a resident worker, its connections, and the loop between them. Runs on a node.

Started by the node's Spark task (resident_task.py) as a process of its own, which runs all user code. One thread works;
threads of links put what comes into a queue. The driver hands out desired states and gets reports; consumers' nodes
dial senders' nodes and subscribe. A node that the driver's connection has left does nothing more: it neither processes
nor publishes, dials the driver again, and ends if nobody answers.
"""

from __future__ import annotations

import itertools
import json
import math
import pickle
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.errors import CheckFailed, HoldfastError, one_line
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime.blocks import Block, decode_blocks, encode_blocks
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.message_codec import decode_desired, encode_report
from holdfast.runtime.program import Program
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.worker.resident import ResidentWorker
from holdfast.runtime.worker.subscriptions import Request
from holdfast.runtime.worker.worker import NodeWorker
from holdfast.spark.agents import AgentReport, agent_settings, ensure_agent, node_spool
from holdfast.spark.run_context import RunContext, state_folder
from holdfast.spark.snapshot_store import NodeSnapshotStore
from holdfast.store.agent.spool import Spool
from holdfast.store.wire.address import Address
from holdfast.store.wire.handshake import ClusterKey
from holdfast.store.wire.link import Link, LinkListener, dial
from holdfast.store.wire.messages import Header

REDIAL_SECONDS = 0.25
"""How long to wait before a node that does not answer is dialled again."""
ORPHANED_SECONDS = 30.0
"""A node whose driver does not answer for so long ends."""
AGENT_SECONDS = 1.0
"""How often the node's agent is looked after, until it is part of the ring; then ten times less often."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who a node is, and whom it belongs to."""

    node: NodeId
    host: str
    """The address at which other nodes reach it."""
    token: str
    """Names the Spark job that holds the node: a task of an earlier one is not taken for it."""
    driver: str
    """Where the driver listens."""
    port: int = 0
    """Where the node listens; 0: any."""


class ResidentNode:
    """The process of one node."""

    def __init__(self, context: RunContext, identity: NodeIdentity, key: ClusterKey) -> None:
        self._context, self._identity, self._key = context, identity, key
        self._program = Program(pickle.loads(context.application))
        self._agent: AgentReport | None = None
        self._join: tuple[str, ...] = ()
        self._agent_at = 0.0
        self._look_after_agent()
        worker = NodeWorker(
            self._program,
            DirectoryStore(state_folder(context.start, identity.node)),
            NodeSnapshotStore(context.durable, self._spool()),
            BatchLog(self._program.sources, self._program.name, context.storage, generation=context.generation),
            name=identity.node,
            clock=time.perf_counter,
            cpu_clock=time.process_time,
            stagers=pickle.loads(context.stagers) if context.stagers else {},
        )
        self._worker = ResidentWorker(
            worker,
            self._program,
            clock=time.monotonic,
            cpu_clock=time.process_time,
            window=context.settings.exchange_window,
        )
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._driver: Link | None = None
        self._standing: dict[str, int] = {}
        """What was sent to the driver last: which desired state was reconciled with, and whether more is to do."""
        self._driver_left = time.monotonic()
        self._ends = False
        self._addresses: dict[NodeId, str] = {}
        self._senders: dict[NodeId, tuple[Link, int]] = {}
        """Connections to the nodes of senders, with their numbers."""
        self._dial_at: dict[NodeId, float] = {}
        """When to dial a node: not before, and not while a thread does."""
        self._subscribers: dict[int, Link] = {}
        """Connections from the nodes of consumers."""
        self._numbers = itertools.count(1)
        self._listener = LinkListener(identity.host, identity.port, key, self._on_subscriber)

    def run(self) -> None:
        """Work until the driver says that the run is over."""
        try:
            wait = 0.0
            while not self._ends:
                self._take_events(wait)
                wait = self._turn()
        finally:
            self._listener.close()
            for link, _ in self._senders.values():
                link.close()
            if self._driver is not None:
                self._driver.close()

    def _take_events(self, wait: float) -> None:
        """Act on what has come; wait for it, but no longer than this."""
        try:
            event = self._events.get(timeout=wait) if wait > 0 else self._events.get_nowait()
            while True:
                event()
                event = self._events.get_nowait()
        except queue.Empty:
            return

    def _turn(self) -> float:
        """Do what can be done; return how long to wait for events."""
        now = time.monotonic()
        if self._driver is None:
            if now - self._driver_left > ORPHANED_SECONDS:
                self._ends = True
                return 0.0
            return 0.0 if self._dial_driver() else REDIAL_SECONDS
        if now >= self._agent_at:
            self._look_after_agent()
        self._dial_senders(now)
        done = self._worker.work()
        for node, requests in done.requests.items():
            if (held := self._senders.get(node)) is not None:
                held[0].send({"do": "requests"}, [encode_requests(requests)])
        for number, blocks in done.blocks.items():
            if (link := self._subscribers.get(number)) is not None:
                link.send({"do": "blocks"}, [_encoded(blocks)])
        standing = {"applied": done.applied, "idle": done.idle}
        if done.report is not None:
            self._driver.send({"do": "report", **standing}, [encode_report(done.report)])
        elif standing != self._standing:
            self._driver.send({"do": "standing", **standing})
        self._standing = standing
        return min(done.wait, max(0.0, self._agent_at - now))

    # -- the driver ----------------------------------------------------------------------------------------------------

    def _dial_driver(self) -> bool:
        identity = self._identity
        me = {"node": identity.node, "token": identity.token, "address": str(self._listener.address)}
        try:
            self._driver = dial(Address.parse(identity.driver), self._key, me, self._from_driver, self._left_by_driver)
        except HoldfastError:
            return False
        self._standing = {}
        self._report_agent()
        return True

    def _from_driver(self, link: Link, header: Header, body: Any) -> None:
        do = header.get("do")
        if do == "desired":
            desired = decode_desired(pa.py_buffer(body))
            self._events.put(lambda: self._worker.hand_out(desired))
        elif do == "number":
            self._events.put(lambda: self._renumber(int(header["number"]), int(header["of"])))
        elif do == "peers":
            addresses = {NodeId(node): str(address) for node, address in header["addresses"].items()}
            self._events.put(lambda: self._meet(addresses, tuple(header["join"])))
        elif do == "end":
            self._events.put(self._end)

    def _renumber(self, number: int, of: int) -> None:
        """The desired state stays as it is, under a new number."""
        held = self._worker.desired
        if held is not None and held.number == of:
            self._worker.hand_out(replace(held, number=number, forget=()))

    def _meet(self, addresses: Mapping[NodeId, str], join: tuple[str, ...]) -> None:
        for node in [node for node in self._senders if addresses.get(node) != self._addresses.get(node)]:
            self._senders[node][0].close()  # of a process before: its end leads to a new connection
        self._addresses = dict(addresses)
        if join != self._join:
            self._join, self._agent_at = join, 0.0

    def _end(self) -> None:
        self._ends = True

    def _left_by_driver(self, link: Link, why: str) -> None:
        def forget() -> None:
            if self._driver is link:
                self._driver, self._driver_left = None, time.monotonic()

        self._events.put(forget)

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def _dial_senders(self, now: float) -> None:
        """Connect to the nodes whose partitions send to partitions here; threads dial, for that may take long."""
        for node in self._worker.sender_nodes():
            address = self._addresses.get(node)
            if address is None or node in self._senders or now < self._dial_at.get(node, now):
                continue
            self._dial_at[node] = math.inf
            threading.Thread(target=self._dial_sender, args=(node, address), daemon=True).start()

    def _dial_sender(self, node: NodeId, address: str) -> None:
        number = time.time_ns()  # above those of an earlier process of this node

        def end(link: Link, why: str) -> None:
            self._events.put(lambda: self._lose_sender(node, number))

        def made() -> None:
            self._senders[node] = (link, number)
            self._dial_at.pop(node, None)
            self._worker.subscriptions.connected(node, number)

        def not_made() -> None:  # it is being replaced, or starts
            self._dial_at[node] = time.monotonic() + REDIAL_SECONDS

        try:
            link = dial(Address.parse(address), self._key, {"node": self._identity.node}, self._from_sender, end)
        except HoldfastError:
            self._events.put(not_made)
        else:
            self._events.put(made)

    def _lose_sender(self, node: NodeId, number: int) -> None:
        self._worker.subscriptions.disconnected(node, number)
        if node in self._senders and self._senders[node][1] == number:
            del self._senders[node]

    def _from_sender(self, link: Link, header: Header, body: Any) -> None:
        if header.get("do") == "blocks":
            try:
                blocks = decode_blocks(pa.py_buffer(body))
            except CheckFailed:
                link.close()  # what is damaged comes again by the next subscription
                return
            self._events.put(lambda: self._worker.take_blocks(blocks))

    def _on_subscriber(self, link: Link) -> tuple[Callable[..., None], Callable[..., None]]:
        number = next(self._numbers)

        def message(link: Link, header: Header, body: Any) -> None:
            if header.get("do") == "requests":
                requests = decode_requests(body)

                def take() -> None:
                    for one in requests:
                        self._worker.take_request(number, one)

                self._events.put(take)

        def end(link: Link, why: str) -> None:
            def forget() -> None:
                self._subscribers.pop(number, None)
                self._worker.publications.disconnected(number)

            self._events.put(forget)

        self._events.put(lambda: self._subscribers.__setitem__(number, link))
        return message, end

    # -- the agent -----------------------------------------------------------------------------------------------------

    def _look_after_agent(self) -> None:
        """See that this node has an agent; where it may not have one, checkpoints go to the run's directory alone."""
        context = self._context
        try:
            report = ensure_agent(
                node_spool(context.run), agent_settings(context.settings, self._identity.host), self._join
            )
        except (HoldfastError, OSError) as error:
            report = AgentReport("", None, ready=False, problem=one_line(str(error)))
        settled = report.ready or report.problem is not None
        self._agent_at = time.monotonic() + AGENT_SECONDS * (10 if settled else 1)
        if report != self._agent:
            self._agent = report
            self._report_agent()

    def _report_agent(self) -> None:
        if getattr(self, "_driver", None) is not None and self._driver is not None and self._agent is not None:
            one = self._agent
            self._driver.send(
                {"do": "agent", "spool": one.spool, "address": one.address, "ready": one.ready, "problem": one.problem}
            )

    def _spool(self) -> Spool | None:
        report = self._agent
        return None if report is None or report.problem is not None else Spool(report.spool)


def encode_requests(requests: Sequence[Request]) -> bytes:
    """Write requests."""
    return json.dumps(
        [[int(r.epoch), r.consumer, r.sender, r.after, r.through, r.connection] for r in requests]
    ).encode()


def decode_requests(data: Any) -> list[Request]:
    """Read requests; what is none is refused."""
    try:
        rows = json.loads(bytes(data))
        if not isinstance(rows, list):
            raise TypeError("no list")
        return [
            Request(
                Epoch(epoch),
                PartitionId(OperatorId(consumer[0]), int(consumer[1])),
                PartitionId(OperatorId(sender[0]), int(sender[1])),
                None if after is None else BatchId(after),
                BatchId(through),
                int(connection),
            )
            for epoch, consumer, sender, after, through, connection in rows
        ]
    except (ValueError, TypeError, IndexError, KeyError):
        raise CheckFailed("a list of requests cannot be read", remedy="see that all nodes run one version") from None


def _encoded(blocks: Sequence[Block]) -> bytes:
    """Write blocks as one piece, those of one sender and batch beside each other."""
    return encode_blocks(sorted(blocks, key=lambda block: (block.header.sender, block.header.edge, block.header.batch)))
