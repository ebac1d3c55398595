"""`holdfast dashboard`: the live page of a run, running or over."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from holdfast.cli.output import print_json


@click.command()
@click.argument("directory", metavar="DIRECTORY")
@click.option("--events", metavar="FILE", help="The run's event file, where DIRECTORY is a URL: the run names it.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option(
    "--port", default=4050, show_default=True, type=click.IntRange(0, 65535), help="Where it is taken, one of the next."
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
def dashboard(directory: str, events: str | None, host: str, port: int, as_json: bool) -> None:
    """Show the live page of the run in DIRECTORY until Ctrl-C: topology, queries, nodes, recoveries.

    It reads the run's event log, so it shows runs that are over as well, and those whose driver is gone; a driver that
    starts again appears by itself. The page is read-only; resuming a parked query on it needs the token in
    DIRECTORY/run/page-token. It listens on loopback unless --host says otherwise.

    \b
    Example:
      holdfast dashboard /data/my-app
    """
    from holdfast.dashboard.run_page import RunPage

    stopped = threading.Event()
    shown = RunPage(directory, events=None if events is None else Path(events), host=host, port=port, require_run=True)
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, lambda *_: stopped.set())
    try:
        if as_json:
            print_json({"directory": directory, "url": shown.url})
        else:
            click.echo(f"page: {shown.url} (Ctrl-C ends it)")
        while not stopped.wait(3600):
            pass
    finally:
        shown.close()
