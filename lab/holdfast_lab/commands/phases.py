"""A progress bar for work in phases: each names itself, says how far it is, and the next takes the bar over."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from holdfast.cli.output import progress

SECONDS_BETWEEN_LINES = 60.0
"""How often a line says how far the work is where standard error is no terminal and shows no bar."""


@contextmanager
def phases() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to call with what is being done, how much of it is done, and how much there is."""
    with progress() as bar:
        task = bar.add_task("start", total=None)
        printed = time.monotonic()

        def report(what: str, done: int, total: int) -> None:
            nonlocal printed
            bar.update(task, description=what, completed=done, total=total)
            if not bar.console.is_terminal and time.monotonic() - printed >= SECONDS_BETWEEN_LINES:
                printed = time.monotonic()
                click.echo(f"{what}: {done:,} of {total:,}", err=True)

        yield report
