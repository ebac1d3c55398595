"""What must hold in every simulated recovery: checked after every step, and at the end. Runs anywhere.

The checkers share nothing with the state: rooms are added up anew, outputs compared with those of a run that had no
state at all, stamps of operators that are not deterministic followed link by link.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.recovery.branches import branch_problems
from holdfast.recovery.checkpoints import snapshot_name
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.states import AT_WORK_STATES, LIVE_STATES, TRANSITIONS, Cause, PartitionState
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime.io.sinks import VERSION_COLUMNS, OutputKey
from holdfast.runtime.program import Program
from holdfast.runtime.times import END_OF_TIME
from holdfast_lab.simulation.recovery.applications import LateRows, Outputs, mix
from holdfast_lab.simulation.recovery.storage import LoggedBatch
from holdfast_lab.simulation.recovery.stores import FragileStore, Snapshots

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
        self, program: Program, snapshot_store: Snapshots, complain: Callable[[Violation], None], run: str
    ) -> None:
        self._program, self._snapshot_store, self._complain, self._run = program, snapshot_store, complain, run
        self._cost = {p: float(program.topology.cost[program.topology.index(p)]) for p in program.partitions}
        self._standstill: dict[PartitionId, int] = {}
        self._stood: dict[PartitionId, tuple[int, int]] = {}
        self._epoch = -1
        self._lines: object = None
        self._standing: object = None
        self._published: dict[PartitionId, BatchId] = {}

    def after_step(
        self, state: ClusterState, clean: bool, logged: BatchId, failing: Collection[PartitionId] = ()
    ) -> None:
        """Look at the state between two steps. `failing`: partitions whose last attempt at a batch has failed."""
        self._bounds(state)
        self._held_edges(state)
        self._copies(state)
        for problem in branch_problems(state):
            self._complain(Violation(problem))
        checkpoints = state.checkpoints
        lines = [checkpoints.line, checkpoints.durable_line, checkpoints.oldest_line]
        if lines != self._lines:
            self._lines = [dict(line) for line in lines]
            self._snapshots(state)
        # Of several versions of a batch one may be lost, and another stand for it that holds less.
        standing = [{p: checkpoints.at(p, at) for p, at in line.items()} for line in lines]
        if (lines, standing) != self._standing:
            self._standing = self._lines, standing
            for line in lines:
                self._inputs(state, line)
            self._outputs(state)
        self._parked(state)
        self._pauses(state)
        self._no_waiting(state, clean, logged, failing)

    def _parked(self, state: ClusterState) -> None:
        """What serves parked queries only does not process, and nothing else is parked."""
        for p, one in state.partitions.items():
            parked = state.parked.keys() >= set(state.graph.queries_of(p))
            if (one.state is PartitionState.PARKED) != (parked and one.state in LIVE_STATES):
                what = f"{p} is {one.state}, and of its queries {'all' if parked else 'not all'} are parked"
                self._complain(Violation(what, (p,)))

    def _pauses(self, state: ClusterState) -> None:
        """A live query pauses only while something waits for which senders keep what they cannot drop.

        What they keep for others is dropped at the next checkpoint, and that one needs live queries at work.
        """
        alive = [
            query
            for query in state.paused - state.parked.keys()
            if all(state.partitions[p].state in LIVE_STATES for p in state.graph.members(query))
        ]
        if alive and not any(self._is_kept_for(state, p) for p in self._program.partitions):
            what = f"{min(alive)} pauses, and nothing waits for which senders could not drop what they keep"
            self._complain(Violation(what, tuple(sorted(alive))))

    def _is_kept_for(self, state: ClusterState, partition: PartitionId) -> bool:
        """Whether senders keep blocks for a partition, or for its sink, that only its return frees."""
        stands = {p: state.partitions[p].state for p in (partition, *self._above(state, partition))}
        own = stands[partition]
        if PartitionState.RESTORING in stands.values() or (
            partition in state.parked and own is not PartitionState.PARKED
        ):
            return True
        if partition in state.dropped:
            return own in AT_WORK_STATES
        if not {PartitionState.LOST, PartitionState.PARKED, PartitionState.PAUSED} & set(stands.values()):
            return False
        mine = state.checkpoints.line[partition], state.partitions[partition].frontier
        return (
            state.settings.strategy is RecoveryStrategy.SOURCE_REPLAY
            or partition in state.branches.now.members
            or not self._can_be_made_again(state, partition, min(mine))
        )

    def _held_edges(self, state: ClusterState) -> None:
        """What may be made again otherwise has not crossed the boundary of its segment, but where it had before."""
        line, segments = state.checkpoints.line, state.segments
        if not segments.holds or not segments.many or state.plan.now.number:
            return
        for sender in self._program.partitions:
            if self._program.operators[sender.operator].deterministic_alone:
                continue
            for to in state.graph.consumers(sender):
                at = state.partitions[to].frontier
                if segments.of(to) != segments.of(sender) and at > line[sender]:
                    what = f"{to} has taken batch {at} of {sender}, whose checkpoint is at {line[sender]}"
                    self._complain(Violation(what, (sender, to)))

    def _bounds(self, state: ClusterState) -> None:
        load: dict[NodeId, float] = {}
        for p, node in [*state.placement.items(), *state.copies.placement.items()]:
            load[node] = load.get(node, 0.0) + self._cost[p]
            if node not in state.nodes:
                self._complain(Violation(f"{p} is on {node}, which is not there", (p,)))
        for node, used in load.items():
            capacity = state.nodes.get(node, 0.0)
            if used > state.settings.bound * capacity + 1e-9:
                here = tuple(p for p, at in state.placement.items() if at == node)
                self._complain(Violation(f"{node} is planned at {used:g} of {capacity:g}, above its bound", here))

    def _copies(self, state: ClusterState) -> None:
        """A copy is where it can help, of what makes the same rows again, and can go on from where it stands."""
        for p, copy in state.copies.at.items():
            primary = state.partitions[p]
            problem = None
            if copy.node == primary.node:
                problem = f"is on {copy.node} with its primary"
            elif copy.node not in state.nodes:
                problem = f"is on {copy.node}, which is not there"
            elif not self._program.operators[p.operator].deterministic:
                problem = "may make other rows than its primary"
            elif primary.state not in LIVE_STATES:
                problem = f"has a primary that is {primary.state}"
            elif any(state.partitions[s].kept_from > copy.frontier + 1 for s in state.graph.senders(p)):
                problem = f"is at batch {copy.frontier}, and its senders have dropped what comes next"
            if problem is not None:
                self._complain(Violation(f"the copy of {p} {problem}", (p,)))

    def promoted(self, state: ClusterState, partition: PartitionId) -> None:
        """A copy has taken its primary's place: see that it has what others need, and gets what it needs."""
        mine = state.partitions[partition]
        fed = [c for c in state.graph.consumers(partition) if c not in state.dropped]
        behind = [c for c in fed if state.partitions[c].frontier + 1 < mine.kept_from]
        if behind:
            at = state.partitions[behind[0]].frontier
            what = f"{partition} is promoted with output from {mine.kept_from} on, and {behind[0]} is at {at}"
            self._complain(Violation(what, (partition, behind[0])))
        if partition in state.published and state.published[partition] + 1 < mine.kept_from:
            what = f"{partition} is promoted with output from {mine.kept_from} on; {state.published[partition]} is out"
            self._complain(Violation(what, (partition,)))
        for sender in state.graph.senders(partition):
            if state.partitions[sender].kept_from > mine.frontier + 1:
                what = f"{partition} is promoted at batch {mine.frontier}, and {sender} has dropped what comes next"
                self._complain(Violation(what, (partition, sender)))

    def _snapshots(self, state: ClusterState) -> None:
        """A checkpoint says that everything is safe: see that it is, of every partition."""
        checkpoints = state.checkpoints
        for p in self._program.partitions:
            for batch in {checkpoints.line[p], checkpoints.durable_line[p], checkpoints.oldest_line[p]} - {BatchId(-1)}:
                snapshot = checkpoints.at(p, batch)
                chain = () if snapshot is None else checkpoints.chain(p, snapshot)
                if snapshot is None and batch not in (checkpoints.line[p], checkpoints.oldest_line[p]):
                    continue  # a regenerator found it damaged: it is known, and the older one, which is whole, counts
                if snapshot is None or not chain:
                    self._complain(
                        Violation(f"checkpoint {batch} is complete, and {p} has no whole snapshot of it", (p,))
                    )
                    continue
                start = state.partitions[p].start
                if not state.graph.deterministic(p) and start.batch < batch and snapshot.epoch < start.epoch:
                    what = (
                        f"checkpoint {batch} is complete, and snapshot {snapshot.id} of {p} is of an earlier execution"
                    )
                    self._complain(Violation(what, (p,)))
                for one in chain:
                    if one.contents is None and not self._snapshot_store.safe(snapshot_name(self._run, p, one)):
                        self._complain(
                            Violation(f"checkpoint {batch} is complete, and snapshot {one.id} of {p} is not safe", (p,))
                        )

    def _inputs(self, state: ClusterState, line: Mapping[PartitionId, BatchId]) -> None:
        """Whatever starts from a line gets its inputs: they are made again, the same, or snapshots hold them."""
        for edge_from in self._program.partitions:
            at = line[edge_from]
            snapshot = state.checkpoints.at(edge_from, at)
            held = at + 1 if snapshot is None or snapshot.outbox_from is None else snapshot.outbox_from
            for to in state.graph.consumers(edge_from):
                if line[to] < at and held > line[to] + 1 and not self._regenerable(state, to, line[to]):
                    what = f"{to} starts from batch {line[to]}, and {edge_from}, at {at}, has only {held} and later"
                    self._complain(Violation(what, (edge_from, to)))
                if line[to] > at and not state.graph.deterministic(edge_from):
                    what = f"{to} is at batch {line[to]}, and {edge_from}, not deterministic, starts from batch {at}"
                    self._complain(Violation(what, (edge_from, to)))

    def _regenerable(self, state: ClusterState, partition: PartitionId, batch: BatchId) -> bool:
        """Whether it was decided, and written, that all that a partition takes in after a batch is made again."""
        return partition in state.dropped and self._can_be_made_again(state, partition, batch)

    def _above(self, state: ClusterState, partition: PartitionId) -> set[PartitionId]:
        above, left = set[PartitionId](), [partition]
        while left:
            found = [one for one in state.graph.senders(left.pop()) if one not in above]
            above.update(found)
            left += found
        return above

    def _can_be_made_again(self, state: ClusterState, partition: PartitionId, batch: BatchId) -> bool:
        """Whether all that a partition takes in after a batch can be made again, beside those that go on.

        Everything upstream is deterministic, and has a snapshot at one earlier batch, of a durable checkpoint, to which
        the log reaches back.
        """
        above = self._above(state, partition)
        checkpoints = state.checkpoints
        for line in (checkpoints.durable_line, checkpoints.oldest_line):
            starts = {line[p] for p in above or {partition}}
            whole = all(line[p] == -1 or checkpoints.at(p, line[p]) is not None for p in above)
            if len(starts) == 1 and max(starts) <= batch and whole and min(starts) >= state.inputs_from:
                return all(self._program.operators[p.operator].deterministic for p in above)
        return False

    def _outputs(self, state: ClusterState) -> None:
        """What a checkpoint covers is not made again: its outputs are out, or its snapshots hold them."""
        for p in self._program.outputs:
            batch, out = state.checkpoints.line[p], state.published[p]
            snapshot = state.checkpoints.at(p, batch)
            first = None if snapshot is None else snapshot.outbox_from
            held = first is not None and first <= out + 1
            if out < batch and not held:
                self._complain(
                    Violation(f"checkpoint {batch} is complete, and outputs of {p} after {out} are lost", (p,))
                )

    def _no_waiting(self, state: ClusterState, clean: bool, logged: BatchId, failing: Collection[PartitionId]) -> None:
        """A query whose partitions are all live, and do not fail, goes on, whatever has become of the others."""
        if state.epoch != self._epoch or not clean:
            self._epoch = state.epoch
            self._standstill.clear()
        limits = state.limits()
        for query in self._program.outputs:
            # Where the source had to go back, its queries wait until it has caught up: that is going on, too.
            now = sum(state.partitions[p].frontier for p in state.graph.members(query)), state.published[query]
            whole = all(
                state.partitions[p].state in AT_WORK_STATES and p not in failing for p in state.graph.members(query)
            )
            may_complete = min(logged, limits.get(query, logged))
            if not whole or state.partitions[query].frontier >= may_complete or now != self._stood.get(query):
                self._standstill[query] = 0
            else:
                self._standstill[query] = self._standstill.get(query, 0) + 1
                if self._standstill[query] > PATIENCE:
                    at = state.partitions[query].frontier
                    what = f"{query} is live and stands at batch {at} of {logged}; {len(state.lost)} are lost"
                    self._complain(Violation(what, state.graph.members(query)))
            self._stood[query] = now


