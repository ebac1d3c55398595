"""Executors as nodes whose tasks stay: the coordinator's backend on a cluster. Runs on the driver.

Each node has one Spark job with one task, pinned to its executor; the task stays and supervises the node's operator
processes, each of which dials the driver. Desired states and reports travel over those connections, blocks between the
processes themselves. The coordinator knows nodes only: what it desires of a node is divided among the node's processes
here, and what they report becomes the node's (runtime/processes.py). Losing a node ends its own job and disturbs no
other. A connection that ends while the executor lives is no lost node yet: the operator process is started again and
dials anew, while the others of its node go on; a node of which one has not come back soon, and that answers pings all
the same, is lost. A node that answers no pings is silent (runtime/detection.py).
"""

from __future__ import annotations

import contextlib
import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.errors import BadInput, one_line
from holdfast.ids import NodeId
from holdfast.recovery.events import NodesArrived, NodesLeaving, NodesLost, NodesSilent
from holdfast.runtime.coordinator.node_sinks import NodeSinks
from holdfast.runtime.coordinator.sink_calls import Call
from holdfast.runtime.detection import RETURN_FACTOR, SelfCheck
from holdfast.runtime.function_messages import decode_returned, encode_call
from holdfast.runtime.message_codec import decode_report, encode_desired
from holdfast.runtime.messages import DesiredState, DriverSuspected, NodesAnswered, Report
from holdfast.runtime.processes import ProcessSpread, declared_costs, most_valuable
from holdfast.runtime.program import Program
from holdfast.runtime.resident_cycle import ResidentCycle
from holdfast.spark.agents import AgentReport
from holdfast.spark.certificates import RunTls
from holdfast.spark.domains import Domains, domains_from_spark
from holdfast.spark.executors import SETTLE_SECONDS, WATCH_SECONDS, ExecutorWatch, FirstPlacement
from holdfast.spark.held_nodes import Came, HeldNode, HeldProcess
from holdfast.spark.link_keepalive import AGAIN_SECONDS, LinkKeepAlive
from holdfast.spark.pinned_jobs import Executor, pinned_item, task_cpus
from holdfast.spark.resident_node import NodeIdentity
from holdfast.spark.resident_task import NO_SECRET, ResidentTask
from holdfast.spark.run_context import RunContext
from holdfast.spark.run_secret import RunSecret, sparks_secret, unprotected
from holdfast.spark.self_check import masters_of, self_check
from holdfast.spark.settings import PREFIX
from holdfast.spark.supervisor import ENDED, GIVEN_UP
from holdfast.store.wire.address import is_loopback
from holdfast.store.wire.failures import NotTrusted
from holdfast.store.wire.link import Link, LinkListener
from holdfast.store.wire.messages import Header
from holdfast.wording import counted

if TYPE_CHECKING:
    from pyspark import SparkContext

