"""One simulated recovery, from one seed: an application, a cluster, a storm, and the calm after it. Runs anywhere.

The recovery machine, the coordinator, workers and hosts are those of real runs. While the storm lasts, batches are
logged, and nodes, messages, files, snapshots and drivers are lost at any point. Then nothing goes wrong any more, nodes
arrive until there are enough, and everything must end: outputs as without failures, recovery over, outboxes trimmed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.errors import HoldfastError
from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import snapshot_name
from holdfast.recovery.states import LIVE_STATES, PartitionState
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.outputs import stagers_of
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.coordinator.progress import Progress, last_driver
from holdfast.runtime.coordinator.status import has_room
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.intake import Intake, MicroBatch
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.messages import OperatorFailed
from holdfast.runtime.state.store import StaleEpoch
from holdfast.simulation.recovery.applications import (
    Recipe,
    computed,
    draw_recipe,
    inputs_of,
    program_of,
)
from holdfast.simulation.recovery.checks import (
    StepChecks,
    Violation,
    late_problems,
    output_problems,
    retention_problems,
    row_problems,
)
from holdfast.simulation.recovery.cluster import FakeClock, SimulatedCluster
from holdfast.simulation.recovery.faults import Fault, Mischief, draw_mischief
from holdfast.simulation.recovery.storage import DriverStorage, LogWatch, SimulatedReader
from holdfast.simulation.recovery.stores import (
    FragileStore,
    SlowSnapshotStore,
    StagingWatchedSink,
    WatchedSink,
)
from holdfast.storage.memory import MemoryStorage

MOST_STEPS = 400
"""Steps that a storm, or the calm after it, may take."""
MOST_FROZEN = 2
"""Drivers that are frozen inside a step at one time."""
RUN = "run"
"""The name of every simulated run."""


class DriverDied(BaseException):
    """The driver is killed: nothing that it did not write down is left of it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    recipe: Recipe
    strategy: RecoveryStrategy
    nodes: int
    batches: int
    violation: Violation | None
    histories: tuple[str, ...]
    """Of the partitions that a violation names."""
    faults: Mapping[Fault, int]
    epochs: int
    rollbacks: int
    drivers: int
    journal: tuple[str, ...]


