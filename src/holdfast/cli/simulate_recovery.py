"""`holdfast simulate recovery`: the times of a failure by a cost model; from a checkout, seeds with every fault too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.seed_options import SeedRequest, seed_options
from holdfast.cli.topology_files import TOPOLOGY, read_topology
from holdfast.errors import BadInput
from holdfast.lab import lab_module

if TYPE_CHECKING:
    from holdfast.simulation.times import TimeConstants

STRATEGIES = ("incremental", "operator-centric", "blocking", "source-replay", "best-case")


@click.command("recovery")
@click.argument("given", metavar=f"[{TOPOLOGY}]", required=False)
@seed_options("out/simulate-recovery")
@click.option(
    "--nodes",
    default=None,
    type=click.IntRange(2, 10_000),
    help="Simulate the times of a failure on a cluster of this size, by a cost model.",
)
@click.option(
    "--strategy",
    "strategies",
    multiple=True,
    type=click.Choice(STRATEGIES),
    help="With --nodes: strategies to compare; all, if none is named.",
)
@click.option(
    "--failed-share",
    default=0.5,
    show_default=True,
    type=click.FloatRange(0, 1, min_open=True),
    help="With --nodes: share of the nodes that fail at once.",
)
@click.option(
    "--constants",
    default=None,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="With --nodes: what things take, as `experiment recovery` measured it (its constants.json).",
)
def simulate_recovery_command(
    asked: SeedRequest,
    given: str | None,
    nodes: int | None,
    strategies: tuple[str, ...],
    failed_share: float,
    constants: Path | None,
) -> None:
    """Simulate the times of a failure of your own topology, or seeds of generated applications under every fault.

    With --nodes: one failure of --failed-share of the nodes, with replacements after two to six minutes, once with
    each strategy: when is every query back? The recovery machine decides, times come from a cost model; no rows are
    processed. The topology is that of APP (my_app.py, my_app.py:name, package.module:name), in FILE or of NAME, with
    its own priorities and costs; without one, a copy of the hashtags example for every ten nodes.

    Without --nodes, in a checkout: seeds that test Holdfast itself, and take no topology. Every seed is one run of a
    generated application on a generated cluster with faults at any point, and checkers that must find nothing. The
    recovery machine, the coordinator and the workers are those of real runs; nodes, network, store and clock are
    simulated. A violation is printed with the history of the partitions involved.

    \b
    Examples:
      holdfast simulate recovery my_app.py --nodes 20
      holdfast simulate recovery --nodes 1000 --strategy incremental --strategy blocking
      holdfast simulate recovery --nodes 100 --constants out/recovery/constants.json
      holdfast simulate recovery --seeds 10000 --jobs 2
      holdfast simulate recovery --seeds 30000 --fresh --jobs 2
      holdfast simulate recovery --seed 42
    """
    if nodes is not None:
        from holdfast.cli.simulate_recovery_times import show_times

        topology = None if given is None else read_topology(given)
        known = _constants(constants)
        chosen = strategies or STRATEGIES
        seed = asked.first_seed if asked.seed is None else asked.seed
        show_times(nodes, failed_share, chosen, seed, known, asked.out, asked.as_json, topology)
        return
    if given is not None:
        raise BadInput(
            "seeds are runs of generated applications, and take no topology",
            where=given,
            remedy="give --nodes N to simulate the times of a failure of this one",
        )
    seeds = lab_module("commands.simulate_recovery_seeds", needed_by="holdfast simulate recovery without --nodes")
    seeds.run_recovery_seeds(asked)


def _constants(path: Path | None) -> TimeConstants:
    from holdfast.simulation.times import TimeConstants, read_constants

    if path is None:
        return TimeConstants()
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(f"is not JSON: {error}", where=str(path), remedy="take an experiment's constants.json") from None
    return read_constants(document, str(path))
