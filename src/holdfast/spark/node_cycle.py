"""A cycle on a node: what a pinned task does with the partitions that are placed there. Runs in Python workers.

The driver says in a `Cycle` what holds now: placement, epoch, frontiers, how far the source log goes, which checkpoint
partitions start from. The node keeps a partition host between cycles, but only as a cache: a worker that is new, or has
been recycled, builds it again from the node's files and the cycle. Every answer is a value; nothing here raises.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime.answers import Answer, Failed, Missing, Order, Ready
from holdfast.runtime.blocks import LATE, SINK, Block, decode_block, encode_block
from holdfast.runtime.directory_store import DirectoryStore
from holdfast.runtime.host import PartitionHost
from holdfast.runtime.images import decode_image, encode_image
from holdfast.runtime.program import Program
from holdfast.runtime.sources import DirectoryLog
from holdfast.runtime.versions import NO_BATCH
from holdfast.spark.pinned import DRIVER


@dataclass(frozen=True, slots=True)
class Cycle:
    """What holds in one cycle, for every node alike."""

    application: bytes
    """The application, without what only the driver needs."""
    run: str
    """Names the run: its state on a node is apart from every other's."""
    number: int
    epoch: Epoch
    nodes: tuple[NodeId, ...]
    """The node of each slot."""
    placement: Mapping[PartitionId, int]
    """The slot of each partition."""
    frontiers: Mapping[PartitionId, BatchId]
    """What each partition has completed, as the driver knows."""
    published: Mapping[PartitionId, BatchId]
    """What has reached the sink of each output partition."""
    sources: str
    """The folder of the source logs."""
    through: BatchId
    """The last batch to take from the source logs."""
    checkpoint: BatchId
    """The global checkpoint that partitions of this epoch start from."""
    checkpoints: str
    """The folder of the checkpoints."""
    save: BatchId | None = None
    """Save every partition's state at this batch."""


@dataclass(frozen=True, slots=True)
class Saved:
    """A partition's state at a batch is in the checkpoint folder."""

    partition: PartitionId
    batch: BatchId
    bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """What a node says after one level: answers, output and late blocks, where its partitions stand."""

    answers: tuple[Answer | Saved, ...]
    blocks: tuple[bytes, ...]
    frontiers: Mapping[PartitionId, BatchId]


@dataclass(slots=True)
class _Node:
    """What a worker keeps between cycles: a cache."""

    host: PartitionHost
    store: DirectoryStore
    logs: dict[OperatorId, DirectoryLog]
    program: Program
    cycle: int = -1
    sent: set[Any] = field(default_factory=set)
    """Blocks sent in this cycle already: the next level need not send them again."""


_nodes: dict[tuple[str, str, NodeId, Epoch], _Node] = {}


def checkpoint_file(folder: str, batch: BatchId, partition: PartitionId) -> Path:
    """Return where a partition's state at a global checkpoint is."""
    return Path(folder) / str(batch) / f"{partition.operator}-{partition.index}.image"


