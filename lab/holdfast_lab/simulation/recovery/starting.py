"""How drivers start in a simulated run: the real way into a run, with a cluster of simulated nodes. Runs anywhere.

A start looks for signs of life, compares what the run is with the program it has, runs the layout before to its end
where the layout changes, takes its claim, and reads on where the last batch says: each step is that of real runs, and
the driver can die, be frozen or find its storage failing in all of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from holdfast.application.readers import file_options
from holdfast.errors import BadInput, CheckFailed
from holdfast.ids import NodeId, OperatorId
from holdfast.runtime.coordinator.coordinator import Coordinator
from holdfast.runtime.coordinator.event_log import Observation
from holdfast.runtime.coordinator.layout import changed_meanwhile
from holdfast.runtime.coordinator.left_staged import publish_left_staged
from holdfast.runtime.coordinator.liveness import SignWriter
from holdfast.runtime.coordinator.opening import open_run, sweep_after_start
from holdfast.runtime.coordinator.outputs import stagers_of
from holdfast.runtime.coordinator.progress import Progress, last_driver
from holdfast.runtime.coordinator.requests import ResumeRequests, TentativeRequests
from holdfast.runtime.io.batch_log import BatchLog
from holdfast.runtime.io.file_ranges import FileRange
from holdfast.runtime.io.file_reader import FileReader
from holdfast.runtime.io.file_retention import FileRetention
from holdfast.runtime.io.intake import Intake
from holdfast.runtime.io.kafka_reader import KafkaReader
from holdfast.runtime.io.kafka_reading import records_to_copy
from holdfast.runtime.io.needed_ranges import NeededRanges
from holdfast.runtime.io.offset_ranges import OffsetRange
from holdfast.runtime.io.range_copies import RetentionWatch
from holdfast.runtime.messages import DesiredState, OperatorFailed
from holdfast.runtime.program import Program
from holdfast.runtime.state.store import StaleEpoch
from holdfast_lab.simulation.recovery.applications import Recipe, program_of
from holdfast_lab.simulation.recovery.checks import StepChecks
from holdfast_lab.simulation.recovery.claim_checks import ClaimChecks
from holdfast_lab.simulation.recovery.cluster import SimulatedCluster
from holdfast_lab.simulation.recovery.faults import Fault
from holdfast_lab.simulation.recovery.folders import SetClock, deletes_files
from holdfast_lab.simulation.recovery.mark_checks import MarkChecks
from holdfast_lab.simulation.recovery.resident_cluster import ResidentCluster
from holdfast_lab.simulation.recovery.scene import layout_pace
from holdfast_lab.simulation.recovery.storage import SimulatedReader
from holdfast_lab.simulation.recovery.stores import NodeFiles, StagingWatchedSink
from holdfast_lab.simulation.recovery.table_sink import SimulatedGatheredDeltaSink, changes_every
from holdfast_lab.simulation.recovery.world import RUN, Driver, World, recipe_of

MOST_HANDED_OUT = 2000
"""Desired states that an old layout may take to come to its end: where rows are lost, it would go on for ever."""
SIGN_SECONDS = 1.0
"""How often a driver writes a sign of life."""


class Starter:
    """Starts drivers in a world."""

    def __init__(self, world: World, observe: Callable[[Observation], None]) -> None:
        self._world, self._observe = world, observe

    def start(
        self,
        number: int,
        recipe: Recipe,
        stores: Mapping[NodeId, NodeFiles],
        generation: int,
        *,
        take_over: bool,
        meanwhile: Callable[[], object],
    ) -> Driver:
        """Start a driver of a program. `stores` are files that nodes have of a layout, the `generation`.

        `meanwhile` is called while the start looks for signs of life of the driver before.
        """
        world, program = self._world, program_of(recipe)
        world.poison_rows.perhaps_repair()

        def sleep(seconds: float) -> None:
            world.clock.now += seconds
            meanwhile()

        progress = open_run(
            world.storage,
            world.durable,
            program,
            str(recipe).encode(),
            run_old=partial(self._run_old, number, recipe, stores, generation),
            driver={"host": f"host-{number}"},
            sign_seconds=SIGN_SECONDS,
            take_over=take_over,
            run=RUN,
            kept=2,
            clock=world.clock,
            sleep=sleep,
        )
        return self._drive(
            number, program, progress, stores if progress.generation == generation else dict.fromkeys(stores)
        )

    def _run_old(
        self,
        number: int,
        recipe_now: Recipe,
        stores: Mapping[NodeId, NodeFiles],
        generation: int,
        *,
        anew: bool,
        without: frozenset[OperatorId] = frozenset(),
    ) -> None:
        """Run the layout as it is to a durable checkpoint of everything that is logged."""
        world, last = self._world, last_driver(self._world.storage)
        if last is None:  # a slow listing, in which all records were replaced
            raise changed_meanwhile("simulated")
        kept = None if last["program"] is None else world.storage.read(last["program"])
        if kept is None:
            raise BadInput("the application as it was cannot be loaded: it was not kept")
        recipe = recipe_of(kept.to_pybytes())
        if without:
            recipe = replace(recipe, without=tuple(sorted({*recipe.without, *without})))
            world.watch.gives_up(last["generation"], recipe)
            world.mischief.injected[Fault.GIVEN_UP] += 1
        world.note(f"driver {number} brings layout {last['generation']} to its end: {recipe}")
        program = program_of(recipe)
        if (last["machine"] or {}).get("parked") or not world.mischief.active:
            world.poison_rows.repair()
        progress = open_run(
            world.storage,
            world.durable,
            program,
            str(recipe).encode(),
            run_old=_never,
            driver={"host": f"host-{number}"},
            sign_seconds=SIGN_SECONDS,
            take_over=True,
            old_layout=True,
            without=without,
            kept=2,
        )
        there = stores if progress.generation == generation else dict.fromkeys(stores)
        inner = self._drive(number, program, progress, there, old_layout=True)
        inner.cluster.handing_out = self._at_most(inner.cluster.handing_out, inner.claim)
        # Whoever changes the layout has removed what parked queries failed of.
        world.poison.cure()
        for folder in world.in_place.values():
            folder.mend()
        doomed = None if without else world.giving_up.victim(program, program_of(recipe_now))
        if doomed is not None and world.mischief.active:
            world.poison.doom(doomed)
        inner.coordinator.resume_all()
        if anew:
            inner.coordinator.batch_log.append({})
        inner.coordinator.run()
        if (problem := inner.coordinator.parked_problem) is not None:
            progress.end()
            raise OperatorFailed(problem.failed, [*map(str, inner.coordinator.state.parked)])
        inner.coordinator.checkpoint()
        inner.coordinator.publish_gathered()
        progress.end()

    def _at_most(self, look: Callable[[DesiredState], object], claim: int) -> Callable[[DesiredState], object]:
        """Return what looks at desired states, and complains where an old layout takes too many to come to its end.

        A driver that was followed meanwhile may have none: what it saves is refused. It ends by the signs of the other.
        """
        handed_out = itertools.count(1)

        def counted(desired: DesiredState) -> None:
            if next(handed_out) > MOST_HANDED_OUT:
                last = self._world.last_driver()
                if last is not None and int(last["claim"]) > claim:
                    raise StaleEpoch(f"claim {claim} is over: it saw signs of claim {last['claim']}")
                self._world.complain(f"the old layout does not come to its end in {MOST_HANDED_OUT} desired states")
            look(desired)

        return counted

    def _drive(
        self,
        number: int,
        program: Program,
        progress: Progress,
        stores: Mapping[NodeId, NodeFiles | None],
        *,
        old_layout: bool = False,
    ) -> Driver:
        world, scene, sources = self._world, self._world.scene, self._world.sources_of(program)
        # What a driver runs is what is deployed when it has the claim: one before it has other code only before that.
        program = world.poison_rows.program(program)
        batch_log = BatchLog(
            sources,
            program.name,
            world.storage,
            claim=progress.claim,
            generation=progress.generation,
            kept=2,
            now=world.clock,
            files=world.open_files,
            fetch=world.fetch,
        )
        files: dict[OperatorId, FileReader | KafkaReader] = {
            name: FileReader(
                name,
                folder.reader,
                sources[name].parallelism,
                folder,
                world.storage,
                progress.claim,
                clock=world.clock,
                wall=SetClock(world.clock, world.seed, number),
                inline=3,
                small_range=8,
                watch=FileRetention(
                    sources[name],
                    file_options(folder.reader).retention,
                    NeededRanges(batch_log, name, FileRange),
                    batch_log.copies,
                    world.open_files,
                    clock=world.clock,
                    wall=SetClock(world.clock, world.seed, number),
                )
                if deletes_files(world.seed)
                else None,
            )
            for name, folder in world.folders.items()
            if name in sources
        }
        for name, topic in world.topics_read.items():
            if name in sources:
                needed = NeededRanges(batch_log, name, OffsetRange)
                files[name] = KafkaReader(
                    name,
                    topic.reader,
                    sources[name].parallelism,
                    topic,
                    watch=RetentionWatch(
                        name,
                        topic,
                        needed,
                        batch_log.copies,
                        partial(records_to_copy, topic.reader, fetch=world.fetch),
                        check=needed.check,
                        clock=world.clock,
                        wall=SetClock(world.clock, world.seed, number),
                    ),
                    clock=world.clock,
                )
        readers: dict[OperatorId, SimulatedReader] = {}

        def read_again(name: OperatorId) -> None:
            state = dict(intake.reader(name)[1])
            readers[name] = SimulatedReader(world.inputs[name], state, world.mischief)

        def marks_ahead() -> bool:
            return bool(files) and coordinator.reads.is_ahead()

        intake = Intake(
            batch_log,
            sources,
            most_arrivals=3,
            go_back=lambda name: None if name in files else read_again(name),
            in_place=files,
            most_bytes=lambda: world.draw.choice((10, 60, 1000)),
            marks_ahead=marks_ahead,
        )
        for name in sources:
            if name not in files:
                read_again(name)
        sinks = world.sinks_of(program)
        cluster = (ResidentCluster if world.resident else SimulatedCluster)(
            program,
            BatchLog(
                sources,
                program.name,
                world.node_storage,
                generation=progress.generation,
                files=world.open_files,
                fetch=world.fetch,
            ),
            world.snapshot_store,
            world.mischief,
            world.network,
            world.clock,
            world.note,
            world.touch,
            world.complain,
            stagers_of(program, sinks, f"start-{number}-{progress.claim}"),
            f"d{number}.{progress.claim}",
        )
        cluster.capacity, cluster.guard = scene.capacity(program), world.poison
        cluster.poison_rows = world.poison_rows
        if world.seed % 2:
            cluster.small_snapshot = 0  # partitions here are small: every other run has all of them in the store
        self._nodes(number, progress.claim, program, cluster, stores, all_there=old_layout)
        checks = StepChecks(program, world.snapshot_store, world.found, RUN)
        pace, signs = scene.pace_for(program, number), SignWriter(world.objects, progress.claim)
        over = ClaimChecks(progress.claim, world.last_claim, world.complain)

        def emit(seen: Observation) -> None:
            over.emitted(seen)
            self._observe(seen)

        coordinator = Coordinator(
            program,
            cluster,
            batch_log,
            sinks,
            world.late_sink,
            progress,
            recovery=scene.settings(program, number),
            plan=scene.plan(program, number),
            pace=layout_pace(pace) if old_layout else pace,
            errors=world.poison.errors,
            publishing=world.late_sinks.settings,
            runner=world.late_sinks.runner(),
            requests=ResumeRequests(world.storage),
            choices=TentativeRequests(world.storage),
            follower=lambda: signs.follower() if world.looks_for_followers else None,
            clock=world.clock,
            now=world.clock,
            emit=emit,
            log=_nothing,
        )
        marks = MarkChecks(coordinator.state, progress.generation, world.watch, world.complain)

        def handing_out(desired: DesiredState) -> None:
            over.look(desired)
            marks.look(desired)

        cluster.handing_out = handing_out
        sweep_after_start(world.storage, world.durable, progress, coordinator.state)
        if changes_every(world.seed):
            publish_left_staged(
                world.storage,
                sinks.values(),
                progress.run,
                coordinator.state.epoch,
                coordinator.state.published,
                progress.generation,
                _start_again,
                {2: lambda url, partition_by: _gathering(world, url)},
            )
        for sink in sinks.values():
            if isinstance(sink, StagingWatchedSink):
                sink.sweep_staged()
        signs.begin()
        return Driver(
            number, progress.claim, progress.generation, program, cluster, batch_log, intake, readers, files,
            coordinator, checks, signs,
        )  # fmt: skip

    def _nodes(
        self,
        number: int,
        claim: int,
        program: Program,
        cluster: SimulatedCluster,
        stores: Mapping[NodeId, NodeFiles | None],
        *,
        all_there: bool,
    ) -> None:
        """Let the driver's nodes be there: new ones, or earlier ones with their files; sometimes some come later."""
        world, count = self._world, self._world.scene.nodes
        names = [NodeId(f"d{number}.{claim}n{one}") for one in range(count - len(stores))]
        kept = {name: files or cluster.new_files() for name, files in list(stores.items())[:count]}
        there = {**kept, **{name: cluster.new_files() for name in names}}
        capacity = world.scene.capacity(program)
        if all_there:
            extra = len(program.partitions)  # whoever changes the layout sees to enough nodes
            there |= {NodeId(f"d{number}.{claim}x{one}"): cluster.new_files() for one in range(extra)}
        elif world.draw.random() < 0.3:
            # Some are there, the others come one by one.
            first = world.draw.randint(0, len(there) - 1)
            for _ in range(len(there) - first):
                cluster.await_node(world.draw.uniform(0, 240))
            there = dict(list(there.items())[:first])
        if there:
            cluster.join(there, capacity)


def _never(*, anew: bool, without: frozenset[OperatorId] = frozenset()) -> None:
    raise CheckFailed("the old layout is not brought to its end by running it")


def _gathering(world: World, url: str) -> SimulatedGatheredDeltaSink:
    """Return what gathers for a table that is noted."""
    sink = world.table_sink(OperatorId(url.rpartition("/")[2]), gathers=True)
    assert isinstance(sink, SimulatedGatheredDeltaSink)
    return sink


def _start_again(line: str) -> None:
    """People start an application again whose start has said that rows are left staged."""
    if "are not published" in line:
        raise OSError(line)


def _nothing(line: str) -> None:
    pass