def turn_problems(partition: str, before: str, cause: str, after: str) -> list[Violation]:
    """See that a partition has changed its state as the table says."""
    wanted = TRANSITIONS.get((PartitionState(before), Cause(cause)))
    if wanted is not None and wanted == after:
        return []
    named = PartitionId.parse(partition)
    return [Violation(f"{partition} went from {before} to {after}, being {cause}", (named,))]


# -- at the end ------------------------------------------------------------------------------------------------------


def output_problems(
    programs: Sequence[Program],
    given: Mapping[OperatorId, Mapping[OutputKey, pa.Table]],
    expected: Outputs,
    generations: Sequence[int] | None = None,
    is_given_up: Callable[[OperatorId, int], bool] = lambda operator, generation: False,
) -> list[Violation]:
    """Compare everything that was published with a run without failures.

    There is one program for each batch; `generations` are the numbers of their layouts, all the same if not given. Of
    an operator that `is_given_up` in a layout, the last batches of the layout may be missing, and nothing else.
    """
    found = []
    numbers = generations or [0] * len(programs)
    stamps: dict[tuple[PartitionId, int], tuple[int, PartitionId]] = {}
    for operator, outputs in given.items():
        # An output of a layout that never began has no batch: whatever it was given is wrong.
        sure = all(one.operators[operator].deterministic for one in programs if operator in one.operators)
        mine = {(key.query, key.batch): rows for key, rows in outputs.items()}
        for one in outputs:
            if one.batch < len(programs) and one.generation != numbers[one.batch]:
                found.append(Violation(f"{one} was published, and its batch is of another layout", (one.query,)))
        wanted = {key: rows for key, rows in expected.items() if key[0].operator == operator}
        for key in sorted(set(mine) | set(wanted)):
            of = numbers[key[1]] if key[1] < len(numbers) else -1
            if key not in mine and is_given_up(operator, of):
                later = [batch for query, batch in mine if query == key[0] and batch > key[1] and numbers[batch] == of]
                if later:
                    what = f"{key[0]} was given up, batch {key[1]} was never published, and batch {later[0]} was"
                    found.append(Violation(what, (key[0],)))
            elif key not in mine:
                found.append(Violation(f"{key[0]}, batch {key[1]} was never published", (key[0],)))
            elif key not in wanted:
                found.append(Violation(f"{key[0]}, batch {key[1]} was published and has no rows", (key[0],)))
            elif sure and not _equal(mine[key], wanted[key], ordered=programs[key[1]] is programs[0]):
                found.append(
                    Violation(
                        f"{key[0]}, batch {key[1]}: {mine[key].to_pylist()} was published, "
                        f"{wanted[key].to_pylist()} is right",
                        (key[0],),
                    )
                )
        if not sure:
            left = [BatchId(batch) for batch, number in enumerate(numbers) if is_given_up(operator, number)]
            found += _chain_problems(programs, mine, stamps, frozenset(left))
    return found


