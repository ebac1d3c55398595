"""A simulated cluster whose workers stay: messages over connections, each with its delay. Runs anywhere.

It is a backend of the coordinator as spark/resident_backend.py is one. Between any two messages and any two rounds of
work, nodes die, freeze and come back as in the cluster that works in cycles. On top of that connections are cut
(noticed by both ends at different times, or by one end long before the other), frames are lost with them, repeated, or
come after those of the next connection; a desired state reaches one node long before another; operator processes are
restarted, and two in one place may be there at once. A node has one, two or three of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.ids import NodeId, PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.recovery.events import NodesArrived, NodesLeaving, NodesLost, NodesSilent
from holdfast.runtime.messages import DesiredState, NodeReport, Report
from holdfast.runtime.processes import ProcessSpread, declared_costs
from holdfast.runtime.resident_cycle import ResidentCycle
from holdfast.runtime.worker.resident import ResidentWorker, Round
from holdfast_lab.simulation.recovery.cluster import FrozenNode, Member, SimulatedCluster
from holdfast_lab.simulation.recovery.connections import Connection, End, Events, Message
from holdfast_lab.simulation.recovery.faults import Fault
from holdfast_lab.simulation.recovery.files import ProcessDied
from holdfast_lab.simulation.recovery.network import DRIVER
from holdfast_lab.simulation.recovery.pings import SimulatedPings
from holdfast_lab.simulation.recovery.resident_checks import ResidentChecks
from holdfast_lab.simulation.recovery.resident_process import Process
from holdfast_lab.simulation.recovery.stores import FragileStore, NodeFiles

RETURN_SECONDS = 2.0
"""A node whose connection has ended is lost after so long."""
SETTLE_SECONDS = 12.0
"""After a fault, for so long nobody is to blame for standing still."""
MOST_LOOKS = 2_000
"""How often the driver looks for reports, once nothing goes wrong any more, before its cycle should have ended."""
LONGEST_CYCLE = 7200.0
"""Seconds after which a cycle should have ended, whatever goes wrong."""
MOST_ROUNDS = 5_000
"""Rounds of work that bring something which a cycle may have."""
TICK = 0.1
AGENTS_SECONDS = 0.5
"""How often agents and threads that save and fetch get their turn."""
FAULTS_AT = 0.5
"""The share of rounds of work at which things may go wrong: there are many more of them than levels of cycles."""
FAULTS_LATER = 0.03
MANY_POINTS = 600
"""After so many rounds of one driver's nodes things go wrong less often: what is done must outweigh what is lost."""


@dataclass(slots=True)
class _HeldProcess:
    """What the driver knows of an operator process."""

    name: NodeId
    left_at: float
    """When it had no connection last."""
    link: Connection | None = None
    address: int = 0


@dataclass(slots=True)
class _Held:
    """What the driver knows of a node."""

    token: int
    processes: list[_HeldProcess]


