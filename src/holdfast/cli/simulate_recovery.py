"""`holdfast simulate recovery`: whole clusters in one process, where everything goes wrong, and checkers."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.simulate_seeds import SeedRequest, SeedSimulator, run_seeds_of, seed_options
from holdfast.cli.topology_files import TOPOLOGY, read_topology
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.simulation.recovery.run import Outcome
    from holdfast.simulation.recovery.times import TimeConstants

STRATEGIES = ("incremental", "operator-centric", "blocking", "source-replay", "best-case")


@click.command("recovery")
@click.argument("given", metavar=f"[{TOPOLOGY}]", required=False)
@seed_options("out/simulate-recovery")
@click.option(
    "--nodes",
    default=None,
    type=click.IntRange(2, 10_000),
    help="Simulate the times of a failure on a cluster of this size instead, by a cost model.",
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
    """Simulate recoveries: seeds of generated applications that must show no violation, or the times of your own.

    Without --nodes: every seed is one run of a generated application on a generated cluster with faults at any point,
    and checkers that must find nothing. The recovery machine, the coordinator and the workers are those of real runs;
    nodes, network, store and clock are simulated. A violation is printed with the history of the partitions involved.
    This campaign takes no topology.

    With --nodes: one failure of --failed-share of the nodes, with replacements after two to six minutes, once with
    each strategy: when is every query back? The recovery machine decides, times come from a cost model; no rows are
    processed. The topology is that of APP (my_app.py, my_app.py:name, package.module:name), in FILE or of NAME, with
    its own priorities and costs; without one, a copy of the hashtags example for every ten nodes.

    \b
    Examples:
      holdfast simulate recovery --seeds 10000 --jobs 2
      holdfast simulate recovery --seeds 30000 --fresh --jobs 2
      holdfast simulate recovery --seed 42
      holdfast simulate recovery my_app.py --nodes 20
      holdfast simulate recovery --nodes 1000 --strategy incremental --strategy blocking
      holdfast simulate recovery --nodes 100 --constants out/recovery/constants.json
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
    from holdfast.simulation.recovery.campaign import Campaign
    from holdfast.simulation.recovery.faults import Fault
    from holdfast.simulation.recovery.run import simulate_recovery

    simulator = SeedSimulator(
        command="simulate recovery",
        campaign=Campaign,
        simulate=simulate_recovery,
        record=partial(simulate_recovery, record=True),
        faults=Fault,
        counts=lambda campaign: (
            f"{campaign.epochs:,} epochs, {campaign.rollbacks:,} rollbacks, {campaign.drivers:,} drivers"
        ),
        outcome=lambda outcome: (
            f"{sum(outcome.faults.values())} faults, {outcome.epochs} epochs, {outcome.drivers} drivers"
        ),
        head=lambda outcome: [
            f"seed {outcome.seed}: {outcome.recipe}, {outcome.strategy}, {outcome.nodes} nodes, "
            f"{outcome.batches} batches"
        ],
        violation=_violation,
    )
    run_seeds_of(simulator, asked)


def _constants(path: Path | None) -> TimeConstants:
    from holdfast.simulation.recovery.times import TimeConstants, read_constants

    if path is None:
        return TimeConstants()
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(f"is not JSON: {error}", where=str(path), remedy="take an experiment's constants.json") from None
    return read_constants(document, str(path))


def _violation(outcome: Outcome) -> list[str]:
    assert outcome.violation is not None
    first = f" ({outcome.recipe}, {outcome.strategy}): {outcome.violation.what}"
    return [first, *(str(history) for history in outcome.histories)]
