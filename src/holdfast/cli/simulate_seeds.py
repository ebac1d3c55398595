"""What the commands that run seeds of a simulator share: their options, the course of a campaign, and its end."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar

import click

from holdfast.cli.output import print_json
from holdfast.cli.phases import phases

if TYPE_CHECKING:
    from holdfast.simulation.campaign import Counted

SHOWN = 5
"""Violations that are printed."""

P = ParamSpec("P")
R = TypeVar("R")
_Campaign = TypeVar("_Campaign", bound="Counted[Any]")


class Seeded(Protocol):
    """What came of a seed."""

    @property
    def seed(self) -> int:
        """The seed."""


def seed_options(function: Callable[P, R]) -> Callable[P, R]:
    """Give a command the options that say which seeds it runs."""
    for option in (
        click.option("--seed", default=None, type=int, help="Run this one seed, and print its history line by line."),
        click.option(
            "--jobs", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes that share the seeds."
        ),
        click.option("--fresh", is_flag=True, help="Draw the first seed anew: seeds that nobody has run before."),
        click.option("--first-seed", default=0, show_default=True, type=int, help="The first of them."),
        click.option("--seeds", default=1000, show_default=True, type=click.IntRange(1), help="How many seeds to run."),
    ):
        function = option(function)
    return function


def run_and_show(
    seeds: int,
    first_seed: int,
    campaign: _Campaign,
    simulate: Callable[[int], Seeded],
    show: Callable[[_Campaign], None],
    *,
    jobs: int,
    fresh: bool,
    out: Path,
    as_json: bool,
    command: str,
) -> None:
    """Run so many seeds, write result.json, print what came of them, and end with status 1 after a violation.

    A violation is named on standard error as soon as it is found. Ctrl-C ends the campaign early, and what it has
    found until then is shown and written.
    """
    from holdfast.cli.result_files import write_json
    from holdfast.simulation.campaign import run_seeds

    if fresh:
        first_seed = secrets.randbelow(1 << 40)
    chosen = range(first_seed, first_seed + seeds)
    named = 0
    with phases() as phase:

        def report(done: int, total: int) -> None:
            nonlocal named
            for outcome in campaign.violations[named:]:
                click.echo(
                    f"violation after {done:,} of {total:,} seeds: holdfast {command} --seed {outcome.seed}", err=True
                )
            named = len(campaign.violations)
            phase("seeds", done, total)

        stopped = not run_seeds(campaign, simulate, chosen, jobs=jobs, report=report)
    document = {"first_seed": first_seed, **campaign.document()}
    write_json(out / "result.json", document)
    if as_json:
        print_json(document)
    else:
        show(campaign)
        # Processes share the seeds in order, so a campaign that was stopped has run the first of them.
        click.echo(f"seeds {first_seed} to {first_seed + campaign.seeds - 1}")
        click.echo(f"result: {out / 'result.json'}")
    fail_on(campaign.violations, command)
    if stopped:
        click.echo(f"stopped after {campaign.seeds:,} of {seeds:,} seeds", err=True)
        raise click.exceptions.Exit(130)


def fail_on(violations: Sequence[Seeded], command: str) -> None:
    """End with status 1 where there is a violation."""
    from holdfast.errors import CheckFailed

    if violations:
        first = violations[0]
        raise CheckFailed(
            f"{len(violations)} seeds violate what must hold, the first is {first.seed}",
            where=command,
            remedy=f"see its history: holdfast {command} --seed {first.seed}",
        )
