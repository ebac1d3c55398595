"""`holdfast simulate store`: the fragment store itself on simulated machines, where everything goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.cli.simulate_seeds import SHOWN, fail_on, run_and_show, seed_options

if TYPE_CHECKING:
    from holdfast.simulation.store.campaign import StoreCampaign
    from holdfast.simulation.store.run import StoreOutcome

COMMAND = "simulate store"


@click.command("store")
@seed_options
@click.option(
    "--out",
    default=Path("out/simulate-store"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Where result.json goes.",
)
@json_option
def simulate_store_command(
    seeds: int, first_seed: int, fresh: bool, jobs: int, seed: int | None, out: Path, as_json: bool
) -> None:
    """Simulate the fragment store: seeds that must show no violation.

    Every seed is a ring of 3 to 6 peers with a client that writes and one that reads, for a minute of simulated time
    with faults (machines, disks, network, clients) and some minutes without. Peers, clients and repair are those of
    real runs; threads, clocks, sockets and disks are simulated. What was acknowledged must be there, and everything
    that faults have left whole must be read, rebuilt and at rest at the end. A violation is printed with its seed and
    how to replay it; the status is then 1.

    \b
    Examples:
      holdfast simulate store --seeds 200 --jobs 2
      holdfast simulate store --seeds 1000 --fresh --jobs 2
      holdfast simulate store --seed 42
    """
    if seed is not None:
        _replay(seed, as_json)
        return
    from holdfast.simulation.store.campaign import StoreCampaign
    from holdfast.simulation.store.run import simulate_store

    run_and_show(
        seeds,
        first_seed,
        StoreCampaign(),
        simulate_store,
        _print_campaign,
        jobs=jobs,
        fresh=fresh,
        out=out,
        as_json=as_json,
        command=COMMAND,
    )


def _replay(seed: int, as_json: bool) -> None:
    from holdfast.simulation.store.campaign import StoreCampaign
    from holdfast.simulation.store.run import simulate_store

    outcome = simulate_store(seed, record=True)
    if as_json:
        campaign = StoreCampaign()
        campaign.add(outcome)
        print_json({**campaign.document(), "journal": outcome.journal})
    else:
        for line in outcome.journal:
            click.echo(line)
        if outcome.violation is None:
            click.echo(f"no violation: {sum(outcome.faults.values())} faults; {_done(outcome.counts)}")
        else:
            _print_violation(outcome)
    fail_on([outcome] if outcome.violation is not None else [], COMMAND)


def _print_campaign(campaign: StoreCampaign) -> None:
    from holdfast.simulation.store.run import StoreFault

    print_table(
        f"Faults injected in {campaign.seeds:,} seeds",
        ["fault", "times"],
        [(str(fault), campaign.faults[fault]) for fault in StoreFault],
        right=(1,),
    )
    per_seed = campaign.cpu_seconds / max(1, campaign.seeds)
    click.echo(
        f"{campaign.seeds:,} seeds in {campaign.seconds:.1f} s ({per_seed:.3f} s of one core each): "
        f"{sum(campaign.faults.values()):,} faults; {_done(campaign.counts)}"
    )
    if not campaign.violations:
        click.echo("no violation")
    for outcome in campaign.violations[:SHOWN]:
        _print_violation(outcome)


def _done(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))


def _print_violation(outcome: StoreOutcome) -> None:
    click.echo(f"VIOLATION, seed {outcome.seed}: {outcome.violation}")
    click.echo(f"  replay: holdfast {COMMAND} --seed {outcome.seed}")
