"""One simulated recovery, from one seed: an application, a cluster, a storm, and the calm after it. Runs anywhere.

The recovery machine, the coordinator, workers and hosts are those of real runs. While the storm lasts, batches are
logged, and nodes, messages, files, snapshots and drivers are lost at any point. Then nothing goes wrong any more, nodes
arrive until there are enough, and everything must end: outputs as without failures, recovery over, outboxes trimmed.
"""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.errors import BadInput, HoldfastError
from holdfast.ids import NodeId, OperatorId, PartitionId
from holdfast.recovery.checkpoints import snapshot_name
from holdfast.recovery.states import AT_WORK_STATES
from holdfast.recovery.strategy import RecoveryStrategy
from holdfast.runtime.blocks import DEAD_LETTERS
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.feeding import feed_until_end, log_batches
from holdfast.runtime.coordinator.status import has_room
from holdfast.runtime.io.intake import MicroBatch
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.state.store import StaleEpoch
from holdfast.simulation.recovery.applications import Recipe, computed
from holdfast.simulation.recovery.checks import (
    Violation,
    closing_problems,
    late_problems,
    output_problems,
    retention_problems,
    row_problems,
    turn_problems,
    version_problems,
)
from holdfast.simulation.recovery.cluster import SimulatedCluster
from holdfast.simulation.recovery.faults import Fault
from holdfast.simulation.recovery.poison import parked_problem
from holdfast.simulation.recovery.poison_rows import Answer
from holdfast.simulation.recovery.scene import freezes_at_fences
from holdfast.simulation.recovery.segment_scene import rolled_back_alone, served
from holdfast.simulation.recovery.starting import Starter
from holdfast.simulation.recovery.stores import NodeFiles
from holdfast.simulation.recovery.world import RUN, Driver, DriverDied, Found, World

MOST_STEPS = 400
"""Steps that a storm, or the calm after it, may take."""
MOST_STILL = 100
"""Steps in the calm in which nothing moves before a node comes, whatever is on the way."""
MOST_FROZEN = 2
"""Drivers that are frozen inside a step at one time."""
MOST_STARTS = 8
"""Drivers in a row that may fail to start before nothing goes wrong for one."""


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


