"""A level of a cycle in a pinned task: the node's share of it, with Spark's shuffle between. Runs in Python workers.

A worker keeps its node between cycles, but only as a cache: one that is new, or has been recycled, builds it again from
the node's files and what the driver sent. Nothing here raises.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import tempfile
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, one_line
from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.runtime.answers import Failed
from holdfast.runtime.blocks import LATE, SINK, Block, decode_blocks, encode_blocks
from holdfast.runtime.io.parquet_sink import Staged, stage
from holdfast.runtime.io.sources import DirectoryLog
from holdfast.runtime.messages import Cycle, NodeReport
from holdfast.runtime.program import Program
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.worker.worker import Node
from holdfast.spark.agents import AgentReport, agent_settings, ensure_agent, node_spool
from holdfast.spark.pinned_jobs import DRIVER, own_host
from holdfast.spark.settings import Settings
from holdfast.spark.snapshot_store import NodeSnapshotStore
from holdfast.store.agent.spool import Spool


@dataclass(frozen=True, slots=True)
class RunContext:
    """What every node of a run needs to know beside the cycle; the same for all cycles of a driver."""

    application: bytes
    """The application, without what only the driver needs."""
    start: str
    """Names this start of the driver: what nodes keep of one is apart from every other's."""
    sources: str
    """The folder of the source logs."""
    checkpoints: str
    """The folder of durable snapshots."""
    run: str
    """Names the run, over all its drivers: agents that outlive one are found by it."""
    settings: Settings
    staging: Mapping[OperatorId, str] = field(default_factory=dict)
    """Where nodes write the rows of outputs whose sinks take files: what is there, the driver only names."""


@dataclass(frozen=True, slots=True)
class Job:
    """One cycle as a Spark job: who has which slot."""

    cycle: Cycle
    nodes: tuple[NodeId, ...]
    """The node of each slot."""
    join: tuple[str, ...] = ()
    """Whom agents enter the ring with, once that is known."""


@dataclass(slots=True)
class _Worker:
    """What a worker keeps between cycles: a cache."""

    node: Node
    cycle: int = -1
    sent: dict[Any, int] = field(default_factory=dict)
    """At which level of this cycle a block was sent first: later levels need not send it again."""


_workers: dict[tuple[str, str, NodeId], _Worker] = {}


def state_folder(start: str, node: NodeId) -> Path:
    """Return where a node keeps its partitions' files: on a disk that goes with the application."""
    places = os.environ.get("SPARK_EXECUTOR_DIRS") or os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()
    return Path(places.split(",")[0]) / "holdfast" / start / node


@lru_cache(maxsize=2)
def read_job(data: bytes) -> Job:
    """Read what the driver sent: a worker has the levels of a cycle one after the other, and reads it once."""
    job: Job = pickle.loads(data)
    return job


def run_level(around: RunContext, job: Job, level: int, slot: int, given: list[bytes]) -> Iterable[tuple[int, bytes]]:
    """Do one level of a cycle on the slot's node; give blocks for other slots, and a report for the driver."""
    cycle, name = job.cycle, job.nodes[slot]
    agent = see_to_agent(around, job.join) if level == 0 else None
    slots = {node: number for number, node in enumerate(job.nodes)}
    try:
        worker = _worker(around, cycle.number, name)
        report = worker.node.level(cycle, level, [block for data in given for block in decode_blocks(data)])
    except (HoldfastError, OSError) as error:
        here = [p for p, task in cycle.tasks.items() if task.node == name]
        failed = [Failed(p, BatchId(cycle.tasks[p].frontier + 1), f"on {name}: {error}") for p in here[:1]]
        return [(DRIVER, pickle.dumps((NodeReport(name, cycle.epoch, failed), b"", agent)))]
    outside: list[Block] = []
    sent: dict[int, list[Block]] = {}
    staged: dict[tuple[PartitionId, BatchId], Staged] = {}
    not_staged: dict[OperatorId, str] = {}
    for block in report.blocks:
        receiver, number = block.header.receiver, block.header.sequence
        first = worker.sent.get(number, level)
        if first < level:
            continue
        # A level that Spark runs again says all of it again: what it said before is lost.
        worker.sent[number] = level
        if receiver.operator in (SINK, LATE):
            outside.append(_written(around, cycle.number, block, staged, not_staged))
        elif (task := cycle.tasks.get(receiver)) is not None and task.node in slots:
            sent.setdefault(slots[task.node], []).append(block)
    said = pickle.dumps((replace(report, blocks=(), staged=staged, not_staged=not_staged), _together(outside), agent))
    return [*((target, _together(blocks)) for target, blocks in sent.items()), (DRIVER, said)]


def _written(
    around: RunContext,
    cycle: int,
    block: Block,
    staged: dict[tuple[PartitionId, BatchId], Staged],
    not_staged: dict[OperatorId, str],
) -> Block:
    """Write an output's rows where its sink takes files, if that can be done here; return what is left to send."""
    head = block.header
    folder = around.staging.get(head.sender.operator)
    if folder is None or block.rows is None or head.receiver.operator != SINK:
        return block
    one = stage(folder, cycle, block.rows)
    if isinstance(one, str):
        not_staged[head.sender.operator] = f"on {own_host()}: {one}"
        return block
    staged[head.sender, head.batch] = one
    return Block(head)


def _together(blocks: list[Block]) -> bytes:
    """Write blocks as one piece, those of one sender and batch beside each other: pieces cost more than rows."""
    return encode_blocks(sorted(blocks, key=lambda block: (block.header.sender, block.header.edge, block.header.batch)))


def read_report(data: bytes) -> tuple[NodeReport, AgentReport | None]:
    """Read what a node said of a level, and of its agent."""
    report, outside, agent = pickle.loads(data)
    return replace(report, blocks=decode_blocks(outside)), agent


def warm_up(around: RunContext) -> AgentReport:
    """Load what a first cycle would have to load: the application, and what it imports; see to the node's agent."""
    Program(pickle.loads(around.application))
    return see_to_agent(around, ())


def see_to_agent(around: RunContext, join: tuple[str, ...]) -> AgentReport:
    """See that this node has an agent; where it may not have one, checkpoints go to the run's directory alone."""
    try:
        return ensure_agent(node_spool(around.run), agent_settings(around.settings, own_host()), join)
    except (HoldfastError, OSError) as error:
        return AgentReport("", None, ready=False, problem=one_line(str(error)))


def _worker(around: RunContext, cycle: int, name: NodeId) -> _Worker:
    """Return this node's worker, the one kept from the cycle before where there is one."""
    key = (hashlib.blake2b(around.application).hexdigest(), around.start, name)
    worker = _workers.get(key)
    if worker is None:
        program = Program(pickle.loads(around.application))
        logs = {
            source: DirectoryLog(at, program.name, Path(around.sources) / source)
            for source, at in program.sources.items()
        }
        node = Node(
            program,
            DirectoryStore(state_folder(around.start, name)),
            NodeSnapshotStore(Path(around.checkpoints), _spool(around)),
            logs,
            name=name,
            clock=time.perf_counter,
            cpu_clock=time.process_time,
        )
        worker = _Worker(node)
        _workers.clear()  # what another run left
        _workers[key] = worker
    if worker.cycle != cycle:
        worker.cycle = cycle
        worker.sent.clear()
    return worker


def _spool(around: RunContext) -> Spool | None:
    report = see_to_agent(around, ())
    return None if report.problem is not None else Spool(report.spool)
