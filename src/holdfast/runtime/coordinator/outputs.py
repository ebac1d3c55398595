"""Outputs to their sinks: in order, once, and only rows that no replay can change. Runs on the driver.

Sinks are called by publishers, beside the coordinator's loop (`publishing`); what operators keep aside is written here.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from holdfast.errors import BadInput, HoldfastError, one_line
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.runtime.blocks import DEAD_LETTERS, LATE, SINK, Block
from holdfast.runtime.coordinator.parking import Step
from holdfast.runtime.coordinator.publishing import Publishing, PublishSettings
from holdfast.runtime.coordinator.sink_calls import CallRunner, InlineRunner
from holdfast.runtime.io.gathering import GatheringSink
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import (
    CountsRows,
    FunctionSink,
    KeepsRows,
    MemorySink,
    Output,
    OutputKey,
    Sink,
    StagedRows,
    Stager,
    complete,
)
from holdfast.runtime.messages import Failed
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch
from holdfast.storage.self_check import check_storage
from holdfast.storage.storage import Storage


@dataclass(slots=True)
class Published:
    """What came of giving blocks to sinks."""

    reached: dict[PartitionId, BatchId] = field(default_factory=dict)
    """The last batch that is out of each partition that went on."""
    out: list[tuple[PartitionId, BatchId, int]] = field(default_factory=list)
    """What went out: partition, batch, rows."""
    aside: set[tuple[PartitionId, BatchId]] = field(default_factory=set)
    """Partitions and batches whose late rows are written."""
    not_aside: set[tuple[PartitionId, BatchId]] = field(default_factory=set)
    """Those whose late rows could not be written: they must come again."""
    failed: list[tuple[Step, Failed]] = field(default_factory=list)
    """What could not be written, and why: of every partition the first batch."""
    broken: set[PartitionId] = field(default_factory=set)
    """Queries of which an output did not go out, whatever the reason: what is after it has to wait."""
    problem: HoldfastError | None = None
    """Why this driver must end: another one has the run."""
    tentative_out: list[tuple[PartitionId, BatchId, int, float]] = field(default_factory=list)
    """What went out as tentative: query, batch, rows, predicted fidelity."""
    gathered: set[PartitionId] = field(default_factory=set)
    """Queries whose gathered rows were published as far as they were due."""
    tentative_failed: dict[PartitionId, str] = field(default_factory=dict)
    """Queries whose tentative rows a sink did not take: their branches end, and nothing else."""


MANY_FILES = 10_000
"""Files of one output that are published since a start before a line names a way to have fewer."""


class Outputs:
    """The sinks of a run, and what waits for them."""

    def __init__(
        self,
        program: Program,
        sinks: Mapping[OperatorId, Sink],
        late_sink: Callable[[OperatorId, OperatorId], Sink],
        generation: int = 0,
        *,
        runner: CallRunner | None = None,
        settings: PublishSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`runner` makes the calls of sinks, by default at once; `clock` measures how long they take."""
        self._program, self._sinks, self._late_sink = program, sinks, late_sink
        self.publishing = Publishing(sinks, runner or InlineRunner(), settings or PublishSettings(), clock)
        """What the sinks' publishers have."""
        self._generation, self._run = generation, ""
        self.publishing.generation = generation
        self.late: dict[tuple[OperatorId, OperatorId], Sink] = {}
        """The sinks of rows that came too late, by operator and input."""
        self.held: dict[PartitionId, BatchId] = {}
        """The last batch that is known of each output partition whose rows wait for a checkpoint."""
        self.may_be_tentative: Callable[[PartitionId, BatchId], bool] = lambda query, batch: False
        """Whether tentative rows of a batch may be out: then its final version is published also without rows."""
        self._files: Counter[OperatorId] = Counter()
        self.log: Callable[[str], object] = lambda line: None
        """Gets a line for people."""
        self.unread: Callable[[OperatorId, BatchId, pa.Table], object] = lambda source, batch, letters: None
        """Is called with records of a source that do not parse, once they are kept, as their dead letters."""

    @property
    def sinks(self) -> Mapping[OperatorId, Sink]:
        """The sink of every output."""
        return self._sinks

    def begin(self, run: str, epoch: Epoch) -> None:
        """Let sinks that outlive their process belong to this run and claim, before anything is published."""
        self._run = run
        for sink in self._sinks.values():
            sink.begin(run, epoch)

    def deterministic(self, partition: PartitionId) -> bool:
        """Whether a replay gives the same rows again."""
        return self._program.operators[partition.operator].deterministic

    def publish(
        self,
        blocks: Sequence[Block],
        before: Mapping[PartitionId, BatchId],
        durable: Mapping[PartitionId, BatchId],
        epoch: Epoch,
        staged: Mapping[tuple[PartitionId, BatchId], StagedRows] | None = None,
        held: Collection[PartitionId] = (),
        held_aside: Collection[PartitionId] = (),
    ) -> Published:
        """Hand blocks over to the sinks' publishers, each partition's batch after batch; return what is known by now.

        A sink that fails stops its partition. What a publisher has no room for comes again.

        `durable`: the batch of every partition's durable checkpoint. `staged`: outputs whose rows nodes have written;
        their blocks came without. `held`: partitions whose sinks get nothing now; `held_aside`: of which nothing that
        they keep aside is written now.
        """
        done = Published()
        self._collect(done)
        self.publishing.hold(held)
        broken: set[PartitionId] = set(held)
        for block in sorted(blocks, key=lambda one: (one.header.batch, one.header.sender)):
            head = block.header
            if head.receiver.operator == LATE:
                if head.sender in held_aside:
                    done.not_aside.add((head.sender, head.batch))
                    continue
                try:
                    self._set_aside(block, epoch)
                    done.aside.add((head.sender, head.batch))
                except StaleEpoch as error:
                    done.not_aside.add((head.sender, head.batch))
                    done.problem = done.problem or error
                except Exception as error:
                    done.not_aside.add((head.sender, head.batch))
                    kind = "dead letters" if head.edge.source == DEAD_LETTERS else "late rows"
                    problem = f"its {kind} cannot be written: {_error_text(error)}"
                    done.failed.append((Step.LATE, Failed(head.sender, head.batch, problem)))
            elif head.receiver.operator == SINK and head.sender not in broken and head.sender not in done.broken:
                # Barriers come for batches without rows: a batch that is not the next one came without those before.
                last = self.publishing.last(head.sender)
                if (last is not None or not self.publishing.takes(head.sender)) and not self.deterministic(head.sender):
                    self._holds(head.sender, head.batch)  # not all of it is handed over at once
                if last is None:
                    last = done.reached.get(head.sender, before[head.sender])
                if head.batch == last + 1 and not self._waits(head.sender, head.batch, durable):
                    written = (staged or {}).get((head.sender, head.batch))
                    self._hand_over(self._final(block, written), epoch, done)
        self.publishing.start(epoch)
        self._collect(done)
        self.publishing.drop(done.broken)
        self.publishing.start(epoch)  # a call may just have ended, and others wait
        return done

    def completed(self, epoch: Epoch, parked: Collection[PartitionId], held: Collection[PartitionId]) -> Published:
        """Return what became of outputs that publishers have, and let them go on with what waits.

        The queries that wait for a sink that does not return are among those that failed; `parked` were reported.
        """
        done = Published()
        self._collect(done)
        done.failed += [(Step.HANGING, one) for one in self.publishing.late(parked)]
        self.publishing.hold(held)
        self.publishing.drop(done.broken)
        self.publishing.start(epoch)
        return done

    def hand_over_tentative(
        self, block: Block, fidelity: float, epoch: Epoch, done: Published, *, held: Collection[PartitionId] = ()
    ) -> bool:
        """Let the publisher of a query have tentative rows; say whether it takes them, or there are none."""
        query, publishing = block.header.sender, self.publishing
        output = Output(self._key(block), block.rows, fidelity=fidelity)
        if block.rows is None:
            done.tentative_out.append((query, block.header.batch, 0, fidelity))
        elif query in held or not publishing.takes(query):
            return False
        else:
            publishing.add(output)
            publishing.start(epoch, query.operator)
            self._collect(done)
        return True

    def _final(self, block: Block, staged: StagedRows | None) -> Output:
        """Return what the sink gets of a final batch; where tentative rows may be out, also that it has no rows."""
        head, key = block.header, self._key(block)
        if block.rows is None and staged is None and self.may_be_tentative(head.sender, head.batch):
            schema = self._program.operators[head.sender.operator].schema
            return Output(key, (schema or pa.schema([])).empty_table(), retracts=True)
        return Output(key, block.rows, staged)

    def handed(self, query: PartitionId) -> BatchId:
        """Return the last batch of a query that its publisher has; NOTHING: it has none."""
        last = self.publishing.last(query)
        return NOTHING if last is None else last

    def _hand_over(self, output: Output, epoch: Epoch, done: Published) -> None:
        """Let the publisher of an output have it, where it has room; an empty one is out with what is before it."""
        query, publishing = output.key.query, self.publishing
        if output.rows is None and output.staged is None and publishing.last(query) is None:
            self._is_out(output, done)
        elif publishing.takes(query):
            publishing.add(output)
            if publishing.at_once and not self._sinks[query.operator].grouped:
                publishing.start(epoch, query.operator)
                self._collect(done)

    def _collect(self, done: Published) -> None:
        """Take what became of outputs that publishers had."""
        for output, one in self.publishing.take():
            query = output.key.query
            if output.fidelity is not None:
                if one.out and output.rows is not None:
                    done.tentative_out.append((query, output.key.batch, output.rows.num_rows, output.fidelity))
                elif one.error is not None:
                    done.tentative_failed[query] = one_line(f"its sink failed: {_error_text(one.error)}")
                continue
            if one.out:
                self._is_out(output, done)
                continue
            done.broken.add(query)
            if isinstance(one.error, StaleEpoch):
                done.problem = done.problem or one.error
            elif one.error is not None:
                problem = f"its sink failed: {_error_text(one.error)}"
                done.failed.append((Step.SINK, Failed(query, output.key.batch, problem)))
        for queries, error in self.publishing.take_flushed():
            if error is None:
                done.gathered |= {one.partition for one in queries}
                continue
            problem = f"its sink could not publish gathered rows, which stay staged: {_error_text(error)}"
            done.failed += [(Step.GATHERED, Failed(one.partition, one.batch, problem)) for one in queries]

    def _is_out(self, output: Output, done: Published) -> None:
        query, batch = output.key.query, output.key.batch
        done.reached[query] = batch
        rows = output.staged.rows if output.staged is not None else 0 if output.rows is None else output.rows.num_rows
        done.out.append((query, batch, rows))
        sink = self._sinks[query.operator]
        if rows and isinstance(sink, ParquetSink) and not sink.gathers:
            self._files[query.operator] += 1
            if self._files[query.operator] == MANY_FILES + 1:
                self.log(
                    f"output {self._program.output_names[query.operator]}: more than {MANY_FILES:,} files were "
                    "published into its folder since this start, one for each query and batch; with "
                    'hf.parquet(…, every="1 minute") and a folder of its own it gets one a minute for each query'
                )

    def rows(self, operator: str) -> pa.Table:
        """Return all rows an output has given; its sink must keep them, as Parquet, Delta and memory do.

        They come by batch and then by partition; those of a Delta table in no order.
        """
        sink: object = self._sinks.get(OperatorId(operator))
        if not isinstance(sink, KeepsRows):
            raise _keeps_no_rows(operator)
        found = sink.rows()
        schema = self._program.operators[OperatorId(operator)].schema
        return (schema or pa.schema([])).empty_table() if found is None else found

    def count(self, operator: str) -> int:
        """Return how many rows an output has given; its sink must keep or count them: Parquet, Delta or memory."""
        sink: object = self._sinks.get(OperatorId(operator))
        return sink.count() if isinstance(sink, CountsRows) else self.rows(operator).num_rows

    def _key(self, block: Block) -> OutputKey:
        return OutputKey(block.header.sender, block.header.batch, generation=self._generation, run=self._run)

    def _set_aside(self, block: Block, epoch: Epoch) -> None:
        place = block.header.sender.operator, block.header.edge.source
        if place not in self.late:
            self.late[place] = self._late_sink(*place)
        if block.rows is None:
            return
        new = self.late[place].publish(self._key(block), block.rows, epoch)
        if new and place[1] == DEAD_LETTERS and place[0] in self._program.sources:
            self.unread(place[0], block.header.batch, block.rows)

    def _waits(self, partition: PartitionId, batch: BatchId, durable: Mapping[PartitionId, BatchId]) -> bool:
        """Whether an output waits: a replay could give other rows, until a checkpoint that outlives everything."""
        if self.deterministic(partition) or batch <= durable[partition]:
            return False
        self._holds(partition, batch)
        return True

    def _holds(self, partition: PartitionId, batch: BatchId) -> None:
        self.held[partition] = max(batch, self.held.get(partition, NOTHING))


