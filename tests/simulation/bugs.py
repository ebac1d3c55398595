"""Deliberate bugs, each a small change to the code that a recovery rests on. The simulator must find each.

A bug says what it breaks and how to put it in; pytest's monkeypatch takes it out again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import pytest

from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, PartitionId
from holdfast.recovery import assignment as assignments
from holdfast.recovery import machine as machines
from holdfast.recovery.checkpointing import CheckpointLifecycle
from holdfast.recovery.checkpoints import Checkpoints
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.effects import GlobalCheckpoint
from holdfast.recovery.events import NodesSilent
from holdfast.recovery.graph import PartitionGraph
from holdfast.recovery.machine import RecoveryMachine
from holdfast.recovery.starts import Starts
from holdfast.recovery.states import LIVE_STATES
from holdfast.runtime.coordinator import feeding as feedings
from holdfast.runtime.coordinator import layout as layouts
from holdfast.runtime.coordinator import opening as openings
from holdfast.runtime.coordinator import sink_calls
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.decisions import Decisions
from holdfast.runtime.coordinator.liveness import refuse_if_alive
from holdfast.runtime.coordinator.outputs import Outputs
from holdfast.runtime.coordinator.progress import Progress, last_driver
from holdfast.runtime.coordinator.status import RunStatus
from holdfast.runtime.coordinator.status import has_room as room_there_is
from holdfast.runtime.io import intake as intakes
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.intake import Intake
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import MemorySink, OutputKey
from holdfast.runtime.state import repartition as repartitioning
from holdfast.runtime.state import store as stores
from holdfast.runtime.state.durable_snapshots import DurableSnapshotStore
from holdfast.runtime.state.snapshots import Snapshot
from holdfast.runtime.state.versions import VersionChain
from holdfast.runtime.worker.host import PartitionHost
from holdfast.runtime.worker.hosted import Delivery, Inbox
from holdfast.runtime.worker.worker import NodeWorker
from holdfast.storage.records import Records, Written
from holdfast.store.agent import snapshot_files, spool_orders
from holdfast.store.agent.spool import SaveAnswer, write_answer
from holdfast.store.agent.spool_orders import SpoolOrders
from holdfast_lab.simulation.recovery import feed as feeds
from holdfast_lab.simulation.recovery import run as runs

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


def taken_number_taken_again(patch: Patch) -> None:
    """A driver that finds its next number taken goes on: its record counts for it, the other one for all others."""
    right = Records.create
    patch.setattr(Records, "create", lambda self, number, fields: right(self, number, fields) and Written.CREATED)


def dropped_number_used_again(patch: Patch) -> None:
    """A driver that was frozen for long uses a number that was dropped meanwhile, and does not look at later ones."""
    right = Records.create

    def create(self: Records, number: int, fields: Any) -> Written:
        found = right(self, number, fields)
        return Written.CREATED if found is Written.PASSED else found

    patch.setattr(Records, "create", create)


def progress_turned_back(patch: Patch) -> None:
    """A driver reads progress, and takes its claim over whatever was written since."""
    right = Records.create

    def create(self: Records, number: int, fields: Any) -> Written:
        found = right(self, number, fields)
        if found is Written.TAKEN and self._kind == "progress" and fields["machine"] is not None:
            return right(self, self.numbers()[-1] + 1, fields)
        return found

    patch.setattr(Records, "create", create)


def same_claim_again(patch: Patch) -> None:
    """A new driver takes the claim of the one before."""
    right = Progress._append

    def append(self: Progress, *, ended: bool) -> bool:
        if self.claim > 1 and self.machine is not None:
            self.claim = 1
        return right(self, ended=ended)

    patch.setattr(Progress, "_append", append)


def pieces_swept_at_once(patch: Patch) -> None:
    """A driver sweeps away what earlier ones wrote when it starts, though they can still log it."""
    right = BatchLog.__init__

    def begin(self: BatchLog, *given: Any, **named: Any) -> None:
        right(self, *given, **named)
        if self.claim:
            there = self._storage.list("pieces/")
            named_there = {
                piece.file
                for number in self._records.numbers()
                if (record := self.record(BatchId(number))) is not None
                for one in record.sources.values()
                for piece in one.pieces
            }
            self._storage.delete([name for name in there if name not in named_there])

    patch.setattr(BatchLog, "__init__", begin)


def pieces_of_others_swept(patch: Patch) -> None:
    """A driver that has a micro-batch sweeps away all other pieces of its number, though they may be logged."""
    right = Intake.arrived

    def arrived(self: Intake, source: Any, micro_batch: Any, *, turn: int) -> bool:
        new = right(self, source, micro_batch, turn=turn)
        mine, storage = {piece.file for piece in micro_batch.pieces}, self._log._storage
        label = f"-{micro_batch.number}-"
        storage.delete([name for name in storage.list(f"pieces/{source}/") if label in name and name not in mine])
        return new

    patch.setattr(Intake, "arrived", arrived)


def other_batch_taken_for_own(patch: Patch) -> None:
    """A batch that the driver before has logged passes for this driver's: what has arrived here counts as logged."""
    patch.setattr(BatchLog, "is_own", lambda self, record: True)


