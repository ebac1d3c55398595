"""What the driver knows of the nodes whose tasks stay, and of their operator processes. Runs on the driver."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field

from holdfast.ids import NodeId
from holdfast.runtime.messages import NodeReport
from holdfast.spark.agents import AgentReport
from holdfast.spark.pinned_jobs import Executor
from holdfast.store.wire.link import Link
from holdfast.store.wire.messages import Header


@dataclass(slots=True)
class HeldProcess:
    """An operator process of a node."""

    name: NodeId
    """As desired states name it."""
    link: Link | None = None
    address: str = ""
    """Where other processes reach it."""
    left_at: float = -math.inf
    """When its connection ended."""


@dataclass(slots=True)
class HeldNode:
    """An executor, and the job that holds it."""

    node: NodeId
    executor: Executor
    processes: list[HeldProcess]
    came_at: float = -math.inf
    """When its executor was seen first."""
    token: str = ""
    waits_since: float | None = None
    """When its job was started; None: people know that it waits."""
    tries: int = 0
    """Jobs in a row that ended without holding it."""
    try_at: float | None = None
    """When the next job is started after one that ended so; None: that is not decided."""
    ending: bool = False
    job: threading.Thread | None = None
    outcome: str | None = None
    """How the job ended; None: it has not."""

    @property
    def links(self) -> list[Link]:
        """The connections of its processes."""
        return [one.link for one in self.processes if one.link is not None]

    @property
    def is_ready(self) -> bool:
        """Whether all its processes are connected."""
        return len(self.links) == len(self.processes)

    def is_left(self, now: float, seconds: float) -> bool:
        """Whether a process has had no connection for longer than this: one that crashed has been back long since."""
        return any(one.link is None and now - one.left_at > seconds for one in self.processes)


@dataclass(slots=True)
class Came:
    """What came from an operator process, by the thread of its link."""

    node: NodeId
    process: int
    link: Link
    report: NodeReport | None = None
    applied: int = -1
    idle: bool = False
    agent: AgentReport | None = None
    hello: Header | None = field(default=None)
    ended: str | None = None
    problem: str | None = None
    """Why it cannot listen."""