ASIDE_FOLDERS = ("late", "dead-letters")
"""The folders of a run's directory with what operators kept aside."""


def aside_folder(operator: OperatorId, feed: OperatorId) -> str:
    """Return where in a run's directory the rows are that an operator kept aside, of one of its inputs."""
    return f"dead-letters/{operator}" if feed == DEAD_LETTERS else f"late/{operator}/{feed}"


def _error_text(error: BaseException) -> str:
    return str(error) if isinstance(error, HoldfastError) else f"{type(error).__name__}: {error}"


def stagers_of(program: Program, sinks: Mapping[OperatorId, Sink], start: str) -> dict[OperatorId, Stager]:
    """Return what nodes stage rows with, for the outputs whose sinks take staged rows during this start of a driver.

    Not where a replay could give other rows: these wait for a checkpoint, and are sent in every cycle until then.
    """
    found = {}
    for name, sink in sinks.items():
        stager = sink.stager(start) if program.operators[name].deterministic else None
        if stager is not None:
            found[name] = stager
    return found


def on_nodes(sinks: Mapping[OperatorId, Sink]) -> dict[OperatorId, Sink]:
    """Return the sinks that are called on nodes."""
    return {name: sink for name, sink in sinks.items() if sink.on_nodes}


def name_sinks(program: Program, given: Mapping[str, object]) -> dict[OperatorId, Sink]:
    """Return the sink of every output: what is given, else what the application names, else one in memory.

    One that cannot take as many partitions as its output has is refused, before anything is published.
    """
    outputs = Counter(partition.operator for partition in program.outputs)
    if strange := set(given) - set(outputs):
        raise BadInput(f"{min(strange)!r} is not an output", field="sinks", remedy=f"there are {', '.join(outputs)}")
    found = {name: as_sink(given.get(name, program.sinks.get(name))) for name in outputs}
    for name, sink in found.items():
        schema = program.operators[name].schema
        if isinstance(sink, GatheringSink) and schema is not None:
            sink.check(schema, f"application {program.name}", f"output {program.output_names[name]}")
        if sink.most_partitions is not None and outputs[name] > sink.most_partitions:
            raise BadInput(
                f"has {outputs[name]} partitions, and {type(sink).__name__} takes {sink.most_partitions}",
                where=f"application {program.name}",
                field=f"output {program.output_names[name]}",
                remedy="give the output fewer partitions, or several outputs",
            )
    return found


def _keeps_no_rows(operator: str) -> BadInput:
    return BadInput(f"{operator!r} has no sink that keeps rows", remedy="leave out its sink, or ask the sink")


def check_places(sinks: Iterable[Sink]) -> None:
    """Try the storages that sinks write to, each once, before a run has its claim; see `check_storage`.

    The objects of the check are below `_holdfast/`, which readers of the outputs pass over.
    """
    found: dict[str, Storage] = {}
    for sink in sinks:
        if (kept_in := getattr(sink, "kept_in", None)) is not None:
            place: Storage = kept_in()
            found.setdefault(place.url, place)
    for place in found.values():
        check_storage(place.within("_holdfast"))


def as_sink(given: object) -> Sink:
    """Take what an application names as a sink: a sink, a directory for Parquet, or a function."""
    if given is None:
        return MemorySink()
    if hasattr(given, "publish"):
        return complete(given)
    if isinstance(given, str | Path):
        return ParquetSink(given)
    if callable(given):
        return FunctionSink(given)
    raise BadInput(f"{given!r} is not a sink", remedy="give a sink, a directory for Parquet files, or a function")
