"""What the events of a run say, checked as they come, and counted: promotions, plans, tentative rows. Runs anywhere."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.ids import PartitionId
from holdfast.recovery.cluster_state import ClusterState
from holdfast.runtime.coordinator.event_log import Observation
from holdfast_lab.simulation.recovery.checks import Violation, turn_problems
from holdfast_lab.simulation.recovery.drivers import Drivers
from holdfast_lab.simulation.recovery.poison import parked_problem
from holdfast_lab.simulation.recovery.segment_scene import rolled_back_alone


class Observed:
    """See the module."""

    def __init__(self, drivers: Drivers) -> None:
        self._drivers, self._world = drivers, drivers.world
        self.promotions = self.tentative = self.ahead = 0
        self._tentative_out: dict[tuple[int, PartitionId], int] = {}
        """The last batch of each query, by layout, that is out as tentative."""
        self._tentative_by = 0
        """The driver that published them."""

    @property
    def _state(self) -> ClusterState:
        """Of the driver that has the run."""
        return self._drivers.driver.coordinator.state

    def take(self, seen: Observation) -> None:
        """Take an event of a driver."""
        fields, drivers, world = seen.fields, self._drivers, self._world
        if seen.kind == "state":
            for turned in turn_problems(fields["partition"], fields["before"], fields["cause"], fields["after"]):
                world.found(turned)
        elif seen.kind == "parked" and drivers.has_the_run:
            if (problem := parked_problem(self._state, fields)) is not None:
                world.complain(problem)
        elif seen.kind == "promoted" and drivers.has_the_run:
            self.promotions += 1
            drivers.driver.checks.promoted(self._state, PartitionId.parse(fields["partition"]))
            drivers.driver.cluster.has_what_it_should(self._state, PartitionId.parse(fields["partition"]))
        elif seen.kind == "rolled-back" and drivers.has_the_run:
            rolled_back = tuple(map(PartitionId.parse, fields["partitions"]))
            rolled_back_alone(self._state, rolled_back, world.found)
        elif seen.kind == "intermediate-snapshots" and drivers.has_the_run:
            world.aimed.saw(fields["operators"])
        elif seen.kind == "restored" and drivers.has_the_run:
            at = self._state.checkpoints.line[PartitionId.parse(fields["partition"])]
            self.ahead += fields["batch"] > at and bool(self._state.segments.multiples)
        elif seen.kind == "plan-chosen" and drivers.has_the_run:
            world.plans.awaited(self._state, drivers.driver.generation, fields["number"])
        elif seen.kind == "plan-changed" and drivers.has_the_run:
            world.plans.took_effect(self._state, fields["number"])
        elif seen.kind == "published" and fields.get("tentative"):
            self.tentative += 1
            if drivers.has_the_run:
                place = drivers.driver.generation, PartitionId.parse(fields["partition"])
                self._tentative_out[place] = max(fields["batch"], self._tentative_out.get(place, -1))
                self._tentative_by = drivers.driver.number
        elif seen.kind == "corrected" and drivers.has_the_run:
            place = drivers.driver.generation, PartitionId.parse(fields["query"])
            out, final = self._tentative_out.pop(place, -1), self._state.published.get(place[1], -1)
            if final < out:
                world.complain(
                    f"{place[1]} is corrected, has tentative rows of batch {out}, and final ones up to {final}"
                )
        elif seen.kind == "plan-rejected":
            world.complain(f"a plan is not valid: {fields['problems'][0]}")
        if world.journal is not None:
            shown = ", ".join(f"{name} {value}" for name, value in fields.items() if value not in (None, [], {}))
            world.note(f"{seen.kind}: {shown}")

    def tentative_problems(self) -> Iterator[Violation]:
        """See that tentative rows that are out without their final ones are known to be."""
        driver, state = self._drivers.driver, self._state
        if self._tentative_by != driver.number:
            self._tentative_out.clear()  # the one before may have published the final rows, and written so
        for (generation, query), batch in self._tentative_out.items():
            final = state.published.get(query)
            known = query in state.branches.at or generation != driver.generation
            if final is not None and final < batch and not known:
                what = f"{query} has tentative rows of batch {batch} out, final ones to {final}, and none are awaited"
                yield Violation(what, (query,))
