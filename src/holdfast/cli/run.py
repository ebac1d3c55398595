"""`holdfast run`: an application, from a Python file or by an example's name, on a Spark cluster."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast.wording import counted

if TYPE_CHECKING:
    from holdfast.application import Application
    from holdfast.spark.start_progress import StartProgress


@click.command()
@click.pass_obj
@click.argument("application", metavar="APP")
@click.option("--master", help="A Spark master, like spark://host:7077. Default: an embedded cluster on this machine.")
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, 50), help="Nodes of an embedded cluster.")
@click.option(
    "--directory",
    metavar="DIR|URL",
    help="Where logs, checkpoints and outputs go, a folder or s3://…; every node must reach it. Default: as "
    "spark.holdfast.directory says, else a new folder, where all nodes are on this machine.",
)
@click.option(
    "--checkpoint-every", type=click.IntRange(1), help="Batches per checkpoint. Default: as spark.holdfast.* says."
)
@click.option(
    "--conf", multiple=True, metavar="KEY=VALUE", help="A setting of Spark or spark.holdfast.*; may be repeated."
)
@click.option("--batches", default=20, show_default=True, type=click.IntRange(1), help="An example's batches.")
@click.option("--rows", default=2000, show_default=True, type=click.IntRange(1), help="An example's rows per batch.")
@click.option("--seed", default=1, show_default=True, help="Seed of an example's input.")
@click.option(
    "--plan",
    metavar="FILE|auto",
    help="A plan (`plan auto`, `segments` or `backups` with --json), or auto: the least downtime within an "
    "overhead of 5 %.",
)
@click.option(
    "--replicas",
    metavar="N|SHARE",
    help="Partitions that run a second time on another node: a count (12), a share (0.5) or '4 cores'.",
)
@click.option(
    "--tentative",
    is_flag=True,
    help="Let all outputs whose sinks can correct go on, marked tentative, while partitions are lost.",
)
@click.option("--page/--no-page", "page", default=None, help="Serve the live page. Default: with an embedded cluster.")
@click.option("--available-now", is_flag=True, help="Read what the sources have now, then end.")
@click.option("--take-over", is_flag=True, help="End the driver that runs this application, and continue in its place.")
@click.option("--close", is_flag=True, help="At the end of the input close all windows; the run cannot go on after it.")
@json_option
def run(
    submitted: Application | None,
    application: str,
    master: str | None,
    nodes: int,
    directory: str | None,
    checkpoint_every: int | None,
    conf: tuple[str, ...],
    batches: int,
    rows: int,
    seed: int,
    plan: str | None,
    replicas: str | None,
    tentative: bool,
    page: bool | None,
    available_now: bool,
    take_over: bool,
    close: bool,
    as_json: bool,
) -> None:
    """Run an application on a Spark cluster: a Python file that defines one, or an example by its name.

    Sources are read until Ctrl-C or SIGTERM (or to the end of what there is, with --available-now); examples bring
    their own input. Windows that later rows may still belong to stay open, unless --close says that no more will come.
    While nodes are missing, the queries that are alive go on. Outputs go to the sinks the application names, else to
    Parquet under DIRECTORY/out/NAME. Started again with the same directory, a run continues where it stood; each
    output row comes out once.

    A query whose operator, rows or sink fail is parked after a few attempts; all others continue, and `holdfast resume`
    lets it go on. Where the input ends with parked queries, the status is 1 and the line names them.

    The first Ctrl-C or SIGTERM stops reading, processes what is logged, takes a checkpoint and ends with status 0. A
    second one ends at once with status 130, as does one that comes before the run has started.

    A file that ends with hf.submit(app) runs by python and by spark-submit too, with the same options.

    \b
    Examples:
      holdfast run traffic --batches 20
      holdfast run my_app.py --directory /data/my-app --master spark://10.0.0.1:7077
      spark-submit --master spark://10.0.0.1:7077 my_app.py --directory /data/my-app
    """
    from holdfast.cli.run_display import RunDisplay
    from holdfast.spark.before_start import check_before_start
    from holdfast.spark.start import launch
    from holdfast.spark.start_progress import StartProgress, process_began
    from holdfast.spark.stop_signals import StopSignals

    app, given = (submitted, None) if submitted is not None else _find(application, batches, rows, seed)
    settings, began = _settings(conf), time.monotonic()
    if replicas is not None:
        settings["spark.holdfast.replicas.budget"] = replicas
    if tentative:
        settings["spark.holdfast.tentative.outputs"] = "all"
    display = RunDisplay(quiet=as_json, last=None if given is None else batches - 1)
    starting = StartProgress(display.starting, began=process_began())
    starting.reached("command")
    with ExitStack() as held:
        held.callback(display.clear)
        signals = held.enter_context(StopSignals(display.log))
        if master is not None:
            check_before_start(
                app, settings, master=master, directory=directory, reads=given is None, take_over=take_over
            )
        spark = _session(f"holdfast {app.name}", master, settings, held, starting)
        running = launch(
            app,
            spark,
            directory=directory,
            conf=settings if spark is None else {},
            nodes=nodes,
            available_now=available_now,
            close=close,
            sinks={},
            batches=given,
            checkpoint_every=checkpoint_every,
            watch=display.watch,
            take_over=take_over,
            plan=plan,
            starting=starting,
            page=page,
        )
        signals.stop(running)
        running.awaitTermination()
        counts = {name: running.count(name) for name in display.counted()}
    result = {
        "application": app.name,
        "directory": str(running.directory),
        "batches": display.batches(),
        "rollbacks": display.rollbacks(),
        "rows": counts,
        "partitions": display.partitions(),
        "seconds": time.monotonic() - began,
    }
    if as_json:
        print_json(result)
        return
    display.table()
    title = f"{app.name}: {counted(display.batches(), 'batch', 'batches')}"
    print_table(title, ["output", "rows"], list(counts.items()), right=(1,))
    place = running.directory
    click.echo(f"Outputs without a sink are Parquet under {place}/out; to continue: --directory {place}")


def _session(
    name: str,
    master: str | None,
    settings: dict[str, str],
    held: ExitStack,
    starting: StartProgress,
) -> Any:
    """Return the session of spark-submit or of a master that is named; None: the run starts an embedded cluster."""
    from holdfast.spark.session import is_submitted, start_session, stop_session, submitted_session

    if is_submitted():
        spark = submitted_session(name, master, settings=settings)
    elif master is not None:
        starting.line(f"starting the driver for {master}")
        spark = start_session(name, master, settings=settings, progress=starting.driver_is_up)
    else:
        return None
    held.callback(stop_session, spark)
    return spark


def _settings(conf: tuple[str, ...]) -> dict[str, str]:
    from holdfast.errors import BadInput

    found = {}
    for one in conf:
        key, equals, value = one.partition("=")
        if not equals or not key.startswith("spark."):
            raise BadInput(f"{one!r} is not a setting", field="--conf", remedy="write spark.some.key=value")
        found[key] = value
    return found


def _find(application: str, batches: int, rows: int, seed: int) -> tuple[Application, Any]:
    """Return the application, and the input that an example brings."""
    from holdfast.examples.registry import EXAMPLES
    from holdfast.loading import find_application

    found = find_application(application)
    return found, EXAMPLES[application].batches(seed, batches, rows) if application in EXAMPLES else None
