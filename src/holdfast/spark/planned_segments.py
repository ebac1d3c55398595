"""Segments of a plan, as a run executes them: who checkpoints together and how often. Runs on the driver, at a start.

A joint plan and a plan of `holdfast plan segments` say the same in two formats: anchors, and how often each operator
checkpoints. A segment's checkpoint moves at the interval of its least frequent operator. Where a refined plan gives
others shorter ones, they save at a whole multiple of that frequency (`recovery.intermediate`). Where two operators that
feed no common one save 2 and 3 times for each 6 of their sender, neither is a multiple of the other: the checkpoint
then moves at the longest interval of which all are a whole multiple (docs/decisions/0362).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from holdfast.application import Application
from holdfast.application.steps import Custom
from holdfast.errors import BadInput
from holdfast.ids import OperatorId, SegmentId
from holdfast.recovery.executed_plan import SegmentInterval
from holdfast.recovery.held_edges import held_edges
from holdfast.recovery.segments import ONE_SEGMENT, Segments, segments_of
from holdfast.runtime.program import Program
from holdfast.spark.planned_promises import recovery_promises
from holdfast.topology import Topology, require_made_for
from holdfast.wording import counted

NEVER = 2**31 - 1
"""Batches after which a checkpoint is taken at the latest, where a plan says how many seconds are between two."""


MOST_SLOWER = 12
"""Times that a checkpoint moves less often than the least frequent operator saves: what is kept grows with it."""

_WHOLE = 1e-3
"""How far a number may be from a whole one, as a share of it: plans are printed in decimals."""


@dataclass(frozen=True, slots=True)
class PlannedSegments:
    """What a run executes of a plan's segments."""

    segments: Segments = ONE_SEGMENT
    intervals: tuple[SegmentInterval, ...] = ()
    """Of every segment, where there are several."""
    shortest: float = math.inf
    """Seconds between the checkpoints of the segment that takes most."""
    lines: tuple[str, ...] = ()
    """For people: what is executed otherwise than planned."""

    def described(self) -> list[dict[str, Any]]:
        """Return the segments as the event `plan` has them."""
        seconds = {one.segment: one.seconds for one in self.intervals if not math.isinf(one.seconds)}
        members: dict[str, list[str]] = {}
        for operator, name in self.segments.operators.items():
            members.setdefault(name, []).append(operator)
        return [
            {
                "segment": name,
                "operators": operators,
                "anchors": [one for one in operators if one in self.segments.anchors],
                "interval_seconds": seconds.get(SegmentId(name), self.shortest),
                **self._multiples(operators),
            }
            for name, operators in members.items()
            if self.segments.many and not math.isinf(self.shortest)
        ]

    def _multiples(self, operators: Iterable[str]) -> dict[str, Any]:
        found = {one: self.segments.multiples[OperatorId(one)] for one in operators if one in self.segments.multiples}
        return {"multiples": found} if found else {}


def never_anchors(app: Application) -> frozenset[str]:
    """Return the operators after what is not deterministic: a segment that began with one would not recover alone."""
    topology, sure = app.topology(), dict[str, bool]()
    found = set[str]()
    for number in topology.operator_order:
        operator = topology.operators[number]
        step, before = app.steps[operator.id], [sure[str(one.source)] for one in operator.inputs]
        sure[str(operator.id)] = all(before) and not (isinstance(step, Custom) and not step.deterministic)
        if not all(before):
            found.add(str(operator.id))
    return frozenset(found)


def planned_segments(topology: Topology, anchors: Iterable[str], seconds: Mapping[str, float]) -> PlannedSegments:
    """Return the segments that anchors make, with the interval of each; `seconds`: that of every operator."""
    segments = segments_of(topology, anchors)
    found: dict[SegmentId, float] = {}
    for operator, name in segments.operators.items():
        found[name] = max(found.get(name, 0.0), float(seconds[operator]))
    for name, longest in tuple(found.items()):
        mine = {operator: float(seconds[operator]) for operator, one in segments.operators.items() if one == name}
        if _every_sender_is_a_multiple(topology, mine):
            found[name] = longest * _slower([longest / one for one in mine.values()])
    wanted = {operator: found[name] / float(seconds[operator]) for operator, name in segments.operators.items()}
    multiples = {operator: round(times) for operator, times in wanted.items() if round(times) > 1}
    lines = [
        f"{operator} is planned to save {times:.3g} times as often as its segment's checkpoint moves, and saves "
        f"{multiples.get(operator, 1)} times"
        for operator, times in sorted(wanted.items())
        if abs(times - multiples.get(operator, 1)) > _WHOLE * times
    ]
    segments = replace(segments, multiples=multiples)
    intervals = tuple(SegmentInterval(name, NEVER, found[name]) for name in segments.names if segments.many)
    return PlannedSegments(segments, intervals, min(found.values()), tuple(lines))


def _every_sender_is_a_multiple(topology: Topology, seconds: Mapping[OperatorId, float]) -> bool:
    """Whether operators of a segment save a whole number of times as often as each one that they feed in it.

    A plan of which this does not hold is none of the planner's: it is rounded, and no checkpoint moves later for it.
    """
    feeds = [
        seconds[operator.id] / seconds[one.source]
        for operator in topology.operators
        if operator.id in seconds
        for one in operator.inputs
        if one.source in seconds
    ]
    return all(round(times) >= 1 and _is_whole(times) for times in feeds)


