"""Cycles of two nodes and a driver that has only its log: lost cycles, repeated ones, late blocks change nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast import Application, count, sliding, total, tumbling
from holdfast.ids import BatchId, Epoch, NodeId, OperatorId, PartitionId
from holdfast.runtime import run_in_process
from holdfast.runtime.answers import Done, Misplaced, Missing, Order, Ready
from holdfast.runtime.blocks import LATE, SINK, Block, decode_blocks, encode_blocks
from holdfast.runtime.cycle import Acknowledgement, Instructions, Report, run_cycle
from holdfast.runtime.directory_store import DirectoryStore
from holdfast.runtime.host import PartitionHost
from holdfast.runtime.program import Program
from holdfast.runtime.sources import MemoryLog
from holdfast.runtime.versions import NO_BATCH
from runtime.generated import SCHEMA, batches, table

NODES = (NodeId("a"), NodeId("b"))
COUNT = 7


def application() -> Application:
    app = Application("cycles")
    source = app.source("s", schema=SCHEMA, event_time="at", lateness=1, parallelism=2)
    counts = source.key_by("word").window(sliding(2, every=1)).aggregate(n=count(), id="c", parallelism=3)
    counts.output()
    counts.window(tumbling(2)).aggregate(n=total("n"), id="t", parallelism=1).output()
    return app


class Driver:
    """A driver in small: a log of frontiers and published outputs, and nothing that a node could lose."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.program = Program(application())
        self.random = np.random.default_rng(seed)
        self.directory = directory
        self.log = MemoryLog(self.program.sources[OperatorId("s")], "q")
        self.frontier = dict.fromkeys(self.program.partitions, NO_BATCH)
        self.published: dict[tuple[PartitionId, BatchId], pa.Table] = {}
        self.sink_frontier = dict.fromkeys(self.program.outputs, NO_BATCH)
        self.placement = {p: NODES[number % 2] for number, p in enumerate(self.program.partitions)}
        self.on_the_way: dict[NodeId, bytes] = dict.fromkeys(NODES, b"")

    def host(self, node: NodeId) -> PartitionHost:
        """A fresh worker over the node's files: nothing is remembered between cycles."""
        store = DirectoryStore(self.directory / node, cache_bytes=0)
        return PartitionHost(self.program, store, node=node, epoch=Epoch(1), clock=lambda: 0.0)

    def instructions(self, node: NodeId) -> Instructions:
        mine = [p for p in self.program.partitions if self.placement[p] == node]
        heard = []
        for sender in mine:
            for consumer in self.program.consumers(sender):
                if consumer.operator in (SINK, LATE):
                    done = self.sink_frontier.get(sender, self.frontier[sender])
                else:
                    done = self.frontier[consumer]
                heard.append(Acknowledgement(sender, consumer, done))
        orders = [Order(p, node, self.frontier[p], Epoch(1)) for p in mine]
        return Instructions(orders, heard, most=int(self.random.integers(1, 4)))

    def cycle(self) -> None:
        """One cycle of both nodes: one may be lost with all it says, run twice, or run on two workers."""
        arriving = dict(self.on_the_way)
        for node in NODES:
            self.on_the_way[node] = b""
        for node in NODES:
            blocks = decode_blocks(arriving[node]) + self._source_blocks(node)
            self.random.shuffle(blocks)  # type: ignore[arg-type]
            told = self.instructions(node)
            report = run_cycle(self.host(node), told, blocks)
            chance = self.random.random()
            if chance < 0.2:
                continue  # the worker did its work and died before it could say so
            if chance < 0.4:
                report = run_cycle(self.host(node), told, blocks + blocks[:2])
            self._hear(report)

    def _source_blocks(self, node: NodeId) -> list[Block]:
        found = []
        for index in range(2):
            partition = PartitionId(OperatorId("s"), index)
            if self.placement[partition] == node:
                for number in range(self.frontier[partition] + 1, self.log.frontier + 1):
                    found.append(self.log.blocks(BatchId(number), Epoch(1))[index])
        return found

    def _hear(self, report: Report) -> None:
        for answer in report.answers:
            assert isinstance(answer, Ready | Done), answer
            batch = answer.frontier if isinstance(answer, Ready) else answer.batch
            self.frontier[answer.partition] = max(self.frontier[answer.partition], batch)
        outgoing: dict[NodeId, list[Block]] = {node: [] for node in NODES}
        for block in report.blocks:
            head = block.header
            if head.receiver.operator == SINK:
                key = head.sender, head.batch
                if block.rows is not None:
                    assert key not in self.published or self.published[key].equals(block.rows)
                    self.published[key] = block.rows
                self.sink_frontier[head.sender] = max(self.sink_frontier[head.sender], head.batch)
            elif head.receiver.operator != LATE:
                outgoing[self.placement[head.receiver]].append(block)
        for node, blocks in outgoing.items():
            self.on_the_way[node] += encode_blocks(blocks)


@pytest.mark.parametrize("seed", range(4))
def test_lost_repeated_and_doubled_cycles_leave_outputs_equal(seed: int, tmp_path: Path) -> None:
    made = [table(one) for one in batches(21, COUNT, 20)]
    plain = run_in_process(application(), [{"s": one} for one in made], close=False)
    driver = Driver(tmp_path, seed)
    for number, one in enumerate(made):
        driver.log.append(BatchId(number), one)
        driver.cycle()
    for _ in range(200):
        if min(driver.frontier.values()) == COUNT - 1 and min(driver.sink_frontier.values()) == COUNT - 1:
            break
        driver.cycle()
    assert set(driver.frontier.values()) == {COUNT - 1}, f"seed {seed}"
    for name in ("c", "t"):
        keys = sorted(key for key in driver.published if key[0].operator == name)
        found: list[dict[str, Any]] = []
        for partition, batch in sorted(keys, key=lambda key: (key[1], key[0])):
            found += driver.published[partition, batch].to_pylist()
        assert found == plain.rows(name).to_pylist()


def test_a_partition_that_is_not_ordered_is_released_and_others_answer(tmp_path: Path) -> None:
    driver = Driver(tmp_path, 1)
    host = driver.host(NODES[0])
    first, second = driver.program.partitions[:2]
    orders = [Order(first, NODES[0], NO_BATCH, Epoch(1)), Order(second, NODES[1], NO_BATCH, Epoch(1))]
    report = run_cycle(host, Instructions(orders), [])
    assert report.answers == (Ready(first, NO_BATCH), Misplaced(second, NODES[1], NODES[0]))
    assert host.partitions == (first,)
    driver.log.append(BatchId(0), table(batches(21, 1, 20)[0]))
    blocks = driver.log.blocks(BatchId(0), Epoch(1))
    lost = Order(second, NODES[0], BatchId(5), Epoch(1))
    report = run_cycle(host, Instructions([lost]), blocks)
    assert report.answers == (Missing(second, BatchId(5)),)
    assert host.partitions == ()
    assert report.dropped == 2
