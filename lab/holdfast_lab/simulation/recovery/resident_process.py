"""A simulated operator process: a resident worker with its connections. Runs anywhere.

It does what spark/resident_node.py does, without sockets and threads. It dials the driver and the nodes of senders,
passes messages on to its worker and sends what a round of work gives. One that its driver's connection has left does
nothing more, dials again, and ends where nobody answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.runtime.blocks import Block
from holdfast.runtime.messages import Answer, NodeReport, SnapshotStored
from holdfast.runtime.worker.inbox_room import InboxRoom
from holdfast.runtime.worker.lease import DriverLease
from holdfast.runtime.worker.quiet_links import LONGEST_STEP
from holdfast.runtime.worker.resident import ResidentWorker, Round, Standing
from holdfast.runtime.worker.sender_links import REDIAL_SECONDS, SenderLinks
from holdfast.runtime.worker.worker import NodeWorker
from holdfast_lab.simulation.recovery.cluster import FakeClock, Member
from holdfast_lab.simulation.recovery.connections import Connection, End, Events, Message
from holdfast_lab.simulation.recovery.pings import SECONDS

LEASE_SECONDS = 0.5
"""How long a process without a lease waits before it looks again."""
ORPHANED_SECONDS = 30.0
ROOM_BYTES = 100
"""Blocks are small here: more than so many bytes of them are more than a process should hold."""
WORK_SECONDS = 0.001
"""What a round of work takes that has something to do: time moves, whatever workers do."""
LONGEST_SLEEP = 8.0
"""Of a process to which nothing comes: looking every second for minutes would make runs slow."""


class ProcessHost(Protocol):
    """What a process needs of its cluster."""

    clock: FakeClock
    events: Events
    has_dead_links: bool
    """Whether connections may die without an end, so that processes look for those that bring nothing."""

    def dial_driver(self, process: Process) -> Connection | None:
        """Connect a process with the driver; None: the driver does not take it."""
        ...

    def dial_node(self, process: Process, address: int) -> tuple[Connection, int] | None:
        """Connect a process with another; the connection and its number. None: it does not answer."""
        ...

    def before_work(self, process: Process) -> float:
        """Let things go wrong; return seconds that a round of work is late."""
        ...

    def may_work(self, process: Process) -> bool:
        """Whether a process has a lease of its driver."""
        ...

    def work(self, process: Process) -> Round | None:
        """Let a process work once; None: it has died of it."""
        ...

    def events_delay(self) -> float:
        """Return how long it takes until a process that has something to do does it."""
        ...

    def report_delay(self) -> float:
        """Return how much later than usual a report comes."""
        ...

    def check(self, process: Process, report: NodeReport) -> None:
        """Look at a report that a process sends."""
        ...

    def came(self, process: Process, there: int, *, has_room: bool) -> None:
        """Blocks have come to a process in which so many bytes wait, and were found to have room, or not."""
        ...

    def replaced(self, process: Process, node: NodeId, link: Connection) -> None:
        """A process takes a second connection to a node in the place of this one."""
        ...


@dataclass(frozen=True, slots=True)
class DialledLink:
    """The end of a connection that a process has dialled, as `SenderLinks` has it."""

    connection: Connection

    @property
    def ended(self) -> bool:
        """See SenderLink."""
        return not self.connection.is_open[0]

    @property
    def received_bytes(self) -> int:
        """See SenderLink: messages are as good."""
        return self.connection.arrived[0]

    def close(self) -> None:
        """See SenderLink."""
        self.connection.close(0)


class Process:
    """See the module."""

    def __init__(
        self,
        around: ProcessHost,
        number: int,
        member: Member,
        index: int,
        worker: NodeWorker,
        resident: ResidentWorker,
        token: int,
    ) -> None:
        """`number` is its address, `index` which of its node's it is; `token` names the task that has started it."""
        self._around, self.number, self.member, self.resident, self.token = around, number, member, resident, token
        self.index, self.worker = index, worker
        self.alive, self.frozen = True, False
        self.has_twin = False
        """Whether another one in its place has lived beside it: what one has requested, the other may replace."""
        self.sources_stand: dict[PartitionId, tuple[BatchId, float]] = {}
        """Where sources stand whose next batch is in the log, and since when."""
        self.last: tuple[Epoch, int] | None = None
        """The last desired state that it has worked with."""
        self.driver: Connection | None = None
        self._standing = Standing()
        self._left_at = around.clock.now
        self._backlog: list[Callable[[], None]] = []
        self.senders: SenderLinks[DialledLink, int] = SenderLinks(resident.subscriptions, self._replaced)
        self.subscribers: dict[int, Connection] = {}
        self.room = InboxRoom(ROOM_BYTES)
        self.in_inboxes = self._handed = 0
        """Bytes in inboxes after the last round, and bytes that have come since."""
        self._links = 0
        self._wakes_at = math.inf
        self._sleep = 0.0
        self.slow_until = 0.0
        """Until then every round of work is late."""
        self._was_late = False
        self.untold: dict[Answer, float] = {}
        """What it has reported that has not reached the driver, and when it did so last."""
        self.idle = False
        self.lease = DriverLease(SECONDS)
        self.in_round = False
        """Whether it was frozen inside a round of work, which it will end before it looks at its lease."""
        self.given_up = False
        """Whether the driver has declared its node silent."""
        self.hindered_at = around.clock.now
        """When something last kept it from going on at once: its start, a new epoch, a freeze, slowness."""

    @property
    def node(self) -> NodeId:
        """Whose process it is."""
        return self.member.name

    @property
    def name(self) -> NodeId:
        """Its name in desired states."""
        return self.worker.name

    # -- life ----------------------------------------------------------------------------------------------------------

    def do(self, action: Callable[[], None]) -> None:
        """Act on something that has come, and work soon; a frozen one does later."""
        if not self.alive:
            return
        if self.frozen:
            self._backlog.append(action)
            return
        action()
        self._sleep, self.idle = 0.0, False
        self.wake(self._around.events_delay())

    def wake(self, seconds: float) -> None:
        """Work so many seconds from now, or before."""
        at = self._around.clock.now + seconds
        if at < self._wakes_at:
            self._wakes_at = at
            self._around.events.after(seconds, lambda: self._turn(at))

    def thaw(self) -> None:
        """Go on with what has come meanwhile."""
        self.frozen, self.hindered_at, self.in_round = False, self._around.clock.now, True
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            self.do(action)
        self._wakes_at = math.inf
        self.wake(0.0)

    def die(self) -> None:
        """End at once: connections end as others notice."""
        if not self.alive:
            return
        self.alive = False
        if self.driver is not None:
            self.driver.close(0)
        self.senders.close()
        for connection in self.subscribers.values():
            connection.close(1)

    def _turn(self, at: float) -> None:
        if at != self._wakes_at:
            return
        self._wakes_at = math.inf
        if self._is_stopped():
            return
        late = self._around.before_work(self)
        if self._is_stopped():
            return
        if late and not self._was_late:
            self._was_late, self.hindered_at = True, self._around.clock.now + late
            self.wake(late)
            return
        self._was_late = False
        if self.driver is None:
            self._dial_driver()
            return
        if not self._around.may_work(self):
            self.hindered_at, self.in_round = self._around.clock.now, False
            self.wake(LEASE_SECONDS)
            return
        self._dial_senders()
        done = self._around.work(self)
        self.in_round = False
        if done is None:
            return
        self.in_inboxes = self.resident.inbox_bytes
        self.room.taken(self._handed, self.in_inboxes)
        self._handed = 0
        self.idle = done.idle
        self._send(done)
        longest = LONGEST_STEP if self._around.has_dead_links else LONGEST_SLEEP
        self._sleep = 0.0 if not done.idle else min(longest, max(self._sleep * 2, 0.02))
        self.wake(max(done.wait, self._sleep) if done.idle else max(WORK_SECONDS, self._around.events_delay()))

    def _is_stopped(self) -> bool:
        return self.frozen or not self.alive

    def _send(self, done: Round) -> None:
        for node, requests in done.requests.items():
            if (sender := self.senders.link(node)) is not None:
                sender.connection.send(0, ("requests", requests), repeatable=True)
                if self._around.has_dead_links:
                    self.senders.asked(node)
        for number, blocks in done.blocks.items():
            if (link := self.subscribers.get(number)) is not None:
                link.send(1, ("blocks", blocks), repeatable=True)
        news = self._standing.is_news(done)
        if self.driver is not None and (done.report is not None or news):
            if done.report is not None:
                self._around.check(self, done.report)
                self._drop_replaced(done.report.answers)
                self.untold |= dict.fromkeys(done.report.answers, self._around.clock.now)
            self.driver.send(0, ("report", done.report, done.applied, done.idle), self._around.report_delay())

    def _drop_replaced(self, answers: Sequence[Answer]) -> None:
        """A snapshot that was saved anew is reported in the place of the one before: nobody waits for that any more."""
        new = {(one.partition, one.snapshot.batch) for one in answers if isinstance(one, SnapshotStored)}
        for old in list(self.untold):
            if isinstance(old, SnapshotStored) and (old.partition, old.snapshot.batch) in new and old not in answers:
                del self.untold[old]

    # -- the driver ----------------------------------------------------------------------------------------------------

    def _dial_driver(self) -> None:
        if self._around.clock.now - self._left_at > ORPHANED_SECONDS:
            self.die()
            return
        self.dial_driver()
        self.wake(REDIAL_SECONDS if self.driver is None else 0.0)

    def dial_driver(self) -> None:
        """Dial the driver once."""
        self.driver = self._around.dial_driver(self)
        if self.driver is not None:
            self.lease.connected(self._around.clock.now)
        self._standing.connected()
        self.resident.driver_connected()

    def driver_end(self) -> End:
        """This process's end of a connection with the driver."""
        return End(self.node, lambda link, message: self.do(lambda: self._from_driver(message)), self._driver_ended)

    def _driver_ended(self, link: Connection) -> None:
        def forget() -> None:
            if self.driver is link:
                self.driver, self._left_at = None, self._around.clock.now

        self.do(forget)

    def _from_driver(self, message: Message) -> None:
        match message:
            case ("desired", desired):
                held = self.resident.desired
                if held is None or held.epoch != desired.epoch:
                    self.hindered_at = self._around.clock.now
                    self.untold.clear()
                self.resident.hand_out(desired)
            case ("number", number, of):
                held = self.resident.desired
                if held is not None and held.number == of:
                    self.resident.hand_out(replace(held, number=number, forget=()))
            case ("peers", addresses):
                for node in self.senders.met(addresses):  # another process has its place, or none
                    self.senders.lost(node, self.senders.held[node].number)

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def _dial_senders(self) -> None:
        for node, address in self.senders.due(self._around.clock.now, sorted(self.resident.sender_nodes())):
            self._around.events.after(self._around.events_delay(), partial(self.do, partial(self._dial, node, address)))

    def _dial(self, node: NodeId, address: int) -> None:
        made = self._around.dial_node(self, address)
        if made is None:
            self.senders.not_made(node, self._around.clock.now)
            self._around.events.after(REDIAL_SECONDS, lambda: self.wake(0.0))
            return
        connection, number = made
        self.senders.made(node, DialledLink(connection), number, address, self._around.clock.now)

    def _replaced(self, node: NodeId, link: DialledLink) -> None:
        self._around.replaced(self, node, link.connection)

    def sender_end(self, node: NodeId) -> End:
        """This process's end of a connection to the process of senders."""

        def receive(link: Connection, message: Message) -> None:
            if message[0] == "blocks":
                self.do(lambda: self._take_blocks(message[1]))

        return End(self.node, receive, lambda link: self.do(lambda: self._lose_sender(node, link)))

    def _take_blocks(self, blocks: Sequence[Block]) -> None:
        """Let the worker have them; as on a node, those that find no room would be on disk."""
        size = sum(one.rows.nbytes for one in blocks if one.rows is not None)
        self._around.came(self, self.in_inboxes + self._handed, has_room=self.room.arrived(size))
        self._handed += size
        self.resident.take_blocks(blocks)

    def _lose_sender(self, node: NodeId, link: Connection) -> None:
        held = self.senders.held.get(node)
        if held is not None and held.link.connection is link:
            self.senders.lost(node, held.number)

    def subscriber_end(self) -> tuple[int, End]:
        """This process's end of a connection from the node of consumers, and its number for it."""
        self._links += 1
        number = self._links

        def take(requests: list[object]) -> None:
            for one in requests:
                self.resident.take_request(number, one)  # type: ignore[arg-type]

        def forget() -> None:
            self.subscribers.pop(number, None)
            self.resident.publications.disconnected(number)

        def receive(link: Connection, message: Message) -> None:
            if self._around.has_dead_links:  # at once, but for a process that is frozen: by a thread of its own
                self.do(lambda: link.send(1, ("requested",)))
            self.do(lambda: take(message[1]))

        return number, End(self.node, receive, lambda link: self.do(forget))
