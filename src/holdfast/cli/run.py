"""`holdfast run`: an application, from a Python file or by an example's name, on a Spark cluster."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json, print_table

if TYPE_CHECKING:
    from holdfast.application import Application
    from holdfast.spark.cluster import EmbeddedCluster


@click.command()
@click.argument("application", metavar="APP")
@click.option("--master", help="A Spark master, like spark://host:7077. Default: an embedded cluster on this machine.")
@click.option("--nodes", default=3, show_default=True, type=click.IntRange(1, 50), help="Nodes of an embedded cluster.")
@click.option(
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where logs, checkpoints and outputs go; every node must reach it. Default: as spark.holdfast.directory says, "
    "else a new folder, where all nodes are on this machine.",
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
@click.option("--available-now", is_flag=True, help="Read what the sources have now, then end; to go on another time.")
@click.option("--close", is_flag=True, help="At the end of the input close all windows; the run cannot go on after it.")
@json_option
def run(
    application: str,
    master: str | None,
    nodes: int,
    directory: Path | None,
    checkpoint_every: int | None,
    conf: tuple[str, ...],
    batches: int,
    rows: int,
    seed: int,
    available_now: bool,
    close: bool,
    as_json: bool,
) -> None:
    """Run an application on a Spark cluster: a Python file that defines one, or an example by its name.

    Sources that are streaming DataFrames are read until Ctrl-C (or to the end of what there is, with --available-now);
    examples bring their own input. Windows that later rows may still belong to stay open, unless --close says that no
    more will come. While nodes are missing, the queries that are alive go on. Outputs go to the sinks the application
    names, else to Parquet under DIRECTORY/out. Started again with the same directory, a run goes on where it stood;
    each output row comes out once.

    A file that ends with submit(__file__) (from holdfast.cli.main) runs by spark-submit too, with the same options.

    \b
    Examples:
      holdfast run traffic --batches 20
      holdfast run my_app.py --directory /data/my-app --master spark://10.0.0.1:7077
      spark-submit --master spark://10.0.0.1:7077 my_app.py --directory /data/my-app
    """
    from holdfast.cli.run_display import RunDisplay
    from holdfast.spark.cluster import EmbeddedCluster
    from holdfast.spark.feed import finish, read_sources
    from holdfast.spark.ingest import Ingestion
    from holdfast.spark.run import SparkRun
    from holdfast.spark.session import is_submitted, start_session, stop_session, submitted_session
    from holdfast.spark.settings import Settings

    app, given = _find(application, batches, rows, seed)
    began = time.monotonic()
    with ExitStack() as held:
        name, settings = f"holdfast {app.name}", _settings(conf)
        cluster = None
        if is_submitted():
            spark = submitted_session(name, master, settings=settings)
        elif master is not None:
            spark = start_session(name, master, settings=settings)
        else:
            cluster = held.enter_context(EmbeddedCluster(nodes))
            spark = start_session(name, cluster.master_url, settings=settings)
        held.callback(stop_session, spark)
        place = run_folder(app.name, spark.sparkContext.master, directory or Settings.read(spark).directory)
        topology = app.topology()
        outputs = dict.fromkeys(topology.partition(index).operator for index in topology.outputs)
        sinks: dict[str, object] = {name: str(place / "out" / name) for name in outputs if app.sinks.get(name) is None}
        display = held.enter_context(RunDisplay(place / "run" / "events.jsonl", quiet=as_json))
        running = SparkRun(
            app,
            spark,
            place / "run",
            sinks=sinks,
            checkpoint_every=checkpoint_every,
            log=display.tell,
            emit=display.observe,
            nodes=nodes if cluster else None,
            request_nodes=_replacements(cluster, nodes) if cluster else None,
            secret_file=cluster.secret_file if cluster else None,
        )
        held.callback(running.close)
        if given is not None:
            for number, batch in enumerate(given):
                if number > running.logged:
                    running.log(batch)
                while running.live_frontier < number:
                    running.advance()
                display.batch(running, batches - 1)
            finish(running, close=close)
            display.batch(running, None)
        else:
            ingestion = Ingestion(app, spark, running, place / "run")
            try:
                read_sources(
                    ingestion,
                    running,
                    available_now=available_now,
                    close=close,
                    progressed=lambda: display.batch(running, None),
                )
            except KeyboardInterrupt:
                display.tell("stopped; the next run goes on from here")
        counts = {str(name): running.count(name) for name in sinks}
        result = {
            "application": app.name,
            "directory": str(place),
            "batches": running.frontier + 1,
            "rollbacks": running.rollbacks,
            "rows": counts,
            "partitions": display.partitions(running),
            "seconds": time.monotonic() - began,
        }
    if as_json:
        print_json(result)
        return
    display.table(running)
    print_table(f"{app.name}: {result['batches']} batches", ["output", "rows"], list(counts.items()), right=(1,))
    click.echo(f"Outputs are Parquet under {place / 'out'}; run it again with --directory {place} to go on.")


def _settings(conf: tuple[str, ...]) -> dict[str, str]:
    from holdfast.errors import BadInput

    found = {}
    for one in conf:
        key, equals, value = one.partition("=")
        if not equals or not key.startswith("spark."):
            raise BadInput(f"{one!r} is not a setting", field="--conf", remedy="write spark.some.key=value")
        found[key] = value
    return found


def run_folder(name: str, master: str, named: Path | str | None) -> Path:
    """Return a run's folder: as named, else a new one where all nodes are on this machine."""
    import tempfile

    from holdfast.errors import BadInput
    from holdfast.ids import folder_name
    from holdfast.spark.session import is_loopback_master

    if named is None and not is_loopback_master(master):
        raise BadInput(
            "other machines would not reach a new folder on this one",
            field="--directory",
            remedy="name a folder on storage that every node reaches, or set spark.holdfast.directory",
        )
    return Path(named or tempfile.mkdtemp(prefix=f"holdfast-{folder_name(name)}-"))


def _replacements(cluster: EmbeddedCluster, wanted: int) -> Any:
    """Return what brings nodes for those whose processes are gone; one that was only silent gets a new executor."""

    def request(count: int) -> str | None:
        for _ in range(min(count, wanted - cluster.living)):
            cluster.add_node()
        return None

    return request


def _find(application: str, batches: int, rows: int, seed: int) -> tuple[Application, Any]:
    """Return the application, and the input that an example brings."""
    import runpy

    from holdfast.application import load_application
    from holdfast.errors import BadInput
    from holdfast.examples.registry import EXAMPLES

    if application in EXAMPLES:
        example = EXAMPLES[application]
        return example.application(), example.batches(seed, batches, rows)
    path = Path(application)
    if not path.is_file():
        known = ", ".join(EXAMPLES)
        raise BadInput("no such file, and no example of that name", where=application, remedy=f"examples: {known}")
    try:
        names = runpy.run_path(str(path))
    except SystemExit as error:
        raise BadInput(
            f"ended with status {error.code}", where=application, remedy="only define the application"
        ) from None
    except Exception as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"cannot be loaded: {type(error).__name__}: {error}", where=application, remedy="mend the file"
        ) from None
    return load_application(names, application), None
