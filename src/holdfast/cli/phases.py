"""A progress bar for work in phases: each names itself, says how far it is, and the next takes the bar over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.cli.output import progress


@contextmanager
def phases() -> Iterator[Callable[[str, int, int], None]]:
    """Yield a function to call with what is being done, how much of it is done, and how much there is."""
    with progress() as bar:
        task = bar.add_task("start", total=None)

        def report(what: str, done: int, total: int) -> None:
            bar.update(task, description=what, completed=done, total=total)

        yield report