def state_folder(run: str, node: NodeId) -> Path:
    """Return where a node keeps its partitions' files: on a disk that goes with the application."""
    places = os.environ.get("SPARK_EXECUTOR_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    return Path(places.split(",")[0]) / "holdfast" / run / node


def run_level(cycle: Cycle, level: int, slot: int, given: list[bytes]) -> Iterable[tuple[int, bytes]]:
    """Do one level of a cycle on the slot's node; give blocks for other slots, and a report for the driver."""
    answers: list[Answer | Saved] = []
    try:
        node = _node(cycle, slot, answers)
        host = node.host
        host.deliver(decode_block(block) for block in given)
        if level == 0:
            _bring_in(cycle, slot, node)
        answers += host.run()
        if cycle.save is not None:
            answers += _save(cycle, node.program, host)
        blocks = [block for block in host.outgoing() if block.header.sequence not in node.sent]
        node.sent.update(block.header.sequence for block in blocks)
    except HoldfastError as error:
        here = [partition for partition, at in cycle.placement.items() if at == slot]
        failed = Failed(here[0], cycle.through, f"on {cycle.nodes[slot]}: {error}") if here else None
        return [(DRIVER, pickle.dumps(Report((*answers, *([failed] if failed else [])), (), {})))]
    outside, found = [], []
    for block in blocks:
        receiver = block.header.receiver
        if receiver.operator in (SINK, LATE):
            outside.append(encode_block(block))
        elif receiver in cycle.placement and cycle.placement[receiver] != slot:
            found.append((cycle.placement[receiver], encode_block(block)))
    frontiers = {partition: host.frontier(partition) for partition in host.partitions}
    return [*found, (DRIVER, pickle.dumps(Report(tuple(answers), tuple(outside), frontiers)))]


def _node(cycle: Cycle, slot: int, answers: list[Answer | Saved]) -> _Node:
    """Return this node's host in the cycle's epoch, with every partition placed here that can be."""
    name = cycle.nodes[slot]
    key = (hashlib.blake2b(cycle.application).hexdigest(), cycle.run, name, cycle.epoch)
    node = _nodes.get(key)
    if node is None:
        program = Program(pickle.loads(cycle.application))
        store = DirectoryStore(state_folder(cycle.run, name))
        host = PartitionHost(program, store, node=name, epoch=cycle.epoch, clock=time.perf_counter)
        logs = {
            source: DirectoryLog(at, program.name, Path(cycle.sources) / source)
            for source, at in program.sources.items()
        }
        node = _Node(host, store, logs, program)
        _nodes.clear()  # what an earlier epoch or another run left
        _nodes[key] = node
    if node.cycle != cycle.number:
        node.cycle = cycle.number
        node.sent.clear()
        _place(cycle, slot, node, answers)
        _acknowledge(cycle, node)
    return node


def _place(cycle: Cycle, slot: int, node: _Node, answers: list[Answer | Saved]) -> None:
    """Place what belongs here and is not; a partition that is new in this epoch starts from the checkpoint."""
    here = {partition for partition, at in cycle.placement.items() if at == slot}
    for partition in set(node.host.partitions) - here:
        node.host.release(partition)
    for partition in node.program.partitions:
        if partition not in here or partition in node.host.partitions:
            continue
        line = node.store.line(partition)
        if line is not None and line.pointer.epoch == cycle.epoch:
            order = Order(partition, node.host.node, cycle.frontiers.get(partition, NO_BATCH), cycle.epoch)
            answer: Any = node.host.take(order)
        elif cycle.frontiers.get(partition, NO_BATCH) > cycle.checkpoint:
            answer = Missing(partition, cycle.frontiers[partition])  # it ran here in this epoch, and is gone
        else:
            answer = _start(cycle, node, partition)
        if not isinstance(answer, Ready):
            answers.append(answer)


def _start(cycle: Cycle, node: _Node, partition: PartitionId) -> Ready | Missing:
    """Start a partition from the global checkpoint, or from nothing where there is none."""
    host, batch = node.host, cycle.checkpoint
    if batch == NO_BATCH:
        host.lose(partition)
        order = Order(partition, host.node, NO_BATCH, cycle.epoch)
        return Ready(partition, NO_BATCH) if isinstance(host.take(order), Ready) else Missing(partition, NO_BATCH)
    try:
        image = decode_image(checkpoint_file(cycle.checkpoints, batch, partition).read_bytes())
    except FileNotFoundError:
        return Missing(partition, batch)
    return host.restore([image])


def _acknowledge(cycle: Cycle, node: _Node) -> None:
    """Tell outboxes how far consumers are, and what is safe."""
    host, program = node.host, node.program
    for partition in host.partitions:
        for consumer in program.consumers(partition):
            if consumer.operator == SINK:
                host.acknowledge(partition, consumer, cycle.published.get(partition, cycle.checkpoint))
            elif consumer.operator == LATE:
                host.acknowledge(partition, consumer, cycle.frontiers.get(partition, cycle.checkpoint))
            else:
                host.acknowledge(partition, consumer, cycle.frontiers.get(consumer, cycle.checkpoint))
    if cycle.checkpoint != NO_BATCH:
        for partition in program.partitions:
            host.checkpointed(partition, cycle.checkpoint)


def _bring_in(cycle: Cycle, slot: int, node: _Node) -> None:
    """Take from the source logs what source partitions here have not had."""
    for name, log in node.logs.items():
        for index in range(node.program.sources[name].parallelism):
            partition = PartitionId(name, index)
            if partition not in node.host.partitions:
                continue
            for number in range(node.host.frontier(partition) + 1, cycle.through + 1):
                node.host.deliver([log.blocks(BatchId(number), cycle.epoch)[index]])


def _save(cycle: Cycle, program: Program, host: PartitionHost) -> list[Answer | Saved]:
    """Write the state of every partition that has reached the batch, whole or not at all."""
    found: list[Answer | Saved] = []
    assert cycle.save is not None
    for partition in host.partitions:
        if host.frontier(partition) < cycle.save:
            continue
        path = checkpoint_file(cycle.checkpoints, cycle.save, partition)
        if not path.exists():
            # What a deterministic operator gave is published already, or is made again.
            image = host.snapshot(
                partition, cycle.save, with_outbox=not program.operators[partition.operator].deterministic
            )
            if isinstance(image, Missing):
                found.append(image)
                continue
            data = encode_image(image)
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{path.name}.{os.getpid()}")
            with beside.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        found.append(Saved(partition, cycle.save, path.stat().st_size))
    return found


def output_blocks(report: Report) -> list[Block]:
    """Read the blocks a node sent outside."""
    return [decode_block(block) for block in report.blocks]
