"""The executors of a run as nodes: who is there, who is gone or silent, and their agents. Runs on the driver.

Spark shows at once which executors are gone; agents are pinged, so that a frozen machine is noticed within seconds. A
silent executor is asked to end, and never used again: when its machine thaws, it comes back as another.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from holdfast.errors import CheckFailed
from holdfast.ids import NodeId
from holdfast.spark.agents import AgentReport, Roster
from holdfast.spark.keepalive import KeepAlive
from holdfast.spark.pinned_jobs import Executor, executors_of
from holdfast.store.wire.address import Address

if TYPE_CHECKING:
    from pyspark import SparkContext

WATCH_SECONDS = 0.1
MOST_LOOKS = 10
"""After a loss, how often to look whether more are lost."""
SETTLE_SECONDS = 1.0
"""At the start, executors that come within so much of each other are taken together."""


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
        deadline = time.monotonic() + self._wait
        count, since = 0, time.monotonic()
        while True:
            alive, now = len(self.alive()), time.monotonic()
            if alive != count:
                count, since = alive, now
            if count and (count == self._expected or now - since > SETTLE_SECONDS):
                return
            if now > deadline:
                raise CheckFailed(
                    f"no executor came in {self._wait:.0f} s",
                    where=f"application {self._application}",
                    remedy="see that the cluster has free workers; the run goes on from here when started again",
                )
            time.sleep(0.05)

    def silent(self) -> set[NodeId]:
        """Return the nodes that have answered and do so no more; of one that never has, nothing is known.

        An agent refuses a driver that has not its secret: that is no reason to end its executor.
        """
        found = set() if self._keep_alive is None else self._keep_alive.silent() & self._keep_alive.answered()
        return {node for node in found if node in self.known and node not in self.fenced}

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
        with contextlib.suppress(Exception):  # it is fenced by its epoch all the same
            self._context._jsc.sc().killAndReplaceExecutor(executor)

    def take_agent_report(self, node: NodeId, report: AgentReport | None) -> None:
        """Take what a node reported of its agent: others join it, and it is pinged."""
        if report is None:
            return
        if report.problem is not None:
            if report.problem not in self._logged:
                self._logged.add(report.problem)
                self._log(f"nodes have no store agents, so snapshots go to the run's directory only: {report.problem}")
            return
        self.roster.add({node: report})
        if report.address is not None and self._keep_alive is not None:
            self._keep_alive.watch(node, Address.parse(report.address))
