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
from holdfast.runtime.cycle import Acknowledgement, Instructions, run_cycle
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
    checkpoint_epoch: Epoch
    """The epoch it was taken in."""
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


def checkpoint_folder(folder: str, batch: BatchId, epoch: Epoch) -> Path:
    """Return where the states of a checkpoint are; one that an earlier epoch left half-taken is never completed."""
    return Path(folder) / f"{batch}.{epoch}"


def checkpoint_file(within: Path, partition: PartitionId) -> Path:
    """Return where a partition's state is within a checkpoint."""
    return within / f"{partition.operator}-{partition.index}.image"


def state_folder(run: str, node: NodeId) -> Path:
    """Return where a node keeps its partitions' files: on a disk that goes with the application."""
    places = os.environ.get("SPARK_EXECUTOR_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    return Path(places.split(",")[0]) / "holdfast" / run / node


def run_level(cycle: Cycle, level: int, slot: int, given: list[bytes]) -> Iterable[tuple[int, bytes]]:
    """Do one level of a cycle on the slot's node; give blocks for other slots, and a report for the driver."""
    here = [partition for partition, at in cycle.placement.items() if at == slot]
    answers: list[Answer | Saved] = []
    try:
        node = _node(cycle, slot)
        ready = _begin(cycle, node, here, answers)
        blocks = [decode_block(block) for block in given]
        if level == 0:
            blocks += _brought_in(cycle, node, ready)
        done = run_cycle(node.host, _instructions(cycle, node, ready), blocks)
        answers += [answer for answer in done.answers if not isinstance(answer, Ready)]
        if cycle.save is not None:
            answers += _save(cycle, node.program, node.host)
    except HoldfastError as error:
        failed = [Failed(partition, cycle.through, f"on {cycle.nodes[slot]}: {error}") for partition in here[:1]]
        return [(DRIVER, pickle.dumps(Report((*answers, *failed), (), {})))]
    outside, found = [], []
    for block in done.blocks:
        receiver, number = block.header.receiver, block.header.sequence
        if number in node.sent:
            continue
        node.sent.add(number)
        if receiver.operator in (SINK, LATE):
            outside.append(encode_block(block))
        elif receiver in cycle.placement and cycle.placement[receiver] != slot:
            found.append((cycle.placement[receiver], encode_block(block)))
    frontiers = {partition: node.host.frontier(partition) for partition in node.host.partitions}
    return [*found, (DRIVER, pickle.dumps(Report(tuple(answers), tuple(outside), frontiers)))]


def _node(cycle: Cycle, slot: int) -> _Node:
    """Return this node's host in the cycle's epoch, the one kept from the cycle before where there is one."""
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
    return node


def _begin(cycle: Cycle, node: _Node, here: list[PartitionId], answers: list[Answer | Saved]) -> list[PartitionId]:
    """Start what is new in this epoch from the checkpoint; return what can run, and answer what cannot."""
    ready = []
    for partition in here:
        line = None if partition in node.host.partitions else node.store.line(partition)
        if partition in node.host.partitions or (line is not None and line.pointer.epoch == cycle.epoch):
            ready.append(partition)
        elif cycle.frontiers.get(partition, NO_BATCH) > cycle.checkpoint:
            answers.append(Missing(partition, cycle.frontiers[partition]))  # it ran here in this epoch, and is gone
        elif isinstance(answer := _start(cycle, node, partition), Missing):
            answers.append(answer)
        else:
            ready.append(partition)
    return ready


def _instructions(cycle: Cycle, node: _Node, ready: list[PartitionId]) -> Instructions:
    """Say to the host what the driver's log says: who runs, how far consumers are, what is safe."""
    heard = []
    for partition in ready:
        for consumer in node.program.consumers(partition):
            if consumer.operator == SINK:
                frontier = cycle.published.get(partition, cycle.checkpoint)
            elif consumer.operator == LATE:
                frontier = cycle.frontiers.get(partition, cycle.checkpoint)
            else:
                frontier = cycle.frontiers.get(consumer, cycle.checkpoint)
            heard.append(Acknowledgement(partition, consumer, frontier))
    orders = [Order(p, node.host.node, cycle.frontiers.get(p, NO_BATCH), cycle.epoch) for p in ready]
    safe = [] if cycle.checkpoint == NO_BATCH else [(p, cycle.checkpoint) for p in node.program.partitions]
    return Instructions(orders, heard, safe)


def _start(cycle: Cycle, node: _Node, partition: PartitionId) -> Ready | Missing:
    """Start a partition from the global checkpoint, or from nothing where there is none."""
    host, batch = node.host, cycle.checkpoint
    if batch == NO_BATCH:
        host.lose(partition)
        order = Order(partition, host.node, NO_BATCH, cycle.epoch)
        return Ready(partition, NO_BATCH) if isinstance(host.take(order), Ready) else Missing(partition, NO_BATCH)
    try:
        within = checkpoint_folder(cycle.checkpoints, batch, cycle.checkpoint_epoch)
        image = decode_image(checkpoint_file(within, partition).read_bytes())
    except FileNotFoundError:
        return Missing(partition, batch)
    return host.restore([image])


def _brought_in(cycle: Cycle, node: _Node, ready: list[PartitionId]) -> list[Block]:
    """Read from the source logs what source partitions here may not have had; what they had they drop."""
    found = []
    for partition in ready:
        log = node.logs.get(partition.operator)
        if log is not None:
            for number in range(cycle.frontiers.get(partition, cycle.checkpoint) + 1, cycle.through + 1):
                found.append(log.blocks(BatchId(number), cycle.epoch)[partition.index])
    return found


def _save(cycle: Cycle, program: Program, host: PartitionHost) -> list[Answer | Saved]:
    """Write the state of every partition that has reached the batch, whole or not at all."""
    found: list[Answer | Saved] = []
    assert cycle.save is not None
    for partition in host.partitions:
        if host.frontier(partition) < cycle.save:
            continue
        path = checkpoint_file(checkpoint_folder(cycle.checkpoints, cycle.save, cycle.epoch), partition)
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
