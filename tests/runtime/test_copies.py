"""Second copies of partitions under workers that stay, without Spark: the same rows, and no rollback at a loss."""

from __future__ import annotations

import time

import pytest

from holdfast.errors import BadInput
from holdfast.examples import EXAMPLES
from holdfast.ids import NodeId
from holdfast.recovery.events import NodesLeaving
from holdfast.recovery.strategy import RecoverySettings
from holdfast.runtime import InProcess
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.progress import Progress
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import MemorySink
from holdfast.runtime.program import Program
from holdfast.runtime.state.snapshot_store import MemorySnapshotStore
from holdfast.runtime.state.store import MemoryStore
from holdfast.storage.memory import MemoryStorage
from runtime.resident_loop import ResidentLoop

COUNT, ROWS = 14, 60


class Running:
    """An example on four nodes, with copies of all its partitions that have room."""

    def __init__(
        self, name: str, processes: int = 1, *, share: float = 1.0, nodes: int = 4, capacity: float = 1e9
    ) -> None:
        self.example = EXAMPLES[name]
        self.program = Program(self.example.application())
        progress = Progress(MemoryStorage(), name)
        self.log = BatchLog(self.program.sources, self.program.name, claim=progress.claim)
        self.backend = ResidentLoop(
            self.program, self.log, MemorySnapshotStore(), lambda node: MemoryStore(), processes=processes
        )
        self.backend.add_nodes({NodeId(f"n{number}"): capacity for number in range(nodes)})
        self.sinks = {p.operator: MemorySink() for p in self.program.outputs}
        self.seen: list[Observation] = []
        partitions = self.program.partitions
        self.coordinator = Coordinator(
            self.program,
            self.backend,
            self.log,
            self.sinks,
            lambda operator, feed: MemorySink(),
            progress,
            recovery=RecoverySettings(replicas=tuple(partitions[: int(share * len(partitions))]), move_above=0.75),
            pace=CycleSettings(checkpoint_batches=4),
            now=time.time,
            emit=self.seen.append,
        )

    def feed(self, batch: object, *, last: bool = False) -> None:
        self.log.append(batch, last=last)  # type: ignore[arg-type]
        self.settle()

    def settle(self) -> None:
        """Run until everything is out and copies have got what they can."""
        self.coordinator.run()
        for _ in range(12):
            self.coordinator.step()

    def kinds(self, kind: str) -> list[Observation]:
        return [one for one in self.seen if one.kind == kind]

    def rows(self) -> dict[str, list[str]]:
        return {str(name): sorted(map(str, sink.rows().to_pylist())) for name, sink in self.sinks.items()}


def expected(name: str) -> dict[str, list[str]]:
    example = EXAMPLES[name]
    running = InProcess(example.application(), nodes=3)
    for batch in example.batches(3, COUNT, ROWS):
        running.feed(batch)
    running.close()
    names = {str(p.operator) for p in running.program.outputs}
    return {name: sorted(map(str, running.rows(name).to_pylist())) for name in names}


@pytest.mark.parametrize(("name", "processes"), [("hashtags", 1), ("incidents", 2)])
def test_a_lost_node_is_taken_over_without_a_rollback_or_a_restore(name: str, processes: int) -> None:
    running = Running(name, processes)
    batches = list(running.example.batches(3, COUNT, ROWS))
    for number, batch in enumerate(batches):
        running.feed(batch)
        if number in (2, 6, 10):
            state = running.coordinator.state
            assert len(state.copies.at) == len(running.program.partitions)
            node = state.placement[running.program.partitions[number % len(running.program.partitions)]]
            restored = len(running.kinds("restored"))
            running.backend.lose_nodes(node)
            running.settle()
            assert not state.lost
            assert len(running.kinds("restored")) == restored, "a copy has the state already"
            running.backend.add_nodes({NodeId(f"m{number}"): 1e9})
    running.feed({}, last=True)
    assert len(running.kinds("promoted")) >= 3
    assert running.coordinator.rollbacks == 0
    assert running.rows() == expected(name)


def test_losses_of_copies_of_primaries_and_of_both_give_the_same_rows() -> None:
    running = Running("hashtags", share=0.6)
    for number, batch in enumerate(running.example.batches(3, COUNT, ROWS)):
        running.log.append(batch)
        running.coordinator.step()
        state = running.coordinator.state
        if number % 3 == 2 and len(state.nodes) > 2:
            copies = sorted(state.copies.placement.values())
            gone = {copies[0]} if copies else set()
            if number % 2:
                gone.add(sorted(state.placement.values())[-1])
            running.backend.lose_nodes(*sorted(gone))
            running.backend.add_nodes({NodeId(f"m{number}"): 1e9, NodeId(f"k{number}"): 1e9})
    running.feed({}, last=True)
    assert running.rows() == expected("hashtags")
    assert running.kinds("promoted")
    assert running.kinds("replica-dropped")


def test_a_leaving_node_is_evacuated_and_released_without_a_rollback() -> None:
    running = Running("hashtags", share=0.0)
    batches = list(running.example.batches(3, COUNT, ROWS))
    for batch in batches[:5]:
        running.feed(batch)
    state = running.coordinator.state
    leaving = sorted(state.placement.values())[0]
    running.coordinator.handle(NodesLeaving((leaving,)))
    for batch in batches[5:]:
        running.feed(batch)
    assert leaving not in state.placement.values()
    assert running.backend.released == [leaving]
    assert {one.fields["why"] for one in running.kinds("promoted")} == {"moved"}
    running.backend.lose_nodes(leaving)
    running.feed({}, last=True)
    assert running.coordinator.rollbacks == 0
    assert not state.lost
    assert running.rows() == expected("hashtags")


def test_a_node_that_arrives_when_nothing_is_lost_gets_work_without_a_rollback() -> None:
    cost = float(Program(EXAMPLES["hashtags"].application()).topology.cost.sum())
    running = Running("hashtags", share=0.0, nodes=2, capacity=cost / 1.4)  # the bound is 0.8: nearly full
    batches = list(running.example.batches(3, COUNT, ROWS))
    for batch in batches[:5]:
        running.feed(batch)
    running.backend.add_nodes({NodeId("m0"): cost / 1.4})
    for batch in batches[5:]:
        running.feed(batch)
        running.coordinator.checkpoint()  # load is looked at when a checkpoint is complete, and moves begin with one
    state = running.coordinator.state
    assert {one.fields["why"] for one in running.kinds("promoted")} == {"moved for load"}
    assert NodeId("m0") in state.placement.values()
    running.feed({}, last=True)
    assert running.coordinator.rollbacks == 0
    assert running.rows() == expected("hashtags")


def test_cycles_through_the_shuffle_refuse_replicas() -> None:
    running = Running("hashtags")
    running.backend.takes_updates = False
    with pytest.raises(BadInput, match="replicas need tasks that stay"):
        Coordinator(
            running.program,
            running.backend,
            running.log,
            running.sinks,
            lambda operator, feed: MemorySink(),
            Progress(MemoryStorage(), "hashtags"),
            recovery=RecoverySettings(replicas=running.program.partitions[:1]),
        )
