"""`holdfast drill`: real faults on an embedded cluster, checked; one drill or many with consecutive seeds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from holdfast.drill.drill import DrillOutcome
    from holdfast.drill.history import Event
    from holdfast.drill.settings import DrillSettings

STRATEGIES = (
    "incremental",
    "operator-centric",
    "blocking",
    "source-replay",
    "best-case",
    "structured-streaming",
)
_STATUS = {"ok": 0, "failed": 1, "unknown": 4}


@click.command()
@click.argument("scenario", metavar="SCENARIO")
@click.option(
    "--strategy", default="incremental", show_default=True, type=click.Choice(STRATEGIES), help="How outputs come back."
)
@click.option("--nodes", default=6, show_default=True, type=int, help="Nodes of the embedded cluster.")
@click.option("--kill", default=3, show_default=True, type=int, help="Nodes ended with kill -9 at the failure.")
@click.option(
    "--arrivals",
    default="uniform:5-30",
    show_default=True,
    help="Seconds after the failure at which replacements are started: 10,20,30 or uniform:10-60.",
)
@click.option("--standby", is_flag=True, help="Start replacements beforehand: they are there at their times exactly.")
@click.option("--stagger", default=0.0, show_default=True, help="Seconds between two kills; 0: all at once.")
@click.option(
    "--freeze", default=0, show_default=True, help="Nodes that stop answering at the failure, and thaw later."
)
@click.option("--thaw-after", default=20.0, show_default=True, help="Seconds until frozen nodes thaw.")
@click.option("--second-wave", default=0, show_default=True, help="Further nodes killed while recovery is under way.")
@click.option(
    "--kill-driver", is_flag=True, help="End the driver too, while recovery is under way, and start it again."
)
@click.option("--slow", default=0, show_default=True, help="Surviving nodes that get 30 % of their processor.")
@click.option(
    "--drop-packets", default=0.0, show_default=True, help="Share of messages to surviving nodes' agents that are lost."
)
@click.option("--batches", default=90, show_default=True, help="Batches of the stream.")
@click.option("--rows", default=200, show_default=True, help="Rows of a batch.")
@click.option("--batch-seconds", default=1.0, show_default=True, help="A batch is due every so many seconds.")
@click.option("--fail-at", default=20.0, show_default=True, help="Seconds from the start to the first fault.")
@click.option("--checkpoint-every", default=10, show_default=True, help="Batches per checkpoint.")
@click.option(
    "--capacity", type=float, help="What a node can carry, in partitions' costs. Default: the start fills 60 %."
)
@click.option(
    "--algorithm",
    default="best-density",
    show_default=True,
    type=click.Choice(["best-density", "exact"]),
    help="Planner of the incremental strategy.",
)
@click.option("--seed", default=1, show_default=True, type=click.IntRange(0), help="Of the input and of all faults.")
@click.option(
    "--repeat", default=1, show_default=True, type=click.IntRange(1), help="Drills with the seeds from --seed."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where result.json, report.html and history.jsonl go. Default: out/drill-SCENARIO.",
)
@click.option("--keep", is_flag=True, help="Keep the run's logs, checkpoints and outputs too.")
@json_option
def drill(
    scenario: str,
    strategy: str,
    arrivals: str,
    seed: int,
    repeat: int,
    out: Path | None,
    keep: bool,
    as_json: bool,
    **rest: Any,
) -> int:
    """Break a real cluster while a stream runs, and prove that every output row came out once.

    Starts an embedded Spark cluster, feeds SCENARIO (traffic, hashtags or chain) a batch a second, does to it what the
    options say, records everything, and compares the outputs with a run without failures. The schedule of faults comes
    from the seed alone. As SCENARIO, `mixed` draws scenario and faults from the seed too. With --repeat, drills with
    consecutive seeds, each in a directory of its own.

    Status 0: all checks are ok; 1: one failed; 4: one could not be made.

    \b
    Examples:
      holdfast drill traffic --nodes 6 --kill 4 --arrivals 5,10,20,30
      holdfast drill hashtags --kill 2 --freeze 1 --second-wave 1 --kill-driver --seed 7
      holdfast drill chain --strategy blocking --json
      holdfast drill mixed --batches 50 --fail-at 12 --arrivals uniform:3-15 --repeat 30
    """
    from holdfast.cli.result_files import make_directory
    from holdfast.drill.checkers import Verdict
    from holdfast.drill.cluster_shelf import ClusterShelf
    from holdfast.drill.drill import DrillOutcome, run_drill
    from holdfast.drill.mixed import MIXED, draw_settings
    from holdfast.drill.scenarios import find_scenario
    from holdfast.drill.settings import DrillSettings, DrillStrategy, check_settings, read_arrivals
    from holdfast.errors import CheckFailed

    asked = DrillSettings(
        scenario, strategy=DrillStrategy(strategy), arrivals=read_arrivals(arrivals), seed=seed, **rest
    )
    drawn = [replace(asked, seed=seed + number) for number in range(repeat)]
    if scenario == MIXED:
        drawn = [draw_settings(one) for one in drawn]
    for one in drawn:
        find_scenario(one.scenario)
        check_settings(one)
    place = out or Path("out") / f"drill-{scenario}"
    make_directory(place)
    done: list[DrillOutcome] = []
    with ClusterShelf() as clusters:
        for one in drawn:
            where = place if repeat == 1 else place / f"seed-{one.seed}"
            try:
                with shown(one, quiet=as_json) as (tell, watch):
                    outcome = run_drill(one, where, tell=tell, watch=watch, keep=keep, clusters=clusters)
            except CheckFailed as error:
                if repeat == 1:
                    raise
                # One that could not be begun says nothing of the others.
                result = {"scenario": one.scenario, "seed": one.seed, "verdict": "unknown", "reasons": [str(error)]}
                done.append(DrillOutcome(result, Verdict.UNKNOWN, where))
                click.echo(f"holdfast: seed {one.seed}: {error}", err=True)
                continue
            done.append(outcome)
            if not as_json:
                print_outcome(outcome)
    results = [outcome.result for outcome in done]
    if as_json:
        print_json(results[0] if repeat == 1 else {"drills": results, "verdicts": _counts(done)})
    elif repeat > 1:
        click.echo(", ".join(f"{count} {verdict}" for verdict, count in _counts(done).items()))
    verdicts = _counts(done)
    return next((_STATUS[verdict] for verdict in ("failed", "unknown") if verdict in verdicts), 0)


def _counts(done: list[DrillOutcome]) -> dict[str, int]:
    found: dict[str, int] = {}
    for outcome in done:
        found[str(outcome.verdict)] = found.get(str(outcome.verdict), 0) + 1
    return found


def print_outcome(outcome: DrillOutcome) -> None:
    """Print what became of each query, and what the checks say."""
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
    click.echo(f"{outcome.directory / 'report.html'} shows it.")


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1000)


@contextmanager
def shown(asked: DrillSettings, *, quiet: bool) -> Iterator[tuple[Any, Any]]:
    """Show a drill while it runs: one line on standard error that says where it stands, and the faults as they come."""
    if quiet:
        yield (lambda line: None), (lambda event: None)
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    with Live(Text("computing"), console=console, refresh_per_second=4, transient=True) as live:
        line = DrillLine(asked)

        def tell(text: str) -> None:
            live.update(Text(text))

        def watch(event: Event) -> None:
            if (said := line.hear(event)) is not None:
                console.print(Text(said))
            live.update(Text(str(line)))

        yield tell, watch


class DrillLine:
    """Where a running drill stands, in one line, from its events."""

    def __init__(self, asked: DrillSettings) -> None:
        self._asked = asked
        self._at = 0.0
        self._batch: dict[str, int] = {}
        self._queries: dict[str, set[str]] = {}
        self._away: set[str] = set()
        self._nodes = asked.nodes

    def hear(self, event: Event) -> str | None:
        """Take an event; returns a line where people would want to know at once."""
        from holdfast.drill.losses import LOST
        from holdfast.drill.report import event_words, fault_words

        given = event.fields
        self._at = max(self._at, event.at)
        match event.kind:
            case "begin":
                self._queries = {name: set(one["members"]) for name, one in given["queries"].items()}
            case "published":
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