class _Found(BaseException):
    """A violation ends a run, wherever it is found: nothing in between may take it for a failure of its own."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.what)
        self.violation = violation


def simulate_recovery(seed: int, *, record: bool = False) -> Outcome:
    """Run one seed; with `record`, keep a journal of everything that happened."""
    run = _Run(seed, record)
    violation: Violation | None = None
    try:
        run.storm()
        run.calm()
        run.end()
    except _Found as found:
        violation = found.violation
    except HoldfastError as error:
        violation = Violation(f"{type(error).__name__}: {error}")
    except Exception as error:  # whatever is raised where nothing may be is a finding, with its seed
        violation = Violation(f"{type(error).__name__} was raised: {error}")
    return run.outcome(violation)


@dataclass(slots=True)
class _Driver:
    """A driver, with all that is its own."""

    number: int
    claim: int
    cluster: SimulatedCluster
    batch_log: BatchLog
    intake: Intake
    readers: dict[OperatorId, SimulatedReader]
    coordinator: Coordinator


@dataclass(slots=True)
class _Scene:
    """What a seed draws before anything happens."""

    draw: random.Random
    recipe: Recipe = field(init=False)
    strategy: RecoveryStrategy = field(init=False)
    pace: CycleSettings = field(init=False)
    count: int = field(init=False)
    input_seed: int = field(init=False)
    nodes: int = field(init=False)
    capacity: float = field(init=False)
    mischief: Mischief = field(init=False)
    settings: RecoverySettings = field(init=False)

    def __post_init__(self) -> None:
        draw = self.draw
        self.recipe = draw_recipe(draw)
        program = program_of(self.recipe)
        self.strategy = draw.choices(list(RecoveryStrategy), weights=[6, 2, 1, 1])[0]
        self.count = draw.choice((8, 10, 12))
        self.input_seed = draw.randrange(4)
        self.pace = CycleSettings(
            checkpoint_batches=draw.choice((1, 2, 3, 4)),
            durable_every=draw.choice((1, 2, 3)),
            most_batches=draw.choice((1, 2, 8)),
            most_tries=60,
            wait_seconds=1e9,
        )
        self.nodes = draw.randint(3, 8)
        costs = program.topology.cost
        # With a little to spare: after failures not everything fits.
        share = float(costs.sum()) / self.nodes * draw.choice((1.1, 1.3, 1.6))
        self.capacity = max(share, float(costs.max()) * 1.05) / 0.8
        self.mischief = draw_mischief(draw)
        backup_partitions = (
            frozenset(p for p in program.partitions if draw.random() < 0.2) if draw.random() < 0.3 else frozenset()
        )
        self.settings = RecoverySettings(
            strategy=self.strategy,
            backup_partitions=backup_partitions,
            incremental_after_losses=draw.choice((1, 1, 1, 2)),
            level_lag=draw.choice((0, 1, 2)),
            buffer_bytes=draw.choice((float("inf"), float("inf"), 400.0)),
        )


class _Run:
    """The world of one seed."""

    def __init__(self, seed: int, record: bool) -> None:
        self.seed = seed
        self.scene = _Scene(random.Random(seed))
        self.draw, self.mischief = self.scene.draw, self.scene.mischief
        self.program = program_of(self.scene.recipe)
        self.clock = FakeClock()
        self.journal: list[str] | None = [] if record else None
        self.epochs = self.rollbacks = 0
        self.snapshot_store = SlowSnapshotStore(self.mischief, self.clock, self._complain, self._may_lose)
        self.world = MemoryStorage()
        self.watch = LogWatch(self.program, self.world, self._complain)
        self.storage = DriverStorage(self.world, self._touch, self.mischief, self.watch.created)
        outputs = dict.fromkeys(p.operator for p in self.program.outputs)
        self.sinks: dict[OperatorId, WatchedSink | ParquetSink] = {name: self._sink(name) for name in outputs}
        self.late: dict[tuple[OperatorId, OperatorId], WatchedSink] = {}
        self.checks = StepChecks(self.program, self.snapshot_store, self._found, RUN)
        given = inputs_of(self.scene.recipe, self.scene.input_seed, self.scene.count)
        self.inputs = {name: [batch[name] for batch in given] for name in self.program.sources}
        self.old: _Driver | None = None
        """A driver that another one has followed, and that does not know it."""
        self.starts = self._begun = 0
        self._current = self._acting = 0
        """The number of the driver that has the run, and of the one whose code runs now: it may be an old one."""
        self._frozen = 0
        self.driver: _Driver
        self._start({})

    def _sink(self, name: OperatorId) -> WatchedSink | ParquetSink:
        """Return a sink: in every third run nodes stage rows, in every other third outputs are Parquet files."""
        if self.seed % 3 == 0:
            return StagingWatchedSink(self._touch, self._complain, self.mischief)
        if self.seed % 3 == 1:
            return ParquetSink(self.storage.within(f"out/{name}"))
        return WatchedSink(self._touch, self._complain)

    @property
    def coordinator(self) -> Coordinator:
        """Of the driver that has the run."""
        return self.driver.coordinator

    @property
    def cluster(self) -> SimulatedCluster:
        """Of the driver that has the run."""
        return self.driver.cluster

    # -- drivers -------------------------------------------------------------------------------------------------------

    def _start(self, stores: Mapping[NodeId, FragileStore]) -> None:
        """Start a driver on a cluster: new nodes, or the old ones' files under their names."""
        self.starts += 1
        self.snapshot_store.new_driver()
        self.checks.new_driver()
        before = self._acting
        try:
            while True:
                self._begun += 1
                number = self._current = self._acting = self._begun
                try:
                    driver = self._new_driver(number, stores)
                except DriverDied:
                    self.note("driver killed while it starts")
                except OSError as error:
                    self.note(f"a driver cannot start: {error}")
                except StaleEpoch:
                    if number == self._current:
                        raise
                else:
                    if number == self._current:
                        self.driver = driver
                        return
                    # Frozen while it started: another one has the run, unless this one took its claim after that.
                    if driver.claim > self.driver.claim:
                        self.old, self.driver, self._current = self.driver, driver, number
                    else:
                        self.old = driver
                if number != self._current:
                    return
        finally:
            self._acting = before or self._current

    def _new_driver(self, number: int, stores: Mapping[NodeId, FragileStore]) -> _Driver:
        program, sources = self.program, self.program.sources
        progress = Progress(self.storage, program.name, run=RUN, kept=2)
        batch_log = BatchLog(sources, program.name, self.storage, claim=progress.claim, kept=2)
        readers: dict[OperatorId, SimulatedReader] = {}

        def read_again(name: OperatorId) -> None:
            state = dict(intake.reader(name)[1])
            readers[name] = SimulatedReader(self.inputs[name], state, self.mischief)

        intake = Intake(batch_log, sources, most_arrivals=3, go_back=read_again)
        for name in sources:
            read_again(name)
        cluster = SimulatedCluster(
            program,
            BatchLog(sources, program.name, self.world),
            self.snapshot_store,
            self.mischief,
            self.clock,
            self.note,
            self._touch,
            self._complain,
            stagers_of(program, self.sinks, f"start-{number}"),
        )
        cluster.capacity = self.scene.capacity
        if self.seed % 2:
            cluster.small_snapshot = 0  # partitions here are small: every other run has all of them in the store
        names = [NodeId(f"d{number}n{one}") for one in range(self.scene.nodes - len(stores))]
        there = {**dict(list(stores.items())[: self.scene.nodes]), **{name: cluster.new_store() for name in names}}
        if self.draw.random() < 0.3:
            # Some are there, the others come one by one.
            first = self.draw.randint(0, len(there) - 1)
            for _ in range(len(there) - first):
                cluster.await_node(self.draw.uniform(0, 240))
            there = dict(list(there.items())[:first])
        if there:
            cluster.join(there, self.scene.capacity)
        coordinator = Coordinator(
            program,
            cluster,
            batch_log,
            self.sinks,
            self._late_sink,
            progress,
            recovery=self.scene.settings,
            pace=self.scene.pace,
            clock=self.clock,
            now=self.clock,
            emit=self._observe,
            log=self._nothing,
        )
        for sink in self.sinks.values():
            if isinstance(sink, StagingWatchedSink):
                sink.sweep_staged()
        return _Driver(number, progress.claim, cluster, batch_log, intake, readers, coordinator)

    def _may_lose(self, name: str) -> bool:
        """Whether a durable snapshot may be damaged: one of the newest checkpoint, where there is an older one."""
        machine = self.coordinator.machine
        sure = all(one.deterministic for one in self.program.operators.values())
        if self._acting != self._current or not sure or not machine.has_older():
            return False
        checkpoints = self.coordinator.state.checkpoints
        newest = [(p, checkpoints.at(p, checkpoints.durable_batch)) for p in self.program.partitions]
        return any(one is not None and snapshot_name(RUN, p, one) == name for p, one in newest)

    def _restart(self, *, old_goes_on: bool) -> None:
        self._count_driver()
        if old_goes_on:
            self.old = self.driver
        stores: dict[NodeId, FragileStore] = {}
        if self.draw.random() < 0.4:
            stores = {name: member.store for name, member in self.cluster.members.items()}
        self.note(f"a new driver; {len(stores)} nodes have their files")
        self._start(stores)

    def _count_driver(self) -> None:
        self.epochs += self.coordinator.state.epoch.number
        self.rollbacks += self.coordinator.rollbacks

    def _late_sink(self, operator: OperatorId, feed: OperatorId) -> WatchedSink:
        return self.late.setdefault((operator, feed), WatchedSink(self._touch, self._complain))

    def _touch(self, where: str) -> None:
        """A point at which the driver whose code runs may die, or be frozen while the world goes on."""
        if self._acting == self._current and self.mischief.strikes(Fault.DRIVER_KILLED):
            self.note(f"driver killed: {where}")
            raise DriverDied
        if self._frozen < MOST_FROZEN and self.mischief.would(Fault.DRIVER_PAUSED) and hasattr(self, "driver"):
            self._freeze(where)

    def _freeze(self, where: str) -> None:
        """Let another driver take over and go on for a while; then the caller goes on where it was frozen."""
        self.mischief.injected[Fault.DRIVER_PAUSED] += 1
        self.note(f"driver {self._acting} frozen: {where}")
        frozen, over = self._acting, self.snapshot_store.over
        self._frozen += 1
        self.snapshot_store.over = False
        if frozen == self._current:
            self._restart(old_goes_on=False)
        self._acting = self._current
        for _ in range(self.draw.randint(0, 6)):
            self._turn()
        self._frozen -= 1
        self._acting, self.snapshot_store.over = frozen, over or frozen != self._current
        self.note(f"driver {frozen} goes on")

    # -- watching ------------------------------------------------------------------------------------------------------

    def note(self, line: str) -> None:
        """Write a line into the journal."""
        if self.journal is not None:
            self.journal.append(f"{self.clock.now:8.1f}  {line}")

    def _nothing(self, line: str) -> None:
        pass

    def _observe(self, seen: Observation) -> None:
        fields = seen.fields
        if seen.kind == "state":
            self.checks.turned(fields["partition"], fields["before"], fields["cause"], fields["after"])
        elif seen.kind == "plan-rejected":
            self._complain(f"a plan is not valid: {fields['problems'][0]}")
        if self.journal is not None:
            shown = ", ".join(f"{name} {value}" for name, value in fields.items() if value not in (None, [], {}))
            self.note(f"{seen.kind}: {shown}")
        self._touch(seen.kind)

    def _complain(self, what: str) -> None:
        raise _Found(Violation(what))

    def _found(self, violation: Violation) -> None:
        raise _Found(violation)

    # -- the storm -----------------------------------------------------------------------------------------------------

    def storm(self) -> None:
        """Log batches while everything goes wrong."""
        steps = 0
        while not all(reader.ended for reader in self.driver.readers.values()) and steps < MOST_STEPS:
            steps += 1
            self._turn()
            if self.mischief.would(Fault.DRIVER_REPLACED):
                self.mischief.injected[Fault.DRIVER_REPLACED] += 1
                self._restart(old_goes_on=True)
            if self.old is not None and self.mischief.would(Fault.OLD_DRIVER_WENT_ON):
                self._let_old_go_on(self.old)
        self.mischief.active = False
        if self.driver.claim < self._last_claim():
            self._restart(old_goes_on=False)

    def _last_claim(self) -> int:
        """Return the last claim that anybody has taken; who took it may have died of it."""
        last = last_driver(self.world)
        return 0 if last is None else int(last["claim"])

    def _turn(self) -> None:
        """Let sources deliver, log a batch, run a step: each of it, or not."""
        if self.draw.random() < 0.5:
            self._do(self.driver, self._feed)
        self._step()

    def _feed(self, driver: _Driver, *, everything: bool = False) -> None:
        """Let sources deliver what they have next, and make a batch of what has arrived."""
        for name in self.program.sources:
            if everything or self.draw.random() < 0.8:
                turn = driver.intake.reader(name)[0]
                number, offsets, rows, state = driver.readers[name].deliver()
                if not driver.intake.knows(name, number, offsets, turn=turn):
                    pieces = (driver.batch_log.write_piece(name, rows, str(number)),) if rows.num_rows else ()
                    driver.intake.arrived(name, MicroBatch(number, offsets, pieces, state), turn=turn)
        if everything or (self.draw.random() < 0.8 and self._has_room(driver)):
            driver.intake.make_batch()

    def _up(self, partition: PartitionId) -> set[PartitionId]:
        """Return a partition with all that it needs rows of."""
        found = {partition}
        for sender in self.coordinator.state.graph.senders(partition):
            found |= self._up(sender)
        return found

    def _has_room(self, driver: _Driver) -> bool:
        """Whether a batch may be logged, as the feed of a run decides; live queries must not wait for lost ones."""
        coordinator = driver.coordinator
        if has_room(coordinator.status, coordinator.pace.most_batches):
            return True
        state, logged = coordinator.state, coordinator.status.logged
        at_work = LIVE_STATES - {PartitionState.PAUSED}
        able = [
            p for p in self.program.partitions if all(state.partitions[one].state in at_work for one in self._up(p))
        ]
        if able and all(state.partitions[p].frontier >= logged for p in able):
            self._found(Violation(f"{able[0]} is live and has nothing to do, and no batch is logged", tuple(able)))
        return False

    def _do(self, driver: _Driver, work: Callable[[_Driver], object]) -> bool:
        """Let a driver do something; say whether it still has the run, and did it to the end."""
        before, over = self._acting, self.snapshot_store.over
        self._acting = driver.number
        try:
            work(driver)
        except DriverDied:
            if driver.number == self._current:
                self._restart(old_goes_on=False)
            return False
        except OSError as error:
            self.note(f"the driver ends: {error}")
            if driver.number == self._current:
                self._restart(old_goes_on=False)
            return False
        except HoldfastError as refused:
            if driver.number == self._current:
                if isinstance(refused, OperatorFailed) and "its sink failed: OSError" in str(refused):
                    self.note(f"the driver ends: {refused}")
                    self._restart(old_goes_on=False)
                    return False
                if not isinstance(refused, StaleEpoch) or self._last_claim() <= driver.claim:
                    raise
                self.note(f"driver {driver.number} is over: one that died as it started took a later claim")
                self._restart(old_goes_on=False)
                return False
            # Its claim is over, or the new one has trimmed what it still wants to read: either way it ends.
            self.note(f"driver {driver.number} is refused: {refused}")
            self.old = None if self.old is driver else self.old
            return False
        finally:
            self._acting, self.snapshot_store.over = before, over
        if driver.number != self._current:
            self.old = driver
            return False
        return True

    def _step(self) -> bool:
        """Let the driver do one step, and look; say whether it ran a cycle."""
        driver, ran = self.driver, False

        def step(driver: _Driver) -> None:
            nonlocal ran
            ran = driver.coordinator.step(self.draw.uniform(1, 30))

        if not self._do(driver, step):
            return True
        if not ran:
            self.clock.now += self.draw.uniform(5, 40)
        self._look(ran=ran)
        return ran

    def _let_old_go_on(self, old: _Driver) -> None:
        self.mischief.injected[Fault.OLD_DRIVER_WENT_ON] += 1
        self.note("the old driver goes on")
        over, self.snapshot_store.over = self.snapshot_store.over, True
        feeds = self.draw.random() < 0.5
        self._do(old, lambda driver: self._feed(driver) if feeds else driver.coordinator.step())
        self.snapshot_store.over = over

    # -- the calm ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let nodes arrive until there are enough; everything must come back and be published."""
        self.note("calm")
        self._come_to_rest("after the storm")
        while not all(one.ended for one in self.driver.readers.values()) or self.driver.intake.pending:
            self._feed(self.driver, everything=True)
        self.driver.batch_log.append({}, last=True)
        self._come_to_rest("after the last batch")
        self.coordinator.checkpoint()
        self._look(ran=False)
        self._come_to_rest("after the last checkpoint")
        if self.coordinator.state.recovering or self.coordinator.state.buffering:
            self._complain("everything is back and safe, and recovery does not end")

    def _come_to_rest(self, when: str) -> None:
        stuck, steps = 0, 0
        while not self.coordinator.status.caught_up:
            before = _standing(self.coordinator)
            ran = self._step()
            steps += 1
            state = self.coordinator.state
            moved = _standing(self.coordinator) != before
            stuck = 0 if moved or self.cluster.on_the_way() else stuck + 1
            if stuck >= 3 and state.lost and not self.cluster.on_the_way():
                if len(state.nodes) > self.scene.nodes + 2 * len(self.program.partitions):
                    lost = tuple(state.lost)
                    self._found(Violation(f"{when}: {lost[0]} finds no node, though there are enough", lost))
                self.cluster.join({self.cluster.new_name("x"): self.cluster.new_store()}, self.scene.capacity)
                stuck = 0
            elif stuck > 12 or steps > MOST_STEPS:
                behind = tuple(
                    p for p, one in state.partitions.items() if one.frontier < self.coordinator.status.logged
                )
                self._found(Violation(f"{when}: nothing moves any more (ran {ran})", behind or self.program.outputs))

    def _look(self, *, ran: bool) -> None:
        state, logged = self.coordinator.state, self.coordinator.status.logged
        self.checks.after_step(state, ran and self.cluster.clean, logged)
        self.watch.look()

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Compare with a run without failures; see that outboxes are trimmed."""
        logged = [self.watch.batches[batch] for batch in sorted(self.watch.batches)]
        for violation in row_problems(self.inputs, logged):
            self._found(violation)
        given = {
            name: sink.outputs() if isinstance(sink, ParquetSink) else sink.given for name, sink in self.sinks.items()
        }
        batches = [{name: (one.tables, one.watermark) for name, one in batch.items()} for batch in logged]
        outputs, aside = computed(self.program, batches)
        for violation in output_problems(self.program, given, outputs, len(batches)):
            self._found(violation)
        late = {place: sink.given for place, sink in self.late.items()}
        for violation in late_problems(late, aside):
            self._found(violation)
        self._look_into_files()
        if self.coordinator.state.buffering:
            return  # the last batch is safe already, so no later checkpoint ends what was found only now
        stores = {name: member.store for name, member in self.cluster.members.items()}
        for violation in retention_problems(self.program, self.coordinator.state, stores):
            self._found(violation)

    def _look_into_files(self) -> None:
        """Let workers be new: they drop what can be dropped, and find out now if files have vanished in the storm."""
        for _ in range(3):
            epoch = self.coordinator.state.epoch
            self.cluster.recycle()
            self.coordinator.probe()
            if self.coordinator.state.epoch == epoch:
                return
            self._come_to_rest("after files were found missing")
        self._complain("files are missing again and again, though nothing goes wrong any more")

    def outcome(self, violation: Violation | None) -> Outcome:
        """Say what came of it."""
        self._count_driver()
        state = self.coordinator.state
        partitions = () if violation is None else violation.partitions
        histories = tuple(f"{p}: {state.partitions[p].history}" for p in partitions)
        return Outcome(
            self.seed,
            self.scene.recipe,
            self.scene.strategy,
            self.scene.nodes,
            self.scene.count,
            violation,
            histories,
            Counter(self.mischief.injected),
            self.epochs,
            self.rollbacks,
            self.starts,
            tuple(self.journal or ()),
        )


def _standing(driver: Coordinator) -> object:
    state = driver.state
    return (
        state.epoch,
        state.checkpoints.global_batch,
        [(one.frontier, one.state) for one in state.partitions.values()],
        list(state.published.values()),
    )
