"""Does a schedule's faults to a real cluster. Runs beside the cluster.

| fault | what it is here |
|---|---|
| kill | `kill -9` of everything on the node at once: worker, executor, Python workers, agent |
| freeze, thaw | SIGSTOP and SIGCONT of the same: it answers nobody, and later goes on as if nothing had been |
| slow, full speed | the node is stopped for a share of every tenth of a second: less processor, longer everything |
| decommission | Spark is told that the node's executor will go (SIGPWR); its partitions move, then its task ends |
| kill driver, start driver | `kill -9` of the driver's Python and JVM; a new one goes on from the run's directory |
| drop packets | the node's agent loses a share of its messages: notes vanish, requests end with their connection cut |
| add node | a new worker, which registers with the master; its executor is there some seconds later |
| pause driver, thaw driver | SIGSTOP and SIGCONT of the driver's Python and JVM |
| take over | another driver takes the run over while the first is frozen |
| partition, heal | the node's network is cut from all but the nodes that are cut off with it, and connected again |
| fill disk | the node's local files are on a small file system, which is filled by one more file |
| corrupt | bits flip in the node's state and fragments and in one durable snapshot; its operator processes are killed |
| poison, cure | an operator of the least valuable query raises, until the cause is removed and the query resumed |
| kill broker, start broker | `kill -9` of the drill's Kafka broker; it starts again on the same port with its data |
| hang | an operator of the least valuable query sleeps in its process with Python's lock held |
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from holdfast.drill.corrupting import corrupt_files, state_files
from holdfast.drill.faulty_operators import HANG, POISON
from holdfast.drill.schedule import Fault, FaultKind
from holdfast.errors import CheckFailed
from holdfast.ids import NodeId
from holdfast.spark.cluster import EmbeddedCluster, Node
from holdfast.spark.process_reaper import parents_of_session
from holdfast.store.agent.agent_files import lose_messages


@dataclass(frozen=True, slots=True)
class DriverControl:
    """What a drill does to its driver and its broker."""

    end: Callable[[], None]
    start: Callable[[], None]
    pause: Callable[[], None]
    thaw: Callable[[], None]
    take_over: Callable[[], None]
    end_broker: Callable[[], None] = lambda: None
    start_broker: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True)
class FaultPlaces:
    """Where the drill's own files are."""

    faults: Path
    """Read by the faulty operators."""
    durable: Path | None = None
    """The run's durable snapshots; None: they are in object storage, and are left alone."""
    cure: Callable[[], object] = field(default=lambda: None)
    """Removes the cause of a poisoned query, once it is parked, and asks for it to go on."""


