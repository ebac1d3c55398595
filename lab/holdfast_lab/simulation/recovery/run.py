"""One simulated recovery, from one seed: an application, a cluster, a storm, and the calm after it. Runs anywhere.

The recovery machine, the coordinator, workers and hosts are those of real runs. While the storm lasts, batches are
logged, and nodes, messages, files, snapshots and drivers are lost at any point. Then nothing goes wrong any more, nodes
arrive until there are enough, and everything must end: outputs as without failures, recovery over, outboxes trimmed.
"""

from __future__ import annotations

import gc
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from holdfast.errors import HoldfastError
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.feeding import feed_until_end
from holdfast_lab.simulation.recovery.applications import Recipe
from holdfast_lab.simulation.recovery.checks import Violation, retention_problems
from holdfast_lab.simulation.recovery.cluster import SimulatedCluster
from holdfast_lab.simulation.recovery.drivers import Drivers
from holdfast_lab.simulation.recovery.ending import final_problems
from holdfast_lab.simulation.recovery.faults import Fault
from holdfast_lab.simulation.recovery.feed import Feed, starving
from holdfast_lab.simulation.recovery.gathered import gathers_outputs, twice_in_files
from holdfast_lab.simulation.recovery.gathered_delta import gathers_into_delta, twice_in_table
from holdfast_lab.simulation.recovery.leaving import LeavingWatch
from holdfast_lab.simulation.recovery.observed import Observed
from holdfast_lab.simulation.recovery.segment_scene import served
from holdfast_lab.simulation.recovery.table_sink import writes_to_tables
from holdfast_lab.simulation.recovery.world import Driver, Found

MOST_STEPS = 400
"""Steps that a storm, or the calm after it, may take."""
MOST_STILL = 100
"""Steps in the calm in which nothing moves before a node comes, whatever is on the way."""
WITHOUT_DRAWS = frozenset({"buffers-full"})
"""Events that came later than seeds were known by what they draw: a driver does not die at these."""
COLLECTED_AFTER = (20_000, 10, 5)
"""When the garbage collector looks, as `gc.set_threshold` takes it: a run makes little that goes only with it, and
each look at everything goes through all that was ever imported."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    recipe: Recipe
    strategy: RecoveryStrategy
    nodes: int
    batches: int
    resident: bool
    """Whether its workers stayed."""
    violation: Violation | None
    histories: tuple[str, ...]
    """Of the partitions that a violation names."""
    faults: Mapping[Fault, int]
    epochs: int
    rollbacks: int
    drivers: int
    journal: tuple[str, ...]
    promotions: int = 0
    """How often a second copy took its primary's place."""
    tentative: int = 0
    """How many batches of queries were published as tentative."""
    ahead: int = 0
    """How many partitions started from snapshots that are later than their checkpoints."""


def simulate_recovery(seed: int, *, record: bool = False) -> Outcome:
    """Run one seed; with `record`, keep a journal of everything that happened."""
    violation: Violation | None = None
    agents = logging.getLogger("holdfast.store.agent")
    level = agents.level
    agents.setLevel(logging.CRITICAL)  # agents log what goes wrong, and here everything does
    run = _Run(seed, record)
    try:
        with _collected_seldom():
            run.begin()
            run.storm()
            run.calm()
            run.end()
    except Found as found:
        violation = found.violation
    except HoldfastError as error:
        violation = Violation(f"{type(error).__name__}: {error}")
    except Exception as error:  # whatever is raised where nothing may be is a finding, with its seed
        violation = Violation(f"{type(error).__name__} was raised: {error}")
    finally:
        agents.setLevel(level)
    return run.outcome(violation)


@contextmanager
def _collected_seldom() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTED_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


