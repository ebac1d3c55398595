"""The executors of a run as nodes: who is there, who is gone or silent, and their agents. Runs on the driver.

Spark shows at once which executors are gone; agents are pinged, so that a frozen machine is noticed within seconds. A
silent executor is asked to end, and never used again: when its machine thaws, it comes back as another.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.errors import CheckFailed, one_line
from holdfast.ids import NodeId
from holdfast.runtime.fetches import CodeChosen
from holdfast.spark.agents import AgentReport, Roster
from holdfast.spark.keepalive import KeepAlive
from holdfast.spark.pinned_jobs import Executor, executors_of
from holdfast.store.wire.address import Address

if TYPE_CHECKING:
    from pyspark import SparkContext

WATCH_SECONDS = 0.1
LEAVING_SECONDS = 0.5
"""How often to ask which executors are decommissioned."""
MOST_LOOKS = 10
"""After a loss, how often to look whether more are lost."""
REPORT_SECONDS = 15.0
"""How often it is reported that no executor has come."""
SETTLE_SECONDS = 1.0
"""At the start, executors that come within so much of each other are taken together."""


@dataclass(slots=True)
class FirstPlacement:
    """How long the first placement waits for nodes: what is placed does not move when others come. Pure.

    A node that needs more than twice as long as the first one is not waited for; it is used from when it is ready.
    """

    began: float
    """When the run began."""
    first_at: float = math.inf
    """When the first node was ready."""

    def waits(self, now: float, ready: int, wanted: int) -> bool:
        """Whether to wait, with so many nodes ready of those that are wanted."""
        if not ready:
            return True
        self.first_at = min(self.first_at, now)
        patience = max(SETTLE_SECONDS, self.first_at - self.began)
        return ready < wanted and now - self.first_at < patience

    def waits_for(self, now: float, came: float, others: Sequence[float]) -> bool:
        """The same where no number of nodes is expected: each node's time counts from when its executor came.

        What the cluster took to give an executor is no time that a node needs. The executor of the first node that is
        ready came at `came`; those of the nodes that are not ready came at these times. Who comes after the first node
        was ready is used from when it is ready.
        """
        self.first_at = min(self.first_at, now)
        patience = 2 * max(SETTLE_SECONDS, self.first_at - max(came, self.began))
        known = [at for at in others if at <= self.first_at + SETTLE_SECONDS]
        return any(now - max(at, self.began) < patience for at in known)


class ExecutorWatch:
    """The nodes of a run, as Spark and their agents have them."""

    def __init__(
        self,
        context: SparkContext,
        application: str,
        *,
        expected: int | None,
        wait_seconds: float,
        keep_alive: KeepAlive | None,
        log: Callable[[str], object],
    ) -> None:
        """At the start, wait for the expected number of executors, or for the first."""
        self._context, self._application, self._log = context, application, log
        self._expected, self._wait, self._keep_alive = expected, wait_seconds, keep_alive
        self.known: dict[NodeId, Executor] = {}
        """The nodes that were reported to the coordinator."""
        self.fenced: set[NodeId] = set()
        """Nodes that were silent: their executors are not used again."""
        self.roster = Roster()
        self._logged: set[str] = set()
        self._decommissions: bool | None = None
        """Whether Spark decommissions executors; None: not asked yet."""
        self._asked_at = -math.inf
        """When Spark was last asked which executors are decommissioned."""
        self._reported = 0.0
        """After how many seconds without an executor a line was logged last."""
        self._codes: dict[tuple[NodeId, float], tuple[int, int]] = {}
        """m and k that the agents of nodes have chosen, by size of state."""
        self._chosen: list[CodeChosen] = []

    def alive(self) -> dict[NodeId, Executor]:
        """Return the executors that Spark has, by the names of their nodes."""
        return {NodeId(f"{one.host}-{one.id}"): one for one in executors_of(self._context)}

    def settled(self) -> dict[NodeId, Executor]:
        """Return the executors that are alive once no more of them go."""
        alive = self.alive()
        for _ in range(MOST_LOOKS):
            time.sleep(WATCH_SECONDS)
            before, alive = alive, self.alive()
            if set(before) <= set(alive):
                break
        return alive

    def await_first(self) -> None:
        """Wait at the start until executors have come."""
        began = since = time.monotonic()
        count = 0
        while True:
            alive, now = len(self.alive()), time.monotonic()
            if alive != count:
                count, since = alive, now
            if count and (count == self._expected or now - since > SETTLE_SECONDS):
                return
            self.check_wait(now - began)
            time.sleep(0.05)

    def check_wait(self, seconds: float) -> None:
        """Report now and then that no executor has come for so long; end where the run waits no longer."""
        if seconds - self._reported > REPORT_SECONDS:
            self._reported = seconds
            self._log(f"no executor has come for {seconds:.0f} s: see that the cluster has free workers")
        if seconds > self._wait:
            raise CheckFailed(
                f"no executor came in {self._wait:.0f} s",
                where=f"application {self._application}",
                remedy="see that the cluster has free workers; the run goes on from here when started again",
            )

    def silent(self) -> set[NodeId]:
        """Return the nodes that have answered and do so no more; of one that never has, nothing is known.

        An agent refuses a driver that has not its secret: that is no reason to end its executor.
        """
        found = set() if self._keep_alive is None else self._keep_alive.silent() & self._keep_alive.answered()
        return {node for node in found if node in self.known and node not in self.fenced}

    def leaving(self) -> set[NodeId]:
        """Return the nodes whose executors are decommissioned: they will go, and still work."""
        now = time.monotonic()
        if self._decommissions is None:
            self._decommissions = self._context.getConf().get("spark.decommission.enabled", "false") == "true"
        if not self._decommissions or now < self._asked_at + LEAVING_SECONDS:
            return set()
        self._asked_at = now
        try:
            return {node for node, one in self.known.items() if decommissioned(self._context, one.id)}
        except Exception:  # asked again; a node that goes unannounced is lost as any other
            return set()

    def forget(self, nodes: Iterable[NodeId]) -> None:
        """Nodes are gone."""
        for node in nodes:
            self.known.pop(node, None)
            self.roster.lose(node)
            if self._keep_alive is not None:
                self._keep_alive.unwatch(node)

    def fence(self, node: NodeId, executor: Executor) -> None:
        """Never use a node again; Spark is asked to end its executor and to take another in its place."""
        self.fenced.add(node)
        threading.Thread(target=self._end_executor, args=(executor.id,), daemon=True).start()

    def _end_executor(self, executor: str) -> None:
        """It is fenced by its epoch all the same; but an executor that stays holds its cores, and no other comes."""
        try:
            ended = bool(self._context._jsc.sc().killAndReplaceExecutor(executor))
            stays = not ended and any(one.id == executor for one in executors_of(self._context))
            problem = "it was refused" if stays else ""
        except Exception as error:
            problem = one_line(str(error), 200) or type(error).__name__
        if problem:
            self._log(
                f"executor {executor} is not used any more, and Spark does not replace it: {problem}; "
                "where its process lives, end it by hand: it holds its cores"
            )

    def take_agent_report(self, node: NodeId, report: AgentReport | None) -> None:
        """Take what a node reported of its agent: others join it, and it is pinged."""
        if report is None:
            return
        if report.problem is not None:
            if report.problem not in self._logged:
                self._logged.add(report.problem)
                self._log(f"nodes have no store agents, so snapshots go to the run's directory only: {report.problem}")
            return
        if report.degraded is not None and report.degraded not in self._logged:
            self._logged.add(report.degraded)
            self._log(f"degraded: {report.degraded}")
        self._take_codes(node, report)
        self.roster.add({node: report})
        if report.address is not None and self._keep_alive is not None:
            self._keep_alive.watch(node, Address.parse(report.address))

    def _take_codes(self, node: NodeId, report: AgentReport) -> None:
        for choice in report.codes:
            try:
                key, code = (node, float(choice["state_bytes"])), (int(choice["data"]), int(choice["parity"]))
            except (KeyError, TypeError, ValueError):
                continue  # of an agent that another release has started
            if self._codes.get(key) != code:
                before, self._codes[key] = self._codes.get(key), code
                self._chosen.append(CodeChosen(node, dict(choice), before))

    def code_news(self) -> list[CodeChosen]:
        """Return the codes that agents have chosen since the last call."""
        news, self._chosen = self._chosen, []
        return news


def decommissioned(context: SparkContext, executor: str) -> bool:
    """Whether Spark has been told that an executor will go.

    The scheduler is asked by the interface that it implements: Py4J would look at all methods of its class, whose types
    need jars that a driver may not have.
    """
    jvm, gateway = context._jvm, context._gateway
    assert jvm is not None
    assert gateway is not None
    types, given = gateway.new_array(jvm.java.lang.Class, 1), gateway.new_array(jvm.java.lang.Object, 1)
    types[0], given[0] = jvm.java.lang.Class.forName("java.lang.String"), executor
    interface = jvm.java.lang.Class.forName("org.apache.spark.scheduler.TaskScheduler")
    found = interface.getMethod("getExecutorDecommissionState", types).invoke(context._jsc.sc().taskScheduler(), given)
    return bool(found.isDefined())