class FaultInjector:
    """Does faults to a cluster and its driver."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        driver: DriverControl,
        places: FaultPlaces,
        standby: Sequence[Node] = (),
        admit: Callable[[Node], None] = lambda node: None,
        seed: int = 0,
    ):
        """Break this cluster; nodes that stand by are admitted where a node is to be added."""
        self.cluster, self._standby, self._admit = cluster, list(standby), admit
        self._driver, self._places, self._draw = driver, places, Random(seed)
        there = sorted(cluster.nodes, key=lambda node: int(node.rpartition("-")[2]))
        self._names = {NodeId(f"node-{number}"): node for number, node in enumerate(there, 1)}

    def named(self, fault: Fault) -> Fault:
        """Return a fault with the node's name in this cluster: a schedule counts from one, in the order of starts."""
        if fault.kind is FaultKind.ADD_NODE or fault.node is None:
            return fault
        return replace(fault, node=self._names.get(fault.node, fault.node))

    def do(self, fault: Fault) -> Mapping[str, object]:
        """Do one fault; returns what the history should add to it."""
        match fault.kind:
            case FaultKind.KILL:
                self.cluster.kill_node(self._there(fault))
            case FaultKind.FREEZE:
                self.cluster.freeze_node(self._there(fault))
            case FaultKind.THAW:
                self.cluster.thaw_node(self._there(fault))
            case FaultKind.SLOW:
                self.cluster.slow_node(self._there(fault), fault.value or 0.5)
            case FaultKind.FULL_SPEED:
                if fault.node in self.cluster.nodes:  # it may have been killed meanwhile
                    self.cluster.slow_node(self._there(fault), 1.0)
            case FaultKind.KILL_DRIVER:
                self._driver.end()
            case FaultKind.START_DRIVER:
                self._driver.start()
            case FaultKind.PAUSE_DRIVER:
                self._driver.pause()
            case FaultKind.THAW_DRIVER:
                self._driver.thaw()
            case FaultKind.TAKE_OVER:
                self._driver.take_over()
            case FaultKind.KILL_BROKER:
                self._driver.end_broker()
            case FaultKind.START_BROKER:
                self._driver.start_broker()
            case FaultKind.PARTITION:
                self.cluster.cut_off(self._there(fault))
            case FaultKind.HEAL:
                self.cluster.connect(self._there(fault))
            case FaultKind.FILL_DISK:
                return {"bytes": self.cluster.fill_disk(self._there(fault))}
            case FaultKind.DECOMMISSION:
                self.cluster.decommission_node(self._there(fault))
            case FaultKind.CORRUPT:
                return self._corrupt(self._there(fault))
            case FaultKind.POISON:
                (self._places.faults / POISON).touch()
            case FaultKind.CURE:
                self._places.cure()
            case FaultKind.HANG:
                hidden = self._places.faults / f".{HANG}"
                hidden.write_text(str(fault.value or 0.0))
                hidden.rename(self._places.faults / HANG)
            case FaultKind.ADD_NODE:
                if self._standby:
                    added = self._standby.pop(0)
                    self._admit(added)
                else:
                    added = self.cluster.add_node()
                if fault.node is not None:
                    self._names[fault.node] = added.id
                return {"node": str(added.id), "host": added.host}
            case FaultKind.DROP_PACKETS:
                lose_messages(self.cluster.nodes[self._there(fault)].spool, fault.value or 0.0)
            case FaultKind.DELIVER_PACKETS:
                if fault.node in self.cluster.nodes:
                    lose_messages(self.cluster.nodes[self._there(fault)].spool, 0.0)
        return {}

    def _corrupt(self, node: NodeId) -> Mapping[str, object]:
        """Flip bits of what a node has on its disk, and of one durable snapshot; then let its processes read it."""
        there = self.cluster.nodes[node]
        states = corrupt_files(state_files(self.cluster.local_files(node)), self._draw)
        fragments = corrupt_files(there.spool.rglob("*.fragment"), self._draw)
        durable: list[str] = []
        if self._places.durable is not None and self._places.durable.is_dir():
            snapshots = [one for one in self._places.durable.rglob("*") if one.is_file() and one.stat().st_size]
            durable = corrupt_files(sorted(snapshots, key=lambda one: one.stat().st_mtime)[-1:], self._draw)
        if not (states or fragments or durable):
            raise CheckFailed(f"{FaultKind.CORRUPT}: {node} has neither state nor fragments yet", where="drill")
        killed = 0
        for process in operator_processes(there.group):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
                killed += 1
        return {"states": len(states), "fragments": len(fragments), "snapshots": len(durable), "processes": killed}

    def _there(self, fault: Fault) -> NodeId:
        if fault.node is None or fault.node not in self.cluster.nodes:
            raise CheckFailed(f"{fault.kind}: {fault.node} is not there", where="drill")
        return fault.node


def operator_processes(session: int) -> list[int]:
    """Return the operator processes of a node: children of a Python worker, which is a child of Spark's daemon."""
    parents = parents_of_session(session)
    python = {process for process in parents if _is_python(process)}
    return sorted(
        process
        for process in python
        if parents[process] in python and parents.get(parents[process]) in python and parents[process] != process
    )


def _is_python(process: int) -> bool:
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
        return b"python" in words[0] and any(b"daemon" in word for word in words)
    return False
