"""What all drivers of a simulated run share: storage, sinks, snapshots, the clock, and who watches. Runs anywhere."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any, TypeAlias

from holdfast.ids import Epoch, OperatorId
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.liveness import SignWriter
from holdfast.runtime.coordinator.progress import last_driver
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.file_reader import FileReader
from holdfast.runtime.io.intake import Intake
from holdfast.runtime.io.kafka_reader import KafkaReader
from holdfast.runtime.io.parquet_sink import ParquetSink
from holdfast.runtime.io.sinks import OutputKey
from holdfast.runtime.program import Program, SourceProgram
from holdfast.storage.memory import MemoryStorage
from holdfast_lab.simulation.recovery.agents import AgentSnapshots
from holdfast_lab.simulation.recovery.applications import Recipe, inputs_of, program_of
from holdfast_lab.simulation.recovery.broker import Brokers
from holdfast_lab.simulation.recovery.checks import StepChecks, Violation
from holdfast_lab.simulation.recovery.choosing import Chooser
from holdfast_lab.simulation.recovery.cluster import FakeClock, SimulatedCluster
from holdfast_lab.simulation.recovery.faults import (
    DEAD_LINKS,
    SELDOM_WITH_MOVES,
    Fault,
    calmer_for_branches,
    draw_leaving,
    draw_transport,
)
from holdfast_lab.simulation.recovery.folders import SimulatedFolder, allows_in_place, deletes_files, is_in_place
from holdfast_lab.simulation.recovery.gathered import Given, gathered_sink, gathers_outputs
from holdfast_lab.simulation.recovery.gathered_delta import WatchedGatheredDeltaSink, delta_sink, gathers_into_delta
from holdfast_lab.simulation.recovery.giving_up import GivingUp
from holdfast_lab.simulation.recovery.late_sinks import LateSinks, called_on_nodes
from holdfast_lab.simulation.recovery.network import Network
from holdfast_lab.simulation.recovery.plan_scene import PlanScene, changes_plans
from holdfast_lab.simulation.recovery.poison import Poison
from holdfast_lab.simulation.recovery.poison_rows import PoisonRows
from holdfast_lab.simulation.recovery.replanning import Replanner
from holdfast_lab.simulation.recovery.scene import (
    Scene,
    chooses,
    draw_batches_behind,
    draw_branches,
    draw_copies,
    draw_waiting_bytes,
    has_branches,
    has_copies,
    has_dead_links,
    is_resident,
    replans,
)
from holdfast_lab.simulation.recovery.segment_scene import (
    AimedLosses,
    draw_calm,
    draw_segments,
    has_segments,
    holds_blocks,
    is_refined,
)
from holdfast_lab.simulation.recovery.storage import DriverStorage, LogWatch, Outage, SimulatedReader, identity_of
from holdfast_lab.simulation.recovery.stores import (
    SlowSnapshotStore,
    Snapshots,
    StagingWatchedSink,
    WatchedSink,
)
from holdfast_lab.simulation.recovery.table_sink import (
    SimulatedDeltaSink,
    SimulatedGatheredDeltaSink,
    Tables,
    TableSink,
    writes_to_tables,
)
from holdfast_lab.simulation.recovery.topic_sink import SimulatedKafkaSink, Topics, writes_to_topics
from holdfast_lab.simulation.recovery.topics import SimulatedTopic, fetch_of, is_from_topics

AnySink: TypeAlias = WatchedSink | ParquetSink | WatchedGatheredDeltaSink | SimulatedKafkaSink | TableSink
RUN = "run"
"""The name of every simulated run."""


class DriverDied(BaseException):
    """The driver is killed: nothing that it did not write down is left of it."""


class Found(BaseException):
    """A violation ends a run, wherever it is found: nothing in between may take it for a failure of its own."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(violation.what)
        self.violation = violation


@dataclass(slots=True)
class Driver:
    """A driver, with all that is its own."""

    number: int
    claim: int
    generation: int
    program: Program
    cluster: SimulatedCluster
    batch_log: BatchLog
    intake: Intake
    readers: dict[OperatorId, SimulatedReader]
    files: dict[OperatorId, FileReader | KafkaReader]
    """The readers of sources that are read in place."""
    coordinator: Coordinator
    checks: StepChecks
    signs: SignWriter
    ended: bool = field(default=False)


def has_agents(seed: int) -> bool:
    """Whether machines have agents with a ring of peers in this seed."""
    return seed % 4 == 3


