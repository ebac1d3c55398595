"""A cluster in one process, on a clock of its own, where everything goes wrong at any point. Runs anywhere.

It is a backend of the coordinator like any other: the same workers and hosts as on Spark. Between any two levels
of any two nodes, nodes can die (alone, in groups), freeze, thaw and go on writing, come back under their name; blocks
and reports get lost, are copied, arrive late, also after the next epoch has begun; tasks run twice or after their cycle
was given up; files vanish.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from holdfast.ids import BatchId, NodeId, OperatorId, PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.events import NodesArrived, NodesLeaving, NodesLost, NodesSilent
from holdfast.runtime.blocks import Block
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.sinks import Stager
from holdfast.runtime.messages import CycleEnded, DesiredState, Failed, NodeReport, Report
from holdfast.runtime.program import Program
from holdfast.runtime.worker.blame import QUARANTINE_ROWS
from holdfast.runtime.worker.step_guard import StepGuard
from holdfast.runtime.worker.worker import SMALL_SNAPSHOT, NodeWorker
from holdfast_lab.simulation.recovery.faults import Fault, Mischief
from holdfast_lab.simulation.recovery.files import ProcessDied
from holdfast_lab.simulation.recovery.network import DRIVER, Network
from holdfast_lab.simulation.recovery.poison_rows import PoisonRows, ProcessGuard
from holdfast_lab.simulation.recovery.stores import Complain, FragileStore, NodeFiles, Snapshots

Log = Callable[[str], None]


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
    files: NodeFiles
    clock: _NodeClock
    worker: NodeWorker


@dataclass(slots=True)
class _Task:
    """A level of a cycle that has not been run when it should have been."""

    member: Member
    desired: DesiredState
    level: int
    blocks: list[Block]


@dataclass(slots=True)
class FrozenNode:
    """A node that does nothing, and does not know it."""

    member: Member
    tasks: list[_Task] = field(default_factory=list)
    thaws_at: float = 0.0


class SimulatedCluster:
    """See the module, and the coordinator's Backend."""

    takes_updates = False

    def __init__(
        self,
        program: Program,
        batch_log: BatchLog,
        snapshot_store: Snapshots,
        mischief: Mischief,
        network: Network,
        clock: FakeClock,
        log: Log,
        touch: Callable[[str], None],
        complain: Complain,
        stagers: Mapping[OperatorId, Stager] = MappingProxyType({}),
        prefix: str = "",
    ) -> None:
        """`prefix`: how the names of nodes begin that come later; no other cluster's do."""
        self._prefix = prefix
        self._stagers = stagers
        self._program, self._batch_log, self._snapshot_store = program, batch_log, snapshot_store
        self._mischief, self._draw, self.clock = mischief, mischief.draw, clock
        self._log, self._touch, self._complain, self._network = log, touch, complain, network
        self.small_snapshot = SMALL_SNAPSHOT
        self.handing_out: Callable[[DesiredState], object] = _nothing
        """Looks at every desired state before workers get it."""
        self.guard: StepGuard | None = None
        self.poison_rows: PoisonRows | None = None
        self._guards: dict[tuple[NodeId, int], ProcessGuard] = {}
        """What the supervisor of each operator process remembers, by node and place."""
        self.members: dict[NodeId, Member] = {}
        self.clean = True
        """Whether nothing has gone wrong in the last cycle."""
        self.harmed: set[tuple[NodeId, PartitionId]] = set()
        """Nodes and partitions of which files were lost."""
        self._due: list[tuple[float, NodesArrived | NodesLost | NodesSilent | NodesLeaving]] = []
        """What becomes of nodes, and when the driver is told."""
        self._reports: list[tuple[float, list[Report]]] = []
        """What workers have reported, and when it reaches the driver."""
        self._coming: list[tuple[float, NodeId, float]] = []
        self._frozen: dict[NodeId, FrozenNode] = {}
        self._cut_off: set[NodeId] = set()
        """Nodes that did not answer, and will be taken for lost unless they answer again."""
        self._silent: list[FrozenNode] = []
        """Frozen nodes that are taken for lost."""
        self._late: list[_Task] = []
        """Tasks of broken cycles that are still to run."""
        self._old_blocks: list[Block] = []
        self._count = 0

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def new_name(self, prefix: str) -> NodeId:
        """Name a node as none was named before."""
        self._count += 1
        return NodeId(f"{self._prefix}{prefix}{self._count}")

    def new_files(self) -> NodeFiles:
        """Return the files of a new node."""
        return NodeFiles(self._complain)

    def store_of(self, node: NodeId, partition: PartitionId) -> FragileStore:
        """Return where a node has the files of a partition."""
        return self.members[node].files.of()

    def join(self, nodes: Mapping[NodeId, NodeFiles], capacity: float) -> None:
        """Let nodes be there, with what is in their files; the driver sees all of them at once."""
        for name, files in nodes.items():
            self.members[name] = self._member(name, capacity, files)
        self._due.append((self.clock.now, NodesArrived(dict.fromkeys(nodes, capacity))))

    def await_node(self, after: float) -> None:
        """Let a node come after some time."""
        self._coming.append((self.clock.now + after, self.new_name("a"), self.capacity))

    def recycle(self) -> None:
        """Let every worker be new."""
        for member in self.members.values():
            member.worker = self._worker(member.name, member.files, member.clock)

    def _member(self, name: NodeId, capacity: float, files: NodeFiles) -> Member:
        clock = _NodeClock(self.clock)
        self._snapshot_store.node_joins(name)
        return Member(name, capacity, files, clock, self._worker(name, files, clock))

    def _worker(
        self, node: NodeId, files: NodeFiles, clock: _NodeClock, process: int = 0, name: NodeId | None = None
    ) -> NodeWorker:
        """Return a new worker of a node, or of one of its processes, which has a name of its own."""
        return NodeWorker(
            self._program,
            files.of(process),
            self._snapshot_store.store(node),
            self._batch_log,
            name=name or node,
            clock=clock,
            cpu_clock=_no_cpu,
            stagers=self._stagers,
            small_snapshot=self.small_snapshot,
            guard=self.guard_of(node, process),
            quarantine_rows=QUARANTINE_ROWS if self.poison_rows is None else self.poison_rows.quarantine_rows,
        )

    def guard_of(self, node: NodeId, process: int) -> StepGuard | None:
        """Return what is told of the steps of a node's process."""
        if self.poison_rows is None or not self.poison_rows.dies:
            return self.guard
        return self._guards.setdefault((node, process), ProcessGuard(self.guard, self.poison_rows))

    def kill(self, names: Sequence[NodeId]) -> None:
        """Let nodes die with all their files."""
        for name in names:
            del self.members[name]
            self._frozen.pop(name, None)
            self._snapshot_store.node_killed(name)
        self._log(f"killed: {', '.join(names)}")
        self._due.append((self.clock.now + self._draw.choice((0.0, 0.0, 5.0, 20.0)), NodesLost(tuple(names))))

    def _freeze(self, name: NodeId) -> None:
        self._log(f"frozen: {name}")
        self._frozen[name] = FrozenNode(self.members[name])
        self._due.append((self.clock.now + self._draw.uniform(2, 20), NodesSilent((name,))))

    def on_the_way(self) -> bool:
        """Whether nodes are still to come or to be found silent, or reports to arrive."""
        return bool(self._coming or self._due or self._frozen or self._reports or self._cut_off)

    # -- the coordinator's backend ------------------------------------------------------------------------------------

    def reports(self, timeout: float) -> Sequence[Report]:
        """See Backend."""
        found = self._arrived_reports()
        if not found and timeout:
            self.clock.now += max(timeout, 1.0)
            found = self._arrived_reports()
        return found

    def _arrived_reports(self) -> list[Report]:
        now = self.clock.now
        if self._coming:
            for _, name, capacity in [one for one in self._coming if one[0] <= now]:
                self.join({name: self.new_files()}, capacity)
                self._log(f"arrived: {name}")
                if self._mischief.strikes(Fault.ARRIVAL_KILLED):
                    self.kill([name])
            self._coming = [one for one in self._coming if one[0] > now]
        self._thaw()
        nodes: list[Report] = []
        workers: list[Report] = []
        if self._due:
            nodes = [event for at, event in self._due if at <= now]
            self._due = [one for one in self._due if one[0] > now]
            nodes = [event for event in nodes if not isinstance(event, NodesSilent) or self._silence(event.nodes[0])]
        if self._reports:
            workers = [report for at, reports in self._reports if at <= now for report in reports]
            self._reports = [one for one in self._reports if one[0] > now]
        return [*workers, *nodes] if self._draw.random() < 0.5 else [*nodes, *workers]

    def release_nodes(self, nodes: Sequence[NodeId]) -> None:
        """See Backend: they are gone before long."""
        self.kill([node for node in nodes if node in self.members])

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

    def reconcile(self, desired: DesiredState) -> None:
        """See Backend: levels follow each other until no block moves between nodes; reports may take their time."""
        self.handing_out(desired)
        self._touch("handing out a desired state")
        self.clean = True
        self.clock.now += self._draw.uniform(5, 25)
        before = sum(self._mischief.injected.values())
        reports: list[NodeReport] = []
        problem = self._levels(desired, reports)
        self._touch("ending a cycle")
        if problem is None and self._mischief.strikes(Fault.CYCLE_BROKEN):
            problem = "the job was cancelled after its last stage"
        if problem is not None or sum(self._mischief.injected.values()) != before:
            self.clean = False
        arrives = self.clock.now
        if self._mischief.strikes(Fault.REPORTS_LATE):
            self.clean = False
            arrives += self._draw.uniform(5, 200)
        # What a cycle that did not end has done is found out by the next: its reports may come, or not.
        come = [] if problem is not None and self._draw.random() < 0.7 else reports
        self._reports.append((arrives, [*come, CycleEnded(desired.number, desired.epoch, problem)]))

    # -- a cycle -------------------------------------------------------------------------------------------------------

    def _levels(self, desired: DesiredState, reports: list[NodeReport]) -> str | None:
        waiting: dict[NodeId, list[Block]] = {}
        busy = sorted({one.node for one in desired.assignments.values()})
        level = 0
        problem: str | None = None
        while busy and problem is None:
            coming: dict[NodeId, list[Block]] = {}
            for name in busy:
                self._faults()
                blocks = self._disturb(desired, name, waiting.get(name, []))
                report = self._task(desired, level, name, blocks)
                if report is None:
                    problem = f"{name} does not answer"
                    if self._draw.random() < 0.5:
                        break  # the others may have done the level, or not
                    continue
                self._stands_where_known(desired, report)
                if self._mischief.strikes(Fault.REPORT_LOST):
                    if self._draw.random() < 0.5:
                        continue
                else:
                    reports.append(report)
                for target, sent in report.sent.items():
                    for block in sent:
                        if not self._network.passes(name, target):
                            self.clean = False  # a cut outlasts the cycle in which it began
                        elif not self._mischief.strikes(Fault.BLOCK_DROPPED):
                            coming.setdefault(target, []).append(block)
            if self._mischief.strikes(Fault.CYCLE_BROKEN):
                problem = "the job was cancelled"
            waiting, level, busy = coming, level + 1, sorted(coming)
        if problem is not None:
            self._leave_behind(desired, level, busy, waiting)
        return problem

    def has_what_it_should(self, state: ClusterState, partition: PartitionId) -> None:
        """A partition goes on by a copy: only where workers stay is there one to look at."""

    def _stands_where_known(self, desired: DesiredState, report: NodeReport) -> None:
        """A node has what it has reported, or reports that it is missing."""
        for p, frontier in report.frontiers.items():
            known = desired.on(report.node)[p].frontier
            if frontier < known:
                self._complain(f"{p} goes on from batch {frontier} on {report.node}, and the driver knows of {known}")

    def _leave_behind(
        self, desired: DesiredState, level: int, busy: Sequence[NodeId], waiting: Mapping[NodeId, list[Block]]
    ) -> None:
        """Tasks of a cycle that was given up may still run."""
        for name in busy:
            if name in self.members and self._mischief.would(Fault.STRAGGLER):
                self._late.append(_Task(self.members[name], desired, level, waiting.get(name, [])))

    def _task(self, desired: DesiredState, level: int, name: NodeId, blocks: list[Block]) -> NodeReport | None:
        """Run one level on one node; None: the node does not answer."""
        member = self.members.get(name)
        if member is None:
            return None
        if name in self._frozen:
            self._frozen[name].tasks.append(_Task(member, desired, level, blocks))
            return None
        if not self._network.passes(DRIVER, name):
            self._no_answer(name)
            return None
        self._snapshot_store.work()
        self._run_late()
        if self._mischief.strikes(Fault.WORKER_RECYCLED):
            member.worker = self._worker(name, member.files, member.clock)
        member.clock.slow = self._mischief.strikes(Fault.NODE_SLOW)
        try:
            report = member.worker.reconcile(desired, level, blocks)
            if self._mischief.strikes(Fault.LEVEL_REPEATED):
                other = member.worker
                if self._draw.random() < 0.5:
                    other = self._worker(name, member.files, member.clock)
                again = other.reconcile(desired, level, self._shuffled(blocks))
                if self._draw.random() < 0.5:
                    report = again
        except ProcessDied:
            member.worker = self._worker(name, member.files, member.clock)
            return None
        except OSError as error:  # as the task of a node says it
            here = [(p, one) for p, one in desired.assignments.items() if one.node == name]
            failed = [Failed(p, BatchId(one.frontier + 1), f"OSError: {error}") for p, one in here[:1]]
            return NodeReport(name, desired.epoch, failed)
        if not self._network.passes(name, DRIVER):
            self._no_answer(name)
            return None
        return report

    def _no_answer(self, name: NodeId) -> None:
        """The driver gets no answer of a node: before long it takes it for lost."""
        if name not in self._cut_off:
            self._cut_off.add(name)
            self._due.append((self.clock.now + self._draw.uniform(2, 20), NodesSilent((name,))))

    def _disturb(self, desired: DesiredState, name: NodeId, blocks: list[Block]) -> list[Block]:
        """Copy blocks, mix them up, add some of earlier cycles."""
        found = list(blocks)
        if found and self._mischief.strikes(Fault.BLOCK_DUPLICATED):
            found.append(self._draw.choice(found))
        if self._old_blocks and self._mischief.would(Fault.OLD_BLOCKS):
            here = [
                block
                for block in self._old_blocks
                if (one := desired.assignments.get(block.header.receiver)) is not None and one.node == name
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
        self._network.turn(names)
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
            if mischief.would(fault):
                held = [
                    (member, store, p)
                    for member in self.members.values()
                    for store in member.files.stores
                    for p in store.partitions
                ]
                # Half of the time an output's: what it has not published yet is nowhere else.
                outputs = [one for one in held if one[2] in self._program.outputs]
                held = outputs if outputs and draw.random() < 0.5 else held
                if held:
                    member, store, victim = draw.choice(held)
                    if lose(store, victim):
                        self.harmed.add((member.name, victim))
                        self._log(f"{fault}: {victim} on {member.name}")
                        mischief.injected[fault] += 1

    def _silence(self, name: NodeId) -> bool:
        """A frozen node, or one that is cut off, is taken for lost; it may come back. False: it answers again."""
        frozen, member = self._frozen.pop(name, None), self.members.get(name)
        was_cut = name in self._cut_off
        self._cut_off.discard(name)
        if frozen is None and was_cut and member is not None:
            if self._network.passes(DRIVER, name) and self._network.passes(name, DRIVER):
                return False
            self._set_aside(member, self._network.until)
        elif frozen is not None and member is frozen.member:
            del self.members[name]
            frozen.thaws_at = self.clock.now + self._draw.uniform(0, 240)
            self._silent.append(frozen)
        return True

    def _set_aside(self, member: Member, until: float) -> None:
        """Take a node that runs for lost; it may come back."""
        del self.members[member.name]
        self._silent.append(FrozenNode(member, thaws_at=until))

    def _thaw(self) -> None:
        """Let frozen nodes go on: with what they were asked to do long ago, and perhaps as nodes again."""
        for frozen in [one for one in self._silent if one.thaws_at <= self.clock.now]:
            self._silent.remove(frozen)
            member = frozen.member
            if self._mischief.would(Fault.NODE_CAME_BACK) and member.name not in self.members:
                self._mischief.injected[Fault.NODE_CAME_BACK] += 1
                self._log(f"came back: {member.name}")
                if self._draw.random() < 0.5:
                    member.worker = self._worker(member.name, member.files, member.clock)
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
                self._log(f"late: level {task.level} of cycle {task.desired.number} on {task.member.name}")
                worker = task.member.worker
                if self._draw.random() < 0.5:
                    worker = self._worker(task.member.name, task.member.files, task.member.clock)
                self._run_over(worker, task)

    def _run_over(self, worker: NodeWorker, task: _Task) -> None:
        """Run a task of a cycle that is over."""
        before, self._snapshot_store.over = self._snapshot_store.over, True
        try:
            worker.reconcile(task.desired, task.level, task.blocks)
        except (ProcessDied, OSError):
            pass
        finally:
            self._snapshot_store.over = before


def _drop(store: FragileStore, partition: PartitionId) -> bool:
    store.drop(partition)
    return True


def _no_cpu() -> float:
    return 0.0


def _nothing(desired: DesiredState) -> None:
    pass
