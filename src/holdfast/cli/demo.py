"""`holdfast demo`: lose half of a cluster while a stream runs, and get every row once."""

from __future__ import annotations

import time
from pathlib import Path

import click

from holdfast.cli.drill_display import print_outcome, shown
from holdfast.cli.output import json_option, print_json

_STATUS = {"ok": 0, "failed": 1, "unknown": 4}


@click.command()
@click.option(
    "--nodes", default=4, show_default=True, type=click.IntRange(2, 50), help="Nodes of the embedded cluster."
)
@click.option("--seconds", default=45, show_default=True, type=click.IntRange(30, 3600), help="How long the stream is.")
@click.option(
    "--seed", default=1, show_default=True, type=click.IntRange(0, 2**31), help="Seed of the events and the failure."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out/demo"),
    show_default=True,
    help="Where result.json, report.html, junit.xml and history.jsonl go.",
)
@json_option
def demo(nodes: int, seconds: int, seed: int, out: Path, as_json: bool) -> int:
    """Kill half of a Spark cluster while the traffic topology runs; every row must come out once.

    Starts a real master and workers on loopback and feeds the traffic topology a batch a second. Half of the nodes are
    killed at once; the most valuable queries come back first, the others as replacements arrive. The outputs are
    compared with a run without failures. Status 0 when they are the same. Nothing is left running.

    \b
    Example:
      holdfast demo --nodes 6 --seconds 60
    """
    from holdfast.cli.result_files import make_directory
    from holdfast.drill.drill import run_drill
    from holdfast.drill.settings import DrillFeed, DrillSettings

    half = nodes // 2
    fail_at = 12.0
    # The last replacement comes when two thirds of the stream are over, so that all is level again before its end.
    last = max(4.0, seconds * 2 / 3 - fail_at)
    arrivals = tuple(round(last * (number + 1) / half, 1) for number in range(half))
    asked = DrillSettings(
        "traffic",
        seed=seed,
        nodes=nodes,
        kill=half,
        arrivals=arrivals,
        standby=True,
        batches=seconds,
        rows=200,
        fail_at=fail_at,
        feed=DrillFeed.BATCHES,
    )
    make_directory(out)
    began = time.monotonic()
    with shown(asked, quiet=as_json) as (log, watch):
        outcome = run_drill(asked, out, log=log, watch=watch)
    if as_json:
        print_json(outcome.result)
    else:
        print_outcome(outcome)
        once = outcome.result["exactly_once"]
        equal = not (once["missing"] or once["duplicated"] or once["wrong"])
        click.echo(
            f"{half} of {nodes} nodes were killed; {once['expected']:,} rows "
            f"{'are' if equal else 'ARE NOT'} those of a run without failures ({time.monotonic() - began:.0f} s)."
        )
        click.echo("Next: `holdfast drill --help`, `holdfast topology list`, `holdfast run traffic`.")
    return _STATUS[str(outcome.verdict)]
