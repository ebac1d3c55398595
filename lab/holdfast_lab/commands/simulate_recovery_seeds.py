"""`holdfast simulate recovery` without `--nodes`: seeds of generated applications that must show no violation."""

from __future__ import annotations

from functools import partial

from holdfast.cli.seed_options import SeedRequest
from holdfast_lab.commands.simulate_seeds import SeedSimulator, run_seeds_of
from holdfast_lab.simulation.recovery.campaign import Campaign
from holdfast_lab.simulation.recovery.faults import Fault
from holdfast_lab.simulation.recovery.run import Outcome, simulate_recovery


def run_recovery_seeds(asked: SeedRequest) -> None:
    """Run the seeds that are asked for; end with status 1 after a violation."""
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


def _violation(outcome: Outcome) -> list[str]:
    assert outcome.violation is not None
    first = f" ({outcome.recipe}, {outcome.strategy}): {outcome.violation.what}"
    return [first, *(str(history) for history in outcome.histories)]