def _equal(mine: pa.Table, wanted: pa.Table, *, ordered: bool) -> bool:
    """Whether two outputs are the same; after a change of the layout a key's rows may come in another place."""
    if ordered or mine.num_rows != wanted.num_rows:
        return bool(mine.equals(wanted))
    by = [(name, "ascending") for name in mine.column_names]
    return bool(mine.equals(wanted) or mine.sort_by(by).equals(wanted.sort_by(by)))


def version_problems(name: OperatorId, shown: pa.Table | None, final: Sequence[pa.Table]) -> list[Violation]:
    """See that readers who want tentative rows too get the final ones, all of them and nothing else, in the end."""
    mine = [] if shown is None else shown.to_pylist()
    if tentative := [row for row in mine if row["tentative"]]:
        return [Violation(f"{name}: {len(tentative)} tentative rows were never corrected: {tentative[0]}")]
    own = [{key: value for key, value in row.items() if key not in VERSION_COLUMNS} for row in mine]
    wanted = [row for table in final for row in table.to_pylist()]
    if sorted(map(str, own)) != sorted(map(str, wanted)):
        return [Violation(f"{name}: readers of all versions get {len(own)} rows, or others, and {len(wanted)} are out")]
    return []


def row_problems(inputs: Mapping[OperatorId, Sequence[pa.Table]], logged: Sequence[LoggedBatch]) -> list[Violation]:
    """See that every row of every source is in the log, once, and that batches are there without a gap."""
    found = []
    for name, tables in inputs.items():
        wanted = sorted(str(row) for table in tables for row in table.to_pylist())
        pieces = [table for batch in logged for table in batch.sources[name].tables if table is not None]
        mine = sorted(str(row) for table in pieces for row in table.to_pylist())
        if mine != wanted:
            found.append(Violation(f"source {name} has {len(wanted)} rows, and the log {len(mine)} or others"))
    return found


