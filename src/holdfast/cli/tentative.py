"""`holdfast tentative`: let a query of a run give tentative outputs, or none."""

from __future__ import annotations

import click

from holdfast.cli.output import print_json


@click.command()
@click.argument("directory")
@click.argument("query")
@click.option("--off", is_flag=True, help="No tentative outputs, also where the application asks for them.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def tentative(directory: str, query: str, off: bool, as_json: bool) -> None:
    """Let a query go on without partitions that are lost, in an outage.

    DIRECTORY is that of the run, a folder or a URL. QUERY is one of its queries, like `jams[0]`, or an output operator
    like `jams`: all its queries. While partitions are lost, a driver reads the request within a second or two; else
    when that happens next. It holds for this outage and later ones, over restarts, until you say otherwise. A query
    whose sink cannot correct tentative rows is refused, with a line and the event `tentative-chosen`.

    \b
    Example:
      holdfast tentative /data/my-app jams
      holdfast tentative /data/my-app jams --off
    """
    from holdfast.cli.requests import RunRecord
    from holdfast.errors import BadInput
    from holdfast.ids import PartitionId
    from holdfast.runtime.coordinator.requests import TentativeRequests, queries_named

    run = RunRecord(directory)
    query = run.by_operator(query)
    known = [PartitionId.parse(one) for one in run.machine.get("published", {})]
    queries = [str(one) for one in queries_named(known, query)]
    if not queries:
        raise BadInput(
            f"the run has no query {query!r}", where=directory, remedy=f"its queries are {', '.join(map(str, known))}"
        )
    number = TentativeRequests(run.storage).add(query, on=not off)
    taken = run.wait_until(lambda machine: machine.get("tentative_choices", {}).get("requests", -1) >= number)
    chosen = run.machine.get("tentative_choices", {}).get("queries", {})
    refused = [one for one in queries if taken and chosen.get(one) is not (not off)]
    if as_json:
        print_json({"directory": directory, "queries": queries, "request": number, "taken": taken, "refused": refused})
        return
    names, what = ", ".join(queries), "no tentative outputs" if off else "tentative outputs"
    if refused:
        click.echo(f"{', '.join(refused)}: refused; the run's log says why")
    elif taken:
        click.echo(f"{names}: {what} from now on")
    else:
        click.echo(f"{names}: {what} when partitions are lost next; nothing is lost now, or no driver runs")
