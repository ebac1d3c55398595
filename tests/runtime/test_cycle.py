"""Cycles of two nodes and a driver that has only its log: lost cycles, repeated ones, late blocks change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import Application, count, sliding, tumbling
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import NOTHING, SavedSnapshot
from holdfast.recovery.cluster_state import Start
from holdfast.runtime import run_in_process
from holdfast.runtime.blocks import LATE, SINK, Block, decode_blocks, encode_blocks
from holdfast.runtime.fetches import Restored
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.messages import (
    DesiredState,
    Missing,
    NodeReport,
    PartitionAssignment,
    Refused,
    SnapshotStored,
)
from holdfast.runtime.program import Program
from holdfast.runtime.state.directory_store import DirectoryStore
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore
from holdfast.runtime.worker.worker import NodeWorker
from runtime.generated import SCHEMA, batches, table

NODES = (NodeId("a"), NodeId("b"))
COUNT = 9
MARKS = (BatchId(2), BatchId(5), BatchId(7))


def application() -> Application:
    app = Application("cycles")
    source = app.source("s", schema=SCHEMA, event_time="at", lateness=1, parallelism=2)
    counts = source.key_by("word").window(sliding(2, every=1)).agg(n=count(), id="c", parallelism=3)
    counts.output()
    counts.window(tumbling(2)).agg(n=hf.sum("n"), id="t", parallelism=1).output()
    return app


class Driver:
    """A driver in small: a log of frontiers, outputs and snapshots, and nothing that a node could lose."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.program = Program(application())
        self.random = np.random.default_rng(seed)
        self.directory, self.snapshot_store = directory, MemorySnapshotStore()
        self.log = BatchLog(self.program.sources, "q")
        self.epoch = Epoch(1)
        self.starts = dict.fromkeys(self.program.partitions, Start(self.epoch, NOTHING, ()))
        self.frontier = dict.fromkeys(self.program.partitions, NOTHING)
        self.published = dict.fromkeys(self.program.outputs, NOTHING)
        self.rows: dict[tuple[PartitionId, BatchId], pa.Table] = {}
        self.snapshots: dict[PartitionId, list[SavedSnapshot]] = {p: [] for p in self.program.partitions}
        self.placement = {p: NODES[number % 2] for number, p in enumerate(self.program.partitions)}
        self.number = 0

    @property
    def logged(self) -> BatchId:
        return self.log.frontier

    def node(self, name: NodeId) -> NodeWorker:
        """A fresh worker over the node's files: nothing is remembered between cycles."""
        store = DirectoryStore(self.directory / name, cache_bytes=0)
        return NodeWorker(
            self.program, store, self.snapshot_store, self.log, name=name, clock=lambda: 0.0, cpu_clock=lambda: 0.0
        )

    def task(self, partition: PartitionId) -> PartitionAssignment:
        # Not beyond where it is known to stand: rows that it kept aside there may not be out yet.
        behind = [self.frontier[partition]]
        behind += [self.frontier[one] for one in self.program.consumers(partition) if one in self.frontier]
        if partition in self.published:
            behind.append(self.published[partition])
        saved = self.snapshots[partition]
        return PartitionAssignment(
            self.placement[partition],
            self.starts[partition],
            self.frontier[partition],
            BatchId(min(behind) + 1),
            self.logged,
            tuple(mark for mark in MARKS if mark not in {one.batch for one in saved}),
            follows=saved[-1] if saved else None,
            with_outbox=True,
        )

    def next_cycle(self) -> DesiredState:
        self.number += 1
        tasks = {p: self.task(p) for p in self.program.partitions if p in self.placement}
        return DesiredState(
            "r", self.number, self.epoch, tasks, dict(self.published), max_batches=int(self.random.integers(1, 4))
        )

    def cycle(self) -> None:
        """One cycle of both nodes: at any level one may be lost with all it says, run twice, or run on two workers."""
        cycle = self.next_cycle()
        arriving: dict[NodeId, list[Block]] = {name: [] for name in NODES}
        for level in range(4):
            sent: dict[NodeId, bytes] = dict.fromkeys(NODES, b"")
            for name in NODES:
                blocks = arriving[name]
                self.random.shuffle(blocks)  # type: ignore[arg-type]
                report = self.node(name).reconcile(cycle, level, blocks)
                chance = self.random.random()
                if chance < 0.2:
                    continue  # the worker did its work and died before it could say so
                if chance < 0.4:
                    report = self.node(name).reconcile(cycle, level, blocks + blocks[:2])
                self._hear(report)
                for other, blocks in report.sent.items():
                    sent[other] += encode_blocks(blocks)
            arriving = {name: decode_blocks(data) if data else [] for name, data in sent.items()}

    def _hear(self, report: NodeReport) -> None:
        for answer in report.answers:
            if isinstance(answer, Restored):
                continue
            assert isinstance(answer, SnapshotStored), answer
            if answer.snapshot not in self.snapshots[answer.partition]:
                self.snapshots[answer.partition].append(answer.snapshot)
        for partition, frontier in report.frontiers.items():
            self.frontier[partition] = max(self.frontier[partition], frontier)
        assert report.node not in report.sent, "what stays on a node is not sent"
        for block in sorted(report.outputs, key=lambda one: one.header.batch):
            head = block.header
            if head.receiver.operator == SINK:
                key = head.sender, head.batch
                if block.rows is not None:
                    assert key not in self.rows or self.rows[key].equals(block.rows)
                    self.rows[key] = block.rows
                assert head.batch <= self.published[head.sender] + 1, "no batch is passed over"
                self.published[head.sender] = max(self.published[head.sender], head.batch)
            else:
                assert head.receiver.operator == LATE

    def feed(self, made: Sequence[pa.Table]) -> None:
        for one in made:
            self.log.append({"s": one})
            self.cycle()

    def finish(self) -> None:
        for _ in range(200):
            if min(*self.frontier.values(), *self.published.values()) == self.logged:
                return
            self.cycle()
        raise AssertionError(f"stuck at {self.frontier}")

    def outputs(self, name: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for partition, batch in sorted(self.rows, key=lambda key: (key[1], key[0])):
            if partition.operator == name:
                found += self.rows[partition, batch].to_pylist()
        return found


@pytest.fixture(scope="module")
def made() -> list[pa.Table]:
    return [table(one) for one in batches(21, COUNT, 20)]


@pytest.fixture(scope="module")
def expected(made: list[pa.Table]) -> dict[str, list[dict[str, Any]]]:
    plain = run_in_process(application(), [{"s": one} for one in made], close=False)
    return {name: plain.rows(name).to_pylist() for name in ("c", "t")}


@pytest.mark.parametrize("seed", range(4))
def test_lost_repeated_and_doubled_cycles_leave_outputs_equal(
    seed: int, made: list[pa.Table], expected: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    driver = Driver(tmp_path, seed)
    driver.feed(made)
    driver.finish()
    for name, rows in expected.items():
        assert driver.outputs(name) == rows, f"seed {seed}"
    for _ in range(20):  # a report that was lost had snapshots in it: they are said again
        driver.cycle()
    assert {p: tuple(one.batch for one in saved) for p, saved in driver.snapshots.items()} == dict.fromkeys(
        driver.program.partitions, MARKS
    )
    assert any(one.follows is not None for saved in driver.snapshots.values() for one in saved), (
        "changes, not all again"
    )


@pytest.mark.parametrize("seed", range(3))
def test_partitions_go_on_from_images_on_other_nodes(
    seed: int, made: list[pa.Table], expected: dict[str, list[dict[str, Any]]], tmp_path: Path
) -> None:
    """All change places at the last snapshot each has: a base, what changed since, and the outbox of both."""
    driver = Driver(tmp_path, seed)
    driver.feed(made[:7])
    for _ in range(20):
        driver.cycle()
    assert all([one.batch for one in saved] == [2, 5] for saved in driver.snapshots.values())
    assert any(saved[-1].follows is not None for saved in driver.snapshots.values())
    driver.epoch = Epoch(2)
    for p, saved in driver.snapshots.items():
        driver.placement[p] = NODES[1 - NODES.index(driver.placement[p])]
        chain = tuple(saved) if saved[-1].follows is not None else tuple(saved[-1:])
        assert saved[-1].outbox_from is not None
        driver.starts[p] = Start(driver.epoch, BatchId(5), chain)
        driver.frontier[p] = BatchId(5)
    driver.feed(made[7:])
    driver.finish()
    for name, rows in expected.items():
        assert driver.outputs(name) == rows, f"seed {seed}"


def test_a_partition_that_is_elsewhere_is_released_and_one_that_is_gone_is_named(tmp_path: Path) -> None:
    driver = Driver(tmp_path, 1)
    driver.log.append({"s": table(batches(21, 1, 20)[0])})
    node = driver.node(NODES[0])
    cycle = driver.next_cycle()
    here = [p for p in driver.program.partitions if driver.placement[p] == NODES[0]]
    report = node.reconcile(cycle, 0, [])
    assert report.answers == []
    assert set(report.frontiers) == set(here) == set(node.host.partitions)
    source = PartitionId(OperatorId("s"), 0)
    assert report.frontiers[source] == 0
    # The driver has result of more than is here: files are gone. The neighbours go on.
    tasks = {**cycle.assignments, source: replace(cycle.assignments[source], frontier=BatchId(5))}
    report = node.reconcile(replace(cycle, assignments=tasks), 0, [])
    assert report.answers == [Missing(source, BatchId(5))]
    assert set(report.frontiers) == set(here) - {source}
    tasks = {p: replace(task, node=NODES[1]) for p, task in cycle.assignments.items() if p != here[1]}
    report = node.reconcile(replace(cycle, assignments=tasks), 0, [])
    assert node.host.partitions == ()
    node.reconcile(replace(cycle, epoch=Epoch(2)), 0, [])
    report = node.reconcile(cycle, 0, [])
    assert report.answers == [Refused(p, Epoch(1), Epoch(2)) for p in here]
    fresh = driver.node(NODES[0]).reconcile(cycle, 0, [])
    assert fresh.answers == report.answers, "a new worker reads it off the files"