def closing_problems(program: Program, logged: Sequence[LoggedBatch]) -> list[Violation]:
    """See that the last batch closes every source: windows of one that stays open never come out."""
    last = logged[-1].sources
    return [
        Violation(f"the last batch does not close source {name}")
        for name, source in program.sources.items()
        if source.event_time is not None and last[name].watermark != END_OF_TIME
    ]


def _chain_problems(
    programs: Sequence[Program],
    outputs: Mapping[tuple[PartitionId, BatchId], pa.Table],
    stamps: dict[tuple[PartitionId, int], tuple[int, PartitionId]],
    may_miss: frozenset[BatchId],
) -> list[Violation]:
    """Follow the stamps: every batch continues the one before, and all outputs tell of the same execution.

    `may_miss`: the batches of layouts in which the operator was given up.
    """
    found: list[Violation] = []
    for query in sorted({key[0] for key in outputs}):
        chains: dict[PartitionId, int] = {}
        for batch, program in enumerate(programs):
            given_up = batch in may_miss and (query, BatchId(batch)) not in outputs
            if given_up or query not in program.outputs:
                chains.clear()
                continue
            senders = stamping(program, query)
            table = outputs.get((query, BatchId(batch)))
            rows = [] if table is None else table.to_pylist()
            if [row["order"] for row in rows] != [batch] * len(senders):
                what = f"{query}, batch {batch} has batches {[row['order'] for row in rows]} of {len(senders)} stampers"
                return [*found, Violation(what, (query, *senders))]
            for sender, row in zip(senders, rows, strict=True):
                # A query that comes with a layout goes on from where the stampers are.
                begun = chains.get(sender, 1 if batch == 0 else None)
                chains[sender] = row["chain"] if begun is None else mix(begun, row["stamp"])
                other = stamps.setdefault((sender, batch), (row["stamp"], query))
                if row["chain"] != chains[sender] or other[0] != row["stamp"]:
                    what = f"{query}, batch {batch} is of another execution of {sender} than " + (
                        "the batch before" if row["chain"] != chains[sender] else f"what {other[1]} published"
                    )
                    found.append(Violation(what, (query, other[1], sender)))
            if found:
                return found
    return found


