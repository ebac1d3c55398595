"""Deliberate bugs, each a small change to the code that a recovery rests on. The simulator must find each.

A bug says what it breaks and how to put it in; pytest's monkeypatch takes it out again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from holdfast.ids import BatchId, Epoch
from holdfast.recovery import assignment as assignments
from holdfast.recovery import machine as machines
from holdfast.recovery.checkpoints import Checkpoints
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.machine import RecoveryMachine
from holdfast.runtime.coordinator import coordinator as coordinators
from holdfast.runtime.coordinator import progress
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.io.sinks import MemorySink
from holdfast.runtime.state import store as stores
from holdfast.runtime.state.versions import VersionChain
from holdfast.runtime.worker.host import PartitionHost
from holdfast.runtime.worker.hosted import Delivery, Inbox
from holdfast.runtime.worker.worker import NodeWorker

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """A deliberate bug."""

    name: str
    what: str
    put_in: Callable[[Patch], None]


def duplicates_kept(patch: Patch) -> None:
    """A block that comes again for a later batch is taken for new."""
    right = Inbox.put

    def put(self: Inbox, block: Any, frontier: BatchId) -> Delivery:
        if block.header.batch <= frontier:
            again = replace(block.header, batch=BatchId(frontier + 1))
            return right(self, type(block)(again, block.rows), frontier)
        return right(self, block, frontier)

    patch.setattr(Inbox, "put", put)


def outbox_trimmed_early(patch: Patch) -> None:
    """Outboxes drop one batch more than all consumers have."""
    right = ClusterState.keep_from
    patch.setattr(ClusterState, "keep_from", lambda self: {p: BatchId(b + 1) for p, b in right(self).items()})


def outbox_never_trimmed(patch: Patch) -> None:
    """Outboxes are never trimmed."""
    right = PartitionHost.keep
    patch.setattr(PartitionHost, "keep", lambda self, p, first, states=(): right(self, p, BatchId(0), states))


def frontier_off_by_one(patch: Patch) -> None:
    """The driver hears of one batch more than was completed."""
    right = RecoveryMachine._partitions_reported

    def reported(self: RecoveryMachine, event: Any) -> None:
        moved = {p: BatchId(min(f + 1, event.logged)) if f >= 0 else f for p, f in event.frontiers.items()}
        right(self, replace(event, frontiers=moved))

    patch.setattr(RecoveryMachine, "_partitions_reported", reported)


def rollback_skipped(patch: Patch) -> None:
    """Live partitions never go back with what has failed."""
    patch.setattr(machines, "partitions_to_roll_back", lambda *given: set())


def rollback_stops_at_first(patch: Patch) -> None:
    """Only the direct senders of what has failed go back, not theirs."""
    right = machines.partitions_to_roll_back

    def direct(graph: PartitionGraph, lost: Any, restoring: Any, *rest: Any) -> Any:
        near = {sender for p in (*lost, *restoring) for sender in graph.senders(p)}
        return right(graph, lost, restoring, *rest) & near

    patch.setattr(machines, "partitions_to_roll_back", direct)


def nondeterministic_consumers_stay(patch: Patch) -> None:
    """Consumers of what is not deterministic do not go back with it."""
    right = machines.partitions_to_roll_back

    def only_senders(graph: PartitionGraph, lost: Any, *rest: Any) -> Any:
        found = right(graph, lost, *rest)
        return {p for p in found if graph.deterministic(p)}

    patch.setattr(machines, "partitions_to_roll_back", only_senders)


def nondeterministic_published_at_once(patch: Patch) -> None:
    """What is not deterministic is published before a durable checkpoint covers it."""
    patch.setattr(Outputs, "deterministic", lambda self, partition: True)


def epoch_not_checked(patch: Patch) -> None:
    """State files take writes of epochs that are over."""
    patch.setattr(stores, "check_epoch", lambda partition, epoch, pointer: None)
    right = NodeWorker.reconcile

    def reconcile(self: NodeWorker, desired: Any, level: int, blocks: Any) -> Any:
        self.host.epoch = min(self.host.epoch, desired.epoch)
        return right(self, desired, level, blocks)

    patch.setattr(NodeWorker, "reconcile", reconcile)

    def take(self: PartitionHost, partition: Any, frontier: BatchId) -> Any:
        chain = self._store.chain(partition)
        if chain is not None and chain.pointer.epoch > self.epoch:
            self._store.point(partition, replace(chain.pointer, epoch=self.epoch))
        return right_take(self, partition, frontier)

    right_take = PartitionHost.take
    patch.setattr(PartitionHost, "take", take)


def old_driver_writes(patch: Patch) -> None:
    """Progress of the driver before is taken, as if it had the same claim."""

    def check_claim(mine: int, current: int, where: str | None = None) -> None:
        if mine < current - 1:
            raise stores.StaleEpoch(f"claim {mine} is over")

    patch.setattr(progress, "check_claim", check_claim)


def global_too_early(patch: Patch) -> None:
    """A checkpoint counts as global when most partitions have saved."""

    def next_global(self: Checkpoints, published: Any, sure: Any) -> BatchId | None:
        for mark in reversed(self.marks):
            saved = [p for p in self._partitions if self.has(p, mark)]
            if saved and 2 * len(saved) >= len(self._partitions):
                return mark
        return None

    patch.setattr(Checkpoints, "next_global", next_global)


def global_before_published(patch: Patch) -> None:
    """A checkpoint is global before its outputs are out."""

    def next_global(self: Checkpoints, published: Any, sure: Any) -> BatchId | None:
        marks = [mark for mark in self.marks if all(self.has(p, mark) for p in self._partitions)]
        return max(marks, default=None)

    patch.setattr(Checkpoints, "next_global", next_global)


def wrong_snapshot(patch: Patch) -> None:
    """A partition starts from its last snapshot, whatever outboxes the others have kept."""
    patch.setattr(RecoveryMachine, "_start_of", lambda self, p: self.state.checkpoints.last(p))


def snapshot_of_old_epoch(patch: Patch) -> None:
    """Of several snapshots at a batch the earliest is taken."""

    def at(self: Checkpoints, partition: Any, batch: BatchId) -> Any:
        return min((one for one in self._snapshots[partition].values() if one.batch == batch), default=None)

    patch.setattr(Checkpoints, "at", at)
    patch.setattr(Checkpoints, "forget_after", lambda self, partition, batch: [])


def needed_snapshots_dropped(patch: Patch) -> None:
    """Snapshots that others follow, and durable ones, are dropped at a global checkpoint."""

    def sweep(self: Checkpoints) -> Any:
        return {
            partition: [snapshots.pop(key) for key in [key for key in snapshots if key[0] < self.global_batch]]
            for partition, snapshots in self._snapshots.items()
        }

    patch.setattr(Checkpoints, "sweep", sweep)


def log_trimmed_early(patch: Patch) -> None:
    """Source logs are trimmed to the global checkpoint, which nodes can lose, not to the durable one."""
    right = coordinators.Coordinator._do

    def do(self: Coordinator, effect: Any) -> None:
        if isinstance(effect, coordinators.GlobalCheckpoint):
            effect = replace(effect, durable=effect.batch)
        right(self, effect)

    patch.setattr(Coordinator, "_do", do)


def bound_ignored(patch: Patch) -> None:
    """Nodes are planned up to, and above, their capacity."""
    right = assignments.assign

    def assign(graph: Any, topology: Any, lost: Any, running: Any, nodes: Any, *more: Any, **options: Any) -> Any:
        larger = {name: 4 * one for name, one in nodes.items()}
        return right(graph, topology, lost, running, larger, *more, **options)

    patch.setattr(machines, "assign", assign)


def used_room_forgotten(patch: Patch) -> None:
    """Plans forget what already runs on a node."""
    right = assignments.assign

    def assign(graph: Any, topology: Any, lost: Any, running: Any, *more: Any, **options: Any) -> Any:
        return right(graph, topology, lost, {}, *more, **options)

    patch.setattr(machines, "assign", assign)


def arrivals_unused(patch: Patch) -> None:
    """Nodes that arrive during a recovery bring nothing back."""
    right = RecoveryMachine._plan

    def plan(self: RecoveryMachine, why: str, *, fenced: bool = False) -> None:
        if fenced or not self.state.recovering:
            right(self, why, fenced=fenced)

    patch.setattr(RecoveryMachine, "_plan", plan)


def recovery_never_ends(patch: Patch) -> None:
    """Outboxes stay at the checkpoint after a recovery."""
    right = RecoveryMachine._advance_checkpoint

    def advance(self: RecoveryMachine) -> None:
        before = self.state.buffering
        right(self)
        self.state.buffering = before

    patch.setattr(RecoveryMachine, "_advance_checkpoint", advance)


def all_wait_for_dead(patch: Patch) -> None:
    """While something is lost, everybody waits."""
    right = Coordinator.desired_state

    def desired_state(self: Coordinator) -> Any:
        desired = right(self)
        if not self.state.lost:
            return desired
        return replace(desired, assignments={p: replace(one, paused=True) for p, one in desired.assignments.items()})

    patch.setattr(Coordinator, "desired_state", desired_state)


def missing_taken_for_empty(patch: Patch) -> None:
    """A state that is not there is taken for an empty one."""
    right = stores.MemoryStore.load
    patch.setattr(stores.MemoryStore, "load", lambda self, commit: right(self, commit) or {})


def published_twice(patch: Patch) -> None:
    """A sink takes a batch again, in a revision that nobody asked for."""

    def publish(self: MemorySink, key: Any, rows: Any, epoch: Epoch) -> bool:
        while key in self._held:
            key = replace(key, revision=key.revision + 1)
        self._held[key] = rows
        return True

    patch.setattr(MemorySink, "publish", publish)


def lost_frontier_believed(patch: Patch) -> None:
    """A node's version chain is taken to be as long as the driver says, whatever is in its files."""

    def take(self: PartitionHost, partition: Any, frontier: BatchId) -> Any:
        return right(self, partition, BatchId(-1))

    right = PartitionHost.take
    patch.setattr(PartitionHost, "take", take)
    patch.setattr(NodeWorker, "_in_place", _in_place_without_looking(NodeWorker._in_place))


