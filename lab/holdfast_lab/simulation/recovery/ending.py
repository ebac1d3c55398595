"""What must hold of a run that has ended: outputs as without failures, and nothing still tentative. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.runtime.blocks import DEAD_LETTERS
from holdfast.runtime.io.gathered_parquet import GatheredParquetSink
from holdfast_lab.simulation.recovery.applications import computed
from holdfast_lab.simulation.recovery.checks import (
    Violation,
    closing_problems,
    late_problems,
    output_problems,
    row_problems,
    version_problems,
)
from holdfast_lab.simulation.recovery.gathered import closing_file_problems
from holdfast_lab.simulation.recovery.gathered_delta import WatchedGatheredDeltaSink, closing_table_problems
from holdfast_lab.simulation.recovery.poison_rows import Answer
from holdfast_lab.simulation.recovery.stores import WatchedSink
from holdfast_lab.simulation.recovery.table_sink import (
    SimulatedDeltaSink,
    SimulatedGatheredDeltaSink,
    closing_commit_problems,
)
from holdfast_lab.simulation.recovery.topic_sink import SimulatedKafkaSink, open_problems
from holdfast_lab.simulation.recovery.world import Driver, World


def final_problems(world: World, driver: Driver) -> Iterator[Violation]:
    """Compare with a run without failures."""
    watch = world.watch
    logged = [watch.batches[batch] for batch in sorted(watch.batches)]
    yield from row_problems(world.inputs, logged)
    yield from closing_problems(driver.program, logged)
    given = {
        name: sink.given if isinstance(sink, WatchedSink) else sink.outputs() for name, sink in world.sinks.items()
    }
    batches = [{name: (one.tables, one.mark) for name, one in batch.sources.items()} for batch in logged]
    programs = watch.programs()
    answer = Answer(world.poison_rows, watch.decided.rows)
    outputs, aside = computed(programs, batches, answer.leave_out, watch.ended_as())
    yield from answer.problems
    yield from output_problems(programs, given, outputs, watch.generations(), watch.is_given_up)
    for name, sink in world.sinks.items():
        if isinstance(sink, GatheredParquetSink):
            yield from closing_file_problems(name, sink, world.objects.within(f"out/{name}"))
        if isinstance(sink, WatchedGatheredDeltaSink):
            yield from closing_table_problems(name, sink, world.objects.within(f"out/{name}"), watch.is_given_up)
        if isinstance(sink, SimulatedDeltaSink | SimulatedGatheredDeltaSink):
            yield from closing_commit_problems(name, sink, watch.is_given_up)
        if isinstance(sink, SimulatedKafkaSink):
            yield from open_problems(sink, f"out-{name}")
    if world.scene.branches is not None:
        for name, sink in world.sinks.items():
            assert not isinstance(sink, WatchedGatheredDeltaSink)
            yield from version_problems(name, sink.versions(), list(given[name].values()))
        if waiting := tuple(driver.coordinator.state.branches.at):
            yield Violation(f"{waiting[0]} is still tentative, and nothing goes wrong any more", waiting)
    late = {place: sink.given for place, sink in world.late.items()}
    letters = [given for place, given in late.items() if place[1] == DEAD_LETTERS]
    late = {place: given for place, given in late.items() if place[1] != DEAD_LETTERS}
    yield from late_problems(late, aside)
    yield from answer.letter_problems(letters)