def stamping(program: Program, query: PartitionId) -> list[PartitionId]:
    """Return whose stamps reach a partition: one row that is split goes to the last target."""
    found = []
    for edge, sender in program.streams(query):
        route = next(route for route in program.operators[sender.operator].outputs if route.edge == edge)
        if route.targets(sender.index)[-1] == query.index:
            found += stamping(program, sender) if program.operators[sender.operator].deterministic_alone else [sender]
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


def retention_problems(
    program: Program, state: ClusterState, store_of: Callable[[NodeId, PartitionId], FragileStore]
) -> list[Violation]:
    """See that outboxes have shrunk to what consumers have not passed, once recovery is over."""
    found = []
    for p in program.partitions:
        node = state.partitions[p].node
        if node is None:
            continue
        consumers = state.graph.consumers(p)
        passed = [
            min(state.partitions[one].frontier, state.checkpoints.line[one])
            if state.segments.keeps(p, one)
            else state.partitions[one].frontier
            for one in consumers
        ]
        passed += [copy.frontier for one in consumers if (copy := state.copies.at.get(one)) is not None]
        if p in state.published:
            passed.append(state.published[p])
        if not passed:
            continue
        kept = [batch for batch in store_of(node, p).outbox_batches(p) if batch <= min(passed)]
        if kept:
            found.append(
                Violation(f"{p} still keeps batches {kept}, which all its consumers have passed ({min(passed)})", (p,))
            )
    return found
