"""`holdfast resume`: let a parked query go on."""

from __future__ import annotations

import click

from holdfast.cli.output import print_json


@click.command()
@click.argument("directory")
@click.argument("query")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def resume(directory: str, query: str, as_json: bool) -> None:
    """Let a parked query go on, once the cause is removed.

    DIRECTORY is that of the run, a folder or a URL. QUERY is what the run names as parked, like `jams[0]`, or an
    output, like `jams`, by its name or its operator: all its parked queries. A driver that runs reads the request
    within a second or two and continues the query with the batch that failed; where none runs, the next start does. A
    query that fails again is parked again.

    \b
    Example:
      holdfast resume /data/my-app 'jams[0]'
    """
    from holdfast.cli.requests import RunRecord
    from holdfast.ids import PartitionId
    from holdfast.runtime.coordinator.parking import parked_named
    from holdfast.runtime.coordinator.requests import ResumeRequests

    run = RunRecord(directory)
    query = run.by_operator(query)
    named = parked_named([PartitionId.parse(one) for one in run.machine.get("parked", {})], query)
    number = ResumeRequests(run.storage).add(query)
    taken = run.wait_until(lambda machine: machine.get("requests", -1) >= number)
    queries = [str(one) for one in named]
    if as_json:
        print_json({"directory": directory, "queries": queries, "request": number, "taken": taken})
        return
    names = ", ".join(queries)
    click.echo(f"{names} resumed" if taken else f"{names}: no driver has read this yet; the next start resumes it")