class _Run:
    """The drivers of one seed, one after the other and beside each other."""

    def __init__(self, seed: int, record: bool) -> None:
        self.seed = seed
        self.world = World(seed, record, self._touch, self._may_lose)
        world = self.world
        self.scene, self.draw, self.mischief, self.clock = world.scene, world.draw, world.mischief, world.clock
        self.snapshot_store, self.note = world.snapshot_store, world.note
        self._complain, self._found = world.complain, world.found
        self.starter = Starter(world, self._observe)
        self.snapshot_store.superseded = lambda: hasattr(self, "driver") and self.driver.claim < self._last_claim()
        self.epochs = self.rollbacks = self.promotions = self.tentative = self.ahead = 0
        self._tentative_out: dict[tuple[int, PartitionId], int] = {}
        """The last batch of each query, by layout, that is out as tentative."""
        self._tentative_by = 0
        """The driver that published them."""
        self.layout = self._layout_before = 0
        """Which of the layouts drivers are started with now, and were before it was changed last."""
        self._starting: set[int] = set()
        """Drivers that have not begun."""
        self._at_fences = random.Random(f"fences {seed}")
        self.old: Driver | None = None
        """A driver that another one has followed, and that does not know it."""
        for folder in world.folders.values():
            folder.alone = lambda: self.old is None and not self._frozen
        self.starts = self._begun = 0
        self._current = self._acting = 0
        """The number of the driver that has the run, and of the one whose code runs now: it may be an old one."""
        self._frozen = 0
        self.driver: Driver

    @property
    def coordinator(self) -> Coordinator:
        """Of the driver that has the run."""
        return self.driver.coordinator

    @property
    def cluster(self) -> SimulatedCluster:
        """Of the driver that has the run."""
        return self.driver.cluster

    # -- drivers -------------------------------------------------------------------------------------------------------

    def _start(self, stores: Mapping[NodeId, NodeFiles], generation: int, alive: Driver | None = None) -> None:
        """Start a driver on a cluster: new nodes, or the old ones' files, of a layout, under their names."""
        self.starts += 1
        self.snapshot_store.new_driver()
        self.world.network.heal()
        before, tries, active = self._acting, 0, self.mischief.active
        try:
            while True:
                self._begun += 1
                tries += 1
                if tries > MOST_STARTS:
                    self.mischief.active = False  # a start has many calls: one must come through in the end
                number = self._current = self._acting = self._begun
                recipe = self.world.recipes[self.layout]
                parked, plans = self._last_parked(), self._last_plans()
                self._starting.add(number)
                try:
                    take_over = self._looks_for_signs(number, alive)
                    driver = self.starter.start(
                        number,
                        recipe,
                        stores,
                        generation,
                        take_over=take_over,
                        meanwhile=_nothing,
                    )
                except DriverDied:
                    self.note("driver killed while it starts")
                except OSError as error:
                    self.note(f"a driver cannot start: {error}")
                    self.clock.now += self.draw.uniform(1, 30)
                except HoldfastError as error:
                    expected = self.world.foreign and "has rows of another run" in str(error)
                    if number == self._current and not expected and not self._may_fail(error):
                        raise
                    if expected:
                        self.world.take_foreign_away()
                    self.note(f"a driver cannot start: {error}")
                else:
                    if self.world.foreign:
                        self._complain("a run began to write into the outputs of another run")
                    if number == self._current:
                        self._same_parked(parked, driver)
                        if driver.claim == plans[0] + 1:
                            self.world.plans.same_after_start(plans[1], driver.coordinator.state, driver.generation)
                        self.driver = driver
                        return
                    # Frozen while it started: another one has the run, unless this one took its claim after that.
                    if driver.claim > self.driver.claim:
                        self.old, self.driver, self._current = self.driver, driver, number
                    else:
                        self.old = driver
                finally:
                    self._starting.discard(number)
                if number != self._current:
                    return
        finally:
            self._acting, self.mischief.active = before or self._current, active

    def _last_parked(self) -> tuple[int, set[str]]:
        """Return what is parked, as the last progress says, and by which claim."""
        last = self.world.last_driver()
        machine = None if last is None else last["machine"]
        return 0 if last is None else int(last["claim"]), set((machine or {}).get("parked", ()))

    def _last_plans(self) -> tuple[int, Mapping[str, Any] | None]:
        """Return which plan is executed and which one was chosen, as the last progress says, and by which claim."""
        last = self.world.last_driver()
        machine = None if last is None else last["machine"]
        return 0 if last is None else int(last["claim"]), (machine or {}).get("plan")

    def _same_parked(self, before: tuple[int, set[str]], driver: Driver) -> None:
        """See that a start changes nothing about what is parked."""
        claim, parked = before
        found = set(map(str, driver.coordinator.state.parked))
        if driver.claim == claim + 1 and found != parked:
            self._complain(f"{sorted(parked)} were parked, and with the next driver {sorted(found)} are")

    def _looks_for_signs(self, number: int, alive: Driver | None) -> bool:
        """Say whether a start takes over. Without being told so, it must be refused where the driver before lives."""
        if alive is None:
            return False
        if alive.claim == self._last_claim() and self.draw.random() < 0.5:
            self.mischief.injected[Fault.SECOND_START] += 1
            recipe = self.world.recipes[self.layout]
            try:
                driver = self.starter.start(number, recipe, {}, 0, take_over=False, meanwhile=alive.signs.write)
            except BadInput as refused:
                if "another driver runs this application" not in str(refused):
                    raise
                self.note(f"a second driver is refused: {refused.what}")
            else:
                if driver.claim == alive.claim + 1:
                    self._complain(f"a second driver began, and the first one, of claim {alive.claim}, is alive")
                raise DriverDied  # it was frozen as it looked, and others have had the run since
        return True

    def _may_fail(self, error: HoldfastError) -> bool:
        """Whether a start may fail with this: nodes do not come, or the storage fails, while a layout changes."""
        reasons = ("were assigned to no node", "no partition makes progress", "OSError: ", "is parked")
        return self.mischief.active and any(reason in str(error) for reason in reasons)

    def _may_lose(self, name: str) -> bool:
        """Whether a durable snapshot may be damaged: one of the newest checkpoint, where an older one is whole."""
        driver = self.driver
        sure = all(one.deterministic for one in driver.program.operators.values())
        if not self._acting == self._current == driver.number or not sure or not driver.coordinator.machine.has_older():
            return False
        checkpoints = driver.coordinator.state.checkpoints
        for p, batch in (checkpoints.line_before or {}).items():
            older = checkpoints.at(p, batch)
            chain = [] if older is None else checkpoints.chain(p, older)
            if any(self.snapshot_store.is_damaged(snapshot_name(RUN, p, one)) for one in chain):
                return False
        newest = [(p, checkpoints.at(p, batch)) for p, batch in checkpoints.durable_line.items()]
        return any(one is not None and snapshot_name(RUN, p, one) == name for p, one in newest)

    def _restart(self, *, old_goes_on: bool) -> None:
        self._count_driver()
        alive = self.driver if old_goes_on else None
        self.old = alive or self.old
        stores: dict[NodeId, NodeFiles] = {}
        if self.draw.random() < 0.4:
            stores = {name: member.files for name, member in self.cluster.members.items()}
        self.note(f"a new driver; {len(stores)} nodes have their files")
        self._start(stores, self.driver.generation, alive)

    def _change_layout(self) -> None:
        """Restart the application with another layout; now and then with the one before once more."""
        back = self.layout > 0 and self.draw.random() < 0.2
        self._layout_before = self.layout
        self.layout += -1 if back else 1
        self.mischief.injected[Fault.LAYOUT_CHANGED] += 1
        self.note(f"the application is changed: {self.world.recipes[self.layout]}")
        self._restart(old_goes_on=self.mischief.active and self.draw.random() < 0.3)

    def _count_driver(self) -> None:
        self.epochs += self.coordinator.state.epoch.number
        self.rollbacks += self.coordinator.rollbacks

    def _touch(self, where: str) -> None:
        """A point at which the driver whose code runs may die, or be frozen while the world goes on."""
        if self._acting == self._current and self.mischief.strikes(Fault.DRIVER_KILLED):
            self.note(f"driver killed: {where}")
            raise DriverDied
        if self._stops_at_fence(where):
            self.layout = self._layout_before
            self._freeze(where)
        if self._frozen < MOST_FROZEN and self.mischief.would(Fault.DRIVER_PAUSED) and hasattr(self, "driver"):
            self._freeze(where)

    def _stops_at_fence(self, where: str) -> bool:
        """Whether a driver is frozen before it fences the log, and the application is started as it was meanwhile."""
        return (
            freezes_at_fences(self.seed)
            and self.mischief.active
            and self._frozen < MOST_FROZEN
            and self._acting == self._current
            and self._acting in self._starting
            and where.startswith("before creating batches/")
            and self._at_fences.random() < 0.5
        )

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

    def _observe(self, seen: Observation) -> None:
        fields = seen.fields
        if seen.kind == "state":
            self._turned(fields["partition"], fields["before"], fields["cause"], fields["after"])
        elif seen.kind == "parked" and self._is_the_drivers():
            if (problem := parked_problem(self.coordinator.state, fields)) is not None:
                self._complain(problem)
        elif seen.kind == "promoted" and self._is_the_drivers():
            self.promotions += 1
            self.driver.checks.promoted(self.coordinator.state, PartitionId.parse(fields["partition"]))
            self.cluster.has_what_it_should(self.coordinator.state, PartitionId.parse(fields["partition"]))
        elif seen.kind == "rolled-back" and self._is_the_drivers():
            rolled_back = tuple(map(PartitionId.parse, fields["partitions"]))
            rolled_back_alone(self.coordinator.state, rolled_back, self._found)
        elif seen.kind == "intermediate-snapshots" and self._is_the_drivers():
            self.world.aimed.saw(fields["operators"])
        elif seen.kind == "restored" and self._is_the_drivers():
            at = self.coordinator.state.checkpoints.line[PartitionId.parse(fields["partition"])]
            self.ahead += fields["batch"] > at and bool(self.coordinator.state.segments.multiples)
        elif seen.kind == "plan-chosen" and self._is_the_drivers():
            self.world.plans.awaited(self.coordinator.state, self.driver.generation, fields["number"])
        elif seen.kind == "plan-changed" and self._is_the_drivers():
            self.world.plans.took_effect(self.coordinator.state, fields["number"])
        elif seen.kind == "published" and fields.get("tentative"):
            self.tentative += 1
            if self._is_the_drivers():
                place = self.driver.generation, PartitionId.parse(fields["partition"])
                self._tentative_out[place] = max(fields["batch"], self._tentative_out.get(place, -1))
                self._tentative_by = self.driver.number
        elif seen.kind == "corrected" and self._is_the_drivers():
            place = self.driver.generation, PartitionId.parse(fields["query"])
            out, final = self._tentative_out.pop(place, -1), self.coordinator.state.published.get(place[1], -1)
            if final < out:
                self._complain(
                    f"{place[1]} is corrected, has tentative rows of batch {out}, and final ones up to {final}"
                )
        elif seen.kind == "plan-rejected":
            self._complain(f"a plan is not valid: {fields['problems'][0]}")
        if self.world.journal is not None:
            shown = ", ".join(f"{name} {value}" for name, value in fields.items() if value not in (None, [], {}))
            self.note(f"{seen.kind}: {shown}")
        self._touch(seen.kind)

    def _is_the_drivers(self) -> bool:
        """Whether the driver that has the run acts, and not one that starts and brings an old layout to its end."""
        return hasattr(self, "driver") and self._acting == self._current == self.driver.number

    def _turned(self, partition: str, before: str, cause: str, after: str) -> None:
        for problem in turn_problems(partition, before, cause, after):
            self._found(problem)

    # -- the storm -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first driver."""
        self._start({}, 0)

    def storm(self) -> None:
        """Log batches while everything goes wrong."""
        steps = 0
        while not self._inputs_ended() and steps < MOST_STEPS:
            steps += 1
            self._turn()
            if self.mischief.would(Fault.DRIVER_REPLACED):
                self.mischief.injected[Fault.DRIVER_REPLACED] += 1
                self._restart(old_goes_on=True)
            if self.old is not None and self.mischief.would(Fault.OLD_DRIVER_WENT_ON):
                self._let_old_go_on(self.old)
            if self.layout + 1 < len(self.world.recipes) and self.mischief.would(Fault.LAYOUT_CHANGED):
                self._change_layout()
        self.mischief.active = False
        if self.driver.claim < self._last_claim():
            self._restart(old_goes_on=False)

    def _inputs_ended(self) -> bool:
        """Whether all that sources have was read, or is logged."""
        folders = self.world.folders.values()
        return all(one.ended for one in self.driver.readers.values()) and all(one.ended for one in folders)

    def _last_claim(self) -> int:
        """Return the last claim that anybody has taken; who took it may have died of it."""
        last = self.world.last_driver()
        return 0 if last is None else int(last["claim"])

    def _turn(self) -> None:
        """Let sources deliver, log batches, run a step: each of it, or not."""
        if self.draw.random() < 0.5:
            self._do(self.driver, self._feed)
        self.world.poison.strike(self.driver.program, self.coordinator.state)
        self.world.chooser.strike(self.driver.program)
        if self.world.replanner.wanted:
            self._do(self.driver, lambda driver: self.world.replanner.strike(driver.coordinator))
        if (node := self.world.aimed.strike(self.coordinator.state.placement, self.cluster.members)) is not None:
            self.mischief.injected[Fault.NODE_KILLED] += 1
            self.cluster.kill([node])
        if self.world.plans.strikes():
            self._do(self.driver, lambda driver: self.world.plans.choose(driver.coordinator, driver.program))
        self._step()

    def _feed(self, driver: Driver) -> None:
        """Let sources deliver what they have next, and make batches of what has arrived."""
        feed = _Feed(driver, self.world)
        feed.deliver(0.8)
        if self.draw.random() < 0.8 and not feed.make_batches():
            self._nobody_starves(driver)

    def _nobody_starves(self, driver: Driver) -> None:
        """Where no batch is logged though there are rows, those who can go on have something to do."""
        coordinator = driver.coordinator
        if has_room(coordinator.status, coordinator.pace.most_ahead, coordinator.pace.batches_behind):
            return
        state, logged = coordinator.state, coordinator.status.logged
        waiting = coordinator.parking.waiting()

        def is_able(partition: PartitionId) -> bool:
            works = state.partitions[partition].state in AT_WORK_STATES and partition not in waiting
            return works and all(is_able(one) for one in state.graph.senders(partition))

        able = [p for p in driver.program.partitions if is_able(p)]
        publishing = coordinator.outputs.publishing
        if any(publishing.last(p) is not None for p in driver.program.outputs):
            return  # a sink takes its time
        if able and all(state.partitions[p].frontier >= logged for p in able):
            self._found(Violation(f"{able[0]} is live and has nothing to do, and no batch is logged", tuple(able)))

    def _do(self, driver: Driver, work: Callable[[Driver], object]) -> bool:
        """Let a driver do something; say whether it still has the run, and did it to the end."""
        before, over = self._acting, self.snapshot_store.over
        self._acting = driver.number
        try:
            if self.draw.random() < 0.2:
                driver.signs.write()
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

        def step(driver: Driver) -> None:
            nonlocal ran
            ran = driver.coordinator.step(self.draw.uniform(1, 30))

        if not self._do(driver, step):
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
        self._do(old, lambda driver: self._feed(driver) if feeds else driver.coordinator.step())
        self.snapshot_store.over = over

    # -- the calm ------------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let nodes arrive until there are enough; everything must come back and be published."""
        self.note("calm")
        while self.snapshot_store.lacks_machines():
            self.cluster.join({self.cluster.new_name("x"): self.cluster.new_files()}, self.cluster.capacity)
        for folder in self.world.folders.values():
            folder.calm()
        if self.layout + 1 < len(self.world.recipes) and self.draw.random() < 0.7:
            self._change_layout()
        self.world.poison.cure()
        self.world.poison.ask_for_all(self.coordinator.state.parked)
        if self.world.poison_rows.wanted and self.seed % 3 == 0:
            self._repair()
        elif self.coordinator.state.parked and self.seed % 2:
            self._restart(old_goes_on=False)  # what was asked for holds for the next driver
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
        if self.coordinator.state.recovering or self.coordinator.state.buffering:
            self._complain("everything is back and safe, and recovery does not end")
        if (waiting := self.coordinator.state.plan.next) is not None:
            self._complain(f"plan {waiting.number} was chosen, everything is safe, and it does not take effect")

    def _feed_until_end(self) -> None:
        """Read the rest of the input. Where all queries are parked a run stops reading: it goes on when they do."""
        while True:
            advance, feed = self.coordinator.advance, _Feed(self.driver, self.world)
            feed_until_end(feed, advance, stopped=self._stops_reading(), turned=_nothing)
            if not self._all_parked:
                return
            self._come_to_rest("while the input is read")

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
            self._restart(old_goes_on=False)

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
        if self._tentative_by != self.driver.number:
            self._tentative_out.clear()  # the one before may have published the final rows, and written so
        for (generation, query), batch in self._tentative_out.items():
            final = state.published.get(query)
            known = query in state.branches.at or generation != self.driver.generation
            if final is not None and final < batch and not known:
                what = (
                    f"{query} has tentative rows of batch {batch} out, final ones up to {final}, and nobody awaits more"
                )
                self._found(Violation(what, (query,)))
        self.world.watch.look()

    # -- the end -------------------------------------------------------------------------------------------------------

    def end(self) -> None:
        """Compare with a run without failures; see that outboxes are trimmed."""
        world, watch = self.world, self.world.watch
        logged = [watch.batches[batch] for batch in sorted(watch.batches)]
        for violation in (*row_problems(world.inputs, logged), *closing_problems(self.driver.program, logged)):
            self._found(violation)
        given = {
            name: sink.outputs() if isinstance(sink, ParquetSink) else sink.given for name, sink in world.sinks.items()
        }
        batches = [{name: (one.tables, one.mark) for name, one in batch.sources.items()} for batch in logged]
        programs = watch.programs()
        answer = Answer(world.poison_rows, watch.decided.rows)
        outputs, aside = computed(programs, batches, answer.leave_out)
        for violation in answer.problems:
            self._found(violation)
        for violation in output_problems(programs, given, outputs, watch.generations()):
            self._found(violation)
        if self.scene.branches is not None:
            for name, sink in world.sinks.items():
                for violation in version_problems(name, sink.versions(), list(given[name].values())):
                    self._found(violation)
            if waiting := tuple(self.coordinator.state.branches.at):
                self._found(Violation(f"{waiting[0]} is still tentative, and nothing goes wrong any more", waiting))
        late = {place: sink.given for place, sink in world.late.items()}
        letters = [given for place, given in late.items() if place[1] == DEAD_LETTERS]
        late = {place: given for place, given in late.items() if place[1] != DEAD_LETTERS}
        for violation in (*late_problems(late, aside), *answer.letter_problems(letters)):
            self._found(violation)
        self._look_into_files()
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

    def outcome(self, violation: Violation | None) -> Outcome:
        """Say what came of it."""
        histories: tuple[str, ...] = ()
        if hasattr(self, "driver"):
            self._count_driver()
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
            self.epochs,
            self.rollbacks,
            self.starts,
            tuple(self.world.journal or ()),
            self.promotions,
            self.tentative,
            self.ahead,
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


class _Feed:
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


def _nothing(*given: object) -> None:
    pass
