"""An application on a Spark cluster: from the source log through pinned cycles to the sinks. Runs on the driver.

A failure, of a node, a job or the driver, is ordinary: the run takes a new epoch, every partition starts again from the
last global checkpoint, and the source log brings what came after. Sinks know what they have, so outputs come out once.
(Bringing back only what failed, the most valuable first, is the recovery machine's business.)
"""

from __future__ import annotations

import pickle
import shutil
import time
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa

from holdfast.application import Application, steps
from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime.answers import Done, Failed, Measures, OperatorFailed
from holdfast.runtime.blocks import LATE, Block
from holdfast.runtime.program import Program
from holdfast.runtime.sinks import MemorySink, OutputKey, ParquetSink, Sink, as_sink
from holdfast.runtime.sources import DirectoryLog
from holdfast.runtime.versions import NO_BATCH
from holdfast.spark.node_cycle import Cycle, Report, Saved, checkpoint_folder, output_blocks, run_level
from holdfast.spark.pinned import PinnedSlots, executors_of
from holdfast.spark.placing import levels_needed, place_evenly
from holdfast.spark.progress import ProgressFile

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_BATCHES = 8
"""Batches that one cycle takes from the log at most."""
MOST_TRIES = 10
"""Cycles in a row that may bring nothing before the run gives up."""


