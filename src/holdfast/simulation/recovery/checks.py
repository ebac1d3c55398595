"""What must hold in every simulated recovery: checked after every step, and at the end. Runs anywhere.

The checkers share nothing with the state: rooms are added up anew, outputs compared with those of a run that had no
state at all, stamps of operators that are not deterministic followed link by link.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import snapshot_name
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.states import LIVE_STATES, TRANSITIONS, Cause, PartitionState
from holdfast.runtime.io.sinks import OutputKey
from holdfast.runtime.program import Program
from holdfast.simulation.recovery.applications import LateRows, Outputs, mix
from holdfast.simulation.recovery.storage import LoggedSource
from holdfast.simulation.recovery.stores import FragileStore, SlowSnapshotStore

PATIENCE = 3
"""Clean cycles in a row in which a live query may bring nothing before it counts as waiting for dead ones."""


@dataclass(frozen=True, slots=True)
class Violation:
    """Something that must not happen."""

    what: str
    partitions: tuple[PartitionId, ...] = ()
    """The partitions whose histories show it."""


class StepChecks:
    """What must hold at every moment."""

    def __init__(
        self, program: Program, snapshot_store: SlowSnapshotStore, complain: Callable[[Violation], None], run: str
    ) -> None:
        self._program, self._snapshot_store, self._complain, self._run = program, snapshot_store, complain, run
        self._cost = {p: float(program.topology.cost[program.topology.index(p)]) for p in program.partitions}
        self._standstill: dict[PartitionId, int] = {}
        self._stood: dict[PartitionId, tuple[int, int]] = {}
        self._epoch = -1
        self._global = BatchId(-1)
        self._published: dict[PartitionId, BatchId] = {}

    def new_driver(self) -> None:
        """A driver has started: what was seen of the one before counts no more."""
        self._stood.clear()
        self._epoch, self._global = -1, BatchId(-2)

    def turned(self, partition: str, before: str, cause: str, after: str) -> None:
        """A partition has changed its state."""
        wanted = TRANSITIONS.get((PartitionState(before), Cause(cause)))
        if wanted is None or wanted != after:
            named = PartitionId.parse(partition)
            self._complain(Violation(f"{partition} went from {before} to {after}, being {cause}", (named,)))

    def after_step(self, state: ClusterState, clean: bool, logged: BatchId) -> None:
        """Look at the state between two steps."""
        self._bounds(state)
        if state.checkpoints.global_batch != self._global:
            self._snapshots(state)
            self._global = state.checkpoints.global_batch
        self._no_waiting(state, clean, logged)

    def _bounds(self, state: ClusterState) -> None:
        load: dict[NodeId, float] = {}
        for p, node in state.placement.items():
            load[node] = load.get(node, 0.0) + self._cost[p]
            if node not in state.nodes:
                self._complain(Violation(f"{p} is on {node}, which is not there", (p,)))
        for node, used in load.items():
            capacity = state.nodes.get(node, 0.0)
            if used > state.settings.bound * capacity + 1e-9:
                here = tuple(p for p, at in state.placement.items() if at == node)
                self._complain(Violation(f"{node} is planned at {used:g} of {capacity:g}, above its bound", here))

    def _snapshots(self, state: ClusterState) -> None:
        """A global checkpoint says that everything is safe: see that it is."""
        checkpoints = state.checkpoints
        kept = {checkpoints.global_batch, checkpoints.durable_batch, checkpoints.inputs_from}
        for batch in kept - {BatchId(-1)}:
            for p in self._program.partitions:
                snapshot = checkpoints.at(p, batch)
                chain = () if snapshot is None else checkpoints.chain(p, snapshot)
                if snapshot is None or not chain:
                    self._complain(
                        Violation(f"checkpoint {batch} is global, and {p} has no whole snapshot of it", (p,))
                    )
                    continue
                start = state.partitions[p].start
                if not state.graph.deterministic(p) and start.batch < batch and snapshot.epoch < start.epoch:
                    what = f"checkpoint {batch} is global, and snapshot {snapshot.id} of {p} is of an earlier execution"
                    self._complain(Violation(what, (p,)))
                for one in chain:
                    if one.contents is None and not self._snapshot_store.safe(snapshot_name(self._run, p, one)):
                        self._complain(
                            Violation(f"checkpoint {batch} is global, and snapshot {one.id} of {p} is not safe", (p,))
                        )

        self._outputs(state)

    def _outputs(self, state: ClusterState) -> None:
        """What a global checkpoint covers is not made again: its outputs are out, or its snapshots hold them."""
        batch = state.checkpoints.global_batch
        for p in self._program.outputs:
            out = state.published[p]
            snapshot = state.checkpoints.at(p, batch)
            first = None if snapshot is None else snapshot.outbox_from
            held = not state.graph.deterministic(p) and first is not None and first <= out + 1
            if out < batch and not held:
                self._complain(
                    Violation(f"checkpoint {batch} is global, and outputs of {p} after {out} are lost", (p,))
                )

    def _no_waiting(self, state: ClusterState, clean: bool, logged: BatchId) -> None:
        """A query whose partitions are all live goes on, whatever has become of the others."""
        if state.epoch != self._epoch or not clean:
            self._epoch = state.epoch
            self._standstill.clear()
        for query in self._program.outputs:
            # Where the source had to go back, its queries wait until it has caught up: that is going on, too.
            now = sum(state.partitions[p].frontier for p in state.graph.members(query)), state.published[query]
            whole = all(
                state.partitions[p].state in LIVE_STATES and state.partitions[p].state is not PartitionState.PAUSED
                for p in state.graph.members(query)
            )
            if not whole or state.partitions[query].frontier >= logged or now != self._stood.get(query):
                self._standstill[query] = 0
            else:
                self._standstill[query] = self._standstill.get(query, 0) + 1
                if self._standstill[query] > PATIENCE:
                    at = state.partitions[query].frontier
                    what = f"{query} is live and stands at batch {at} of {logged}; {len(state.lost)} are lost"
                    self._complain(Violation(what, state.graph.members(query)))
            self._stood[query] = now


# -- at the end ------------------------------------------------------------------------------------------------------


def output_problems(
    program: Program, given: Mapping[OperatorId, Mapping[OutputKey, pa.Table]], expected: Outputs, count: int
) -> list[Violation]:
    """Compare everything that was published with a run without failures."""
    found = []
    stamps: dict[tuple[PartitionId, int], tuple[int, PartitionId]] = {}
    for operator, outputs in given.items():
        sure = program.operators[operator].deterministic
        mine = {(key.query, key.batch): rows for key, rows in outputs.items()}
        wanted = {key: rows for key, rows in expected.items() if key[0].operator == operator}
        for key in sorted(set(mine) | set(wanted)):
            if key not in mine:
                found.append(Violation(f"{key[0]}, batch {key[1]} was never published", (key[0],)))
            elif key not in wanted:
                found.append(Violation(f"{key[0]}, batch {key[1]} was published and has no rows", (key[0],)))
            elif sure and not mine[key].equals(wanted[key]):
                found.append(
                    Violation(
                        f"{key[0]}, batch {key[1]}: {mine[key].to_pylist()} was published, "
                        f"{wanted[key].to_pylist()} is right",
                        (key[0],),
                    )
                )
        if not sure:
            found += _chain_problems(program, mine, count, stamps)
    return found


def row_problems(
    inputs: Mapping[OperatorId, Sequence[pa.Table]], logged: Sequence[Mapping[OperatorId, LoggedSource]]
) -> list[Violation]:
    """See that every row of every source is in the log, once, and that batches are there without a gap."""
    found = []
    for name, tables in inputs.items():
        wanted = sorted(str(row) for table in tables for row in table.to_pylist())
        pieces = [table for batch in logged for table in batch[name].tables if table is not None]
        mine = sorted(str(row) for table in pieces for row in table.to_pylist())
        if mine != wanted:
            found.append(Violation(f"source {name} has {len(wanted)} rows, and the log {len(mine)} or others"))
    return found


def _chain_problems(
    program: Program,
    outputs: Mapping[tuple[PartitionId, BatchId], pa.Table],
    count: int,
    stamps: dict[tuple[PartitionId, int], tuple[int, PartitionId]],
) -> list[Violation]:
    """Follow the stamps: every batch continues the one before, and all outputs tell of the same execution."""
    found = []
    for query in sorted({key[0] for key in outputs}):
        senders = stamping(program, query)
        chains = dict.fromkeys(senders, 1)
        for batch in range(count):
            table = outputs.get((query, BatchId(batch)))
            rows = [] if table is None else table.to_pylist()
            if [row["order"] for row in rows] != [batch] * len(senders):
                what = f"{query}, batch {batch} has batches {[row['order'] for row in rows]} of {len(senders)} stampers"
                found.append(Violation(what, (query, *senders)))
                break
            for sender, row in zip(senders, rows, strict=True):
                chains[sender] = mix(chains[sender], row["stamp"])
                other = stamps.setdefault((sender, batch), (row["stamp"], query))
                if row["chain"] != chains[sender] or other[0] != row["stamp"]:
                    what = f"{query}, batch {batch} is of another execution of {sender} than " + (
                        "the batch before" if row["chain"] != chains[sender] else f"what {other[1]} published"
                    )
                    found.append(Violation(what, (query, other[1], sender)))
            if found:
                break
    return found


def stamping(program: Program, query: PartitionId) -> list[PartitionId]:
    """Return whose stamps reach an output partition: one row that is split goes to the last target."""
    found = []
    for edge, sender in program.streams(query):
        route = next(route for route in program.operators[sender.operator].outputs if route.edge == edge)
        if route.targets(sender.index)[-1] == query.index:
            found.append(sender)
    return found


def late_problems(
    given: Mapping[tuple[OperatorId, OperatorId], Mapping[OutputKey, pa.Table]], expected: LateRows
) -> list[Violation]:
    """Compare the rows that were kept aside."""
    mine = {(feed, key.query, key.batch): rows for (_, feed), outputs in given.items() for key, rows in outputs.items()}
    found = []
    for key in sorted(set(mine) | set(expected), key=str):
        if key not in mine or key not in expected or not mine[key].equals(expected[key]):
            found.append(Violation(f"rows kept aside differ: {key}"))
    return found


def retention_problems(program: Program, state: ClusterState, stores: Mapping[NodeId, FragileStore]) -> list[Violation]:
    """See that outboxes have shrunk to what consumers have not passed, once recovery is over."""
    found = []
    for p in program.partitions:
        node = state.partitions[p].node
        if node is None:
            continue
        consumers = state.graph.consumers(p)
        passed = [state.partitions[one].frontier for one in consumers]
        if p in state.published:
            passed.append(state.published[p])
        if not passed:
            continue
        kept = [batch for batch in stores[node].outbox_batches(p) if batch <= min(passed)]
        if kept:
            found.append(
                Violation(f"{p} still keeps batches {kept}, which all its consumers have passed ({min(passed)})", (p,))
            )
    return found
