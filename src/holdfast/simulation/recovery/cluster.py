"""A cluster in one process, on a clock of its own, where everything goes wrong at any point. Runs anywhere.

It is a backend of the coordinator like any other: the same nodes, hosts and cycles as on Spark. Between any two levels
of any two nodes, nodes can die (alone, in groups), freeze, thaw and go on writing, come back under their name; blocks
and reports get lost, are copied, come late; tasks run twice or after their cycle was given up; files vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.recovery.events import Event, NodesArrived, NodesLost, NodesSilent
from holdfast.runtime.backend import Broken
from holdfast.runtime.blocks import Block
from holdfast.runtime.io.sources import SourceLog
from holdfast.runtime.messages import Cycle, NodeReport
from holdfast.runtime.program import Program
from holdfast.runtime.worker.worker import SMALL_SNAPSHOT, Node
from holdfast.simulation.recovery.faults import Fault, Mischief
from holdfast.simulation.recovery.stores import Complain, FragileStore, SlowVault

Tell = Callable[[str], None]


class FakeClock:
    """Time that moves when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class _NodeClock:
    """The time as a node sees it: on a slow one every look takes a second."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._drift = 0.0
        self.slow = False

    def __call__(self) -> float:
        if self.slow:
            self._drift += 1.0
        return self._clock.now + self._drift


@dataclass(slots=True)
class Member:
    """A node of the cluster: its files, and the worker that uses them."""

    name: NodeId
    capacity: float
    store: FragileStore
    clock: _NodeClock
    worker: Node


@dataclass(slots=True)
class _Task:
    """A level of a cycle that has not been run when it should have been."""

    member: Member
    cycle: Cycle
    level: int
    blocks: list[Block]


@dataclass(slots=True)
class _Frozen:
    member: Member
    tasks: list[_Task] = field(default_factory=list)
    thaws_at: float = 0.0


class SimulatedCluster:
    """See the module, and the coordinator's Backend."""

    def __init__(
        self,
        program: Program,
        logs: Mapping[OperatorId, SourceLog],
        snapshot_store: SlowVault,
        mischief: Mischief,
        clock: FakeClock,
        tell: Tell,
        touch: Callable[[str], None],
        complain: Complain,
    ) -> None:
        self._program, self._logs, self._snapshot_store = program, logs, snapshot_store
        self._mischief, self._draw, self.clock = mischief, mischief.draw, clock
        self._tell, self._touch, self._complain = tell, touch, complain
        self.small_snapshot = SMALL_SNAPSHOT
        self.members: dict[NodeId, Member] = {}
        self.clean = True
        """Whether nothing has gone wrong in the last cycle."""
        self._due: list[tuple[float, Event]] = []
        """What the driver will hear of, and when."""
        self._coming: list[tuple[float, NodeId, float]] = []
        self._frozen: dict[NodeId, _Frozen] = {}
        self._silent: list[_Frozen] = []
        """Frozen nodes that are taken for lost."""
        self._late: list[_Task] = []
        """Tasks of broken cycles that are still to run."""
        self._old_blocks: list[Block] = []
        self._count = 0

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def new_name(self, prefix: str) -> NodeId:
        """Name a node as none was named before."""
        self._count += 1
        return NodeId(f"{prefix}{self._count}")

    def new_store(self) -> FragileStore:
        """Return the files of a new node."""
        return FragileStore(self._complain)

    def join(self, stores: Mapping[NodeId, FragileStore], capacity: float) -> None:
        """Let nodes be there, with what is in their stores; the driver hears of all at once."""
        for name, store in stores.items():
            self.members[name] = self._member(name, capacity, store)
        self._due.append((self.clock.now, NodesArrived(dict.fromkeys(stores, capacity))))

    def await_node(self, after: float) -> None:
        """Let a node come after some time."""
        self._coming.append((self.clock.now + after, self.new_name("a"), self.capacity))

    def recycle(self) -> None:
        """Let every worker be new."""
        for member in self.members.values():
            member.worker = self._worker(member.name, member.store, member.clock)

    def _member(self, name: NodeId, capacity: float, store: FragileStore) -> Member:
        clock = _NodeClock(self.clock)
        return Member(name, capacity, store, clock, self._worker(name, store, clock))

    def _worker(self, name: NodeId, store: FragileStore, clock: _NodeClock) -> Node:
        return Node(
            self._program,
            store,
            self._snapshot_store,
            self._logs,
            name=name,
            clock=clock,
            cpu_clock=_no_cpu,
            small_snapshot=self.small_snapshot,
        )

    def kill(self, names: Sequence[NodeId]) -> None:
        """Let nodes die with all their files."""
        for name in names:
            del self.members[name]
            self._frozen.pop(name, None)
        self._tell(f"killed: {', '.join(names)}")
        self._due.append((self.clock.now + self._draw.choice((0.0, 0.0, 5.0, 20.0)), NodesLost(tuple(names))))

    def _freeze(self, name: NodeId) -> None:
        self._tell(f"frozen: {name}")
        self._frozen[name] = _Frozen(self.members[name])
        self._due.append((self.clock.now + self._draw.uniform(2, 20), NodesSilent((name,))))

    def on_the_way(self) -> bool:
        """Whether nodes are still to come, or to be found silent."""
        return bool(self._coming or self._due or self._frozen)

    # -- the coordinator's backend ------------------------------------------------------------------------------------

    def events(self) -> Sequence[Event]:
        """See Backend."""
        now = self.clock.now
        for _, name, capacity in [one for one in self._coming if one[0] <= now]:
            self.join({name: self.new_store()}, capacity)
            self._tell(f"arrived: {name}")
            if self._mischief.strikes(Fault.ARRIVAL_KILLED):
                self.kill([name])
        self._coming = [one for one in self._coming if one[0] > now]
        self._thaw()
        found = [event for at, event in self._due if at <= now]
        self._due = [one for one in self._due if one[0] > now]
        for event in found:
            if isinstance(event, NodesSilent):
                self._silence(event.nodes[0])
        return found

    def request_nodes(self, count: int) -> str | None:
        """See Backend: they come one by one, two to six minutes later."""
        self._touch("asking for nodes")
        if self._mischief.strikes(Fault.REQUEST_REFUSED):
            return "no machines left"
        for _ in range(count):
            self.await_node(self._draw.uniform(120, 360))
        return None

    capacity = 1.0
    """Of nodes that are asked for."""

    def wait(self, seconds: float) -> None:
        """See Backend."""
        self.clock.now += max(seconds, 1.0)

    def run(self, cycle: Cycle) -> Sequence[NodeReport] | Broken:
        """See Backend: levels follow each other until nothing moves between nodes."""
        self._touch("beginning a cycle")
        self.clean = True
        self.clock.now += self._draw.uniform(5, 25)
        before = sum(self._mischief.injected.values())
        reports: list[NodeReport] = []
        broken = self._levels(cycle, reports)
        self._touch("ending a cycle")
        if broken is None and self._mischief.strikes(Fault.CYCLE_BROKEN):
            broken = "the job was cancelled after its last stage"
        if broken is not None or sum(self._mischief.injected.values()) != before:
            self.clean = False
        return reports if broken is None else Broken(broken)

    # -- a cycle -------------------------------------------------------------------------------------------------------

    def _levels(self, cycle: Cycle, reports: list[NodeReport]) -> str | None:
        waiting: dict[NodeId, list[Block]] = {}
        sent: set[object] = set()
        busy = sorted({task.node for task in cycle.tasks.values()})
        level = 0
        broken: str | None = None
        while busy and broken is None:
            coming: dict[NodeId, list[Block]] = {}
            for name in busy:
                self._faults()
                blocks = self._disturb(cycle, name, waiting.get(name, []))
                report = self._task(cycle, level, name, blocks)
                if report is None:
                    broken = f"{name} does not answer"
                    if self._draw.random() < 0.5:
                        break  # the others may have done the level, or not
                    continue
                self._stands_where_known(cycle, report)
                if self._mischief.strikes(Fault.REPORT_LOST):
                    if self._draw.random() < 0.5:
                        continue
                else:
                    reports.append(report)
                for block in report.blocks:
                    task = cycle.tasks.get(block.header.receiver)
                    if task is not None and block.header.sequence not in sent:
                        sent.add(block.header.sequence)
                        if self._mischief.strikes(Fault.BLOCK_DROPPED):
                            continue
                        coming.setdefault(task.node, []).append(block)
            if self._mischief.strikes(Fault.CYCLE_BROKEN):
                broken = "the job was cancelled"
            waiting, level, busy = coming, level + 1, sorted(coming)
        if broken is not None:
            self._leave_behind(cycle, level, busy, waiting)
        return broken

    def _stands_where_known(self, cycle: Cycle, report: NodeReport) -> None:
        """A node has what the driver was told of, or says that it is missing."""
        for p, frontier in report.frontiers.items():
            if frontier < cycle.tasks[p].frontier:
                known = cycle.tasks[p].frontier
                self._complain(f"{p} goes on from batch {frontier} on {report.node}, and the driver knows of {known}")

    def _leave_behind(
        self, cycle: Cycle, level: int, busy: Sequence[NodeId], waiting: Mapping[NodeId, list[Block]]
    ) -> None:
        """Tasks of a cycle that was given up may still run."""
        for name in busy:
            if name in self.members and self._mischief.would(Fault.STRAGGLER):
                self._late.append(_Task(self.members[name], cycle, level, waiting.get(name, [])))

    def _task(self, cycle: Cycle, level: int, name: NodeId, blocks: list[Block]) -> NodeReport | None:
        """Run one level on one node; None: the node does not answer."""
        member = self.members.get(name)
        if member is None:
            return None
        if name in self._frozen:
            self._frozen[name].tasks.append(_Task(member, cycle, level, blocks))
            return None
        self._run_late()
        if self._mischief.strikes(Fault.WORKER_RECYCLED):
            member.worker = self._worker(name, member.store, member.clock)
        member.clock.slow = self._mischief.strikes(Fault.NODE_SLOW)
        report = member.worker.level(cycle, level, blocks)
        if self._mischief.strikes(Fault.LEVEL_REPEATED):
            other = member.worker
            if self._draw.random() < 0.5:
                other = self._worker(name, member.store, member.clock)
            again = other.level(cycle, level, self._shuffled(blocks))
            if self._draw.random() < 0.5:
                report = again
        return report

    def _disturb(self, cycle: Cycle, name: NodeId, blocks: list[Block]) -> list[Block]:
        """Copy blocks, mix them up, add some of earlier cycles."""
        found = list(blocks)
        if found and self._mischief.strikes(Fault.BLOCK_DUPLICATED):
            found.append(self._draw.choice(found))
        if self._old_blocks and self._mischief.would(Fault.OLD_BLOCKS):
            here = [
                block
                for block in self._old_blocks
                if (task := cycle.tasks.get(block.header.receiver)) is not None and task.node == name
            ]
            if here:
                self._mischief.injected[Fault.OLD_BLOCKS] += 1
                found = here + found
        if len(found) > 1 and self._mischief.strikes(Fault.BLOCKS_REORDERED):
            found = self._shuffled(found)
        if self._draw.random() < 0.2:
            self._old_blocks = (self._old_blocks + blocks)[-24:]
        return found

    def _shuffled(self, blocks: Sequence[Block]) -> list[Block]:
        found = list(blocks)
        self._draw.shuffle(found)
        return found

    # -- what goes wrong -----------------------------------------------------------------------------------------------

    def _faults(self) -> None:
        """Let things go wrong at this point."""
        mischief, draw = self._mischief, self._draw
        if not mischief.active:
            return
        names = list(self.members)
        if not names:
            return
        if mischief.strikes(Fault.NODE_KILLED):
            self.kill([draw.choice(names)])
        elif len(names) > 1 and mischief.strikes(Fault.GROUP_KILLED):
            self.kill(draw.sample(names, draw.randint(2, len(names))))
        elif mischief.would(Fault.NODE_FROZEN):
            name = draw.choice(names)
            if name not in self._frozen:
                mischief.injected[Fault.NODE_FROZEN] += 1
                self._freeze(name)
        for fault, lose in (
            (Fault.STATE_MISSING, FragileStore.lose_state),
            (Fault.OUTBOX_MISSING, FragileStore.lose_outbox),
            (Fault.PARTITION_MISSING, _drop),
        ):
            if mischief.would(fault) and self.members:
                member = self.members[draw.choice(list(self.members))]
                victims = member.store.partitions
                if victims:
                    victim = draw.choice(victims)
                    if lose(member.store, victim):
                        self._tell(f"{fault}: {victim} on {member.name}")
                        mischief.injected[fault] += 1

    def _silence(self, name: NodeId) -> None:
        """A frozen node is taken for lost; it may thaw."""
        frozen = self._frozen.pop(name, None)
        member = self.members.get(name)
        if frozen is not None and member is frozen.member:
            del self.members[name]
            frozen.thaws_at = self.clock.now + self._draw.uniform(0, 240)
            self._silent.append(frozen)

    def _thaw(self) -> None:
        """Let frozen nodes go on: with what they were asked to do long ago, and perhaps as nodes again."""
        for frozen in [one for one in self._silent if one.thaws_at <= self.clock.now]:
            self._silent.remove(frozen)
            member = frozen.member
            if self._mischief.would(Fault.NODE_CAME_BACK) and member.name not in self.members:
                self._mischief.injected[Fault.NODE_CAME_BACK] += 1
                self._tell(f"came back: {member.name}")
                if self._draw.random() < 0.5:
                    member.worker = self._worker(member.name, member.store, member.clock)
                self.members[member.name] = member
                self._due.append((self.clock.now, NodesArrived({member.name: member.capacity})))
                self._late += frozen.tasks
                continue
            for task in frozen.tasks:
                if self._mischief.strikes(Fault.ZOMBIE_WROTE):
                    self._run_over(member.worker, task)

    def _run_late(self) -> None:
        """Run tasks of cycles that are over."""
        for task in list(self._late):
            if self._draw.random() < 0.3:
                self._late.remove(task)
                if self.members.get(task.member.name) is not task.member or task.member.name in self._frozen:
                    continue
                self._mischief.injected[Fault.STRAGGLER] += 1
                self._tell(f"late: level {task.level} of cycle {task.cycle.number} on {task.member.name}")
                worker = task.member.worker
                if self._draw.random() < 0.5:
                    worker = self._worker(task.member.name, task.member.store, task.member.clock)
                self._run_over(worker, task)

    def _run_over(self, worker: Node, task: _Task) -> None:
        """Run a task of a cycle that is over."""
        before, self._snapshot_store.over = self._snapshot_store.over, True
        try:
            worker.level(task.cycle, task.level, task.blocks)
        finally:
            self._snapshot_store.over = before


def _drop(store: FragileStore, partition: PartitionId) -> bool:
    store.drop(partition)
    return True


def _no_cpu() -> float:
    return 0.0
