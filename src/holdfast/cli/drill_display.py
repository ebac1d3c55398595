"""What `holdfast drill` and `holdfast demo` show: progress while a drill runs, then tables and the verdict in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import print_table

if TYPE_CHECKING:
    from holdfast.drill.drill import DrillOutcome
    from holdfast.drill.history import Event
    from holdfast.drill.settings import DrillSettings


def print_outcome(outcome: DrillOutcome) -> None:
    """Print what became of each query, and the verdict of every check."""
    result = outcome.result
    rows = [
        (
            one["id"],
            one["priority"],
            one["down_at"],
            one["back_at"],
            None if one["back_at"] is None else round(one["back_at"] - one["down_at"], 1),
            one["level_at"],
            _ms(one["latency_before"]),
            _ms(one["latency_after"]),
        )
        for one in sorted(result["queries"], key=lambda one: (one["down_at"] is None, -one["priority"], one["id"]))
    ]
    title = f"{result['scenario']}, {result['strategy']}, seed {result['seed']}: {result['verdict']}"
    columns = ["query", "priority", "down at", "back at", "down for", "level at", "before, ms", "after, ms"]
    print_table(title, columns, rows, right=range(1, 8))
    print_table(
        None, ["check", "verdict", ""], [(one["name"], one["verdict"], one["reason"]) for one in result["checks"]]
    )
    words = {
        "detected_after": "detected",
        "planned_after": "planned",
        "first_restore_after": "first restore",
        "first_output_after": "first output",
        "all_back_after": "all back",
        "level_after": "all level",
    }
    steps = [f"{word} {result[name]:.1f} s" for name, word in words.items() if result[name] is not None]
    if steps:
        click.echo(f"After the fault: {', '.join(steps)}. Unavailability {result['unavailability']:.1f}.")
    click.echo(verdict_words(result))
    click.echo(f"Report: {outcome.directory / 'report.html'}")


def verdict_words(result: Mapping[str, Any]) -> str:
    """Say in a sentence or two what a drill showed."""
    from holdfast.drill.report import verdict_line

    return f"{str(result['verdict']).upper()}: {verdict_line(result)}"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000)


@contextmanager
def shown(asked: DrillSettings, *, quiet: bool) -> Iterator[tuple[Any, Any]]:
    """Show a drill while it runs: its set-up, its faults as they come, and one line with the present state."""
    if quiet:
        yield (lambda line: None), (lambda event: None)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    with Live(Text("computing"), console=console, refresh_per_second=4, transient=True) as live:
        line = DrillLine(asked)

        def log(text: str) -> None:
            console.print(Text(text), soft_wrap=True)
            live.update(Text(text))

        def watch(event: Event) -> None:
            if (text := line.handle(event)) is not None:
                console.print(Text(text), soft_wrap=True)
            live.update(Text(str(line)))

        yield log, watch


class DrillLine:
    """Where a running drill stands, in one line, from its events."""

    def __init__(self, asked: DrillSettings) -> None:
        self._asked = asked
        self._at = 0.0
        self._batch: dict[str, int] = {}
        self._queries: dict[str, set[str]] = {}
        self._away: set[str] = set()
        self._nodes = asked.nodes

    def handle(self, event: Event) -> str | None:
        """Take an event; returns a line for those that people should see at once."""
        from holdfast.drill.losses import LOST
        from holdfast.drill.report import fault_words
        from holdfast.reports.words import event_words

        given = event.fields
        self._at = max(self._at, event.at)
        match event.kind:
            case "begin":
                self._queries = {name: set(one["members"]) for name, one in given["queries"].items()}
            case "published" if not given.get("tentative"):
                self._batch[given["partition"]] = max(given["batch"], self._batch.get(given["partition"], -1))
            case "state":
                (self._away.add if given["after"] == LOST else self._away.discard)(given["partition"])
            case "fault":
                self._nodes += {"kill": -1, "add-node": 1}.get(given["what"], 0)
                return f"{event.at:6.1f} s  {fault_words(given)}"
            case "planned" | "node-arrived" | "node-lost" | "node-silent" | "recovery-ended" | "driver-ready":
                return f"{event.at:6.1f} s    {event_words(event)}" if event.at > 1 else None
            case "driver-failed":
                return f"{event.at:6.1f} s  the driver failed: {given.get('why')}"
        return None

    def __str__(self) -> str:
        up = sum(not members & self._away for members in self._queries.values())
        done = min((self._batch.get(name, -1) for name in self._queries), default=-1)
        return (
            f"{self._at:6.1f} s  batch {max(self._batch.values(), default=0)} of {self._asked.batches}, the last query "
            f"at {max(done, 0)}; {up} of {len(self._queries)} queries up, {self._nodes} nodes"
        )
