"""`holdfast plan recovery`: what to bring back first, where, and as nodes arrive (incremental recovery)."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.topology_files import topology_argument
from holdfast.wording import counted

if TYPE_CHECKING:
    from holdfast.ids import PartitionId
    from holdfast.planning.recovery.algorithms import Planner
    from holdfast.planning.recovery.placement import PlacedPlan, RecoveryNode
    from holdfast.planning.recovery.problem import RecoveryPlan, RecoveryProblem
    from holdfast.planning.recovery.schedule import RecoverySchedule

ALGORITHMS = ("best-density", "dp", "operator-centric", "exact")


@click.command("recovery")
@topology_argument
@click.option(
    "--capacity",
    type=click.FloatRange(min=0),
    help="What may be used in all, the bound already taken off. Default with --nodes: all their room; for a profile: "
    "that of its nodes, else half of what the partitions cost.",
)
@click.option("--failed", default="all", show_default=True, help="Failed partitions (or operators), with commas.")
@click.option("--nodes", help="Capacities of the nodes there are, with commas: places partitions on them.")
@click.option(
    "--bound",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.8,
    show_default=True,
    help="Part of a node that may be planned.",
)
@click.option("--arrivals", help="Seconds after the failure at which each node comes, or uniform:LOW-HIGH.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="For arrivals that are drawn.")
@click.option(
    "--algorithm", type=click.Choice(ALGORITHMS), default="best-density", show_default=True, help="How to choose."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=30.0,
    show_default=True,
    help="Seconds after which exact stops with the best it has, and a bound.",
)
@json_option
def recovery(
    given: str,
    capacity: float | None,
    failed: str,
    nodes: str | None,
    bound: float,
    arrivals: str | None,
    seed: int,
    algorithm: str,
    time_limit: float,
    as_json: bool,
) -> None:
    """Choose which failed partitions of a topology to bring back within a capacity.

    A query is back when all of its failed partitions are. The plan restores as much priority as the capacity allows;
    what is left over goes to the next query, upstream first. With --nodes each partition is placed on the node with
    most room. With --arrivals there is one plan per arriving node, each starting from what is already back.

    \b
    best-density     grows plans by priority per shared cost; fast, near the best
    dp               the best plan, by growing usage; up to about 20 failed queries
    exact            the best plan or, out of time, a plan and a bound
    operator-centric partitions in topological order: the baseline

    \b
    Examples:
      holdfast plan recovery hashtags --capacity 8
      holdfast plan recovery my_app.py --nodes 4,4,4
      holdfast plan recovery profile.json
      holdfast plan recovery incremental-fig2 --failed p3,p4,p5,p6,p7,p8,p9,p10,p11,p12 \\
        --capacity 10 --nodes 2.5,2.5,2.5,2.5,2.5 --arrivals 120,180,240,300,360
    """
    from holdfast.cli.number_lists import read_arrivals, read_numbers
    from holdfast.cli.plan_targets import read_measured
    from holdfast.cli.taken import Taken
    from holdfast.cli.topology_files import read_partitions
    from holdfast.errors import BadInput
    from holdfast.planning.recovery.algorithms import RecoveryAlgorithm, planner_of
    from holdfast.planning.recovery.placement import RecoveryNode, node_ids, place_plan, placement_problems
    from holdfast.planning.recovery.problem import RecoveryProblem, plan_problems
    from holdfast.topology import made_for

    if arrivals is not None and nodes is None:
        raise BadInput("needs nodes that arrive", field="--arrivals", remedy="give their capacities with --nodes")
    topology, measured = read_measured(given)
    taken = Taken(measured)
    if capacity is None and nodes is None:
        if measured is None:
            raise BadInput("is missing", field="--capacity", remedy="give what may be used, or --nodes")
        sizes = [size for size in (measured.get("nodes") or {}).values() if isinstance(size, int | float)]
        known = bound * sum(sizes) if sizes and len(sizes) == len(measured["nodes"]) else None
        half = float(topology.cost.sum()) / 2
        capacity = taken.value("--capacity", None, known, half, "half of what the partitions cost")
    down = read_partitions(topology, failed)
    capacities = [] if nodes is None else read_numbers(nodes, "--nodes")
    places = [RecoveryNode(name, size) for name, size in zip(node_ids(len(capacities)), capacities, strict=True)]
    limit = math.inf if capacity is None else capacity
    if places:
        limit = min(limit, float(sum(node.room(bound) for node in places)))
    planner = planner_of(RecoveryAlgorithm(algorithm), time_limit=time_limit)
    begin = time.perf_counter()
    problem = RecoveryProblem(topology, down, limit)
    if arrivals is not None:
        times = read_arrivals(arrivals, len(places), "--arrivals", seed)
        schedules = _schedules(problem, places, times, planner, math.inf if capacity is None else capacity, bound)
        document = _scheduled(problem, schedules, algorithm, limit, time.perf_counter() - begin)
    else:
        plan = planner(problem)
        placed = place_plan(problem, plan, places, bound=bound) if places else None
        seconds = time.perf_counter() - begin
        wrong = placement_problems(problem, placed, places, bound) if placed else plan_problems(problem, plan)
        _refuse(wrong)
        document = _planned(problem, plan if placed is None else placed.plan, limit, seconds)
        if placed is not None:
            document |= _placement(placed)
    if as_json:
        print_json(document | taken.document() | {"topology": made_for(topology)})
        return
    _print(topology.name, document)
    for line in taken.lines():
        click.echo(line)


def _schedules(
    problem: RecoveryProblem,
    nodes: list[RecoveryNode],
    times: list[float],
    planner: Planner,
    capacity: float,
    bound: float,
) -> dict[str, RecoverySchedule]:
    from holdfast.planning.recovery.placement import placement_problems
    from holdfast.planning.recovery.schedule import Arrival, Strategy, make_schedule

    arrivals = [Arrival(at, node) for at, node in zip(times, nodes, strict=True)]
    found = {}
    for strategy in Strategy:
        schedule = make_schedule(
            problem.topology,
            problem.partitions,
            arrivals,
            planner,
            strategy=strategy,
            capacity=capacity,
            bound=bound,
            queries=problem.all_queries,
        )
        for step in schedule.steps:
            _refuse(placement_problems(step.problem, step.placed, step.places, bound))
        found[str(strategy)] = schedule
    return found


def _refuse(wrong: list[str]) -> None:
    from holdfast.errors import CheckFailed

    if wrong:
        raise CheckFailed(f"the plan does not pass the checker: {wrong[0]}", remedy="please report this topology")


def _planned(problem: RecoveryProblem, plan: RecoveryPlan, capacity: float, seconds: float) -> dict[str, Any]:
    from holdfast.planning.recovery.exact import relaxed

    # The planners' own bound is quick; for people a tighter one is worth some milliseconds.
    bound = plan.bound
    if not plan.optimal:
        with suppress(ModuleNotFoundError):  # without the solver, the planner's own bound stands
            bound = max(plan.priority, min(plan.bound, relaxed(problem).bound))
    return {
        "recover": _texts(plan.recover),
        "queries": _texts(plan.queries),
        "priority": plan.priority,
        "cost": plan.cost,
        "optimal": plan.priority >= bound,
        "bound": bound,
        "seconds": seconds,
        "algorithm": plan.algorithm,
        "capacity": capacity,
        "partial": _texts(plan.partial),
        "failed": {
            "partitions": len(problem.partitions),
            "queries": len(problem.queries),
            "priority": problem.total_priority,
            "cost": problem.units.value(int(problem.cost.sum())),
        },
        "seeds": plan.seeds,
        "notes": list(plan.notes),
    }


def _placement(placed: PlacedPlan) -> dict[str, Any]:
    return {
        "placement": {str(partition): str(node) for partition, node in placed.placement.items()},
        "left_out": [
            {"partition": str(one.partition), "cost": one.cost, "reason": one.reason} for one in placed.left_out
        ],
    }


def _scheduled(
    problem: RecoveryProblem,
    schedules: dict[str, RecoverySchedule],
    algorithm: str,
    capacity: float,
    seconds: float,
) -> dict[str, Any]:
    import numpy as np

    chosen = schedules["incremental"]
    recovered = [partition for step in chosen.steps for partition in step.placed.plan.recover]
    taken = np.isin(problem.partitions, problem.topology.indices(recovered))
    whole = problem.plan(algorithm, taken)
    document = _planned(problem, whole, capacity, seconds)
    placement = {name: node for step in chosen.steps for name, node in _placement(step.placed)["placement"].items()}
    return document | {
        "recover": _texts(recovered),
        "placement": placement,
        # What the last plan could not place; what an earlier one left out may have come back since.
        "left_out": _placement(chosen.steps[-1].placed)["left_out"],
        "schedule": [
            {
                "at": step.at,
                "nodes": [str(node) for node in step.nodes],
                "recover": _texts(step.placed.plan.recover),
                "queries": _texts(step.placed.plan.queries),
                "priority": step.placed.plan.priority,
                "cost": step.placed.plan.cost,
                **_placement(step.placed),
            }
            for step in chosen.steps
        ],
        "unavailability": {name: schedule.unavailability for name, schedule in schedules.items()},
        "back_at": {str(query): at for query, at in chosen.back_at.items()},
        "never": _texts(chosen.never),
    }


def _texts(partitions: tuple[PartitionId, ...] | list[PartitionId]) -> list[str]:
    return [str(partition) for partition in partitions]


def _print(name: str, document: dict[str, Any]) -> None:
    failed = document["failed"]
    click.echo(
        f"Recovery of {name}, {document['algorithm']}: {counted(failed['partitions'], 'partition')} failed "
        f"(cost {failed['cost']:g}), and with them {counted(failed['queries'], 'query', 'queries')} of priority "
        f"{failed['priority']:,}"
    )
    placement = document.get("placement")
    if "schedule" in document:
        print_table(
            "As nodes arrive",
            ["seconds", "nodes", "recover", "queries back", "priority", "cost"],
            [
                (
                    step["at"],
                    ", ".join(step["nodes"]),
                    ", ".join(step["recover"]),
                    ", ".join(step["queries"]),
                    step["priority"],
                    step["cost"],
                )
                for step in document["schedule"]
            ],
            right=(0, 4, 5),
        )
        print_table(
            "Unavailability: priority x seconds until back",
            ["strategy", "unavailability"],
            list(document["unavailability"].items()),
            right=(1,),
        )
        if document["never"]:
            click.echo(f"not back when the last node has come: {', '.join(document['never'])}")
    elif document["recover"]:
        partial = set(document["partial"])
        print_table(
            None,
            ["partition", "node", "for"] if placement is not None else ["partition", "for"],
            [
                (
                    one,
                    *([placement[one]] if placement is not None else []),
                    "the next query (left over)" if one in partial else "queries restored now",
                )
                for one in document["recover"]
            ],
        )
    for one in document.get("left_out", []):
        click.echo(f"left out: {one['partition']} {one['reason']}")
    proven = "the best there is" if document["optimal"] else f"no plan exceeds {document['bound']:,}"
    seeds = "" if document["seeds"] is None else f" from {counted(document['seeds'], 'seed')}"
    click.echo(
        f"{counted(len(document['queries']), 'query', 'queries')} back: {', '.join(document['queries']) or 'none'}; "
        f"priority {document['priority']:,} of {failed['priority']:,} ({proven}), cost {document['cost']:g} of "
        f"{document['capacity']:g}; planned in {document['seconds']:.3f} s{seeds}"
    )
    for note in document["notes"]:
        click.echo(note)
