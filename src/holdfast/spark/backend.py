"""Executors as nodes, Spark jobs as cycles: the coordinator's backend on a cluster. Runs on the driver.

The workers reconcile with a desired state in one Spark job, pinned to the executors that have the partitions' state;
blocks between nodes travel through Spark's shuffle. The job runs in a thread of its own. While it runs, executors are
watched: when one that it needs is gone or silent, the job is cancelled at once. A silent executor is asked to end, and
never used again: when its machine thaws, it comes back as another.
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

from holdfast.ids import NodeId
from holdfast.recovery.events import NodesArrived, NodesLost, NodesSilent
from holdfast.runtime.messages import CycleEnded, DesiredState, Report
from holdfast.runtime.program import Program
from holdfast.spark.agents import AgentReport
from holdfast.spark.executors import WATCH_SECONDS, ExecutorWatch, FirstPlacement
from holdfast.spark.keepalive import KeepAlive
from holdfast.spark.levels import levels_needed
from holdfast.spark.pinned_jobs import Executor, Outcome, PinnedSlots, Work, is_here, pinned_item
from holdfast.spark.run_context import RunContext
from holdfast.spark.worker_task import Job, read_job, read_report, run_level, warm_up

if TYPE_CHECKING:
    from pyspark import SparkContext

CANCEL_SECONDS = 5.0
"""How long to wait until a cancelled job has ended."""
WARM_LOOK_SECONDS = 0.05
"""How often to look whether nodes are warm, before the first one is used."""
PIPELINED_LEVELS = 2
"""Under load a job has one exchange, and every level works on a batch of its own."""


class SparkBackend:
    """See the coordinator's Backend."""

    takes_updates = False
    needs_free_slot = False
    """Jobs that read sources get their turn between cycles."""

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
        ready: Callable[[int, int | None], object] = lambda count, wanted: None,
    ) -> None:
        """Each node has this capacity; at the start, wait for the expected number of executors, or for the first.

        An executor on a host that is not admitted (yet) is warmed up and not used: a node that stands by.
        """
        self._admits, self._wait, self._ready, self._expected = admits, wait_seconds, ready, expected
        self._context, self._program, self._run_context = context, program, run_context
        self._capacity, self._request = capacity, request
        self._watch = ExecutorWatch(
            context, program.name, expected=expected, wait_seconds=wait_seconds, keep_alive=keep_alive, log=log
        )
        self._slots: PinnedSlots | None = None
        self._slot_nodes: tuple[NodeId, ...] = ()
        self._broadcast: Any = None
        self._started = False
        self._warming: dict[NodeId, threading.Thread] = {}
        self._job: _Job | None = None
        self._ended: list[Report] = []
        """Reports of jobs that were cancelled."""
        self._looked_at = -math.inf
        self._news = threading.Event()
        """A job has ended, or somebody wakes whoever waits."""
        self._woken = False

    # -- nodes -------------------------------------------------------------------------------------------------------

    def reports(self, timeout: float) -> Sequence[Report]:
        """See Backend."""
        until = time.monotonic() + timeout
        while True:
            found = [*self._job_reports(), *self._node_reports()]
            left = until - time.monotonic()
            if found or left <= 0 or self._woken:
                self._woken = False
                return found
            if self._news.wait(min(left, WATCH_SECONDS)):
                self._news.clear()

    def _node_reports(self) -> list[Report]:
        """Return what has become of nodes; Spark is asked now and then, for asking costs."""
        if not self._started:
            self._watch.await_first()
            self._started = True
        if time.monotonic() < self._looked_at + WATCH_SECONDS:
            return []
        self._looked_at = time.monotonic()
        found: list[Report] = []
        watch = self._watch
        alive = watch.alive()
        gone = tuple(node for node in watch.known if node not in alive)
        if gone:
            # Nodes that fail together are not noticed at one moment: one plan for them is better than several.
            alive = watch.settled()
            gone = tuple(node for node in watch.known if node not in alive)
        quiet = tuple(node for node in watch.silent() if node not in gone)
        if self._job is not None and (needed := [node for node in (*gone, *quiet) if node in self._job.nodes]):
            # Whatever the job was doing there is over; what it did elsewhere is found out by the next.
            self._cancel(f"{needed[0]} is gone")
            found += self._job_reports()
        if gone:
            found.append(NodesLost(gone))
        if quiet:
            found.append(NodesSilent(quiet))
            for node in quiet:
                watch.fence(node, watch.known[node])
        watch.forget((*gone, *quiet))
        if self._job is not None:
            return found  # placing partitions on new nodes begins an epoch, which would cost the running job
        fresh = {node: one for node, one in alive.items() if node not in watch.known and node not in watch.fenced}
        warm = self._warm_ones(fresh)
        admitted = {node: one for node, one in warm.items() if self._admits(one.host)}
        if admitted:
            watch.known.update(admitted)
            self._ready(len(watch.known), self._expected)
            found.append(NodesArrived(dict.fromkeys(admitted, self._capacity)))
        return found

    def _warm_ones(self, fresh: dict[NodeId, Executor]) -> dict[NodeId, Executor]:
        """Return the nodes whose Python has run: the first task there takes long, and no live query should wait for it.

        All warm up at once, and the first placement waits for them, though not for stragglers.
        """
        for node, executor in fresh.items():
            if node not in self._warming:
                self._warming[node] = threading.Thread(target=self._warm, args=(node, executor), daemon=True)
                self._warming[node].start()
        began = time.monotonic()
        first = FirstPlacement(began)
        while not self._watch.known and fresh:
            warm = [node for node in fresh if not self._warming[node].is_alive()]
            now = time.monotonic()
            self._ready(len(warm), self._expected)
            if not first.waits(now, len(warm), len(fresh)) or now - began > self._wait:
                break
            time.sleep(WARM_LOOK_SECONDS)
        return {node: one for node, one in fresh.items() if not self._warming[node].is_alive()}

    def _warm(self, node: NodeId, executor: Executor) -> None:
        """Start a node's Python, and load the application there; whatever goes wrong shows in the first cycle."""
        with contextlib.suppress(Exception):
            self._context.setJobDescription(f"{self._program.name}: {executor.host} warms up")
            reports = pinned_item(self._context, executor).map(_warm_up(self._run_context, executor)).collect()
            self._watch.take_agent_report(node, reports[0])

    def domain_of(self, node: NodeId) -> str | None:
        """See ResidentBackend: nothing here needs it."""
        return None

    def release_nodes(self, nodes: Sequence[NodeId]) -> None:
        """See Backend: nodes that will go are not noticed here before they have gone."""

    def request_nodes(self, count: int) -> str | None:
        """See Backend: by the owner's means; a cluster manager brings new executors for lost ones by itself."""
        return None if self._request is None else self._request(count)

    # -- cycles ------------------------------------------------------------------------------------------------------

    def reconcile(self, desired: DesiredState) -> None:
        """See Backend."""
        if self._job is not None:
            if self._job.desired.epoch == desired.epoch:
                return
            self._cancel(f"epoch {desired.epoch} has begun")
        nodes = tuple(sorted({one.node for one in desired.assignments.values()}))
        if missing := [node for node in nodes if node not in self._watch.known]:
            self._looked_at = -math.inf
            self._ended.append(CycleEnded(desired.number, desired.epoch, f"{missing[0]} is gone"))
            return
        if not nodes:
            self._ended.append(CycleEnded(desired.number, desired.epoch))
            return
        # What is the same for all cycles is broadcast once; the rest goes with the tasks: a broadcast costs two trips.
        job = pickle.dumps(Job(desired, nodes, self._watch.roster.join(list(self._watch.known))))
        work = [partial(_level, self._shared(), job, level) for level in range(self._levels(desired))]
        frontiers = [one.frontier for one in desired.assignments.values()]
        first, last = min(frontiers) + 1, max(one.through for one in desired.assignments.values())
        name = f"{self._program.name}: batches {first} to {last}, epoch {desired.epoch}, cycle {desired.number}"
        group = f"holdfast-{self._run_context.start}-{desired.number}"
        self._job = _Job(self._context, group, desired, nodes, lambda: self._pin(nodes), work, name, self._news.set)

    def _job_reports(self) -> list[Report]:
        """Return the reports of a job that has ended."""
        found, self._ended = self._ended, []
        job = self._job
        if job is None or not job.ended:
            return found
        self._job = None
        self._looked_at = -math.inf  # between two jobs nodes are looked at, so that arrivals are not passed over
        if job.error is not None:
            if not isinstance(job.error, Exception):
                raise job.error
            self.close()
            problem = f"a job failed: {_first_line(job.error)}"
            return [*found, CycleEnded(job.desired.number, job.desired.epoch, problem)]
        if job.outcome.misplaced:
            self.close()
        for slot, data in job.outcome.reports:
            report, agent = read_report(data)
            self._watch.take_agent_report(job.nodes[slot], agent)
            found.append(report)
        return [*found, *self._watch.code_news(), CycleEnded(job.desired.number, job.desired.epoch)]

    def _cancel(self, why: str) -> None:
        """Give the running job up; its reports do not come."""
        job, self._job = self._job, None
        if job is not None:
            job.cancel()
            self._ended.append(CycleEnded(job.desired.number, job.desired.epoch, why))
            self.close()

    def _levels(self, desired: DesiredState) -> int:
        """As many exchanges as the placement needs, for low latency; under load, one."""
        nodes = {one.node for one in desired.assignments.values()}
        number = {node: slot for slot, node in enumerate(sorted(nodes))}
        placement = {p: number[one.node] for p, one in desired.assignments.items()}
        needed = levels_needed(self._program.topology, placement)
        return min(needed, PIPELINED_LEVELS) if desired.lag > (desired.max_batches or 1) else needed

    def _shared(self) -> Any:
        if self._broadcast is None:
            self._broadcast = self._context.broadcast(self._run_context)
        return self._broadcast

    def _pin(self, nodes: tuple[NodeId, ...]) -> PinnedSlots:
        if self._slots is None or self._slot_nodes != nodes:
            self.close()
            self._slots, self._slot_nodes = (
                PinnedSlots(self._context, [self._watch.known[node] for node in nodes]),
                nodes,
            )
        return self._slots

    @property
    def agents(self) -> tuple[str, ...]:
        """Where the nodes' store agents listen; from any thread."""
        return tuple(str(one) for one in dict(self._watch.roster.addresses()).values())

    def wake(self) -> None:
        """Let a call of `reports` that waits return soon; from any thread."""
        self._woken = True
        self._news.set()

    def stop(self) -> None:
        """Cancel what is running, and release the executors."""
        self._cancel("the run stops")
        self.close()

    def close(self) -> None:
        """Release the executors; the next job pins them again."""
        if self._slots is not None:
            self._slots.close()
            self._slots = None


