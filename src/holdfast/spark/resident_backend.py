"""Executors as nodes whose tasks stay: the coordinator's backend on a cluster. Runs on the driver.

Each node has one Spark job with one task, pinned to its executor; the task stays and supervises the node's operator
process, which dials the driver. Desired states and reports travel over that connection, blocks between the nodes
themselves. Losing a node ends its own job and disturbs no other. A connection that ends while the executor lives is no
lost node yet: the operator process is started again and dials anew; a node that has not come back soon is lost.
"""

from __future__ import annotations

import contextlib
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import BadInput, one_line
from holdfast.ids import NodeId
from holdfast.recovery.events import NodesArrived, NodesLost, NodesSilent
from holdfast.runtime.message_codec import decode_report, encode_desired
from holdfast.runtime.messages import DesiredState, NodeReport, Report
from holdfast.runtime.program import Program
from holdfast.runtime.resident_cycle import ResidentCycle
from holdfast.spark.agents import AgentReport
from holdfast.spark.executors import SETTLE_SECONDS, WATCH_SECONDS, ExecutorWatch
from holdfast.spark.keepalive import KeepAlive
from holdfast.spark.pinned_jobs import Executor
from holdfast.spark.resident_node import NodeIdentity
from holdfast.spark.resident_task import ENDED, ResidentTask
from holdfast.spark.run_context import RunContext
from holdfast.spark.settings import PREFIX
from holdfast.store.wire.failures import NotTrusted
from holdfast.store.wire.handshake import key_from_random
from holdfast.store.wire.link import Link, LinkListener
from holdfast.store.wire.messages import Header

if TYPE_CHECKING:
    from pyspark import SparkContext

RETURN_FACTOR = 2
"""A node whose connection has ended, and whose executor lives, is lost after so many times the keep-alive's time."""
GATHER_SECONDS = 0.05
"""Nodes that are lost together are not noticed at one moment: after the first, look for others for so long."""
END_SECONDS = 5.0
"""How long to wait for tasks that were requested to end; then their jobs are cancelled."""
TRIES = 5
"""Jobs in a row that end without holding their node, before its executor is left alone."""


@dataclass(slots=True)
class _Held:
    """An executor, and the job that holds it."""

    node: NodeId
    executor: Executor
    token: str = ""
    link: Link | None = None
    address: str = ""
    """Where other nodes reach it."""
    left_at: float = -math.inf
    """When its connection ended."""
    tries: int = 0
    ending: bool = False
    job: threading.Thread | None = None
    outcome: str | None = None
    """How the job ended; None: it has not."""


@dataclass(slots=True)
class _Came:
    """What came from a node, by the thread of its link."""

    node: NodeId
    link: Link
    report: NodeReport | None = None
    applied: int = -1
    idle: bool = False
    agent: AgentReport | None = None
    hello: Header | None = None
    ended: str | None = None


