"""`holdfast report`: a post-mortem of a run, or the report of a drill again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.output import json_option, print_json

if TYPE_CHECKING:
    from holdfast.reports.model import QuerySpec, Report


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--outage", type=click.IntRange(1), help="Which outage of a run's log, counted from 1. Default: the last."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where the files go. Default: DIRECTORY/report of a run, DIRECTORY of a drill.",
)
@click.option("--junit", type=click.Path(dir_okay=False, path_type=Path), help="Write the JUnit XML to this file.")
@json_option
def report(directory: Path, outage: int | None, out: Path | None, junit: Path | None, as_json: bool) -> None:
    """Write what happened in an outage: one HTML file that opens without a network, its JSON, and JUnit XML.

    DIRECTORY is that of a run, running or over: the report comes from its event log (run/events.jsonl) and shows one
    outage, the last by default: what was lost, what became of every query, the recovery of every partition with its
    reasons, promises beside what was measured. Or it is the directory of a drill: its report is drawn again from
    history.jsonl and result.json. Where a run's directory is a bucket, give the folder with events.jsonl that the run
    printed at its start.

    \b
    Examples:
      holdfast report /data/my-app
      holdfast report /data/my-app --outage 2 --out outage-2
      holdfast report out/drill-traffic --junit drill.xml
    """
    from holdfast.cli.result_files import make_directory, write_json
    from holdfast.durable_files import replace_atomically
    from holdfast.reports.document import run_document
    from holdfast.reports.junit import make_junit
    from holdfast.reports.page import make_page

    if (directory / "history.jsonl").is_file():
        made, document = _of_drill(directory)
        place = out or directory
    else:
        made = _of_run(directory, outage)
        document = run_document(made)
        place = out or directory / "report"
    make_directory(place)
    if place != directory:
        write_json(place / "result.json", document)
    replace_atomically(place / "report.html", make_page(made).encode())
    xml = junit or place / "junit.xml"
    make_directory(xml.parent)
    replace_atomically(xml, make_junit([(made.title, made)]).encode())
    if as_json:
        print_json({**document, "report": str(place / "report.html")})
        return
    click.echo(f"{made.verdict.upper()}: {made.line}")
    click.echo(f"Report: {place / 'report.html'}")


def _of_run(directory: Path, outage: int | None) -> Report:
    from holdfast.errors import BadInput, HoldfastError
    from holdfast.reports.event_log_files import event_folder, read_event_log
    from holdfast.reports.run_report import queries_in, run_report

    folder = event_folder(directory)
    if folder is None:
        raise BadInput(
            "has no event log and no history of a drill",
            where=str(directory),
            remedy="give the directory of a run or of a drill; of a run in a bucket, the folder with its events.jsonl",
        )
    log = read_event_log(folder)
    try:
        queries = queries_in(log.events) or _queries_of_records(directory)
    except HoldfastError as error:
        raise error if error.where else error.placed(str(folder)) from None
    described = [one.fields for one in log.events if one.kind == "run"]
    name = str(described[-1].get("application") or "") if described else ""
    name = name or directory.resolve().name
    return run_report(log.events, queries, name=name, directory=str(directory), incident=outage, unread=log.unread)


def _queries_of_records(directory: Path) -> dict[str, QuerySpec]:
    """Return the queries of a run whose log does not describe them, from the profile that its driver keeps."""
    from holdfast.reports.run_report import query_specs
    from holdfast.runtime.coordinator.profile_records import profile_of_run

    return query_specs(profile_of_run(str(directory))[0])


def _of_drill(directory: Path) -> tuple[Report, dict[str, Any]]:
    import json

    from holdfast.drill.checkers import Check, Verdict
    from holdfast.drill.history import read_history
    from holdfast.drill.measures import measure
    from holdfast.drill.report import drill_report
    from holdfast.errors import BadInput

    path = directory / "history.jsonl"
    with path.open(encoding="utf-8") as lines:
        history = read_history(lines, str(path))
    result_path = directory / "result.json"
    try:
        result = json.loads(result_path.read_text(encoding="utf-8"))
        checks = [Check(one["name"], Verdict(one["verdict"]), one["reason"]) for one in result["checks"]]
        made = drill_report(result, measure(history), checks, history)
    except FileNotFoundError:
        raise BadInput(
            "is not there: the drill did not end", where=str(result_path), remedy="do the drill again"
        ) from None
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise BadInput(
            f"is not a result of a drill ({type(error).__name__}: {error})",
            where=str(result_path),
            remedy="do the drill again",
        ) from None
    return made, result