class _Job:
    """A job in a thread of its own, so that it can be watched and cancelled."""

    def __init__(
        self,
        context: SparkContext,
        group: str,
        desired: DesiredState,
        nodes: tuple[NodeId, ...],
        pin: Callable[[], PinnedSlots],
        work: Sequence[Work],
        name: str,
        on_end: Callable[[], object],
    ) -> None:
        """Start it: pin it to its executors, then run the levels of work."""
        self.desired, self.nodes = desired, nodes
        self._context, self._group = context, group
        self._cancelled = self.ended = False
        """Whether it was cancelled; whether it has ended, well or not."""
        self._on_end = on_end
        self.outcome = Outcome((), ())
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(pin, work, name), name=group, daemon=True)
        self._thread.start()

    def cancel(self) -> None:
        """Cancel it, and wait a little until Spark has; one that is not submitted yet is not submitted any more."""
        self._cancelled = True
        self._context.cancelJobGroup(self._group)
        self._thread.join(CANCEL_SECONDS)

    def _run(self, pin: Callable[[], PinnedSlots], work: Sequence[Work], name: str) -> None:
        try:
            self._context.setJobGroup(self._group, "holdfast cycle", interruptOnCancel=True)
            slots = pin()
            if not self._cancelled:
                self.outcome = slots.run(work, name=name)
        except BaseException as error:
            self.error = error
        finally:
            self.ended = True
            self._on_end()


def _warm_up(context: RunContext, executor: Executor) -> Callable[[Any], AgentReport | None]:
    def run(marker: Any) -> AgentReport | None:
        return warm_up(context) if is_here(executor) else None

    return run


def _level(shared: Any, job: bytes, level: int, slot: int, blocks: list[bytes]) -> Any:
    return run_level(shared.value, read_job(job), level, slot, blocks)


def _first_line(error: BaseException) -> str:
    """Return what an error says first, or what a Python traceback that Spark introduces ends with."""
    lines = [line.strip() for line in str(error).strip().splitlines() if line.strip()] or [type(error).__name__]
    ends = [line for line in lines if "Error:" in line.partition(" ")[0]]
    return ends[0] if "Python worker" in lines[0] and ends else lines[0]
