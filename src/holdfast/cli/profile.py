"""`holdfast profile`: what a run measured, or an application in this process, as a topology file for every plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from holdfast.application import Application
    from holdfast.topology import Topology


@click.command()
@click.argument("given", metavar="DIRECTORY|APP")
@click.option("--out", help="Write the file here. Default: standard output.")
@click.option("--input", "folder", metavar="DIR", help="An application's rows: DIR/SOURCE.parquet, .json or .csv.")
@click.option("--batches", default=20, show_default=True, type=click.IntRange(1), help="Batches to run an APP with.")
@click.option("--rows", default=2000, show_default=True, type=click.IntRange(1), help="Rows per batch and source.")
@click.option("--seed", default=1, show_default=True, help="Seed of an example's input.")
@json_option
def profile(given: str, out: str | None, folder: str | None, batches: int, rows: int, seed: int, as_json: bool) -> None:
    """Write a topology file with what was measured; every `holdfast plan` command takes it.

    DIRECTORY is that of a run, a folder or a URL, running or ended: its driver keeps the profile current, over the last
    five minutes, from the first checkpoint on. The file has rates, selectivities, times and bytes per tuple, sizes of
    states, cores per partition, T(v), failure rates with a prior of one failure in 30 days, and in `measured` the
    checkpoints, restores and nodes of the run, and what was not measured: that stays as the application declares it.
    `measured.fragments` has the bytes that restores read from peers and from the durable folder, the seconds of those
    from fragments beside what the model predicted, and the codes that agents have chosen.

    APP is an application without a run: it runs in this process on an example's input, the rows in --input, or the
    files that its sources name. Selectivities, times, bytes, states, snapshots and this machine's rates of coding are
    measured. Rates are not; failure rates are the prior where the application declares none.

    \b
    Examples:
      holdfast profile /data/my-app --out profile.json
      holdfast profile traffic --out traffic.json
      holdfast plan auto profile.json --recovery 5:20
      holdfast plan segments traffic.json
      holdfast plan fragments traffic.json
    """
    from holdfast.cli.topology_files import write_text
    from holdfast.examples.registry import EXAMPLES
    from holdfast.loading import names_application
    from holdfast.runtime.coordinator.profile_records import profile_of_run
    from holdfast.topology import to_document, to_json

    if given in EXAMPLES or names_application(given):
        topology, measured = _of_application(given, folder, batches, rows, seed)
    else:
        topology, measured = profile_of_run(given)
    if as_json and out is None:
        print_json(to_document(topology, measured))
        return
    text = to_json(topology, measured)
    if out is None:
        click.echo(text, nl=False)
        return
    write_text(out, text)
    if as_json:
        print_json({"file": out, "topology": topology.name, "measured": measured})
        return
    click.echo(f"{out}: {topology.name}, measured over {measured['period_seconds']:g} s")
    if missing := sorted({field for fields in measured["not_measured"].values() for field in fields}):
        click.echo(f"not measured, so as declared: {', '.join(missing)}")
    restores = measured.get("fragments") or {}
    if restores.get("bytes_from_peers") or restores.get("bytes_from_folder"):
        from holdfast.cli.plan_explain import restores_line

        click.echo(restores_line(restores))


def _of_application(
    given: str, folder: str | None, batches: int, rows: int, seed: int
) -> tuple[Topology, dict[str, Any]]:
    """Run an application in this process; nothing that it writes to sinks goes anywhere."""
    from holdfast.erasure.speed import measured_rates
    from holdfast.loading import find_application
    from holdfast.planning.profiles.run_profile import profiled
    from holdfast.runtime.in_process import InProcess
    from holdfast.runtime.io.sinks import MemorySink

    app = find_application(given)
    # What comes of it is not wanted: sinks that the application names are not written to.
    running = InProcess(app, nodes=1, sinks={name: MemorySink() for name in app.output_names().values()})
    for batch in _batches(app, given, folder, batches, rows, seed):
        running.feed(batch)
    running.checkpoint()  # what snapshots take
    found, measured = profiled(running.program.topology, running.profile())
    return found, measured | {"coding": measured_rates(time.perf_counter)}


def _batches(
    app: Application, given: str, folder: str | None, batches: int, rows: int, seed: int
) -> Iterator[dict[str, pa.Table]]:
    from pathlib import Path

    from holdfast.drill.inputs import available_batches, read_batches
    from holdfast.examples.registry import EXAMPLES

    if folder is not None:
        return read_batches(app, Path(folder), batches, rows)
    if given in EXAMPLES:
        return EXAMPLES[given].batches(seed, batches, rows)
    return available_batches(app, batches, rows)