def readers_not_begun_anew(patch: Patch) -> None:
    """After a batch of the driver before, readers go on where they are."""
    patch.setattr(Intake, "_go_on_after_another", lambda self: None)


def position_ahead_of_batch(patch: Patch) -> None:
    """A batch says that the reader is where it is, not where the batch ends."""
    right = Intake.make_batch

    def make_batch(self: Intake) -> Any:
        ends = {name: one.arrived[-1] for name, one in self._sources.items() if one.arrived}
        positions = {name: intakes._position(last) for name, last in ends.items()}
        commit = self._log.commit

        def ahead(batch: Any, arrived: Any, **named: Any) -> Any:
            moved = {name: replace(one, position=positions.get(name, one.position)) for name, one in arrived.items()}
            return commit(batch, moved, **named)

        self._log.commit = ahead  # type: ignore[method-assign]
        try:
            return right(self)
        finally:
            self._log.commit = commit  # type: ignore[method-assign]

    patch.setattr(Intake, "make_batch", make_batch)


def position_lost_without_rows(patch: Patch) -> None:
    """A batch in which a source has nothing new says that its reader begins."""
    right = BatchLog._logged

    def logged(self: BatchLog, source: Any, arrived: Any, *given: Any, last: bool) -> Any:
        return replace(right(self, source, arrived, *given, last=last), position=arrived.position)

    patch.setattr(BatchLog, "_logged", logged)


def failed_write_taken_for_done(patch: Patch) -> None:
    """A batch whose write failed counts as logged."""
    right = Records.create

    def create(self: Records, number: int, fields: Any) -> Written:
        try:
            return right(self, number, fields)
        except OSError:
            return Written.CREATED

    patch.setattr(Records, "create", create)


def log_trimmed_to_the_newest(patch: Patch) -> None:
    """The log is trimmed to the last durable checkpoint, not to the one before."""
    patch.setattr(ClusterState, "inputs_from", property(lambda self: self.checkpoints.durable_batch))


def one_durable_checkpoint_kept(patch: Patch) -> None:
    """The snapshots of the durable checkpoint before the last are dropped."""
    patch.setattr(Checkpoints, "_kept", lambda self, p: {self.line[p], self.durable_line[p]})


def live_wait_for_the_log(patch: Patch) -> None:
    """The feed waits for live partitions behind a lost sender."""

    def live_frontier(self: RunStatus) -> BatchId:
        live = self._state.in_state(LIVE_STATES)
        return min((self._state.partitions[p].frontier for p in live), default=self.frontier)

    patch.setattr(RunStatus, "live_frontier", property(live_frontier))
    patch.setattr(RunStatus, "leading_frontier", property(live_frontier))