class SparkRun:
    """An application running on the executors of a Spark session."""

    def __init__(
        self,
        app: Application,
        spark: SparkSession,
        directory: Path,
        *,
        sinks: Mapping[str, object] | None = None,
        checkpoint_every: int = 10,
        wait_seconds: float = 120.0,
        tell: Callable[[str], object] = lambda line: None,
    ) -> None:
        """Begin, or go on where an earlier driver left off: `directory` is on storage that every node reaches.

        It holds the source logs, the checkpoints and the progress of the run. A global checkpoint is taken every so
        many batches. `tell` gets a line for what people would want to know.
        """
        check_session(spark)
        self.program = Program(app)
        self._spark, self._directory, self._tell = spark, Path(directory), tell
        self._every, self._wait = checkpoint_every, wait_seconds
        self._directory.mkdir(parents=True, exist_ok=True)
        self._progress = ProgressFile(self._directory / "progress.json", self.program.name)
        self._bytes = _portable(app)
        self._logs = {
            name: DirectoryLog(source, self.program.name, self._directory / "sources" / name)
            for name, source in self.program.sources.items()
        }
        given = dict(sinks or {})
        outputs = dict.fromkeys(partition.operator for partition in self.program.outputs)
        if strange := set(given) - set(outputs):
            raise BadInput(
                f"{min(strange)!r} is not an output", field="sinks", remedy=f"there are {', '.join(outputs)}"
            )
        self._sinks: dict[OperatorId, Sink] = {
            name: as_sink(given.get(name, self.program.sinks.get(name))) for name in outputs
        }
        self._late: dict[tuple[OperatorId, OperatorId], Sink] = {}
        self.measures: dict[PartitionId, Measures] = {}
        self.rollbacks = 0
        """How often every partition started again from a checkpoint, the start not counted."""
        # What nodes keep of one start is apart from every other's: a start begins from the checkpoint.
        self._run = f"{self.program.name}-{uuid4().hex[:12]}"
        self._last_problem: str | None = None
        self._reached = NO_BATCH
        self._number = 0
        self._slots: PinnedSlots | None = None
        self._begin_epoch()

    # -- feeding ----------------------------------------------------------------------------------------------------

    @property
    def logged(self) -> BatchId:
        """The last batch that every source has logged."""
        return min(log.frontier for log in self._logs.values())

    @property
    def frontier(self) -> BatchId:
        """The last batch that every partition has completed."""
        return min(self._frontiers.get(p, self._progress.now.checkpoint) for p in self.program.partitions)

    def log(self, batch: Mapping[str, pa.Table], *, last: bool = False, number: BatchId | None = None) -> BatchId:
        """Put one batch into the source logs; sources that are not named have no rows in it. Returns its number."""
        if strange := set(batch) - set(self._logs):
            raise BadInput(f"there is no source {min(strange)!r}", remedy=f"there are {', '.join(sorted(self._logs))}")
        at = BatchId(self.logged + 1) if number is None else number
        for name, log in self._logs.items():
            log.append(at, batch.get(name, self.program.sources[name].schema.empty_table()), last=last)
        return at

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Process everything in the logs; an operator that fails ends the run, and nothing before it is lost."""
        idle = 0
        while self.frontier < self.logged or self._unpublished():
            before = self._reached
            self.cycle()
            self._reached = max(before, self.frontier, self._progress.now.checkpoint)
            idle = idle + 1 if self._reached == before else 0
            if idle >= MOST_TRIES:
                raise CheckFailed(
                    f"{idle} cycles brought nothing, at batch {self.frontier} ({self._last_problem or 'no failure'})",
                    where=f"application {self.program.name}",
                    remedy="look at the executors' logs, and start the run again: it goes on from here",
                )

    def cycle(self) -> None:
        """Run one job over the next batches; a failure becomes a rollback, not an error."""
        slots = self._need_slots()
        base = max(self.frontier, NO_BATCH)
        through = BatchId(min(self.logged, base + MOST_BATCHES))
        save = self._save_at(through)
        if save is not None:
            through = save
        now = self._progress.now
        self._number += 1
        cycle = Cycle(
            self._bytes,
            self._run,
            self._number,
            now.epoch,
            self._nodes,
            self._placement,
            dict(self._frontiers),
            dict(self._published),
            str(self._directory / "sources"),
            through,
            now.checkpoint,
            now.checkpoint_epoch,
            str(self._directory / "checkpoints"),
            save,
        )
        shared = self._spark.sparkContext.broadcast(cycle)
        levels = [partial(_level, shared, level) for level in range(self._levels)]
        try:
            outcome = slots.run(levels, name=f"{self.program.name}: batches {base + 1} to {through}, epoch {now.epoch}")
        except Exception as error:  # a job fails for many reasons, and each is an event, never the stream's end
            self._roll_back(f"a job failed: {_first_line(error)}")
            return
        finally:
            shared.unpersist()
        self._fresh = False
        reports = [pickle.loads(block) for _, block in outcome.reports]
        self._take(reports, save)
        if outcome.misplaced:
            self._replace_slots(f"slots {outcome.misplaced} ran elsewhere")

    def _take(self, reports: list[Report], save: BatchId | None) -> None:
        """Hear what the nodes said: frontiers, outputs, saved states, and what is missing."""
        saved: set[PartitionId] = set()
        missing: list[object] = []
        failed: list[Failed] = []
        for report in reports:
            for partition, frontier in report.frontiers.items():
                self._frontiers[partition] = max(frontier, self._frontiers.get(partition, NO_BATCH))
            for answer in report.answers:
                if isinstance(answer, Saved):
                    saved.add(answer.partition)
                elif isinstance(answer, Failed):
                    failed.append(answer)
                elif isinstance(answer, Done):
                    self.measures[answer.partition] = answer.measures
                else:
                    missing.append(answer)
        blocks = [block for report in reports for block in output_blocks(report)]
        for block in sorted(blocks, key=lambda one: (one.header.batch, one.header.sender)):
            self._publish(block)
        if save is not None and saved == set(self.program.partitions):
            self._checkpointed(save)
        if failed:
            raise OperatorFailed(min(failed, key=lambda one: (one.batch, one.partition)))
        if missing:
            self._roll_back(f"{missing[0]}")

    def _publish(self, block: Block) -> None:
        head, epoch = block.header, self._progress.now.epoch
        if head.receiver.operator == LATE:
            place = head.sender.operator, head.edge.source
            if place not in self._late:
                self._late[place] = ParquetSink(self._directory / "late" / place[0] / place[1])
            if block.rows is not None:
                self._late[place].publish(OutputKey(head.sender, head.batch), block.rows, epoch)
            return
        if head.batch <= self._published.get(head.sender, NO_BATCH):
            return
        if not self._sure(head.sender) and head.batch > self._progress.now.checkpoint:
            # A replay could give other rows: they go out once a checkpoint covers them.
            self._held[head.sender] = max(head.batch, self._held.get(head.sender, NO_BATCH))
            return
        if block.rows is not None:
            try:
                self._sinks[head.sender.operator].publish(OutputKey(head.sender, head.batch), block.rows, epoch)
            except HoldfastError:
                raise
            except Exception as error:
                problem = f"its sink failed: {type(error).__name__}: {error}"
                raise OperatorFailed(Failed(head.sender, head.batch, problem)) from error
        self._published[head.sender] = head.batch

    def _unpublished(self) -> bool:
        """Whether an output that could be out is not."""
        done = self._progress.now.checkpoint
        unsure = [p for p in self.program.outputs if not self._sure(p)]
        if unsure and self._fresh:
            return True  # what a checkpoint held back is with the nodes: the first cycle of an epoch brings it
        held = any(self._published[p] < min(self._held.get(p, NO_BATCH), done) for p in unsure)
        return held or any(self._published[p] < self._frontiers[p] for p in self.program.outputs if self._sure(p))

    def _sure(self, partition: PartitionId) -> bool:
        """Whether a replay gives the same rows again."""
        return self.program.operators[partition.operator].deterministic

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def _save_at(self, through: BatchId) -> BatchId | None:
        """Return the batch of the next checkpoint, if this cycle reaches it."""
        due = BatchId(self._progress.now.checkpoint + self._every)
        return due if due <= through else None

    def checkpoint(self) -> BatchId:
        """Save everything at the last batch now."""
        self.run()
        if self.frontier > self._progress.now.checkpoint:
            every, self._every = self._every, self.frontier - self._progress.now.checkpoint
            try:
                tries = 0
                target = self.frontier
                while self._progress.now.checkpoint < target and tries < MOST_TRIES:
                    self.cycle()
                    tries += 1
            finally:
                self._every = every
        self.run()
        return self._progress.now.checkpoint

    def _checkpointed(self, batch: BatchId) -> None:
        """Every partition's state is there: from now on it is where a recovery starts."""
        now = self._progress.now
        self._progress.write(replace(now, checkpoint=batch, checkpoint_epoch=now.epoch))
        self._tell(f"checkpoint at batch {batch}")
        for log in self._logs.values():
            log.trim(batch)
        # Older checkpoints go, and those that an earlier epoch left half-taken.
        kept = checkpoint_folder(str(self._directory / "checkpoints"), batch, now.epoch)
        for folder in kept.parent.iterdir():
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)

    # -- failures ---------------------------------------------------------------------------------------------------

    def _roll_back(self, why: str) -> None:
        self.rollbacks += 1
        self._last_problem = why
        self._tell(f"rollback to batch {self._progress.now.checkpoint}: {why}")
        self._drop_slots()
        self._begin_epoch()

    def _begin_epoch(self) -> None:
        """Take a new epoch: every partition starts from the checkpoint, and earlier writes are refused."""
        now = self._progress.now
        self._progress.write(replace(now, epoch=Epoch(now.epoch + 1)))
        self._frontiers: dict[PartitionId, BatchId] = dict.fromkeys(self.program.partitions, now.checkpoint)
        # What is out of a query that waits for checkpoints is not known here: its sink drops what it has.
        self._published: dict[PartitionId, BatchId] = {
            partition: now.checkpoint if self._sure(partition) else NO_BATCH for partition in self.program.outputs
        }
        self._held: dict[PartitionId, BatchId] = {}
        self._fresh = True

    def _need_slots(self) -> PinnedSlots:
        """Return slots on the executors there are; wait for the first, and notice when they have changed."""
        context = self._spark.sparkContext
        deadline = time.monotonic() + self._wait
        while not (alive := executors_of(context)):
            if time.monotonic() > deadline:
                raise CheckFailed(
                    f"no executor came in {self._wait:.0f} s",
                    where=f"application {self.program.name}",
                    remedy="see that the cluster has free workers; the run goes on from here when started again",
                )
            time.sleep(0.1)
        if self._slots is not None and set(self._slots.executors) - set(alive):
            self._roll_back("an executor is gone")
        if self._slots is None:
            self._slots = PinnedSlots(context, alive)
            self._nodes = tuple(NodeId(f"{one.host}-{one.id}") for one in alive)
            self._placement = place_evenly(self.program.topology, len(alive))
            self._levels = levels_needed(self.program.topology, self._placement)
        return self._slots

    def _replace_slots(self, why: str) -> None:
        """Pin anew to the same executors; if some are gone, their state is too."""
        gone = self._slots is not None and set(self._slots.executors) - set(executors_of(self._spark.sparkContext))
        if gone:
            self._roll_back(why)
        elif self._slots is not None:
            alive = self._slots.executors
            self._drop_slots()
            self._slots = PinnedSlots(self._spark.sparkContext, alive)

    def _drop_slots(self) -> None:
        if self._slots is not None:
            self._slots.close()
            self._slots = None

    def close(self) -> None:
        """Let go of the executors; logs, checkpoints and outputs stay."""
        self._drop_slots()

    # -- what came of it --------------------------------------------------------------------------------------------

    def rows(self, operator: str) -> pa.Table:
        """Return all rows an output has given, by batch and then by partition; its sink must be one that can tell."""
        sink = self._sinks.get(OperatorId(operator))
        if not isinstance(sink, MemorySink | ParquetSink):
            raise BadInput(f"{operator!r} has no sink that keeps rows", remedy="leave out its sink, or ask the sink")
        found = sink.rows()
        schema = self.program.operators[OperatorId(operator)].schema
        return (schema or pa.schema([])).empty_table() if found is None else found


