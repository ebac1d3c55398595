"""The options of commands that run seeds of a simulator; the simulators that run them are in the lab."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec

import click

from holdfast.cli.output import json_option

P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class SeedRequest:
    """Which seeds are asked for, and where the result goes."""

    seeds: int
    first_seed: int
    fresh: bool
    jobs: int
    seed: int | None
    out: Path
    as_json: bool


def seed_options(out: str) -> Callable[[Callable[Concatenate[SeedRequest, P], None]], Callable[..., None]]:
    """Give a command the options that say which seeds it runs; it gets them as one SeedRequest."""
    options = (
        click.option(
            "--seeds",
            default=1000,
            show_default=True,
            type=click.IntRange(1),
            help="How many seeds to run. A violation is printed with its seed and how to replay it; the status is "
            "then 1.",
        ),
        click.option("--first-seed", default=0, show_default=True, type=int, help="The first of them."),
        click.option("--fresh", is_flag=True, help="Draw the first seed at random, to run seeds that are new."),
        click.option(
            "--jobs", default=1, show_default=True, type=click.IntRange(1, 64), help="Processes that share the seeds."
        ),
        click.option("--seed", default=None, type=int, help="Run this one seed, and print its history line by line."),
        click.option(
            "--out",
            default=Path(out),
            show_default=True,
            type=click.Path(path_type=Path, file_okay=False),
            help="Where the result goes as JSON.",
        ),
        json_option,
    )

    def decorate(function: Callable[Concatenate[SeedRequest, P], None]) -> Callable[..., None]:
        @wraps(function)
        def command(
            *,
            seeds: int,
            first_seed: int,
            fresh: bool,
            jobs: int,
            seed: int | None,
            out: Path,
            as_json: bool,
            **own: Any,
        ) -> None:
            function(SeedRequest(seeds, first_seed, fresh, jobs, seed, out, as_json), **own)  # type: ignore[call-arg]

        for option in reversed(options):
            option(command)
        return command

    return decorate
