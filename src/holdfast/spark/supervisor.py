"""Processes that a task forks, watches and starts again. Runs in a Python worker; knows nothing of what they do.

Each is on its own: one that crashes is started again after a moment, and the others notice nothing. One whose count
(step_guard.py) stands still for too long hangs, and is killed: that is a crash. How long that is follows the steps that
have ended (`_limit`): the other partitions of the process wait for a step that hangs, and a batch may be slow. One that
takes more memory than it may is killed before the cluster manager ends the whole executor for it. Where one crashes
again and again, all are ended and the task gives up. Where one ends in order, the others have a few seconds to end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from holdfast.runtime.worker.step_guard import SharedGuard, StepGuard, ended_by
from holdfast.spark.process_memory import die_first, own_bytes
from holdfast.spark.settings import PREFIX

ENDED, GIVEN_UP = "ended", "given up"
"""How it comes to an end: in order; because a process crashes again and again."""
CRASHES = 5
"""Crashes of one process within CRASH_SECONDS after which its node is given up: another may do better."""
CRASH_SECONDS = 60.0
END_SECONDS = 5.0
"""How long the others have to end after the first that ended in order."""
LOOK_SECONDS = 0.5
"""How often counts are looked at."""
MEMORY_SECONDS = 0.1
"""How often memory is looked at, where it has a bound: a process may take a gigabyte in a second."""
MEMORY_PAUSE = 0.5
"""How long to wait before a process is started again that took too much memory outside a step."""
LOOP_FACTOR = 5.0
"""A process may do without a turn of its loop, and take for a step at most, so many times as long as a step may."""
SLOW_FACTOR = 10.0
"""A step may take so many times as long as the longest that has ended in its process, where that is more."""
AGAIN_FACTOR = 2.0
"""And so many times as long where an earlier attempt at it was ended: the first of a run may have much to load."""
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class _Child:
    """One of the processes: the one that runs, and what became of those before."""

    index: int
    guard: SharedGuard = field(default_factory=SharedGuard)
    pid: int | None = None
    handle: int = -1
    """What becomes readable when it ends; -1: the system has no such thing."""
    start_at: float = 0.0
    crashes: list[float] = field(default_factory=list)
    count: int = 0
    stands: float = 0.0
    """For how many seconds its count has not moved."""
    longest: float = 0.0
    """For how many seconds a step has taken at most and ended, also in the processes before it."""
    in_step: bool = False
    """Whether its count stands still in a step."""
    killed_for: str | None = None
    out_of_memory: bool = False
    """Whether it was killed because of the memory that it took."""
    stalled: bool = False
    """Whether it was killed because it hung."""
    ended: bool = False


def supervise(
    operate: Callable[[int, StepGuard], None],
    processes: int = 1,
    *,
    stall_seconds: float = 0.0,
    memory_bytes: int = 0,
    beside: Callable[[], None] | None = None,
) -> str:
    """Run something in so many processes, again where one crashes; return when all have ended, or it is given up.

    That is a result: an exception would let Spark repeat the task, and its second attempt hides the first one's end.
    A process in a step that does not end for `stall_seconds` (0: for ever) is killed, later where steps are slow; so is
    one whose loop does not turn for five times as long, and one that takes more than `memory_bytes` (0: whatever there
    is). `beside` runs in one process more for as long; it runs no user code, and however it ends it is started again.
    """
    children = [_Child(index) for index in range(processes)]
    other = _Child(-1)
    over_at: float | None = None
    looked_at = time.monotonic()
    try:
        while True:
            now = time.monotonic()
            if beside is not None:
                _keep_running(other, beside, now)
            for child in children:
                if child.pid is None and not child.ended and over_at is None and now >= child.start_at:
                    _start(child, operate)
            running = [child for child in children if child.pid is not None]
            if over_at is not None and (not running or now - over_at > END_SECONDS):
                return ENDED
            due = [child.start_at - now for child in children if child.pid is None and not child.ended]
            look = MEMORY_SECONDS if memory_bytes else LOOK_SECONDS
            _wait_for_one(running, max(0.0, min([look, *(due if over_at is None else [])])))
            before, looked_at = looked_at, time.monotonic()
            for child in running:
                status = _ended(child)
                if status is None:
                    # Where this process was held up itself (a machine that slept), so were the others.
                    _look_at_count(child, min(looked_at - before, 2 * LOOK_SECONDS), stall_seconds)
                    _look_at_memory(child, memory_bytes)
                elif status == 0:
                    child.ended = True
                    over_at = looked_at if over_at is None else over_at
                elif over_at is None and not _may_start_again(child, status, looked_at):
                    return GIVEN_UP
    finally:
        _end_all([*children, other])


def _keep_running(child: _Child, run: Callable[[], None], now: float) -> None:
    """See that a process runs that knows nothing of operators."""
    if child.pid is not None and _ended(child) is not None:
        child.start_at = now + LOOK_SECONDS
    if child.pid is None and now >= child.start_at:
        _start(child, lambda index, guard: run())


def _may_start_again(child: _Child, status: int, now: float) -> bool:
    """Note a crash; return whether the process is started again, after a while that grows.

    Crashes while an operator processes a batch do not count: the step guard remembers them.
    """
    step = child.guard.died(status, child.killed_for, out_of_memory=child.out_of_memory, stalled=child.stalled)
    during = "" if step is None else f" while {step[0]} processed batch {step[1]}"
    how = child.killed_for or ended_by(status)
    sys.stderr.write(f"holdfast: the operator process ended {how}{during}\n")
    memory, child.out_of_memory = child.out_of_memory, False
    child.killed_for, child.count, child.stands, child.stalled = None, 0, 0.0, False
    if step is not None:
        return True  # it is answered as failed, and its queries are parked in time: the node is as good as before
    if memory:
        child.start_at = now + MEMORY_PAUSE  # of what it held nobody knows whose it was; another node does no better
        return True
    child.crashes = [at for at in child.crashes if now - at < CRASH_SECONDS] + [now]
    if len(child.crashes) > CRASHES:
        sys.stderr.write(f"holdfast: it crashed {len(child.crashes)} times in {CRASH_SECONDS:.0f} s: given up\n")
        return False
    child.start_at = now + min(2.0, 0.05 * 2 ** len(child.crashes))
    return True


def _look_at_count(child: _Child, seconds: float, stall_seconds: float) -> None:
    """Kill a process that hangs; one that is still starting has no count, and may take its time."""
    count = child.guard.count
    if count != child.count or not count:
        if child.in_step:
            child.longest = max(child.longest, child.stands)
        child.count, child.stands = count, 0.0
        return
    child.stands += seconds
    child.in_step = child.guard.in_step
    if not stall_seconds or child.killed_for is not None or child.stands <= stall_seconds:
        return
    limit = _limit(stall_seconds, in_step=child.in_step, longest=child.longest, again=child.guard.stalled_before)
    if child.stands > limit:
        child.stalled = True
        _kill(child, f"by its task, after {limit:g} s without a turn ({PREFIX}node.stall.seconds)")


def _limit(stall_seconds: float, *, in_step: bool, longest: float, again: bool) -> float:
    """Return for how long a process may stand still.

    A step that is slow and no hang is not ended: where steps take long, the limit is longer, and so it is for a second
    attempt. It has an end: the other partitions of the process wait.
    """
    most = LOOP_FACTOR * stall_seconds
    if not in_step:
        return most
    return min(most, max(stall_seconds, SLOW_FACTOR * longest) * (AGAIN_FACTOR if again else 1.0))


def _look_at_memory(child: _Child, memory_bytes: int) -> None:
    """Kill a process that takes more memory than it may."""
    if not memory_bytes or child.pid is None or child.killed_for is not None:
        return
    held = own_bytes(child.pid)
    if held > memory_bytes:
        child.out_of_memory = True
        most = f"{memory_bytes >> 20} MB are its bound, {PREFIX}node.memoryMb"
        _kill(child, f"by its task, with {held >> 20} MB of memory ({most})")


def _kill(child: _Child, why: str) -> None:
    if child.killed_for is None and child.pid is not None:
        child.killed_for = why
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


def _start(child: _Child, operate: Callable[[int, StepGuard], None]) -> None:
    parent = os.getpid()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            end_with_parent(parent)
            _let_go_of_the_executor()
            die_first()
            operate(child.index, child.guard)
            status = 0
        except BaseException as error:
            # The executor's log shows it; the end of its connection shows the driver.
            sys.stderr.write(f"holdfast: the operator process failed: {type(error).__name__}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(status)
    child.pid, child.handle = pid, -1
    with contextlib.suppress(OSError, AttributeError):
        child.handle = os.pidfd_open(pid)


def _wait_for_one(running: Sequence[_Child], seconds: float) -> None:
    """Wait until one of these has ended, though not for long."""
    if any(child.handle < 0 for child in running):
        time.sleep(min(seconds, 0.02))
        return
    poll = select.poll()
    for child in running:
        poll.register(child.handle, select.POLLIN)
    with contextlib.suppress(InterruptedError):
        poll.poll(seconds * 1000)


def _ended(child: _Child) -> int | None:
    """Return the exit status of a process that has ended: 0 where it did so in order; None: it runs."""
    assert child.pid is not None
    try:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
    except ChildProcessError:
        ended = 1  # reaped by somebody else, so nobody knows how it ended
    else:
        if pid == 0:
            return None
        ended = os.waitstatus_to_exitcode(status)
    _forget(child)
    return ended


def _forget(child: _Child) -> None:
    if child.handle >= 0:
        os.close(child.handle)
    child.pid, child.handle = None, -1


def _end_all(children: Sequence[_Child]) -> None:
    """Kill whoever still runs."""
    for child in children:
        if child.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, 0)
            _forget(child)


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