def _in_place_without_looking(right: Any) -> Any:
    def in_place(self: NodeWorker, desired: Any, partition: Any, assignment: Any, answers: Any) -> bool:
        chain: VersionChain | None = self._store.chain(partition)
        if chain is None:
            assignment = replace(assignment, frontier=assignment.start.batch)
        return bool(right(self, desired, partition, assignment, answers))

    return in_place


def snapshot_without_its_base(patch: Patch) -> None:
    """A snapshot of changes counts as safe though the one it follows is gone."""

    def stored(self: Checkpoints, partition: Any, snapshot: Any) -> None:
        self._snapshots[partition][snapshot.id] = snapshot

    def lost(self: Checkpoints, partition: Any, snapshot: Any) -> None:
        self._snapshots[partition].pop(snapshot, None)

    patch.setattr(Checkpoints, "stored", stored)
    patch.setattr(Checkpoints, "lost", lost)


def nondeterministic_output_in_no_snapshot(patch: Patch) -> None:
    """A checkpoint is global though the rows of what is not deterministic are not in its snapshot."""
    patch.setattr(Checkpoints, "_holds", lambda self, partition, mark, first: True)


def missing_rows_taken_for_published(patch: Patch) -> None:
    """Rows that a node staged, and that are gone when they are to be adopted, count as published."""
    right = Outputs._publish

    def publish(self: Outputs, block: Any, staged: Any, *more: Any) -> bool:
        return right(self, block, staged, *more) or (staged is not None and self.deterministic(block.header.sender))

    patch.setattr(Outputs, "_publish", publish)


BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        duplicates_kept,
        outbox_trimmed_early,
        outbox_never_trimmed,
        frontier_off_by_one,
        rollback_skipped,
        rollback_stops_at_first,
        nondeterministic_consumers_stay,
        nondeterministic_published_at_once,
        epoch_not_checked,
        old_driver_writes,
        global_too_early,
        global_before_published,
        wrong_snapshot,
        snapshot_of_old_epoch,
        needed_snapshots_dropped,
        log_trimmed_early,
        bound_ignored,
        used_room_forgotten,
        arrivals_unused,
        recovery_never_ends,
        all_wait_for_dead,
        missing_taken_for_empty,
        published_twice,
        lost_frontier_believed,
        snapshot_without_its_base,
        nondeterministic_output_in_no_snapshot,
        missing_rows_taken_for_published,
    )
)
