"""What sources deliver to a driver of a seed, and the batches that are made of it. Runs anywhere."""

from __future__ import annotations

from holdfast.errors import BadInput
from holdfast.ids import OperatorId, PartitionId
from holdfast.recovery.states import AT_WORK_STATES
from holdfast.runtime.coordinator.feeding import log_batches
from holdfast.runtime.coordinator.status import has_room
from holdfast.runtime.io.intake import MicroBatch
from holdfast.simulation.recovery.checks import Violation
from holdfast.simulation.recovery.faults import Fault
from holdfast.simulation.recovery.world import Driver, World


class Feed:
    """What the readers of a driver deliver, as the feeding loop sees it."""

    def __init__(self, driver: Driver, world: World) -> None:
        self._driver, self._world, self._draw = driver, world, world.draw

    @property
    def reading(self) -> bool:
        """See Feeding."""
        some = any(reader.waiting or not reader.listed for reader in self._driver.files.values())
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
        return log_batches(coordinator.status, pace.most_ahead, self._driver.intake.make_batch, pace.batches_behind)

    def deliver(self, share: float) -> None:
        """Let a share of the sources deliver what they have next."""
        driver = self._driver
        for name, reader in driver.files.items():
            if self._draw.random() < share:
                for notice in reader.look():
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


def starving(driver: Driver) -> Violation | None:
    """Where no batch is logged though there are rows, see that those who can go on have something to do."""
    coordinator = driver.coordinator
    if has_room(coordinator.status, coordinator.pace.most_ahead, coordinator.pace.batches_behind):
        return None
    state, logged = coordinator.state, coordinator.status.logged
    waiting = coordinator.parking.waiting()

    def is_able(partition: PartitionId) -> bool:
        works = state.partitions[partition].state in AT_WORK_STATES and partition not in waiting
        return works and all(is_able(one) for one in state.graph.senders(partition))

    able = [p for p in driver.program.partitions if is_able(p)]
    publishing = coordinator.outputs.publishing
    if any(publishing.last(p) is not None for p in driver.program.outputs):
        return None  # a sink takes its time
    if able and all(state.partitions[p].frontier >= logged for p in able):
        return Violation(f"{able[0]} is live and has nothing to do, and no batch is logged", tuple(able))
    return None
