"""Outputs to their sinks: in order, once, and only rows that no replay can change. Runs on the driver."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from holdfast.errors import BadInput, HoldfastError
from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING
from holdfast.runtime.blocks import DEAD_LETTERS, LATE, SINK, Block
from holdfast.runtime.coordinator.parking import Step
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import FunctionSink, MemorySink, Output, OutputKey, Sink, StagedRows, Stager, complete
from holdfast.runtime.messages import Failed
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch


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
    problem: HoldfastError | None = None
    """Why this driver must end: another one has the run."""


class Outputs:
    """The sinks of a run, and what waits for them."""

    def __init__(
        self,
        program: Program,
        sinks: Mapping[OperatorId, Sink],
        late_sink: Callable[[OperatorId, OperatorId], Sink],
        generation: int = 0,
    ) -> None:
        self._program, self._sinks, self._late_sink = program, sinks, late_sink
        self._generation, self._run = generation, ""
        self.late: dict[tuple[OperatorId, OperatorId], Sink] = {}
        """The sinks of rows that came too late, by operator and input."""
        self.held: dict[PartitionId, BatchId] = {}
        """The last batch of each output partition that waits for a checkpoint."""
        self.may_be_tentative: Callable[[PartitionId, BatchId], bool] = lambda query, batch: False
        """Whether tentative rows of a batch may be out: then its final version is published also without rows."""

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
    ) -> Published:
        """Give blocks to their sinks, each partition's batch after batch; a sink that fails stops its partition.

        `durable`: the batch of every partition's durable checkpoint. `staged`: outputs whose rows nodes have written;
        their blocks came without. `held`: partitions whose sinks get nothing now.
        """
        done = Published()
        broken: set[PartitionId] = set(held)
        together: dict[OperatorId, list[Output]] = {}
        """What goes to sinks that take many outputs in one step."""
        due: dict[PartitionId, BatchId] = {}
        """The last batch of each partition in them."""
        for block in sorted(blocks, key=lambda one: (one.header.batch, one.header.sender)):
            head = block.header
            if head.receiver.operator == LATE:
                if head.sender in held:
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
            elif head.receiver.operator == SINK and head.sender not in broken:
                # Barriers come for batches without rows: a batch that is not the next one came without those before.
                if (
                    head.batch
                    != max(due.get(head.sender, NOTHING), done.reached.get(head.sender, before[head.sender])) + 1
                ):
                    continue
                written = (staged or {}).get((head.sender, head.batch))
                if self._sinks[head.sender.operator].grouped:
                    if not self._waits(head.sender, head.batch, durable):
                        together.setdefault(head.sender.operator, []).append(
                            Output(self._key(block), block.rows, written)
                        )
                        due[head.sender] = head.batch
                    continue
                try:
                    if self._publish(block, written, durable, epoch):
                        done.reached[head.sender] = head.batch
                        many = block.row_count if written is None else written.rows
                        done.out.append((head.sender, head.batch, many))
                except StaleEpoch as error:
                    broken.add(head.sender)
                    done.problem = done.problem or error
                except Exception as error:
                    broken.add(head.sender)
                    problem = f"its sink failed: {_error_text(error)}"
                    done.failed.append((Step.SINK, Failed(head.sender, head.batch, problem)))
        for operator, outputs in together.items():
            self._publish_together(self._sinks[operator], outputs, epoch, done)
        return done

    def _publish_together(self, sink: Sink, outputs: Sequence[Output], epoch: Epoch, done: Published) -> None:
        """Give outputs to a sink that takes many in one step; batches without rows are out with those before them."""
        held: set[PartitionId] = set()
        try:
            out = set(
                sink.publish_all([one for one in outputs if one.rows is not None or one.staged is not None], epoch)
            )
        except StaleEpoch as error:
            done.problem = done.problem or error
            return
        except Exception as error:
            problem = f"its sink failed: {_error_text(error)}"
            first = {one.key.query: one.key.batch for one in reversed(outputs)}
            done.failed += [(Step.SINK, Failed(query, batch, problem)) for query, batch in first.items()]
            return
        for one in outputs:
            query, empty = one.key.query, one.rows is None and one.staged is None
            if query in held or not (empty or one.key in out):
                held.add(query)  # another driver swept it away: the rows come again, by the driver
                continue
            done.reached[query] = one.key.batch
            rows = one.staged.rows if one.staged is not None else 0 if one.rows is None else one.rows.num_rows
            done.out.append((query, one.key.batch, rows))

    def rows(self, operator: str) -> pa.Table:
        """Return all rows an output has given, by batch and then by partition; its sink must be Parquet or memory."""
        found = self._telling(operator).rows()
        schema = self._program.operators[OperatorId(operator)].schema
        return (schema or pa.schema([])).empty_table() if found is None else found

    def count(self, operator: str) -> int:
        """Return how many rows an output has given; its sink must be Parquet or memory."""
        sink = self._telling(operator)
        return sink.count() if isinstance(sink, ParquetSink) else self.rows(operator).num_rows

    def _telling(self, operator: str) -> MemorySink | ParquetSink:
        sink = self._sinks.get(OperatorId(operator))
        if not isinstance(sink, MemorySink | ParquetSink):
            raise BadInput(f"{operator!r} has no sink that keeps rows", remedy="leave out its sink, or ask the sink")
        return sink

    def _key(self, block: Block) -> OutputKey:
        return OutputKey(block.header.sender, block.header.batch, generation=self._generation, run=self._run)

    def _set_aside(self, block: Block, epoch: Epoch) -> None:
        place = block.header.sender.operator, block.header.edge.source
        if place not in self.late:
            self.late[place] = self._late_sink(*place)
        if block.rows is not None:
            self.late[place].publish(self._key(block), block.rows, epoch)

    def _waits(self, partition: PartitionId, batch: BatchId, durable: Mapping[PartitionId, BatchId]) -> bool:
        """Whether an output waits: a replay could give other rows, until a checkpoint that outlives everything."""
        if self.deterministic(partition) or batch <= durable[partition]:
            return False
        self.held[partition] = max(batch, self.held.get(partition, NOTHING))
        return True

    def _publish(
        self, block: Block, staged: StagedRows | None, durable: Mapping[PartitionId, BatchId], epoch: Epoch
    ) -> bool:
        """Give one block to its sink; say whether it is out."""
        head = block.header
        if self._waits(head.sender, head.batch, durable):
            return False
        key, sink = self._key(block), self._sinks[head.sender.operator]
        try:
            if staged is not None:
                sink.adopt(key, staged, epoch)
            elif block.rows is not None:
                sink.publish(key, block.rows, epoch)
            elif self.may_be_tentative(head.sender, head.batch):
                schema = self._program.operators[head.sender.operator].schema
                sink.retract(key, (schema or pa.schema([])).empty_table(), epoch)
        except FileNotFoundError:
            if staged is None:
                raise
            return False  # another driver swept it away: the rows come again, by the driver, and meet its epoch
        return True


ASIDE_FOLDERS = ("late", "dead-letters")
"""The folders of a run's directory with what operators kept aside."""


def aside_folder(operator: OperatorId, feed: OperatorId) -> str:
    """Return where in a run's directory the rows are that an operator kept aside, of one of its inputs."""
    return f"dead-letters/{operator}" if feed == DEAD_LETTERS else f"late/{operator}/{feed}"


def _error_text(error: Exception) -> str:
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


def name_sinks(program: Program, given: Mapping[str, object]) -> dict[OperatorId, Sink]:
    """Return the sink of every output: what is given, else what the application names, else one in memory."""
    outputs = dict.fromkeys(partition.operator for partition in program.outputs)
    if strange := set(given) - set(outputs):
        raise BadInput(f"{min(strange)!r} is not an output", field="sinks", remedy=f"there are {', '.join(outputs)}")
    return {name: as_sink(given.get(name, program.sinks.get(name))) for name in outputs}


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
