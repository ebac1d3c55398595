"""`holdfast resume`: let a parked query go on."""

from __future__ import annotations

import time
from typing import Any

import click

from holdfast.cli.output import print_json

WAIT_SECONDS = 10.0
"""How long a driver that runs may take to say that it has read a request."""


@click.command()
@click.argument("directory")
@click.argument("query")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def resume(directory: str, query: str, as_json: bool) -> None:
    """Let a parked query go on, once the cause is removed.

    DIRECTORY is that of the run, a folder or a URL. QUERY is what the run names as parked, like `jams[0]`, or an output
    operator like `jams`: all its parked queries. A driver that runs reads the request within a second or two and
    continues the query with the batch that failed; where none runs, the next start does. A query that fails again is
    parked again.

    \b
    Example:
      holdfast resume /data/my-app 'jams[0]'
    """
    from holdfast.errors import BadInput
    from holdfast.ids import PartitionId
    from holdfast.runtime.coordinator.parking import parked_named
    from holdfast.runtime.coordinator.progress import last_driver
    from holdfast.runtime.coordinator.requests import ResumeRequests
    from holdfast.storage.storage import open_storage

    storage = open_storage(f"{directory.rstrip('/')}/run")
    last = last_driver(storage)
    if last is None:
        raise BadInput("no run began here", where=directory, remedy="give the directory that the run was started with")
    machine: dict[str, Any] = last["machine"] or {}
    named = parked_named([PartitionId.parse(one) for one in machine.get("parked", {})], query)
    number = ResumeRequests(storage).add(query)
    taken = False
    until = time.monotonic() + (0.0 if last["ended"] else WAIT_SECONDS)
    while not taken and time.monotonic() < until:
        time.sleep(0.2)
        now = last_driver(storage)
        taken = now is not None and ((now["machine"] or {}).get("requests", -1)) >= number
    queries = [str(one) for one in named]
    if as_json:
        print_json({"directory": directory, "queries": queries, "request": number, "taken": taken})
        return
    names = ", ".join(queries)
    click.echo(f"{names} resumed" if taken else f"{names}: no driver has read this yet; the next start resumes it")
