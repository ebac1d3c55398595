"""Deliberate bugs of nodes with several operator processes, which the simulator must find in runs that have them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from holdfast.ids import NodeId
from holdfast.runtime.messages import DesiredState, PartitionAssignment
from holdfast.runtime.processes import ProcessSpread
from holdfast.runtime.resident_cycle import ResidentCycle
from holdfast.runtime.worker.worker import NodeWorker
from holdfast_lab.simulation.recovery.resident_cluster import ResidentCluster
from simulation.bugs import Bug, Patch


def one_idle_process_ends_the_cycle(patch: Patch) -> None:
    """A cycle counts a node as idle when one of its processes is."""
    right = ResidentCycle.reported

    def reported(self: ResidentCycle, node: NodeId, applied: int, *, idle: bool) -> None:
        right(self, node, applied, idle=idle)
        if idle and node not in self.waits_for and "#" in node:
            whole = node.rpartition("#")[0]
            self.waits_for = {one for one in self.waits_for if one.rpartition("#")[0] != whole}

    patch.setattr(ResidentCycle, "reported", reported)


def crashed_process_counts_as_idle(patch: Patch) -> None:
    """Nobody waits for a process whose connection has ended: the cycle ends without it."""
    patch.setattr(ResidentCycle, "left", ResidentCycle.lost)


def spread_anew(patch: Patch) -> None:
    """With every desired state partitions are spread over the processes of their node anew."""
    right = ProcessSpread.divide

    def divide(self: ProcessSpread, desired: DesiredState, held: Collection[NodeId]) -> DesiredState:
        self._at.clear()
        return right(self, desired, held)

    patch.setattr(ProcessSpread, "divide", divide)


def crash_spreads_the_node_anew(patch: Patch) -> None:
    """After the connection to one process has ended, where its node's partitions are is forgotten."""
    right = ResidentCluster._left

    def left(self: ResidentCluster, process: Any) -> None:
        right(self, process)
        self.spread.lose(NodeId(process.name.rpartition("#")[0]))

    patch.setattr(ResidentCluster, "_left", left)


def journal_of_another_process_taken(patch: Patch) -> None:
    """A process that is started again opens the journal of the process beside it."""
    right = ResidentCluster._worker

    def worker(
        self: ResidentCluster, node: NodeId, files: Any, clock: Any, process: int = 0, name: NodeId | None = None
    ) -> NodeWorker:
        other = (process + 1) % self.spread.count
        there = files.stores[other] if other < len(files.stores) else None
        has_run = there is not None and any(there.chain(p) is not None for p in there.partitions)
        return right(self, node, files, clock, other if has_run else process, name)

    patch.setattr(ResidentCluster, "_worker", worker)


def stale_journal_taken(patch: Patch) -> None:
    """A partition that comes back goes on from the state that is there, of whatever epoch that is."""
    right = NodeWorker._in_place

    def in_place(
        self: NodeWorker, desired: DesiredState, partition: Any, assignment: PartitionAssignment, answers: Any
    ) -> bool:
        chain = self._store.chain(partition)
        if chain is not None and "#" in self.name and chain.frontier >= assignment.frontier:
            start = replace(assignment.start, epoch=min(assignment.start.epoch, chain.pointer.epoch))
            assignment = replace(assignment, start=start)
        return right(self, desired, partition, assignment, answers)

    patch.setattr(NodeWorker, "_in_place", in_place)


def first_process_alone_is_introduced(patch: Patch) -> None:
    """Nodes are told where the first process of each node is, and not where the others are."""
    right = ResidentCluster._introduce

    def introduce(self: ResidentCluster, *given: Any) -> None:
        others = [one for held in self._held.values() for one in held.processes[1:]]
        before = [one.address for one in others]
        for one in others:
            one.address = -1
        right(self, *given)
        for one, address in zip(others, before, strict=True):
            one.address = address

    patch.setattr(ResidentCluster, "_introduce", introduce)


PROCESS_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        one_idle_process_ends_the_cycle,
        crashed_process_counts_as_idle,
        spread_anew,
        crash_spreads_the_node_anew,
        journal_of_another_process_taken,
        stale_journal_taken,
        first_process_alone_is_introduced,
    )
)
