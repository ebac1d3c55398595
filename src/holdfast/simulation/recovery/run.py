"""One simulated recovery, from one seed: an application, a cluster, a storm, and the calm after it. Runs anywhere.

The recovery machine, the coordinator, workers and hosts are those of real runs. While the storm lasts, batches are
logged, and nodes, messages, files, snapshots and drivers are lost at any point. Then nothing goes wrong any more, nodes
arrive until there are enough, and everything must end: outputs as without failures, recovery over, outboxes trimmed.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from holdfast.errors import HoldfastError
from holdfast.ids import NodeId, OperatorId
from holdfast.recovery.strategy import RecoverySettings, RecoveryStrategy
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.outputs import stagers_of
from holdfast.runtime.coordinator.pacing import CycleSettings
from holdfast.runtime.io.sources import MemoryLog, log_batch
from holdfast.simulation.recovery.applications import (
    Recipe,
    draw_recipe,
    expected_of,
    inputs_of,
    late_of,
    program_of,
)
from holdfast.simulation.recovery.checks import (
    StepChecks,
    Violation,
    late_problems,
    output_problems,
    retention_problems,
)
from holdfast.simulation.recovery.cluster import FakeClock, SimulatedCluster
from holdfast.simulation.recovery.faults import Fault, Mischief, draw_mischief
from holdfast.simulation.recovery.stores import (
    FragileStore,
    SlowSnapshotStore,
    StagingWatchedSink,
    WatchedProgress,
    WatchedSink,
)

MOST_STEPS = 400
"""Steps that a storm, or the calm after it, may take."""


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
class _Old:
    """A driver that another one has followed, and that does not know it."""

    driver: Coordinator
    cluster: SimulatedCluster


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
        self.snapshot_store = SlowSnapshotStore(self.mischief, self.clock, self._complain)
        self.progress = WatchedProgress(self._touch, self._complain)
        """The handle of the driver that counts."""
        self.logs = {name: MemoryLog(source, self.program.name) for name, source in self.program.sources.items()}
        outputs = dict.fromkeys(p.operator for p in self.program.outputs)
        self.sinks: dict[OperatorId, WatchedSink] = {
            # In every third run nodes stage the rows of outputs.
            name: StagingWatchedSink(self._touch, self._complain, self.mischief)
            if seed % 3 == 0
            else WatchedSink(self._touch, self._complain)
            for name in outputs
        }
        self.late: dict[tuple[OperatorId, OperatorId], WatchedSink] = {}
        self.checks = StepChecks(self.program, self.snapshot_store, self._found, self.progress.run)
        self.inputs = inputs_of(self.scene.recipe, self.scene.input_seed, self.scene.count)
        self.logged = 0
        self._died = ""
        self._alive = True
        self.old: _Old | None = None
        self.starts = self._begun = 0
        self.cluster: SimulatedCluster
        self.driver: Coordinator
        self._start({})

    # -- drivers -------------------------------------------------------------------------------------------------------

    def _start(self, stores: Mapping[NodeId, FragileStore]) -> None:
        """Start a driver on a cluster: new nodes, or the old ones' files under their names."""
        self.starts += 1
        self.progress = self.progress.for_next_driver()
        self.snapshot_store.new_driver()
        self.checks.new_driver()
        while True:
            self._begun += 1
            stagers = stagers_of(self.program, self.sinks, f"start-{self._begun}")
            cluster = SimulatedCluster(
                self.program,
                self.logs,
                self.snapshot_store,
                self.mischief,
                self.clock,
                self.note,
                self._touch,
                self._complain,
                stagers,
            )
            cluster.capacity = self.scene.capacity
            if self.seed % 2:
                cluster.small_snapshot = 0  # partitions here are small: every other run has all of them in the store
            names = [NodeId(f"d{self.starts}n{number}") for number in range(self.scene.nodes - len(stores))]
            there = {**dict(list(stores.items())[: self.scene.nodes]), **{name: cluster.new_store() for name in names}}
            if self.draw.random() < 0.3:
                # Some are there, the others come one by one.
                first = self.draw.randint(0, len(there) - 1)
                for _ in range(len(there) - first):
                    cluster.await_node(self.draw.uniform(0, 240))
                there = dict(list(there.items())[:first])
            if there:
                cluster.join(there, self.scene.capacity)
            self.cluster = cluster
            try:
                self.driver = Coordinator(
                    self.program,
                    cluster,
                    self.logs,
                    self.sinks,
                    self._late_sink,
                    self.progress,
                    recovery=self.scene.settings,
                    pace=self.scene.pace,
                    clock=self.clock,
                    emit=self._observe,
                    log=self._nothing,
                )
                for sink in self.sinks.values():
                    if isinstance(sink, StagingWatchedSink):
                        sink.sweep_staged()
                return
            except DriverDied:
                self.note("driver killed while it starts")

    def _restart(self, *, old_goes_on: bool) -> None:
        self._count_driver()
        if old_goes_on:
            self.old = _Old(self.driver, self.cluster)
        stores: dict[NodeId, FragileStore] = {}
        if self.draw.random() < 0.4:
            stores = {name: member.store for name, member in self.cluster.members.items()}
        self.note(f"a new driver; {len(stores)} nodes have their files")
        self._start(stores)

    def _count_driver(self) -> None:
        self.epochs += self.driver.state.epoch.number
        self.rollbacks += self.driver.rollbacks

    def _late_sink(self, operator: OperatorId, feed: OperatorId) -> WatchedSink:
        return self.late.setdefault((operator, feed), WatchedSink(self._touch, self._complain))

    def _touch(self, where: str) -> None:
        """A point at which the driver may die."""
        if self._alive and self.mischief.strikes(Fault.DRIVER_KILLED):
            self.note(f"driver killed: {where}")
            raise DriverDied

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
        while self.logged < self.scene.count - 1 and steps < MOST_STEPS:
            steps += 1
            if self.draw.random() < 0.4:
                self._log_next()
            self._step()
            if self.mischief.would(Fault.DRIVER_REPLACED):
                self.mischief.injected[Fault.DRIVER_REPLACED] += 1
                self._restart(old_goes_on=True)
            if self.old is not None and self.mischief.would(Fault.OLD_DRIVER_WENT_ON):
                self._let_old_go_on()
        self.mischief.active = False

    def _log_next(self, *, last: bool = False) -> None:
        log_batch(self.program, self.logs, dict(self.inputs[self.logged]), last=last)
        self.logged += 1

    def _step(self) -> bool:
        """Let the driver do one step, and look; say whether it ran a cycle."""
        try:
            ran = self.driver.step(self.draw.uniform(1, 30))
        except DriverDied:
            self._restart(old_goes_on=False)
            return True
        if not ran:
            self.clock.now += self.draw.uniform(5, 40)
        self.checks.after_step(self.driver.state, ran and self.cluster.clean, self.driver.status.logged)
        return ran

    def _let_old_go_on(self) -> None:
        assert self.old is not None
        self.mischief.injected[Fault.OLD_DRIVER_WENT_ON] += 1
        self._alive, self.snapshot_store.over = False, True
        try:
            self.note("the old driver goes on")
            self.old.driver.step()
        except HoldfastError as refused:
            # Its epoch is over, or the new one has trimmed what it still wants to read: either way it ends.
            self.note(f"the old driver is refused: {refused}")
            self.old = None
        finally:
            self._alive, self.snapshot_store.over = True, False

    # -- the calm ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let nodes arrive until there are enough; everything must come back and be published."""
        self.note("calm")
        self._come_to_rest("after the storm")
        self._log_next(last=True)
        self._come_to_rest("after the last batch")
        self.driver.checkpoint()
        self._look()
        self._come_to_rest("after the last checkpoint")
        if self.driver.state.recovering or self.driver.state.buffering:
            self._complain("everything is back and safe, and recovery does not end")

    def _come_to_rest(self, when: str) -> None:
        stuck, steps = 0, 0
        while not self.driver.status.caught_up:
            before = _standing(self.driver)
            ran = self._step()
            steps += 1
            state = self.driver.state
            moved = _standing(self.driver) != before
            stuck = 0 if moved or self.cluster.on_the_way() else stuck + 1
            if stuck >= 3 and state.lost and not self.cluster.on_the_way():
                if len(state.nodes) > self.scene.nodes + 2 * len(self.program.partitions):
                    lost = tuple(state.lost)
                    self._found(Violation(f"{when}: {lost[0]} finds no node, though there are enough", lost))
                self.cluster.join({self.cluster.new_name("x"): self.cluster.new_store()}, self.scene.capacity)
                stuck = 0
            elif stuck > 12 or steps > MOST_STEPS:
                behind = tuple(p for p, one in state.partitions.items() if one.frontier < self.driver.status.logged)
                self._found(Violation(f"{when}: nothing moves any more (ran {ran})", behind or self.program.outputs))

    def _look(self) -> None:
        self.checks.after_step(self.driver.state, False, self.driver.status.logged)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Compare with a run without failures; see that outboxes are trimmed."""
        recipe, seed, count = self.scene.recipe, self.scene.input_seed, self.scene.count
        given = {name: sink.given for name, sink in self.sinks.items()}
        for violation in output_problems(self.program, given, expected_of(recipe, seed, count), count):
            self._found(violation)
        late = {place: sink.given for place, sink in self.late.items()}
        for violation in late_problems(late, late_of(recipe, seed, count)):
            self._found(violation)
        self._look_into_files()
        if self.driver.state.buffering:
            return  # the last batch is safe already, so no later checkpoint ends what was found only now
        stores = {name: member.store for name, member in self.cluster.members.items()}
        for violation in retention_problems(self.program, self.driver.state, stores):
            self._found(violation)

    def _look_into_files(self) -> None:
        """Let workers be new: they drop what can be dropped, and find out now if files have vanished in the storm."""
        for _ in range(3):
            epoch = self.driver.state.epoch
            self.cluster.recycle()
            self.driver.probe()
            if self.driver.state.epoch == epoch:
                return
            self._come_to_rest("after files were found missing")
        self._complain("files are missing again and again, though nothing goes wrong any more")

    def outcome(self, violation: Violation | None) -> Outcome:
        """Say what came of it."""
        self._count_driver()
        state = self.driver.state
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