class _Run:
    """The storm of one seed, the calm after it, and the end."""

    def __init__(self, seed: int, record: bool) -> None:
        self.seed = seed
        self.drivers = Drivers(seed, record, self._observe, self._turn)
        world = self.world = self.drivers.world
        self.scene, self.draw, self.mischief, self.clock = world.scene, world.draw, world.mischief, world.clock
        self.snapshot_store, self.note = world.snapshot_store, world.note
        self._complain, self._found = world.complain, world.found
        self.observed = Observed(self.drivers)
        self._leaving = LeavingWatch()

    @property
    def driver(self) -> Driver:
        """The one that has the run."""
        return self.drivers.driver

    @property
    def coordinator(self) -> Coordinator:
        """Of the driver that has the run."""
        return self.drivers.driver.coordinator

    @property
    def cluster(self) -> SimulatedCluster:
        """Of the driver that has the run."""
        return self.drivers.driver.cluster

    def _observe(self, seen: Observation) -> None:
        self.observed.take(seen)
        if seen.kind not in WITHOUT_DRAWS:
            self.drivers.touch(seen.kind)

    # -- the storm -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first driver."""
        self.drivers.start({}, 0)

    def storm(self) -> None:
        """Log batches while everything goes wrong."""
        steps = 0
        while not self._inputs_ended() and steps < MOST_STEPS:
            steps += 1
            self._turn()
            if self.mischief.would(Fault.DRIVER_REPLACED):
                self.mischief.injected[Fault.DRIVER_REPLACED] += 1
                self.drivers.restart(old_goes_on=True)
            if self.drivers.old is not None and self.mischief.would(Fault.OLD_DRIVER_WENT_ON):
                self._let_old_go_on(self.drivers.old)
            if self.drivers.have_another_layout and self.mischief.would(Fault.LAYOUT_CHANGED):
                self.drivers.change_layout()
        self.mischief.active = False
        if self.drivers.is_superseded():
            self.drivers.restart(old_goes_on=False)

    def _inputs_ended(self) -> bool:
        """Whether all that sources have was read, or is logged."""
        folders = self.world.in_place.values()
        return all(one.ended for one in self.driver.readers.values()) and all(one.ended for one in folders)

    def _turn(self) -> None:
        """Let sources deliver, log batches, run a step: each of it, or not."""
        if self.draw.random() < 0.5:
            self.drivers.do(self.driver, self._feed)
        self.world.poison.strike(self.driver.program, self.coordinator.state)
        self.world.chooser.strike(self.driver.program)
        if self.world.replanner.wanted:
            self.drivers.do(self.driver, lambda driver: self.world.replanner.strike(driver.coordinator))
        if (node := self.world.aimed.strike(self.coordinator.state.placement, self.cluster.members)) is not None:
            self.mischief.injected[Fault.NODE_KILLED] += 1
            self.cluster.kill([node])
        if self.world.plans.strikes():
            self.drivers.do(self.driver, lambda driver: self.world.plans.choose(driver.coordinator, driver.program))
        self._step()

    def _feed(self, driver: Driver) -> None:
        """Let sources deliver what they have next, and make batches of what has arrived."""
        feed = Feed(driver, self.world)
        feed.deliver(0.8)
        if self.draw.random() < 0.8 and not feed.make_batches() and (violation := starving(driver)) is not None:
            self._found(violation)

    def _step(self) -> bool:
        """Let the driver do one step, and look; say whether it ran a cycle."""
        driver, ran = self.driver, False

        def step(driver: Driver) -> None:
            nonlocal ran
            ran = driver.coordinator.step(self.draw.uniform(1, 30))

        if not self.drivers.do(driver, step):
            return True
        if not ran:
            self.clock.now += self.draw.uniform(5, 40)
        self._look(ran=ran)
        return ran

    def _let_old_go_on(self, old: Driver) -> None:
        self.mischief.injected[Fault.OLD_DRIVER_WENT_ON] += 1
        self.note("the old driver goes on")
        over, self.snapshot_store.over = self.snapshot_store.over, True
        feeds = self.draw.random() < 0.5
        self.drivers.do(old, lambda driver: self._feed(driver) if feeds else driver.coordinator.step())
        self.snapshot_store.over = over

    # -- the calm ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let nodes arrive until there are enough; everything must come back and be published."""
        self.note("calm")
        while self.snapshot_store.lacks_machines():
            self.cluster.join({self.cluster.new_name("x"): self.cluster.new_files()}, self.cluster.capacity)
        for folder in self.world.in_place.values():
            folder.calm()
        if self.drivers.have_another_layout and self.draw.random() < 0.7:
            self.drivers.change_layout()
        self.world.poison.cure()
        self.world.poison.ask_for_all(self.coordinator.state.parked)
        if self.world.poison_rows.wanted and self.seed % 3 == 0:
            self._repair()
        elif self.coordinator.state.parked and self.seed % 2:
            self.drivers.restart(old_goes_on=False)  # what was asked for holds for the next driver
        self._come_to_rest("after the storm")
        self.world.replanner.change(self.coordinator)
        self._feed_until_end()
        self._look(ran=False)
        self.driver.batch_log.append({}, last=True)
        self._come_to_rest("after the last batch")
        self.world.replanner.change(self.coordinator)
        self.coordinator.checkpoint()
        self._look(ran=False)
        self._come_to_rest("after the last checkpoint")
        self._copies_come_level()
        self.coordinator.publish_gathered()
        if self.coordinator.state.recovering or self.coordinator.state.buffering:
            self._complain("everything is back and safe, and recovery does not end")
        if (waiting := self.coordinator.state.plan.next) is not None:
            self._complain(f"plan {waiting.number} was chosen, everything is safe, and it does not take effect")

    def _feed_until_end(self) -> None:
        """Read the rest of the input. Where all queries are parked a run stops reading: it goes on when they do."""
        while True:
            advance, feed = self.coordinator.advance, Feed(self.driver, self.world)
            feed_until_end(feed, advance, rest=self._rest, stopped=self._stops_reading(), turned=_nothing)
            if not self._all_parked:
                if self.coordinator.reads.is_ahead():
                    self._complain("the input has ended, and watermarks are not as far as what was read moves them")
                return
            self._come_to_rest("while the input is read")

    def _rest(self) -> None:
        self._come_to_rest("behind the last rows")

    @property
    def _all_parked(self) -> bool:
        return len(self.coordinator.state.parked) == len(self.driver.program.outputs)

    def _copies_come_level(self) -> None:
        """Where nothing goes wrong any more, copies get as far as their primaries."""
        wrong: Violation | None = None
        for _ in range(MOST_STEPS):
            state = self.coordinator.state
            behind = [p for p, copy in state.copies.at.items() if copy.frontier < state.partitions[p].frontier]
            if not behind and (wrong := self.world.replanner.problem(self.coordinator)) is None:
                return
            self._step()
        if behind:
            what = f"nothing goes wrong any more, and the copy of {behind[0]} stays behind"
            wrong = Violation(what, tuple(behind))
        assert wrong is not None
        self._found(wrong)

    def _repair(self) -> None:
        """Start a driver whose operators take all rows, unless they do."""
        if self.world.poison_rows.wanted and not self.world.poison_rows.repaired:
            self.world.poison_rows.repair()
            self.drivers.restart(old_goes_on=False)

    def _stops_reading(self) -> Callable[[], bool]:
        """Return what ends reading where all queries are parked, and complains where it takes too many turns."""
        turns = itertools.count()

        def stopped() -> bool:
            if next(turns) > MOST_STEPS:
                waiting = self.coordinator.state.checkpoints.marks
                self._complain(f"the input has ended, and the run goes on for {MOST_STEPS} turns (marks {waiting})")
            return self._all_parked

        return stopped

    def _come_to_rest(self, when: str) -> None:
        stuck, stands, steps, still = 0, 0, 0, 0
        while not self.coordinator.status.caught_up or self.coordinator.state.parked:
            if self.coordinator.state.parked:
                self._repair()
            self.world.poison.ask_for_all(self.coordinator.state.parked)
            before = _standing(self.coordinator)
            ran = self._step()
            steps += 1
            state = self.coordinator.state
            moved = _standing(self.coordinator) != before
            comes = self.cluster.on_the_way()
            stuck = 0 if moved or comes else stuck + 1
            stands = 0 if moved or comes or self.snapshot_store.on_the_way() else stands + 1  # it has just come
            still = 0 if moved else still + 1  # where workers have no end of work, something is always on the way
            if ((stuck >= 3 and not self.cluster.on_the_way()) or still >= MOST_STILL) and state.lost:
                if len(state.nodes) > self.scene.nodes + 2 * len(self.driver.program.partitions):
                    lost = tuple(state.lost)
                    self._found(Violation(f"{when}: {lost[0]} finds no node, though there are enough", lost))
                self.cluster.join({self.cluster.new_name("x"): self.cluster.new_files()}, self.cluster.capacity)
                stuck = stands = still = 0
            elif stands > 12 or steps > MOST_STEPS:
                if state.parked:
                    named = tuple(state.parked)
                    self._found(Violation(f"{when}: {named[0]} was asked to go on, and is still parked", named))
                behind = tuple(
                    p for p, one in state.partitions.items() if one.frontier < self.coordinator.status.logged
                )
                self._found(
                    Violation(f"{when}: nothing moves any more (ran {ran})", behind or self.driver.program.outputs)
                )

    def _look(self, *, ran: bool) -> None:
        state, logged = self.coordinator.state, self.coordinator.status.logged
        served(state, self._found)
        self.driver.checks.after_step(state, ran and self.cluster.clean, logged, self.coordinator.parking.failing)
        for violation in self.observed.tentative_problems():
            self._found(violation)
        if ran and (stays := self._leaving.look(self.coordinator.machine)) is not None:
            self._found(stays)
        self.world.watch.look()
        if writes_to_tables(self.seed):
            self.world.tables.look(list(self.world.sinks))
        twice = twice_in_table if gathers_into_delta(self.seed) else twice_in_files
        for name in self.world.sinks if gathers_outputs(self.seed) else ():
            for violation in twice(name, self.world.objects.within(f"out/{name}")):
                self._found(violation)

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Compare with a run without failures; see that outboxes are trimmed."""
        for violation in final_problems(self.world, self.driver):
            self._found(violation)
        self._look_into_files()
        self._old_ends()
        if self.coordinator.state.buffering:
            return  # the last batch is safe already, so no later checkpoint ends what was found only now
        for violation in retention_problems(self.driver.program, self.coordinator.state, self.cluster.store_of):
            self._found(violation)

    def _look_into_files(self) -> None:
        """Let workers be new: they drop what can be dropped, and find out now if files have vanished in the storm."""
        for _ in range(3):
            epoch = self.coordinator.state.epoch
            self.cluster.recycle()
            self.coordinator.probe(trim_outboxes=True)
            if self.coordinator.state.epoch == epoch:
                return
            self._come_to_rest("after files were found missing")
        self._complain("files are missing again and again, though nothing goes wrong any more")

    def _old_ends(self) -> None:
        """See that a driver which another one has followed ends, though it may have nothing to write any more."""
        old = self.drivers.old
        if old is None or old.claim >= self.driver.claim:
            return
        self.world.looks_for_followers = True
        self.driver.signs.write()
        self.drivers.do(old, lambda driver: driver.coordinator.step())
        self.world.looks_for_followers = False
        if self.drivers.old is old:
            self._complain(f"driver {old.number} is followed, nothing goes wrong any more, and it does not end")

    def outcome(self, violation: Violation | None) -> Outcome:
        """Say what came of it."""
        histories: tuple[str, ...] = ()
        if self.drivers.begun:
            self.drivers.count()
            known = self.coordinator.state.partitions
            wanted = () if violation is None else violation.partitions
            histories = tuple(f"{p}: {known[p].history}" for p in wanted if p in known)
        return Outcome(
            self.seed,
            self.scene.recipe,
            self.scene.strategy,
            self.scene.nodes,
            self.scene.count,
            self.world.resident,
            violation,
            histories,
            Counter(self.mischief.injected),
            self.drivers.epochs,
            self.drivers.rollbacks,
            self.drivers.starts,
            tuple(self.world.journal or ()),
            self.observed.promotions,
            self.observed.tentative,
            self.observed.ahead,
        )


def _standing(driver: Coordinator) -> object:
    state = driver.state
    return (
        state.epoch,
        state.checkpoints.global_batch,
        [(one.frontier, one.state) for one in state.partitions.values()],
        list(state.published.values()),
        len(state.parked),
    )


def _nothing(*given: object) -> None:
    pass
