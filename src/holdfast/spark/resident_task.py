"""The Spark task that holds a node, and stays: it supervises the node's operator processes. Runs in a Python worker.

The task runs no user code. It starts a process that answers the driver's pings whatever operators do (beacon.py), and
operator processes (resident_node.py) as forks of itself, watches them, and starts one again that crashed or hung
(supervisor.py): partitions' state is in files, so that is no lost node, and the other processes of the node go on. A
step in which a process dies again and again is answered as failed (step_guard.py), so that one bad row takes no node
after the other. A second attempt of the task, which Spark makes when the executor of the first is lost, ends at once;
so does one on a wrong executor, also of the same host. The kernel ends the operator processes with the task, and the
task with the worker daemon.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from holdfast.runtime.detection import RETURN_FACTOR
from holdfast.runtime.worker.step_guard import StepGuard
from holdfast.spark.beacon import answer_pings
from holdfast.spark.pinned_jobs import Executor, is_here
from holdfast.spark.process_memory import machine_share
from holdfast.spark.resident_node import NodeIdentity, ResidentNode
from holdfast.spark.run_context import RunContext
from holdfast.spark.run_secret import CarriedSecret
from holdfast.spark.supervisor import end_with_parent, supervise
from holdfast.store.wire.handshake import ClusterKey
from holdfast.store.wire.tls import Tls

MISPLACED, REPEATED, NO_SECRET = "misplaced", "repeated", "without Spark's secret"
"""How a task that stays ends at once: on a wrong executor; as a second attempt; where it cannot make the run's secret.

Other ways: supervisor.py.
"""


@dataclass(frozen=True, slots=True, repr=False)
class ResidentTask:
    """What the driver sends with the task, by Spark: what protects it there is said in run_secret.py."""

    context: RunContext
    identity: NodeIdentity
    secret: CarriedSecret
    tls: Tls | None = None

    def run(self, attempt: int) -> str:
        """Stay until the run is over; return how it ended."""
        if attempt > 0:
            return REPEATED
        if not is_here(Executor(self.identity.executor, self.identity.host)):
            return MISPLACED
        if (key := self.secret.key()) is None:
            return NO_SECRET
        end_with_parent(os.getppid())
        settings, many = self.context.settings, self.identity.processes
        megabytes = settings.node_memory_mb
        return supervise(
            partial(self._operate, key),
            many,
            stall_seconds=settings.stall_seconds,
            memory_bytes=machine_share(many) if megabytes is None else megabytes << 20,
            beside=partial(self._answer_pings, key),
        )

    def _answer_pings(self, key: ClusterKey) -> None:
        seconds = RETURN_FACTOR * self.context.settings.keepalive_seconds
        answer_pings(self.identity, key, self.tls, seconds=seconds)

    def _operate(self, key: ClusterKey, index: int, guard: StepGuard) -> None:
        ResidentNode(self.context, self.identity, index, key, guard, self.tls).run()
