"""Does a schedule's faults to a real cluster. Runs beside the cluster.

| fault | what it is here |
|---|---|
| kill | `kill -9` of everything on the node at once: worker, executor, Python workers, agent |
| freeze, thaw | SIGSTOP and SIGCONT of the same: it answers nobody, and later goes on as if nothing had been |
| slow, full speed | the node is stopped for a share of every tenth of a second: less processor, longer everything |
| kill driver, start driver | `kill -9` of the driver's Python and JVM; a new one goes on from the run's directory |
| drop packets | the node's agent loses a share of its messages: notes vanish, requests end with their connection cut |
| add node | a new worker, which registers with the master; its executor is there some seconds later |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from holdfast.drill.schedule import Fault, FaultKind
from holdfast.errors import CheckFailed
from holdfast.ids import NodeId
from holdfast.spark.cluster import EmbeddedCluster, Node
from holdfast.store.agent.agent_files import lose_messages


class FaultInjector:
    """Does faults to a cluster and its driver."""

    def __init__(
        self,
        cluster: EmbeddedCluster,
        end_driver: Callable[[], None],
        start_driver: Callable[[], None],
        standby: Sequence[Node] = (),
        admit: Callable[[Node], None] = lambda node: None,
    ):
        """Break this cluster; nodes that stand by are admitted where a node is to be added."""
        self.cluster, self._standby, self._admit = cluster, list(standby), admit
        self._end_driver, self._start_driver = end_driver, start_driver
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
                self._end_driver()
            case FaultKind.START_DRIVER:
                self._start_driver()
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

    def _there(self, fault: Fault) -> NodeId:
        if fault.node is None or fault.node not in self.cluster.nodes:
            raise CheckFailed(f"{fault.kind}: {fault.node} is not there", where="drill")
        return fault.node