class World:
    """The world of one seed, whoever drives the run in it."""

    def __init__(
        self,
        seed: int,
        record: bool,
        touch: Callable[[str], None],
        may_lose: Callable[[str], bool],
    ) -> None:
        """`touch` is called where a driver may die or be frozen; `may_lose`: whether a durable snapshot may be lost."""
        self.seed, self.touch = seed, touch
        self.scene = Scene(random.Random(seed))
        self.draw, self.mischief = self.scene.draw, self.scene.mischief
        self.resident = is_resident(seed)
        if self.resident:
            self.mischief.rates.update(draw_transport(seed))
            if has_dead_links(seed):
                self.mischief.rates.update(DEAD_LINKS)
        if has_copies(seed):
            self.scene.copies = draw_copies(seed)
            self.mischief.rates.update(draw_leaving(seed, self.mischief.rates))
            if math.isfinite(self.scene.copies.move_above):
                # A move needs a checkpoint, and then some batches in which nothing is lost.
                self.scene.pace = replace(self.scene.pace, checkpoint_batches=1)
                self.mischief.rates.update({one: 0.3 * self.mischief.rates[one] for one in SELDOM_WITH_MOVES})
        self.scene.waiting_bytes = draw_waiting_bytes(seed)
        if has_segments(seed):
            self.scene.segments = draw_segments(seed)
            if holds_blocks(seed) and not has_branches(seed):
                self.scene.use_stamps(seed)
        self.aimed = AimedLosses(seed)
        self.plans = PlanScene(seed, self.complain)
        if changes_plans(seed):
            # A change needs a time in which nothing is recovered, and shows what it is worth where saves take long.
            self.scene.pace = replace(self.scene.pace, most_batches=1)
            rates = self.mischief.rates
            rates.update({one: 0.3 * rates[one] for one in SELDOM_WITH_MOVES if one in rates})
            rates[Fault.SAVE_LATE] = max(0.3, rates.get(Fault.SAVE_LATE, 0.0))
        if is_refined(seed):
            # Intermediate snapshots are taken while nothing is recovered, and count until the next checkpoint.
            self.scene.pace = replace(self.scene.pace, most_batches=1, checkpoint_batches=8)
            self.scene.count, self.scene.nodes = max(self.scene.count, 24), max(self.scene.nodes, 6)
            rates = self.mischief.rates
            calm = draw_calm(seed)
            rates.update({one: calm * rate for one, rate in rates.items()})
        if has_branches(seed):
            self.scene.use_branches(draw_branches(seed))
            if self.scene.segments is not None:  # a branch takes in what no checkpoint covers
                self.scene.segments = replace(self.scene.segments, holds=False)
            self.mischief.rates.update(calmer_for_branches(self.mischief.rates))
        self.replanner = Replanner(seed, self.mischief, self.found, wanted=replans(seed))
        self.clock = FakeClock()
        self.journal: list[str] | None = [] if record else None
        self.network = Network(self.mischief, self.clock, self.note)
        self.outage = Outage(self.mischief, self.clock)
        self.objects = MemoryStorage()
        """The run's storage as it is."""
        self._last: tuple[int, Mapping[str, Any] | None] = (-1, None)
        self.snapshot_store: Snapshots
        if has_agents(seed):
            # Most snapshots are on the ring then, and not in the run's storage as well.
            self.scene.pace = replace(self.scene.pace, durable_every=3)
            self.snapshot_store = AgentSnapshots(
                self.objects, self.outage, self.clock, self.network, self.complain, may_lose, seed
            )
        else:
            self.snapshot_store = SlowSnapshotStore(self.mischief, self.clock, self.complain, may_lose)
        self.recipes = [self.scene.recipe, *self.scene.layouts]
        given = inputs_of(self.scene.recipe, self.scene.input_seed, self.scene.count)
        sources = program_of(self.scene.recipe).sources
        self.inputs = {name: [batch[name] for batch in given] for name in sources}
        in_place = is_in_place(seed) and not is_from_topics(seed) and _allow_in_place(self.recipes)
        self.folders = {
            name: SimulatedFolder(name, tables, seed, self.clock, self.mischief, touch)
            for name, tables in (self.inputs.items() if in_place else ())
        }
        from_topics = is_from_topics(seed) and _allow_in_place(self.recipes)
        self.topics_read = {
            name: SimulatedTopic(name, tables, seed, self.clock, self.mischief, touch)
            for name, tables in (self.inputs.items() if from_topics else ())
        }
        """The topics of sources, where they are read from topics."""
        self.fetch = fetch_of(self.topics_read)
        self.watch = LogWatch(
            self.objects,
            self.complain,
            self.sources_of(program_of(self.scene.recipe)),
            {identity_of(one): one for one in self.recipes},
            self.in_place,
        )
        for source, folder in self.folders.items():
            folder.has_copies = partial(self.watch.has_copies, source)
        for source, topic in self.topics_read.items():
            topic.copied_through = partial(self.watch.copied_through, source)
            topic.copied = partial(self.watch.copied, source)
        self.storage = DriverStorage(self.objects, touch, self.outage, self.watch.created)
        """The run's storage as drivers see it."""
        self.node_storage = DriverStorage(self.objects, _nothing, self.outage, _nothing)
        """The run's storage as nodes see it."""
        self.durable = DriverStorage(self.snapshot_store.folder, touch, self.outage, self.snapshot_store.created)
        """Durable snapshots as drivers see them."""
        self.poison = Poison(seed, self.objects, self.mischief, self.clock)
        self.chooser = Chooser(seed, self.objects, self.mischief, wanted=chooses(seed))
        self.poison_rows = PoisonRows(seed, self.mischief, resident=self.resident)
        self.giving_up = GivingUp(seed, wanted=not has_branches(seed) and not self.poison_rows.wanted)
        behind = self.poison_rows.batches_behind if self.poison_rows.wanted else draw_batches_behind(seed)
        self.scene.pace = replace(self.scene.pace, batches_behind=behind)
        self.late_sinks = LateSinks(seed, self.mischief, self.clock, self.complain)
        self.sinks: dict[OperatorId, AnySink] = {}
        self.topics = Topics(Brokers(seed, self.mischief, self.clock), self.complain)
        self.tables = Tables(seed, self.objects, self.mischief, self.complain)
        self.tables.generation_of = lambda batch: self.watch.batches[batch].generation
        self.gathered: Given = {}
        self._delta_starts = count()
        self.late: dict[tuple[OperatorId, OperatorId], WatchedSink] = {}
        self.looks_for_followers = False
        """Whether drivers look for those that have followed them: not in the storm, where old ones are to go on."""
        self.foreign: list[str] = []
        """Objects of another run where this one is to write its outputs."""
        if seed % 9 == 1:
            outputs = dict.fromkeys(p.operator for p in program_of(self.scene.recipe).outputs)
            self.foreign = [f"out/{name}/_holdfast/run.json" for name in outputs]
            for name in self.foreign:
                self.objects.create(name, b'{"run": "another"}')

    def last_driver(self) -> Mapping[str, Any] | None:
        """Return the newest progress that anybody has written."""
        if self._last[0] != self.objects.changes:
            self._last = self.objects.changes, last_driver(self.objects)
        return self._last[1]

    def last_claim(self) -> int:
        """Return the last claim that anybody has taken; who took it may have died of it."""
        last = self.last_driver()
        return 0 if last is None else int(last["claim"])

    def sources_of(self, program: Program) -> dict[OperatorId, SourceProgram]:
        """Return a program's sources as this world has them: from files, or ingested."""
        return {
            name: replace(source, reader=self.in_place[name].reader) if name in self.in_place else source
            for name, source in program.sources.items()
        }

    @property
    def in_place(self) -> dict[OperatorId, SimulatedFolder | SimulatedTopic]:
        """What sources read in place: folders, or topics."""
        return {**self.folders, **self.topics_read}

    def open_files(self, path: str) -> SimulatedFolder:
        """Return what opens the file at a path."""
        return self.folders[OperatorId(path.split("/")[1])]

    def take_foreign_away(self) -> None:
        """The run has been refused: its outputs go elsewhere."""
        self.mischief.injected[Fault.OUTPUTS_TAKEN] += 1
        self.objects.delete(self.foreign)
        self.foreign = []

    def sinks_of(self, program: Program) -> dict[OperatorId, AnySink]:
        """Return the sinks of a program's outputs."""
        for name in dict.fromkeys(p.operator for p in program.outputs):
            if gathers_into_delta(self.seed):
                self.sinks[name] = delta_sink(
                    self.seed,
                    next(self._delta_starts),
                    name,
                    program,
                    self.storage.within(f"out/{name}"),
                    self.gathered,
                )
            elif gathers_outputs(self.seed):
                self.sinks[name] = gathered_sink(
                    self.seed, name, program, self.storage.within(f"out/{name}"), self.gathered
                )
            elif writes_to_tables(self.seed):
                self.sinks[name] = self.table_sink(name, gathers=self.tables.gathers(next(self._delta_starts), name))
            elif writes_to_topics(self.seed):
                to_topic = self.sinks[name] = SimulatedKafkaSink(
                    self.topics, f"out-{name}", self.touch, self.poison.at_sink, tentative=has_branches(self.seed)
                )
                to_topic.before_tentative = self.before_tentative
            elif name not in self.sinks:
                sink = self.sinks[name] = self._sink(name)
                if isinstance(sink, WatchedSink):
                    sink.before_tentative = self.before_tentative
                    sink.on_nodes = called_on_nodes(self.seed)
        return {name: self.sinks[name] for name in dict.fromkeys(p.operator for p in program.outputs)}

    def table_sink(self, name: OperatorId, *, gathers: bool) -> TableSink:
        """Return what a driver writes to a Delta table with."""
        sink: TableSink
        if gathers:
            draw = random.Random(f"gathered {self.seed} {name}")
            sink = SimulatedGatheredDeltaSink(draw.choice((5.0, 60.0, 300.0)), draw.choice((0.004, 128.0)))
        else:
            sink = SimulatedDeltaSink(self.poison.at_sink, tentative=has_branches(self.seed))
            sink.before_tentative = self.before_tentative
        place = f"out/{name}"
        sink.within_run(self.tables, name, self.storage.within(place), self.node_storage.within(place))
        return sink

    def _sink(self, name: OperatorId) -> WatchedSink | ParquetSink:
        """Return a sink: in every third run nodes stage rows, in every other third outputs are Parquet files."""
        if self.seed % 3 == 0:
            return StagingWatchedSink(self.touch, self.complain, self.mischief, at_sink=self.poison.at_sink)
        if self.seed % 3 == 1:
            return ParquetSink(self.storage.within(f"out/{name}"))
        return WatchedSink(self.touch, self.complain, at_sink=self.poison.at_sink)

    def before_tentative(self, key: OutputKey, epoch: Epoch) -> None:
        """See that the progress says that a query is tentative before rows of it are published."""
        last = last_driver(self.objects)
        if last is None or int(last["claim"]) != epoch.claim:
            return  # of a driver that is over
        entry = ((last["machine"] or {}).get("tentative") or {}).get(str(key.query))
        if entry is None or entry["since"] > key.batch:
            self.complain(f"tentative rows of {key} are published, and the progress does not say that it is tentative")

    def late_sink(self, operator: OperatorId, feed: OperatorId) -> WatchedSink:
        """Return the sink of rows that came too late."""
        return self.late.setdefault((operator, feed), WatchedSink(self.touch, self.complain))

    def note(self, line: str) -> None:
        """Write a line into the journal."""
        if self.journal is not None:
            self.journal.append(f"{self.clock.now:8.1f}  {line}")

    def complain(self, what: str) -> None:
        """Something has happened that must not."""
        raise Found(Violation(what))

    def found(self, violation: Violation) -> None:
        """As `complain`, with the partitions that it is about."""
        raise Found(violation)


def _allow_in_place(recipes: Sequence[Recipe]) -> bool:
    return all(allows_in_place(program_of(one)) for one in recipes)


def reads_in_place(seed: int) -> bool:
    """Whether sources are read from files in a run."""
    if not is_in_place(seed) or is_from_topics(seed):
        return False
    scene = Scene(random.Random(seed))
    return _allow_in_place([scene.recipe, *scene.layouts])


def loses_files(seed: int) -> bool:
    """Whether files that sources read in place are deleted for good in a run."""
    return deletes_files(seed) and reads_in_place(seed)


def recipe_of(application: bytes) -> Recipe:
    """Return the recipe that a driver has kept as its application."""
    return Recipe.parse(application.decode())


def _nothing(what: str) -> None:
    pass


def reads_topics(seed: int) -> bool:
    """Whether sources are read from topics in a run."""
    if not is_from_topics(seed):
        return False
    scene = Scene(random.Random(seed))
    recipes = draw_branches(seed) if has_branches(seed) else scene
    return _allow_in_place([recipes.recipe, *recipes.layouts])
