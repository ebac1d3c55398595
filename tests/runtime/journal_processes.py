"""Processes over one journal on a simulated disk: what they do, where they die, and what must be there afterwards.

Each property here raises AssertionError where it does not hold, so that planted bugs can be shown to be found.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.ids import BatchId, Epoch, OperatorId, PartitionId
from holdfast.runtime.blocks import Block, Edge, Header
from holdfast.runtime.state.journal_store import JournalStore, Superseded
from holdfast.runtime.state.store import FRESH, Addition, MemoryStore, VersionStore
from holdfast.runtime.state.versions import Commit, Pointer, SegmentRef, VersionId
from holdfast_lab.simulation.recovery.faults import Fault, Mischief
from holdfast_lab.simulation.recovery.files import Disk, ProcessDied
from holdfast_lab.simulation.recovery.state_disk import SimulatedStateFiles

PARTITIONS = [PartitionId.parse("O3[0]"), PartitionId.parse("O3[1]")]
RECEIVER = PartitionId.parse("O5[0]")
FOLDER = Path("/node")
View = dict[PartitionId, Any]


@dataclass
class Script(Mischief):
    """Faults at calls that are counted: at one of them the process dies; from one on the disk is full for a while."""

    draw: random.Random = field(default_factory=lambda: random.Random(1))
    rates: dict[Fault, float] = field(default_factory=dict)
    active: bool = True
    injected: Counter[Fault] = field(default_factory=Counter)
    calls: int = 0
    dies_at: int | None = None
    full: range = range(0)
    at_call: Callable[[int], None] | None = None

    def strikes(self, fault: Fault) -> bool:
        if fault is not Fault.TASK_KILLED:
            return False
        self.calls += 1
        if self.at_call is not None:
            self.at_call(self.calls)
        return self.calls == self.dies_at

    @property
    def is_full(self) -> bool:
        return self.calls in self.full


class ScriptedDisk(Disk):
    def __init__(self, script: Script) -> None:
        super().__init__(script, lambda: 0.0)
        self.script = script

    def is_full(self) -> bool:
        return self.script.is_full


class Process:
    """One operator process with its store."""

    def __init__(self, disk: ScriptedDisk, file_bytes: int) -> None:
        self.files = SimulatedStateFiles(disk)
        self.store = JournalStore(FOLDER, files=self.files, file_bytes=file_bytes, cache_bytes=0)


@dataclass(frozen=True)
class Step:
    """Something to do with a partition; what exactly depends on where the partition stands."""

    kind: str
    partition: PartitionId
    number: int


def draw_steps(seed: int, count: int) -> list[Step]:
    draw = random.Random(seed)
    kinds = ["commit"] * 8 + ["forget"] * 3 + ["back", "begin", "drop"]
    return [Step(draw.choice(kinds), draw.choice(PARTITIONS), number) for number in range(count)]


def do(store: VersionStore, step: Step) -> None:
    """One call that changes something, at most; the same call on every store that holds the same."""
    p, chain = step.partition, store.chain(step.partition)
    if chain is None:
        store.point(p, Pointer(Epoch(1), None))
        return
    epoch, last = chain.pointer.epoch, chain.last
    if step.kind == "begin":
        store.begin(p, Epoch(epoch + 1))
    elif step.kind == "drop":
        store.drop(p)
    elif step.kind == "back" and len(chain.commits) > 1:
        store.point(p, Pointer(Epoch(epoch + 1), chain.commits[sorted(chain.commits)[-2]].id))
    elif step.kind == "forget" and last is not None:
        store.forget(p, {last.id}, BatchId(last.id.batch - step.number % 3))
    else:
        version = VersionId(BatchId(chain.frontier + 1), epoch)
        rows = pa.table({"n": list(range(step.number, 2 * step.number + 1))})
        before = () if last is None else last.segments["t"][-2:]
        commit = Commit(
            p, version, None if last is None else last.id, step.number, {"t": (*before, SegmentRef(FRESH, 0))}
        )
        header = Header(
            Edge(OperatorId("O3"), OperatorId("O5")), p, RECEIVER, version.batch, version.epoch, step.number
        )
        blocks = [Block(header, rows)] if step.number % 4 else []
        store.commit(commit, Addition({"t": [rows]}, blocks))


def view(store: VersionStore) -> View:
    """All that a store says, without the names it gives to data."""
    found: View = {}
    for p in PARTITIONS:
        chain = store.chain(p)
        found[p] = chain and (chain.pointer, {b: contents(store, one) for b, one in sorted(chain.commits.items())})
    return found


def contents(store: VersionStore, commit: Commit) -> Any:
    """A version's state and output, without the names of its data."""
    state, sent = store.load(commit), store.sent(commit)
    return (
        commit.id,
        commit.parent,
        commit.watermark,
        state and {name: [one["n"].to_pylist() for one in segments] for name, segments in state.items()},
        sent if sent is None else {to: [one.rows["n"].to_pylist() for one in blocks] for to, blocks in sent.items()},
    )


