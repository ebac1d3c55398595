"""The drivers of one seed, one after the other and beside each other: started, killed, frozen, replaced. Runs anywhere.

One has the run, and one acts: that may be an old one, which was frozen or replaced and does not know it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import BadInput, HoldfastError
from holdfast.ids import NodeId
from holdfast.recovery.checkpoints import snapshot_name
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.io.parquet_names import GROUPS
from holdfast.runtime.state.store import StaleEpoch
from holdfast_lab.simulation.recovery.broker import NO_ANSWER
from holdfast_lab.simulation.recovery.delta_table import LOG
from holdfast_lab.simulation.recovery.faults import Fault
from holdfast_lab.simulation.recovery.gathered import gathers_outputs
from holdfast_lab.simulation.recovery.scene import freezes_at_fences
from holdfast_lab.simulation.recovery.starting import Starter
from holdfast_lab.simulation.recovery.stores import NodeFiles
from holdfast_lab.simulation.recovery.table_sink import writes_to_tables
from holdfast_lab.simulation.recovery.topic_sink import writes_to_targets, writes_to_topics
from holdfast_lab.simulation.recovery.world import RUN, Driver, DriverDied, World

MOST_FROZEN = 2
"""Drivers that are frozen inside a step at one time."""
REQUESTS = ("opening a producer", "sending offsets to a transaction", "committing a transaction", "how far a group is")
"""Requests of the Kafka sink around which a driver may be frozen."""
MOST_STARTS = 8
"""Drivers in a row that may fail to start before nothing goes wrong for one."""


class Drivers:
    """See the module."""

    def __init__(
        self, seed: int, record: bool, observe: Callable[[Observation], None], turn: Callable[[], None]
    ) -> None:
        """Make the world that they are in. `observe` takes their events; `turn` lets the one that has the run go on."""
        self._seed, self._turn = seed, turn
        self.world = world = World(seed, record, self.touch, self._may_lose)
        self._draw, self._mischief, self._note = world.draw, world.mischief, world.note
        self._snapshot_store = world.snapshot_store
        self._starter = Starter(world, observe)
        self._snapshot_store.superseded = lambda: self.begun and self.is_superseded()
        self.epochs = self.rollbacks = self.starts = 0
        self._layout = self._layout_before = 0
        """Which of the layouts drivers are started with now, and were before it was changed last."""
        self._starting: set[int] = set()
        """Drivers that have not begun."""
        self._at_fences = random.Random(f"fences {seed}")
        self._at_groups = random.Random(f"groups {seed}")
        self.old: Driver | None = None
        """A driver that another one has followed, and that does not know it."""
        self._numbers = 0
        self._current = self._acting = 0
        """The number of the driver that has the run, and of the one whose code runs now: it may be an old one."""
        self._frozen = 0
        self.driver: Driver
        """The one that has the run."""
        for folder in world.in_place.values():
            folder.alone = lambda: self.old is None and not self._frozen

    @property
    def begun(self) -> bool:
        """Whether a driver has begun."""
        return hasattr(self, "driver")

    @property
    def has_the_run(self) -> bool:
        """Whether the driver that has the run acts, and not one that starts and brings an old layout to its end."""
        return self.begun and self._acting == self._current == self.driver.number

    @property
    def have_another_layout(self) -> bool:
        """Whether there is one after that with which drivers are started now."""
        return self._layout + 1 < len(self.world.recipes)

    def is_superseded(self) -> bool:
        """Whether another driver has taken a later claim than the one that has the run."""
        return self.driver.claim < self.world.last_claim()

    # -- starts --------------------------------------------------------------------------------------------------------

    def start(self, stores: Mapping[NodeId, NodeFiles], generation: int, alive: Driver | None = None) -> None:
        """Start a driver on a cluster: new nodes, or the old ones' files, of a layout, under their names."""
        self.starts += 1
        self._snapshot_store.new_driver()
        self.world.network.heal()
        before, tries, active = self._acting, 0, self._mischief.active
        try:
            while True:
                self._numbers += 1
                tries += 1
                if tries > MOST_STARTS:
                    self._mischief.active = False  # a start has many calls: one must come through in the end
                number = self._current = self._acting = self._numbers
                recipe = self.world.recipes[self._layout]
                parked, plans = self._last_parked(), self._last_plans()
                self._starting.add(number)
                try:
                    take_over = self._looks_for_signs(number, alive)
                    driver = self._starter.start(
                        number, recipe, stores, generation, take_over=take_over, meanwhile=lambda: None
                    )
                except DriverDied:
                    self._note("driver killed while it starts")
                except OSError as error:
                    self._note(f"a driver cannot start: {error}")
                    self.world.clock.now += self._draw.uniform(1, 30)
                except HoldfastError as error:
                    expected = self.world.foreign and "has rows of another run" in str(error)
                    if number == self._current and not expected and not self._may_fail(error):
                        raise
                    if expected:
                        self.world.take_foreign_away()
                    self._note(f"a driver cannot start: {error}")
                else:
                    if self.world.foreign:
                        self.world.complain("a run began to write into the outputs of another run")
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
            self._acting, self._mischief.active = before or self._current, active

    def _looks_for_signs(self, number: int, alive: Driver | None) -> bool:
        """Say whether a start takes over. Without being told so, it must be refused where the driver before lives."""
        if alive is None:
            return False
        if alive.claim == self.world.last_claim() and self._draw.random() < 0.5:
            self._mischief.injected[Fault.SECOND_START] += 1
            recipe = self.world.recipes[self._layout]
            try:
                driver = self._starter.start(number, recipe, {}, 0, take_over=False, meanwhile=alive.signs.write)
            except BadInput as refused:
                if "another driver runs this application" not in str(refused):
                    raise
                self._note(f"a second driver is refused: {refused.what}")
            else:
                if driver.claim == alive.claim + 1:
                    self.world.complain(f"a second driver began, and the first one, of claim {alive.claim}, is alive")
                raise DriverDied  # it was frozen as it looked, and others have had the run since
        return True

    def _may_fail(self, error: HoldfastError) -> bool:
        """Whether a start may fail with this: nodes do not come, or the storage fails, while a layout changes."""
        reasons = (
            "were assigned to no node",
            "no partition makes progress",
            "OSError: ",
            "is parked",
            "; parked: ",
            *NO_ANSWER,
        )
        return self._mischief.active and any(reason in str(error) for reason in reasons)

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
            self.world.complain(f"{sorted(parked)} were parked, and with the next driver {sorted(found)} are")

    def restart(self, *, old_goes_on: bool) -> None:
        """Start another driver: the one that has the run is killed, or goes on and does not know of it."""
        self.count()
        alive = self.driver if old_goes_on else None
        self.old = alive or self.old
        stores: dict[NodeId, NodeFiles] = {}
        if self._draw.random() < 0.4:
            stores = {name: member.files for name, member in self.driver.cluster.members.items()}
        self._note(f"a new driver; {len(stores)} nodes have their files")
        self.start(stores, self.driver.generation, alive)

    def change_layout(self) -> None:
        """Restart the application with another layout; now and then with the one before once more."""
        back = self._layout > 0 and self._draw.random() < 0.2
        self._layout_before = self._layout
        self._layout += -1 if back else 1
        self._mischief.injected[Fault.LAYOUT_CHANGED] += 1
        self._note(f"the application is changed: {self.world.recipes[self._layout]}")
        self.restart(old_goes_on=self._mischief.active and self._draw.random() < 0.3)

    def count(self) -> None:
        """Count what the driver that has the run has done: it is over."""
        self.epochs += self.driver.coordinator.state.epoch.number
        self.rollbacks += self.driver.coordinator.rollbacks

    # -- acting --------------------------------------------------------------------------------------------------------

    def do(self, driver: Driver, work: Callable[[Driver], object]) -> bool:
        """Let a driver do something; say whether it still has the run, and did it to the end."""
        before, over = self._acting, self._snapshot_store.over
        self._acting = driver.number
        try:
            if self._draw.random() < 0.2:
                driver.signs.write()
            work(driver)
        except DriverDied:
            return self._is_over(driver)
        except OSError as error:
            self._note(f"driver {driver.number} ends: {error}")
            return self._is_over(driver)
        except HoldfastError as refused:
            if driver.number == self._current:
                if not isinstance(refused, StaleEpoch) or self.world.last_claim() <= driver.claim:
                    raise
                self._note(f"driver {driver.number} is over: one that died as it started took a later claim")
                return self._is_over(driver)
            # Its claim is over, or the new one has trimmed what it still wants to read: either way it ends.
            self._note(f"driver {driver.number} is refused: {refused}")
            return self._is_over(driver)
        finally:
            self._acting, self._snapshot_store.over = before, over
        if driver.number != self._current:
            self.old = driver
            return False
        return True

    def _is_over(self, driver: Driver) -> bool:
        """A driver has ended, whatever ended it: it never goes on, and another one follows it if it had the run."""
        self.old = None if self.old is driver else self.old
        if driver.number == self._current:
            self.restart(old_goes_on=False)
        return False

    def touch(self, where: str) -> None:
        """A point at which the driver whose code runs may die, or be frozen while the world goes on."""
        if self._acting == self._current and self._mischief.strikes(Fault.DRIVER_KILLED):
            self._note(f"driver killed: {where}")
            raise DriverDied
        if self._dies_at_target(where):
            self._note(f"driver killed: {where}")
            raise DriverDied
        if self._stops_at_fence(where):
            self._layout = self._layout_before
            self._freeze(where)
        if self._stops_at_group(where):
            self._freeze(where)
        if self._frozen < MOST_FROZEN and self._mischief.would(Fault.DRIVER_PAUSED) and self.begun:
            self._freeze(where)

    def _stops_at_fence(self, where: str) -> bool:
        """Whether a driver is frozen before it fences the log, and the application is started as it was meanwhile."""
        return (
            freezes_at_fences(self._seed)
            and self._mischief.active
            and self._frozen < MOST_FROZEN
            and self._acting == self._current
            and self._acting in self._starting
            and where.startswith("before creating batches/")
            and self._at_fences.random() < 0.5
        )

    def _stops_at_group(self, where: str) -> bool:
        """Whether a driver is frozen before it takes the number of a group of outputs."""
        return (
            (gathers_outputs(self._seed) or writes_to_tables(self._seed))
            and self._mischief.active
            and self._frozen < MOST_FROZEN
            and self._acting == self._current
            and self.begun
            and where.startswith((f"before creating {GROUPS}", f"before creating {LOG}"))
            and self._at_groups.random() < 0.3
        ) or (
            writes_to_topics(self._seed)
            and self._mischief.active
            and self._frozen < MOST_FROZEN
            and self._acting == self._current
            and self.begun
            and where.endswith(REQUESTS)
            and self._at_groups.random() < 0.04
        )

    def _dies_at_target(self, where: str) -> bool:
        """Whether a driver is killed after a sink's commit, which it has not reported then, or before it."""
        if not (writes_to_targets(self._seed) and self._mischief.active and self.begun):
            return False
        killed = (
            self._acting == self._current
            and where.endswith(("committing a transaction", f"creating {LOG}{where.rpartition('/')[2]}"))
            and self._at_groups.random() < 0.05
        )
        self._mischief.injected[Fault.KILLED_AT_COMMIT] += killed
        return killed

    def _freeze(self, where: str) -> None:
        """Let another driver take over and go on for a while; then the caller goes on where it was frozen."""
        self._mischief.injected[Fault.DRIVER_PAUSED] += 1
        self._note(f"driver {self._acting} frozen: {where}")
        frozen, over = self._acting, self._snapshot_store.over
        self._frozen += 1
        self._snapshot_store.over = False
        if frozen == self._current:
            self.restart(old_goes_on=False)
        self._acting = self._current
        for _ in range(self._draw.randint(0, 6)):
            self._turn()
        self._frozen -= 1
        self._acting, self._snapshot_store.over = frozen, over or frozen != self._current
        self._note(f"driver {frozen} goes on")

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
            if any(self._snapshot_store.is_damaged(snapshot_name(RUN, p, one)) for one in chain):
                return False
        newest = [(p, checkpoints.at(p, batch)) for p, batch in checkpoints.durable_line.items()]
        return any(one is not None and snapshot_name(RUN, p, one) == name for p, one in newest)