def _is_whole(times: float) -> bool:
    return abs(times - round(times)) <= _WHOLE * times


def _slower(times: Sequence[float]) -> int:
    """Return how many times slower a checkpoint moves than the least frequent operator saves, so that all fit in.

    1 where all save a whole number of times as often as that one, and where nothing small makes them.
    """
    for factor in range(1, MOST_SLOWER + 1):
        if all(_is_whole(one * factor) for one in times):
            return factor
    return 1


def read_segments(document: Mapping[str, Any], topology: Topology, where: str) -> PlannedSegments:
    """Read what `holdfast plan segments --json` printed, for the topology that it was made for."""
    require_made_for(document, topology, where=where)
    remedy = "give what `holdfast plan segments --json` printed"
    try:
        frequency = {str(name): float(value) for name, value in document["frequency"].items()}
        anchors = [str(name) for name in document["anchors"]]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise BadInput(
            f"is not a whole plan of segments: {type(error).__name__}: {error}", where=where, remedy=remedy
        ) from None
    for operator in topology.operators:
        if not frequency.get(str(operator.id), 0.0) > 0:
            raise BadInput(f"{operator.id} has no frequency above 0", where=where, field="frequency", remedy=remedy)
    try:
        return planned_segments(topology, anchors, {name: 1 / value for name, value in frequency.items()})
    except BadInput as error:
        raise error.placed(where) from None


def segment_promises(document: Mapping[str, Any], topology: Topology, where: str) -> list[dict[str, Any]]:
    """Return how soon every query is back, by the plan's `recovery_seconds`; nothing where it has none."""
    known = document.get("recovery_seconds")
    if known is None:
        return []
    try:
        seconds = np.array([float(known[str(operator.id)]) for operator in topology.operators])
    except (KeyError, TypeError, ValueError) as error:
        raise BadInput(
            f"is not a time for every operator: {type(error).__name__}: {error}",
            where=where,
            field="recovery_seconds",
            remedy="give what `holdfast plan segments --json` printed",
        ) from None
    return recovery_promises(topology, seconds[topology.operator_of])


def with_boundaries(segments: Segments, program: Program, *, held: bool) -> Segments:
    """Return segments that hold blocks of what is not deterministic, where that is asked for and there are any."""
    holding = replace(segments, holds=True)
    return holding if held and held_edges(program.graph, holding).edges else segments


def behind_seconds(planned: PlannedSegments, program: Program) -> dict[OperatorId, float]:
    """Return by how many seconds operators after held edges are behind, at most, besides the time that a save takes."""
    held = held_edges(program.graph, planned.segments)
    seconds = {one.segment: one.seconds for one in planned.intervals}
    found: dict[OperatorId, float] = {}
    for name in program.order if held.edges else ():
        waits = [
            found.get(source, 0.0)
            + (seconds.get(planned.segments.operators[source], math.inf) if (source, name) in held.edges else 0.0)
            for source in program.operators[name].feeds
        ]
        if longest := max(waits, default=0.0):
            found[name] = longest
    return found


def segment_lines(planned: PlannedSegments, program: Program, *, held: bool = False) -> list[str]:
    """Return lines for people about segments that a run executes; `held`: whether boundaries are asked to be held."""
    lines, segments = [], planned.segments
    sure = {name: many for name, many in segments.multiples.items() if program.operators[name].deterministic}
    if sure:
        times = ", ".join(f"{name} {many} times" for name, many in sorted(sure.items()))
        lines.append(f"as often as their segment's checkpoint moves, operators save: {times}")
    if others := sorted(set(segments.multiples) - set(sure)):
        lines.append(
            f"{', '.join(others)} save only when their segment's checkpoint moves: what is not deterministic, or comes "
            "after it, starts from there"
        )
    if not segments.many:
        return lines
    lines.insert(0, f"{counted(len(segments.names), 'segment')} checkpoint at intervals of their own")
    edges = held_edges(program.graph, segments)
    if behind := behind_seconds(planned, program):
        longest = max(behind.values())
        late = "an interval of that segment" if math.isinf(longest) else f"up to {longest:.3g} s"
        lines.append(
            f"blocks of {_senders(edges.edges)} wait for a checkpoint of their segment before they cross to another: "
            f"both sides recover alone, and {', '.join(sorted(behind))} are {late} behind, and the time to save"
        )
    if edges.unheld:
        cannot = " (their blocks cannot wait: the segments lead back to each other)" if held else ""
        lines.append(
            f"segments after {_senders(edges.unheld)} do not recover alone, and the plan's recovery times do not "
            f"hold for them: they roll back with what is not deterministic{cannot}; declare it deterministic=True "
            "where it is, or plan without anchors after it"
        )
    return lines


def _senders(edges: Iterable[tuple[OperatorId, OperatorId]]) -> str:
    return ", ".join(sorted({sender for sender, _ in edges}))
