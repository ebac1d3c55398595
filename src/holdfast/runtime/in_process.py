"""A whole application in one process, without Spark: for tests, the simulator, and a first try. Runs anywhere.

    >>> import pyarrow as pa
    >>> from holdfast import Application, rows
    >>> from holdfast.runtime import run_in_process
    >>> app = Application("pairs")
    >>> words = app.source("words", schema={"word": "string"})
    >>> counted = words.key_by("word").window(rows(2)).count(id="pairs").output()
    >>> done = run_in_process(app, [{"words": pa.table({"word": ["a", "b", "a"]})}])
    >>> done.rows("pairs").to_pylist()
    [{'word': 'a', 'count': 2}]

It is the real thing in small: the same program, hosts, stores, logs and sinks as on a cluster, on as many nodes as one
likes; only what carries blocks between nodes is a loop here. Partitions can be lost and restored from checkpoints, and
what must go back with them follows from what their senders kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa

from holdfast.application import Application
from holdfast.errors import BadInput, CheckFailed, HoldfastError
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime.answers import Done, Failed, Measures, Missing, OperatorFailed, Order, Ready
from holdfast.runtime.blocks import LATE, SINK, Block
from holdfast.runtime.directory_store import DirectoryStore
from holdfast.runtime.host import PartitionHost
from holdfast.runtime.images import decode_image, encode_image
from holdfast.runtime.inbox import Delivery
from holdfast.runtime.outbox import Retention
from holdfast.runtime.program import Program, SourceProgram
from holdfast.runtime.schemas import conform
from holdfast.runtime.sinks import MemorySink, OutputKey, ParquetSink, Sink, as_sink
from holdfast.runtime.sources import DirectoryLog, MemoryLog, SourceLog
from holdfast.runtime.stores import MemoryStore, VersionStore
from holdfast.runtime.versions import NO_BATCH, VersionId

LONGEST_CHAIN = 8
"""A checkpoint is a base and at most so many changes after it; then comes a new base."""


def run_in_process(
    app: Application,
    batches: Iterable[Mapping[str, pa.Table]],
    *,
    directory: Path | None = None,
    nodes: int = 1,
    close: bool = True,
) -> InProcess:
    """Run an application over batches (each: source -> rows), to the end; see InProcess for what comes back.

    With `close`, windows that are still open at the end come out; without, they wait, as they would in a stream.
    """
    running = InProcess(app, directory=directory, nodes=nodes)
    for batch in batches:
        running.feed(batch)
    if close:
        running.close()
    return running


class InProcess:
    """An application running in this process."""

    def __init__(
        self,
        app: Application,
        *,
        directory: Path | None = None,
        nodes: int = 1,
        retention: Mapping[PartitionId, Retention] | Retention = Retention.NOWHERE,
        sinks: Mapping[str, object] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Place an application's partitions over a number of nodes, in turn.

        With a directory, state, logs and late rows are files there, and an application that was stopped goes on where
        it stood; without, they are in memory. `sinks` take the place of those the application names.
        """
        self.program = Program(app)
        self.epoch = Epoch(1)
        self._directory = directory
        kept = (
            dict.fromkeys(self.program.partitions, retention) if isinstance(retention, Retention) else dict(retention)
        )
        self.hosts = {
            (name := NodeId(f"node-{number}")): PartitionHost(
                self.program, self._store(name), node=name, epoch=self.epoch, clock=clock, retention=kept
            )
            for number in range(nodes)
        }
        names = list(self.hosts)
        self.placement = {p: names[number % nodes] for number, p in enumerate(self.program.partitions)}
        self._logs: dict[OperatorId, SourceLog] = {
            name: MemoryLog(source, self.program.name)
            if directory is None
            else DirectoryLog(source, self.program.name, directory / "sources" / name)
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
        self._images: dict[PartitionId, list[tuple[VersionId, bytes]]] = {}
        self.checkpoint_batch = NO_BATCH
        self.answers: list[Done | Failed] = []
        """What every partition said of every batch, in order."""
        self._place()

    # -- feeding ----------------------------------------------------------------------------------------------------

    @property
    def frontier(self) -> BatchId:
        """The last batch logged by every source."""
        return min(log.frontier for log in self._logs.values())

    def feed(self, batch: Mapping[str, pa.Table]) -> None:
        """Log one batch (sources that are not named have no rows in it) and process it."""
        self._log(batch, last=False)
        self.run()

    def close(self) -> None:
        """End all sources: windows that are still open come out."""
        self._log({}, last=True)
        self.run()

    def _log(self, batch: Mapping[str, pa.Table], *, last: bool) -> None:
        if strange := set(batch) - set(self._logs):
            raise BadInput(f"there is no source {min(strange)!r}", remedy=f"there are {', '.join(sorted(self._logs))}")
        number = BatchId(self.frontier + 1)
        # A batch is refused before any source has logged it: a source ahead of the others would be cut differently.
        for name, source in self.program.sources.items():
            if name in batch:
                _check(batch[name], source)
        for name, log in self._logs.items():
            log.append(number, batch.get(name, self.program.sources[name].schema.empty_table()), last=last)

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Process everything there is; an operator that fails stops the run once all others have done what they can."""
        failed: dict[PartitionId, Failed] = {}
        while self._cycle(failed):
            pass
        if failed:
            raise OperatorFailed(min(failed.values(), key=lambda one: (one.batch, one.partition)))

    def _cycle(self, failed: dict[PartitionId, Failed]) -> bool:
        """Move blocks and process batches once; say whether anything moved."""
        moved = self._bring_in()
        for host in self.hosts.values():
            for answer in host.run():
                if isinstance(answer, Done):
                    self.answers.append(answer)
                    moved = True
                elif isinstance(answer, Failed):
                    if answer.partition not in failed:
                        self.answers.append(answer)
                    failed[answer.partition] = answer
                else:
                    raise CheckFailed(f"{answer}", remedy="the node lost its files: restore the partition")
        for host in self.hosts.values():
            moved |= self._carry(host)
        self._acknowledge()
        return moved

    def _bring_in(self) -> bool:
        brought = False
        for name, log in self._logs.items():
            for index in range(self.program.sources[name].parallelism):
                partition = PartitionId(name, index)
                host = self._host(partition)
                frontier = host.frontier(partition)
                for number in range(frontier + 1, self.frontier + 1):
                    block = log.blocks(BatchId(number), self.epoch)[index]
                    brought |= host.deliver([block])[0] is Delivery.QUEUED
        return brought

    def _carry(self, host: PartitionHost) -> bool:
        """Take what a host sends to where it goes; say whether a partition got something new."""
        brought = False
        for block in host.outgoing():
            receiver = block.header.receiver
            if receiver.operator == SINK:
                self._publish(host, block)
            elif receiver.operator == LATE:
                self._publish_late(block)
            elif receiver in self.placement:
                brought |= self._host(receiver).deliver([block])[0] is Delivery.QUEUED
        return brought

    def _publish(self, host: PartitionHost, block: Block) -> None:
        head = block.header
        operator = self.program.operators[head.sender.operator]
        if not operator.deterministic and head.batch > self.checkpoint_batch:
            return  # a replay could give other rows: they go out once a checkpoint covers them
        if block.rows is not None:
            key = OutputKey(head.sender, head.batch)
            try:
                self._sinks[head.sender.operator].publish(key, block.rows, self.epoch)
            except HoldfastError:
                raise
            except Exception as error:
                raise OperatorFailed(
                    Failed(head.sender, head.batch, f"its sink failed: {type(error).__name__}: {error}")
                ) from error
        host.acknowledge(head.sender, head.receiver, head.batch)

    def _publish_late(self, block: Block) -> None:
        assert block.rows is not None
        head = block.header
        place = head.sender.operator, head.edge.source
        if place not in self._late:
            self._late[place] = self._late_sink(*place)
        self._late[place].publish(OutputKey(head.sender, head.batch), block.rows, self.epoch)

    def _acknowledge(self) -> None:
        for partition, node in self.placement.items():
            host = self.hosts[node]
            if partition not in host.partitions:
                continue
            frontier = host.frontier(partition)
            host.acknowledge(partition, PartitionId(LATE, partition.index), frontier)
            for _, sender in self.program.streams(partition):
                if sender in self.placement:
                    self._host(sender).acknowledge(sender, partition, frontier)

    # -- what came of it --------------------------------------------------------------------------------------------

    def rows(self, operator: str) -> pa.Table:
        """Return all rows an output has given, by batch and then by partition; its sink must be one that can tell."""
        sink = self._sinks.get(OperatorId(operator))
        if not isinstance(sink, MemorySink | ParquetSink):
            raise BadInput(f"{operator!r} has no sink that keeps rows", remedy="leave out its sink, or ask the sink")
        found = sink.rows()
        schema = self.program.operators[OperatorId(operator)].schema
        if found is None:
            return (schema or pa.schema([])).empty_table()
        return found

    def late(self, operator: str, source: str | None = None) -> pa.Table | None:
        """Return the rows an operator kept aside (of one of its inputs); None where there are none."""
        for (name, feed), sink in self._late_sinks().items():
            if name == operator and source in (None, feed):
                assert isinstance(sink, MemorySink | ParquetSink)
                return sink.rows()
        return None

    def measures(self) -> dict[PartitionId, Measures]:
        """Return what every partition has taken so far."""
        return {partition: self._host(partition).measures(partition) for partition in self.program.partitions}

    # -- failing and recovering -------------------------------------------------------------------------------------

    def checkpoint(self) -> BatchId:
        """Save every partition's state at the last batch; logs and outboxes shrink to what is needed from there."""
        batch = self.frontier
        taken: dict[PartitionId, tuple[VersionId, bytes, bool]] = {}
        for partition in self.program.partitions:
            chain = self._images.get(partition, [])
            since = chain[-1][0] if chain and len(chain) <= LONGEST_CHAIN else None
            # What a deterministic operator gave is published already, or is made again.
            unsure = not self.program.operators[partition.operator].deterministic
            host = self._host(partition)
            first = host.outbox_from(partition) if unsure else None
            image = host.snapshot(partition, batch, since=since, outbox_from=first)
            if isinstance(image, Missing):
                raise CheckFailed(f"{partition} is not at batch {batch}", remedy="run until every partition is there")
            taken[partition] = image.commit.id, encode_image(image), image.since is None
        # Global only now that every partition's is there.
        for partition, (version, data, whole) in taken.items():
            if whole:
                self._images[partition] = []
            self._images[partition].append((version, data))
        self.checkpoint_batch = batch
        for host in self.hosts.values():
            for partition in self.program.partitions:
                host.checkpointed(partition, batch)
        for log in self._logs.values():
            log.trim(batch)
        self.run()
        return batch

    def fail(self, *partitions: PartitionId | str) -> None:
        """Lose partitions with all their files."""
        for partition in partitions:
            named = PartitionId.parse(partition) if isinstance(partition, str) else partition
            self._host(named).lose(named)

    def recover(self, *, onto: Mapping[PartitionId, NodeId] | None = None) -> set[PartitionId]:
        """Bring back what was lost, at the last checkpoint; return the other partitions that had to go back for it.

        A sender whose outbox does not reach back to the checkpoint goes back too and makes its output again, and so do
        its own senders, up to those that kept, at worst the sources' log. What is not deterministic takes everything
        downstream of it along.
        """
        self.epoch = Epoch(self.epoch + 1)
        for host in self.hosts.values():
            host.enter(self.epoch)
        batch = self.checkpoint_batch
        lost = [p for p in self.program.partitions if p not in self._host(p).partitions]
        waiting = list(lost)
        back: set[PartitionId] = set()
        while waiting:
            partition = waiting.pop()
            if not self.program.operators[partition.operator].deterministic:
                # It may tell its batches differently this time, so whoever has heard them must hear them again.
                heard = {one for one in self.program.consumers(partition) if one in self.placement}
                fresh = heard - back - set(lost)
                back |= fresh
                waiting += sorted(fresh)
            for _, sender in self.program.streams(partition):
                if sender not in self.placement or sender in back or sender in lost:
                    continue
                if self._host(sender).kept_from(sender) > batch + 1:
                    back.add(sender)
                    waiting.append(sender)
        self.placement.update(onto or {})
        for partition in lost:
            self._restore(partition, batch)
        for partition in sorted(back):
            if isinstance(self._host(partition).go_back(partition, batch), Missing):
                self._restore(partition, batch)
        for partition in {*lost, *back}:
            for host in self.hosts.values():
                host.consumer_went_back(partition, batch)
        self.run()
        return back

    def _restore(self, partition: PartitionId, batch: BatchId) -> None:
        host = self._host(partition)
        if batch == NO_BATCH:
            host.lose(partition)
            host.take(Order(partition, host.node, NO_BATCH, self.epoch))
            return
        host.restore([decode_image(data) for _, data in self._images[partition]])
        host.checkpointed(partition, batch)

    # -- inside -----------------------------------------------------------------------------------------------------

    def _host(self, partition: PartitionId) -> PartitionHost:
        if partition not in self.placement:
            raise BadInput(f"there is no partition {partition} in {self.program.name}", remedy="see its topology")
        return self.hosts[self.placement[partition]]

    def _store(self, node: NodeId) -> VersionStore:
        return MemoryStore() if self._directory is None else DirectoryStore(self._directory / node)

    def _late_sink(self, operator: OperatorId, feed: OperatorId) -> Sink:
        return MemorySink() if self._directory is None else ParquetSink(self._directory / "late" / operator / feed)

    def _late_sinks(self) -> dict[tuple[OperatorId, OperatorId], Sink]:
        """The sinks of late rows, those of an earlier run of this directory among them."""
        if self._directory is not None:
            for path in sorted((self._directory / "late").glob("*/*")):
                place = OperatorId(path.parent.name), OperatorId(path.name)
                self._late.setdefault(place, ParquetSink(path))
        return self._late

    def _place(self) -> None:
        """Take every partition, in an epoch above all earlier ones of this directory."""
        if self._directory is not None:
            self.epoch = _next_epoch(self._directory)
        for partition, node in self.placement.items():
            answer = self.hosts[node].take(Order(partition, node, NO_BATCH, self.epoch))
            if not isinstance(answer, Ready):
                raise CheckFailed(f"{answer}", remedy="its files are damaged: begin with an empty directory")
        self.run()


def _check(rows: object, source: SourceProgram) -> None:
    if not isinstance(rows, pa.Table):
        raise BadInput(f"the rows of source {source.id!r} are {type(rows).__name__}", remedy="give a pyarrow.Table")
    conform(rows, source.schema, f"a batch of source {source.id}")


def _next_epoch(directory: Path) -> Epoch:
    """Count the starts in a directory."""
    path = directory / "epoch"
    number = int(path.read_text()) + 1 if path.exists() else 1
    beside = directory / ".epoch"
    beside.write_text(str(number))
    beside.replace(path)
    return Epoch(number)


__all__: Sequence[str] = ["InProcess", "run_in_process"]
