"""Threads that run one at a time, in an order drawn from a seed, on a simulated clock. Runs anywhere.

The store's clients and repair are written with threads, conditions, queues and `time`. Here each thread still has a
stack of its own, but only the one whose turn it is runs: at every lock that is held, wait, message and file operation
the scheduler draws which goes on. Where all wait, the clock moves to the next event. Threads belong to a simulated
process, which can be killed (its threads end where they are, and nothing that they do while they end has an effect) or
frozen (its threads get no turn).
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any, Self

MOST_SWITCHES = 400_000
"""A run with more changes from thread to thread goes in circles."""


class Killed(BaseException):
    """The process of this thread is dead: the thread ends here."""


class Stuck(Exception):
    """No thread can go on, or threads go in circles."""


class Process:
    """Threads that live and die together."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.frozen = False
        self.tasks: list[Task] = []
        self.held_up: list[Task] = []
        """Threads that would run if the process were not frozen."""


class Task:
    """A simulated thread."""

    def __init__(self, process: Process, target: Callable[[], None], name: str) -> None:
        self.process, self.target, self.name = process, target, name
        self.done = False
        self.blocked = False
        self.woken = False
        self.waits = 0
        self.deadline = float("inf")
        """Of `asyncio.timeout`, where the thread runs a coroutine."""
        self.joining: list[Task] = []
        self.worker: _Worker | None = None


class _Worker:
    """A stack that runs one task after the other: a thread of the operating system, of which one runs at a time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.task: Task | None = None
        self._scheduler = scheduler
        self._go = threading.Lock()
        self._go.acquire()

    def begin(self) -> None:
        """Be ready for the first task; without it, this is the stack of the caller."""
        threading.Thread(target=self._run, name="simulated", daemon=True).start()

    def go_on_instead_of(self, other: _Worker) -> None:
        """Give the turn to this one; returns when `other` has it again."""
        self._go.release()
        other._go.acquire()

    def _run(self) -> None:
        self._go.acquire()
        while self.task is not None:
            task = self.task
            try:
                if not task.process.dead:
                    task.target()
            except Killed:
                pass
            except BaseException as error:
                self._scheduler.failures.append(error)
            self.task = None
            self._scheduler.ended(task, self)

    def release(self) -> None:
        """End: there are no more tasks."""
        self._go.release()


class Scheduler:
    """Whose turn it is, and what time it is."""

    def __init__(self, random: Random) -> None:
        """Begin at time 0; the calling thread is the first task."""
        self.random = random
        self.now = 0.0
        self.switches = 0
        self.failures: list[BaseException] = []
        self._ready: list[Task] = []
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._idle: list[_Worker] = []
        self.main = Task(Process("main"), lambda: None, "main")
        self.main.worker = _Worker(self)
        self.current = self.main

    # What tasks call

    def monotonic(self) -> float:
        """Return the simulated time."""
        return self.now

    def spawn(self, process: Process, target: Callable[[], None], name: str) -> Task:
        """Start a thread of a process."""
        task = Task(process, target, name)
        process.tasks.append(task)
        self._ready.append(task)
        return task

    def at(self, when: float, call: Callable[[], None]) -> None:
        """Call something at a time; it must not wait."""
        heapq.heappush(self._timers, (when, next(self._order), call))

    def pause(self, share: float = 1.0) -> None:
        """Let others run, in this share of the calls."""
        me = self.current
        if me.process.dead:
            raise Killed
        if share >= 1.0 or self.random.random() < share:
            self._ready.append(me)
            self._switch(me)

    def sleep(self, seconds: float) -> None:
        """Wait."""
        self.block(self.now + max(0.0, seconds))

    def block(self, deadline: float | None = None) -> bool:
        """Wait until `wake`, or a time; return whether it was woken."""
        me = self.current
        if me.process.dead:
            raise Killed
        me.blocked, me.woken = True, False
        me.waits += 1
        if deadline is not None:
            wait = me.waits

            def over() -> None:
                if me.blocked and me.waits == wait:
                    me.blocked = False
                    self._ready.append(me)

            self.at(deadline, over)
        self._switch(me)
        return me.woken

    def wake(self, task: Task) -> None:
        """Let a task that waits go on."""
        if task.blocked:
            task.blocked, task.woken = False, True
            self._ready.append(task)

    def join(self, task: Task, seconds: float | None) -> None:
        """Wait for the end of a task."""
        deadline = None if seconds is None else self.now + seconds
        while not task.done and (deadline is None or self.now < deadline):
            task.joining.append(self.current)
            self.block(deadline)

    def ended(self, task: Task, worker: _Worker) -> None:
        """Take note that a task is over; the next one runs."""
        task.done = True
        self._idle.append(worker)
        task.process.tasks.remove(task)
        for one in task.joining:
            self.wake(one)
        try:
            chosen = self._choose()
        except Stuck as stuck:
            self.failures.append(stuck)
            chosen = self.main
        self._hand_to(chosen, worker)

    # Processes

    def kill(self, process: Process) -> None:
        """End all threads of a process where they are."""
        process.dead = True
        self.thaw(process)
        for task in process.tasks:
            self.wake(task)

    def freeze(self, process: Process) -> None:
        """Give a process no turns."""
        process.frozen = True

    def thaw(self, process: Process) -> None:
        """Let it go on."""
        process.frozen = False
        self._ready += process.held_up
        process.held_up.clear()

    # Turns

    def _switch(self, me: Task) -> None:
        self.switches += 1
        if self.switches > MOST_SWITCHES:
            raise Stuck(f"{MOST_SWITCHES} switches")
        chosen = self._choose()
        if chosen is not me:
            assert me.worker is not None
            self._hand_to(chosen, me.worker)
        if me is self.main and self.failures:
            raise self.failures[0]
        if me.process.dead:
            raise Killed

    def _choose(self) -> Task:
        while True:
            while self._ready:
                place = self.random.randrange(len(self._ready))
                task = self._ready[place]
                self._ready[place] = self._ready[-1]
                self._ready.pop()
                if task.process.frozen:
                    task.process.held_up.append(task)
                elif not task.done:
                    return task
            if not self._timers:
                raise Stuck("all threads wait")
            when, _, call = heapq.heappop(self._timers)
            self.now = max(self.now, when)
            call()

    def _hand_to(self, task: Task, mine: _Worker) -> None:
        self.current = task
        worker = task.worker
        if worker is None:
            if self._idle:
                worker = self._idle.pop()
            else:
                worker = _Worker(self)
                worker.begin()
            worker.task = task
            task.worker = worker
        if worker is not mine:
            worker.go_on_instead_of(mine)

    def close(self) -> None:
        """Let the threads of the operating system end."""
        for worker in self._idle:
            worker.release()


class SimulatedThreading:
    """Stands for the module `threading`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Lock(self) -> SimulatedLock:  # noqa: N802
        """As `threading.Lock`."""
        return SimulatedLock(self._scheduler)

    RLock = Lock

    def Condition(self) -> SimulatedCondition:  # noqa: N802
        """As `threading.Condition`."""
        return SimulatedCondition(self._scheduler)

    def Thread(  # noqa: N802
        self, *, target: Callable[..., None], args: tuple[Any, ...] = (), name: str = "", daemon: bool = True
    ) -> SimulatedThread:
        """As `threading.Thread`: of the process of whoever makes it."""
        return SimulatedThread(self._scheduler, lambda: target(*args), name)


