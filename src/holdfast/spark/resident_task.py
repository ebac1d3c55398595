"""The Spark task that holds a node, and stays: it supervises the node's operator process. Runs in a Python worker.

The task runs no user code. It starts the operator process (resident_node.py) as a fork of itself, waits for its end,
and starts it again where it crashed: partitions' state is in files, so that is no lost node. A second attempt of the
task, which Spark makes when the executor of the first is lost, ends at once; so does one on a wrong host. The kernel
ends the operator process with the task, and the task with the worker daemon.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.spark.pinned_jobs import is_here
from holdfast.spark.resident_node import NodeIdentity, ResidentNode
from holdfast.spark.run_context import RunContext
from holdfast.store.wire.handshake import key_from_random

ENDED, MISPLACED, REPEATED = "ended", "misplaced", "repeated"
"""How a task that stays comes to its end: at the request of the driver; on a wrong host; as a second attempt."""
CRASHES = 5
"""Crashes within CRASH_SECONDS after which the task gives its node up."""
CRASH_SECONDS = 60.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True, repr=False)
class ResidentTask:
    """What the driver sends with the task. Spark carries it; where `spark.authenticate` is on, it does so in secret."""

    context: RunContext
    identity: NodeIdentity
    secret: bytes

    def run(self, attempt: int) -> str:
        """Stay until the run is over; return how it ended."""
        if attempt > 0:
            return REPEATED
        if not is_here(self.identity.host):
            return MISPLACED
        end_with_parent(os.getppid())
        return supervise(self._operate)

    def _operate(self) -> None:
        ResidentNode(self.context, self.identity, key_from_random(self.secret)).run()


def supervise(operate: Callable[[], None]) -> str:
    """Run something in a process of its own, again where it crashes; return when it has ended in order."""
    crashes: list[float] = []
    while True:
        ended = _in_a_process(operate)
        if ended == 0:
            return ENDED
        now = time.monotonic()
        crashes = [at for at in crashes if now - at < CRASH_SECONDS] + [now]
        if len(crashes) > CRASHES:
            raise RuntimeError(f"the operator process crashed {len(crashes)} times in {CRASH_SECONDS:.0f} s")
        time.sleep(min(2.0, 0.05 * 2 ** len(crashes)))


def _in_a_process(operate: Callable[[], None]) -> int:
    """Fork, run, wait; return the exit status: 0 where it ended in order."""
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            end_with_parent(parent)
            _let_go_of_the_executor()
            operate()
            status = 0
        except BaseException as error:
            # The executor's log shows it; the end of its connection shows the driver.
            sys.stderr.write(f"holdfast: the operator process failed: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(status)
    while True:
        try:
            _, status = os.waitpid(child, 0)
            return os.waitstatus_to_exitcode(status)
        except InterruptedError:
            continue
        except ChildProcessError:
            return 1  # reaped by somebody else, so nobody knows how it ended


def _let_go_of_the_executor() -> None:
    """Close what was inherited: the executor would wait for this process where it waits for the task."""
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.closerange(3, os.sysconf("SC_OPEN_MAX") if os.sysconf("SC_OPEN_MAX") < 65536 else 65536)


def end_with_parent(parent: int) -> None:
    """Let the kernel end this process when its parent ends, however that happens."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it had ended before
        os._exit(1)
