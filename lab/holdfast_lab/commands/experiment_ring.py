"""`holdfast experiment ring`: the figures of A-FP4S, sec. 5, beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.output import json_option, print_json, print_table
from holdfast_lab.commands.phases import phases

if TYPE_CHECKING:
    from holdfast_lab.experiments.ring.part import Part


@click.command("ring")
@click.option("--peers", default=5000, show_default=True, type=click.IntRange(2, 20_000), help="Simulated peers.")
@click.option(
    "--applications", default=1000, show_default=True, type=click.IntRange(1), help="States of 30 fragments each."
)
@click.option(
    "--state-mb", default=128, show_default=True, type=click.IntRange(1, 4096), help="Size of the state for Fig. 11."
)
@click.option("--repeat", default=5, show_default=True, type=click.IntRange(1, 100), help="Runs of each measurement.")
@click.option("--only", multiple=True, metavar="PART", help="Only this part or group, like balance; repeatable.")
@click.option("--seed", default=1, show_default=True, type=int, help="Seed; the same seed gives the same run.")
@click.option(
    "--out",
    default=Path("out/ring"),
    show_default=True,
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for result.json, CSV files and plots.",
)
@json_option
def experiment_ring_command(
    peers: int,
    applications: int,
    state_mb: int,
    repeat: int,
    only: tuple[str, ...],
    seed: int,
    out: Path,
    as_json: bool,
) -> None:
    """Run the fragment store's experiments: routing, retrieval, balance, coding, churn, correlated failures.

    A ring of 5,000 simulated peers on the real ring code, and the code itself measured on this machine. Takes a few
    minutes; with --peers 1000 one.

    \b
    Examples:
      holdfast experiment ring
      holdfast experiment ring --only coding
      holdfast experiment ring --peers 1000 --applications 200 --only balance --only routing
    """
    from holdfast.cli.result_files import make_directory, write_csv, write_json
    from holdfast_lab.experiments.ring.groups import chosen_groups, run_experiment
    from holdfast_lab.experiments.ring.part import RingExperiment
    from holdfast_lab.plots.ring import draw_parts
    from holdfast_lab.ring_simulation.scenario import RingScenario

    chosen_groups(only)
    experiment = RingExperiment(
        RingScenario(peers=peers, applications=applications, seed=seed), state_bytes=state_mb << 20, repeat=repeat
    )
    make_directory(out)
    with phases() as report:
        parts = run_experiment(experiment, only, report)
    document = {
        "experiment": "ring",
        "seed": seed,
        "peers": peers,
        "applications": applications,
        "state_bytes": experiment.state_bytes,
        "repeat": repeat,
        "parts": [part.document() for part in parts],
    }
    write_json(out / "result.json", document)
    for part in parts:
        write_csv(out / f"{part.name}.csv", part.rows)
    write_csv(
        out / "claims.csv",
        [{"part": part.name, **claim} for part in parts for claim in part.document()["claims"]],
    )
    drawn = draw_parts([part.document() for part in parts], out)
    if as_json:
        print_json(document)
        return
    for part in parts:
        print_part(part)
    print_claims(parts)
    click.echo(f"written to {out}: result.json, CSV files, {', '.join(path.name for path in drawn) or 'no plots'}")


def print_part(part: Part) -> None:
    """Print a part's rows: as a table, or name by name where there is one row with many columns."""
    title = f"{part.title} (Fig. {part.figure})" if part.figure[0].isdigit() else f"{part.title} ({part.figure})"
    columns = list(part.rows[0])
    if len(part.rows) == 1:
        print_table(title, ["what", "value"], [(name.replace("_", " "), part.rows[0][name]) for name in columns])
    else:
        rows = [tuple(row[name] for name in columns) for row in part.rows]
        print_table(title, [name.replace("_", " ") for name in columns], rows, right=range(len(columns)))


def print_claims(parts: list[Part]) -> None:
    """Print the paper's statements beside ours."""
    print_table(
        "The paper's statements",
        ["where", "statement", "paper", "ours", "holds"],
        [
            (claim.where, claim.statement, claim.paper, claim.ours, "-" if claim.holds is None else claim.holds)
            for part in parts
            for claim in part.claims
        ],
    )