def check_session(spark: Any) -> None:
    """Refuse a session that cannot work, with the remedy."""
    if not hasattr(spark, "sparkContext") or type(spark).__module__.startswith("pyspark.sql.connect"):
        raise BadInput(
            "a Spark Connect session has no way to pin tasks to executors",
            where="holdfast",
            remedy="use a classic session: SparkSession.builder.master(…).getOrCreate() on the driver",
        )
    if spark.conf.get("spark.speculation", "false") == "true":
        raise BadInput(
            "speculation would run a partition where its state is not",
            field="spark.speculation",
            remedy="set it to false",
        )


def _level(shared: Any, level: int, slot: int, blocks: list[bytes]) -> Any:
    return run_level(shared.value, level, slot, blocks)


def _portable(app: Application) -> bytes:
    """Return the application as bytes for the nodes, without what only the driver needs: frames and sinks."""
    from pyspark import cloudpickle

    stripped = copy(app)
    stripped.steps = {
        name: replace(step, frame=None) if isinstance(step, steps.Source) else step for name, step in app.steps.items()
    }
    stripped.sinks = {}
    try:
        return bytes(cloudpickle.dumps(stripped))
    except Exception as error:
        raise BadInput(
            f"cannot be sent to the nodes: {_first_line(error)}",
            where=f"application {app.name}",
            remedy="keep sessions, connections and open files out of operators' functions",
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
