"""`holdfast plan segments`: which operators store their inputs, and how often each checkpoints (FastRecover)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.topology_files import topology_argument

if TYPE_CHECKING:
    from holdfast.planning.segments.model import SegmentModel, SegmentPlan

ALGORITHMS = ("auto", "chain", "tree", "dag", "one-segment", "n-segments")


@click.command("segments")
@topology_argument
@click.option(
    "--overhead",
    type=float,
    help="CH_max: seconds of checkpointing allowed per second, in all. Default for a profile: 0.05, and what the "
    "sources' inputs take.",
)
@click.option(
    "--bandwidth",
    type=float,
    help="Bytes per second to and from permanent storage. Default for a profile: of its restores, else 50e6.",
)
@click.option(
    "--steps",
    type=click.IntRange(1, 10_000),
    default=200,
    show_default=True,
    help="Z: increments the overhead is cut into, for chain and tree (the paper: 60 and 20).",
)
@click.option(
    "--frequencies",
    type=click.IntRange(1, 10_000),
    default=100,
    show_default=True,
    help="F: frequencies the tree algorithm chooses from.",
)
@click.option(
    "--max-frequency",
    type=float,
    default=None,
    help="Most checkpoints per second of any operator, for every algorithm.  [default: 3.333, 200 a minute]",
)
@click.option("--algorithm", type=click.Choice(ALGORITHMS), default="auto", show_default=True, help="How to choose.")
@click.option(
    "--replay",
    type=click.Choice(("summed", "pipelined")),
    default="summed",
    show_default=True,
    help="Whether operators that roll back replay one after the other, as in the paper, or at once, as in a run.",
)
@click.option("--refine", "refined", is_flag=True, help="Let frequencies within a segment differ by whole factors.")
@json_option
def segments(
    given: str,
    overhead: float | None,
    bandwidth: float | None,
    steps: int,
    frequencies: int,
    max_frequency: float | None,
    algorithm: str,
    replay: str,
    refined: bool,
    as_json: bool,
) -> None:
    """Cut a topology into segments that recover alone, with the least expected recovery time.

    Anchors store their inputs in permanent storage and head the segments; every operator checkpoints its state at its
    segment's frequency. Operators need a failure_rate above 0.

    \b
    auto, dag     any topology, no grid; never worse than the others
    chain, tree   the best plan on a grid, for those shapes
    one-segment   only sources are anchors
    n-segments    every operator is an anchor

    \b
    Examples:
      holdfast plan segments trending-keywords --overhead 0.4 --bandwidth 10e6
      holdfast plan segments profile.json
    """
    from holdfast.cli.plan_targets import read_measured
    from holdfast.cli.taken import Taken
    from holdfast.errors import HoldfastError
    from holdfast.planning.joint.targets import DEFAULT_OVERHEAD, assumptions_of
    from holdfast.planning.profiles.run_profile import profile_field
    from holdfast.planning.segments.algorithms import Algorithm, plan_segments
    from holdfast.planning.segments.grid import FrequencyGrid
    from holdfast.planning.segments.model import MAX_FREQUENCY, model_of
    from holdfast.topology import made_for

    topology, measured = read_measured(given)
    try:
        taken, assumed = Taken(measured), assumptions_of(measured)
        known = profile_field(measured, "restore_bandwidth") or None
        bandwidth = taken.value("--bandwidth", bandwidth, known, assumed.bandwidth, "no large state was restored")
        grid = FrequencyGrid(steps, frequencies, MAX_FREQUENCY if max_frequency is None else max_frequency)
        begin = time.perf_counter()
        batches = assumed.batches_per_second
        model = model_of(topology, bandwidth, pipelined=replay == "pipelined", batches_per_second=batches)
        least = DEFAULT_OVERHEAD + float(model.input_seconds[model.sources].sum())
        overhead = taken.value("--overhead", overhead, None, least, "0.05 beside the inputs of sources")
        plan = plan_segments(model, overhead, algorithm=Algorithm(algorithm), grid=grid, refined=refined)
        spent = time.perf_counter() - begin
    except HoldfastError as error:
        raise error.placed(given) from None
    document = describe(model, plan) | {
        "algorithm": algorithm,
        "replay": replay,
        "refined": refined,
        "seconds": spent,
        **taken.document(),
    }
    if as_json:
        print_json(document | {"topology": made_for(topology)})
        return
    _print(topology.name, document)
    for line in taken.lines():
        click.echo(line)


def describe(model: SegmentModel, plan: SegmentPlan) -> dict[str, Any]:
    """Return a plan as the contract prints it."""
    from holdfast.planning.segments.model import segments_of, totals_of

    totals = totals_of(model, plan.anchors, plan.frequency)
    numbers = segments_of(model, plan.anchors[None, :])[0]
    members: dict[int, list[int]] = {}
    for operator in model.order:
        members.setdefault(int(numbers[operator]), []).append(operator)
    named = {name: number for number, name in enumerate(model.names)}
    return {
        "anchors": [name for name, number in named.items() if plan.anchors[number]],
        "frequency": {name: plan.frequency[number] for name, number in named.items()},
        "recovery_time": plan.recovery_time,
        "overhead": plan.overhead,
        "segments": [[model.names[operator] for operator in group] for group in members.values()],
        "recovery_seconds": {name: totals.recovery_seconds[number] for name, number in named.items()},
        "operator_overhead": {name: totals.operator_overhead[number] for name, number in named.items()},
        "never_fail": [name for name, number in named.items() if model.failure_rate[number] == 0],
    }


def _print(name: str, document: dict[str, Any]) -> None:
    rows = []
    for number, group in enumerate(document["segments"], start=1):
        for operator in group:
            frequency = float(document["frequency"][operator])
            rows.append(
                (
                    number,
                    operator,
                    "anchor" if operator in document["anchors"] else "",
                    frequency,
                    1 / frequency,
                    float(document["operator_overhead"][operator]),
                    float(document["recovery_seconds"][operator]),
                )
            )
    print_table(
        f"Recovery segments of {name}",
        ("segment", "operator", "", "checkpoints/s", "every (s)", "overhead", "one recovery (s)"),
        rows,
        right=(0, 3, 4, 5, 6),
    )
    click.echo(
        f"expected recovery time {document['recovery_time']:.6g} s per second, overhead {document['overhead']:.6g}, "
        f"segments: {len(document['segments'])}, anchors: {len(document['anchors'])}; "
        f"planned in {document['seconds']:.3f} s"
    )
    if document["recovery_time"] > 1:
        click.echo("failures come faster than recoveries end: allow more overhead or give a higher bandwidth")
    if document["never_fail"]:
        click.echo(f"taken to never fail (failure_rate 0): {', '.join(document['never_fail'])}")