def expected(steps: list[Step]) -> list[View]:
    """What there is before the first step, and after each."""
    store, found = MemoryStore(), []
    found.append(view(store))
    for step in steps:
        do(store, step)
        found.append(view(store))
    return found


def run_until_it_dies(process: Process, steps: list[Step]) -> int:
    """Return how many steps ended."""
    for ended, step in enumerate(steps):
        try:
            do(process.store, step)
        except (ProcessDied, Superseded):
            return ended
    return len(steps)


def count_calls(steps: list[Step], file_bytes: int) -> int:
    script = Script()
    process = Process(ScriptedDisk(script), file_bytes)
    run_until_it_dies(process, steps)
    return script.calls


def dies_and_goes_on(steps: list[Step], file_bytes: int, dies_at: int) -> None:
    """A process dies at a call; the next one has all that ended, at most what was under way too, and goes on."""
    views, script = expected(steps), Script(dies_at=dies_at)
    disk, ended = ScriptedDisk(script), 0
    with suppress(ProcessDied):  # it may die while it starts
        ended = run_until_it_dies(Process(disk, file_bytes), steps)
    script.dies_at = None
    after = Process(disk, file_bytes)
    seen = view(after.store)
    assert seen in views[ended : ended + 2], f"died at call {dies_at}, after {ended} steps"
    reached = ended if seen == views[ended] else ended + 1
    for step in steps[reached:]:
        do(after.store, step)
    assert view(after.store) == views[-1]
    assert view(Process(disk, file_bytes).store) == views[-1]


def twin_goes_on(steps: list[Step], file_bytes: int, takes_over_at: int) -> None:
    """A process starts between two calls of one that lives: it has all that the other completes, even afterwards."""
    views, script = expected(steps), Script()
    disk = ScriptedDisk(script)
    second: list[tuple[Process, View]] = []

    def take_over(call: int) -> None:
        if call == takes_over_at:
            process = Process(disk, file_bytes)
            second.append((process, view(process.store)))

    first = Process(disk, file_bytes)
    script.at_call = take_over
    ended = run_until_it_dies(first, steps)
    if not second:
        return
    successor, seen = second[0]
    assert seen in views[ended : ended + 2], f"taken over at call {takes_over_at}, and {ended} steps were completed"
    _successor_alone_counts(disk, first, successor, file_bytes)


def twin_works_during_start(steps: list[Step], file_bytes: int, at: int) -> None:
    """A process goes on between any two calls of one that starts: what it completes, the other has."""
    views, script = expected(steps), Script()
    disk = ScriptedDisk(script)
    first, middle = Process(disk, file_bytes), len(steps) // 2
    ended = run_until_it_dies(first, steps[:middle])
    begun = script.calls

    def go_on(call: int) -> None:
        nonlocal ended
        if call == begun + at:
            ended += run_until_it_dies(first, steps[middle:])

    script.at_call = go_on
    successor = Process(disk, file_bytes)
    script.at_call = None
    assert view(successor.store) in views[ended : ended + 2], f"at call {at} of its start; {ended} steps were completed"
    _successor_alone_counts(disk, first, successor, file_bytes)


def _successor_alone_counts(disk: ScriptedDisk, first: Process, successor: Process, file_bytes: int) -> None:
    """What the successor writes counts, and nothing that the first one still writes does."""
    do(successor.store, Step("commit", PARTITIONS[0], 7))
    seen = view(successor.store)
    late = [Step("commit", PARTITIONS[1], 11), Step("commit", PARTITIONS[0], 13)] * 4
    for step in late:
        try:
            do(first.store, step)
            raise AssertionError("a process went on after another one had taken over")
        except Superseded:
            continue
    assert view(successor.store) == seen
    assert view(Process(disk, file_bytes).store) == seen


def disk_is_full(steps: list[Step], file_bytes: int, full: range, *, then_dies: bool) -> None:
    """A step that finds no room has not happened; after a restart, all that is needed of the others is there."""
    script = Script(full=full)
    disk, model = ScriptedDisk(script), MemoryStore()
    process = Process(disk, file_bytes)
    for step in steps:
        try:
            do(process.store, step)
        except OSError:
            continue
        do(model, step)
    assert view(process.store) == view(model)
    if not then_dies:
        script.full = range(0)
        do(process.store, Step("commit", PARTITIONS[0], 5))
        do(model, Step("commit", PARTITIONS[0], 5))
        assert view(Process(disk, file_bytes).store) == view(model)
        return
    script.full = range(0)
    anew = Process(disk, file_bytes).store
    for p in PARTITIONS:
        needed, found = model.chain(p), anew.chain(p)
        if needed is None or needed.last is None:
            continue
        # What was forgotten or dropped may be there again, with or without its data; what was completed is there.
        assert found is not None
        if found.pointer.epoch == needed.pointer.epoch:
            assert found.frontier == needed.frontier
            assert found.last is not None
            assert contents(anew, found.last) == contents(model, needed.last)
