"""How commands print: one JSON document for scripts, tables for people, progress on standard error."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.progress import Progress

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document, and nothing else.")


def print_json(document: object) -> None:
    """Print one JSON document on standard output: numbers as JSON has them (no NaN), text as it is."""
    known = plain(document)
    text = json.dumps(known, ensure_ascii=False, allow_nan=False, indent=2)
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:  # a terminal without these letters, or a file name that is no text
        text = json.dumps(known, ensure_ascii=True, allow_nan=False, indent=2)
    click.echo(text)


def plain(value: Any) -> Any:
    """Turn numpy's numbers and arrays, tuples and typed ids into what JSON knows; not-a-number becomes null."""
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, str | bool) or value is None:
        return str(value) if isinstance(value, str) else value
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Iterable):
        return [plain(one) for one in value]
    return str(value)


def print_table(
    title: str | None, columns: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[int] = ()
) -> None:
    """Print a table for people; columns whose numbers are in `right` are set to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number in right else "left", no_wrap=number == 0, overflow="fold")
    for row in rows:
        table.add_row(*(cell(value) for value in row))
    width = None if sys.stdout is not None and sys.stdout.isatty() else 120
    Console(width=width).print(table)


def cell(value: object) -> str:
    """Write one value of a table: numbers short, nothing for None."""
    from rich.markup import escape

    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return escape(str(value))


def progress() -> Progress:
    """Return a progress bar on standard error for long work; use it as a context."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    )


@contextmanager
def steps(names: Sequence[str], *, quiet: bool = False) -> Iterator[Callable[[], None]]:
    """Show which of a few named steps is under way; call what it gives when one is done."""
    if quiet:
        yield lambda: None
        return
    with progress() as bar:
        task = bar.add_task(names[0], total=len(names))
        at = 0

        def done() -> None:
            nonlocal at
            at += 1
            bar.update(task, completed=at, description=names[min(at, len(names) - 1)])

        yield done