class ResidentBackend:
    """See the coordinator's Backend."""

    takes_updates = True

    def __init__(
        self,
        context: SparkContext,
        program: Program,
        run_context: RunContext,
        *,
        capacity: float = math.inf,
        expected: int | None = None,
        wait_seconds: float = 120.0,
        request: Callable[[int], str | None] | None = None,
        keep_alive: KeepAlive | None = None,
        admits: Callable[[str], bool] = lambda host: True,
        log: Callable[[str], object] = lambda line: None,
    ) -> None:
        """Each node has this capacity; at the start, wait for the expected number of executors, or for the first.

        An executor on a host that is not admitted (yet) is held and not used: a node that stands by.
        """
        self._context, self._program, self._run_context = context, program, run_context
        self._capacity, self._expected, self._request = capacity, expected, request
        self._admits, self._log, self._wait = admits, log, wait_seconds
        self._watch = ExecutorWatch(
            context, program.name, expected=expected, wait_seconds=wait_seconds, keep_alive=keep_alive, log=log
        )
        self._secret = secrets.token_bytes(32)
        self._came: queue.SimpleQueue[_Came | None] = queue.SimpleQueue()
        self._held: dict[NodeId, _Held] = {}
        self._cycle: ResidentCycle | None = None
        self._sent: DesiredState | None = None
        """The desired state that nodes have; its number is that of the last full one."""
        self._reports: list[Report] = []
        self._started_at: float | None = None
        self._looked_at = -math.inf
        self._announced: Header | None = None
        self._stopped = self._woken = False
        self.needs_free_slot = False
        """Whether jobs that read sources run beside the tasks that stay."""
        conf = context.getConf()
        host = conf.get("spark.driver.bindAddress") or conf.get("spark.driver.host") or "127.0.0.1"
        self._listener = LinkListener(
            host, run_context.settings.driver_port, key_from_random(self._secret), self._on_link
        )
        reached = conf.get("spark.driver.host") or host
        self._driver = f"{reached}:{self._listener.address.port}"

    # -- the coordinator's backend -------------------------------------------------------------------------------------

    def reports(self, timeout: float) -> Sequence[Report]:
        """See Backend."""
        until = time.monotonic() + timeout
        while True:
            self._take_what_came()
            self._look()
            if self._cycle is not None and (ended := self._cycle.end()) is not None:
                self._reports.append(ended)
            found, self._reports = self._reports, []
            left = until - time.monotonic()
            if found or left <= 0 or self._woken:
                self._woken = False
                return found
            with contextlib.suppress(queue.Empty):
                self._take(self._came.get(timeout=min(left, WATCH_SECONDS)))

    def wake(self) -> None:
        """Let a call of `reports` that waits return soon: there is something to hand out."""
        self._came.put(None)

    def reconcile(self, desired: DesiredState) -> None:
        """See Backend: nodes get what is new, or only its number."""
        self._cycle = cycle = ResidentCycle(desired)
        for node in sorted(cycle.waits_for):
            if node not in self._held:  # its loss is reported; one that is only disconnected is waited for
                cycle.lost(node)
        before, self._sent = self._sent, desired
        links = [one.link for one in self._held.values() if one.link is not None]
        if before is not None and replace(desired, number=before.number, lag=before.lag) == before:
            for link in links:
                link.send({"do": "number", "number": desired.number, "of": before.number})
            return
        data = encode_desired(desired)
        for link in links:
            link.send({"do": "desired"}, [data])
        self._sent = replace(desired, forget=())

    def request_nodes(self, count: int) -> str | None:
        """See Backend: by the owner's means; a cluster manager brings new executors for lost ones by itself."""
        return None if self._request is None else self._request(count)

    def free_slots(self) -> int:
        """Return how many tasks can run beside those that stay."""
        active = self._context._jsc.sc().statusStore().executorList(True)
        cores = [active.apply(i).totalCores() for i in range(active.size()) if active.apply(i).id() != "driver"]
        each = int(self._context.getConf().get("spark.task.cpus", "1") or 1)
        return sum(max(0, many // each - 1) for many in cores)

    def stop(self) -> None:
        """Tell the tasks to end, and release the executors."""
        self._stopped = True
        self._listener.close()
        held = list(self._held.values())
        for one in held:
            self._end_job(one)
        until = time.monotonic() + END_SECONDS
        for one in held:
            if one.job is not None:
                one.job.join(max(0.0, until - time.monotonic()))
                if one.job.is_alive():
                    with contextlib.suppress(Exception):  # the last resort; Spark may be gone
                        self._context.cancelJobGroup(self._group(one))
                        one.job.join(END_SECONDS)
            if one.link is not None:
                one.link.close()

    def close(self) -> None:
        """See SparkBackend: tasks that stay have nothing to release between cycles."""

    # -- what comes from nodes -----------------------------------------------------------------------------------------

    def _on_link(self, link: Link) -> tuple[Callable[..., None], Callable[..., None]]:
        node, token = NodeId(str(link.hello.get("node"))), link.hello.get("token")
        held = self._held.get(node)
        if held is None or held.token != token or self._stopped:
            raise NotTrusted("this node is not held by a task of this driver any more", where=str(node))

        def message(link: Link, header: Header, body: Any) -> None:
            do = header.get("do")
            if do == "report":
                report = decode_report(pa.py_buffer(body))
                self._came.put(_Came(node, link, report, int(header["applied"]), bool(header["idle"])))
            elif do == "standing":
                self._came.put(_Came(node, link, None, int(header["applied"]), bool(header["idle"])))
            elif do == "agent":
                fields = {name: header.get(name) for name in ("spool", "address", "ready", "problem")}
                self._came.put(_Came(node, link, agent=AgentReport(**fields)))  # type: ignore[arg-type]

        def end(link: Link, why: str) -> None:
            self._came.put(_Came(node, link, ended=why))

        self._came.put(_Came(node, link, hello=link.hello))
        return message, end

    def _take_what_came(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._came.get_nowait())

    def _take(self, came: _Came | None) -> None:
        if came is None:
            self._woken = True
            return
        held = self._held.get(came.node)
        if held is None:
            return
        if came.hello is not None:
            if held.link is not None:
                held.link.close()  # of a process before
            held.link, held.address, held.tries = came.link, str(came.hello.get("address")), 0
            self._looked_at = -math.inf
            if came.node in self._watch.known:
                self._introduce([held])
        elif held.link is not came.link:
            return  # of a process before
        elif came.ended is not None:
            held.link, held.left_at = None, time.monotonic()
            self._looked_at = -math.inf
        elif came.agent is not None:
            self._watch.take_agent_report(came.node, came.agent)
        else:
            if came.report is not None:
                self._reports.append(came.report)
            if self._cycle is not None:
                self._cycle.reported(came.node, came.applied, idle=came.idle)

    def _introduce(self, fresh: Sequence[_Held]) -> None:
        """Let nodes know each other, and the new ones the desired state."""
        known = [one for node, one in self._held.items() if node in self._watch.known and one.link is not None]
        peers: Header = {
            "do": "peers",
            "addresses": {one.node: one.address for one in known},
            "join": self._watch.roster.join(list(self._watch.known)),
        }
        for one in known if peers != self._announced else fresh:
            assert one.link is not None
            one.link.send(peers)
        self._announced = peers
        if self._sent is not None:
            data = encode_desired(self._sent)
            for one in fresh:
                if one.link is not None:
                    one.link.send({"do": "desired"}, [data])

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Look what has become of nodes; Spark is asked now and then, for asking costs."""
        watch, now = self._watch, time.monotonic()
        if self._started_at is None:
            watch.await_first()
            self._started_at = now
        elif now < self._looked_at + WATCH_SECONDS:
            return
        self._looked_at = now
        alive = watch.alive()
        lost = self._lost(alive, now)
        if lost:
            time.sleep(GATHER_SECONDS)
            self._take_what_came()
            alive = watch.alive()
            lost = self._lost(alive, time.monotonic())
        silent = sorted(node for node in watch.silent() if node not in lost)
        for node in (*lost, *silent):
            one = self._held.pop(node)
            if node in alive:
                watch.fence(node, one.executor)
            self._end_job(one)
            if one.link is not None:
                one.link.close()
            if self._cycle is not None:
                self._cycle.lost(node)
        lost_members = tuple(node for node in lost if node in watch.known)
        watch.forget((*lost, *silent))
        if lost_members:
            self._reports.append(NodesLost(lost_members))
        if silent:
            self._reports.append(NodesSilent(tuple(silent)))
        for node, executor in alive.items():
            if node not in self._held and node not in watch.fenced and not self._stopped:
                self._held[node] = _Held(node, executor)
        for one in self._held.values():
            self._see_to_job(one)
        self._admit()
        if self._watch.known and self._announced is not None:
            join = self._watch.roster.join(list(self._watch.known))
            if join != self._announced["join"]:
                self._introduce([])

    def _lost(self, alive: dict[NodeId, Executor], now: float) -> list[NodeId]:
        """Return the nodes that are gone: their executor is, or they were left and have not come back."""
        returns = RETURN_FACTOR * self._run_context.settings.keepalive_seconds
        return sorted(
            node
            for node, one in self._held.items()
            if node not in alive or (node in self._watch.known and one.link is None and now - one.left_at > returns)
        )

    def _admit(self) -> None:
        """Let ready nodes be used; at the start all together, for what is placed once does not move."""
        watch = self._watch
        ready = [
            one
            for node, one in self._held.items()
            if one.link is not None and node not in watch.known and self._admits(one.executor.host)
        ]
        if not ready:
            return
        if not watch.known:
            assert self._started_at is not None
            wanted = self._expected or len([one for one in self._held.values() if self._admits(one.executor.host)])
            waited = time.monotonic() - self._started_at
            if len(ready) < wanted and waited < max(SETTLE_SECONDS, self._wait / 2):
                return
        if self.needs_free_slot and not self.free_slots():
            raise BadInput(
                "every core of its executors is held by a task that stays, and none is left to read sources",
                where=f"application {self._program.name}",
                field="spark.executor.cores",
                remedy=f"give executors two cores, or set {PREFIX}exchange=shuffle",
            )
        watch.known.update({one.node: one.executor for one in ready})
        self._introduce(ready)
        self._reports.append(NodesArrived({one.node: self._capacity for one in ready}))

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def _see_to_job(self, one: _Held) -> None:
        """Start the job that holds a node where none does."""
        if one.job is not None and one.job.is_alive():
            return
        if one.outcome is not None and one.outcome != ENDED:
            one.tries += 1
            if one.tries == TRIES:
                self._log(f"{one.node} cannot be used: {one.outcome}")
            if one.tries >= TRIES:
                return
        one.token, one.outcome, one.link = secrets.token_hex(8), None, None
        one.job = threading.Thread(target=self._hold, args=(one,), name=self._group(one), daemon=True)
        one.job.start()

    def _group(self, one: _Held) -> str:
        return f"holdfast-{self._run_context.start}-{one.node}"

    def _hold(self, one: _Held) -> None:
        """Run the job of one node until it ends; in a thread of its own."""
        identity = NodeIdentity(
            one.node, one.executor.host, one.token, self._driver, self._run_context.settings.exchange_port
        )
        task = ResidentTask(self._run_context, identity, self._secret)
        context = self._context
        try:
            context.setJobGroup(self._group(one), f"holdfast {self._program.name}: {one.node}", interruptOnCancel=True)
            one.outcome = str(_pinned(context, one.executor).map(_stay(task)).collect()[0])
        except Exception as error:
            one.outcome = one_line(str(error), 300)

    def _end_job(self, one: _Held) -> None:
        if one.link is not None and not one.ending:
            one.link.send({"do": "end"})
        one.ending = True


def _stay(task: ResidentTask) -> Callable[[Any], str]:
    def run(marker: Any) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        return task.run(0 if context is None else context.attemptNumber())

    return run


def _pinned(context: SparkContext, executor: Executor) -> Any:
    """Return an RDD of one item that Spark places on an executor."""
    from pyspark import RDD
    from pyspark.serializers import CPickleSerializer, NoOpSerializer

    jvm = context._jvm
    assert jvm is not None
    serializer = CPickleSerializer()
    wish = jvm.java.util.ArrayList()
    wish.add(f"executor_{executor.host}_{executor.id}")
    items = jvm.java.util.ArrayList()
    items.add(jvm.scala.Tuple2(bytearray(serializer.dumps(0)), jvm.PythonUtils.toSeq(wish)))
    tag = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
    placed = context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(items), tag)
    raw: RDD[Any] = RDD(placed.toJavaRDD(), context, NoOpSerializer())
    return raw.map(serializer.loads)
