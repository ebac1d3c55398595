"""What sources deliver to a driver of a seed, and the batches that are made of it. Runs anywhere."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.errors import BadInput
from holdfast.ids import BatchId, OperatorId, PartitionId
from holdfast.recovery.states import AT_WORK_STATES
from holdfast.runtime.coordinator.catching_up import SHRINKS_EVERY
from holdfast.runtime.coordinator.feeding import log_batches
from holdfast.runtime.coordinator.status import has_room
from holdfast.runtime.io.file_reader import FileReader
from holdfast.runtime.io.intake import MicroBatch
from holdfast.runtime.io.kafka_client import BrokersAway
from holdfast.runtime.io.kafka_reader import KafkaReader
from holdfast_lab.simulation.recovery.checks import Violation
from holdfast_lab.simulation.recovery.faults import Fault
from holdfast_lab.simulation.recovery.world import Driver, World


class Feed:
    """What the readers of a driver deliver, as the feeding loop sees it."""

    def __init__(self, driver: Driver, world: World) -> None:
        self._driver, self._world, self._draw = driver, world, world.draw

    @property
    def reading(self) -> bool:
        """See Feeding."""
        some = any(_has_more(reader) for reader in self._driver.files.values())
        return some or not all(one.ended for one in self._driver.readers.values())

    @property
    def pending(self) -> bool:
        """See Feeding."""
        return self._driver.intake.pending

    def log_batches(self) -> bool:
        """See Feeding: what there is comes, as far as not too much waits."""
        self.deliver(0.8)
        return self.make_batches()

    def make_batches(self) -> bool:
        """Make batches of what has arrived."""
        coordinator = self._driver.coordinator
        pace = coordinator.pace
        begun_at: list[BatchId] = []

        def make_batch() -> BatchId | None:
            logged = coordinator.status.logged
            if (made := self._driver.intake.make_batch()) is not None:
                begun_at.append(logged)
            return made

        made = log_batches(coordinator.status, pace.most_ahead, make_batch, pace.batches_behind)
        if begun_at and (violation := running_away(self._driver, begun_at[-1])) is not None:
            self._world.found(violation)
        return made

    def deliver(self, share: float) -> None:
        """Let a share of the sources deliver what they have next."""
        driver = self._driver
        for name, reader in driver.files.items():
            if self._draw.random() < share:
                try:
                    notices = reader.look()
                except BrokersAway:
                    continue  # the next look asks again
                for notice in notices:
                    self._world.note(f"{name}: {notice.line}")
        for name in driver.readers:
            if not driver.readers[name].ended and self._draw.random() < share:
                turn = driver.intake.reader(name)[0]
                self._change_under_reader(name, turn)
                number, offsets, rows, state = driver.readers[name].deliver()
                if not driver.intake.knows(name, number, offsets, turn=turn):
                    pieces = (driver.batch_log.write_piece(name, rows, str(number)),) if rows.num_rows else ()
                    driver.intake.arrived(name, MicroBatch(number, offsets, pieces, state), turn=turn)

    def _change_under_reader(self, name: OperatorId, turn: int) -> None:
        """Perhaps what a reader goes by has changed: a micro-batch comes again with other contents, and is refused."""
        last = self._driver.intake.last(name)
        if last >= 0 and self._world.mischief.strikes(Fault.READER_CHANGED):
            try:
                self._driver.intake.knows(name, last, "others", turn=turn)
            except BadInput:
                return
            self._world.complain(
                f"micro-batch {last} of {name} came again with other contents, and was taken for known"
            )


def _has_more(reader: FileReader | KafkaReader) -> bool:
    """Whether a source that is read in place has something that is not taken, or nobody has looked yet."""
    return bool(reader.waiting if isinstance(reader, FileReader) else reader.pending) or not reader.listed


def _able(driver: Driver) -> list[PartitionId]:
    """Return the partitions that can go on, senders first."""
    state, waiting = driver.coordinator.state, driver.coordinator.parking.waiting()
    able: list[PartitionId] = []
    for p in state.graph.order:
        works = state.partitions[p].state in AT_WORK_STATES and p not in waiting
        if works and all(one in able for one in state.graph.senders(p)):
            able.append(p)
    return able


def _furthest(
    driver: Driver, able: Collection[PartitionId], logged: BatchId, passed_over: Collection[PartitionId] = ()
) -> tuple[PartitionId, BatchId] | None:
    """Return the furthest of the most valuable queries that can go on, and its batch; None: none can.

    `passed_over`: members that do not count. What waits for a checkpoint, or has just been let cross by one, counts as
    done: `logged` is how far the log is.
    """
    state, topology = driver.coordinator.state, driver.program.topology
    worth = {p: int(topology.priority[topology.index(p)]) for p in driver.program.outputs if p in able}
    best = [p for p, one in worth.items() if one == max(worth.values()) and p not in state.dropped]
    stands = _stands(driver, logged)
    far = {p: min(stands[one] for one in state.graph.members(p) if one not in passed_over) for p in best}
    return max(far.items(), key=lambda one: one[1], default=None)


def _stands(driver: Driver, logged: BatchId) -> dict[PartitionId, BatchId]:
    """Return how far partitions are, those after held edges as if they had what they wait for."""
    state = driver.coordinator.state
    waits = {p: logged - at for p, at in state.expected(logged).items()}
    return {p: BatchId(one.frontier + waits.get(p, 0)) for p, one in state.partitions.items()}


def starving(driver: Driver) -> Violation | None:
    """Where no batch is logged though there are rows, see that those who can go on have something to do.

    The furthest of the most valuable queries has: others that catch up, or are slow, do not hold it back, but at a
    bound: of what outboxes hold, or of how far behind they may be.
    """
    coordinator = driver.coordinator
    pace, state, logged = coordinator.pace, coordinator.state, coordinator.status.logged
    if has_room(coordinator.status, pace.most_ahead, pace.batches_behind):
        return None
    able = _able(driver)
    publishing = coordinator.outputs.publishing
    if any(publishing.last(p) is not None for p in driver.program.outputs):
        return None  # a sink takes its time
    stands = _stands(driver, logged)
    if able and all(stands[p] >= logged for p in able):
        return Violation(f"{able[0]} is live and has nothing to do, and no batch is logged", tuple(able))
    furthest = _furthest(driver, able, logged)
    if furthest is None or furthest[1] < logged or pace.batches_behind is None:
        return None
    slowest = min(able, key=lambda p: stands[p])
    lag = logged - stands[slowest]
    settings = state.settings
    full = state.kept_bytes > min(settings.waiting_bytes, settings.buffer_bytes)
    if full or lag >= max(pace.most_ahead, pace.batches_behind - logged // SHRINKS_EVERY):
        return None
    what = f"{furthest[0]} has nothing to do, and no batch is logged: {slowest} is {lag} behind, and catches up"
    return Violation(what, (furthest[0], slowest))


def running_away(driver: Driver, logged: BatchId) -> Violation | None:
    """Where a batch was logged, see that one of the most valuable queries is near: where all are slow, it waits.

    `logged`: the last batch in the log when it was begun. It may bring several: drivers that are over may have left
    fences under the next numbers, and one empty batch is logged after them (0116). Sources do not wait for a partition
    that returns from so long a wait that what it missed is regenerated.
    """
    coordinator = driver.coordinator
    furthest = _furthest(driver, _able(driver), logged, coordinator.state.dropped)
    if furthest is None or logged - furthest[1] < coordinator.pace.most_ahead:
        return None
    what = f"a batch is logged after {logged}, and {furthest[0]} is at {furthest[1]}, further than all as valuable"
    return Violation(what, (furthest[0],))
