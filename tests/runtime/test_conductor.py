"""The driver's loop in one process: what it does when the store says no, when nodes are short, when a sink fails."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from holdfast.errors import CheckFailed
from holdfast.examples.registry import EXAMPLES
from holdfast.ids import NodeId
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import run_in_process
from holdfast.runtime.answers import OperatorFailed
from holdfast.runtime.conductor import Conductor, Observation, Pace
from holdfast.runtime.loop_backend import LoopBackend
from holdfast.runtime.program import Program
from holdfast.runtime.progress import MemoryProgress
from holdfast.runtime.sinks import MemorySink, OutputKey, Sink
from holdfast.runtime.sources import MemoryLog, log_batch
from holdfast.runtime.stores import MemoryStore
from holdfast.runtime.vault import Answered, MemoryVault, SaveAnswer

EXAMPLE = EXAMPLES["traffic"]
GIVEN = list(EXAMPLE.batches(1, 16, 60))


class StubbornVault(MemoryVault):
    """Saves nothing while it has too few peers."""

    short = True

    def saved(self, name: str) -> SaveAnswer | None:
        return Answered("1 peer answers, 2 are needed") if self.short else super().saved(name)


@dataclass
class Bench:
    """One run in one process, with everything that it said."""

    vault: MemoryVault = field(default_factory=MemoryVault)
    recovery: RecoverySettings = field(default_factory=RecoverySettings)
    capacity: float = 100.0
    sink: Mapping[str, Sink] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.program = Program(EXAMPLE.application())
        self.logs = {name: MemoryLog(source, self.program.name) for name, source in self.program.sources.items()}
        self.sinks: dict[str, Sink] = {p.operator: MemorySink() for p in self.program.outputs} | dict(self.sink)
        self.told: list[str] = []
        self.seen: list[Observation] = []
        self.backend = LoopBackend(self.program, self.logs, self.vault, lambda node: MemoryStore())
        self.backend.add_nodes({NodeId(f"n{number}"): self.capacity for number in range(4)})
        self.conductor = Conductor(
            self.program,
            self.backend,
            self.logs,
            self.sinks,  # type: ignore[arg-type]
            lambda operator, feed: MemorySink(),
            MemoryProgress(),
            recovery=self.recovery,
            pace=Pace(checkpoint_batches=3, wait_seconds=0.5),
            tell=self.told.append,
            observe=self.seen.append,
        )

    def feed(self, batches: list[Mapping[str, pa.Table]]) -> None:
        for batch in batches:
            log_batch(self.program, self.logs, batch)
            self.conductor.run()

    def check(self) -> None:
        expected = run_in_process(EXAMPLE.application(), GIVEN, close=False)
        for name, sink in self.sinks.items():
            assert isinstance(sink, MemorySink)
            found = sink.rows()
            rows = [] if found is None else found.to_pylist()
            assert sorted(map(str, rows)) == sorted(map(str, expected.rows(name).to_pylist()))


def test_too_few_peers_hold_up_checkpoints_and_not_the_stream() -> None:
    vault = StubbornVault()
    bench = Bench(vault)
    bench.feed(GIVEN[:10])
    assert bench.conductor.frontier == 9, "the stream goes on"
    assert bench.conductor.machine.book.global_batch == -1
    assert any("1 peer answers, 2 are needed" in line and "O3[0]" in line for line in bench.told), bench.told
    assert all(log.blocks(0, 1) for log in bench.logs.values()), "and its logs are kept"  # type: ignore[arg-type]
    vault.short = False
    bench.feed(GIVEN[10:])
    assert bench.conductor.machine.book.global_batch > 0
    bench.check()


def test_what_no_node_has_room_for_waits_and_says_so() -> None:
    total = float(Program(EXAMPLE.application()).topology.cost.sum())
    bench = Bench(capacity=total / 4 / 0.8 * 1.3)
    bench.feed(GIVEN[:8])
    bench.backend.lose_nodes(NodeId("n0"), NodeId("n1"))
    log_batch(bench.program, bench.logs, GIVEN[8])
    with pytest.raises(CheckFailed, match="found no node"):
        bench.conductor.run()
    assert [one.fields["count"] for one in bench.seen if one.kind == "requested"] == [2]
    alive = {p for p in bench.program.outputs if bench.conductor.machine.available(p)}
    assert alive, "queries that fit the nodes left go on"
    assert all(bench.conductor.machine.published[p] == 8 for p in alive)
    bench.backend.add_nodes({NodeId("n5"): bench.capacity, NodeId("n6"): bench.capacity})
    bench.feed(GIVEN[9:])
    bench.conductor.checkpoint()
    assert not bench.conductor.machine.recovering
    assert [one for one in bench.seen if one.kind == "recovery-ended"]
    plans = [one for one in bench.seen if one.kind == "planned"]
    assert all(one.fields["problems"] == [] for one in plans)
    bench.check()


class Brittle(MemorySink):
    """Fails once, half-way through a batch's partitions."""

    broken = True

    def publish(self, key: OutputKey, rows: pa.Table, epoch: int) -> None:  # type: ignore[override]
        if self.broken and key.batch == 5 and key.query.index == 1:
            raise ConnectionError("the database is away")
        super().publish(key, rows, epoch)  # type: ignore[arg-type]


def test_a_sink_that_fails_half_way_is_named_and_loses_nothing() -> None:
    sink = Brittle()
    bench = Bench(sink={"O3": sink})
    with pytest.raises(OperatorFailed, match="the database is away") as caught:
        bench.feed(GIVEN)
    assert "operator O3" in str(caught.value)
    assert "partition O3[1], batch 5" in str(caught.value)
    sink.broken = False
    bench.conductor.run()
    bench.feed(GIVEN[bench.conductor.logged + 1 :])
    bench.check()
