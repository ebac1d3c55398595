"""`holdfast simulate recovery`: whole clusters in one process, where everything goes wrong, and the checkers' word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.simulate_seeds import SHOWN, fail_on, run_and_show, seed_options
from holdfast.cli.topology_files import TOPOLOGY, read_topology
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.simulation.recovery.campaign import Campaign
    from holdfast.simulation.recovery.run import Outcome
    from holdfast.simulation.recovery.times import TimeConstants

COMMAND = "simulate recovery"
STRATEGIES = ("incremental", "operator-centric", "blocking", "source-replay", "best-case")


@click.command("recovery")
@click.argument("given", metavar=f"[{TOPOLOGY}]", required=False)
@seed_options
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
@click.option(
    "--out",
    default=Path("out/simulate-recovery"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where result.json goes.",
)
@json_option
def simulate_recovery_command(
    given: str | None,
    seeds: int,
    first_seed: int,
    fresh: bool,
    jobs: int,
    seed: int | None,
    nodes: int | None,
    strategies: tuple[str, ...],
    failed_share: float,
    constants: Path | None,
    out: Path,
    as_json: bool,
) -> None:
    """Simulate recoveries: seeds of generated applications that must show no violation, or the times of your own.

    Without --nodes: every seed is one run of a generated application on a generated cluster with faults at any point,
    and checkers that must find nothing. The recovery machine, the coordinator and the workers are those of real runs;
    nodes, network, store and clock are simulated. A violation is printed with its seed, the history of the partitions
    involved, and how to replay it; the status is then 1. This campaign takes no topology.

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
        show_times(nodes, failed_share, chosen, first_seed if seed is None else seed, known, out, as_json, topology)
        return
    if given is not None:
        raise BadInput(
            "seeds are runs of generated applications, and take no topology",
            where=given,
            remedy="give --nodes N to simulate the times of a failure of this one",
        )
    if seed is not None:
        _replay(seed, as_json)
        return
    from holdfast.simulation.recovery.campaign import Campaign
    from holdfast.simulation.recovery.run import simulate_recovery

    run_and_show(
        seeds,
        first_seed,
        Campaign(),
        simulate_recovery,
        _print_campaign,
        jobs=jobs,
        fresh=fresh,
        out=out,
        as_json=as_json,
        command=COMMAND,
    )


def _constants(path: Path | None) -> TimeConstants:
    from holdfast.simulation.recovery.times import TimeConstants, read_constants

    if path is None:
        return TimeConstants()
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise BadInput(f"is no JSON: {error}", where=str(path), remedy="take an experiment's constants.json") from None
    return read_constants(document, str(path))


def _replay(seed: int, as_json: bool) -> None:
    from holdfast.simulation.recovery.campaign import Campaign
    from holdfast.simulation.recovery.run import simulate_recovery

    outcome = simulate_recovery(seed, record=True)
    if as_json:
        campaign = Campaign()
        campaign.add(outcome)
        print_json({**campaign.document(), "journal": outcome.journal})
    else:
        click.echo(
            f"seed {seed}: {outcome.recipe}, {outcome.strategy}, {outcome.nodes} nodes, {outcome.batches} batches"
        )
        for line in outcome.journal:
            click.echo(line)
        if outcome.violation is None:
            injected = sum(outcome.faults.values())
            click.echo(f"no violation: {injected} faults, {outcome.epochs} epochs, {outcome.drivers} drivers")
        else:
            _print_violation(outcome)
    fail_on([outcome] if outcome.violation is not None else [], COMMAND)


def _print_campaign(campaign: Campaign) -> None:
    from holdfast.simulation.recovery.faults import Fault

    print_table(
        f"Faults injected in {campaign.seeds:,} seeds",
        ["fault", "times"],
        [(str(fault), campaign.faults[fault]) for fault in Fault],
        right=(1,),
    )
    per_seed = campaign.cpu_seconds / max(1, campaign.seeds)
    click.echo(
        f"{campaign.seeds:,} seeds in {campaign.seconds:.1f} s ({per_seed:.3f} s of one core each): "
        f"{sum(campaign.faults.values()):,} faults, {campaign.epochs:,} epochs, {campaign.rollbacks:,} rollbacks, "
        f"{campaign.drivers:,} drivers"
    )
    if not campaign.violations:
        click.echo("no violation")
    for outcome in campaign.violations[:SHOWN]:
        _print_violation(outcome)


def _print_violation(outcome: Outcome) -> None:
    assert outcome.violation is not None
    click.echo(f"VIOLATION, seed {outcome.seed} ({outcome.recipe}, {outcome.strategy}): {outcome.violation.what}")
    for history in outcome.histories:
        click.echo(f"  {history}")
    click.echo(f"  replay: holdfast {COMMAND} --seed {outcome.seed}")
