"""`holdfast plan auto`: one joint plan from what users can say."""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.plan_targets import cluster_options
from holdfast.cli.topology_files import topology_argument

_MOST_QUERIES = 20


@click.command("auto")
@topology_argument
@click.option(
    "--recovery",
    multiple=True,
    metavar="PRIORITY:SECONDS",
    help="Queries of this priority and above are back within SECONDS; may be repeated.",
)
@click.option(
    "--overhead",
    type=click.FloatRange(0, 1, min_open=True),
    help="Share of the bandwidth for checkpoints, stored inputs and backups.  [default: 0.05]",
)
@click.option("--survive", default=0, show_default=True, type=click.IntRange(0), help="Nodes that may fail together.")
@click.option(
    "--replica-budget",
    default="0",
    show_default=True,
    metavar="N|SHARE",
    help="Partitions that may run twice: a count (12), a share (0.5; 1.0: all) or '4 cores'.",
)
@click.option(
    "--one-segment", "--executable", "one_segment", is_flag=True, help="Plan one checkpoint of all operators together."
)
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=8.0,
    show_default=True,
    help="Seconds after which the search ends with the best plan it has.",
)
@cluster_options
@json_option
def auto(
    given: str,
    recovery: tuple[str, ...],
    overhead: float | None,
    survive: int,
    replica_budget: str,
    one_segment: bool,
    time_limit: float,
    bandwidth: float | None,
    restore_bandwidth: float | None,
    fixed_seconds: float | None,
    nodes: int | None,
    cores: float | None,
    as_json: bool,
) -> None:
    """Choose checkpoint intervals, segments, backups, fragments and replicas together, from targets.

    Within the overhead, the plan has the least expected downtime, weighed by priority, that was found with every target
    kept; it is never worse than planning one after the other. It says what it costs, what it promises and what it
    cannot promise. A profile (`holdfast profile`) has measured values; without one, what is assumed is named.

    Ends with status 3 where targets contradict each other, and names a smallest set of them.

    \b
    Examples:
      holdfast plan auto traffic --recovery 5:60 --recovery 1:120 --survive 1
      holdfast plan auto profile.json --recovery 5:20 --overhead 0.05 --json > plan.json
      holdfast plan explain plan.json --lose 2
    """
    from holdfast.cli.plan_targets import read_assumptions, read_measured, read_targets
    from holdfast.cli.solver_output import solver_messages_on_stderr
    from holdfast.planning.joint.conflicts import refuse, require_room
    from holdfast.planning.joint.explaining import plan_document
    from holdfast.planning.joint.model import JointModel
    from holdfast.planning.joint.search import plan_jointly

    topology, measured = read_measured(given)
    targets = read_targets(recovery, overhead, survive, replica_budget)
    assumed = read_assumptions(
        measured,
        bandwidth=bandwidth,
        restore_bandwidth=restore_bandwidth,
        fixed_seconds=fixed_seconds,
        nodes=nodes,
        cores=cores,
    )
    begin = time.perf_counter()
    with solver_messages_on_stderr():
        require_room(topology, targets, assumed)
        model = JointModel(topology, targets, assumed)
        found = plan_jointly(model, clock=time.perf_counter, seconds=time_limit, one_segment=one_segment)
        if not found.keeps_targets:
            raise refuse(model, time.perf_counter, finished=found.finished, one_segment=one_segment)
    document = plan_document(
        model,
        found.plan,
        measured,
        seconds=time.perf_counter() - begin,
        looked_at=found.looked_at,
        finished=found.finished,
        notes=list(found.notes),
    )
    if as_json:
        print_json(document)
    else:
        print_plan(document)


def print_plan(document: dict[str, Any]) -> None:
    """Print a plan's promises and its explanation for people."""
    name = document["topology"]["name"]
    promises = [one for one in document["promises"] if one["what"] == "recovery"]
    rows = sorted(promises, key=lambda one: (-one["priority"], -one["predicted"]))
    print_table(
        f"Plan for {name}: seconds until queries are back",
        ["query", "priority", "promised", "fails alone", "target"],
        [
            (one["query"], one["priority"], one["predicted"], one["alone"], one["target"])
            for one in rows[:_MOST_QUERIES]
        ],
        right=(1, 2, 3, 4),
    )
    if len(rows) > _MOST_QUERIES:
        click.echo(f"{len(rows) - _MOST_QUERIES:,} more queries are not shown; --json has all")
    for line in document["explanation"]:
        click.echo(f"- {line}")
    click.echo("It cannot promise:")
    for line in document["cannot_promise"]:
        click.echo(f"- {line}")
    for line in document.get("notes", []):
        click.echo(f"Note: {line}")
    if "seconds" in document:
        ended = "" if document.get("finished", True) else "; the time was over, more may find a better one"
        click.echo(f"Planned in {document['seconds']:.2f} s, {document['looked_at']:,} structures{ended}")