def global_too_early(patch: Patch) -> None:
    """A checkpoint counts as global when most partitions have saved."""

    right = Checkpoints.has

    def has(self: Checkpoints, partition: PartitionId, mark: BatchId) -> bool:
        saved = [p for p in self._partitions if right(self, p, mark)]
        return right(self, partition, mark) or 2 * len(saved) >= len(self._partitions)

    patch.setattr(Checkpoints, "has", has)


def global_before_published(patch: Patch) -> None:
    """A checkpoint is global before its outputs are out."""

    patch.setattr(Checkpoints, "is_covered", lambda self, partition, batch, published: True)


def wrong_snapshot(patch: Patch) -> None:
    """A partition starts from its last snapshot, whatever outboxes the others have kept."""
    patch.setattr(Starts, "snapshot_for", lambda self, p: self._state.checkpoints.last(p))


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
            partition: [snapshots.pop(key) for key in [key for key in snapshots if key[0] < self.line[partition]]]
            for partition, snapshots in self._snapshots.items()
        }

    patch.setattr(Checkpoints, "sweep", sweep)


def log_trimmed_early(patch: Patch) -> None:
    """The log is trimmed to the global checkpoint, which nodes can lose, not to a durable one."""
    right = Decisions._do

    def do(self: Decisions, effect: Any) -> None:
        if isinstance(effect, GlobalCheckpoint):
            effect = replace(effect, inputs_from=effect.batch)
        right(self, effect)

    patch.setattr(Decisions, "_do", do)


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
    right = CheckpointLifecycle._advance

    def advance(self: CheckpointLifecycle) -> None:
        before = self._state.buffering
        right(self)
        self._state.buffering = before

    patch.setattr(CheckpointLifecycle, "_advance", advance)


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

    def stored(self: Checkpoints, partition: Any, snapshot: Any, *more: Any) -> None:
        self._snapshots[partition][snapshot.id] = snapshot

    def lost(self: Checkpoints, partition: Any, snapshot: Any) -> list[Any]:
        self._snapshots[partition].pop(snapshot, None)
        return []

    patch.setattr(Checkpoints, "stored", stored)
    patch.setattr(Checkpoints, "lost", lost)


def nondeterministic_output_in_no_snapshot(patch: Patch) -> None:
    """A checkpoint is global though the rows of what is not deterministic are not in its snapshot."""
    patch.setattr(Checkpoints, "_holds", lambda self, partition, mark, first: True)


def missing_rows_taken_for_published(patch: Patch) -> None:
    """Rows that a node staged, and that are gone when they are to be adopted, count as published."""
    right = sink_calls.give

    def give(sink: Any, output: Any, epoch: Epoch) -> bool:
        return right(sink, output, epoch) or output.staged is not None

    patch.setattr(sink_calls, "give", give)


# -- layouts, signs, agents, cuts, storage and feeding: each of them a rule that came with them ----------------------


def changed_program_accepted(patch: Patch) -> None:
    """A restart with another layout goes on with the state as it is."""
    patch.setattr(openings, "changes_of", lambda storage, program: None)
    patch.setattr(openings, "check_layout", lambda progress, program, where, without=(): None)


def layout_compared_before_the_claim_only(patch: Patch) -> None:
    """A driver that was frozen before its claim takes the layout that another one has made for its own."""
    patch.setattr(openings, "check_layout", lambda progress, program, where, without=(): None)


def layout_without_a_fence(patch: Patch) -> None:
    """The log is not fenced when the layout changes."""
    patch.setattr(BatchLog, "fence", lambda self, *sources: True)


def old_layout_left_behind(patch: Patch) -> None:
    """The layout changes though batches of the old one are not processed."""
    patch.setattr(layouts, "_settled", lambda machine, frontier: True)


def state_not_spread(patch: Patch) -> None:
    """With another parallelism, each partition goes on with what the one of its number had."""

    def state_of(partition: Any, count: int, states: Any, before: int, keys: Any) -> Any:
        return dict(states.get(partition.index, {}))

    patch.setattr(repartitioning, "state_of", state_of)


