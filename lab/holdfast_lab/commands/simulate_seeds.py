"""What the commands that run seeds of a simulator share: one seed or a campaign of many, and how it ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import click

from holdfast.cli.output import print_json, print_table
from holdfast.cli.seed_options import SeedRequest
from holdfast_lab.commands.phases import phases

if TYPE_CHECKING:
    from holdfast_lab.simulation.campaign import Counted

SHOWN = 5
"""Violations that are printed."""


class Seeded(Protocol):
    """What came of a seed."""

    @property
    def seed(self) -> int:
        """The seed."""

    @property
    def violation(self) -> object | None:
        """What did not hold; None: everything did."""

    @property
    def journal(self) -> Sequence[str]:
        """Its history line by line, where it was recorded."""


_Outcome = TypeVar("_Outcome", bound=Seeded)
_Campaign = TypeVar("_Campaign", bound="Counted[Any]")


@dataclass(frozen=True, slots=True)
class SeedSimulator(Generic[_Outcome, _Campaign]):
    """A simulator as its command shows it."""

    command: str
    campaign: Callable[[], _Campaign]
    simulate: Callable[[int], _Outcome]
    """A function of a module, so that other processes find it."""
    record: Callable[[int], _Outcome]
    """The same with a history."""
    faults: type[StrEnum]
    counts: Callable[[_Campaign], str]
    """What was counted in a campaign beside faults."""
    outcome: Callable[[_Outcome], str]
    """What was counted of one seed."""
    head: Callable[[_Outcome], list[str]]
    """Lines before a seed's history."""
    violation: Callable[[_Outcome], list[str]]
    """Lines about a violation, the first without the seed."""


def run_seeds_of(simulator: SeedSimulator[_Outcome, _Campaign], asked: SeedRequest) -> None:
    """Run one seed with its history, or a campaign; end with status 1 after a violation."""
    if asked.seed is not None:
        _run_one(simulator, asked.seed, asked.as_json)
    else:
        _run_campaign(simulator, asked)


def _run_one(simulator: SeedSimulator[_Outcome, _Campaign], seed: int, as_json: bool) -> None:
    outcome = simulator.record(seed)
    if as_json:
        campaign = simulator.campaign()
        campaign.add(outcome)
        print_json({**campaign.document(), "journal": outcome.journal})
    else:
        for line in [*simulator.head(outcome), *outcome.journal]:
            click.echo(line)
        if outcome.violation is None:
            click.echo(f"no violation: {simulator.outcome(outcome)}")
        else:
            _print_violation(simulator, outcome)
    _fail_on([outcome] if outcome.violation is not None else [], simulator.command)


def _run_campaign(simulator: SeedSimulator[_Outcome, _Campaign], asked: SeedRequest) -> None:
    """Run so many seeds, write result.json, and print what came of them.

    A violation is named on standard error as soon as it is found. Ctrl-C ends the campaign early, and what it has
    found until then is shown and written.
    """
    from holdfast.cli.result_files import write_json
    from holdfast_lab.simulation.campaign import run_seeds

    first_seed = secrets.randbelow(1 << 40) if asked.fresh else asked.first_seed
    campaign, named = simulator.campaign(), 0
    with phases() as phase:

        def report(done: int, total: int) -> None:
            nonlocal named
            for outcome in campaign.violations[named:]:
                replay = f"holdfast {simulator.command} --seed {outcome.seed}"
                click.echo(f"violation after {done:,} of {total:,} seeds: {replay}", err=True)
            named = len(campaign.violations)
            phase("seeds", done, total)

        chosen = range(first_seed, first_seed + asked.seeds)
        stopped = not run_seeds(campaign, simulator.simulate, chosen, jobs=asked.jobs, report=report)
    document = {"first_seed": first_seed, **campaign.document()}
    write_json(asked.out / "result.json", document)
    if asked.as_json:
        print_json(document)
    else:
        _print_campaign(simulator, campaign)
        # Processes share the seeds in order, so a campaign that was stopped has run the first of them.
        click.echo(f"seeds {first_seed} to {first_seed + campaign.seeds - 1}")
        click.echo(f"result: {asked.out / 'result.json'}")
    _fail_on(campaign.violations, simulator.command)
    if stopped:
        click.echo(f"stopped after {campaign.seeds:,} of {asked.seeds:,} seeds", err=True)
        raise click.exceptions.Exit(130)


def _print_campaign(simulator: SeedSimulator[_Outcome, _Campaign], campaign: _Campaign) -> None:
    faults = campaign.faults
    print_table(
        f"Faults injected in {campaign.seeds:,} seeds",
        ["fault", "times"],
        [(str(fault), faults[fault]) for fault in simulator.faults],
        right=(1,),
    )
    per_seed = campaign.cpu_seconds / max(1, campaign.seeds)
    click.echo(
        f"{campaign.seeds:,} seeds in {campaign.seconds:.1f} s ({per_seed:.3f} s of one core each): "
        f"{sum(faults.values()):,} faults, {simulator.counts(campaign)}"
    )
    if not campaign.violations:
        click.echo("no violation")
    for outcome in campaign.violations[:SHOWN]:
        _print_violation(simulator, outcome)


def _print_violation(simulator: SeedSimulator[_Outcome, _Campaign], outcome: _Outcome) -> None:
    first, *others = simulator.violation(outcome)
    click.echo(f"VIOLATION, seed {outcome.seed}{first}")
    for line in others:
        click.echo(f"  {line}")
    click.echo(f"  replay: holdfast {simulator.command} --seed {outcome.seed}")


def _fail_on(violations: Sequence[Seeded], command: str) -> None:
    """End with status 1 where there is a violation."""
    from holdfast.errors import CheckFailed

    if violations:
        first = violations[0]
        raise CheckFailed(
            f"{len(violations)} seeds violate what must hold, the first is {first.seed}",
            where=command,
            remedy=f"see its history: holdfast {command} --seed {first.seed}",
        )
