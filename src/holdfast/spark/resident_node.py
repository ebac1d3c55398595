"""An operator process of a node: a resident worker, its connections, and the loop between them. Runs on a node.

Started by the node's Spark task (resident_task.py) as a process of its own, which runs user code; a node has one or
several, each with its partitions, its journal and its connections, and each a node to the others. One thread works;
threads of links put what comes into a queue. The driver hands out desired states and gets reports; consumers' nodes
dial senders' nodes and subscribe. A node that the driver's connection has left does nothing more: it neither processes
nor publishes, dials the driver again, and ends if nobody answers. Nor does one whose lease (lease.py) has run out,
because the driver's pings or its own answers do not arrive; where that lasts, it dials the driver anew.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import pickle
import queue
import shutil
import ssl
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.errors import BadInput, CheckFailed, HoldfastError, one_line
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime.blocks import Block, decode_blocks, encode_blocks, in_messages
from holdfast.runtime.coordinator.sink_calls import Returned
from holdfast.runtime.detection import RETURN_FACTOR
from holdfast.runtime.function_messages import decode_call, encode_returned
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.message_codec import decode_desired, encode_report
from holdfast.runtime.messages import in_reports
from holdfast.runtime.processes import process_name
from holdfast.runtime.program import Program
from holdfast.runtime.state.journal_store import JournalStore, Superseded
from holdfast.runtime.state.opened_data import DEFAULT_CACHE_BYTES
from holdfast.runtime.worker.function_calls import FunctionCalls
from holdfast.runtime.worker.function_threads import FunctionThreads
from holdfast.runtime.worker.lease import DriverLease
from holdfast.runtime.worker.resident import INBOX_BYTES, ResidentWorker, Standing
from holdfast.runtime.worker.saving_beside import SavesBeside
from holdfast.runtime.worker.sender_links import REDIAL_SECONDS, SenderLinks
from holdfast.runtime.worker.spill import InboxSpill
from holdfast.runtime.worker.step_guard import StepGuard
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
from holdfast.store.wire.ports import ANY, Ports
from holdfast.store.wire.tls import Tls

LEASE_SECONDS = 0.05
"""How long a process without a lease waits before it looks again."""
ORPHANED_SECONDS = 30.0
"""A node whose driver does not answer for so long ends."""
QUEUED_BYTES = 64 << 20
"""A connection that has more than this to send gets no more blocks: who requests them again gets no second copy."""
AGENT_SECONDS = 1.0
"""How often the node's agent is looked after, until it is part of the ring; then ten times less often."""


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Who a node is, and whom it belongs to."""

    node: NodeId
    executor: str
    """The number of its executor in Spark."""
    host: str
    """The host of its executor, as Spark names it."""
    token: str
    """Names the Spark job that holds the node: a task of an earlier one is not taken for it."""
    driver: str
    """Where the driver listens."""
    ports: Ports = ANY
    """Where its processes may listen, each beginning with a port of its own."""
    bind: str | None = None
    """The address at which they listen; None: the host of its executor."""
    reached_at: str | None = None
    """Where others reach them; None: at the host of its executor."""
    processes: int = 1
    """How many operator processes it has."""
    domain: str | None = None
    """Its failure domain; None: it is not known."""


_KINDS = ("snapshots", "regenerating", "spill")


def _beside(folder: Path, kind: str) -> Path:
    """Return a folder for something else, beside that of the state."""
    return folder.with_name(f"{folder.name}.{kind}")


def _empty_journal(folder: Path, processes: int) -> tuple[JournalStore, Callable[[], None]]:
    """Return an empty store for regenerators, and what removes it; a process before this one may have left one."""
    shutil.rmtree(folder, ignore_errors=True)
    store = JournalStore(folder, cache_bytes=DEFAULT_CACHE_BYTES // processes)

    def remove() -> None:
        store.close()
        shutil.rmtree(folder, ignore_errors=True)

    return store, remove


class ResidentNode:
    """One process of a node."""

    _leased_at = _redial_seconds = math.inf
    _is_over = False
    """Whether the driver has said that it needs this process no more."""

    def __init__(
        self,
        context: RunContext,
        identity: NodeIdentity,
        index: int,
        key: ClusterKey,
        guard: StepGuard,
        tls: Tls | None = None,
    ) -> None:
        """`index`: which of the node's processes it is."""
        self._context, self._identity, self._index, self._key = context, identity, index, key
        self._guard, self._name = guard, process_name(identity.node, index, identity.processes)
        self._program = Program(pickle.loads(context.application))
        self._agent: AgentReport | None = None
        self._join: tuple[str, ...] = ()
        self._agent_at = 0.0
        self._look_after_agent()
        folder, snapshots = state_folder(context.start, self._name), NodeSnapshotStore(context.durable, self._spool())
        self._folder = folder
        self._store = JournalStore(folder, cache_bytes=DEFAULT_CACHE_BYTES // identity.processes)
        worker = NodeWorker(
            self._program,
            self._store,
            snapshots,
            BatchLog(self._program.sources, self._program.name, context.storage, generation=context.generation),
            name=self._name,
            clock=time.perf_counter,
            cpu_clock=time.process_time,
            stagers=pickle.loads(context.stagers) if context.stagers else {},
            guard=guard,
            quarantine_rows=context.settings.errors_quarantine_rows,
            beside=SavesBeside(snapshots, _beside(folder, "snapshots")),
            regenerators_in=partial(_empty_journal, _beside(folder, "regenerating"), identity.processes),
        )
        inbox_bytes = INBOX_BYTES // identity.processes  # with the cache, a bound for the node
        self._worker = ResidentWorker(
            worker,
            self._program,
            clock=time.monotonic,
            cpu_clock=time.process_time,
            window=context.settings.exchange_window,
            inbox_bytes=inbox_bytes,
        )
        self._spill = InboxSpill(_beside(folder, "spill"), inbox_bytes)
        self._handed = 0
        """Bytes of blocks that the worker got since its last round."""
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._functions = FunctionCalls(
            pickle.loads(context.functions) if context.functions else {},
            worker.output_rows,
            FunctionThreads(self._events.put).begin,
            self._answer_calls,
        )
        self._driver: Link | None = None
        self._standing = Standing()
        self._driver_left = time.monotonic()
        self._lease, self._lease_lock = DriverLease(context.settings.keepalive_seconds), threading.Lock()
        self._leased_at = time.monotonic()
        """When it last had a lease, or dialled for want of one."""
        self._redial_seconds = RETURN_FACTOR * context.settings.keepalive_seconds
        self._ends = False
        self._problem: str | None = None
        self._senders: SenderLinks[Link, str] = SenderLinks(self._worker.subscriptions, self._replaced)
        self._subscribers: dict[int, Link] = {}
        """Connections from the nodes of consumers."""
        self._worker.publications.is_full = self._is_full
        self._numbers = itertools.count(1)
        self._tls = None if tls is None else tls.context(serving=False)
        self._listener = self._listening(None if tls is None else tls.context(serving=True))

    def _listening(self, tls: ssl.SSLContext | None) -> LinkListener:
        """Listen for other processes; where that cannot be, people learn it from the driver, which others may reach."""
        identity = self._identity
        try:
            return LinkListener(
                identity.bind or identity.host,
                identity.ports.tried(self._index),
                self._key,
                self._on_subscriber,
                reached_at=identity.reached_at or identity.host,
                tls=tls,
            )
        except BadInput as bad:
            me = {"node": identity.node, "process": self._index, "token": identity.token, "problem": str(bad)}
            with contextlib.suppress(HoldfastError):
                nothing: Callable[..., None] = lambda *given: None  # noqa: E731
                dial(Address.parse(identity.driver), self._key, me, nothing, nothing, tls=self._tls).close()
            raise

    def run(self) -> None:
        """Work until the driver says that the run is over, or a later process of this node has taken over."""
        try:
            wait = 0.0
            while not self._ends:
                self._take_events(wait)
                self._guard.turn()
                wait = self._turn()
            if self._is_over:
                self._remove_files()
        except Superseded as why:
            # What it did last is not reported; the executor's log shows why it ends.
            sys.stderr.write(f"holdfast: the operator process of {self._name} ends: {why}\n")
        finally:
            self._listener.close()
            self._senders.close()
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
        with self._lease_lock:
            holds = self._lease.holds(now)
        if not holds:  # cut off, perhaps: others may have its partitions
            self._dial_beside(now)
            return LEASE_SECONDS
        self._leased_at = now
        if now >= self._agent_at:
            self._look_after_agent()
        self._dial_senders(now)
        self._functions.work()
        done = self._worker.work()
        self._spill.taken(self._handed, self._worker.inbox_bytes)
        self._handed = 0
        if done.problem is not None and done.problem != self._problem:
            sys.stderr.write(f"holdfast: {self._name}: {one_line(done.problem)}; it tries again\n")
        self._problem = done.problem
        for node, requests in done.requests.items():
            if (sender := self._senders.link(node)) is not None:
                sender.send({"do": "requests"}, [encode_requests(requests)])
                self._senders.asked(node)
        for number, blocks in done.blocks.items():
            if (link := self._subscribers.get(number)) is not None:
                for part in in_messages(blocks):
                    link.send({"do": "blocks"}, [encode_blocks(part)])
        standing, news = {"applied": done.applied, "idle": done.idle}, self._standing.is_news(done)
        if done.report is not None:
            *first, last = in_reports(done.report)
            for one in first:  # how it stands is said with the last, when all of it has come
                self._driver.send({"do": "report", "applied": -1, "idle": False}, [encode_report(one)])
            self._driver.send({"do": "report", **standing}, [encode_report(last)])
        elif news:
            self._driver.send({"do": "standing", **standing})
        return min(done.wait, max(0.0, self._agent_at - now))

    # -- the driver ----------------------------------------------------------------------------------------------------

    def _dial_driver(self) -> bool:
        identity = self._identity
        me = {
            "node": identity.node,
            "process": self._index,
            "token": identity.token,
            "address": str(self._listener.address),
        }
        dialled_at = time.monotonic()
        try:
            self._driver = dial(
                Address.parse(identity.driver), self._key, me, self._from_driver, self._left_by_driver, tls=self._tls
            )
        except HoldfastError:
            return False
        with self._lease_lock:
            self._lease.connected(dialled_at)
        self._standing.connected()
        self._worker.driver_connected()
        self._report_agent()
        return True

    def _dial_beside(self, now: float) -> None:
        """Where it has had no lease for long, dial the driver beside the connection there is, and take the new one.

        What a firewall has forgotten never ends by itself, and the driver, which the task answers, would wait for this
        process. A driver that does not answer may be frozen: then the connection there is stays.
        """
        before = self._driver
        if before is not None and now - self._leased_at > self._redial_seconds:
            self._leased_at = now
            if self._dial_driver():
                self._functions.driver_left()
                before.close()

    def _from_driver(self, link: Link, header: Header, body: Any) -> None:
        do = header.get("do")
        if do == "ping":  # answered by the link's thread, whatever the other one is busy with
            with self._lease_lock:
                self._lease.pinged(int(header["number"]), int(header["received"]), time.monotonic())
            link.send({"do": "pong", "number": header["number"]})
        elif do == "desired":
            desired = decode_desired(pa.py_buffer(body))
            self._events.put(lambda: self._worker.hand_out(desired))
        elif do == "number":
            self._events.put(lambda: self._renumber(int(header["number"]), int(header["of"])))
        elif do == "peers":
            addresses = {NodeId(node): str(address) for node, address in header["addresses"].items()}
            self._events.put(lambda: self._meet(addresses, tuple(header["join"])))
        elif do == "call":
            call = decode_call(pa.py_buffer(body))
            self._events.put(lambda: self._functions.take(*call))
        elif do == "end":
            self._events.put(self._end)

    def _answer_calls(self, found: Sequence[Returned]) -> None:
        if self._driver is not None:
            self._driver.send({"do": "returned"}, [encode_returned(found)])

    def _renumber(self, number: int, of: int) -> None:
        """The desired state stays as it is, under a new number."""
        held = self._worker.desired
        if held is not None and held.number == of:
            self._worker.hand_out(replace(held, number=number, forget=()))

    def _meet(self, addresses: Mapping[NodeId, str], join: tuple[str, ...]) -> None:
        self._senders.met(addresses)  # the end of what it closes leads to a new connection
        if join != self._join:
            self._join, self._agent_at = join, 0.0

    def _end(self) -> None:
        self._ends = self._is_over = True

    def _remove_files(self) -> None:
        """Leave nothing on the disk: the next start has a folder of its own, and the session may go on for long."""
        self._store.remove()
        for kind in _KINDS:
            shutil.rmtree(_beside(self._folder, kind), ignore_errors=True)

    def _left_by_driver(self, link: Link, why: str) -> None:
        def forget() -> None:
            if self._driver is link:
                self._driver, self._driver_left = None, time.monotonic()
                self._functions.driver_left()

        self._events.put(forget)

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def _dial_senders(self, now: float) -> None:
        """Connect to the nodes whose partitions send to partitions here; threads dial, for that may take long."""
        for node, address in self._senders.due(now, self._worker.sender_nodes()):
            threading.Thread(target=self._dial_sender, args=(node, address), daemon=True).start()

    def _replaced(self, node: NodeId, before: Link) -> None:
        sys.stderr.write(f"holdfast: {self._name}: the connection to {node} was dead, and is made anew\n")

    def _dial_sender(self, node: NodeId, address: str) -> None:
        number = time.time_ns()  # above those of an earlier process of this node
        try:
            me = {"node": self._name}
            link = dial(
                Address.parse(address),
                self._key,
                me,
                self._from_sender,
                lambda link, why: self._events.put(lambda: self._senders.lost(node, number)),
                tls=self._tls,
            )
        except Exception as error:  # also one that is not of the connection: no other thread would dial this node
            if not isinstance(error, HoldfastError):
                sys.stderr.write(f"holdfast: {self._name}: {node} cannot be dialled: {type(error).__name__}: {error}\n")
            self._events.put(lambda: self._senders.not_made(node, time.monotonic()))
        else:
            self._events.put(lambda: self._senders.made(node, link, number, address, time.monotonic()))

    def _from_sender(self, link: Link, header: Header, body: Any) -> None:
        if header.get("do") == "blocks":
            size = len(body)
            try:
                blocks = decode_blocks(self._spill.arrived(body))
            except CheckFailed:
                self._events.put(lambda: self._take_blocks((), size))
                link.close()  # what is damaged comes again by the next subscription
                return
            self._events.put(lambda: self._take_blocks(blocks, size))

    def _take_blocks(self, blocks: Sequence[Block], size: int) -> None:
        self._worker.take_blocks(blocks)
        self._handed += size

    def _on_subscriber(self, link: Link) -> tuple[Callable[..., None], Callable[..., None]]:
        number = next(self._numbers)

        def message(link: Link, header: Header, body: Any) -> None:
            if header.get("do") == "requests":
                requests = decode_requests(body)
                link.send({"do": "requested"})  # at once: the sign that this connection works

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

    def _is_full(self, number: int) -> bool:
        link = self._subscribers.get(number)
        return link is not None and link.queued_bytes > QUEUED_BYTES

    # -- the agent -----------------------------------------------------------------------------------------------------

    def _look_after_agent(self) -> None:
        """See that this node has an agent; where it may not have one, checkpoints go to the run's directory alone."""
        context = self._context
        try:
            report = ensure_agent(
                node_spool(context.run, self._identity.host),
                agent_settings(context.settings, self._identity.host, self._identity.domain),
                self._join,
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
            self._driver.send({"do": "agent", **asdict(one)})

    def _spool(self) -> Spool | None:
        report = self._agent
        return None if report is None or report.problem is not None else Spool(report.spool)


def encode_requests(requests: Sequence[Request]) -> bytes:
    """Write requests."""
    return json.dumps(
        [[int(r.epoch), r.consumer, r.sender, r.after, r.through, r.connection, r.copy, r.tentative] for r in requests]
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
                None if copy is None else NodeId(str(copy)),
                bool(tentative),
            )
            for epoch, consumer, sender, after, through, connection, copy, tentative in rows
        ]
    except (ValueError, TypeError, IndexError, KeyError):
        raise CheckFailed("a list of requests cannot be read", remedy="see that all nodes run one version") from None