def state_without_a_key_refused(patch: Patch) -> None:
    """State without a key is spread by its key also where its parallelism stays."""

    def whole_snapshot(commit: Any, state: Any, epoch: Any) -> Any:
        return repartitioning.state_of(commit.partition, 1, {0: state}, 1, [])

    patch.setattr(layouts, "whole_snapshot", whole_snapshot)


def layout_not_in_the_key(patch: Patch) -> None:
    """Outputs of all layouts have the same keys."""
    patch.setattr(Outputs, "_key", lambda self, block: OutputKey(block.header.sender, block.header.batch))


def signs_not_looked_for(patch: Patch) -> None:
    """A start does not look whether the driver before is alive."""
    patch.setattr(openings, "refuse_if_alive", lambda storage, **named: None)


def signs_of_the_dead_believed(patch: Patch) -> None:
    """A sign that was there before counts as a new one."""
    right = refuse_if_alive

    def refuse(storage: Any, **named: Any) -> None:
        last = last_driver(storage)
        if last is not None and not last["ended"] and storage.list(f"alive/{last['claim']:010d}-"):
            raise BadInput("another driver runs this application")
        right(storage, **named)

    patch.setattr(openings, "refuse_if_alive", refuse)


def outputs_of_another_run_taken(patch: Patch) -> None:
    """A Parquet sink does not look whose directory it is."""
    patch.setattr(ParquetSink, "begin", lambda self, run, epoch: None)


def micro_batch_known_by_number(patch: Patch) -> None:
    """A micro-batch that comes again with other offsets is passed over."""
    right = Intake._knows

    def knows(self: Intake, source: Any, number: int, offsets: str, turn: int) -> bool:
        mine = self._sources[source]
        if turn == mine.turn and number <= mine.last:
            return True
        return right(self, source, number, offsets, turn)

    patch.setattr(Intake, "_knows", knows)


def one_source_closed(patch: Patch) -> None:
    """The last batch closes the first source only."""
    right = BatchLog._logged

    def logged(self: BatchLog, source: Any, *given: Any, last: bool) -> Any:
        return right(self, source, *given, last=last and source.id == min(self.sources))

    patch.setattr(BatchLog, "_logged", logged)


def input_ends_with_rows_pending(patch: Patch) -> None:
    """The feeding loop ends though rows are in no batch yet: it logs one batch a turn and does not look for more."""

    def feed_until_end(feed: Any, advance: Any, **given: Any) -> None:
        while feed.reading:
            feed.log_batches()
            advance()

    patch.setattr(runs, "feed_until_end", feed_until_end)


def feed_ignores_room(patch: Patch) -> None:
    """The feed never has room once something is lost."""
    right = room_there_is

    def has_room(status: RunStatus, *most: Any) -> bool:
        return right(status, *most) and not status._state.lost

    patch.setattr(feedings, "has_room", has_room)
    patch.setattr(feeds, "has_room", has_room)


def answer_before_the_save(patch: Patch) -> None:
    """An agent removes an order, and answers, though too few fragments are on peers."""
    right = SpoolOrders._report_problem

    def report(self: SpoolOrders, key: str, problem: str, *, refused: Any = None) -> bool:
        if refused is not None:
            return right(self, key, problem, refused=refused)
        write_answer(self._spool, key, SaveAnswer(), self._files)
        return True

    patch.setattr(SpoolOrders, "_report_problem", report)


def one_holder_is_enough(patch: Patch) -> None:
    """An agent acknowledges a save that it alone holds."""
    right = spool_orders.judge
    patch.setattr(spool_orders, "judge", lambda survives, wanted, **named: right(max(0, survives), 0, **named))


def order_removed_before_its_answer(patch: Patch) -> None:
    """An agent removes an order before it answers: killed in between, nobody saves the snapshot."""

    def save(self: SpoolOrders, order: Any, key: str) -> float | None:
        self._files.remove(order)
        self._files.exists(order)
        return None

    patch.setattr(SpoolOrders, "_save", save)


