"""What must hold between simulated workers that stay, beside what must hold of every run. Runs anywhere.

A worker asks again for what does not come and reports again what nobody acts on. That heals almost every fault of the
exchange, and would hide it here: so streams and reports are looked at while they run, not only at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from holdfast.ids import BatchId, Epoch, NodeId, PartitionId
from holdfast.runtime.messages import DesiredState, SnapshotStored
from holdfast.runtime.program import Program
from holdfast.runtime.worker.resident import Round
from holdfast_lab.simulation.recovery.connections import Connection
from holdfast_lab.simulation.recovery.dead_connections import DeadConnections
from holdfast_lab.simulation.recovery.resident_process import Process
from holdfast_lab.simulation.recovery.stores import Complain

HINDERED_SECONDS = 3.0
"""So long after something held a stream up it may still wait."""
SILENT_SECONDS = 30.0
"""So long after a report was lost, or its process was held up, what it said may be missing."""


class ResidentChecks:
    """Looks at processes before and after they work."""

    def __init__(
        self,
        process_at: Callable[[int], Process | None],
        clock: Callable[[], float],
        complain: Complain,
        program: Program,
        harmed: Collection[tuple[NodeId, PartitionId]] = (),
        is_cut: Callable[[], bool] = lambda: False,
    ) -> None:
        """`harmed`: nodes and partitions of which files were lost; `is_cut`: whether the network is cut now."""
        self._is_cut = is_cut
        self._dead = DeadConnections()
        self._process_at, self._clock, self._complain, self._program = process_at, clock, complain, program
        self._harmed = harmed
        self._primaries: dict[tuple[PartitionId, Epoch], NodeId] = {}
        """Which node has had each partition as a primary, in each epoch."""
        self.standing: dict[NodeId, tuple[int, bool]] = {}
        """What each operator process said last by the connection that it has: which desired state, and whether idle."""
        self._places: dict[PartitionId, tuple[NodeId, int, Epoch, NodeId]] = {}
        """Where each partition was: its node, who holds that, since which epoch, and in which process."""
        self.gone: set[NodeId] = set()
        """Processes of nodes that were taken for lost since the last desired state: no cycle waits for them."""

    def divided(self, whole: DesiredState, desired: DesiredState, held: Mapping[NodeId, int]) -> None:
        """Look at how the desired state of nodes (by what holds them) was divided among their processes."""
        self.gone.clear()
        if set(whole.assignments) != set(desired.assignments) or set(whole.copies) != set(desired.copies):
            self._complain("the desired state of processes has other partitions than that of their nodes")
        for partition, one in desired.copies.items():
            if one.node != (node := whole.copies[partition].node) and one.node.rpartition("#")[0] != node:
                self._complain(f"the copy of {partition} should be on {node}, and is in {one.node}")
        for partition, one in desired.assignments.items():
            node, epoch = whole.assignments[partition].node, one.start.epoch
            if one.node != node and one.node.rpartition("#")[0] != node:
                self._complain(f"{partition} should be on {node}, and is in {one.node}")
            if node not in held:
                continue
            before = self._places.get(partition)
            self._places[partition] = (node, held[node], epoch, one.node)
            if before is not None and before[:3] == (node, held[node], epoch) and before[3] != one.node:
                self._complain(f"{partition} stays on {node}, and moves from {before[3]} to {one.node}")

    def ended(self, desired: DesiredState, there: Collection[NodeId]) -> None:
        """A cycle has ended: look whether every process that has something to do has said that it has done it."""
        for name in sorted(({one.node for one in desired.assignments.values()} & set(there)) - self.gone):
            applied, idle = self.standing.get(name, (-1, False))
            if applied < desired.number or not idle:
                self._complain(f"a cycle has ended, and {name} has not said that it has done its part")

    def before_work(self, process: Process, *, current: bool) -> None:
        """Look at what a process knows, and others of it; one that is not current is of a node nobody counts on."""
        self._goes_forward(process)
        if current:
            self._is_known_to_senders(process)

    def after_work(self, process: Process, done: Round, *, current: bool) -> None:
        """Look at what a process has done."""
        self._reads_on(process, done)
        self._keeps_to_itself(process, done)
        self._is_clean(process)
        if current:
            self._reports_again(process)
            for consumer, sender in done.overdue:
                self._see_why(process, consumer, sender)

    def _keeps_to_itself(self, process: Process, done: Round) -> None:
        """Second copies give nothing away, and are no further than their primaries are known to be."""
        desired, host = process.resident.desired, process.worker.host
        if desired is None or desired.epoch != host.epoch:
            return
        copies = {p: one for p, one in desired.copies.items() if one.node == process.name}
        given = {block.header.sender for blocks in done.blocks.values() for block in blocks}
        given |= set() if done.report is None else {block.header.sender for block in done.report.outputs}
        saved = () if done.report is None else done.report.answers
        given |= {one.partition for one in saved if isinstance(one, SnapshotStored)}
        for p in sorted(given & copies.keys()):
            self._complain(f"the copy of {p} on {process.name} gives away what it makes")
        for p in host.partitions:
            if not host.is_held_back(p):
                first = self._primaries.setdefault((p, host.epoch), process.node)
                if first != process.node:
                    self._complain(f"{p} has two primaries in epoch {host.epoch}: on {first} and on {process.node}")
        for p, one in copies.items():
            if p not in host or (process.node, p) in self._harmed or process.has_twin:
                continue
            if host.kept_from(p) > max(one.keep_from, BatchId(one.start.batch + 1)):
                what = f"the copy of {p} has output from batch {host.kept_from(p)} on, and should from {one.keep_from}"
                self._complain(what)
            if host.frontier(p) > max(one.through, one.start.batch, one.frontier):
                self._complain(f"the copy of {p} is at batch {host.frontier(p)}, and its primary at {one.through}")

    def _is_clean(self, process: Process) -> None:
        """Nothing tentative is in what partitions have completed, and members of a branch keep to theirs."""
        host, branching = process.worker.host, process.resident.branching
        for p in host.partitions:
            if host.is_tentative(p):
                self._complain(f"{p} on {process.name} has completed batch {host.frontier(p)} with tentative blocks")
        for p in branching.members:
            if branching.host.frontier(p) > (branching.forked_at(p) or 0) and not branching.host.is_tentative(p):
                self._complain(f"the branch of {p} on {process.name} has completed a batch as a clean one")

    def _reports_again(self, process: Process) -> None:
        """What was lost with a report is reported again, as long as it is waited for."""
        desired, link, now = process.resident.desired, process.driver, self._clock()
        if desired is None or link is None or not link.whole or process.has_twin:
            return
        if now - max(link.made_at, process.hindered_at) < SILENT_SECONDS:
            return
        for answer, at in process.untold.items():
            if isinstance(answer, SnapshotStored) and now - at > SILENT_SECONDS and not link.on_the_way:
                one = desired.assignments.get(answer.partition)
                begun = process.worker.saving(answer.partition, answer.snapshot.batch)
                if begun is not None and begun != answer.snapshot:
                    continue  # another is being saved in its place, that holds what is needed now
                if one is not None and answer.snapshot.batch in one.marks and one.node == process.name:
                    self._complain(
                        f"the snapshot of {answer.partition} at {answer.snapshot.batch} is not reported again"
                    )

    def _goes_forward(self, process: Process) -> None:
        """A worker never goes back to an earlier desired state."""
        desired = process.resident.desired
        if desired is not None:
            now = desired.epoch, desired.number
            if process.last is not None and now < process.last:
                self._complain(f"{process.name} goes from desired state {process.last} back to {now}")
            process.last = now

    def came(self, process: Process, there: int, *, has_room: bool) -> None:
        """What a process holds in memory is bounded, and what it has room for does not go to disk."""
        if has_room and there > process.room.most:
            self._complain(f"blocks stay in the memory of {process.name}, where {there} bytes wait")
        if not has_room and there <= process.room.most:
            self._complain(f"blocks go to the disk of {process.name}, where only {there} bytes wait")

    def replaced(self, process: Process, node: NodeId, link: Connection) -> None:
        """A second connection takes the place of one that works, and what was on its way comes again."""
        other = self._process_at(address) if (address := process.senders.addresses.get(node)) is not None else None
        if other is None or other.frozen or not link.whole or link.on_the_way or process.has_twin:
            return
        self._complain(f"{process.name} gives up its connection to {node}, which works")

    def _should_be_replaced(self, process: Process, other: Process | None, link: Connection) -> None:
        """A connection that is dead without an end is found out before long, once something is missing."""
        reachable = other is not None and not other.frozen and not self._is_cut()
        hindered_at = process.hindered_at if other is None else max(process.hindered_at, other.hindered_at)
        if self._dead.stays(link, self._clock(), reachable=reachable, hindered_at=hindered_at):
            self._complain(f"the connection of {process.name} to {link.listener} is dead, and stays")

    def _is_known_to_senders(self, process: Process) -> None:
        """What was requested by a connection that is whole, and has come, the sender serves by that connection."""
        for node, held_link in process.senders.held.items():
            link, address = held_link.link.connection, held_link.address
            other = self._process_at(address)
            if process.has_twin or other is None or other.frozen or not link.whole or link.on_the_way:
                continue
            held = other.resident.desired
            for pair, epoch in process.resident.subscriptions.requested(node):
                if held is not None and epoch < held.epoch:
                    continue
                served = other.resident.publications.served_by(pair)
                if served is None and pair[2] is not None:
                    continue  # a second copy that needs what is not kept is not served, and built again
                if served is not None and served[0] > epoch:
                    continue  # it has been placed on another node since
                if served is None or other.subscribers.get(served[1]) is not link:
                    self._complain(f"{pair[0]} has subscribed to {pair[1]} on {node}, which does not serve it by that")

    def _reads_on(self, process: Process, done: Round) -> None:
        """A source that is here and not held back does not stand where the log has its next batch."""
        desired, host = process.resident.desired, process.worker.host
        if desired is None or desired.epoch != host.epoch:
            process.sources_stand.clear()
            return
        answers = () if done.report is None else done.report.answers
        named = {one.partition for one in answers}
        for p in host.partitions:
            if p.operator not in self._program.sources:
                continue
            one = desired.on(process.name).get(p)
            if one is None or one.paused or p in named or one.through <= host.frontier(p) or done.problem is not None:
                process.sources_stand.pop(p, None)  # among others: the storage does not answer, and the node says so
                continue
            at, since = process.sources_stand.setdefault(p, (host.frontier(p), self._clock()))
            if at != host.frontier(p):
                process.sources_stand[p] = (host.frontier(p), self._clock())
            elif self._clock() - max(since, process.hindered_at) > HINDERED_SECONDS:
                self._complain(f"{p} stands at batch {at} on {process.name}, and the log has batch {one.through}")

    def _see_why(self, process: Process, consumer: PartitionId, sender: PartitionId) -> None:
        """A block that its sender has did not come: something must have gone wrong between the two, or on the way."""
        desired = process.resident.desired
        assert desired is not None
        node = desired.assignments[sender].node
        held_link = process.senders.held.get(node)
        if held_link is None:
            return
        link, address = held_link.link.connection, held_link.address
        other = self._process_at(address)
        if link.dead_at is not None:
            self._should_be_replaced(process, other, link)
        if other is None or other.frozen or not other.idle or process.has_twin:
            return
        if not link.whole or link.repeated or link.on_the_way:
            return
        host, at = other.worker.host, process.worker.host.frontier(consumer)
        if sender not in host or host.frontier(sender) <= at or host.kept_from(sender) > at + 1:
            return  # its files are gone: it has to make them again
        held = other.resident.desired
        since = max(link.made_at, process.hindered_at, other.hindered_at)
        if held is None or held.epoch != desired.epoch or self._clock() - since < HINDERED_SECONDS:
            return
        self._complain(f"{consumer} waits for blocks of {sender} on {node}, which has them, and nothing went wrong")
