"""`holdfast simulate store`: the fragment store itself on simulated machines, where everything goes wrong."""

from __future__ import annotations

from functools import partial

import click

from holdfast.cli.seed_options import SeedRequest, seed_options
from holdfast_lab.commands.simulate_seeds import SeedSimulator, run_seeds_of


@click.command("store")
@seed_options("out/simulate-store")
def simulate_store_command(asked: SeedRequest) -> None:
    """Simulate the fragment store: seeds that must show no violation.

    Every seed is a ring of 3 to 6 peers with a client that writes and one that reads, for a minute of simulated time
    with faults (machines, disks, network, clients) and some minutes without. Peers, clients and repair are those of
    real runs; threads, clocks, sockets and disks are simulated. Checkers require that every acknowledged save can be
    read, and that at the end everything that the faults have left whole is read, rebuilt and at rest.

    \b
    Examples:
      holdfast simulate store --seeds 200 --jobs 2
      holdfast simulate store --seeds 1000 --fresh --jobs 2
      holdfast simulate store --seed 42
    """
    from holdfast_lab.simulation.store.campaign import StoreCampaign
    from holdfast_lab.simulation.store.run import StoreFault, simulate_store

    simulator = SeedSimulator(
        command="simulate store",
        campaign=StoreCampaign,
        simulate=simulate_store,
        record=partial(simulate_store, record=True),
        faults=StoreFault,
        counts=lambda campaign: _done(campaign.counts),
        outcome=lambda outcome: f"{sum(outcome.faults.values())} faults, {_done(outcome.counts)}",
        head=lambda outcome: [],
        violation=lambda outcome: [f": {outcome.violation}"],
    )
    run_seeds_of(simulator, asked)


def _done(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in sorted(counts.items()))