def torn_snapshot_believed(patch: Patch) -> None:
    """An agent does not compare checksums of what it fetches."""
    patch.setattr(spool_orders, "check_snapshot", lambda path, name, files: snapshot_files.read_head(path, files))
    right = snapshot_files._parse

    def parse(path: Any, begin: bytes) -> Any:
        return right(path, begin)

    def read_head(path: Any, files: Any) -> Any:
        head = parse(path, files.read(path, 8192))
        return replace(head, bytes=files.size(path) - head.start)

    patch.setattr(snapshot_files, "read_head", read_head)


def durable_not_read_back(patch: Patch) -> None:
    """A durable snapshot counts as saved though its write failed."""

    def save(self: DurableSnapshotStore, name: str, data: Any, *, epoch: int, durable: bool) -> None:
        with suppress(OSError):
            self._storage.create(name, data)
        self._saved.add(name)

    patch.setattr(DurableSnapshotStore, "save", save)


def snapshot_named_twice(patch: Patch) -> None:
    """The same snapshot has other bytes in another epoch, and its name is taken."""
    right = PartitionHost.snapshot

    def snapshot(self: PartitionHost, *given: Any, **named: Any) -> Any:
        found = right(self, *given, **named)
        if isinstance(found, Snapshot):
            return replace(found, outbox=tuple(block.stamped(self.epoch) for block in found.outbox))
        return found

    patch.setattr(PartitionHost, "snapshot", snapshot)


def needed_durable_swept(patch: Patch) -> None:
    """A start sweeps away all durable snapshots of earlier claims."""
    right = DurableSnapshotStore.sweep
    patch.setattr(DurableSnapshotStore, "sweep", lambda self, run, needed, claim: right(self, run, (), claim))


def cut_off_node_ends_the_run(patch: Patch) -> None:
    """Nodes that do not answer any more stay in the plan."""
    right = RecoveryMachine.handle

    def handle(self: RecoveryMachine, event: Any) -> Any:
        return [] if isinstance(event, NodesSilent) else right(self, event)

    patch.setattr(RecoveryMachine, "handle", handle)


def lost_files_taken_for_a_start(patch: Patch) -> None:
    """A partition whose files are gone begins again where it started, though the driver knows of more."""
    right = NodeWorker._in_place

    def in_place(self: NodeWorker, desired: Any, partition: Any, assignment: Any, answers: Any) -> bool:
        chain = self._store.chain(partition)
        if chain is None or chain.pointer.epoch < assignment.start.epoch:
            assignment = replace(assignment, frontier=assignment.start.batch)
        return bool(right(self, desired, partition, assignment, answers))

    patch.setattr(NodeWorker, "_in_place", in_place)


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
        taken_number_taken_again,
        dropped_number_used_again,
        progress_turned_back,
        same_claim_again,
        pieces_swept_at_once,
        pieces_of_others_swept,
        other_batch_taken_for_own,
        readers_not_begun_anew,
        position_ahead_of_batch,
        position_lost_without_rows,
        failed_write_taken_for_done,
        log_trimmed_to_the_newest,
        one_durable_checkpoint_kept,
        live_wait_for_the_log,
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
        changed_program_accepted,
        layout_compared_before_the_claim_only,
        layout_without_a_fence,
        old_layout_left_behind,
        state_not_spread,
        state_without_a_key_refused,
        layout_not_in_the_key,
        signs_not_looked_for,
        signs_of_the_dead_believed,
        outputs_of_another_run_taken,
        micro_batch_known_by_number,
        one_source_closed,
        input_ends_with_rows_pending,
        feed_ignores_room,
        durable_not_read_back,
        snapshot_named_twice,
        needed_durable_swept,
        cut_off_node_ends_the_run,
        lost_files_taken_for_a_start,
    )
)

AGENT_BUGS = tuple(
    Bug(one.__name__.replace("_", " "), (one.__doc__ or "").strip(), one)
    for one in (
        answer_before_the_save,
        one_holder_is_enough,
        order_removed_before_its_answer,
        torn_snapshot_believed,
    )
)
"""Of agents and their spools: in runs that have them."""
