"""The task of a worker in a pinned job: one level of reconciling, with Spark's shuffle between levels.

Runs in Python workers. The process keeps its worker between jobs, but only as a cache: one that is new, or has been
recycled, builds it again from the node's files and what the driver sent. Nothing here raises.
"""

from __future__ import annotations

import hashlib
import pickle
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from holdfast.errors import HoldfastError, one_line
from holdfast.ids import BatchId, NodeId
from holdfast.runtime.blocks import Block, decode_blocks, encode_blocks, in_messages
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.messages import DesiredState, Failed, NodeReport, in_reports
from holdfast.runtime.program import Program
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.worker.worker import NodeWorker
from holdfast.spark.agents import AgentReport, agent_settings, ensure_agent, node_spool
from holdfast.spark.pinned_jobs import DRIVER, own_host
from holdfast.spark.run_context import RunContext, state_folder
from holdfast.spark.snapshot_store import NodeSnapshotStore
from holdfast.store.agent.spool import Spool


@dataclass(frozen=True, slots=True)
class Job:
    """A desired state as a Spark job: who has which slot."""

    desired: DesiredState
    nodes: tuple[NodeId, ...]
    """The node of each slot."""
    join: tuple[str, ...] = ()
    """Whom agents enter the ring with, once that is known."""


PIECE_BYTES = 256 << 20
"""Rows in one piece of what a task gives: Spark takes none of 2 GiB."""

_workers: dict[tuple[str, str, NodeId], NodeWorker] = {}
"""The worker that this process keeps between jobs: a cache."""


@lru_cache(maxsize=2)
def read_job(data: bytes) -> Job:
    """Read what the driver sent: a worker has the levels of a cycle one after the other, and reads it once."""
    job: Job = pickle.loads(data)
    return job


def run_level(
    context: RunContext, job: Job, level: int, slot: int, given: list[bytes], most: int = PIECE_BYTES
) -> Iterable[tuple[int, bytes]]:
    """Reconcile the slot's node at one level; give blocks for other slots, and a report for the driver.

    `most`: bytes of rows in one piece, where one block has not more.
    """
    desired, name = job.desired, job.nodes[slot]
    agent = see_to_agent(context, job.join) if level == 0 else None
    slots = {node: number for number, node in enumerate(job.nodes)}
    try:
        worker = _worker(context, name)
        report = worker.reconcile(desired, level, [block for data in given for block in decode_blocks(data)])
    except (HoldfastError, OSError) as error:
        here = [(p, one) for p, one in desired.assignments.items() if one.node == name]
        failed = [Failed(p, BatchId(one.frontier + 1), f"on {name}: {error}") for p, one in here[:1]]
        return [(DRIVER, pickle.dumps((NodeReport(name, desired.epoch, failed), b"", agent)))]
    found = [
        (slots[node], _together(part))
        for node, blocks in report.sent.items()
        if node in slots
        for part in in_messages(blocks, most)
    ]
    for part in in_reports(replace(report, sent={}), most):
        found.append((DRIVER, pickle.dumps((replace(part, outputs=()), _together(part.outputs), agent))))
    return found


def _together(blocks: Sequence[Block]) -> bytes:
    """Write blocks as one piece, those of one sender and batch beside each other: pieces cost more than rows."""
    return encode_blocks(sorted(blocks, key=lambda block: (block.header.sender, block.header.edge, block.header.batch)))


def read_report(data: bytes) -> tuple[NodeReport, AgentReport | None]:
    """Read a worker's report, and what it says of the node's agent."""
    report, outputs, agent = pickle.loads(data)
    return replace(report, outputs=decode_blocks(outputs)), agent


def warm_up(context: RunContext) -> AgentReport:
    """Load what a first cycle would have to load: the application, and what it imports; see to the node's agent."""
    Program(pickle.loads(context.application))
    return see_to_agent(context, ())


def see_to_agent(context: RunContext, join: tuple[str, ...]) -> AgentReport:
    """See that this node has an agent; where it may not have one, checkpoints go to the run's directory alone."""
    try:
        return ensure_agent(node_spool(context.run), agent_settings(context.settings, own_host()), join)
    except (HoldfastError, OSError) as error:
        return AgentReport("", None, ready=False, problem=one_line(str(error)))


def _worker(context: RunContext, name: NodeId) -> NodeWorker:
    """Return this node's worker, the one kept from the job before where there is one."""
    key = (hashlib.blake2b(context.application).hexdigest(), context.start, name)
    if key not in _workers:
        program = Program(pickle.loads(context.application))
        worker = NodeWorker(
            program,
            DirectoryStore(state_folder(context.start, name)),
            NodeSnapshotStore(context.durable, _spool(context)),
            BatchLog(program.sources, program.name, context.storage, generation=context.generation),
            name=name,
            clock=time.perf_counter,
            cpu_clock=time.process_time,
            stagers=pickle.loads(context.stagers) if context.stagers else {},
            quarantine_rows=context.settings.errors_quarantine_rows,
        )
        _workers.clear()  # what another run left
        _workers[key] = worker
    return _workers[key]


def _spool(context: RunContext) -> Spool | None:
    report = see_to_agent(context, ())
    return None if report.problem is not None else Spool(report.spool)
