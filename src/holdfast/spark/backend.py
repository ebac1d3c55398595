"""Executors as nodes, Spark jobs as cycles: the coordinator's backend on a cluster. Runs on the driver.

A cycle is one job pinned to the executors that have the partitions' state. While it runs, executors are watched: when
one that it needs is gone or silent, the job is cancelled at once, for it would wait or bring what nobody wants. A
silent executor is asked to end, and never used again: when its machine thaws, it comes back as another.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.errors import CheckFailed
from holdfast.ids import NodeId
from holdfast.recovery.events import Event, NodesArrived, NodesLost, NodesSilent
from holdfast.runtime.backend import Broken
from holdfast.runtime.messages import Cycle, NodeReport
from holdfast.runtime.program import Program
from holdfast.spark.agents import AgentReport, Roster
from holdfast.spark.keepalive import KeepAlive
from holdfast.spark.levels import levels_needed
from holdfast.spark.pinned_jobs import DRIVER, Executor, PinnedSlots, executors_of
from holdfast.spark.worker_task import Job, RunContext, read_job, read_report, run_level, warm_up
from holdfast.store.wire.address import Address

if TYPE_CHECKING:
    from pyspark import SparkContext

WATCH_SECONDS = 0.1
MOST_LOOKS = 10
"""After a loss, how often to look whether more are lost."""
SETTLE_SECONDS = 1.0
"""At the start, executors that come within so much of each other are taken together."""
PIPELINED_LEVELS = 2
"""Under load a job has one exchange, and every level works on a batch of its own."""


class SparkBackend:
    """See the coordinator's Backend."""

    def __init__(
        self,
        context: SparkContext,
        program: Program,
        around: RunContext,
        *,
        capacity: float = math.inf,
        expected: int | None = None,
        wait_seconds: float = 120.0,
        request: Callable[[int], str | None] | None = None,
        keep_alive: KeepAlive | None = None,
        admits: Callable[[str], bool] = lambda host: True,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        """Each node has this capacity; at the start, wait for the expected number of executors, or for the first.

        An executor on a host that is not admitted (yet) is warmed up and not used: a node that stands by.
        """
        self._admits, self._tell = admits, tell
        self._told: set[str] = set()
        self._context, self._program, self._around = context, program, around
        self._capacity, self._expected, self._wait = capacity, expected, wait_seconds
        self._request, self._keep_alive = request, keep_alive
        self._known: dict[NodeId, Executor] = {}
        self._fenced: set[NodeId] = set()
        """Nodes that were silent: their executors are not used again."""
        self._slots: PinnedSlots | None = None
        self._slot_nodes: tuple[NodeId, ...] = ()
        self._broadcast: Any = None
        self._started = False
        self._roster = Roster()
        self._warming: dict[NodeId, threading.Thread] = {}

    # -- nodes -------------------------------------------------------------------------------------------------------

    def events(self) -> Sequence[Event]:
        """See Backend."""
        if not self._started:
            self._await_executors()
            self._started = True
        found: list[Event] = []
        alive = self._alive()
        gone = tuple(node for node in self._known if node not in alive)
        if gone:
            # Nodes that fail together are not noticed at one moment: one plan for them is better than several.
            alive = self._settled()
            gone = tuple(node for node in self._known if node not in alive)
        quiet = tuple(node for node in self._silent() if node in self._known and node not in self._fenced)
        quiet = tuple(node for node in quiet if node not in gone)
        if gone:
            found.append(NodesLost(gone))
        if quiet:
            found.append(NodesSilent(quiet))
            for node in quiet:
                self._fence(node)
        for node in (*gone, *quiet):
            del self._known[node]
            self._roster.lose(node)
            if self._keep_alive is not None:
                self._keep_alive.unwatch(node)
        fresh = {node: one for node, one in alive.items() if node not in self._known and node not in self._fenced}
        warm = {node: one for node, one in fresh.items() if self._is_warm(node, one)}
        admitted = {node: one for node, one in warm.items() if self._admits(one.host)}
        if admitted:
            self._known.update(admitted)
            found.append(NodesArrived(dict.fromkeys(admitted, self._capacity)))
        return found

    def _is_warm(self, node: NodeId, executor: Executor) -> bool:
        """Whether a node's Python has run: the first task there takes long, and no live query should wait for it."""
        warming = self._warming.get(node)
        if warming is None:
            warming = self._warming[node] = threading.Thread(target=self._warm, args=(node, executor), daemon=True)
            warming.start()
        warming.join(0.0 if self._known else self._wait)
        return not warming.is_alive()

    def _warm(self, node: NodeId, executor: Executor) -> None:
        """Start a node's Python, and load the application there; whatever goes wrong shows in the first cycle."""
        work = [partial(_warm_up, self._around)]
        with contextlib.suppress(Exception), PinnedSlots(self._context, [executor]) as slot:
            outcome = slot.run(work, name=f"{self._program.name}: {executor.host} warms up")
            for _, said in outcome.reports:
                self._hear_agent(node, pickle.loads(said))

    def _hear_agent(self, node: NodeId, report: AgentReport | None) -> None:
        """Take what a task said of its node's agent: others join it, and it is pinged."""
        if report is None:
            return
        if report.problem is not None:
            if report.problem not in self._told:
                self._told.add(report.problem)
                self._tell(f"nodes have no agents, so checkpoints go to the run's directory alone: {report.problem}")
            return
        self._roster.hear({node: report})
        if report.address is not None and self._keep_alive is not None:
            self._keep_alive.watch(node, Address.parse(report.address))

    def _silent(self) -> set[NodeId]:
        """Return the nodes that have answered and do so no more; of one that never has, nothing is known.

        An agent refuses a driver that has not its secret: that is no reason to end its executor.
        """
        return set() if self._keep_alive is None else self._keep_alive.silent() & self._keep_alive.heard()

    def _alive(self) -> dict[NodeId, Executor]:
        return {NodeId(f"{one.host}-{one.id}"): one for one in executors_of(self._context)}

    def _settled(self) -> dict[NodeId, Executor]:
        """Return the executors that are alive once no more of them go."""
        alive = self._alive()
        for _ in range(MOST_LOOKS):
            time.sleep(WATCH_SECONDS)
            before, alive = alive, self._alive()
            if set(before) <= set(alive):
                break
        return alive

    def _await_executors(self) -> None:
        deadline = time.monotonic() + self._wait
        count, since = 0, time.monotonic()
        while True:
            alive, now = len(self._alive()), time.monotonic()
            if alive != count:
                count, since = alive, now
            if count and (count == self._expected or now - since > SETTLE_SECONDS):
                return
            if now > deadline:
                raise CheckFailed(
                    f"no executor came in {self._wait:.0f} s",
                    where=f"application {self._program.name}",
                    remedy="see that the cluster has free workers; the run goes on from here when started again",
                )
            time.sleep(0.05)

    def _fence(self, node: NodeId) -> None:
        """Never use a silent node again; Spark is asked to end its executor and to take another in its place."""
        self._fenced.add(node)
        threading.Thread(target=self._end_executor, args=(self._known[node].id,), daemon=True).start()

    def _end_executor(self, executor: str) -> None:
        with contextlib.suppress(Exception):  # it is fenced by its epoch all the same
            self._context._jsc.sc().killAndReplaceExecutor(executor)

    def request_nodes(self, count: int) -> str | None:
        """See Backend: by the owner's means; a cluster manager brings new executors for lost ones by itself."""
        return None if self._request is None else self._request(count)

    def wait(self, seconds: float) -> None:
        """See Backend."""
        time.sleep(seconds)

    # -- cycles ------------------------------------------------------------------------------------------------------

    def run(self, cycle: Cycle) -> Sequence[NodeReport] | Broken:
        """See Backend."""
        nodes = tuple(sorted({task.node for task in cycle.tasks.values()}))
        if missing := [node for node in nodes if node not in self._known]:
            return Broken(f"{missing[0]} is not there")
        levels = self._levels(cycle)
        # What is the same in all cycles is broadcast once; the rest goes with the tasks: a broadcast costs two trips.
        job = pickle.dumps(Job(cycle, nodes, self._roster.join(list(self._known))))
        work = [partial(_level, self._shared(), job, level) for level in range(levels)]
        frontiers = [task.frontier for task in cycle.tasks.values()]
        first, last = min(frontiers) + 1, max(task.through for task in cycle.tasks.values())
        name = f"{self._program.name}: batches {first} to {last}, epoch {cycle.epoch}, cycle {cycle.number}"
        running = _Running(self._context, f"holdfast-{self._around.start}-{cycle.number}")
        outcome = running.result(lambda: self._pin(nodes).run(work, name=name), lambda: self._broken_by(nodes))
        if isinstance(outcome, Broken):
            self.close()
            return outcome
        if outcome.misplaced:
            self.close()
        found = []
        for slot, data in outcome.reports:
            report, agent = read_report(data)
            self._hear_agent(nodes[slot], agent)
            found.append(report)
        return found

    def _broken_by(self, nodes: Sequence[NodeId]) -> str | None:
        """Say which node a running job waits for in vain."""
        alive, quiet = self._alive(), self._silent()
        for node in nodes:
            if node not in alive:
                return f"{node} is gone"
            if node in quiet:
                return f"{node} is silent"
        return None

    def _levels(self, cycle: Cycle) -> int:
        """As many exchanges as the placement needs, for low latency; under load, one."""
        number = {node: slot for slot, node in enumerate(sorted({task.node for task in cycle.tasks.values()}))}
        placement = {p: number[task.node] for p, task in cycle.tasks.items()}
        needed = levels_needed(self._program.topology, placement)
        return min(needed, PIPELINED_LEVELS) if cycle.behind > (cycle.most or 1) else needed

    def _shared(self) -> Any:
        if self._broadcast is None:
            self._broadcast = self._context.broadcast(self._around)
        return self._broadcast

    def _pin(self, nodes: tuple[NodeId, ...]) -> PinnedSlots:
        if self._slots is None or self._slot_nodes != nodes:
            self.close()
            self._slots = PinnedSlots(self._context, [self._known[node] for node in nodes])
            self._slot_nodes = nodes
        return self._slots

    def close(self) -> None:
        """Let go of the executors."""
        if self._slots is not None:
            self._slots.close()
            self._slots = None


class _Running:
    """A job in a thread of its own, so that it can be watched and cancelled."""

    def __init__(self, context: SparkContext, group: str) -> None:
        self._context, self._group = context, group
        self._outcome: Any = None
        self._error: BaseException | None = None

    def result(self, job: Callable[[], Any], broken_by: Callable[[], str | None]) -> Any:
        """Return what the job gives, or why it was cancelled or failed."""
        thread = threading.Thread(target=self._run, args=(job,), name=self._group, daemon=True)
        thread.start()
        try:
            while True:
                thread.join(WATCH_SECONDS)
                if not thread.is_alive():
                    break
                why = broken_by()
                if why is not None:
                    self._context.cancelJobGroup(self._group)
                    thread.join(5.0)
                    return Broken(why)
        except BaseException:
            self._context.cancelJobGroup(self._group)
            raise
        if self._error is not None:
            if not isinstance(self._error, Exception):
                raise self._error
            return Broken(f"a job failed: {_first_line(self._error)}")
        return self._outcome

    def _run(self, job: Callable[[], Any]) -> None:
        try:
            self._context.setJobGroup(self._group, "holdfast cycle", interruptOnCancel=True)
            self._outcome = job()
        except BaseException as error:
            self._error = error


def _warm_up(around: RunContext, slot: int, blocks: list[bytes]) -> list[tuple[int, bytes]]:
    return [(DRIVER, pickle.dumps(warm_up(around)))]


def _level(shared: Any, job: bytes, level: int, slot: int, blocks: list[bytes]) -> Any:
    return run_level(shared.value, read_job(job), level, slot, blocks)


def _first_line(error: BaseException) -> str:
    """Return what an error says first, or what a Python traceback that Spark introduces ends with."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    ends = [line for line in lines if "Error:" in line.partition(" ")[0]]
    return ends[0] if "Python worker" in lines[0] and ends else lines[0]