GATHER_SECONDS = 0.05
"""Nodes that are lost together are not noticed at one moment: after the first, look for others for so long."""
END_SECONDS = 5.0
"""How long to wait for tasks that were requested to end; then their jobs are cancelled."""
CORE_SECONDS = 30.0
"""A task that has not started for so long may wait for a core: people are told once."""
TRIES = 5
"""Jobs in a row that end without holding their node, before people are told and the next one has to wait."""
PAUSES = (5.0, 60.0)
"""How long it waits at first, and at most; each time twice as long. An executor is never left alone for good: Spark
places tasks elsewhere while a machine is busy, and somebody may wait for this node."""


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
        admits: Callable[[str], bool] = lambda host: True,
        log: Callable[[str], object] = lambda line: None,
        ready: Callable[[int, int | None], object] = lambda count, wanted: None,
    ) -> None:
        """Each node has this capacity; the first placement waits for the expected number, though not for stragglers.

        An executor on a host that is not admitted (yet) is held and not used: a node that stands by. `ready` gets how
        many nodes can work, of how many that are expected.
        """
        self._context, self._program, self._run_context = context, program, run_context
        self._capacity, self._expected, self._request = capacity, expected, request
        self._admits, self._log, self._ready = admits, log, ready
        self._watch = ExecutorWatch(
            context, program.name, expected=expected, wait_seconds=wait_seconds, keep_alive=None, log=log
        )
        self._secret = RunSecret(sparks_secret(context, log))
        self._came: queue.SimpleQueue[Came | None] = queue.SimpleQueue()
        self._held: dict[NodeId, HeldNode] = {}
        self._task_cpus = task_cpus(context)
        processes = run_context.settings.node_processes or self._task_cpus
        self._spread = ProcessSpread(processes, declared_costs(program), most_valuable(program))
        self._cycle: ResidentCycle | None = None
        self._sent: DesiredState | None = None
        """The desired state that processes have; its number is that of the last full one."""
        self._reports: list[Report] = []
        self._started_at: float | None = None
        self._looked_at = -math.inf
        self._came_at = -math.inf
        """When the last executor came."""
        self._first = FirstPlacement(time.monotonic())
        self._announced: Header | None = None
        self._suspected: tuple[SelfCheck | None, float] = (None, -math.inf)
        """What the last check of the driver itself found, and when."""
        self._leaving: set[NodeId] = set()
        """Nodes of which it was reported that they will go."""
        self._stopped = self._woken = False
        self.sinks: NodeSinks | None = None
        """The calls of sinks on nodes, where there may be some."""
        self._logged: set[str] = set()
        """Lines that were logged."""
        self._has_no_slot = False
        """Whether a line has said that no core is left for jobs that read sources, and none has been free since."""
        self.needs_free_slot = False
        """Whether jobs that read sources run beside the tasks that stay."""
        conf = context.getConf()
        host = conf.get("spark.driver.bindAddress") or conf.get("spark.driver.host") or "127.0.0.1"
        reached = conf.get("spark.driver.host") or host
        self._domains = Domains(run_context.settings, lambda: domains_from_spark(context), log)
        masters = masters_of(context)
        self._pings = LinkKeepAlive(
            run_context.settings.keepalive_seconds,
            check=lambda: self_check(run_context.storage, masters),
            woken=lambda: self._came.put(None),
        )
        self._tls = RunTls(run_context.settings, (host, reached))
        run_context.settings.exchange_ports(processes)  # too few are refused here, not on nodes
        try:
            self._listener = LinkListener(
                host,
                run_context.settings.driver_port.tried(),
                self._secret.key,
                self._on_link,
                reached_at=reached,
                tls=None if self._tls.driver is None else self._tls.driver.context(serving=True),
            )
        except BadInput as bad:
            self._pings.stop()
            raise BadInput(bad.what, field=f"{PREFIX}driver.port", remedy=bad.remedy) from None
        self._on_loopback = is_loopback(reached)
        self._log_what_is_unprotected()
        self._driver = str(self._listener.address)

    def _log_what_is_unprotected(self) -> None:
        line = unprotected(
            dict(self._context.getConf().getAll()),
            loopback=self._on_loopback,
            carries_secret=self._secret.travels_whole,
            carries_keys=self._tls.mode == "run",
        )
        if line is not None:
            self._log_once(line)

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

    @property
    def agents(self) -> tuple[str, ...]:
        """Where the nodes' store agents listen; from any thread."""
        return tuple(str(one) for one in dict(self._watch.roster.addresses()).values())

    def wake(self) -> None:
        """Let a call of `reports` that waits return soon: there is something to hand out."""
        self._came.put(None)

    def reconcile(self, desired: DesiredState) -> None:
        """See Backend: processes get what is new, or only its number."""
        desired = self._spread.divide(desired, self._held)
        self._cycle = cycle = ResidentCycle(desired)
        held = {process.name for one in self._held.values() for process in one.processes}
        for name in sorted(cycle.waits_for):
            if name not in held:  # its loss is reported; one that is only disconnected is waited for
                cycle.lost(name)
        before, self._sent = self._sent, desired
        links = [link for one in self._held.values() for link in one.links]
        if before is not None and replace(desired, number=before.number, lag=before.lag) == before:
            for link in links:
                link.send({"do": "number", "number": desired.number, "of": before.number})
            return
        data = encode_desired(desired)
        for link in links:
            link.send({"do": "desired"}, [data])
        self._sent = replace(desired, forget=())

    def send_call(self, call: Call) -> Link | None:
        """Send a call to the process that has its query, and say by which connection; None: it has none now."""
        desired, query = self._sent, call.outputs[0].key.query
        placed = None if desired is None else desired.assignments.get(query) or desired.stand_ins.get(query)
        processes = [process for one in self._held.values() for process in one.processes]
        links = [one.link for one in processes if placed is not None and one.name == placed.node]
        link = next((one for one in links if one is not None and not one.ended), None)
        if link is not None:
            link.send({"do": "call"}, encode_call(call))
        return link

    def domain_of(self, node: NodeId) -> str | None:
        """Return the failure domain of a node, where it is known."""
        held = self._held.get(node)
        return None if held is None else self._domains.of(held.executor.host)

    def release_nodes(self, nodes: Sequence[NodeId]) -> None:
        """See Backend: the tasks of these nodes end, and are not started again."""
        for node in nodes:
            if (held := self._held.get(node)) is not None:
                self._end_job(held)

    def request_nodes(self, count: int) -> str | None:
        """See Backend: by the owner's means; a cluster manager brings new executors for lost ones by itself."""
        return None if self._request is None else self._request(count)

    def free_slots(self) -> int:
        """Return how many tasks can run beside those that stay."""
        active = self._context._jsc.sc().statusStore().executorList(True)
        cores = [active.apply(i).totalCores() for i in range(active.size()) if active.apply(i).id() != "driver"]
        return sum(max(0, many // self._task_cpus - 1) for many in cores)

    def stop(self) -> None:
        """Tell the tasks to end, and release the executors."""
        self._stopped = True
        self._pings.stop()
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
            for link in one.links:
                link.close()

    def close(self) -> None:
        """See SparkBackend: tasks that stay have nothing to release between cycles."""

    # -- what comes from nodes -----------------------------------------------------------------------------------------

    def _on_link(self, link: Link) -> tuple[Callable[..., None], Callable[..., None]]:
        node, token = NodeId(str(link.hello.get("node"))), link.hello.get("token")
        held, index = self._held.get(node), link.hello.get("process")
        if held is None or held.token != token or self._stopped:
            self._pings.contacted(node)  # it may have been declared silent
            raise NotTrusted("this node is not held by a task of this driver any more", where=str(node))
        self._pings.add(node, link)

        def pong(link: Link, header: Header, body: Any) -> None:
            if header.get("do") == "pong":
                self._pings.pong(node, link, int(header["number"]))

        if link.hello.get("beacon"):
            return pong, lambda link, why: None
        if not isinstance(index, int) or not 0 <= index < len(held.processes):
            raise NotTrusted(f"this node has no process {index}", where=str(node))
        if (problem := link.hello.get("problem")) is not None:
            self._came.put(Came(node, index, link, problem=one_line(str(problem), 300)))
            return lambda *given: None, lambda *given: None

        def message(link: Link, header: Header, body: Any) -> None:
            do = header.get("do")
            if do == "pong":
                pong(link, header, body)
            elif do == "report":
                report = decode_report(pa.py_buffer(body))
                self._came.put(Came(node, index, link, report, int(header["applied"]), bool(header["idle"])))
            elif do == "returned":
                if self.sinks is not None:
                    self.sinks.answered(link, decode_returned(pa.py_buffer(body)))
            elif do == "standing":
                self._came.put(Came(node, index, link, None, int(header["applied"]), bool(header["idle"])))
            elif do == "agent":
                fields = {name: header.get(name) for name in ("spool", "address", "ready", "problem", "degraded")}
                fields["codes"] = tuple(header.get("codes") or ())
                self._came.put(Came(node, index, link, agent=AgentReport(**fields)))  # type: ignore[arg-type]

        def end(link: Link, why: str) -> None:
            if self.sinks is not None:
                self.sinks.ended(link)
            self._came.put(Came(node, index, link, ended=why))

        self._came.put(Came(node, index, link, hello=link.hello))
        return message, end

    def _take_what_came(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(self._came.get_nowait())

    def _take(self, came: Came | None) -> None:
        if came is None:
            self._woken = True
            return
        held = self._held.get(came.node)
        if held is None:
            return
        process = held.processes[came.process]
        if came.problem is not None:
            keys = f"{PREFIX}exchange.port, {PREFIX}node.bindAddress"
            self._log_once(f"{came.node} cannot be used: {came.problem} ({keys})")
        elif came.hello is not None:
            if process.link is not None:
                process.link.close()  # of a process before
                self._left(process)
            process.link, process.address = came.link, str(came.hello.get("address"))
            held.tries, self._looked_at = 0, -math.inf
            if held.ending:
                came.link.send({"do": "end"})  # it had no connection when its node was released
            elif came.node in self._watch.known:
                self._introduce([process])
        elif process.link is not came.link:
            return  # of a process before
        elif came.ended is not None:
            process.link, process.left_at = None, time.monotonic()
            self._left(process)
            self._looked_at = -math.inf
        elif came.agent is not None:
            self._watch.take_agent_report(came.node, came.agent)
            self._reports += self._watch.code_news()
        else:
            if came.report is not None:
                self._reports.append(self._spread.report_of(came.node, came.process, came.report))
            if self._cycle is not None:
                self._cycle.reported(process.name, came.applied, idle=came.idle)

    def _log_once(self, line: str) -> None:
        """Log what comes again with every process that is started."""
        if line not in self._logged:
            self._logged.add(line)
            self._log(line)

    def _left(self, process: HeldProcess) -> None:
        if self._cycle is not None:
            self._cycle.left(process.name)

    def _introduce(self, fresh: Sequence[HeldProcess]) -> None:
        """Let processes know each other, and the new ones the desired state."""
        nodes = [one for node, one in self._held.items() if node in self._watch.known]
        known = [process for one in nodes for process in one.processes if process.link is not None]
        peers: Header = {
            "do": "peers",
            "addresses": {one.name: one.address for one in known},
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
            self._started_at = self._first.began = now
        elif now < self._looked_at + WATCH_SECONDS:
            return
        self._looked_at = now
        alive = watch.alive()
        if not alive and not self._held and not watch.known:
            watch.check_wait(now - self._started_at)
        lost = self._lost(alive, now)
        if lost:
            time.sleep(GATHER_SECONDS)
            self._take_what_came()
            alive = watch.alive()
            lost = self._lost(alive, time.monotonic())
        news = self._pings.take()
        silent = sorted(node for node in news.silent if node in self._held and node not in lost)
        if news.answered:
            self._reports.append(NodesAnswered(tuple(news.answered)))
        self._reports += self._new_suspicions(news.suspicions, now)
        for node in (*lost, *silent):
            one = self._held.pop(node)
            if one.outcome == GIVEN_UP:
                self._log(f"{node} is given up: its operator process crashes again and again; see its executor's log")
            if node in alive:
                watch.fence(node, one.executor)
            self._end_job(one)
            for link in one.links:
                link.close()
            self._spread.lose(node)
            if self._cycle is not None:
                for process in one.processes:
                    self._cycle.lost(process.name)
        lost_members = tuple(node for node in lost if node in watch.known)
        watch.forget((*lost, *silent))
        if lost_members:
            self._reports.append(NodesLost(lost_members))
        if silent:
            self._reports.append(NodesSilent(tuple(silent)))
        self._leaving &= set(watch.known)
        if leaving := watch.leaving() - self._leaving:
            self._leaving |= leaving
            self._log(f"{', '.join(sorted(leaving))} will go: decommissioned; partitions move to other nodes")
            self._reports.append(NodesLeaving(tuple(sorted(leaving))))
        for node, executor in alive.items():
            if node not in self._held and node not in watch.fenced and not self._stopped:
                processes = [HeldProcess(name) for name in self._spread.names(node)]
                self._held[node], self._came_at = HeldNode(node, executor, processes, now), now
        for one in self._held.values():
            self._see_to_job(one)
        self._admit()
        # Tasks of nodes that were released have ended: that they answer nothing is no silence.
        self._pings.watch(node for node in watch.known if not self._held[node].ending)
        if self._watch.known and self._announced is not None:
            join = self._watch.roster.join(list(self._watch.known))
            if join != self._announced["join"]:
                self._introduce([])

    def _lost(self, alive: dict[NodeId, Executor], now: float) -> list[NodeId]:
        """Return the nodes that are gone: their executor is, they were left and have not come back, or gave up.

        An operator process that crashes again and again may dial before each crash: that is no coming back.
        """
        returns = RETURN_FACTOR * self._run_context.settings.keepalive_seconds
        return sorted(
            node
            for node, one in self._held.items()
            if node not in alive
            or (
                node in self._watch.known
                and (one.outcome == GIVEN_UP or (one.is_left(now, returns) and self._pings.is_answering(node)))
            )
        )

    def _new_suspicions(self, found: Sequence[DriverSuspected], now: float) -> list[DriverSuspected]:
        """Return what people have not been told: a driver that is cut off checks itself again every second."""
        news = []
        for one in found:
            check, at = self._suspected
            if one.check != check or now - at > SETTLE_SECONDS + AGAIN_SECONDS:
                news.append(one)
            self._suspected = one.check, now
        return news

    def _admit(self) -> None:
        """Let ready nodes be used; at the start all together, for what is placed once does not move."""
        watch = self._watch
        ready = [
            one
            for node, one in self._held.items()
            if one.is_ready and node not in watch.known and self._admits(one.executor.host)
        ]
        if not ready:
            return
        if not watch.known and self._waits_for_more(ready):
            return
        self._check_free_slot()
        watch.known.update({one.node: one.executor for one in ready})
        self._ready(len(watch.known), self._expected)
        self._introduce([process for one in ready for process in one.processes])
        self._reports.append(NodesArrived({one.node: self._capacity for one in ready}))

    def _check_free_slot(self) -> None:
        """Refuse to begin where no core is left to read sources; a run that goes on says so once, and uses its nodes.

        They process what is logged, and a later executor may bring a free core.
        """
        if not self.needs_free_slot or self.free_slots():
            self._has_no_slot = False
            return
        problem = "every core of its executors is held by a task that stays, and none is left to read sources"
        remedy = f"give executors {2 * self._task_cpus} cores, or set {PREFIX}exchange=shuffle"
        if self._announced is None:
            where = f"application {self._program.name}"
            raise BadInput(problem, where=where, field="spark.executor.cores", remedy=remedy)
        if not self._has_no_slot:
            self._has_no_slot = True
            self._log(
                f"{self._program.name}: {problem}: sources that Spark's jobs read wait for a free core, and what is "
                f"logged is processed; {remedy} (spark.executor.cores)"
            )

    def _waits_for_more(self, ready: Sequence[HeldNode]) -> bool:
        """Whether the first placement waits for more nodes."""
        now = time.monotonic()
        self._ready(len(ready), self._expected)
        if self._expected is not None:
            return self._first.waits(now, len(ready), self._expected)
        came = min(one.came_at for one in ready)
        if now - self._came_at < SETTLE_SECONDS and self._came_at < came + SETTLE_SECONDS:
            return True  # executors that come within so much of each other are taken together
        admitted = [one for one in self._held.values() if self._admits(one.executor.host)]
        return self._first.waits_for(now, came, [one.came_at for one in admitted if not one.is_ready])

    # -- jobs ----------------------------------------------------------------------------------------------------------

    def _see_to_job(self, one: HeldNode) -> None:
        """Start the job that holds a node where none does; one that was released stays free."""
        if one.ending:
            return
        if one.job is not None and one.job.is_alive():
            if one.waits_since is not None and not one.links and time.monotonic() - one.waits_since > CORE_SECONDS:
                one.waits_since = None
                self._log(
                    f"{one.node} has not started its task for {CORE_SECONDS:.0f} s: is a core of its executor free? "
                    f"Every run holds {counted(self._task_cpus, 'core')} of each executor; give executors more cores, "
                    "or end other runs"
                )
            return
        if one.outcome == NO_SECRET and not self._secret.travels_whole:  # YARN, say: the next task gets all of it
            self._secret.travels_whole = True
            self._log_what_is_unprotected()
        if one.outcome is not None and one.outcome != ENDED and not self._tries_again(one):
            return
        for process in one.processes:
            if process.link is not None:
                process.link.close()  # of a process that outlived its task: what it does counts no more
                process.link, process.left_at = None, time.monotonic()
                self._left(process)
        one.token, one.outcome = secrets.token_hex(8), None
        one.waits_since = time.monotonic()
        one.job = threading.Thread(target=self._hold, args=(one,), name=self._group(one), daemon=True)
        one.job.start()

    def _tries_again(self, one: HeldNode) -> bool:
        """Whether a node whose job ended without holding it is tried again now."""
        now = time.monotonic()
        if one.try_at is None:
            one.tries += 1
            more = one.tries - TRIES
            one.try_at = now if more < 0 else now + min(PAUSES[1], PAUSES[0] * 2 ** min(more, 10))
            if not more:
                self._log(f"{one.node} cannot be used: {one.outcome}; it is tried again from time to time")
        if now < one.try_at:
            return False
        one.try_at = None
        return True

    def _group(self, one: HeldNode) -> str:
        return f"holdfast-{self._run_context.start}-{one.node}"

    def _hold(self, one: HeldNode) -> None:
        """Run the job of one node until it ends; in a thread of its own."""
        settings, host = self._run_context.settings, one.executor.host
        reached = settings.reached_at(host)
        identity = NodeIdentity(
            one.node,
            one.executor.id,
            host,
            one.token,
            self._driver,
            settings.exchange_ports(len(one.processes)),
            settings.node_bind_address,
            reached,
            processes=len(one.processes),
            domain=self._domains.of(host),
        )
        task = ResidentTask(self._run_context, identity, self._secret.for_task(), self._tls.member((host, reached)))
        context = self._context
        try:
            context.setJobGroup(self._group(one), f"holdfast {self._program.name}: {one.node}", interruptOnCancel=True)
            one.outcome = str(pinned_item(context, one.executor).map(_stay(task)).collect()[0])
        except Exception as error:
            one.outcome = one_line(str(error), 300)

    def _end_job(self, one: HeldNode) -> None:
        if not one.ending:
            for link in one.links:
                link.send({"do": "end"})
        one.ending = True


def _stay(task: ResidentTask) -> Callable[[Any], str]:
    def run(marker: Any) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        return task.run(0 if context is None else context.attemptNumber())

    return run