class SimulatedThread:
    """As `threading.Thread`."""

    process: Process | None = None

    def __init__(self, scheduler: Scheduler, target: Callable[[], None], name: str) -> None:
        self._scheduler, self._target, self._name = scheduler, target, name
        self._task: Task | None = None

    def start(self) -> None:
        """Begin."""
        process = self._scheduler.current.process
        if process.dead:
            raise Killed
        self._task = self._scheduler.spawn(process, self._target, self._name)

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        assert self._task is not None
        self._scheduler.join(self._task, timeout)

    @property
    def ident(self) -> int | None:
        """A number, once it has been started."""
        return None if self._task is None else id(self._task)

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._task is not None and not self._task.done


class SimulatedLock:
    """A lock that may be taken several times by its owner."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._owner: Task | None = None
        self._depth = 0
        self._waiting: list[Task] = []

    def __enter__(self) -> Self:
        me = self._scheduler.current
        while self._owner is not None and self._owner is not me:
            self._waiting.append(me)
            self._scheduler.block()
        self._owner = me
        self._depth += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            waiting, self._waiting = self._waiting, []
            for task in waiting:
                self._scheduler.wake(task)


class SimulatedCondition(SimulatedLock):
    """As `threading.Condition`."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._waiters: list[Task] = []

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification."""
        scheduler, me, depth = self._scheduler, self._scheduler.current, self._depth
        self._waiters.append(me)
        self._depth = 1
        self.__exit__()
        try:
            return scheduler.block(None if timeout is None else scheduler.now + max(0.0, timeout))
        finally:
            if me in self._waiters:
                self._waiters.remove(me)
            while self._owner is not None and not me.process.dead:
                self._waiting.append(me)
                scheduler.block()
            self._owner, self._depth = me, depth

    def notify(self) -> None:
        """Wake one."""
        if self._waiters:
            self._scheduler.wake(self._waiters.pop(0))

    def notify_all(self) -> None:
        """Wake all."""
        while self._waiters:
            self.notify()


class SimulatedQueue:
    """As `queue.Queue`."""

    def __init__(self, scheduler: Scheduler, most: int) -> None:
        self._changed = SimulatedCondition(scheduler)
        self._scheduler, self._most = scheduler, most
        self._items: deque[Any] = deque()

    def put(self, item: Any, timeout: float) -> None:
        """Add an item; `queue.Full` when there is no room in time."""
        deadline = self._scheduler.now + timeout
        with self._changed:
            while len(self._items) >= self._most:
                if self._scheduler.now >= deadline:
                    raise queue.Full
                self._changed.wait(deadline - self._scheduler.now)
            self._items.append(item)
            self._changed.notify_all()

    def get(self, timeout: float) -> Any:
        """Take an item; `queue.Empty` when none comes in time."""
        deadline = self._scheduler.now + timeout
        with self._changed:
            while not self._items:
                if self._scheduler.now >= deadline:
                    raise queue.Empty
                self._changed.wait(deadline - self._scheduler.now)
            item = self._items.popleft()
            self._changed.notify_all()
            return item


class SimulatedTime:
    """Stands for the module `time`."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.monotonic, self.sleep = scheduler.monotonic, scheduler.sleep


class SimulatedQueues:
    """Stands for the module `queue`."""

    Full, Empty = queue.Full, queue.Empty

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler

    def Queue(self, most: int) -> SimulatedQueue:  # noqa: N802
        """As `queue.Queue`."""
        return SimulatedQueue(self._scheduler, most)
