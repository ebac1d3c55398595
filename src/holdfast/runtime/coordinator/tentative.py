"""Tentative outputs on the driver: the part of the desired state that is about branches, and the way to the sinks.

Nothing here publishes what the run's progress does not say: a query's entry is written before its branch is handed out,
and rows of a query without one are dropped. Rows of a batch whose final rows are out, or are with the publisher of
their sink, are dropped too. A sink that fails
ends the branch of its query, and nothing else: the final rows come all the same. People may choose, while a run goes
on, which queries give tentative outputs: by requests in its storage.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from holdfast.errors import BadInput
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.branches import gone_of
from holdfast.recovery.checkpoints import NOTHING
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.events import TentativeChosen
from holdfast.recovery.states import LIVE_STATES
from holdfast.runtime.blocks import SINK, Block
from holdfast.runtime.coordinator.outputs import Outputs, Published
from holdfast.runtime.coordinator.requests import TentativeRequests, queries_named
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import ORIGIN_COLUMNS, VERSION_COLUMNS, Sink
from holdfast.runtime.messages import BranchAssignment, DesiredState, StandInAssignment
from holdfast.runtime.program import Program

POLL_SECONDS = 1.0
"""How often a driver looks for requests while partitions are lost, or outputs tentative."""


class TentativeChoices:
    """What people choose while a run goes on."""

    def __init__(
        self,
        state: ClusterState,
        requests: TentativeRequests | None,
        refusal: Callable[[PartitionId], str | None],
        clock: Callable[[], float],
    ) -> None:
        """`refusal` says why a query cannot give tentative outputs; None: it can."""
        self._state, self._requests, self._refusal, self._clock = state, requests, refusal, clock
        self._looked_at: float | None = None
        self._looked_in: Epoch | None = None

    def taken(self) -> list[tuple[TentativeChosen, list[str]]]:
        """Return what was asked for since the last call, with what is refused of it; OSError where storage is away."""
        now, state = self._clock(), self._state
        # A loss begins an epoch: what people said before it is known before the first tentative row.
        early = self._looked_at is not None and now - self._looked_at < POLL_SECONDS
        if self._requests is None or (early and self._looked_in == state.epoch):
            return []
        self._looked_at, self._looked_in = now, state.epoch
        if not state.branches.at and all(one.state in LIVE_STATES for one in state.partitions.values()):
            return []  # in an outage it takes effect, and then it is read
        found = []
        for number, name, on in self._requests.after(state.branches.requests):
            queries = queries_named(state.graph.outputs, name)
            reasons = {query: self._refusal(query) if on else None for query in queries}
            lines = [f"{query}: {why}" for query, why in reasons.items() if why is not None]
            if not queries:
                lines = [f"{name}: the run has no such query"]
            found.append((TentativeChosen(tuple(q for q in queries if reasons[q] is None), on, number), lines))
        return found

    @property
    def unread(self) -> Mapping[int, str]:
        """Requests that cannot be read, and why."""
        return {} if self._requests is None else self._requests.unread

    def logged(self) -> None:
        """What was asked for is in the progress: the requests are of no use any more."""
        if self._requests is not None:
            self._requests.drop_before(self._state.branches.requests)


def refusal_of(query: PartitionId, program: Program, sinks: Mapping[OperatorId, Sink], *, stays: bool) -> str | None:
    """Say why a query cannot give tentative outputs, in one line; None: it can. `stays`: whether workers stay."""
    if not stays:
        return "tentative outputs need tasks that stay"
    try:
        check_sinks([query], sinks, f"application {program.name}")
        check_columns([query], program)
    except BadInput as refused:
        return str(refused)
    return None


def assign_branches(state: ClusterState, logged: BatchId) -> dict[PartitionId, BranchAssignment]:
    """Return what the members of the branch are to do."""
    branch, at = state.branches.now, state.branches.at

    def out(partition: PartitionId) -> BatchId | None:
        return max(state.published[partition], at[partition].through) if partition in branch.queries else None

    return {p: BranchAssignment(holes, logged, out(p)) for p, holes in branch.members.items()}


def assign_stand_ins(state: ClusterState) -> dict[PartitionId, StandInAssignment]:
    """Return where branches of lost partitions run, from what these would start themselves."""
    return {
        p: StandInAssignment(node, state.partitions[p].start, state.skips_for(p))
        for p, node in state.branches.now.stand_ins.items()
    }


def source_watermarks(state: ClusterState, log: BatchLog) -> dict[OperatorId, tuple[tuple[BatchId, int], ...]]:
    """Return where the watermarks of sources stand after recent batches: forged barriers carry them.

    That of a source that is read in place follows what its partitions find, and waits for one that is lost with ranges
    to read: it would hold back what is left. So such a source is left out while one of its partitions is gone.
    """
    if not state.branches.now.members:
        return {}
    gone, found = gone_of(state), {}
    for name, source in log.sources.items():
        moves = source.reader is None or all(PartitionId(name, i) not in gone for i in range(source.parallelism))
        marks = log.recent_watermarks(name) if moves else ()
        if marks:
            found[name] = marks
    return found


def branches_have_more(state: ClusterState, desired: DesiredState, logged: BatchId) -> bool:
    """Whether branches would have more to do with a new desired state than with this one."""
    now = state.branches.now.members
    return (
        desired.branches.keys() != now.keys()
        or any(one.holes != now[p] or one.through < logged for p, one in desired.branches.items())
        or desired.stand_ins != assign_stand_ins(state)
    )


def publish_tentative(
    state: ClusterState,
    outputs: Outputs,
    blocks: Sequence[Block],
    done: Published,
    held: Collection[PartitionId],
) -> dict[PartitionId, BatchId]:
    """Hand rows of branches over to the publishers of their sinks, each batch of a query once.

    Returns the last batch of each query that may be out by it: from then on its final version is published also where
    that has no rows. What a publisher has no room for is left out: the final rows come all the same. `done` has what is
    final by now, and gets what became of it. `held`: queries whose sinks get nothing now.
    """
    reached: dict[PartitionId, BatchId] = {}
    for block in sorted(blocks, key=lambda one: (one.header.batch, one.header.sender)):
        query, batch = block.header.sender, block.header.batch
        one = state.branches.at.get(query)
        if block.header.receiver.operator != SINK or one is None or not one.active or query in done.tentative_failed:
            continue
        final = max(state.published.get(query, NOTHING), done.reached.get(query, NOTHING), outputs.handed(query))
        if batch <= max(final, one.through, reached.get(query, NOTHING)):
            continue
        if outputs.hand_over_tentative(block, one.fidelity, state.epoch, done, held=held):
            reached[query] = batch  # also where its sink failed: it may have written something before
    return reached


def check_columns(queries: Sequence[PartitionId], program: Program) -> None:
    """Refuse tentative outputs of a query with columns that are named like those that say which version rows are."""
    added = (*VERSION_COLUMNS, *ORIGIN_COLUMNS)
    for query in queries:
        schema = program.operators[query.operator].schema
        if schema is not None and (taken := [name for name in added if name in schema.names]):
            raise BadInput(
                f"asks for tentative outputs, and has a column {taken[0]!r} of its own",
                where=f"application {program.name}",
                field=f"output {program.output_names[query.operator]}",
                remedy=f"rename it: readers get the columns {', '.join(added)} beside its own",
            )


def check_sinks(queries: Sequence[PartitionId], sinks: Mapping[OperatorId, Sink], where: str) -> None:
    """Refuse tentative outputs of a query whose sink cannot correct them."""
    for query in queries:
        sink = sinks[query.operator]
        if not sink.corrects:
            kind = type(sink).__name__
            raise BadInput(
                f"asks for tentative outputs, and its sink ({kind}) cannot correct them",
                where=where,
                field=f"output {query.operator}",
                remedy="write to hf.parquet or hf.memory, to hf.delta, hf.kafka_topic or hf.foreach_batch with "
                "tentative=… of their own, or leave tentative out",
            )


def rows_that_may_be_out(state: ClusterState, log: BatchLog) -> Callable[[PartitionId, BatchId], bool]:
    """Return what says whether tentative rows of a query's batch may be out.

    Also of a batch that the driver before logged after this one began.
    """
    queries, known = frozenset(state.branches.at), log.frontier

    def may_be_out(query: PartitionId, batch: BatchId) -> bool:
        if state.branches.may_be_out(query, batch):
            return True
        record = log.record(batch) if query in queries and batch > known else None
        return record is not None and record.claim < log.claim

    return may_be_out