class ResidentCluster(SimulatedCluster):
    """See the module, and the coordinator's Backend."""

    takes_updates = True

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.events = Events(self.clock)
        self.window = self._draw.choice((1, 1, 2, 8))
        self.spread = ProcessSpread(self._draw.choice((1, 2, 2, 3)), declared_costs(self._program))
        self.processes: list[Process] = []
        self.has_dead_links = Fault.LINK_DEAD in self._mischief.rates
        self._checks = ResidentChecks(
            self.process_at, self.clock, self._complain, self._program, self.harmed, lambda: self._network.is_cut
        )
        self._held: dict[NodeId, _Held] = {}
        self._links: list[Connection] = []
        self._numbers = 0
        self._cycle: ResidentCycle | None = None
        self._sent: DesiredState | None = None
        self._disturbed_at = -math.inf
        self._injected = self._looks = self._rounds = self._points = 0
        self._began_at = self._agents_at = self._looked_until = self.clock.now
        self._pings = SimulatedPings(
            self.events,
            self._network,
            self._prefix,
            held=self._connected,
            answers=lambda node: node in self.members and node not in self._frozen,
            troubled=self._is_troubled,
            declare=self._declare_silent,
            complain=self._complain,
        )

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def store_of(self, node: NodeId, partition: PartitionId) -> FragileStore:
        """See SimulatedCluster."""
        return self.members[node].files.of(self.spread.index(node, partition) or 0)

    def join(self, nodes: Mapping[NodeId, NodeFiles], capacity: float) -> None:
        """See SimulatedCluster: their processes run."""
        super().join(nodes, capacity)
        for name in nodes:
            self._hold(self.members[name])

    def _hold(self, member: Member) -> None:
        """Let a task hold a node: all its processes start."""
        processes = [_HeldProcess(name, self.clock.now) for name in self.spread.names(member.name)]
        self._held[member.name] = _Held(self._next(), processes)
        for index in range(self.spread.count):
            self._start(member, index)

    def recycle(self) -> None:
        """Let every process be new: they take the next desired state."""
        self._sent = None
        for process in list(self.processes):
            process.die()
        super().recycle()
        for member in self.members.values():
            self._hold(member)

    def _next(self) -> int:
        self._numbers += 1
        return self._numbers

    def _start(self, member: Member, index: int, *, now: bool = True) -> Process:
        """Start a process of a node; it dials the driver, now or in a while."""
        held = self._held[member.name]
        worker = self._worker(member.name, member.files, member.clock, index, held.processes[index].name)
        resident = ResidentWorker(worker, self._program, clock=member.clock, cpu_clock=_no_cpu, window=self.window)
        process = Process(self, self._next(), member, index, worker, resident, held.token)
        self.processes = [one for one in self.processes if one.alive]
        for twin in self._of(member.name):
            if twin.index == index:
                twin.has_twin = process.has_twin = True
        self.processes.append(process)
        if now:
            process.dial_driver()
        process.wake(0.0)
        return process

    def _of(self, name: NodeId) -> list[Process]:
        return [one for one in self.processes if one.node == name and one.alive]

    def kill(self, names: Sequence[NodeId]) -> None:
        """See SimulatedCluster."""
        self._pings.begin()
        for name in names:
            for process in self._of(name):
                process.die()
        super().kill(names)

    def _freeze(self, name: NodeId) -> None:
        self._pings.begin()
        self._log(f"frozen: {name}")
        self._frozen[name] = frozen = FrozenNode(self.members[name])
        for process in self._of(name):
            process.frozen = True
        if self._mischief.strikes(Fault.FREEZE_SHORT):
            self.events.after(self._draw.uniform(0.2, 5), lambda: self._thaw_early(name, frozen))

    def _thaw_early(self, name: NodeId, frozen: FrozenNode) -> None:
        if self._frozen.get(name) is frozen:
            self._log(f"thawed before it was declared silent: {name}")
            del self._frozen[name]
            for process in self._of(name):
                process.thaw()

    def _declare_silent(self, names: tuple[NodeId, ...]) -> None:
        """Nodes answer nothing: they are taken for lost, and may come back."""
        self._log(f"silent: {', '.join(names)}")
        for name in names:
            frozen, member = self._frozen.pop(name, None), self.members.get(name)
            for process in self._of(name):
                process.given_up = True
            if frozen is not None and member is frozen.member:
                del self.members[name]
                frozen.thaws_at = self.clock.now + self._draw.uniform(0, 240)
                self._silent.append(frozen)
            elif member is not None:
                self._set_aside(member, self._network.until)
            self._forget(name)
        self._reports.append((self.clock.now, [NodesSilent(names)]))

    def _connected(self) -> dict[NodeId, list[Process]]:
        """Return the nodes that the driver has, with the processes that messages reach."""
        found: dict[NodeId, list[Process]] = {}
        for name, held in self._held.items():
            there = [self.process_at(one.address) for one in held.processes if one.link is not None and one.link.whole]
            found[name] = [one for one in there if one is not None and not one.frozen]
        return found

    def _is_troubled(self) -> bool:
        """Whether something keeps nodes from answering."""
        links = [one.link for held in self._held.values() for one in held.processes]
        return bool(self._frozen) or self._network.is_cut or any(one is None or not one.whole for one in links)

    def _forget(self, name: NodeId) -> None:
        """A node is taken for lost: nothing of it counts any more."""
        held = self._held.pop(name, None)
        self.spread.lose(name)
        for one in [] if held is None else held.processes:
            if one.link is not None:
                one.link.close(1)
        self._checks.gone.update(self.spread.names(name))
        if self._cycle is not None:
            for process in self.spread.names(name):
                self._cycle.lost(process)

    def _thaw(self) -> None:
        """Let frozen nodes go on: as processes that nobody holds any more, and perhaps as nodes again."""
        for frozen in [one for one in self._silent if one.thaws_at <= self.clock.now]:
            self._silent.remove(frozen)
            member = frozen.member
            processes = [one for one in self.processes if one.member is member and one.alive]
            zombie = self._mischief.strikes(Fault.ZOMBIE_WROTE)
            for process in processes:
                if zombie:
                    process.thaw()
                else:
                    process.die()
            if self._mischief.would(Fault.NODE_CAME_BACK) and member.name not in self.members:
                self._mischief.injected[Fault.NODE_CAME_BACK] += 1
                self._log(f"came back: {member.name}")
                self.members[member.name] = member
                self._due.append((self.clock.now, NodesArrived({member.name: member.capacity})))
                self._hold(member)

    def on_the_way(self) -> bool:
        """See SimulatedCluster: messages, and ends of connections that somebody has still to notice, count."""
        self._links = [one for one in self._links if any(one.is_open) or one.on_the_way]
        return (
            super().on_the_way()
            or not all(one.settled for one in self._links)
            or any(one.link is None for held in self._held.values() for one in held.processes)
            or any(one.alive and not one.idle for one in self.processes)
        )

    def has_what_it_should(self, state: ClusterState, partition: PartitionId) -> None:
        """See that a copy that was promoted has what the driver takes it to have."""
        mine = state.partitions[partition]
        assert mine.node is not None
        if (mine.node, partition) in self.harmed:
            return
        for process in self._of(mine.node):
            host = process.worker.host
            if partition not in host or process.has_twin or not self._is_current(process):
                continue
            if host.frontier(partition) < mine.frontier:
                what = f"{partition} is promoted at batch {mine.frontier}, and is at {host.frontier(partition)}"
                self._complain(what)
            if host.kept_from(partition) > mine.kept_from:
                what = f"{partition} is promoted with output from {mine.kept_from} on"
                self._complain(f"{what}, and has it from {host.kept_from(partition)} on")

    # -- the coordinator's backend -------------------------------------------------------------------------------------

    def reconcile(self, desired: DesiredState) -> None:
        """See Backend: processes get what is new, or only its number."""
        self.handing_out(desired)
        self._touch("handing out a desired state")
        desired = self.spread.divide(whole := desired, self._held)
        self._checks.divided(whole, desired, {name: held.token for name, held in self._held.items()})
        self._cycle = cycle = ResidentCycle(desired)
        self._looks, self._rounds, self._began_at = 0, 0, self.clock.now
        there = {one.name for held in self._held.values() for one in held.processes}
        for name in sorted(cycle.waits_for):
            if name not in there:  # its loss is reported; one that is only disconnected is waited for
                cycle.lost(name)
        before, self._sent = self._sent, desired
        same = before is not None and replace(desired, number=before.number, lag=before.lag) == before
        message: Message = (
            ("number", desired.number, before.number) if same and before is not None else ("desired", desired)
        )
        for link in self._driver_links():
            late = self._draw.uniform(3, 40) if self._mischief.strikes(Fault.DESIRED_LATE) else 0.0
            link.send(1, message, late, repeatable=True)
        if not same:
            self._sent = replace(desired, forget=())

    def reports(self, timeout: float) -> Sequence[Report]:
        """See Backend: time passes, and whatever happens in it happens."""
        if timeout and self._mischief.active:
            self._perhaps_not_there()
        began = self.clock.now
        if began > self._looked_until + TICK:
            for process in self.processes:  # time has passed elsewhere, without a turn for them
                process.hindered_at = max(process.hindered_at, began)
            # Nor for this driver: a cycle does not last longer because other drivers worked while it was frozen.
            self._began_at += began - max(self._looked_until, self._began_at)
        try:
            return self._reports_until(began, timeout)
        finally:
            self._looked_until = self.clock.now

    def _perhaps_not_there(self) -> None:
        """Perhaps the driver is stopped for a while, or cut off from everybody; nobody takes over."""
        stopped = self._mischief.strikes(Fault.DRIVER_STOPPED)
        if not stopped and not self._mischief.strikes(Fault.DRIVER_CUT_OFF):
            return
        seconds = self._draw.choice((1.0, 3.0, 8.0, 40.0))
        self._log(f"the driver is {'stopped' if stopped else 'cut off'} for {seconds:.0f} s")
        self._pings.begin()
        self._pings.asleep, self._pings.cut_off = stopped, not stopped
        until = self.clock.now + seconds
        while self._pass(until):
            pass
        self._pings.woke()
        for held in self._held.values():
            for one in held.processes:
                one.left_at = self.clock.now  # it notices only now whose connection has ended

    def _reports_until(self, began: float, timeout: float) -> list[Report]:
        self._looks += not self._mischief.active
        if self._cycle is not None and not self._cycle.ended:
            if self._looks > MOST_LOOKS:
                self._complain(f"nothing goes wrong any more, and a cycle does not end: {self._waits_for(self._cycle)}")
            if began - self._began_at > LONGEST_CYCLE:
                self._complain(f"a cycle takes longer than {LONGEST_CYCLE:.0f} s: {self._waits_for(self._cycle)}")
        found = self._read()
        if found or not timeout:
            return found
        until = began + max(timeout, 1.0)
        while not found and self._pass(until):
            found = self._read()
        # What comes within a moment is read together.
        if found:
            moment = self._draw.choice((0.0, 0.01, 0.2, 3.0)) if self._mischief.active else 3.0
            until = min(until, self.clock.now + moment)
            while self._pass(until):
                found += self._read()
        found += self._read()
        self._judge(began)
        return found

    @staticmethod
    def _waits_for(cycle: ResidentCycle) -> str:
        return f"it waits for {', '.join(sorted(cycle.waits_for))}"

    def _pass(self, until: float) -> bool:
        """Let the next thing happen, unless it happens later than this."""
        now, at, next_at = self.clock.now, math.inf, self.events.next_at
        for waiting in (self._due, self._coming, self._reports):
            for one in waiting:
                if now < one[0] < at:
                    at = one[0]
        if at > until and next_at > until:
            self.clock.now = max(now, until)
            return False
        if at < next_at:
            self.clock.now = at
        else:
            self.events.run_next()
        return True

    def _read(self) -> list[Report]:
        self._lose_those_who_left()
        found = self._arrived_reports()
        for event in found:
            if isinstance(event, NodesLost | NodesSilent):
                for name in event.nodes:
                    if name not in self.members:
                        self._forget(name)
        if self._cycle is not None and (ended := self._cycle.end()) is not None:
            there = [one.name for held in self._held.values() for one in held.processes]
            self._checks.ended(self._cycle.desired, there)
            found.append(ended)
        return found

    def _judge(self, began: float) -> None:
        """Say whether in this time a live query had every chance to go on: see `clean`."""
        now, injected = self.clock.now, sum(self._mischief.injected.values())
        cut = not all(one.settled or one.whole for one in self._links) or any(one.is_late for one in self._links)
        if injected != self._injected or super().on_the_way() or cut or self._pings.running:
            self._disturbed_at = now
        self._injected = injected
        self.clean = now - began >= 1.0 and began - self._disturbed_at > SETTLE_SECONDS

    # -- the driver's ends of connections ------------------------------------------------------------------------------

    def dial_driver(self, process: Process) -> Connection | None:
        """See ProcessHost."""
        holds = self._held.get(process.node)
        node = process.node
        away = self._pings.asleep or self._pings.cut_off
        if away or holds is None or holds.token != process.token or not self._reach_each_other(DRIVER, node):
            return None
        held = holds.processes[process.index]

        def counts(link: Connection) -> bool:
            return held.link is link and self._held.get(node) is holds

        def receive(link: Connection, message: Message) -> None:
            if counts(link):
                _, report, applied, idle = message
                if report is not None:
                    whole = self.spread.report_of(node, process.index, report)
                    self._reports.append((self.clock.now, [whole]))
                    for answer in report.answers:
                        process.untold.pop(answer, None)
                if applied >= self._checks.standing.get(held.name, (-1, False))[0]:  # a frame may come once more
                    self._checks.standing[held.name] = (applied, idle)
                if self._cycle is not None:
                    self._cycle.reported(held.name, applied, idle=idle)

        def ended(link: Connection) -> None:
            if counts(link):
                self._left(held)

        link = self._connect(process.driver_end(), End(DRIVER, receive, ended))
        self._pings.connected(node)
        if held.link is not None:
            held.link.close(1)  # of a process before
            self._left(held)
        held.link, held.address = link, process.number
        self._introduce(link)
        return link

    def _left(self, process: _HeldProcess) -> None:
        """The connection to a process has ended: what it said is over."""
        process.link, process.left_at = None, self.clock.now
        self._checks.standing.pop(process.name, None)
        if self._cycle is not None:
            self._cycle.left(process.name)

    def _driver_links(self) -> list[Connection]:
        return [one.link for held in self._held.values() for one in held.processes if one.link is not None]

    def _lose_those_who_left(self) -> None:
        """A node with a process whose connection has ended, and that has not dialled again, is lost."""
        now = self.clock.now
        gone = [
            node
            for node, held in self._held.items()
            for one in held.processes
            if one.link is None and now - one.left_at > RETURN_SECONDS
        ]
        for node in dict.fromkeys(gone):
            member = self.members.get(node)
            if member and node not in self._frozen and self._pings.is_answering(node):
                self._log(f"not back: {node}")
                self._set_aside(member, max(self._network.until, now + self._draw.uniform(0, 120)))
                self._forget(node)
                self._due.append((now, NodesLost((node,))))

    def _introduce(self, fresh: Connection | None = None) -> None:
        """Let processes know each other, and a new one the desired state."""
        there = [one for held in self._held.values() for one in held.processes if one.link is not None]
        addresses = {one.name: one.address for one in there}
        for link in self._driver_links():
            link.send(1, ("peers", addresses))
        if fresh is not None and self._sent is not None:
            fresh.send(1, ("desired", self._sent))

    def _reach_each_other(self, one: NodeId, other: NodeId) -> bool:
        return self._network.passes(one, other) and self._network.passes(other, one)

    def _connect(self, dialler: End, listener: End) -> Connection:
        link = Connection(self.events, self.clock, self._mischief, self._network, dialler, listener)
        self._links = [one for one in self._links if any(one.is_open) or one.on_the_way]
        self._links.append(link)
        return link

    # -- what processes need -------------------------------------------------------------------------------------------

    def events_delay(self) -> float:
        """Return how long it takes until a process that has something to do does it."""
        return self._draw.choice((0.0, 0.001, 0.02))

    def report_delay(self) -> float:
        """Return how much later than usual a report comes."""
        return self._draw.uniform(1, 30) if self._mischief.strikes(Fault.REPORTS_LATE) else 0.0

    def process_at(self, address: int) -> Process | None:
        """Return the process that lives at an address."""
        return next((one for one in self.processes if one.number == address and one.alive), None)

    def dial_node(self, process: Process, address: int) -> tuple[Connection, int] | None:
        """See ProcessHost."""
        other = self.process_at(address)
        if other is None or other.frozen or not self._reach_each_other(process.node, other.node):
            return None
        number, listener = other.subscriber_end()
        link = self._connect(process.sender_end(other.name), listener)
        other.subscribers[number] = link
        return link, self._next()

    def before_work(self, process: Process) -> float:
        """See ProcessHost."""
        if not self._mischief.active:
            return 0.0
        self._points += 1
        if self._draw.random() < (FAULTS_AT if self._points < MANY_POINTS else FAULTS_LATER):
            self._faults()
            self._cut_and_restart()
            if self._is_troubled():
                self._pings.begin()
        if self._mischief.strikes(Fault.WORK_LATE):
            process.slow_until = self.clock.now + self._draw.uniform(0.5, 20)
        return self._draw.uniform(0.1, 4) if self.clock.now < process.slow_until else 0.0

    def _cut_and_restart(self) -> None:
        mischief, draw = self._mischief, self._draw
        whole = [one for one in self._links if one.whole]
        if whole and mischief.strikes(Fault.CONNECTION_CUT):
            draw.choice(whole).cut()
        between = [one for one in whole if one.whole and one.listener != DRIVER] if self.has_dead_links else []
        if between and mischief.strikes(Fault.LINK_DEAD):
            draw.choice(between).forget()
        alive = [one for one in self.processes if one.alive and not one.frozen and self._is_current(one)]
        if alive and mischief.strikes(Fault.PROCESS_RESTARTED):
            process = draw.choice(alive)
            self._log(f"restarted: process {process.number} of {process.name}")
            process.die()
            self.events.after(draw.choice((0.0, 0.5, 3.0)), lambda: self._restart(process.member, process.index))
        elif alive and mischief.strikes(Fault.TWIN):
            process = draw.choice(alive)
            self._log(f"twin: the processes of {process.node} live on")
            held, old = self._held[process.node], [one for one in self._of(process.node) if self._is_current(one)]
            held.token = self._next()
            for one in held.processes:
                if one.link is not None:
                    one.link.close(1)
                self._left(one)
            for index in range(self.spread.count):
                self._restart(process.member, index)
            for twin in old:
                self.events.after(draw.uniform(1, 40), twin.die)
        if Fault.NODE_LEAVES in mischief.rates and len(self.members) > 1 and mischief.strikes(Fault.NODE_LEAVES):
            self._announce_leaving(draw.choice(sorted(self.members)))

    def _announce_leaving(self, name: NodeId) -> None:
        """A node will go before long, whatever is left on it then."""
        member = self.members[name]
        self._log(f"will leave: {name}")
        self._due.append((self.clock.now, NodesLeaving((name,))))
        self.events.after(self._draw.choice((5.0, 120.0, 1200.0)), lambda: self._leave(member))

    def _leave(self, member: Member) -> None:
        if self.members.get(member.name) is member:
            self.kill([member.name])

    def _is_current(self, process: Process) -> bool:
        member = process.member
        held = self._held.get(member.name)
        return held is not None and held.token == process.token and self.members.get(member.name) is member

    def _restart(self, member: Member, index: int) -> None:
        """Start an operator process again, as its task does: where the one there is has ended."""
        if self.members.get(member.name) is not member or member.name not in self._held or member.name in self._frozen:
            return
        if not any(one.alive and one.index == index and self._is_current(one) for one in self._of(member.name)):
            self._start(member, index, now=self._draw.random() < 0.5)

    def may_work(self, process: Process) -> bool:
        """See ProcessHost."""
        return process.in_round or self._pings.may_work(process, current=self._is_current(process))

    def work(self, process: Process) -> Round | None:
        """See ProcessHost: an operator process that cannot use its files or the storage crashes, and starts again."""
        if self.clock.now >= self._agents_at:
            self._agents_at = self.clock.now + AGENTS_SECONDS
            self._snapshot_store.work()
        if process.given_up and not process.in_round:
            self._complain(f"{process.name} works, and the driver has declared its node silent")
        store, desired = self._snapshot_store, process.resident.desired
        self._checks.before_work(process, current=self._is_current(process))
        before = store.over
        # What a desired state that is not the last one names may have been forgotten meanwhile.
        last = desired is None or (self._sent is not None and desired.number == self._sent.number)
        store.over = before or not last or not self._is_current(process)
        try:
            done = process.resident.work()
        except (ProcessDied, OSError) as error:
            self._log(f"crashed: process {process.number} of {process.name}: {error}")
            if (guard := self._guards.get((process.node, process.index))) is not None:
                guard.died()
            process.die()
            if self._is_current(process):
                self.events.after(self._draw.uniform(0.1, 2), lambda: self._restart(process.member, process.index))
            return None
        finally:
            store.over = before
        self._rounds += not done.idle
        if self._rounds > MOST_ROUNDS:
            self._complain(f"{process.name} works on and on, and nothing comes of it")
        self._checks.after_work(process, done, current=self._is_current(process))
        return done

    def came(self, process: Process, there: int, *, has_room: bool) -> None:
        """See ProcessHost."""
        self._checks.came(process, there, has_room=has_room)

    def replaced(self, process: Process, node: NodeId, link: Connection) -> None:
        """See ProcessHost."""
        self._log(f"the connection of {process.name} to {node} is made anew")
        self._checks.replaced(process, node, link)

    def check(self, process: Process, report: NodeReport) -> None:
        """See ProcessHost."""
        desired = process.resident.desired
        if desired is not None and report.epoch == desired.epoch:
            self._stands_where_known(desired, report)


def _no_cpu() -> float:
    return 0.0
